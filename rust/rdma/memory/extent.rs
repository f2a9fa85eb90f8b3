// SPDX-License-Identifier: GPL-2.0

//! The pages behind what is mapped into the kernel.

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

/// Pages that are looked at before others may run, and a kill ends it.
const LOOKED_AT_ONCE: usize = 512;

/// Calls `visit` with address, in the kernel's direct mapping, and bytes of each stretch of pages, one behind the
/// other, that hold the `len` bytes at the kernel's address `start`. Process context; may sleep.
///
/// # Errors
///
/// `EOPNOTSUPP` for what isn't made of pages; `EINTR` if the process was killed; what `visit` returns.
///
/// # Safety
///
/// The bytes must be mapped during the call, and be at least one.
pub(crate) unsafe fn for_each_extent(
    start: usize,
    len: usize,
    mut visit: impl FnMut(usize, usize) -> Result,
) -> Result {
    let first = start & !(PAGE_SIZE - 1);
    let end = start.wrapping_add(len);
    // SAFETY: The caller promises that the address is mapped.
    let mut extent = (unsafe { page_at(first) }?, PAGE_SIZE);
    for (number, at) in (first..end).step_by(PAGE_SIZE).enumerate().skip(1) {
        if number % LOOKED_AT_ONCE == 0 {
            cond_resched();
            check_not_killed()?;
        }
        // SAFETY: As above.
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

/// Where the page that is mapped at `at` is in the direct mapping.
///
/// # Safety
///
/// A page must be mapped at `at`.
unsafe fn page_at(at: usize) -> Result<usize> {
    let at = at as *const c_void;
    // SAFETY: The callee looks at the address only.
    let page = if unsafe { bindings::is_vmalloc_addr(at) } {
        // SAFETY: It is an address of that kind.
        unsafe { bindings::vmalloc_to_page(at) }
    // SAFETY: The callee looks at the address only.
    } else if unsafe { bindings::virt_addr_valid(at) } {
        // SAFETY: It is in the direct mapping.
        unsafe { bindings::virt_to_page(at) }
    } else {
        return Err(unsupported());
    };
    if page.is_null() {
        return Err(unsupported());
    }
    // What was mapped by frame numbers need not be memory.
    // SAFETY: It is the page of an address that is mapped, as the caller promises.
    let address = unsafe { direct_map::address_of(page) }.ok_or_else(unsupported)?;
    Ok(address.as_ptr() as usize)
}
