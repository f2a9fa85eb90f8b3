// SPDX-License-Identifier: GPL-2.0

//! Socket buffers: received ones, ones to send, and a queue of them.
//!
//! Each type owns its `struct sk_buff` alone; dropping it frees the buffer.

mod backlog;
mod complete;
mod frame;
mod ingress;
mod queue;
mod rx;
mod tx;

use core::{
    ptr::{self, NonNull},
    slice,
};

use crate::{bindings, support::crc32::crc32_le_raw};

pub use self::{
    backlog::{Backlog, Share, Shares},
    complete::{TxFrame, TxPacket},
    frame::{RxFrame, TappedFrame},
    ingress::Ingress,
    queue::{FrameQueue, SkbQueue},
    rx::{Discard, Endpoints, IpHeader, RxSkb},
    tx::TxSkb,
};

/// A range of bytes that is looked for in consecutive pieces.
struct Cursor {
    /// Bytes still to pass over.
    skip: usize,
    /// Bytes still to visit.
    left: usize,
}

impl Cursor {
    /// The part of the next piece, which has `len` bytes, that lies in the range: start, length.
    fn take(&mut self, len: usize) -> (usize, usize) {
        let start = self.skip.min(len);
        let count = len.saturating_sub(start).min(self.left);
        self.skip = self.skip.saturating_sub(start);
        self.left = self.left.saturating_sub(count);
        (start, count)
    }
}

/// The linear part of a buffer.
///
/// # Safety
///
/// `skb` must be valid, and nobody may write or move its linear part during `'a`.
unsafe fn linear<'a>(skb: NonNull<bindings::sk_buff>) -> &'a [u8] {
    // SAFETY: The caller promises that `skb` is valid.
    let (total, paged, start) = unsafe {
        let skb = skb.as_ptr();
        ((*skb).len, (*skb).data_len, (*skb).data)
    };
    // SAFETY: `len - data_len` bytes are valid from `data` on.
    unsafe { slice::from_raw_parts(start, total.saturating_sub(paged) as usize) }
}

/// Goes on with a CRC-32 (as [`roce::wire::icrc::Icrc`] wants it) over `len` bytes from `offset`
/// on, in linear data and page fragments.
///
/// `None` if they aren't all there, or can't be read by the CPU.
///
/// # Safety
///
/// `skb` must be valid and owned by the caller, without a `frag_list`.
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
        // SAFETY: `for_each_run` gives valid ranges. A process may be writing them: the C function
        // reads them through a raw pointer, and any value is as good as another here.
        register = unsafe { crc32_le_raw(register, bytes, count) };
    };
    // SAFETY: The caller's promise.
    unsafe { for_each_run(skb, offset, len, update) }?;
    Some(register)
}

/// Calls `visit` with each run of consecutive bytes among the `len` bytes from `offset` on, in
/// linear data and page fragments. The runs are valid for reads during the call.
///
/// `None` if the bytes aren't all there, or can't be read by the CPU.
///
/// # Safety
///
/// `skb` must be valid and owned by the caller, without a `frag_list`.
unsafe fn for_each_run(
    skb: NonNull<bindings::sk_buff>,
    offset: usize,
    len: usize,
    mut visit: impl FnMut(*const u8, usize),
) -> Option<()> {
    let skb = skb.as_ptr();
    // SAFETY: The caller promises that `skb` is valid.
    let (total, paged, linear) = unsafe { ((*skb).len, (*skb).data_len, (*skb).data) };
    let mut cursor = Cursor {
        skip: offset,
        left: len,
    };
    let (start, count) = cursor.take(total.checked_sub(paged)? as usize);
    if count > 0 {
        // SAFETY: `len - data_len` bytes are valid from `data` on, and the run lies in them.
        visit(unsafe { linear.add(start) }, count);
    }
    if cursor.left == 0 {
        return Some(());
    }

    // SAFETY: `skb` is valid, so it has a shared info.
    let shared = unsafe { bindings::skb_shinfo(skb) };
    // SAFETY: The shared info lives as long as `skb`.
    let fragments = usize::from(unsafe { (*shared).nr_frags });
    for index in 0..fragments {
        if cursor.left == 0 {
            break;
        }
        // SAFETY: As above; the first `nr_frags` fragments are initialised.
        let fragment = unsafe {
            ptr::addr_of_mut!((*shared).frags)
                .cast::<bindings::skb_frag_t>()
                .add(index)
        };
        // SAFETY: It is one of those.
        let size = unsafe { bindings::skb_frag_size(fragment) };
        let (start, count) = cursor.take(size as usize);
        if count > 0 {
            // SAFETY: As above.
            let address = NonNull::new(unsafe { bindings::skb_frag_address_safe(fragment) })?;
            // SAFETY: `size` bytes are mapped from `address` on, and the run lies in them.
            visit(unsafe { address.as_ptr().cast::<u8>().add(start) }, count);
        }
    }
    (cursor.left == 0).then_some(())
}
