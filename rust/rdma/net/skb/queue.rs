// SPDX-License-Identifier: GPL-2.0

//! Bounded queues of what was received.

use core::{pin::Pin, ptr::NonNull};

use kernel::{prelude::*, sync::Arc, types::Opaque};

use super::{
    backlog::{Backlog, Part, Shares},
    RxFrame, RxSkb,
};
use crate::bindings;

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

    /// Appends a buffer.
    ///
    /// # Errors
    ///
    /// The buffer, which is the caller's again, when there is no room.
    ///
    /// # Safety
    ///
    /// The buffer must be valid, and given up by the caller.
    #[inline]
    unsafe fn push(
        &self,
        skb: NonNull<bindings::sk_buff>,
    ) -> Result<(), NonNull<bindings::sk_buff>> {
        // SAFETY: The buffer is valid.
        let size = unsafe { size_of(skb) };
        if self.len() >= self.limit || !self.part.has_room(size) {
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

    /// Puts a packet that was popped back, if there is one: it is the next again.
    pub fn put_back(&self, skb: Option<RxSkb>) {
        if let Some(skb) = skb {
            // SAFETY: `into_raw` gives up a valid buffer.
            unsafe { self.list.put_back(skb.into_raw()) };
        }
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
/// What `list` holds came from [`RxFrame::into_raw`].
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

    /// Appends a frame.
    ///
    /// # Errors
    ///
    /// The frame, when the queue is full.
    pub fn push(&self, frame: RxFrame) -> Result<(), RxFrame> {
        // SAFETY: `into_raw` gives up a valid buffer.
        let pushed = unsafe { self.list.push(frame.into_raw()) };
        // SAFETY: It came from `into_raw`, and is not in the list.
        pushed.map_err(|skb| unsafe { RxFrame::from_raw(skb) })
    }

    /// Puts a frame that was popped back: it is the next again.
    pub fn put_back(&self, frame: RxFrame) {
        // SAFETY: `into_raw` gives up a valid buffer.
        unsafe { self.list.put_back(frame.into_raw()) };
    }

    /// Takes the oldest frame.
    pub fn pop(&self) -> Option<RxFrame> {
        // SAFETY: By the type invariant it came from `into_raw`, and it left the list.
        self.list.pop().map(|skb| unsafe { RxFrame::from_raw(skb) })
    }

    /// How many there are. Any context.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u32 {
        self.list.len()
    }
}
