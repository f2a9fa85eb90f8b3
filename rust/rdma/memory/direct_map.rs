// SPDX-License-Identifier: GPL-2.0

//! The kernel's direct mapping, by which the data path reaches the memory of regions.
//!
//! Not every page that a process has is in it: `memfd_secret()` takes its pages out. Nor is every page that is in it
//! memory: the direct mapping also has the registers of PCI devices that share them with their peers.

use core::ptr::NonNull;

use crate::bindings;

/// The address of `page` in the direct mapping, if the kernel may read it there. Whoever may write the page by
/// another mapping may write it there, too. Any context but hard interrupts; may not sleep.
///
/// The answer holds as long as the page is pinned, or a process has it mapped: `secretmem_fault()` takes a page out
/// before any process has it (mm/secretmem.c), and the other users of `set_direct_map_invalid_noflush()` take out only
/// pages of the kernel's own (mm/vmalloc.c, mm/execmem.c). It does not hold for a pinned page in which the hardware finds
/// a memory error later: `set_mce_nospec()` takes the page out (arch/x86/mm/pat/set_memory.c), and an access panics, as the
/// machine check of an access to such memory does.
///
/// # Safety
///
/// `page` came from the kernel; it may be the number of a frame that is not memory.
pub(crate) unsafe fn address_of(page: *mut bindings::page) -> Option<NonNull<u8>> {
    // SAFETY: The callee computes with the address only.
    let frame = unsafe { bindings::page_to_pfn(page) };
    // SAFETY: The callee takes any number.
    if !unsafe { bindings::pfn_valid(frame) } {
        return None;
    }
    // SAFETY: The frame is valid, so `page` is.
    if unsafe { bindings::is_pci_p2pdma_page(page) || bindings::is_device_private_page(page) } {
        return None;
    }
    // SAFETY: As above (64 bit only: no more than the address is computed).
    let address = NonNull::new(unsafe { bindings::page_address(page) })?;
    let mut word = 0u64;
    // SAFETY: `word` is valid for writes of its size; the callee catches faults of the source.
    let code = unsafe {
        bindings::copy_from_kernel_nofault(
            core::ptr::from_mut(&mut word).cast(),
            address.as_ptr(),
            size_of::<u64>(),
        )
    };
    (code == 0).then(|| address.cast())
}
