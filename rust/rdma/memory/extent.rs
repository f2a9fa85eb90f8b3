// SPDX-License-Identifier: GPL-2.0

//! Pages behind an address range that is mapped into the kernel.

use core::ffi::c_void;

use kernel::{page::PAGE_SIZE, prelude::*};

use crate::{
    bindings,
    memory::direct_map,
    support::{
        error::unsupported,
        sync::{check_not_killed, cond_resched},
    },
};

/// Number of pages after which the loop yields the CPU (`cond_resched()`) and checks for a fatal
/// signal.
const PAGES_PER_CHECK: usize = 512;

/// Calls `visit` with the address (in the kernel's direct mapping) and the length in bytes of each
/// run of contiguous pages. Together the runs hold the `len` bytes at the kernel address `start`,
/// in order. The first and the last page are passed as a whole. Process context; may sleep.
///
/// # Errors
///
/// `EOPNOTSUPP` if a page of the range is no readable memory of the direct mapping
/// ([`direct_map::address_of`]); `EINTR` if the process was killed; the errors of `visit`.
///
/// # Safety
///
/// The `len` bytes at `start` must stay mapped during the call. `len` must not be zero.
pub(crate) unsafe fn for_each_extent(
    start: usize,
    len: usize,
    mut visit: impl FnMut(usize, usize) -> Result,
) -> Result {
    let first = start & !(PAGE_SIZE - 1);
    let end = start.wrapping_add(len);
    // SAFETY: The caller guarantees that the range is mapped and not empty (see `# Safety`).
    let mut extent = (unsafe { page_at(first) }?, PAGE_SIZE);
    for (number, at) in (first..end).step_by(PAGE_SIZE).enumerate().skip(1) {
        if number % PAGES_PER_CHECK == 0 {
            cond_resched();
            check_not_killed()?;
        }
        // SAFETY: `at` is the start of a page within the range, which the caller guarantees to be
        // mapped.
        let page = unsafe { page_at(at) }?;
        if page == extent.0.wrapping_add(extent.1) {
            extent.1 = extent.1.saturating_add(PAGE_SIZE);
        } else {
            visit(extent.0, extent.1)?;
            extent = (page, PAGE_SIZE);
        }
    }
    visit(extent.0, extent.1)
}

/// Returns the address in the direct mapping of the page that is mapped at `at`.
///
/// # Safety
///
/// A page must be mapped at `at`.
unsafe fn page_at(at: usize) -> Result<usize> {
    let at = at as *const c_void;
    // SAFETY: The callee checks the address and does not dereference it.
    let page = if unsafe { bindings::is_vmalloc_addr(at) } {
        // SAFETY: `is_vmalloc_addr()` says that `at` is an address of the vmalloc area.
        unsafe { bindings::vmalloc_to_page(at) }
    // SAFETY: The callee checks the address and does not dereference it.
    } else if unsafe { bindings::virt_addr_valid(at) } {
        // SAFETY: `virt_addr_valid()` says that `at` is memory of the direct mapping.
        unsafe { bindings::virt_to_page(at) }
    } else {
        return Err(unsupported());
    };
    if page.is_null() {
        return Err(unsupported());
    }
    // A mapping that was made from frame numbers may contain frames that are no memory.
    // SAFETY: `page` is the page of the address `at`, which the caller guarantees to be mapped.
    let address = unsafe { direct_map::address_of(page) }.ok_or_else(unsupported)?;
    Ok(address.as_ptr() as usize)
}
