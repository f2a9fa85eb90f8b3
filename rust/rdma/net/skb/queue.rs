// SPDX-License-Identifier: GPL-2.0

//! Bounded queues of what was received.

use core::{pin::Pin, ptr::NonNull};

use kernel::{ffi::c_int, prelude::*, sync::Arc, types::Opaque};

use super::{
    backlog::{Backlog, Part, Shares},
    RxFrame, RxSkb,
};
use crate::bindings;

/// Bytes in front of `data` that a copy keeps: those of all headers up to UDP's.
const HEADROOM: u32 = 128;
/// Bytes that a buffer of its own takes beyond twice its packet's: those of its structures and headers.
const OVERHEAD: u32 = 768;

/// Buffers, first in, first out, at most about a limit of them, and as many as the [`Backlog`] allows.
///
/// Any context; it has an irq-safe lock of its own.
///
/// # Invariants
///
/// `list` is an initialised `struct sk_buff_head`; it owns what it holds. `part` counts the `truesize` of each buffer in it.
#[pin_data(PinnedDrop)]
struct List {
    #[pin]
    list: Opaque<bindings::sk_buff_head>,
    limit: u32,
    part: Part,
}

// SAFETY: The list is guarded by its own lock; socket buffers belong to no thread.
unsafe impl Send for List {}
// SAFETY: As above.
unsafe impl Sync for List {}

impl List {
    fn new(limit: u32, backlog: Arc<Backlog>, shares: Shares) -> impl PinInit<Self> {
        pin_init!(Self {
            // SAFETY: `list` is valid for writes while the closure runs.
            // INVARIANT: It is initialised and empty.
            list <- Opaque::ffi_init(|list| unsafe { bindings::skb_queue_head_init(list) }),
            limit,
            part: Part::new(backlog, shares),
        })
    }

    /// Appends a buffer, or a copy that takes no more memory than it counts for.
    ///
    /// # Errors
    ///
    /// The buffer, which is the caller's again, when there is no room, or no memory for a copy.
    ///
    /// # Safety
    ///
    /// The buffer must be valid, and given up by the caller.
    #[inline]
    unsafe fn push(
        &self,
        skb: NonNull<bindings::sk_buff>,
    ) -> Result<(), NonNull<bindings::sk_buff>> {
        // SAFETY: As the caller promises.
        if !unsafe { self.has_room_for(skb) } {
            return Err(skb);
        }
        // SAFETY: As above.
        let skb = unsafe { compact(skb) }?;
        // SAFETY: The buffer is valid and ours.
        unsafe { self.append(skb) }
    }

    /// Appends a copy of a buffer. Where there is no room nothing is copied.
    ///
    /// # Errors
    ///
    /// `ENOBUFS` when there is no room, `ENOMEM` when there is no memory for a copy.
    ///
    /// # Safety
    ///
    /// The buffer must be valid.
    unsafe fn push_copy(&self, skb: NonNull<bindings::sk_buff>) -> Result {
        // SAFETY: As the caller promises.
        if !unsafe { self.has_room_for(skb) } {
            return Err(ENOBUFS);
        }
        // SAFETY: As above.
        let copy = unsafe { copy_of(skb) }.ok_or(ENOMEM)?;
        // SAFETY: The copy is valid and ours.
        unsafe { self.append(copy) }.map_err(|copy| {
            // SAFETY: It is not in the list, and is not used again.
            unsafe { bindings::consume_skb(copy.as_ptr()) };
            ENOBUFS
        })
    }

    /// Whether there is room for the bytes of a buffer. The buffer, or a copy, counts for more than these.
    ///
    /// # Safety
    ///
    /// The buffer must be valid.
    #[inline]
    unsafe fn has_room_for(&self, skb: NonNull<bindings::sk_buff>) -> bool {
        // SAFETY: As the caller promises.
        let length = unsafe { skb.as_ref() }.len as usize;
        self.len() < self.limit && self.part.has_room(length)
    }

    /// Appends a buffer that [`compact`] returned, or a copy.
    ///
    /// # Errors
    ///
    /// The buffer, which is the caller's again, when there is no room.
    ///
    /// # Safety
    ///
    /// As for [`Self::push`].
    #[inline]
    unsafe fn append(
        &self,
        skb: NonNull<bindings::sk_buff>,
    ) -> Result<(), NonNull<bindings::sk_buff>> {
        // SAFETY: The buffer is valid, as the caller promises.
        let size = unsafe { size_of(skb) };
        if !self.part.has_room(size) {
            return Err(skb);
        }
        self.part.add(size);
        // SAFETY: The list is initialised by the type invariant; the buffer was given up.
        unsafe { bindings::skb_queue_tail(self.list.get(), skb.as_ptr()) };
        Ok(())
    }

    /// # Safety
    ///
    /// As for [`Self::push`].
    #[inline]
    unsafe fn put_back(&self, skb: NonNull<bindings::sk_buff>) {
        // SAFETY: As the caller promises.
        let skb = unsafe { compact(skb) }.unwrap_or_else(|skb| skb);
        // SAFETY: The buffer is valid.
        self.part.add(unsafe { size_of(skb) });
        // SAFETY: The list is initialised by the type invariant; the buffer was given up.
        unsafe { bindings::skb_queue_head(self.list.get(), skb.as_ptr()) };
    }

    /// The oldest buffer, which is the caller's now.
    #[inline]
    fn pop(&self) -> Option<NonNull<bindings::sk_buff>> {
        if self.len() == 0 {
            return None;
        }
        // SAFETY: The list is initialised by the type invariant.
        let skb = NonNull::new(unsafe { bindings::skb_dequeue(self.list.get()) })?;
        // SAFETY: The buffer is valid; its size has not changed in the list, where nobody else has it.
        self.part.subtract(unsafe { size_of(skb) });
        Some(skb)
    }

    #[inline]
    fn len(&self) -> u32 {
        // SAFETY: The list is initialised by the type invariant.
        unsafe { bindings::skb_queue_len_lockless(self.list.get()) }
    }
}

#[pinned_drop]
impl PinnedDrop for List {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: The list is initialised by the type invariant and owns its elements.
        unsafe { bindings::skb_queue_purge(self.list.get()) };
    }
}

/// The bytes of memory that a buffer takes.
///
/// # Safety
///
/// The buffer must be valid, and the caller's.
#[inline]
unsafe fn size_of(skb: NonNull<bindings::sk_buff>) -> usize {
    // SAFETY: The caller's promise.
    unsafe { (*skb.as_ptr()).truesize as usize }
}

/// A buffer with the same bytes that has its memory for itself, and little more than it needs: `skb`, or a copy in place of
/// it.
///
/// A buffer may hold parts of pages, of which it counts its own bytes only and keeps the rest: a socket's pages of 32 KiB
/// (`__ip_append_data()`, net/ipv4/ip_output.c), or a driver's. It may also have much more room than bytes, if its sender
/// announced more (`MSG_MORE`).
///
/// # Errors
///
/// The buffer, if there is no memory.
///
/// # Safety
///
/// The buffer must be valid, and given up by the caller.
#[inline]
unsafe fn compact(
    skb: NonNull<bindings::sk_buff>,
) -> Result<NonNull<bindings::sk_buff>, NonNull<bindings::sk_buff>> {
    // SAFETY: As the caller promises.
    let buffer = unsafe { skb.as_ref() };
    // SAFETY: As above.
    let has_clones = unsafe { bindings::skb_cloned(skb.as_ptr()) } != 0;
    let shared = buffer.data_len != 0 || has_clones || buffer.head_frag() != 0;
    if !shared && buffer.truesize <= buffer.len.saturating_mul(2).saturating_add(OVERHEAD) {
        return Ok(skb);
    }
    // SAFETY: As above.
    let copy = unsafe { copy_of(skb) }.ok_or(skb)?;
    // SAFETY: The buffer was given up, and is not used again.
    unsafe { bindings::consume_skb(skb.as_ptr()) };
    Ok(copy)
}

/// A buffer of its own with the same bytes, and little more memory than it needs. `None` if there is no memory.
///
/// # Safety
///
/// The buffer must be valid.
unsafe fn copy_of(skb: NonNull<bindings::sk_buff>) -> Option<NonNull<bindings::sk_buff>> {
    // SAFETY: As the caller promises.
    let headroom = unsafe { bindings::skb_headroom(skb.as_ptr()) }.min(HEADROOM);
    // SAFETY: As above. The copy has as many bytes in front of `data` as there are, or the last of them.
    let copy = unsafe {
        bindings::skb_copy_expand(skb.as_ptr(), headroom as c_int, 0, bindings::GFP_ATOMIC)
    };
    NonNull::new(copy)
}

/// Received packets, first in, first out, at most about a limit of them. Any context.
///
/// # Invariants
///
/// What `list` holds came from [`RxSkb::into_raw`].
#[pin_data]
pub struct SkbQueue {
    #[pin]
    list: List,
}

impl SkbQueue {
    /// An empty queue for `limit` packets, whose memory counts for the backlog and for the shares. Pushes that meet on
    /// several CPUs may overrun the limit by as many.
    pub fn new(limit: u32, backlog: Arc<Backlog>, shares: Shares) -> impl PinInit<Self> {
        pin_init!(Self {
            list <- List::new(limit, backlog, shares),
        })
    }

    /// Appends a packet.
    ///
    /// # Errors
    ///
    /// The packet, when the queue is full.
    pub fn push(&self, skb: RxSkb) -> Result<(), RxSkb> {
        // SAFETY: `into_raw` gives up a valid buffer.
        let pushed = unsafe { self.list.push(skb.into_raw()) };
        // SAFETY: It came from `into_raw`, and is not in the list.
        pushed.map_err(|skb| unsafe { RxSkb::from_raw(skb) })
    }

    /// Puts a packet that was popped back: it is the next again.
    pub fn put_back(&self, skb: RxSkb) {
        // SAFETY: `into_raw` gives up a valid buffer.
        unsafe { self.list.put_back(skb.into_raw()) };
    }

    /// Takes the oldest packet.
    #[inline]
    pub fn pop(&self) -> Option<RxSkb> {
        // SAFETY: By the type invariant it came from `into_raw`, and it left the list.
        self.list.pop().map(|skb| unsafe { RxSkb::from_raw(skb) })
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many there are. Any context.
    pub fn len(&self) -> u32 {
        self.list.len()
    }
}

/// Received frames, first in, first out, at most about a limit of them. Any context.
///
/// # Invariants
///
/// Each buffer in `list` came from [`RxFrame::into_raw`], or is a linear copy of a frame's buffer.
#[pin_data]
pub struct FrameQueue {
    #[pin]
    list: List,
}

impl FrameQueue {
    /// An empty queue for `limit` frames; as [`SkbQueue::new`].
    pub fn new(limit: u32, backlog: Arc<Backlog>, shares: Shares) -> impl PinInit<Self> {
        pin_init!(Self {
            list <- List::new(limit, backlog, shares),
        })
    }

    /// Appends a copy of a frame. Doesn't sleep.
    ///
    /// # Errors
    ///
    /// `ENOBUFS` when the queue is full; then nothing was copied. `ENOMEM` when there is no memory for a copy.
    pub fn push_copy(&self, frame: &RxFrame) -> Result {
        // SAFETY: A frame owns a valid buffer.
        unsafe { self.list.push_copy(frame.as_raw()) }
    }

    /// Puts a frame that was popped back: it is the next again.
    pub fn put_back(&self, frame: RxFrame) {
        // SAFETY: `into_raw` gives up a valid buffer.
        unsafe { self.list.put_back(frame.into_raw()) };
    }

    /// Takes the oldest frame.
    pub fn pop(&self) -> Option<RxFrame> {
        // SAFETY: By the type invariant it is a frame's buffer, and it left the list.
        self.list.pop().map(|skb| unsafe { RxFrame::from_raw(skb) })
    }

    /// How many there are. Any context.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u32 {
        self.list.len()
    }
}
