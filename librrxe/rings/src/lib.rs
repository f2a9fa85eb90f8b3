// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Data path of the provider library librrxe: queues in memory that the process shares with the
//! kernel.
//!
//! Posted work requests become elements of mapped rings. Completions are read from a ring. A
//! doorbell page tells the kernel which send queues have new requests. Only a doorbell
//! ([`doorbell::RingResult`]) and the arming of a queue ([`completion::Armed`]) may need a system
//! call, which the caller makes. The caller also provides the memory ([`memory::Memory`]). All
//! accesses to it are atomic operations, so this crate needs no unsafe code, whatever the kernel
//! writes at the same time.

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

/// Reason why a work request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// The queue is full (`ENOMEM`).
    Full,
    /// A value is out of range, or the QP does not support the operation (`EINVAL`).
    Invalid,
}

/// Scatter/gather element (SGE).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// Local key of the memory region.
    pub lkey: u32,
}
