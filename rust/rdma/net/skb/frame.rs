// SPDX-License-Identifier: GPL-2.0

//! Frames of the link layer that raw packet QPs receive.

use core::{marker::PhantomData, mem::ManuallyDrop, ptr::NonNull};

use kernel::{
    error::{from_err_ptr, to_result},
    ffi::{c_int, c_void},
    prelude::*,
};

use super::{for_each_run, TxFrame};
use crate::{
    bindings,
    memory::copy::copy_bytes,
    verbs::mr::{Span, SpanError},
};

/// Maximum number of frames into which a buffer is segmented. The queue of a QP has room for no
/// more.
const MAX_SEGMENTS: u32 = 1024;

/// A frame as it is on the wire, from its destination address on, without the frame check sequence.
///
/// # Invariants
///
/// The buffer is valid, `self` alone owns it, and it has no `frag_list`. Its bytes may be shared
/// with other buffers, and are only read. `data` is at the link-layer header. The buffer holds no
/// reference to a network device, a route or a network namespace.
pub struct RxFrame(NonNull<bindings::sk_buff>);

// SAFETY: A socket buffer is not bound to a thread.
unsafe impl Send for RxFrame {}

impl RxFrame {
    /// Takes over a buffer with a frame that needs no segmentation, and gives the frame the form
    /// that it has on the wire: computes its checksum, and inserts its VLAN tag.
    ///
    /// Returns `None` if there is no memory. The buffer is freed then.
    ///
    /// # Safety
    ///
    /// `skb` must be valid, and the caller gives it up. `data` must be at the link-layer header.
    unsafe fn finish(skb: NonNull<bindings::sk_buff>) -> Option<Self> {
        // SAFETY: The caller guarantees that `skb` is valid, and gives it up (see `# Safety`).
        unsafe { bindings::skb_scrub_packet(skb.as_ptr(), true) };
        // An early return frees the buffer.
        // INVARIANT: The caller gave the buffer up, `data` is at the link-layer header, and
        // `skb_scrub_packet()` dropped the references. The code below removes the `frag_list`.
        let frame = Self(skb);
        let raw = skb.as_ptr();
        // SAFETY: `frame` owns the valid buffer.
        if unsafe { bindings::skb_lacks_checksum(raw) } {
            // SAFETY: `frame` owns the valid buffer. The call copies shared bytes before it writes
            // them. Without features of a network device it computes checksums of SCTP, too.
            to_result(unsafe { bindings::skb_csum_hwoffload_help(raw, 0) }).ok()?;
        }
        // SAFETY: `frame` owns the valid buffer, which has a shared info.
        let chained = unsafe { !(*bindings::skb_shinfo(raw)).frag_list.is_null() };
        // SAFETY: `frame` owns the valid buffer. The call copies shared bytes.
        if chained && unsafe { bindings::skb_linearize(raw) } != 0 {
            return None;
        }
        // SAFETY: `frame` owns the valid buffer.
        if !unsafe { bindings::skb_vlan_tag_present(raw) } {
            return Some(frame);
        }
        // SAFETY: The valid buffer is given up. The call copies shared bytes, and frees the buffer
        // if it fails.
        NonNull::new(unsafe { bindings::__vlan_hwaccel_push_inside(frame.into_raw().as_ptr()) })
            .map(Self)
    }

    /// Returns a copy of a frame to send, as its receiver would get it. Returns `None` if there is
    /// no memory. Callable in any context; does not sleep.
    pub fn copy_of(frame: &TxFrame) -> Option<Self> {
        // SAFETY: A `TxFrame` owns a valid buffer. The buffer has room for one clone, which is used
        // to send it, so this makes a copy.
        let copy = unsafe { bindings::skb_copy(frame.as_ptr(), bindings::GFP_ATOMIC) };
        // SAFETY: This function owns the copy, whose `data` is at the start of the frame.
        unsafe { Self::finish(NonNull::new(copy)?) }
    }

    /// Returns the length of the frame in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u32 {
        // SAFETY: The buffer is valid by the type invariant.
        unsafe { (*self.0.as_ptr()).len }
    }

    /// Copies bytes from `offset` on into `span` until that is full.
    ///
    /// # Errors
    ///
    /// Returns [`SpanError::Range`] if the frame has fewer bytes; [`SpanError::ReadOnly`] if the
    /// span is not writable.
    pub fn copy_to_span(&self, offset: usize, span: &Span<'_>) -> Result<(), SpanError> {
        let mut from = offset;
        span.for_each_writable_piece(|to, len| {
            let mut to = to.as_ptr();
            let copy = |run: *const u8, count: usize| {
                // SAFETY: The run is valid for reads. The runs add up to `len`, and the piece is
                // valid for writes of `len` bytes. No reference to the piece exists.
                unsafe { copy_bytes(to, run, count) };
                to = to.wrapping_add(count);
            };
            // SAFETY: By the type invariant `self` owns the valid buffer, which has no `frag_list`.
            unsafe { for_each_run(self.0, from, len, copy) }.ok_or(SpanError::Range)?;
            from = from.saturating_add(len);
            Ok(())
        })
    }

    /// Returns the buffer, which stays the frame's.
    pub(super) fn as_raw(&self) -> NonNull<bindings::sk_buff> {
        self.0
    }

    /// Gives up the ownership of the buffer.
    pub(super) fn into_raw(self) -> NonNull<bindings::sk_buff> {
        ManuallyDrop::new(self).0
    }

    /// Takes over the buffer of a frame.
    ///
    /// # Safety
    ///
    /// `skb` must come from [`Self::into_raw`], or be a linear copy of a frame's buffer. The caller
    /// owns it, and gives it up.
    pub(super) unsafe fn from_raw(skb: NonNull<bindings::sk_buff>) -> Self {
        // INVARIANT: The invariants held when the buffer was given up. They hold for a copy, too,
        // which has no `frag_list`.
        Self(skb)
    }
}

impl Drop for RxFrame {
    fn drop(&mut self) {
        // SAFETY: By the type invariant `self` owns the buffer, which is not used again.
        unsafe { bindings::consume_skb(self.0.as_ptr()) };
    }
}

/// A buffer that passes a network device, as a packet handler gets it. It may contain several
/// frames of the wire (GSO).
///
/// # Invariants
///
/// The buffer is valid for `'a`. It is shared, and only read. Its link-layer header is set, and
/// begins `header` bytes before `data`.
pub struct TappedFrame<'a> {
    skb: NonNull<bindings::sk_buff>,
    /// Number of bytes from the start of the frame to `data`.
    header: usize,
    _skb: PhantomData<&'a bindings::sk_buff>,
}

impl TappedFrame<'_> {
    /// Borrows the buffer of a packet handler. Returns `None` if the buffer has no link-layer
    /// header.
    ///
    /// # Safety
    ///
    /// `skb` must be the buffer that a packet handler got, and must be valid during the lifetime of
    /// the result.
    pub(in crate::net) unsafe fn new(skb: NonNull<bindings::sk_buff>) -> Option<Self> {
        let raw = skb.as_ptr();
        // SAFETY: The caller guarantees that `skb` is valid (see `# Safety`).
        if !unsafe { bindings::skb_mac_header_was_set(raw) } {
            return None;
        }
        // SAFETY: The caller guarantees that `skb` is valid (see `# Safety`). Its link-layer header
        // is set.
        let (start, data) = unsafe { (bindings::skb_mac_header(raw), (*raw).data) };
        let header = (data as usize).checked_sub(start as usize)?;
        // INVARIANT: `header` is the distance between both, and the caller guarantees that the
        // buffer is valid for the result's lifetime.
        Some(Self {
            skb,
            header,
            _skb: PhantomData,
        })
    }

    /// Returns whether this host sends the frame.
    pub fn is_outgoing(&self) -> bool {
        self.kind() == bindings::PACKET_OUTGOING
    }

    /// Returns whether the frame never was on the wire: the IP layer has looped back a multicast or
    /// broadcast packet.
    pub fn is_looped(&self) -> bool {
        self.kind() == bindings::PACKET_LOOPBACK
    }

    /// Returns the type of the packet (`PACKET_*`).
    fn kind(&self) -> u32 {
        // SAFETY: The buffer is valid by the type invariant.
        u32::from(unsafe { bindings::skb_pkt_type(self.skb.as_ptr()) })
    }

    /// Returns the VLAN tag that was behind the addresses, if it was removed from the bytes.
    pub fn tag(&self) -> Option<u16> {
        let skb = self.skb.as_ptr();
        // SAFETY: The buffer is valid by the type invariant.
        let present = unsafe { bindings::skb_vlan_tag_present(skb) };
        // SAFETY: The buffer is valid by the type invariant, and has a tag.
        present.then(|| unsafe { bindings::skb_vlan_tag_get(skb) })
    }

    /// Copies the first bytes of the frame into `room`, up to its size, and returns them. Returns
    /// no bytes if they cannot be read.
    pub fn headers<'b>(&self, room: &'b mut [u8]) -> &'b [u8] {
        // SAFETY: The buffer is valid by the type invariant.
        let behind = unsafe { (*self.skb.as_ptr()).len };
        let length = self.header.saturating_add(behind as usize);
        let count = length.min(room.len());
        let Some(place) = room.get_mut(..count) else {
            return &[];
        };
        let Ok(offset) = c_int::try_from(self.header) else {
            return &[];
        };
        let to: *mut c_void = place.as_mut_ptr().cast();
        // SAFETY: The buffer has `count` bytes from the start of the frame on. Those before `data`
        // are linear by the type invariant. `place` has room for `count` bytes.
        let copied = unsafe {
            bindings::skb_copy_bits(self.skb.as_ptr(), offset.wrapping_neg(), to, count as c_int)
        };
        match copied {
            0 => place,
            _ => &[],
        }
    }

    /// Calls `visit` with each frame as it is on the wire.
    ///
    /// Leaves out frames for which there is no memory. Does nothing if the buffer cannot be
    /// segmented, or only into more than [`MAX_SEGMENTS`] frames. Called in softirq; does not
    /// sleep.
    pub fn for_each_frame(&self, mut visit: impl FnMut(RxFrame)) {
        // SAFETY: The buffer is valid by the type invariant.
        let copy = unsafe { bindings::skb_clone(self.skb.as_ptr(), bindings::GFP_ATOMIC) };
        let Some(copy) = NonNull::new(copy) else {
            return;
        };
        // SAFETY: This function owns the clone. By the type invariant `header` bytes lie before its
        // `data`.
        unsafe { bindings::skb_push(copy.as_ptr(), self.header as u32) };
        // SAFETY: This function owns the valid clone.
        if !unsafe { bindings::skb_is_gso(copy.as_ptr()) } {
            // SAFETY: The clone is given up, with `data` at the start of the frame.
            return unsafe { RxFrame::finish(copy) }.into_iter().for_each(visit);
        }
        // SAFETY: This function owns the valid clone, which has a shared info.
        let size = unsafe { (*bindings::skb_shinfo(copy.as_ptr())).gso_size };
        // SAFETY: This function owns the valid clone.
        let len = unsafe { copy.as_ref() }.len;
        // The clone shares its head with the network stack, and segmentation writes checksums
        // there. So the head is copied first.
        let fits = matches!(len.checked_div(u32::from(size)), Some(..=MAX_SEGMENTS));
        // SAFETY: This function owns the valid clone.
        let first = if fits && unsafe { bindings::skb_cow_head(copy.as_ptr(), 0) } == 0 {
            // SAFETY: This function owns the valid clone, with `data` at its start and the network
            // header set by the stack. The resulting frames are new buffers, or counted references
            // to the buffers of which the clone consists.
            from_err_ptr(unsafe { bindings::__skb_gso_segment(copy.as_ptr(), 0, false) })
        } else {
            Err(EINVAL)
        };
        // SAFETY: This function owns the clone, which is not used again.
        unsafe { bindings::consume_skb(copy.as_ptr()) };
        let mut next = first.ok().and_then(NonNull::new);
        while let Some(skb) = next {
            // SAFETY: This function owns the list of frames, of which `skb` is the first.
            next = NonNull::new(unsafe { bindings::skb_take_next(skb.as_ptr()) });
            // SAFETY: The frame is given up, with `data` at its start.
            unsafe { RxFrame::finish(skb) }
                .into_iter()
                .for_each(&mut visit);
        }
    }
}
