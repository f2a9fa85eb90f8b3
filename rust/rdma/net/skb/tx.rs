// SPDX-License-Identifier: GPL-2.0

//! A packet under construction, which [`super::whole`] sends.
//!
//! All its bytes lie in one piece from the slab allocator, and `truesize` is the memory that the buffer takes, but for 256
//! bytes: the buffer has room for a clone beside it, which [`TxCount::charge`](crate::net::tx_limit::TxCount) sends. A page
//! fragment (`netdev_alloc_frag()`) keeps up to 32 KiB while a few bytes of them wait in a queue.

use core::{convert::Infallible, mem::ManuallyDrop, ptr::NonNull};

use kernel::prelude::*;

use super::{
    complete::{TxFrame, TxPacket, Written},
    linear,
    rx::{IpHeader, UDP_LEN},
};
use crate::{bindings, device::gid::Network, verbs::mr::Span};

/// A packet being built.
///
/// # Invariants
///
/// The buffer is valid, linear, made by `alloc_skb_fclone()`, without a clone, and owned by `self` alone. At least `room`
/// bytes are free behind its data.
pub struct TxSkb {
    skb: NonNull<bindings::sk_buff>,
    room: usize,
}

impl TxSkb {
    /// Allocates a packet with room for `headroom` bytes to push and `room` bytes to put.
    ///
    /// # Context
    ///
    /// Any but hard interrupts; doesn't sleep.
    pub fn new(headroom: usize, room: usize) -> Option<Self> {
        let size = i32::try_from(headroom.checked_add(room)?).ok()?;
        // SAFETY: No requirements. What `__alloc_skb()`, net/core/skbuff.c, adds to `size` exceeds no `u32`.
        let skb = unsafe { bindings::alloc_skb_fclone(size as u32, bindings::GFP_ATOMIC) };
        let skb = NonNull::new(skb)?;
        // SAFETY: The buffer is empty, and `headroom` bytes fit.
        unsafe { bindings::skb_reserve(skb.as_ptr(), headroom as i32) };
        // INVARIANT: It was just made; `room` bytes are left.
        Some(Self { skb, room })
    }

    /// The same packet so far in another buffer, with as much room in front and behind.
    ///
    /// # Context
    ///
    /// As of [`Self::new`].
    pub fn try_copy(&self) -> Option<Self> {
        let bytes = self.bytes();
        let mut copy = Self::new(self.headroom(), bytes.len().checked_add(self.room)?)?;
        copy.put(bytes).ok()?;
        Some(copy)
    }

    /// Appends a copy of some bytes.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if there is no room.
    pub fn put(&mut self, bytes: &[u8]) -> Result {
        let to = self.extend(bytes.len())?;
        // SAFETY: `extend` made room for as many bytes at `to`.
        unsafe {
            to.as_ptr()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
        Ok(())
    }

    /// Appends a copy of a span, as [`Self::put`] does.
    ///
    /// The copy keeps a region's revocation synchronous: a packet to a QP of this host, or of a
    /// container, may wait there for as long as that QP's owner likes.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if there is no room.
    pub fn put_span(&mut self, span: &Span<'_>) -> Result {
        let to = self.extend(span.len())?;
        // SAFETY: `extend` made room for as many bytes.
        unsafe { copy_span(to, span) };
        Ok(())
    }

    /// Puts the headers in front of a datagram.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if there is no headroom; `EINVAL` if the IP header has options or another version than its type.
    pub fn into_packet(mut self, ip: IpHeader<'_>, udp: &[u8; UDP_LEN]) -> Result<TxPacket> {
        self.push(udp)?;
        // SAFETY: Valid by the type invariant.
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
        // SAFETY: Valid by the type invariant.
        unsafe { bindings::skb_reset_network_header(self.skb.as_ptr()) };
        // SAFETY: Both headers were pushed, which makes them linear, and the IP header was just looked at.
        Ok(unsafe { TxPacket::new(self.into_written(), network) })
    }

    /// Makes the bytes that were put a frame of the link layer.
    pub fn into_frame(self) -> TxFrame {
        TxFrame::new(self.into_written())
    }

    /// Sets the priority by which queueing disciplines and VLANs go; zero unless this is called.
    pub fn set_priority(&mut self, priority: u32) {
        // SAFETY: Valid and ours by the type invariant.
        unsafe { bindings::skb_set_priority(self.skb.as_ptr(), priority) };
    }

    /// The bytes so far.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: Valid by the type invariant.
        unsafe { linear(self.skb) }
    }

    /// Gives the buffer up.
    fn into_written(self) -> Written {
        // SAFETY: By the type invariant the buffer is valid, linear and never cloned. All bytes of its data were written:
        // `put`, `put_span` and `push` write those that they add.
        unsafe { Written::new(ManuallyDrop::new(self).skb) }
    }

    /// Makes room for `len` more bytes, which the caller writes.
    fn extend(&mut self, len: usize) -> Result<NonNull<u8>> {
        self.room = self.room.checked_sub(len).ok_or(ENOSPC)?;
        // SAFETY: The room is there by the type invariant.
        let to = unsafe { bindings::skb_put(self.skb.as_ptr(), len as u32) };
        NonNull::new(to.cast()).ok_or(ENOSPC)
    }

    /// Bytes that are free in front of the data.
    fn headroom(&self) -> usize {
        let skb = self.skb.as_ptr();
        // SAFETY: Valid by the type invariant.
        let (head, data) = unsafe { ((*skb).head, (*skb).data) };
        (data as usize).wrapping_sub(head as usize)
    }

    fn push(&mut self, bytes: &[u8]) -> Result {
        if bytes.len() > self.headroom() {
            return Err(ENOSPC);
        }
        // SAFETY: Valid by the type invariant, with room for the bytes, as was just checked.
        let to = unsafe { bindings::skb_push(self.skb.as_ptr(), bytes.len() as u32) }.cast::<u8>();
        // SAFETY: `skb_push` returns as many bytes to write.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }
}

/// Copies a span to `to`.
///
/// # Safety
///
/// As many bytes must be valid for writes there, and nobody else may use them.
unsafe fn copy_span(to: NonNull<u8>, span: &Span<'_>) {
    let mut to = to.as_ptr();
    let _: Result<(), Infallible> = span.for_each_piece(|from, len| {
        // SAFETY: The pieces add up to the span's length; they are valid for reads.
        unsafe { bindings::memcpy(to.cast(), from.as_ptr().cast(), len) };
        to = to.wrapping_add(len);
        Ok(())
    });
}

impl Drop for TxSkb {
    fn drop(&mut self) {
        // SAFETY: Ours by the type invariant, and not used again.
        unsafe { bindings::consume_skb(self.skb.as_ptr()) };
    }
}
