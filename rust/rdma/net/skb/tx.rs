// SPDX-License-Identifier: GPL-2.0

//! A packet under construction, which [`super::whole`] sends.

use core::{
    convert::Infallible,
    mem::{size_of, ManuallyDrop},
    ptr::NonNull,
};

use kernel::prelude::*;

use super::{
    crc32, linear,
    rx::{IpHeader, UDP_LEN},
    whole::{TxFrame, TxPacket, Written},
};
use crate::{bindings, gid::Network, mr::Span};

/// Most bytes of a trailer: pad and ICRC.
pub const TRAILER_MAX: usize = 8;

/// The alignment of buffers and their parts, in bytes.
const ALIGN: usize = bindings::SMP_CACHE_BYTES as usize;

/// A packet being built: `headroom | linear data | page fragments | trailer`.
///
/// The trailer lies in front of the buffer's head, in the same page. So it needs no page of its
/// own when it has to stand behind page fragments, and nothing that moves linear data touches it.
///
/// # Invariants
///
/// The buffer is valid and owned by `self` alone; `trailer` points to `ALIGN` bytes right in front
/// of its head, in the same page fragment. At least `room` bytes are free behind the linear part.
/// `spill` is the unwritten rest of the first fragment.
pub struct TxSkb {
    skb: NonNull<bindings::sk_buff>,
    trailer: NonNull<u8>,
    room: usize,
    spill: Option<Spill>,
}

/// The fragment for payload that isn't linear.
struct Spill {
    next: NonNull<u8>,
    left: usize,
}

impl TxSkb {
    /// Allocates a packet with room for `headroom` bytes to push and `linear` bytes to put.
    ///
    /// # Context
    ///
    /// Any but hard interrupts; doesn't sleep.
    pub fn new(headroom: usize, linear: usize) -> Option<Self> {
        let shared = size_of::<bindings::skb_shared_info>().checked_next_multiple_of(ALIGN)?;
        let room = headroom.checked_add(linear)?;
        let size = room.checked_next_multiple_of(ALIGN)?.checked_add(shared)?;
        let total = u32::try_from(size.checked_add(ALIGN)?).ok()?;

        // SAFETY: No requirements.
        let memory = unsafe { bindings::netdev_alloc_frag_align(total, ALIGN as u32) };
        let trailer = NonNull::new(memory.cast::<u8>())?;
        // SAFETY: `ALIGN` of `total` bytes are in front of the head, `size` from there on.
        let skb =
            unsafe { bindings::build_skb(memory.cast::<u8>().add(ALIGN).cast(), size as u32) };
        let Some(skb) = NonNull::new(skb) else {
            // SAFETY: `build_skb` left the memory to us.
            unsafe { bindings::skb_free_frag(memory) };
            return None;
        };
        // SAFETY: The buffer is empty, and `headroom` bytes fit.
        unsafe { bindings::skb_reserve(skb.as_ptr(), headroom as i32) };
        // INVARIANT: As said above; `linear` bytes are left.
        Some(Self {
            skb,
            trailer,
            room: linear,
            spill: None,
        })
    }

    /// Appends a copy of some bytes, to the fragment if [`Self::spill`] began one, else to the
    /// linear part. Only before the trailer.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if there is no room.
    pub fn put(&mut self, bytes: &[u8]) -> Result {
        let to = self.take(bytes.len())?;
        // SAFETY: `take` made room for as many bytes at `to`.
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
        let to = self.take(span.len())?;
        // SAFETY: `take` made room for as many bytes.
        unsafe { copy_span(to, span) };
        Ok(())
    }

    /// Begins a fragment of `len` bytes behind the linear part, once for a packet.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `ENOSPC` for none, or if there is one.
    pub fn spill(&mut self, len: usize) -> Result {
        if len == 0 || !self.is_linear() {
            return Err(ENOSPC);
        }
        let size = u32::try_from(len).map_err(|_| ENOSPC)?;
        // SAFETY: No requirements.
        let memory = unsafe { bindings::netdev_alloc_frag_align(size, ALIGN as u32) };
        let next = NonNull::new(memory.cast::<u8>()).ok_or(ENOMEM)?;
        let (page, offset) = page_of(next);
        // SAFETY: The allocation's count is given to the fragment, which is the first.
        unsafe { self.push_fragment(page, offset, len) };
        // INVARIANT: The fragment keeps the memory.
        self.spill = Some(Spill { next, left: len });
        Ok(())
    }

    /// The next `len` bytes to copy to: of the fragment if there is one, else of the linear part.
    fn take(&mut self, len: usize) -> Result<NonNull<u8>> {
        let Some(spill) = self.spill.as_mut() else {
            return self.extend(len);
        };
        spill.left = spill.left.checked_sub(len).ok_or(ENOSPC)?;
        let taken = spill.next;
        // SAFETY: `len` bytes were left.
        spill.next = unsafe { taken.add(len) };
        Ok(taken)
    }

    /// Appends the last bytes.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if they are more than [`TRAILER_MAX`], were appended before, or there is no room.
    pub fn put_trailer(&mut self, bytes: &[u8]) -> Result {
        if self.is_linear() {
            return self.put(bytes);
        }
        if bytes.len() > TRAILER_MAX || self.fragments() != 1 {
            return Err(ENOSPC);
        }
        let trailer = self.trailer.as_ptr();
        // SAFETY: There are `ALIGN` ≥ `TRAILER_MAX` bytes by the type invariant.
        unsafe { trailer.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        let (page, offset) = page_of(self.trailer);
        // SAFETY: The buffer's head keeps the page alive.
        unsafe { bindings::get_page(page) };
        // SAFETY: The count just taken is given to the fragment, which is the second.
        unsafe { self.push_fragment(page, offset, bytes.len()) };
        Ok(())
    }

    /// Puts the headers in front of a datagram.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if there is no headroom; `EINVAL` if the fragment is not full, or if the IP header has options or another
    /// version than its type.
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
        let skb = self.fill()?;
        // SAFETY: Both headers were pushed, which makes them linear, and the IP header was just looked at.
        Ok(unsafe { TxPacket::new(skb, network) })
    }

    /// Makes the bytes that were put a frame of the link layer.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the fragment is not full.
    pub fn into_frame(self) -> Result<TxFrame> {
        Ok(TxFrame::new(self.fill()?))
    }

    /// Sets the priority by which queueing disciplines and VLANs go; zero unless this is called.
    pub fn set_priority(&mut self, priority: u32) {
        // SAFETY: Valid and ours by the type invariant.
        unsafe { bindings::skb_set_priority(self.skb.as_ptr(), priority) };
    }

    /// Bytes so far.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        // SAFETY: Valid by the type invariant.
        unsafe { (*self.skb.as_ptr()).len as usize }
    }

    /// As many bytes from the first on as lie in one piece.
    pub fn linear(&self) -> &[u8] {
        // SAFETY: Valid by the type invariant.
        unsafe { linear(self.skb) }
    }

    /// Goes on with a CRC-32 over everything from `offset` on, without inverting anything. `None` if `offset` is too large,
    /// or the fragment is not full.
    pub fn crc32(&self, register: u32, offset: usize) -> Option<u32> {
        if !self.is_written() {
            return None;
        }
        let len = self.len().checked_sub(offset)?;
        // SAFETY: Valid and ours by the type invariant; nothing made a `frag_list`.
        unsafe { crc32(self.skb, register, offset, len) }
    }

    /// Gives the buffer up, if all its bytes were written.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the fragment is not full.
    fn fill(self) -> Result<Written> {
        if !self.is_written() {
            return Err(EINVAL);
        }
        // SAFETY: Just checked; by the type invariant the buffer is valid, and nothing made a `frag_list`.
        Ok(unsafe { Written::new(self.into_raw()) })
    }

    /// The fragment has no bytes that nobody wrote.
    fn is_written(&self) -> bool {
        self.spill.as_ref().is_none_or(|spill| spill.left == 0)
    }

    /// All bytes so far are in the linear part.
    fn is_linear(&self) -> bool {
        // SAFETY: Valid by the type invariant.
        unsafe { (*self.skb.as_ptr()).data_len == 0 }
    }

    /// Makes room for `len` more linear bytes.
    fn extend(&mut self, len: usize) -> Result<NonNull<u8>> {
        let skb = self.skb.as_ptr();
        // There is no tail room behind a page fragment.
        if len > self.room || !self.is_linear() {
            return Err(ENOSPC);
        }
        self.room = self.room.wrapping_sub(len);
        // SAFETY: The room is there by the type invariant.
        NonNull::new(unsafe { bindings::skb_put(skb, len as u32) }.cast()).ok_or(ENOSPC)
    }

    fn push(&mut self, bytes: &[u8]) -> Result {
        let skb = self.skb.as_ptr();
        // SAFETY: Valid by the type invariant.
        let (head, data) = unsafe { ((*skb).head, (*skb).data) };
        if bytes.len() > (data as usize).wrapping_sub(head as usize) {
            return Err(ENOSPC);
        }
        // SAFETY: Valid by the type invariant, with room for the bytes, as was just checked.
        let to = unsafe { bindings::skb_push(skb, bytes.len() as u32) }.cast::<u8>();
        // SAFETY: `skb_push` returns as many bytes to write.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    fn fragments(&self) -> usize {
        // SAFETY: Valid by the type invariant, so it has a shared info.
        usize::from(unsafe { (*bindings::skb_shinfo(self.skb.as_ptr())).nr_frags })
    }

    /// Appends a page fragment.
    ///
    /// # Safety
    ///
    /// The caller gives up a count of the page, which has that many bytes there, and there are
    /// fewer than `MAX_SKB_FRAGS` fragments.
    unsafe fn push_fragment(&mut self, page: *mut bindings::page, offset: usize, len: usize) {
        let skb = self.skb.as_ptr();
        let index = self.fragments() as i32;
        // SAFETY: The caller promises that there is room and that the page is right.
        unsafe { bindings::skb_fill_page_desc(skb, index, page, offset as i32, len as i32) };
        // SAFETY: Valid by the type invariant.
        let (total, paged, true_size) =
            unsafe { (&mut (*skb).len, &mut (*skb).data_len, &mut (*skb).truesize) };
        *total = total.wrapping_add(len as u32);
        *paged = paged.wrapping_add(len as u32);
        *true_size = true_size.wrapping_add(len as u32);
    }

    fn into_raw(self) -> NonNull<bindings::sk_buff> {
        ManuallyDrop::new(self).skb
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

/// The page that an allocation of page fragments lies in, and where.
fn page_of(start: NonNull<u8>) -> (*mut bindings::page, usize) {
    let address = start.as_ptr();
    // SAFETY: Fragments lie in pages of the direct mapping.
    let page = unsafe { bindings::virt_to_head_page(address.cast()) };
    // SAFETY: As above.
    let base = unsafe { bindings::page_address(page) };
    (page, (address as usize).wrapping_sub(base as usize))
}

impl Drop for TxSkb {
    fn drop(&mut self) {
        // SAFETY: Ours by the type invariant, and not used again.
        unsafe { bindings::consume_skb(self.skb.as_ptr()) };
    }
}
