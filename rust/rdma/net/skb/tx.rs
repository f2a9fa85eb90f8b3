// SPDX-License-Identifier: GPL-2.0

//! Packets and frames under construction. The types of [`super::complete`] are complete ones, which
//! can be sent.
//!
//! All bytes of such a buffer are linear, in memory of the slab allocator. The payload of a burst
//! lies in pages of [`TxPages`] instead. `truesize` is the memory that the buffer takes, except 256
//! bytes of a buffer to send: it has room for a clone beside it, which
//! [`TxCount::charge`](crate::net::tx_limit::TxCount) sends. A page fragment
//! (`netdev_alloc_frag()`) would keep up to 32 KiB allocated while a few bytes of it wait in a
//! queue.

use core::{convert::Infallible, mem::ManuallyDrop, ptr::NonNull};

use kernel::{ffi::c_int, prelude::*};

use super::{
    complete::{TxFrame, TxPacket, Written},
    crc32,
    headers::{self, Headers},
    linear,
    pages::{self, TxPages},
    recycle,
    rx::{IpHeader, RxSkb, UDP_LEN},
};
use crate::{bindings, device::gid::Network, memory::copy::copy_bytes, verbs::mr::Span};

/// Maximum number of pages of a buffer: enough for the 64 KiB of an IP packet, and less than a
/// buffer may have (`MAX_SKB_FRAGS`, at least 17).
const MAX_PAGES: usize = 4;

/// A packet or a frame under construction.
///
/// # Invariants
///
/// The buffer is valid, and `self` alone owns it. It has no clone and no `frag_list`. At least
/// `room` bytes are free behind its linear data; none are if it has page fragments. These begin at
/// the start of a page of `pages::LEN` bytes that no other buffer uses, and all but the last one
/// fill the page. The last `unwritten` bytes of the fragments have not been written.
pub struct TxSkb {
    skb: NonNull<bindings::sk_buff>,
    room: usize,
    unwritten: usize,
}

impl TxSkb {
    /// Allocates a buffer with room for `headroom` bytes before the data and `room` bytes of data.
    /// Returns `None` if there is no memory.
    ///
    /// # Context
    ///
    /// Any context but hard interrupts; does not sleep.
    pub fn new(headroom: usize, room: usize) -> Option<Self> {
        let size = i32::try_from(headroom.checked_add(room)?).ok()?;
        // SAFETY: The function has no requirements. The size that `__alloc_skb()`
        // (net/core/skbuff.c) computes from `size` fits a `u32`.
        let skb = unsafe { bindings::alloc_skb_fclone(size as u32, bindings::GFP_ATOMIC) };
        let skb = NonNull::new(skb)?;
        // SAFETY: The buffer is empty, and has room for `headroom` bytes.
        unsafe { bindings::skb_reserve(skb.as_ptr(), headroom as i32) };
        // INVARIANT: The buffer was just created, and `room` bytes are free behind its data.
        Some(Self {
            skb,
            room,
            unwritten: 0,
        })
    }

    /// Allocates a buffer as [`Self::new`] does, for a packet to a QP of this host
    /// ([`TxPacket::into_rx`]). Such a packet cannot be sent.
    ///
    /// # Context
    ///
    /// Any context but hard interrupts; does not sleep.
    pub fn new_local(headroom: usize, room: usize) -> Option<Self> {
        // INVARIANT: The buffer is empty, and `room` bytes are free behind its data.
        Some(Self {
            skb: recycle::allocate(headroom.checked_add(room)?, headroom)?,
            room,
            unwritten: 0,
        })
    }

    /// Works as [`Self::new_local`] for a packet with decoded headers ([`Self::into_decoded`]) and
    /// up to `room` bytes of payload.
    ///
    /// # Context
    ///
    /// Any context but hard interrupts; does not sleep.
    #[inline]
    pub fn new_decoded(room: usize) -> Option<Self> {
        Self::new_local(headers::LEN, room)
    }

    /// Adds room for `len` bytes in `pages` behind the linear data, which gets no more bytes. The
    /// caller must append as many bytes.
    ///
    /// # Context
    ///
    /// Any context but hard interrupts; does not sleep.
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` if the buffer has pages already, or if `len` exceeds 64 KiB; `ENOMEM` if
    /// there is no memory. The buffer can't be completed then.
    pub fn add_pages(&mut self, len: usize, pages: &TxPages) -> Result {
        let skb = self.skb.as_ptr();
        if self.is_paged() {
            return Err(EINVAL);
        }
        self.room = 0;
        // SAFETY: `self` owns the valid buffer, whose pages come from `TxPages`.
        unsafe { bindings::skb_mark_for_recycle(skb) };
        for index in 0..MAX_PAGES {
            let part = len.wrapping_sub(self.unwritten).min(pages::LEN);
            if part == 0 {
                break;
            }
            let page = pages.take().ok_or(ENOMEM)?.as_ptr();
            let (index, part_len, size) = (index as c_int, part as c_int, pages::LEN as u32);
            // SAFETY: `self` owns the valid buffer, which has `index` fragments and gets the
            // reference to the page. A page has `LEN` bytes, which is not less than `part`.
            unsafe { bindings::skb_add_rx_frag(skb, index, page, 0, part_len, size) };
            // INVARIANT: The new fragment has a page of its own, and is not written. It fills the
            // page, unless it is the last one.
            self.unwritten = self.unwritten.wrapping_add(part);
        }
        if self.unwritten != len {
            return Err(EINVAL);
        }
        Ok(())
    }

    /// Returns whether the buffer has pages.
    #[inline]
    fn is_paged(&self) -> bool {
        // SAFETY: The buffer is valid by the type invariant.
        unsafe { (*self.skb.as_ptr()).data_len != 0 }
    }

    /// Copies the data so far into another buffer with as much room before and behind the data.
    /// Returns `None` if there is no memory.
    ///
    /// # Context
    ///
    /// Any context but hard interrupts; does not sleep.
    pub fn try_copy(&self) -> Option<Self> {
        let bytes = self.bytes();
        let mut copy = Self::new(self.headroom(), bytes.len().checked_add(self.room)?)?;
        copy.put(bytes).ok()?;
        Some(copy)
    }

    /// Appends a copy of `bytes`.
    ///
    /// # Errors
    ///
    /// Returns `ENOSPC` if there is no room.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> Result {
        if self.is_paged() {
            // SAFETY: The slice is valid for reads.
            return unsafe { self.put_paged(bytes.as_ptr(), bytes.len()) };
        }
        let to = self.extend(bytes.len())?;
        // SAFETY: `extend` made room for `bytes.len()` bytes at `to`, which no other code uses.
        unsafe {
            to.as_ptr()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
        Ok(())
    }

    /// Appends a copy of the bytes of `span`.
    ///
    /// As the packet has a copy, the revocation of a memory region need not wait for the packet. A
    /// packet to a QP of this host or of a container may wait in that QP's queue for as long as the
    /// QP's owner likes.
    ///
    /// # Errors
    ///
    /// Returns `ENOSPC` if there is no room.
    pub fn put_span(&mut self, span: &Span<'_>) -> Result {
        if self.is_paged() {
            // SAFETY: A piece is valid for reads of its length.
            return span.for_each_piece(|from, len| unsafe { self.put_paged(from.as_ptr(), len) });
        }
        let to = self.extend(span.len())?;
        // SAFETY: `extend` made room for `span.len()` bytes at `to`, which no other code uses.
        unsafe { copy_span(to, span) };
        Ok(())
    }

    /// Appends a copy of `len` bytes to the page fragments.
    ///
    /// # Errors
    ///
    /// Returns `ENOSPC` if there is no room.
    ///
    /// # Safety
    ///
    /// `from` must be valid for reads of `len` bytes, which a process may write concurrently.
    unsafe fn put_paged(&mut self, from: *const u8, len: usize) -> Result {
        let left = self.unwritten.checked_sub(len).ok_or(ENOSPC)?;
        let skb = self.skb.as_ptr();
        // SAFETY: The buffer is valid by the type invariant, so it has a shared info.
        let (paged, shared) = unsafe { ((*skb).data_len as usize, bindings::skb_shinfo(skb)) };
        let mut at = paged.wrapping_sub(self.unwritten);
        let mut done = 0usize;
        // `for_each_run` would search the fragments from the first one on for each piece of a span:
        // a READ of 1 MiB over veth takes 652,000 instructions then instead of 625,000.
        while done < len {
            let within = at & pages::LEN.wrapping_sub(1);
            let count = pages::LEN.wrapping_sub(within).min(len.wrapping_sub(done));
            // SAFETY: By the type invariant the fragments fill their pages, so `at` lies in this
            // one, which is initialised.
            let page = unsafe {
                let fragment = (&raw mut (*shared).frags)
                    .cast::<bindings::skb_frag_t>()
                    .add(at.wrapping_div(pages::LEN));
                bindings::skb_frag_address_safe(fragment)
            };
            let page = NonNull::new(page.cast::<u8>()).ok_or(ENOSPC)?;
            // SAFETY: The caller guarantees that the bytes at `from` are valid (see `# Safety`).
            // The page has `count` bytes from `within` on, and no other code uses them by the type
            // invariant.
            unsafe { copy_bytes(page.as_ptr().add(within), from.add(done), count) };
            (at, done) = (at.wrapping_add(count), done.wrapping_add(count));
        }
        // INVARIANT: The next `len` bytes were written.
        self.unwritten = left;
        Ok(())
    }

    /// Completes the packet: puts the headers in front of the data.
    ///
    /// # Errors
    ///
    /// Returns `ENOSPC` if there is no headroom; `EINVAL` if the IP header has options, or another
    /// version than its type, or if not all bytes in pages were written.
    pub fn into_packet(mut self, ip: IpHeader<'_>, udp: &[u8; UDP_LEN]) -> Result<TxPacket> {
        if self.unwritten != 0 {
            return Err(EINVAL);
        }
        self.push(udp)?;
        // SAFETY: The buffer is valid by the type invariant.
        unsafe { bindings::skb_reset_transport_header(self.skb.as_ptr()) };
        let network = match ip {
            IpHeader::V4(header @ [0x45, ..]) => {
                self.push(header)?;
                Network::V4
            }
            IpHeader::V6(header @ [0x60..=0x6f, ..]) => {
                self.push(header)?;
                Network::V6
            }
            _ => return Err(EINVAL),
        };
        // SAFETY: The buffer is valid by the type invariant.
        unsafe { bindings::skb_reset_network_header(self.skb.as_ptr()) };
        // SAFETY: Both headers were pushed, so they are linear. The version and length of the IP
        // header were checked above.
        Ok(unsafe { TxPacket::new(self.into_written(), network) })
    }

    /// Turns the payload so far into a packet with decoded headers, which was received from QP
    /// `sender` of this host.
    ///
    /// # Errors
    ///
    /// Returns `ENOSPC` if there is no headroom; `EINVAL` if not all bytes in pages were written.
    pub fn into_decoded(self, headers: &Headers, sender: u32) -> Result<RxSkb> {
        if self.unwritten != 0 {
            return Err(EINVAL);
        }
        if self.headroom() < headers::LEN {
            return Err(ENOSPC);
        }
        // SAFETY: By the type invariant `self` owns the valid buffer. The headroom was checked
        // above.
        unsafe { headers.write(self.skb) };
        // SAFETY: The headers were written in front of the data. By the type invariant the buffer
        // has no `frag_list`. It is given up.
        Ok(unsafe { RxSkb::from_local(self.into_written().into_raw(), sender, true) })
    }

    /// Completes the frame, which consists of the data.
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` if not all bytes in pages were written.
    pub fn into_frame(self) -> Result<TxFrame> {
        if self.unwritten != 0 {
            return Err(EINVAL);
        }
        Ok(TxFrame::new(self.into_written()))
    }

    /// Sets the priority (`sk_buff.priority`), which queueing disciplines and VLANs use. It is zero
    /// by default.
    #[inline]
    pub fn set_priority(&mut self, priority: u32) {
        // SAFETY: By the type invariant `self` owns the valid buffer.
        unsafe { bindings::skb_set_priority(self.skb.as_ptr(), priority) };
    }

    /// Returns the number of bytes so far.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        // SAFETY: The buffer is valid by the type invariant.
        let total = unsafe { (*self.skb.as_ptr()).len } as usize;
        total.wrapping_sub(self.unwritten)
    }

    /// Continues a CRC-32 over the bytes so far from `offset` on. Neither `register` nor the result
    /// is inverted. Returns `None` if there are fewer bytes.
    pub fn crc32(&self, register: u32, offset: usize) -> Option<u32> {
        let len = self.len().checked_sub(offset)?;
        // SAFETY: By the type invariant `self` owns the valid buffer, which has no `frag_list`.
        unsafe { crc32(self.skb, register, offset, len) }
    }

    /// Returns the linear data so far.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: The buffer is valid by the type invariant. Changes of its data take `&mut self`.
        unsafe { linear(self.skb) }
    }

    /// Gives up the buffer.
    fn into_written(self) -> Written {
        // SAFETY: By the type invariant the buffer is valid, and has no clone and no `frag_list`.
        // `put`, `put_span` and `push` have written all bytes that they added. `into_packet`
        // and `into_frame` have checked that all bytes in pages were written.
        unsafe { Written::new(ManuallyDrop::new(self).skb) }
    }

    /// Extends the data by `len` bytes, which the caller must write. Returns their address.
    #[inline]
    fn extend(&mut self, len: usize) -> Result<NonNull<u8>> {
        self.room = self.room.checked_sub(len).ok_or(ENOSPC)?;
        // SAFETY: By the type invariant `len` bytes are free behind the data.
        let to = unsafe { bindings::skb_put(self.skb.as_ptr(), len as u32) };
        NonNull::new(to.cast()).ok_or(ENOSPC)
    }

    /// Returns the number of free bytes in front of the data.
    #[inline]
    fn headroom(&self) -> usize {
        let skb = self.skb.as_ptr();
        // SAFETY: The buffer is valid by the type invariant.
        let (head, data) = unsafe { ((*skb).head, (*skb).data) };
        (data as usize).wrapping_sub(head as usize)
    }

    /// Puts a copy of `bytes` in front of the data.
    fn push(&mut self, bytes: &[u8]) -> Result {
        if bytes.len() > self.headroom() {
            return Err(ENOSPC);
        }
        // SAFETY: The buffer is valid by the type invariant. The headroom was checked above.
        let to = unsafe { bindings::skb_push(self.skb.as_ptr(), bytes.len() as u32) }.cast::<u8>();
        // SAFETY: `skb_push` returns the address of `bytes.len()` bytes, which no other code uses.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }
}

/// Copies the bytes of `span` to `to`.
///
/// # Safety
///
/// `to` must be valid for writes of `span.len()` bytes, and no other code may use them.
unsafe fn copy_span(to: NonNull<u8>, span: &Span<'_>) {
    let mut to = to.as_ptr();
    let _: Result<(), Infallible> = span.for_each_piece(|from, len| {
        // SAFETY: A piece is valid for reads of its length. The lengths add up to `span.len()`, and
        // the caller guarantees that `to` is valid for writes of as many bytes (see `# Safety`).
        unsafe { copy_bytes(to, from.as_ptr(), len) };
        to = to.wrapping_add(len);
        Ok(())
    });
}

impl Drop for TxSkb {
    fn drop(&mut self) {
        // SAFETY: By the type invariant `self` owns the buffer, which is not used again.
        unsafe { bindings::consume_skb(self.skb.as_ptr()) };
    }
}
