// SPDX-License-Identifier: GPL-2.0

//! The use of this module's code by work that may never end.

use kernel::prelude::*;

use crate::bindings;

/// Keeps the module from being removed: while it lives, removal fails with `EWOULDBLOCK` at once. Without it, removal
/// would wait for the work without being interruptible, and could never be given up.
///
/// # Invariants
///
/// Owns a reference to this module.
pub struct InUse(());

impl InUse {
    /// Any context; the caller is waited for by the module's end, as work of its queues is.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the module is being removed.
    pub fn begin() -> Result<Self> {
        // SAFETY: This code is part of the module, which is there as long as it runs.
        match unsafe { bindings::try_this_module_get() } {
            // INVARIANT: The reference was just taken.
            true => Ok(Self(())),
            false => Err(ENODEV),
        }
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        // SAFETY: The reference is given up once, here. The module's end waits for the caller's work: for items of its queues,
        // and for operations on its devices.
        unsafe { bindings::this_module_put() };
    }
}
