// SPDX-License-Identifier: GPL-2.0

//! The queue pair.

pub mod attr;
