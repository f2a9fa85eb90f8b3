// SPDX-License-Identifier: GPL-2.0

//! The end of a region whose registration uverbs undoes.

use super::{rights, Memory, Mr, MrTable};

impl Mr {
    /// Excludes further windows from now on, though there are some. When this returns, all of these
    /// are bound. Process context; sleeps.
    fn close_to_more(&self) {
        // Windows are bound to a process's memory only.
        if let Memory::User { access, .. } = &self.memory {
            self.change(access, None, rights(access).without_windows());
        }
    }
}

impl MrTable {
    /// As [`Self::deregister`], for a region whose registration is undone: its process may have learnt
    /// the key and bound windows, which lose their grants. Process context.
    pub(crate) fn undo(&self, mr: &Mr) {
        if mr.close().is_err() {
            mr.close_to_more();
            // While the region has its place: each of them is counted off there.
            self.windows.unbind_from(mr.key, self);
        }
        drop(self.regions.remove(mr.key >> 8));
    }
}
