// SPDX-License-Identifier: GPL-2.0

//! The kernel's direct mapping, through which the data path accesses the memory of regions.
//!
//! Not every page that a process has mapped is in the direct mapping: `memfd_secret()` takes its
//! pages out. Not everything in the direct mapping is memory: it also contains the registers of PCI
//! devices that share them with other devices (P2PDMA).

use core::ptr::NonNull;

use crate::bindings;

/// Returns the address of `page` in the direct mapping, or `None` if the kernel cannot read the
/// page there. Any context except hard interrupts; does not sleep.
///
/// If the page is writable through another mapping, it is writable at the returned address, too.
///
/// The address stays usable as long as the page is pinned, or a process has the page mapped:
///
/// - `secretmem_fault()` (mm/secretmem.c) takes a page out of the direct mapping before any process
///   has the page mapped.
/// - The other users of `set_direct_map_invalid_noflush()` and `set_direct_map_valid_noflush()`
///   take out only pages of the kernel's own (mm/vmalloc.c, mm/execmem.c), or pages that were out
///   before (kernel/power/snapshot.c).
///
/// The exception is a pinned page in which the hardware finds a memory error later.
/// `set_mce_nospec()` (arch/x86/mm/pat/set_memory.c) takes this page out of the direct mapping. An
/// access to it then panics, as does the machine check that an access to memory with an error
/// causes.
///
/// # Safety
///
/// `page` must be a `struct page` pointer that a function of the kernel returned. It may be
/// computed from a frame number that is no memory.
pub(crate) unsafe fn address_of(page: *mut bindings::page) -> Option<NonNull<u8>> {
    // SAFETY: The callee does arithmetic on the pointer and does not dereference it.
    let frame = unsafe { bindings::page_to_pfn(page) };
    // SAFETY: The callee accepts any frame number.
    if !unsafe { bindings::pfn_valid(frame) } {
        return None;
    }
    // SAFETY: `pfn_valid()` accepted the frame number, so `page` points to an initialised `struct
    // page`.
    if unsafe { bindings::is_pci_p2pdma_page(page) || bindings::is_device_private_page(page) } {
        return None;
    }
    // SAFETY: `pfn_valid()` accepted the frame number, so `page` is valid. (On 64 bit, the only
    // kind of kernel supported, the callee only computes the address.)
    let address = NonNull::new(unsafe { bindings::page_address(page) })?;
    let mut word = 0u64;
    // SAFETY: `word` is valid for writes of its size. The callee catches faults of the source.
    let code = unsafe {
        bindings::copy_from_kernel_nofault(
            core::ptr::from_mut(&mut word).cast(),
            address.as_ptr(),
            size_of::<u64>(),
        )
    };
    (code == 0).then(|| address.cast())
}
