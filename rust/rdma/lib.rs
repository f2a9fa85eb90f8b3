// SPDX-License-Identifier: GPL-2.0

//! Kernel abstractions for a soft-RoCE provider; all of its unsafe code lives here.

#![deny(missing_docs)]

pub(crate) use rdma_bindings as bindings;
