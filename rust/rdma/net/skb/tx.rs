// SPDX-License-Identifier: GPL-2.0

//! Packets and frames under construction. The types of [`super::complete`] are complete ones, which
//! can be sent.
//!
//! All bytes of such a buffer are linear, in memory of the slab allocator or, if the packet is one
//! of a burst, of [`TxPages`]. `truesize` is the memory that the buffer takes, except 256 bytes: a
//! buffer of the former kind has room for a clone beside it, which
//! [`TxCount::charge`](crate::net::tx_limit::TxCount) sends. A page fragment
//! (`netdev_alloc_frag()`) would keep up to 32 KiB allocated while a few bytes of it wait in a
//! queue.

use core::{convert::Infallible, mem::ManuallyDrop, ptr::NonNull};

use kernel::prelude::*;

use super::{
    complete::{TxFrame, TxPacket, Written},
    linear,
    pages::TxPages,
    rx::{IpHeader, UDP_LEN},
};
use crate::{bindings, device::gid::Network, memory::copy::copy_bytes, verbs::mr::Span};

/// A packet or a frame under construction.
///
/// # Invariants
///
/// The buffer is valid and linear, and `self` alone owns it. It has no clone. At least `room` bytes
/// are free behind its data.
pub struct TxSkb {
    skb: NonNull<bindings::sk_buff>,
    room: usize,
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
        Some(Self { skb, room })
    }

    /// Allocates a buffer as [`Self::new`] does, from `pages` if possible. The packet can be sent
    /// as a packet of a burst only, and not as the first one.
    ///
    /// The buffer has no room for a clone beside it. Several lists may hold the buffer, whose
    /// owners may clone it at the same time, and `skb_clone()` (net/core/skbuff.c) would give that
    /// room to two of them.
    pub fn new_member(headroom: usize, room: usize, pages: &TxPages) -> Option<Self> {
        let size = headroom.checked_add(room)?;
        let skb = pages.build(size).or_else(|| {
            let size = i32::try_from(size).ok()? as u32;
            // SAFETY: The function has no requirements. The size that `__alloc_skb()`
            // (net/core/skbuff.c) computes from `size` fits a `u32`.
            NonNull::new(unsafe { bindings::alloc_skb(size, bindings::GFP_ATOMIC) })
        })?;
        // SAFETY: The buffer is empty, and has room for `headroom` bytes.
        unsafe { bindings::skb_reserve(skb.as_ptr(), headroom as i32) };
        // INVARIANT: The buffer was just created, and `room` bytes are free behind its data.
        Some(Self { skb, room })
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
    pub fn put(&mut self, bytes: &[u8]) -> Result {
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
        let to = self.extend(span.len())?;
        // SAFETY: `extend` made room for `span.len()` bytes at `to`, which no other code uses.
        unsafe { copy_span(to, span) };
        Ok(())
    }

    /// Completes the packet: puts the headers in front of the data.
    ///
    /// # Errors
    ///
    /// Returns `ENOSPC` if there is no headroom; `EINVAL` if the IP header has options, or another
    /// version than its type.
    pub fn into_packet(mut self, ip: IpHeader<'_>, udp: &[u8; UDP_LEN]) -> Result<TxPacket> {
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

    /// Completes the frame, which consists of the data.
    pub fn into_frame(self) -> TxFrame {
        TxFrame::new(self.into_written())
    }

    /// Sets the priority (`sk_buff.priority`), which queueing disciplines and VLANs use. It is zero
    /// by default.
    pub fn set_priority(&mut self, priority: u32) {
        // SAFETY: By the type invariant `self` owns the valid buffer.
        unsafe { bindings::skb_set_priority(self.skb.as_ptr(), priority) };
    }

    /// Returns the data so far.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: The buffer is valid by the type invariant. Changes of its data take `&mut self`.
        unsafe { linear(self.skb) }
    }

    /// Gives up the buffer.
    fn into_written(self) -> Written {
        // SAFETY: By the type invariant the buffer is valid and linear, and has no clone. `put`,
        // `put_span` and `push` have written all bytes that they added.
        unsafe { Written::new(ManuallyDrop::new(self).skb) }
    }

    /// Extends the data by `len` bytes, which the caller must write. Returns their address.
    fn extend(&mut self, len: usize) -> Result<NonNull<u8>> {
        self.room = self.room.checked_sub(len).ok_or(ENOSPC)?;
        // SAFETY: By the type invariant `len` bytes are free behind the data.
        let to = unsafe { bindings::skb_put(self.skb.as_ptr(), len as u32) };
        NonNull::new(to.cast()).ok_or(ENOSPC)
    }

    /// Returns the number of free bytes in front of the data.
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
