// SPDX-License-Identifier: GPL-2.0

//! Memory for the payload of bursts, which is used again and again. Wraps `struct page_pool`
//! (include/net/page_pool/types.h).
//!
//! With `init_on_alloc=1`, the default of some kernel configurations, the page allocator writes
//! zeros to each new page, which takes longer than the copy of the payload. A pool gets back the
//! pages of freed buffers, and writes nothing to them. A burst shows no bytes but those that its
//! sender wrote ([`super::TxSkb`]).

use core::ptr::NonNull;

use kernel::{cpu::CpuId, error::from_err_ptr, ffi::c_int, page::PAGE_SIZE, prelude::*, sync::Arc};

use crate::{bindings, support::sync::wait_for_readers};

/// Order of the pages of a pool: they have 16 KiB, or the size of a page if that is more.
const ORDER: u32 = match 16384usize.checked_div(PAGE_SIZE) {
    Some(pages) if pages > 1 => pages.trailing_zeros(),
    _ => 0,
};
/// Number of bytes of a pool's page.
pub(super) const LEN: usize = PAGE_SIZE << ORDER;
/// Maximum number of pages that a pool's ring keeps for later bursts. The pool's cache keeps
/// `PP_ALLOC_CACHE_SIZE` further ones: 128 if a page of the kernel has less than 16 KiB.
const KEPT: u32 = 64;
/// Pools of pages, one for each CPU.
///
/// # Invariants
///
/// Each pool is valid, and belongs to this value alone. Only code of the pool's CPU takes pages
/// from the pool, with softirqs excluded and not in hard interrupts. Any CPU may free a page: the
/// kernel returns it through the pool's ring. On the pool's CPU, with softirqs excluded, the kernel
/// puts the page into the pool's cache (`page_pool_napi_local()`).
pub struct TxPages(KVec<NonNull<bindings::page_pool>>);

// SAFETY: Only code of a pool's CPU takes pages from the pool, as the type invariant says. Any
// thread may destroy it.
unsafe impl Send for TxPages {}
// SAFETY: As above.
unsafe impl Sync for TxPages {}

impl TxPages {
    /// Creates empty pools. Must be called in process context; sleeps. The last reference must be
    /// dropped in process context.
    ///
    /// # Errors
    ///
    /// Returns `ENOMEM` if there is no memory.
    pub fn new() -> Result<Arc<Self>> {
        // INVARIANT: There is no pool.
        let mut pages = Self(KVec::new());
        // SAFETY: The kernel sets the variable when it boots.
        let cpus = unsafe { bindings::nr_cpu_ids };
        for cpu in 0..cpus {
            let mut params = bindings::page_pool_params::default();
            params.__bindgen_anon_1.__bindgen_anon_1.order = ORDER;
            params.__bindgen_anon_1.__bindgen_anon_1.pool_size = KEPT;
            params.__bindgen_anon_1.__bindgen_anon_1.nid = bindings::NUMA_NO_NODE;
            // SAFETY: The parameters are valid during the call.
            let pool = unsafe { bindings::page_pool_create_percpu(&params, cpu as c_int) };
            let pool = NonNull::new(from_err_ptr(pool)?).ok_or(ENOMEM)?;
            // INVARIANT: The pool is new.
            if pages.0.push(pool, GFP_KERNEL).is_err() {
                // SAFETY: No other code has the pool.
                unsafe { bindings::page_pool_destroy(pool.as_ptr()) };
                return Err(ENOMEM);
            }
        }
        Ok(Arc::new(pages, GFP_KERNEL)?)
    }

    /// Returns a page of [`LEN`] bytes with a reference. It comes from the pool of this CPU, or
    /// from the page allocator if the caller doesn't exclude softirqs. A pool takes pages from the
    /// page allocator if all of its pages are in use: their number has no limit of its own. Returns
    /// `None` if there is no memory. A buffer that owns the page must be marked for recycling.
    pub(super) fn take(&self) -> Option<NonNull<bindings::page>> {
        let flags = bindings::GFP_ATOMIC | bindings::__GFP_NOWARN;
        let page = match self.usable_pool() {
            // SAFETY: The pool is valid by the type invariant, whose other conditions hold as well:
            // the caller excludes softirqs, and is not in a hard interrupt.
            Some(pool) => unsafe { bindings::page_pool_alloc_pages(pool, flags) },
            // SAFETY: The function has no requirements.
            None => unsafe { bindings::alloc_compound_page(flags, ORDER) },
        };
        NonNull::new(page)
    }

    /// Returns the pool of this CPU, if the caller may take a page from it now.
    fn usable_pool(&self) -> Option<*mut bindings::page_pool> {
        // SAFETY: The function has no requirements.
        if !unsafe { bindings::in_bottom_half() } {
            return None;
        }
        // Softirqs are excluded, so the caller stays on this CPU.
        let pool = self.0.get(CpuId::current().as_u32() as usize)?;
        Some(pool.as_ptr())
    }
}

impl Drop for TxPages {
    fn drop(&mut self) {
        for pool in &self.0 {
            // SAFETY: By the type invariant the pool is valid.
            unsafe { bindings::page_pool_disable_direct_recycling(pool.as_ptr()) };
        }
        // Softirqs that have not seen the change may still put pages into the cache of their CPU's
        // pool, which `page_pool_destroy()` empties on this CPU.
        wait_for_readers();
        for pool in &self.0 {
            // Buffers in flight keep the pool. The kernel frees it after the last one.
            // SAFETY: By the type invariant the pool is valid, and no other code has it.
            unsafe { bindings::page_pool_destroy(pool.as_ptr()) };
        }
    }
}
