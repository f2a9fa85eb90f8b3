// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Atomic operations: those of the standard library, or those of the model checker loom.

#[cfg(all(test, loom))]
pub(crate) use loom::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};
#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};
