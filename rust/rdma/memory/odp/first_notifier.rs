// SPDX-License-Identifier: GPL-2.0

//! Preparation of an address space for its first MMU notifier (`include/linux/mmu_notifier.h`).
//!
//! The kernel prepares an address space for its first notifier in `__mmu_notifier_register()`. This
//! calls `mm_take_all_locks()` (mm/vma.c), which takes a mutex that all address spaces share. With
//! this mutex held it waits, even after a signal, until no thread handles a page fault in a mapping
//! of the address space. A file system in user space can keep a thread in such a fault for as long
//! as it likes (`fuse_page_mkwrite()`, fs/fuse/file.c). Meanwhile no other process could get its
//! first notifier, for any purpose. So [`prepare`] locks the mappings before it calls
//! `__mmu_notifier_register()`. The wait in `prepare` concerns this address space only, and SIGKILL
//! ends that wait.

use core::ptr;

use kernel::{error::to_result, prelude::*};

use crate::{bindings, support::sync::signal_or};

/// Prepares the address space `mm` for MMU notifiers, unless it is prepared already. Process
/// context; sleeps.
///
/// # Errors
///
/// `EINTR` if the process was killed; `ERESTARTNOINTR` if the thread has to take another signal
/// first; `ENOMEM`.
///
/// # Safety
///
/// `mm` must be the address space of the calling thread.
pub(super) unsafe fn prepare(mm: *mut bindings::mm_struct) -> Result {
    // SAFETY: The caller guarantees that `mm` is the calling thread's (see `# Safety`).
    if unsafe { has_notifiers(mm) }? {
        return Ok(());
    }
    // SAFETY: `mm` is the calling thread's, which keeps it alive.
    to_result(unsafe { bindings::mmap_write_lock_killable(mm) })?;
    // SAFETY: `mm` is the calling thread's, and its lock is held for writing.
    let prepared = unsafe { lock_mappings(mm).and_then(|()| register(mm)) };
    // SAFETY: The lock was taken above. Its release unlocks the mappings, too.
    unsafe { bindings::mmap_write_unlock(mm) };
    prepared
}

/// Returns whether the address space is prepared for MMU notifiers. The lock is necessary: the
/// kernel prepares an address space under it, in more than one step.
///
/// An address space also counts as prepared if it has notifiers, such as that of KVM, of which none
/// is an interval notifier. The kernel then prepares it again for its first interval notifier, and
/// other processes may wait. A user of KVM can make them wait without this crate, too.
///
/// # Safety
///
/// `mm` must be the address space of the calling thread.
unsafe fn has_notifiers(mm: *mut bindings::mm_struct) -> Result<bool> {
    // SAFETY: The caller guarantees that `mm` is the calling thread's, which keeps it alive.
    to_result(unsafe { bindings::mmap_read_lock_killable(mm) })?;
    // SAFETY: `mm` is the calling thread's, which keeps it alive.
    let has_notifiers = unsafe { bindings::mm_has_notifiers(mm) };
    // SAFETY: The lock was taken above.
    unsafe { bindings::mmap_read_unlock(mm) };
    Ok(has_notifiers)
}

/// Locks each mapping (VMA) for writing. The release of the lock of the address space unlocks all
/// of them.
///
/// # Safety
///
/// `mm` must be the address space of the calling thread, and its lock must be held for writing.
unsafe fn lock_mappings(mm: *mut bindings::mm_struct) -> Result {
    let mut at = 0;
    loop {
        // SAFETY: The caller guarantees that `mm` is valid and that its lock is held (see `#
        // Safety`).
        let mapping = unsafe { bindings::find_vma(mm, at) };
        if mapping.is_null() {
            return Ok(());
        }
        // SAFETY: `find_vma()` returned the mapping, which lives as long as the lock is held.
        to_result(unsafe { bindings::vma_start_write_killable(mapping) })?;
        // SAFETY: The mapping lives as long as the lock is held.
        at = unsafe { (*mapping).__bindgen_anon_1.__bindgen_anon_1.vm_end };
    }
}

/// Prepares the address space as for its first notifier, without registering a notifier.
///
/// # Safety
///
/// `mm` must be the address space of the calling thread, and its lock must be held for writing.
unsafe fn register(mm: *mut bindings::mm_struct) -> Result {
    // SAFETY: The caller guarantees that the lock is held for writing, and that the calling thread
    // is a user of the address space (see `# Safety`).
    let code = unsafe { bindings::__mmu_notifier_register(ptr::null_mut(), mm) };
    to_result(code).map_err(signal_or)
}
