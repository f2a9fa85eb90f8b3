// SPDX-License-Identifier: GPL-2.0

//! References to this kernel module, for work that may never end.

use kernel::prelude::*;

use crate::bindings;

/// A reference to this kernel module, which keeps the module from being removed.
///
/// While the reference exists, removal fails at once with `EWOULDBLOCK`. Without the reference,
/// removal would wait for the work. That wait is not interruptible, so the administrator could not
/// give the removal up.
///
/// # Invariants
///
/// The value owns a reference to this module.
pub struct ModuleRef(());

impl ModuleRef {
    /// Takes a reference to this module. Callable in any context.
    ///
    /// The module's exit must wait for the caller, as it waits for the work items of its queues.
    ///
    /// # Errors
    ///
    /// Returns `ENODEV` if the module is being removed.
    pub fn begin() -> Result<Self> {
        // SAFETY: The caller's code is part of this module, whose exit waits for that code. So the
        // module is loaded during the call.
        match unsafe { bindings::try_this_module_get() } {
            // INVARIANT: `try_this_module_get()` has just taken the reference.
            true => Ok(Self(())),
            false => Err(ENODEV),
        }
    }
}

impl Drop for ModuleRef {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the value owns a reference, which is put once, here. The
        // module's exit waits for the work items of its queues and for operations on its devices,
        // so it waits for the caller.
        unsafe { bindings::this_module_put() };
    }
}
