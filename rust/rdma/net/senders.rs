// SPDX-License-Identifier: GPL-2.0

//! The senders of the module, such as QPs, whose packets in flight are counted (`tx_limit.rs`).

use kernel::{
    list::{List, ListArc},
    prelude::*,
    sync::Arc,
    time::{delay::fsleep, Delta},
};

use super::{
    in_flight::{Slots, Stage},
    sender_socket::SenderSockets,
    tx_limit::{packet_destructor, TxCount},
};
use crate::support::sync::{new_irq_spinlock, wait_for_readers, wait_for_tasks, IrqSpinLock};

/// All tx limits of the module, and the sockets that their packets are sent with.
#[pin_data]
pub struct TxLimits {
    #[pin]
    pub(super) senders: IrqSpinLock<Senders>,
    pub(super) sockets: SenderSockets,
}

/// The senders that have packets in flight or may send.
pub(super) struct Senders {
    /// The slots of senders that have not ended, except those that [`TxLimits::drain`] has taken.
    slots: List<Slots>,
    /// The slots of senders that have ended, as long as they have packets.
    ended: List<Slots>,
    /// Number of [`TxCount`]s.
    pub(super) count: usize,
}

impl Senders {
    /// Registers the slots of a new sender.
    pub(super) fn register(&mut self, slots: ListArc<Slots>) {
        self.slots.push_back(slots);
        self.count = self.count.wrapping_add(1);
    }

    /// Unregisters the slots of a `TxCount` that is dropped, and returns them if they are in a
    /// list.
    pub(super) fn unregister(&mut self, slots: &Slots) -> Option<ListArc<Slots>> {
        self.count = self.count.wrapping_sub(1);
        self.remove(slots)
    }

    /// Moves the slots of a sender that ends.
    pub(super) fn end(&mut self, slots: &Slots) {
        if let Some(slots) = self.remove(slots) {
            slots.set_stage(Stage::Ended);
            self.ended.push_back(slots);
        }
    }

    /// Takes slots out of the list that their stage names.
    fn remove(&mut self, slots: &Slots) -> Option<ListArc<Slots>> {
        let list = match slots.stage() {
            Stage::Sender => &mut self.slots,
            Stage::Ended => &mut self.ended,
            Stage::Taken => return None,
        };
        // SAFETY: The slots are in this list or in none: each function that moves slots to another
        // list sets their stage.
        unsafe { list.remove(slots) }
    }

    /// Searches one sender that has ended for packets that were freed without a call of their
    /// destructor.
    ///
    /// The caller drops the result without the lock, since it may be the last reference to the
    /// sender's `TxCount`.
    fn recover_ended(&mut self) -> Option<Arc<TxCount>> {
        let slots = self.ended.pop_front()?;
        // All references but the last are dropped here, each after the next one was taken. So none
        // of them is the last one to the `TxCount`.
        let freed = slots.recover().last();
        self.ended.push_back(slots);
        freed.map(|freed| freed.tx_count)
    }
}

impl TxLimits {
    /// Creates an empty set of tx limits. Must be called in process context; sleeps.
    ///
    /// The creator calls [`Self::drain`] and then drops the last reference.
    ///
    /// # Errors
    ///
    /// Returns `ENOMEM` or `ENFILE` if there is no memory.
    pub fn new() -> Result<Arc<Self>> {
        let senders = Senders {
            slots: List::new(),
            ended: List::new(),
            count: 0,
        };
        let tx_limits = try_pin_init!(Self {
            senders <- new_irq_spinlock!(senders, "rrxe_tx_limits"),
            sockets: SenderSockets::new()?,
        });
        Arc::pin_init(tx_limits, GFP_KERNEL)
    }

    /// Creates the IPv6 socket, if that was not possible before.
    ///
    /// If both the module and IPv6 are built into the kernel, the module is initialised first. Must
    /// be called before packets are sent, in process context; sleeps.
    ///
    /// # Errors
    ///
    /// Returns `ENOBUFS` or `ENFILE` if there is no memory.
    pub fn complete(&self) -> Result {
        self.sockets.complete()
    }

    /// Waits until no packet holds a reference to a [`TxCount`], and no function of this module
    /// runs as a destructor of packets.
    ///
    /// Packets that are still in flight, such as those in queues of network namespaces, hold no
    /// reference afterwards.
    ///
    /// # Context
    ///
    /// Process context; sleeps. Each sender must have ended, or must end while this function waits.
    pub fn drain(&self) {
        let mut taken = List::new();
        while let Some(slots) = self.take_back() {
            taken.push_back(slots);
        }
        if !taken.is_empty() {
            // A destructor that finds its packet taken back still accesses the slot and the
            // `TxCount`.
            wait_for_destructors();
        }
        while let Some(slots) = taken.pop_front() {
            slots.release();
        }
        while self.senders.lock().count != 0 {
            fsleep(Delta::from_millis(1));
        }
        wait_for_destructors();
    }

    /// Takes the packets of one sender back: replaces their destructors ([`Slots::take_back`]).
    /// Returns `None` if the packets of all senders were taken back.
    fn take_back(&self) -> Option<ListArc<Slots>> {
        let mut senders = self.senders.lock();
        let slots = senders
            .slots
            .pop_front()
            .or_else(|| senders.ended.pop_front())?;
        // SAFETY: If `Slot::vacate` returns `Departure::Taken` to a call of `packet_destructor`,
        // that call takes the lock before it returns. This function holds the lock.
        unsafe { slots.take_back(packet_destructor) };
        Some(slots)
    }

    /// Searches senders that have ended for packets that were freed without a call of their
    /// destructor. Callable in any context.
    pub(super) fn recover_ended(&self) {
        // Searches two of them, since at most one sender ends between two calls.
        for _ in 0..2 {
            let tx_count = self.senders.lock().recover_ended();
            drop(tx_count);
        }
    }

    /// Waits for calls of [`Self::take_back`] that began before this call.
    pub(super) fn wait_for_take_back(&self) {
        drop(self.senders.lock());
    }
}

/// Waits for destructors of packets that were called before this call. Must be called in process
/// context; sleeps.
fn wait_for_destructors() {
    // Waits for destructors in softirq.
    wait_for_readers();
    // Waits for destructors in a task, which may be preempted there outside of RCU read-side
    // sections. For example, `__rtnl_unlock()` (net/core/rtnetlink.c) frees the packets of a
    // queueing discipline that was removed.
    wait_for_tasks();
}
