// SPDX-License-Identifier: GPL-2.0

//! A cache of short buffers, for packets between QPs of this host.
//!
//! Such a packet never enters the network stack. Its receiver mostly frees the buffer on the CPU
//! that allocated it, a few hundred instructions later. To take a buffer from this cache and to put
//! it back costs a tenth of its allocation and its release by the slab allocator.

use core::{
    iter,
    ptr::{self, NonNull},
    sync::atomic::{
        AtomicPtr,
        Ordering::{Acquire, Relaxed, Release}, //
    },
};

use kernel::{cpu::CpuId, ffi::c_int, prelude::*};

use crate::bindings;

/// Number of bytes that each buffer of the cache has room for. Packets with 64 bytes of payload
/// fit.
const LEN: usize = 256;
/// Maximum number of bytes that a buffer of the cache takes (`sk_buff.truesize`). A queue of
/// received packets copies larger buffers of short packets.
const MOST_MEMORY: u32 = super::queue::OVERHEAD;
/// Number of buffers that the cache keeps for a CPU.
const BUFFERS: usize = 8;
/// Number of elements of [`CPUS`], a power of two. CPUs whose numbers differ by a multiple of it
/// share an element.
const ELEMENTS: usize = 64;

/// The buffers of a CPU. An element is null or the address of a buffer that the cache owns.
#[repr(align(64))]
struct Buffers([AtomicPtr<bindings::sk_buff>; BUFFERS]);

/// The cache. Code on another CPU may use an element at any time, so each access is atomic.
static CPUS: [Buffers; ELEMENTS] = [const { Buffers::new() }; ELEMENTS];

impl Buffers {
    /// Creates an element without buffers.
    const fn new() -> Self {
        Self([const { AtomicPtr::new(ptr::null_mut()) }; BUFFERS])
    }

    /// Returns the element of the present CPU. The caller may move to another CPU meanwhile.
    #[inline]
    fn of_this_cpu() -> Option<&'static Self> {
        let cpu = CpuId::current().as_u32() as usize;
        CPUS.get(cpu & (ELEMENTS - 1))
    }

    /// Takes a buffer. Returns `None` if there is none.
    #[inline]
    fn take(&self) -> Option<NonNull<bindings::sk_buff>> {
        // The exchange gives the buffer to one caller only.
        let mut cached = self.0.iter().filter(|place| !place.load(Relaxed).is_null());
        cached.find_map(|place| NonNull::new(place.swap(ptr::null_mut(), Acquire)))
    }

    /// Puts a buffer into a free place. Returns `false` if there is none: the caller still owns the
    /// buffer then.
    #[inline]
    fn put(&self, skb: NonNull<bindings::sk_buff>) -> bool {
        let is_put = |place: &AtomicPtr<bindings::sk_buff>| {
            place.load(Relaxed).is_null()
                && place
                    .compare_exchange(ptr::null_mut(), skb.as_ptr(), Release, Relaxed)
                    .is_ok()
        };
        self.0.iter().any(is_put)
    }
}

/// Returns an empty buffer for a packet to a QP of this host, with room for `size` bytes, of which
/// `headroom` lie before the data. The caller owns it. Returns `None` if there is no memory.
///
/// The buffer must not be sent: [`TxCount::charge`] demands a buffer of `alloc_skb_fclone()`.
///
/// # Context
///
/// Any context but hard interrupts; does not sleep.
///
/// [`TxCount::charge`]: crate::net::tx_limit::TxCount
#[inline]
pub(super) fn allocate(size: usize, headroom: usize) -> Option<NonNull<bindings::sk_buff>> {
    let headroom = c_int::try_from(headroom).ok()?;
    let is_short = size <= LEN;
    let cached = match is_short {
        true => Buffers::of_this_cpu().and_then(Buffers::take),
        false => None,
    };
    let skb = match cached {
        Some(skb) => skb,
        None => {
            let size = u32::try_from(size.max(LEN)).ok()?;
            // SAFETY: The function has no requirements.
            NonNull::new(unsafe { bindings::alloc_skb(size, bindings::GFP_ATOMIC) })?
        }
    };
    // SAFETY: This function owns the buffer, which is empty and has room for `size` bytes.
    unsafe { bindings::skb_reserve(skb.as_ptr(), headroom) };
    Some(skb)
}

/// Frees the buffer of a packet from a QP of this host, or keeps it for [`allocate`].
///
/// # Safety
///
/// The caller must own the valid buffer, which it gives up. The buffer must not have been passed
/// to the IP layer: it has no route, no socket, no destructor and no extensions.
#[inline]
pub(super) unsafe fn free(skb: NonNull<bindings::sk_buff>) {
    // SAFETY: The caller guarantees that it owns the valid buffer (see `# Safety`).
    if unsafe { is_reusable(skb.as_ref()) } {
        // SAFETY: The caller guarantees that it owns the valid buffer (see `# Safety`). It has no
        // page fragments.
        unsafe { empty(skb) };
        if Buffers::of_this_cpu().is_some_and(|cpu| cpu.put(skb)) {
            return;
        }
    }
    // SAFETY: The caller guarantees that it owns the valid buffer, and gives it up (see
    // `# Safety`). The cache did not take it.
    unsafe { bindings::consume_skb(skb.as_ptr()) };
}

/// Returns whether a buffer is as [`allocate`] returns it, except its contents: it shares no memory
/// with another buffer, is linear, has room for [`LEN`] bytes, takes no more than [`MOST_MEMORY`],
/// and does not come from the kernel's memory reserves.
///
/// # Safety
///
/// The buffer must be valid.
#[inline]
unsafe fn is_reusable(buffer: &bindings::sk_buff) -> bool {
    // SAFETY: The caller guarantees that the buffer is valid (see `# Safety`).
    let len = unsafe { bindings::skb_end_offset(buffer) } as usize;
    let shared = buffer.cloned() != 0 || buffer.head_frag() != 0 || buffer.data_len != 0;
    let fits = len >= LEN && buffer.truesize <= MOST_MEMORY && buffer.pfmemalloc() == 0;
    // SAFETY: The caller guarantees that the buffer is valid (see `# Safety`).
    let has_clone_room = unsafe { bindings::skb_has_clone_room(buffer) };
    fits && !shared && !has_clone_room
}

/// Removes all bytes from a buffer.
///
/// # Safety
///
/// The caller must own the valid buffer, which has no page fragments.
#[inline]
unsafe fn empty(skb: NonNull<bindings::sk_buff>) {
    let skb = skb.as_ptr();
    // SAFETY: The caller guarantees that it owns the valid buffer (see `# Safety`).
    unsafe {
        (*skb).data = (*skb).head;
        (*skb).len = 0;
        bindings::skb_reset_tail_pointer(skb);
    }
}

/// The owner of the cache's buffers. The module holds it as long as it has packets: dropping it
/// frees the buffers.
pub struct RecycledBuffers(());

impl RecycledBuffers {
    /// Creates the owner. A module has one.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Self(())
    }
}

impl Drop for RecycledBuffers {
    fn drop(&mut self) {
        let taken = CPUS.iter().flat_map(|cpu| iter::from_fn(|| cpu.take()));
        // SAFETY: `take` gives the buffer to this function.
        taken.for_each(|skb| unsafe { bindings::consume_skb(skb.as_ptr()) });
    }
}

#[kunit_tests(rrxe_recycle)]
mod tests {
    use super::*;
    use crate::support::sync::bottom_halves_off;

    /// Frees a buffer of `size` bytes with `used` bytes of data, and returns whether the cache
    /// keeps it, empty. `prepare` is called before.
    fn is_kept(size: usize, used: u32, prepare: impl FnOnce(NonNull<bindings::sk_buff>)) -> bool {
        // The caller stays on one CPU, and no softirq takes the buffer.
        let _off = bottom_halves_off();
        let Some(skb) = allocate(size, 0) else {
            return false;
        };
        // SAFETY: This function owns the buffer, which has room for `size` bytes.
        unsafe { bindings::skb_put(skb.as_ptr(), used) };
        prepare(skb);
        // SAFETY: This function gives the buffer up. `allocate` returned it, and no packet was
        // sent.
        unsafe { free(skb) };
        let Some(kept) = Buffers::of_this_cpu().and_then(Buffers::take) else {
            return false;
        };
        // SAFETY: `take` gave the buffer to this function.
        let (headroom, len) = unsafe { (bindings::skb_headroom(kept.as_ptr()), kept.as_ref().len) };
        // SAFETY: This function gives the buffer up, which is not used again.
        unsafe { bindings::consume_skb(kept.as_ptr()) };
        kept == skb && headroom == 0 && len == 0
    }

    #[test]
    fn short_buffers_are_kept() {
        assert!(is_kept(LEN, LEN as u32, |_| ()));
        assert!(is_kept(0, 0, |_| ()));
        assert!(!is_kept(MOST_MEMORY as usize, 1, |_| ()));
    }

    #[test]
    fn shared_buffers_are_not_kept() {
        let mut clone = ptr::null_mut();
        let kept = is_kept(LEN, 1, |skb| {
            // SAFETY: The buffer is valid.
            clone = unsafe { bindings::skb_clone(skb.as_ptr(), bindings::GFP_ATOMIC) };
        });
        assert!(!kept && !clone.is_null());
        // SAFETY: This function owns the clone, which is not used again.
        unsafe { bindings::consume_skb(clone) };
    }
}
