// SPDX-License-Identifier: GPL-2.0

//! Deregistration of a region whose registration uverbs undoes.

use super::{rights, Memory, Mr, MrTable};

impl Mr {
    /// Forbids further bindings of windows. Unlike [`Self::close`], it does not fail while windows
    /// are bound, and leaves them bound. After the return, no binding is in progress. Process
    /// context; sleeps.
    fn forbid_bindings(&self) {
        // Windows can be bound to the memory of a process only.
        if let Memory::User { access, .. } = &self.memory {
            self.change(access, None, rights(access).without_windows());
        }
    }
}

impl MrTable {
    /// Deregisters a region whose registration uverbs undoes. Unlike [`Self::deregister`], it
    /// cannot fail: if the process has learnt the key and bound windows to the region, this unbinds
    /// the windows. Process context; sleeps.
    pub(crate) fn undo(&self, mr: &Mr) {
        if mr.close().is_err() {
            mr.forbid_bindings();
            // The windows are unbound before the region leaves the table: for each window, the
            // unbinding looks the region up there and lowers its count of windows.
            self.windows.unbind_from(mr.key, self);
        }
        drop(self.regions.remove(mr.key >> 8));
    }
}
