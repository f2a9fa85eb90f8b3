// SPDX-License-Identifier: GPL-2.0

//! The first MMU notifier of an address space: wraps `include/linux/mmu_notifier.h`.
//!
//! The kernel makes it under a lock of all address spaces together, and waits there, also after a signal, until no thread
//! handles a page fault in any mapping of this one (`mm_take_all_locks()`, mm/vma.c). A file system in user space keeps a
//! thread in such a fault for as long as it likes (`fuse_page_mkwrite()`, fs/fuse/file.c). Then no other process gets its first
//! notifier, whatever for. So the mappings are locked before: that wait concerns this address space only, and SIGKILL ends it.

use core::ptr;

use kernel::{error::to_result, prelude::*};

use crate::{bindings, support::sync::signal_or};

/// Has an address space ready for notifiers. Process context; sleeps.
///
/// # Errors
///
/// `EINTR` if the process was killed, `ERESTARTNOINTR` if the thread has to take another signal first, `ENOMEM`.
///
/// # Safety
///
/// `mm` must be the calling thread's.
pub(super) unsafe fn prepare(mm: *mut bindings::mm_struct) -> Result {
    // SAFETY: The caller's promise.
    if unsafe { has_notifiers(mm) }? {
        return Ok(());
    }
    // SAFETY: The calling thread keeps its address space.
    to_result(unsafe { bindings::mmap_write_lock_killable(mm) })?;
    // SAFETY: As above, and the lock is held.
    let prepared = unsafe { lock_mappings(mm).and_then(|()| register(mm)) };
    // SAFETY: Locked above. This unlocks the mappings, too.
    unsafe { bindings::mmap_write_unlock(mm) };
    prepared
}

/// Whether the space has all that the first notifier takes. The kernel makes it under the lock, in more than one step.
///
/// The space may have notifiers of KVM and of graphics drivers alone; their users make others wait without rrxe, too.
///
/// # Safety
///
/// `mm` must be the calling thread's.
unsafe fn has_notifiers(mm: *mut bindings::mm_struct) -> Result<bool> {
    // SAFETY: The calling thread keeps its address space.
    to_result(unsafe { bindings::mmap_read_lock_killable(mm) })?;
    // SAFETY: As above.
    let has_notifiers = unsafe { bindings::mm_has_notifiers(mm) };
    // SAFETY: Locked above.
    unsafe { bindings::mmap_read_unlock(mm) };
    Ok(has_notifiers)
}

/// Locks each mapping until the space is unlocked.
///
/// # Safety
///
/// `mm` must be the calling thread's, and its lock held for writing.
unsafe fn lock_mappings(mm: *mut bindings::mm_struct) -> Result {
    let mut at = 0;
    loop {
        // SAFETY: The caller's promise.
        let mapping = unsafe { bindings::find_vma(mm, at) };
        if mapping.is_null() {
            return Ok(());
        }
        // SAFETY: The mapping lives as long as the lock is held.
        to_result(unsafe { bindings::vma_start_write_killable(mapping) })?;
        // SAFETY: As above.
        at = unsafe { (*mapping).__bindgen_anon_1.__bindgen_anon_1.vm_end };
    }
}

/// Makes what the first notifier takes, without one.
///
/// # Safety
///
/// As for [`lock_mappings`].
unsafe fn register(mm: *mut bindings::mm_struct) -> Result {
    // SAFETY: The lock is held for writing, and the calling thread is a user of the space.
    let code = unsafe { bindings::__mmu_notifier_register(ptr::null_mut(), mm) };
    to_result(code).map_err(signal_or)
}
