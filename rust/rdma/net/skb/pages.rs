// SPDX-License-Identifier: GPL-2.0

//! Memory for the packets of bursts, which is used again and again. Wraps `struct page_pool`
//! (include/net/page_pool/types.h).
//!
//! With `init_on_alloc=1`, the default of some kernel configurations, the slab allocator writes
//! zeros to each new buffer, which takes longer than the copy of the payload. A pool gets back the
//! pages of freed buffers, and writes nothing to them. A packet of a burst shows no bytes but those
//! that its sender wrote ([`super::TxSkb`]).

use core::ptr::NonNull;

use kernel::{cpu::CpuId, error::from_err_ptr, ffi::c_int, prelude::*, sync::Arc};

use crate::{bindings, support::sync::wait_for_readers};

/// Order of the pages of a pool. A buffer consists of two pages, and so has room for a packet with
/// 4 KiB of payload.
const ORDER: u32 = 1;
/// Number of bytes of a buffer.
const BUFFER_LEN: usize = kernel::page::PAGE_SIZE << ORDER;
/// Smallest packet that gets such a buffer, in bytes. Smaller packets would waste memory.
const SMALLEST: usize = 2048;
/// Maximum number of buffers that a pool's ring keeps for later packets. The pool's cache keeps
/// `PP_ALLOC_CACHE_SIZE` further ones: 128 if a page has less than 16 KiB.
const KEPT: u32 = 64;
/// Maximum number of buffers of a pool, in packets or kept: 4 MiB if a page has 4 KiB. A network
/// namespace may let packets wait for long, and nobody is charged for these buffers.
const MOST: u32 = 512;

/// Pools of buffers, one for each CPU.
///
/// # Invariants
///
/// Each pool is valid, and belongs to this value alone. Only code of the pool's CPU takes buffers
/// from the pool, with softirqs excluded and not in hard interrupts. Any CPU may free a buffer: the
/// kernel returns it through the pool's ring. On the pool's CPU, with softirqs excluded, the kernel
/// puts the buffer into the pool's cache (`page_pool_napi_local()`).
pub struct TxPages(KVec<NonNull<bindings::page_pool>>);

// SAFETY: Only code of a pool's CPU takes buffers from the pool, as the type invariant says. Any
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

    /// Creates an empty buffer with room for `len` bytes, headroom included. Returns `None` if
    /// `len` is below [`SMALLEST`] or exceeds a buffer, if there is no memory, if the pool of this
    /// CPU has as many buffers as it may have, or if the caller doesn't exclude softirqs.
    pub(super) fn build(&self, len: usize) -> Option<NonNull<bindings::sk_buff>> {
        // SAFETY: The function has no requirements.
        let capacity = unsafe { bindings::SKB_WITH_OVERHEAD(BUFFER_LEN) };
        // SAFETY: The function has no requirements.
        if len < SMALLEST || len > capacity || !unsafe { bindings::in_bottom_half() } {
            return None;
        }
        // Softirqs are excluded, so the caller stays on this CPU.
        let pool = self.0.get(CpuId::current().as_u32() as usize)?.as_ptr();
        // SAFETY: The pool is valid by the type invariant. Any CPU may change
        // `pages_state_release_cnt`, so it is read as a volatile value. Only this CPU changes
        // `pages_state_hold_cnt`.
        let total = unsafe {
            let freed = (&raw const (*pool).pages_state_release_cnt.counter).read_volatile();
            (*pool).pages_state_hold_cnt.wrapping_sub(freed as u32)
        };
        // SAFETY: The pool is valid by the type invariant, and this CPU alone changes the cache.
        if total >= MOST && unsafe { (*pool).alloc.count } == 0 {
            return None;
        }
        let flags = bindings::GFP_ATOMIC | bindings::__GFP_NOWARN;
        // SAFETY: The pool is valid by the type invariant, whose other conditions hold as well: the
        // caller excludes softirqs, and is not in a hard interrupt.
        let page = NonNull::new(unsafe { bindings::page_pool_alloc_pages(pool, flags) })?;
        // SAFETY: The page is valid, and no page of highmem, for which the flags didn't ask.
        let data = unsafe { bindings::page_address(page.as_ptr()) };
        // SAFETY: `data` is the address of `BUFFER_LEN` bytes that no other code uses. Softirqs are
        // excluded.
        let skb = unsafe { bindings::napi_build_skb(data, BUFFER_LEN as u32) };
        let Some(skb) = NonNull::new(skb) else {
            // SAFETY: The page is of this pool, and no other code uses it.
            unsafe { bindings::page_pool_free_va(pool, data, true) };
            return None;
        };
        // SAFETY: The buffer is new, and its memory is of a pool.
        unsafe { bindings::skb_mark_for_recycle(skb.as_ptr()) };
        Some(skb)
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
