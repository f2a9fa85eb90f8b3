// SPDX-License-Identifier: GPL-2.0

//! Socket buffers: received ones, ones to send, and a queue of them.
//!
//! Each type owns its `struct sk_buff` alone; dropping it frees the buffer.

mod queue;
mod rx;
mod tx;

use core::ptr::{self, NonNull};

use crate::{bindings, crc32::crc32_le_raw};

pub use self::{
    queue::SkbQueue,
    rx::{Discard, Endpoints, IpHeader, RxSkb},
    tx::{TxSkb, TRAILER_MAX},
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
    let skb = skb.as_ptr();
    // SAFETY: The caller promises that `skb` is valid.
    let (total, paged, linear) = unsafe { ((*skb).len, (*skb).data_len, (*skb).data) };
    let mut cursor = Cursor {
        skip: offset,
        left: len,
    };
    let (start, count) = cursor.take(total.checked_sub(paged)? as usize);
    // SAFETY: `len - data_len` bytes are valid from `data` on, and the part lies in them.
    register = unsafe { crc32_le_raw(register, linear.add(start), count) };

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
        register = unsafe { crc32_fragment(register, fragment, &mut cursor) }?;
    }
    (cursor.left == 0).then_some(register)
}

/// Goes on over one fragment.
///
/// # Safety
///
/// `fragment` must be one of a valid socket buffer's.
unsafe fn crc32_fragment(
    register: u32,
    fragment: *const bindings::skb_frag_t,
    cursor: &mut Cursor,
) -> Option<u32> {
    // SAFETY: The caller promises that it is valid.
    let size = unsafe { bindings::skb_frag_size(fragment) };
    let (start, count) = cursor.take(size as usize);
    if count == 0 {
        return Some(register);
    }
    // SAFETY: As above.
    let address = NonNull::new(unsafe { bindings::skb_frag_address_safe(fragment) })?;
    // SAFETY: `size` bytes are mapped from `address` on. A process may be writing them: the C
    // function reads them through a raw pointer, and any value is as good as another here.
    Some(unsafe { crc32_le_raw(register, address.as_ptr().cast::<u8>().add(start), count) })
}
