// SPDX-License-Identifier: GPL-2.0

//! The memory that a peer's request accesses.

use roce::{host::RemoteAccess, ids::Rkey};

use crate::memory::mw::RemoteContext;

/// A peer's access to registered memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteRange {
    /// Protection domain in which the memory must be, and number of the QP that got the request.
    pub(crate) context: RemoteContext,
    /// R_Key of a memory region or a memory window.
    pub(crate) rkey: Rkey,
    /// Virtual address of the first byte, in the addresses of the region or window.
    pub(crate) va: u64,
    /// Number of bytes.
    pub(crate) length: u32,
    /// Kind of the access.
    pub(crate) access: RemoteAccess,
}
