// SPDX-License-Identifier: GPL-2.0

//! The data path of a provider library: queues in memory that is shared with the kernel.
//!
//! Work requests become elements of mapped rings, completions come out of them, and a page of
//! doorbells tells the kernel where to look; none of it takes a system call. The memory comes from
//! the caller ([`Memory`]) and is read and written by atomic operations only, so that nothing here is
//! unsafe whatever the other side does.

#![forbid(unsafe_code)]

pub mod completion;
pub mod doorbell;
pub mod layout;
pub mod memory;
#[cfg(all(test, loom))]
mod model;
pub mod operation;
pub mod receive;
pub mod ring;
pub mod send;
mod sync;

/// Why a work request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// The queue has no room: `ENOMEM`.
    Full,
    /// A value is out of range, or the QP can't do it: `EINVAL`.
    Invalid,
}

/// A scatter/gather element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// Address of its first byte.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// Key of its region.
    pub lkey: u32,
}
