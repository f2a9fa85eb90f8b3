// SPDX-License-Identifier: GPL-2.0

//! Frames of the link layer, as raw packet QPs receive them.

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
    verbs::mr::{Span, SpanFault},
};

/// The most frames into which a buffer is taken apart. The queue of a QP has room for no more.
const MAX_SEGMENTS: u32 = 1024;

/// A frame as it is on the wire, from its destination address on, without check sequence.
///
/// # Invariants
///
/// The buffer is valid, owned by `self` alone and has no `frag_list`; its bytes, which others may share,
/// are only read. `data` is at the link-layer header. No network device, route or namespace is kept by it.
pub struct RxFrame(NonNull<bindings::sk_buff>);

// SAFETY: A socket buffer belongs to its owner, not to a thread.
unsafe impl Send for RxFrame {}

impl RxFrame {
    /// Takes over a buffer with a whole frame that isn't to be segmented, and makes it what it would be
    /// on the wire: with its checksum, and its tag in its place. `None`, and the buffer is freed, for
    /// want of memory.
    ///
    /// # Safety
    ///
    /// `skb` must be valid and given up by the caller, `data` be at the link-layer header.
    unsafe fn finish(skb: NonNull<bindings::sk_buff>) -> Option<Self> {
        // SAFETY: Valid, as the caller promises.
        unsafe { bindings::skb_scrub_packet(skb.as_ptr(), true) };
        // Frees it whenever something is wrong.
        // INVARIANT: It is the caller's no more, and scrubbed; the rest follows.
        let frame = Self(skb);
        let raw = skb.as_ptr();
        // SAFETY: Valid, as the caller promises, and held by `frame`.
        if unsafe { bindings::skb_lacks_checksum(raw) } {
            // SAFETY: As above; it copies what others share before it writes. Without features of a network device it
            // computes checksums of SCTP, too.
            to_result(unsafe { bindings::skb_csum_hwoffload_help(raw, 0) }).ok()?;
        }
        // SAFETY: As above, so it has a shared info.
        let chained = unsafe { !(*bindings::skb_shinfo(raw)).frag_list.is_null() };
        // SAFETY: As above; it copies what others share.
        if chained && unsafe { bindings::skb_linearize(raw) } != 0 {
            return None;
        }
        // SAFETY: As above.
        if !unsafe { bindings::skb_vlan_tag_present(raw) } {
            return Some(frame);
        }
        // SAFETY: Valid and given up; it copies what others share, and frees the buffer when it fails.
        NonNull::new(unsafe { bindings::__vlan_hwaccel_push_inside(frame.into_raw().as_ptr()) })
            .map(Self)
    }

    /// What a frame that is to be sent would be on the receiver's side. `None` for want of memory. Any
    /// context; doesn't sleep.
    pub fn copy_of(frame: &TxFrame) -> Option<Self> {
        // SAFETY: A `TxFrame` owns a valid buffer; a clone would take the place of the one that is sent.
        let copy = unsafe { bindings::skb_copy(frame.as_ptr(), bindings::GFP_ATOMIC) };
        // SAFETY: The copy is ours; `data` is at the start of the frame.
        unsafe { Self::finish(NonNull::new(copy)?) }
    }

    /// Bytes of the frame.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u32 {
        // SAFETY: Valid by the type invariant.
        unsafe { (*self.0.as_ptr()).len }
    }

    /// Copies from `offset` on until `span` is full.
    ///
    /// # Errors
    ///
    /// [`SpanFault::Range`] if there aren't as many bytes, [`SpanFault::ReadOnly`].
    pub fn copy_to_span(&self, offset: usize, span: &Span<'_>) -> Result<(), SpanFault> {
        let mut from = offset;
        span.for_each_writable_piece(|to, len| {
            let mut to = to.as_ptr();
            let copy = |run: *const u8, count: usize| {
                // SAFETY: The run is valid for reads; the runs add up to `len`, and the piece is valid
                // for writes of as many bytes, and never referred to.
                unsafe { copy_bytes(to, run, count) };
                to = to.wrapping_add(count);
            };
            // SAFETY: Valid and without `frag_list` by the type invariant.
            unsafe { for_each_run(self.0, from, len, copy) }.ok_or(SpanFault::Range)?;
            from = from.saturating_add(len);
            Ok(())
        })
    }

    /// The buffer, which stays the frame's.
    pub(super) fn as_raw(&self) -> NonNull<bindings::sk_buff> {
        self.0
    }

    /// Gives up ownership.
    pub(super) fn into_raw(self) -> NonNull<bindings::sk_buff> {
        ManuallyDrop::new(self).0
    }

    /// Takes over the buffer of a frame.
    ///
    /// # Safety
    ///
    /// `skb` must come from [`Self::into_raw`], or be a linear copy of a frame's buffer; once.
    pub(super) unsafe fn from_raw(skb: NonNull<bindings::sk_buff>) -> Self {
        // INVARIANT: They held when the buffer was given up, and hold for a copy, which has no `frag_list`.
        Self(skb)
    }
}

impl Drop for RxFrame {
    fn drop(&mut self) {
        // SAFETY: Ours by the type invariant, and not used again.
        unsafe { bindings::consume_skb(self.0.as_ptr()) };
    }
}

/// What passes a network device, for whoever looks on. It may be several frames of the wire in one.
///
/// # Invariants
///
/// The buffer is valid for `'a`, and shared: it is only read. Its link-layer header is set and lies no
/// further than `header` bytes in front of `data`.
pub struct TappedFrame<'a> {
    skb: NonNull<bindings::sk_buff>,
    /// Bytes from the start of the frame to `data`.
    header: usize,
    _skb: PhantomData<&'a bindings::sk_buff>,
}

impl TappedFrame<'_> {
    /// What a packet handler is shown; `None` if it isn't a frame.
    ///
    /// # Safety
    ///
    /// `skb` must be that of a packet handler, and stay valid during the lifetime of the result.
    pub(in crate::net) unsafe fn new(skb: NonNull<bindings::sk_buff>) -> Option<Self> {
        let raw = skb.as_ptr();
        // SAFETY: Valid, as the caller promises.
        if !unsafe { bindings::skb_mac_header_was_set(raw) } {
            return None;
        }
        // SAFETY: Likewise, and its header is set.
        let (start, data) = unsafe { (bindings::skb_mac_header(raw), (*raw).data) };
        let header = (data as usize).checked_sub(start as usize)?;
        // INVARIANT: As just computed.
        Some(Self {
            skb,
            header,
            _skb: PhantomData,
        })
    }

    /// Whether this host sends it.
    pub fn is_outgoing(&self) -> bool {
        self.kind() == bindings::PACKET_OUTGOING
    }

    /// Whether it never was on the wire: what the IP layer sends to a group it gives itself once more.
    pub fn is_looped(&self) -> bool {
        self.kind() == bindings::PACKET_LOOPBACK
    }

    fn kind(&self) -> u32 {
        // SAFETY: Valid by the type invariant.
        u32::from(unsafe { bindings::skb_pkt_type(self.skb.as_ptr()) })
    }

    /// The tag that stood behind the addresses, if it was taken out.
    pub fn tag(&self) -> Option<u16> {
        let skb = self.skb.as_ptr();
        // SAFETY: Valid by the type invariant.
        let present = unsafe { bindings::skb_vlan_tag_present(skb) };
        // SAFETY: As above.
        present.then(|| unsafe { bindings::skb_vlan_tag_get(skb) })
    }

    /// The first bytes of the frame, as many as there are and fit in `room`.
    pub fn headers<'b>(&self, room: &'b mut [u8]) -> &'b [u8] {
        // SAFETY: Valid by the type invariant.
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
        // SAFETY: `count` bytes from the start of the frame on are in the buffer, those in front of
        // `data` in its linear part by the type invariant; as many fit at `to`.
        let copied = unsafe {
            bindings::skb_copy_bits(self.skb.as_ptr(), offset.wrapping_neg(), to, count as c_int)
        };
        match copied {
            0 => place,
            _ => &[],
        }
    }

    /// Calls `visit` with each frame as it is on the wire. Those for which memory is wanting are left out, and so is what can't
    /// be taken apart, or would be more than [`MAX_SEGMENTS`]. Softirq; doesn't sleep.
    pub fn for_each_frame(&self, mut visit: impl FnMut(RxFrame)) {
        // SAFETY: Valid by the type invariant.
        let copy = unsafe { bindings::skb_clone(self.skb.as_ptr(), bindings::GFP_ATOMIC) };
        let Some(copy) = NonNull::new(copy) else {
            return;
        };
        // SAFETY: The copy is ours; that many bytes are in front of its `data` by the type invariant.
        unsafe { bindings::skb_push(copy.as_ptr(), self.header as u32) };
        // SAFETY: The copy is valid, and nobody else has it.
        if !unsafe { bindings::skb_is_gso(copy.as_ptr()) } {
            // SAFETY: It is given up, with `data` at its start.
            return unsafe { RxFrame::finish(copy) }.into_iter().for_each(visit);
        }
        // SAFETY: Valid.
        let size = unsafe { (*bindings::skb_shinfo(copy.as_ptr())).gso_size };
        // SAFETY: Valid.
        let len = unsafe { copy.as_ref() }.len;
        // The clone shares its head with the stack, and segmentation writes checksums there. So the head is copied.
        let fits = matches!(len.checked_div(u32::from(size)), Some(..=MAX_SEGMENTS));
        // SAFETY: Valid and ours.
        let first = if fits && unsafe { bindings::skb_cow_head(copy.as_ptr(), 0) } == 0 {
            // SAFETY: Valid and ours, with `data` at its start and the network header set by the stack. The frames made of
            // it are new, or are counted references to the buffers of which it consists.
            from_err_ptr(unsafe { bindings::__skb_gso_segment(copy.as_ptr(), 0, false) })
        } else {
            Err(EINVAL)
        };
        // SAFETY: Our count of it is given up, and not used again.
        unsafe { bindings::consume_skb(copy.as_ptr()) };
        let mut next = first.ok().and_then(NonNull::new);
        while let Some(skb) = next {
            // SAFETY: A frame of the list, which is ours.
            next = NonNull::new(unsafe { bindings::skb_take_next(skb.as_ptr()) });
            // SAFETY: It is given up, with `data` at its start.
            unsafe { RxFrame::finish(skb) }
                .into_iter()
                .for_each(&mut visit);
        }
    }
}
