// SPDX-License-Identifier: GPL-2.0

//! Deregistration of a region whose registration uverbs undoes.

use super::{rights, Memory, Mr, MrTable};

impl Mr {
    /// Forbids further bindings of windows, although windows are bound already. After the return,
    /// no binding is in progress. Process context; sleeps.
    fn forbid_bindings(&self) {
        // Windows can be bound to the memory of a process only.
        if let Memory::User { access, .. } = &self.memory {
            self.change(access, None, rights(access).without_windows());
        }
    }
}

impl MrTable {
    /// Works as [`Self::deregister`], for a region whose registration uverbs undoes. The process
    /// may have learnt the key and bound windows to the region. These windows are unbound. Process
    /// context; sleeps.
    pub(crate) fn undo(&self, mr: &Mr) {
        if mr.close().is_err() {
            mr.forbid_bindings();
            // Before the region leaves the table, because each window is counted off there.
            self.windows.unbind_from(mr.key, self);
        }
        drop(self.regions.remove(mr.key >> 8));
    }
}
