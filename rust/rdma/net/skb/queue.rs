// SPDX-License-Identifier: GPL-2.0

//! Bounded queues of received packets and frames.

use core::{pin::Pin, ptr::NonNull};

use kernel::{ffi::c_int, prelude::*, sync::Arc, types::Opaque};

use super::{
    backlog::{Backlog, PayerBacklogs, QueueUsage},
    burst::burst_count,
    headers, RxFrame, RxSkb,
};
use crate::bindings;

/// Number of bytes before `data` that a copy keeps. The headers up to the UDP header fit, and so do
/// decoded headers.
const HEADROOM: u32 = 128;
const _: () = assert!(headers::LEN <= HEADROOM as usize);
/// Number of bytes that a buffer may have beyond twice the length of its packet with decoded
/// headers, for its structures. A copy of the shortest packet takes 960 bytes with Debian's
/// configuration: `struct sk_buff`, the shared info and the smallest head
/// (`SKB_SMALL_HEAD_CACHE_SIZE`, net/core/skbuff.c).
pub(super) const OVERHEAD: u32 = 1024;

/// A queue of buffers, first in, first out.
///
/// It has about `limit` buffers at most, and as many bytes as the [`Backlog`] allows. All methods
/// are callable in any context: the list has a lock of its own, which is taken with interrupts
/// disabled.
///
/// # Invariants
///
/// `list` is an initialised `struct sk_buff_head`, which owns its buffers. `usage` counts the
/// `truesize` of each buffer in it.
#[pin_data(PinnedDrop)]
struct List {
    #[pin]
    list: Opaque<bindings::sk_buff_head>,
    limit: u32,
    usage: Arc<QueueUsage>,
}

// SAFETY: The list has a lock of its own. Socket buffers are not bound to a thread.
unsafe impl Send for List {}
// SAFETY: The list has a lock of its own. Socket buffers are not bound to a thread.
unsafe impl Sync for List {}

impl List {
    /// Creates an initialiser for an empty queue.
    fn new(limit: u32, backlog: Arc<Backlog>, shares: PayerBacklogs) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            // SAFETY: `list` is valid for writes while the closure runs.
            // INVARIANT: The list is initialised and empty.
            list <- Opaque::ffi_init(|list| unsafe { bindings::skb_queue_head_init(list) }),
            limit,
            usage: Arc::new(QueueUsage::new(backlog, shares), GFP_KERNEL_ACCOUNT)?,
        })
    }

    /// Appends a buffer, or a copy of it if it shares memory or has much more than it needs
    /// ([`compact`]).
    ///
    /// # Errors
    ///
    /// Returns the buffer to the caller if there is no room, or no memory for a copy.
    ///
    /// # Safety
    ///
    /// The buffer must be valid, and the caller gives it up.
    #[inline]
    unsafe fn push(
        &self,
        skb: NonNull<bindings::sk_buff>,
    ) -> Result<(), NonNull<bindings::sk_buff>> {
        // SAFETY: The caller guarantees that `skb` is valid (see `# Safety`).
        if !unsafe { self.has_room_for(skb) } {
            return Err(skb);
        }
        // SAFETY: The caller guarantees that `skb` is valid, and gives it up (see `# Safety`).
        let skb = unsafe { compact(skb) }?;
        // SAFETY: This function owns the valid buffer that `compact` returned.
        unsafe { self.append(skb) }
    }

    /// Appends a copy of a buffer. Makes no copy if there is no room for the buffer's bytes.
    ///
    /// # Errors
    ///
    /// Returns `ENOBUFS` if there is no room, possibly only for the `truesize` of the copy;
    /// `ENOMEM` if there is no memory for a copy.
    ///
    /// # Safety
    ///
    /// The buffer must be valid.
    unsafe fn push_copy(&self, skb: NonNull<bindings::sk_buff>) -> Result {
        // SAFETY: The caller guarantees that `skb` is valid (see `# Safety`).
        if !unsafe { self.has_room_for(skb) } {
            return Err(ENOBUFS);
        }
        // SAFETY: The caller guarantees that `skb` is valid (see `# Safety`).
        let copy = unsafe { copy_of(skb) }.ok_or(ENOMEM)?;
        // SAFETY: This function owns the valid copy.
        unsafe { self.append(copy) }.map_err(|copy| {
            // SAFETY: The copy is not in the list, and is not used again.
            unsafe { bindings::consume_skb(copy.as_ptr()) };
            ENOBUFS
        })
    }

    /// Returns whether there is room for the bytes of a buffer. The `truesize` of the buffer or of
    /// a copy is larger than the number of these bytes.
    ///
    /// # Safety
    ///
    /// The buffer must be valid.
    #[inline]
    unsafe fn has_room_for(&self, skb: NonNull<bindings::sk_buff>) -> bool {
        // SAFETY: The caller guarantees that `skb` is valid (see `# Safety`).
        let length = unsafe { skb.as_ref() }.len as usize;
        self.len() < self.limit && self.usage.has_room(length)
    }

    /// Appends a buffer that [`compact`] or [`copy_of`] returned.
    ///
    /// # Errors
    ///
    /// Returns the buffer to the caller if there is no room.
    ///
    /// # Safety
    ///
    /// The buffer must be valid, and the caller gives it up.
    #[inline]
    unsafe fn append(
        &self,
        skb: NonNull<bindings::sk_buff>,
    ) -> Result<(), NonNull<bindings::sk_buff>> {
        // SAFETY: The caller guarantees that `skb` is valid (see `# Safety`).
        let size = unsafe { size_of(skb) };
        if !self.usage.has_room(size) {
            return Err(skb);
        }
        self.usage.add(size);
        // SAFETY: The list is initialised by the type invariant. The caller gives the buffer up.
        unsafe { bindings::skb_queue_tail(self.list.get(), skb.as_ptr()) };
        Ok(())
    }

    /// Puts a buffer at the head of the queue, or a copy of it ([`compact`]), even if there is no
    /// room.
    ///
    /// # Safety
    ///
    /// The buffer must be valid, and the caller gives it up.
    #[inline]
    unsafe fn put_back(&self, skb: NonNull<bindings::sk_buff>) {
        // SAFETY: The caller guarantees that `skb` is valid, and gives it up (see `# Safety`).
        let skb = unsafe { compact(skb) }.unwrap_or_else(|skb| skb);
        // SAFETY: This function owns the valid buffer.
        self.usage.add(unsafe { size_of(skb) });
        // SAFETY: The list is initialised by the type invariant. This function gives the buffer up.
        unsafe { bindings::skb_queue_head(self.list.get(), skb.as_ptr()) };
    }

    /// Takes the oldest buffer, which the caller owns then.
    #[inline]
    fn pop(&self) -> Option<NonNull<bindings::sk_buff>> {
        if self.len() == 0 {
            return None;
        }
        // SAFETY: The list is initialised by the type invariant.
        let skb = NonNull::new(unsafe { bindings::skb_dequeue(self.list.get()) })?;
        // SAFETY: This function owns the valid buffer. Its `truesize` is the size that `append` or
        // `put_back` counted, since no other code had it in the list.
        self.usage.subtract(unsafe { size_of(skb) });
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
        // SAFETY: The list is initialised by the type invariant, and owns its buffers.
        unsafe { bindings::skb_queue_purge(self.list.get()) };
    }
}

/// Returns the number of bytes of memory that a buffer takes (`truesize`).
///
/// # Safety
///
/// The caller must own the valid buffer.
#[inline]
pub(super) unsafe fn size_of(skb: NonNull<bindings::sk_buff>) -> usize {
    // SAFETY: The caller guarantees that it owns the valid buffer (see `# Safety`).
    unsafe { (*skb.as_ptr()).truesize as usize }
}

/// Returns a buffer with the same bytes that shares no memory, and has little more than it needs:
/// `skb`, or a copy.
///
/// A buffer may hold parts of pages. Only these parts are counted in `truesize`, but the buffer
/// keeps the whole pages: pages of 32 KiB of a socket (`__ip_append_data()`, net/ipv4/ip_output.c),
/// or pages of a driver. A buffer may also have much more room than bytes, if its sender announced
/// more bytes (`MSG_MORE`).
///
/// # Errors
///
/// Returns the buffer if there is no memory for a copy.
///
/// # Safety
///
/// The buffer must be valid, and the caller gives it up.
#[inline]
pub(super) unsafe fn compact(
    skb: NonNull<bindings::sk_buff>,
) -> Result<NonNull<bindings::sk_buff>, NonNull<bindings::sk_buff>> {
    // SAFETY: The caller guarantees that `skb` is valid (see `# Safety`).
    let buffer = unsafe { skb.as_ref() };
    // SAFETY: The caller guarantees that `skb` is valid (see `# Safety`).
    let has_clones = unsafe { bindings::skb_cloned(skb.as_ptr()) } != 0;
    // The sender of a burst wrote its pages for this buffer, and uses them no more.
    // SAFETY: The caller guarantees that it owns the valid `skb` (see `# Safety`).
    let has_foreign_pages = buffer.data_len != 0 && unsafe { burst_count(skb) }.is_none();
    let shared = has_foreign_pages || has_clones || buffer.head_frag() != 0;
    // Decoded headers lie in front of the packet's bytes.
    let length = buffer.len.saturating_add(headers::LEN as u32);
    if !shared && buffer.truesize <= length.saturating_mul(2).saturating_add(OVERHEAD) {
        return Ok(skb);
    }
    // SAFETY: The caller guarantees that `skb` is valid (see `# Safety`).
    let copy = unsafe { copy_of(skb) }.ok_or(skb)?;
    // SAFETY: The caller gave the buffer up, which is not used again.
    unsafe { bindings::consume_skb(skb.as_ptr()) };
    Ok(copy)
}

/// Copies a buffer into one that shares no memory, and has little more than it needs. Returns
/// `None` if there is no memory.
///
/// # Safety
///
/// The buffer must be valid.
pub(super) unsafe fn copy_of(
    skb: NonNull<bindings::sk_buff>,
) -> Option<NonNull<bindings::sk_buff>> {
    // SAFETY: The caller guarantees that `skb` is valid (see `# Safety`).
    let headroom = unsafe { bindings::skb_headroom(skb.as_ptr()) }.min(HEADROOM);
    // SAFETY: The caller guarantees that `skb` is valid (see `# Safety`). The copy has no more
    // bytes before `data` than the buffer has.
    let copy = unsafe {
        bindings::skb_copy_expand(skb.as_ptr(), headroom as c_int, 0, bindings::GFP_ATOMIC)
    };
    NonNull::new(copy)
}

/// A queue of received packets, first in, first out, with a limit. All methods are callable in any
/// context.
///
/// # Invariants
///
/// Each buffer in `list` comes from [`RxSkb::into_raw`], or is a linear copy of a packet's buffer.
#[pin_data]
pub struct SkbQueue {
    #[pin]
    list: List,
}

impl SkbQueue {
    /// Creates an initialiser for an empty queue of at most `limit` packets, whose memory is
    /// counted in `backlog` and `shares`.
    ///
    /// CPUs that push at the same time may exceed the limit by their packets.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(
        limit: u32,
        backlog: Arc<Backlog>,
        shares: PayerBacklogs,
    ) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            list <- List::new(limit, backlog, shares),
        })
    }

    /// Appends a packet.
    ///
    /// # Errors
    ///
    /// Returns the packet if the queue is full, or if the packet must be copied and there is no
    /// memory.
    pub fn push(&self, skb: RxSkb) -> Result<(), RxSkb> {
        // SAFETY: `into_raw` gives up a valid buffer.
        let pushed = unsafe { self.list.push(skb.into_raw()) };
        // SAFETY: `skb` comes from `into_raw` or is a linear copy, and is not in the list.
        pushed.map_err(|skb| unsafe { RxSkb::from_raw(skb) })
    }

    /// Puts a popped packet back at the head of the queue.
    pub fn put_back(&self, skb: RxSkb) {
        // SAFETY: `into_raw` gives up a valid buffer.
        unsafe { self.list.put_back(skb.into_raw()) };
    }

    /// Takes the oldest packet.
    #[inline]
    pub fn pop(&self) -> Option<RxSkb> {
        // SAFETY: By the type invariant `skb` is a packet's buffer. It has left the list.
        self.list.pop().map(|skb| unsafe { RxSkb::from_raw(skb) })
    }

    /// Returns the memory of the queue.
    pub(super) fn usage(&self) -> &Arc<QueueUsage> {
        &self.list.usage
    }

    /// Returns whether the queue is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of packets in the queue.
    #[inline]
    pub fn len(&self) -> u32 {
        self.list.len()
    }
}

/// A queue of received frames, first in, first out, with a limit. All methods are callable in any
/// context.
///
/// # Invariants
///
/// Each buffer in `list` comes from [`RxFrame::into_raw`], or is a linear copy of a frame's buffer.
#[pin_data]
pub struct FrameQueue {
    #[pin]
    list: List,
}

impl FrameQueue {
    /// Creates an initialiser for an empty queue of at most `limit` frames. The parameters are
    /// those of [`SkbQueue::new`].
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(
        limit: u32,
        backlog: Arc<Backlog>,
        shares: PayerBacklogs,
    ) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            list <- List::new(limit, backlog, shares),
        })
    }

    /// Appends a copy of a frame. Does not sleep.
    ///
    /// # Errors
    ///
    /// Returns `ENOBUFS` if the queue is full, in most cases without making a copy; `ENOMEM` if
    /// there is no memory for a copy.
    pub fn push_copy(&self, frame: &RxFrame) -> Result {
        // SAFETY: A frame owns a valid buffer.
        unsafe { self.list.push_copy(frame.as_raw()) }
    }

    /// Puts a popped frame back at the head of the queue.
    pub fn put_back(&self, frame: RxFrame) {
        // SAFETY: `into_raw` gives up a valid buffer.
        unsafe { self.list.put_back(frame.into_raw()) };
    }

    /// Takes the oldest frame.
    pub fn pop(&self) -> Option<RxFrame> {
        // SAFETY: By the type invariant `skb` is a frame's buffer. It has left the list.
        self.list.pop().map(|skb| unsafe { RxFrame::from_raw(skb) })
    }

    /// Returns the number of frames in the queue.
    #[allow(clippy::len_without_is_empty)]
    #[inline]
    pub fn len(&self) -> u32 {
        self.list.len()
    }
}
