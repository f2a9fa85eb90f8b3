// SPDX-License-Identifier: GPL-2.0

//! Received packets that the owner of a queue keeps outside of the queue.

use kernel::{prelude::*, sync::Arc};

use super::{
    backlog::QueueUsage,
    queue::{compact, size_of, SkbQueue},
    RxSkb,
};

/// The memory of the packets that the owner of a queue keeps.
///
/// The packets count in the limits of the network namespace and of the queue's payer
/// (`net/skb/backlog.rs`). All methods are callable in any context.
///
/// # Invariants
///
/// `usage` counts `table` bytes for this object.
pub struct HeldPackets {
    usage: Arc<QueueUsage>,
    /// Bytes of the table that names the packets.
    table: usize,
}

impl HeldPackets {
    /// Creates the state without packets for the owner of `queue`, who has a table of `table` bytes
    /// that names the packets. Returns `None` if there is no room for the table.
    pub fn of(queue: &SkbQueue, table: usize) -> Option<Self> {
        let usage = queue.usage().clone();
        if !usage.has_room_to_keep(table) {
            return None;
        }
        usage.count_kept(table);
        // INVARIANT: The table has been counted.
        Some(Self { usage, table })
    }

    /// Returns whether there is room for the bytes of a packet. [`Self::hold`] may exceed the
    /// limits by the rest of the `truesize` of its buffer.
    pub fn has_room_for(&self, skb: &RxSkb) -> bool {
        self.usage.has_room_to_keep(skb.len())
    }

    /// Counts a packet, or a copy of it if it shares memory or has much more than it needs.
    ///
    /// # Errors
    ///
    /// Returns the packet if there is no memory for a copy.
    pub fn hold(&self, skb: RxSkb) -> Result<HeldSkb, RxSkb> {
        // SAFETY: `into_raw` gives up a valid buffer. `compact` returns that buffer or a linear
        // copy of it, which it gives up. `from_raw` takes it.
        let (size, result) = unsafe {
            let result = compact(skb.into_raw());
            let (Ok(skb) | Err(skb)) = result;
            (
                size_of(skb),
                result
                    .map(|skb| RxSkb::from_raw(skb))
                    .map_err(|skb| RxSkb::from_raw(skb)),
            )
        };
        let skb = result?;
        self.usage.count_kept(size);
        let usage = self.usage.clone();
        // INVARIANT: The buffer has been counted.
        Ok(HeldSkb {
            skb: Some(skb),
            usage,
        })
    }
}

impl Drop for HeldPackets {
    fn drop(&mut self) {
        self.usage.uncount_kept(self.table);
    }
}

/// A packet that is kept. When it is dropped, it is freed and no longer counted.
///
/// # Invariants
///
/// `usage` counts the `truesize` of `skb`, which does not change meanwhile.
pub struct HeldSkb {
    skb: Option<RxSkb>,
    usage: Arc<QueueUsage>,
}

impl HeldSkb {
    /// Returns the packet, which is no longer counted.
    pub fn release(mut self) -> Option<RxSkb> {
        self.take()
    }

    fn take(&mut self) -> Option<RxSkb> {
        let skb = self.skb.take()?.into_raw();
        // SAFETY: `into_raw` gives up a valid buffer, which `from_raw` takes.
        let (size, skb) = unsafe { (size_of(skb), RxSkb::from_raw(skb)) };
        self.usage.uncount_kept(size);
        Some(skb)
    }
}

impl Drop for HeldSkb {
    fn drop(&mut self) {
        let _ = self.take();
    }
}
