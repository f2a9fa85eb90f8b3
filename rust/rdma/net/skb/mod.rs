// SPDX-License-Identifier: GPL-2.0

//! Socket buffers (`struct sk_buff`, include/linux/skbuff.h): received packets and frames, packets
//! and frames to send, and queues.
//!
//! Each type owns its buffer alone, except [`TappedFrame`], which borrows one. Dropping the owner
//! frees the buffer.

mod backlog;
mod burst;
mod complete;
mod frame;
mod headers;
mod held;
mod ingress;
mod pages;
mod queue;
mod recycle;
mod rx;
mod sniffed;
mod tx;

use core::{
    ptr::{self, NonNull},
    slice,
};

use crate::{bindings, support::crc32::crc32_le_raw};

pub use self::{
    backlog::{Backlog, PayerBacklog, PayerBacklogs},
    burst::TxBurst,
    complete::{TxFrame, TxPacket},
    frame::{RxFrame, TappedFrame},
    headers::Headers,
    held::{HeldPackets, HeldSkb},
    ingress::Ingress,
    pages::TxPages,
    queue::{FrameQueue, SkbQueue},
    recycle::RecycledBuffers,
    rx::{Contents, Discard, Endpoints, IpHeader, RxSkb},
    tx::TxSkb,
};

pub(super) use self::burst::FEATURES;

/// A range of bytes whose parts are taken from consecutive pieces.
struct Cursor {
    /// Number of bytes before the range that are still to be skipped.
    skip: usize,
    /// Number of bytes of the range that are still to be taken.
    left: usize,
}

impl Cursor {
    /// Takes the part of the range that lies in the next piece, which has `len` bytes. Returns the
    /// start of the part in the piece, and its length.
    fn take(&mut self, len: usize) -> (usize, usize) {
        let start = self.skip.min(len);
        let count = len.saturating_sub(start).min(self.left);
        self.skip = self.skip.saturating_sub(start);
        self.left = self.left.saturating_sub(count);
        (start, count)
    }
}

/// Returns the linear part of a buffer.
///
/// # Safety
///
/// `skb` must be valid. No code may write or move its linear part during `'a`.
#[inline]
unsafe fn linear<'a>(skb: NonNull<bindings::sk_buff>) -> &'a [u8] {
    // SAFETY: The caller guarantees that `skb` is valid (see `# Safety`).
    let (total, paged, start) = unsafe {
        let skb = skb.as_ptr();
        ((*skb).len, (*skb).data_len, (*skb).data)
    };
    // SAFETY: `len - data_len` bytes are valid from `data` on. The caller guarantees that no code
    // writes or moves them during `'a` (see `# Safety`).
    unsafe { slice::from_raw_parts(start, total.saturating_sub(paged) as usize) }
}

/// Continues a CRC-32 over `len` bytes from `offset` on, in linear data and page fragments. Neither
/// the start value `register` nor the result is inverted, as [`roce::wire::icrc::Icrc`] needs it.
///
/// Returns `None` if the buffer has fewer bytes, or if the CPU cannot read them.
///
/// # Safety
///
/// The caller must own `skb`, which must be valid and have no `frag_list`.
unsafe fn crc32(
    skb: NonNull<bindings::sk_buff>,
    mut register: u32,
    offset: usize,
    len: usize,
) -> Option<u32> {
    if len == 0 {
        return Some(register);
    }
    let update = |bytes: *const u8, count| {
        // SAFETY: `for_each_run` passes ranges that are valid for reads. A process may write them
        // concurrently: the callee is C code, which reads them through a raw pointer, and any value
        // is acceptable here.
        register = unsafe { crc32_le_raw(register, bytes, count) };
    };
    // SAFETY: The caller guarantees that it owns `skb`, which is valid and has no `frag_list` (see
    // `# Safety`).
    unsafe { for_each_run(skb, offset, len, update) }?;
    Some(register)
}

/// Calls `visit` with each run of consecutive bytes among the `len` bytes from `offset` on, in
/// linear data and page fragments. A run is valid for reads during the call of `visit`.
///
/// Returns `None` if the buffer has fewer bytes, or if the CPU cannot read them.
///
/// # Safety
///
/// The caller must own `skb`, which must be valid and have no `frag_list`.
unsafe fn for_each_run(
    skb: NonNull<bindings::sk_buff>,
    offset: usize,
    len: usize,
    mut visit: impl FnMut(*const u8, usize),
) -> Option<()> {
    let skb = skb.as_ptr();
    // SAFETY: The caller guarantees that `skb` is valid (see `# Safety`).
    let (total, paged, linear) = unsafe { ((*skb).len, (*skb).data_len, (*skb).data) };
    let mut cursor = Cursor {
        skip: offset,
        left: len,
    };
    let (start, count) = cursor.take(total.checked_sub(paged)? as usize);
    if count > 0 {
        // SAFETY: `total - paged` bytes are valid from `linear` on, and the run lies in them.
        visit(unsafe { linear.add(start) }, count);
    }
    if cursor.left == 0 {
        return Some(());
    }

    // SAFETY: `skb` is valid, so it has a shared info.
    let shared = unsafe { bindings::skb_shinfo(skb) };
    // SAFETY: The shared info is valid as long as `skb`.
    let fragments = usize::from(unsafe { (*shared).nr_frags });
    for index in 0..fragments {
        if cursor.left == 0 {
            break;
        }
        // SAFETY: The shared info is valid as long as `skb`, and its first `nr_frags` fragments are
        // initialised.
        let fragment = unsafe {
            ptr::addr_of_mut!((*shared).frags)
                .cast::<bindings::skb_frag_t>()
                .add(index)
        };
        // SAFETY: `fragment` is one of the first `nr_frags` fragments, so it is initialised.
        let size = unsafe { bindings::skb_frag_size(fragment) };
        let (start, count) = cursor.take(size as usize);
        if count > 0 {
            // SAFETY: `fragment` is one of the first `nr_frags` fragments, so it is initialised.
            let address = NonNull::new(unsafe { bindings::skb_frag_address_safe(fragment) })?;
            // SAFETY: `size` bytes are mapped from `address` on, and the run lies in them.
            visit(unsafe { address.as_ptr().cast::<u8>().add(start) }, count);
        }
    }
    (cursor.left == 0).then_some(())
}
