// SPDX-License-Identifier: GPL-2.0

//! What peers ask of memory.

use roce::{host::RemoteAccess, ids::Rkey};

use crate::memory::mw::RemoteContext;

/// Memory that a peer comes to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteRange {
    /// By way of which QP.
    pub(crate) context: RemoteContext,
    /// The key of a region or window.
    pub(crate) rkey: Rkey,
    /// The first byte.
    pub(crate) va: u64,
    /// Bytes.
    pub(crate) length: u32,
    /// What for.
    pub(crate) access: RemoteAccess,
}
