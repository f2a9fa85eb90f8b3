// SPDX-License-Identifier: GPL-2.0

//! A bounded queue of received packets.

use core::{pin::Pin, ptr::NonNull};

use kernel::{prelude::*, types::Opaque};

use super::RxSkb;
use crate::bindings;

/// Received packets, first in, first out, at most about a limit of them.
///
/// Any context; it has an irq-safe lock of its own.
///
/// # Invariants
///
/// `list` is an initialised `struct sk_buff_head`; what it holds came from [`RxSkb::into_raw`].
#[pin_data(PinnedDrop)]
pub struct SkbQueue {
    #[pin]
    list: Opaque<bindings::sk_buff_head>,
    limit: u32,
}

// SAFETY: The list is guarded by its own lock; its elements are `Send`.
unsafe impl Send for SkbQueue {}
// SAFETY: As above.
unsafe impl Sync for SkbQueue {}

impl SkbQueue {
    /// An empty queue for `limit` packets. Pushes that meet on several CPUs may overrun the limit
    /// by as many.
    pub fn new(limit: u32) -> impl PinInit<Self> {
        pin_init!(Self {
            // SAFETY: `list` is valid for writes while the closure runs.
            // INVARIANT: It is initialised and empty.
            list <- Opaque::ffi_init(|list| unsafe { bindings::skb_queue_head_init(list) }),
            limit,
        })
    }

    /// Appends a packet.
    ///
    /// # Errors
    ///
    /// The packet, when the queue is full.
    pub fn push(&self, skb: RxSkb) -> Result<(), RxSkb> {
        if self.len() >= self.limit {
            return Err(skb);
        }
        // SAFETY: The list is initialised by the type invariant; the buffer was given up.
        unsafe { bindings::skb_queue_tail(self.list.get(), skb.into_raw().as_ptr()) };
        Ok(())
    }

    /// Puts a packet that was popped back, if there is one: it is the next again.
    pub fn put_back(&self, skb: Option<RxSkb>) {
        if let Some(skb) = skb {
            // SAFETY: The list is initialised by the type invariant; the buffer was given up.
            unsafe { bindings::skb_queue_head(self.list.get(), skb.into_raw().as_ptr()) };
        }
    }

    /// Takes the oldest packet.
    pub fn pop(&self) -> Option<RxSkb> {
        if self.is_empty() {
            return None;
        }
        // SAFETY: The list is initialised by the type invariant.
        let skb = NonNull::new(unsafe { bindings::skb_dequeue(self.list.get()) })?;
        // SAFETY: By the type invariant it came from `into_raw`, and it left the list.
        Some(unsafe { RxSkb::from_raw(skb) })
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many there are. Any context.
    pub fn len(&self) -> u32 {
        // SAFETY: The list is initialised by the type invariant.
        unsafe { bindings::skb_queue_len_lockless(self.list.get()) }
    }
}

#[pinned_drop]
impl PinnedDrop for SkbQueue {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: The list is initialised by the type invariant and owns its elements.
        unsafe { bindings::skb_queue_purge(self.list.get()) };
    }
}
