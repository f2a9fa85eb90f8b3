// SPDX-License-Identifier: GPL-2.0

//! How many packets a sender may have on their way through this host.
//!
//! A packet may wait in a queueing discipline or a device's ring for long, and outlive the QP that
//! sent it. So it holds nothing but a [`TxCount`], which knows how to find the QP if it is still
//! there.

use core::{ops::Deref, ptr};

use kernel::{
    list::{List, ListArc},
    prelude::*,
    sync::{
        atomic::{ordering, Atomic},
        Arc,
    },
    time::{delay::fsleep, msecs_to_jiffies, Delta},
};

use super::{
    in_flight::{Departure, Place, Slot, Slots, RECOVERY_MS},
    reception::Reception,
    sender_socket::SenderSockets,
};
use crate::{
    bindings,
    device::gid::Network,
    support::sync::{new_irq_spinlock, smp_mb, wait_for_readers, wait_for_tasks, IrqSpinLock},
};

/// Wakes a sender that waits for credit.
pub trait Wake: Send + Sync + 'static {
    /// Called once half of the credit is back.
    ///
    /// # Context
    ///
    /// Any but hard interrupts, perhaps deep in the network stack: must neither sleep nor send.
    fn wake(&self);
}

/// All credits of the module, and the sockets that the packets have in common.
#[pin_data]
pub struct TxLimits {
    #[pin]
    live: IrqSpinLock<Live>,
    sockets: SenderSockets,
}

struct Live {
    /// The slots of all senders, but for those that [`TxLimits::drain`] has taken.
    slots: List<Slots>,
    /// The slots of senders that have ended, while they have packets.
    ended: List<Slots>,
    /// How many credits there are.
    count: usize,
}

impl Live {
    fn enter(&mut self, slots: ListArc<Slots>) {
        self.slots.push_back(slots);
        self.count = self.count.wrapping_add(1);
    }

    /// Strikes the slots of a credit that goes, and returns them if they are in a list.
    fn strike(&mut self, slots: &Slots) -> Option<ListArc<Slots>> {
        self.count = self.count.wrapping_sub(1);
        self.remove(slots)
    }

    /// Moves the slots of a sender that ends.
    fn end(&mut self, slots: &Slots) {
        if let Some(slots) = self.remove(slots) {
            slots.set_place(Place::Ended);
            self.ended.push_back(slots);
        }
    }

    fn remove(&mut self, slots: &Slots) -> Option<ListArc<Slots>> {
        let list = match slots.place() {
            Place::Sender => &mut self.slots,
            Place::Ended => &mut self.ended,
            Place::Taken => return None,
        };
        // SAFETY: They are in this list or in none: whoever moves them says so in their place.
        unsafe { list.remove(slots) }
    }

    /// Looks at one of the senders that have ended, for packets that were freed without a call of their destructor. The result
    /// is to be dropped without the lock: it may be the sender's last credit.
    fn look_at_ended(&mut self) -> Option<Arc<TxCount>> {
        let slots = self.ended.pop_front()?;
        // Of two references to a credit the one that is dropped here is never the last.
        let credit = slots.recover().last();
        self.ended.push_back(slots);
        credit
    }
}

impl TxLimits {
    /// None yet. Process context; sleeps. Whoever makes them drops them last, after [`Self::drain`].
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new() -> Result<Arc<Self>> {
        let live = Live {
            slots: List::new(),
            ended: List::new(),
            count: 0,
        };
        let credits = try_pin_init!(Self {
            live <- new_irq_spinlock!(live, "rrxe_tx_limits"),
            sockets: SenderSockets::new()?,
        });
        Arc::pin_init(credits, GFP_KERNEL)
    }

    /// Makes what could not be made before: if module and IPv6 are parts of the kernel, the module comes first. Process
    /// context; sleeps. To be called before packets are sent.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn complete(&self) -> Result {
        self.sockets.complete()
    }

    /// Waits until no packet holds a credit and no code of this module runs as a destructor of packets. Packets that are still in
    /// flight, in queues of network namespaces perhaps, hold none any more.
    ///
    /// # Context
    ///
    /// Process; sleeps. All senders have ended, or end without another call.
    pub fn drain(&self) {
        let mut taken = List::new();
        while let Some(slots) = self.take_back() {
            taken.push_back(slots);
        }
        if !taken.is_empty() {
            // A destructor that found its packet taken still looks at the slot and at the credit.
            wait_for_destructors();
        }
        while let Some(slots) = taken.pop_front() {
            slots.release();
        }
        while self.live.lock().count != 0 {
            fsleep(Delta::from_millis(1));
        }
        wait_for_destructors();
    }

    /// Takes back the packets of a sender. `None` if those of all were taken.
    fn take_back(&self) -> Option<ListArc<Slots>> {
        let mut live = self.live.lock();
        let slots = live.slots.pop_front().or_else(|| live.ended.pop_front())?;
        // SAFETY: For a packet that is taken `give_back` takes the lock, which is held here, before it returns.
        unsafe { slots.take_back(give_back) };
        Some(slots)
    }

    /// Looks for packets of senders that have ended. Any context.
    fn look_at_ended(&self) {
        // More than can end between two calls.
        for _ in 0..2 {
            let credit = self.live.lock().look_at_ended();
            drop(credit);
        }
    }

    /// Waits until no call of [`Self::take_back`] runs that began before.
    fn wait_for_take_back(&self) {
        drop(self.live.lock());
    }
}

/// Waits for destructors of packets that were called before. Process context; sleeps.
fn wait_for_destructors() {
    // Those in softirq.
    wait_for_readers();
    // Those in a task, which may be preempted there, outside of RCU's read-side sections: `__rtnl_unlock()`,
    // net/core/rtnetlink.c, frees the packets of a queueing discipline that was removed.
    wait_for_tasks();
}

/// How a sender goes on when its credit is used up.
#[derive(Clone, Copy)]
pub enum Excess {
    /// It waits.
    Waits,
    /// It waits until half of its packets were sent this many milliseconds ago or earlier. Until it gets some back, it sends
    /// further packets, which hold no credit. For senders with many receivers, one of which may leave packets in a queue.
    GoesAfter(u32),
}

/// The credit of a sender, which ends when this is dropped. Packets that are still in flight keep theirs.
pub struct TxLimit(Arc<TxCount>);

impl TxLimit {
    /// TxCount for `limit` packets, one of `all`; `excess` tells what the sender does beyond these. `waker` is told when the
    /// credit was used up and comes back.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(limit: u32, excess: Excess, waker: impl Wake, all: &Arc<TxLimits>) -> Result<Self> {
        let slots = Slots::new(limit)?;
        let waker = KBox::new(waker, GFP_KERNEL_ACCOUNT)?;
        let credit = TxCount {
            in_flight: Atomic::new(0),
            limit,
            excess,
            waiting: Atomic::new(false),
            reception: Reception::new(),
            waker,
            slots: slots.clone_arc(),
            all: all.clone(),
        };
        all.live.lock().enter(slots);
        all.look_at_ended();
        Ok(Self(Arc::new(credit, GFP_KERNEL_ACCOUNT)?))
    }
}

impl Deref for TxLimit {
    type Target = Arc<TxCount>;

    fn deref(&self) -> &Arc<TxCount> {
        &self.0
    }
}

impl Drop for TxLimit {
    fn drop(&mut self) {
        let TxCount { all, slots, .. } = &*self.0;
        all.live.lock().end(slots);
        all.look_at_ended();
    }
}

/// A sender's bound on packets in flight.
pub struct TxCount {
    in_flight: Atomic<u32>,
    limit: u32,
    excess: Excess,
    waiting: Atomic<bool>,
    reception: Reception,
    waker: KBox<dyn Wake>,
    slots: Arc<Slots>,
    all: Arc<TxLimits>,
}

impl TxCount {
    /// Whether another packet may be sent. If not, the waker will be called, but for packets that were freed without a call of
    /// their destructor (`in_flight.rs`); so the sender asks again after [`Self::patience`]. One caller at a time.
    pub fn available(&self) -> bool {
        if self.has_room() || self.recover() || self.is_stuck() {
            return true;
        }
        self.waiting.store(true, ordering::Relaxed);
        // Pairs with the one in `put`: either that sees the wish, or we see what came back.
        smp_mb();
        self.has_room()
    }

    fn has_room(&self) -> bool {
        // Pairs with `put`: the slot is free, too.
        self.in_flight.load(ordering::Acquire) < self.limit
    }

    /// Counts packets as gone that were freed without a call of their destructor. Whether there were any.
    fn recover(&self) -> bool {
        if !self.slots.is_time_to_recover() {
            return false;
        }
        let recovered = self.slots.recover().count() as u32;
        self.in_flight.fetch_sub(recovered, ordering::Relaxed);
        recovered != 0
    }

    /// Whether the sender goes on without credit.
    fn is_stuck(&self) -> bool {
        let Excess::GoesAfter(patience) = self.excess else {
            return false;
        };
        let age = msecs_to_jiffies(patience) as u32;
        self.slots.older_than(age) >= self.limit as usize / 2
    }

    /// Milliseconds after which a sender without credit asks again, for [`Self::available`] may say yes without a call of the
    /// waker.
    pub fn patience(&self) -> u32 {
        match self.excess {
            Excess::Waits => RECOVERY_MS,
            Excess::GoesAfter(milliseconds) => milliseconds,
        }
    }

    /// The socket on whose behalf packets of a version of IP are sent, for C. Valid as long as `self`, or null.
    pub(super) fn socket(&self, network: Network) -> *mut bindings::sock {
        self.all.sockets.of(network)
    }

    /// Packets in flight. Any context.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(ordering::Relaxed)
    }

    /// Whether no packet is in flight. This host may still be handling some that it sent to itself. Any context; one caller at a
    /// time.
    pub fn is_whole(&self) -> bool {
        // Pairs with the one in `put`: what `Reception` notes before is seen.
        let is_whole = || self.in_flight.load(ordering::Acquire) == 0;
        is_whole() || (self.recover() && is_whole())
    }

    /// Whether this host has handled all packets that it sent to itself. It may say no when it has, but not for ever.
    /// Bottom halves off; the sender asks when [`Self::is_whole`], and sends nothing meanwhile.
    pub fn reception_is_over(&self) -> bool {
        self.reception.is_over()
    }

    /// Makes a clone of `skb`, which holds the credit until it is destroyed, and counts it as sent. One caller at a time. The
    /// result is to be sent instead of `skb`, which is given up. It is `skb` itself if the credit is used up and the sender goes
    /// on all the same.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if the credit is used up and the sender waits without an end, `ENOMEM`. `skb` is still the caller's.
    ///
    /// # Safety
    ///
    /// The caller owns `skb`, which `alloc_skb_fclone()` made, and which has no clone, destructor or socket.
    pub(super) unsafe fn charge(
        self: &Arc<Self>,
        skb: *mut bindings::sk_buff,
    ) -> Result<*mut bindings::sk_buff> {
        let Some(slot) = self.slots.free() else {
            return match self.excess {
                Excess::GoesAfter(_) => Ok(skb),
                Excess::Waits => Err(EAGAIN),
            };
        };
        // Nobody reads the original's bytes, so whoever has the clone may write headers. The network stack lets GRO take the
        // fragments that both share (`skb_gro_receive()`, net/core/gro.c): the last of the two frees those that the shared info
        // names then.
        // SAFETY: The caller owns the buffer, which has no clone.
        unsafe { bindings::__skb_header_release(skb) };
        // SAFETY: The caller owns the buffer.
        let clone = unsafe { bindings::skb_clone(skb, bindings::GFP_ATOMIC) };
        if clone.is_null() {
            return Err(ENOMEM);
        }
        // SAFETY: The first clone of such a buffer is in one object with it (`skb_clone()`, net/core/skbuff.c).
        unsafe { slot.enter(clone, skb, self) };
        self.in_flight.fetch_add(1, ordering::Relaxed);
        // SAFETY: The clone is ours.
        let shared = unsafe { bindings::skb_shinfo(clone) };
        let slot = ptr::from_ref(slot).cast_mut();
        // SAFETY: The shared info lives as long as its buffer; this field is its owner's.
        unsafe { (*shared).__bindgen_anon_2.destructor_arg = slot.cast() };
        // SAFETY: The clone is ours. `destructor_arg` is its slot.
        unsafe { bindings::skb_set_destructor(clone, Some(give_back)) };
        Ok(clone)
    }

    /// A softirq of this host is about to handle a packet, which still counts as one in flight.
    fn note_reception(&self) {
        let is_last = self.in_flight.load(ordering::Relaxed) <= 1;
        self.reception.begins(is_last);
    }

    /// Counts a packet as gone.
    fn put(&self) {
        let before = self.in_flight.fetch_sub(1, ordering::Full);
        smp_mb();
        if before.saturating_sub(1) > self.limit / 2 || !self.waiting.load(ordering::Relaxed) {
            return;
        }
        if self.waiting.xchg(false, ordering::Full) {
            self.waker.wake();
        }
    }
}

impl Drop for TxCount {
    fn drop(&mut self) {
        let slots = self.all.live.lock().strike(&self.slots);
        // Without the lock.
        drop(slots);
    }
}

/// The destructor of packets that hold a credit.
///
/// # Safety
///
/// `destructor_arg` of `skb` must be the packet's slot, which owns the credit until [`Slot::leave`] or, if this returns
/// [`Departure::Taken`], until [`wait_for_destructors`] has returned.
unsafe extern "C" fn give_back(skb: *mut bindings::sk_buff) {
    // SAFETY: The network stack destroys valid buffers.
    let shared = unsafe { bindings::skb_shinfo(skb) };
    // SAFETY: As above. A softirq that receives a packet sets this; it is zero in one that is only sent.
    let received = unsafe { bindings::skb_ingress_index(skb) } != 0;
    // SAFETY: The shared info lives as long as its buffer.
    let slot = unsafe { (*shared).__bindgen_anon_2.destructor_arg }.cast::<Slot>();
    // SAFETY: The credit owns its slots, and lives by the caller's promise.
    let slot = unsafe { &*slot };
    // SAFETY: By the caller's promise.
    let credit = unsafe { slot.credit() };
    if received {
        credit.note_reception();
    }
    match slot.leave(skb) {
        Departure::Over(credit) => credit.put(),
        Departure::Noted => {}
        // The slot keeps the credit.
        Departure::Taken => credit.all.wait_for_take_back(),
    }
}

#[kunit_tests(rrxe_credit)]
mod tests {
    use super::*;

    struct NoSender;

    impl Wake for NoSender {
        fn wake(&self) {}
    }

    fn packet() -> Result<*mut bindings::sk_buff> {
        // SAFETY: No requirements.
        let skb = unsafe { bindings::alloc_skb_fclone(64, bindings::GFP_KERNEL) };
        if skb.is_null() {
            Err(ENOMEM)
        } else {
            Ok(skb)
        }
    }

    fn free(skb: *mut bindings::sk_buff) {
        // SAFETY: The callers own the buffer.
        unsafe { bindings::consume_skb(skb) };
    }

    /// A packet on its way.
    fn hand_over(credit: &Arc<TxCount>) -> Result<*mut bindings::sk_buff> {
        // SAFETY: The packet is ours.
        unsafe { credit.charge(packet()?) }
    }

    /// Has a packet end without a call of its destructor, as GRO does.
    fn lose(credit: &Arc<TxCount>) -> Result {
        let sent = hand_over(credit)?;
        // SAFETY: The packet is ours.
        unsafe { bindings::skb_set_destructor(sent, None) };
        free(sent);
        Ok(())
    }

    #[test]
    fn goes_once_the_packets_of_ended_senders_are_gone() -> Result {
        let credits = TxLimits::new()?;
        let count = || credits.live.lock().count;
        let ended = TxLimit::new(4, Excess::Waits, NoSender, &credits)?;
        lose(&ended)?;
        drop(ended);
        assert_eq!(count(), 0);
        let ended = TxLimit::new(4, Excess::Waits, NoSender, &credits)?;
        lose(&ended)?;
        let (kept, lost) = (hand_over(&ended)?, hand_over(&ended)?);
        drop(ended);
        assert_eq!(count(), 1);
        // SAFETY: The packet is ours.
        unsafe { bindings::skb_set_destructor(lost, None) };
        free(lost);
        free(kept);
        assert_eq!(count(), 1);
        drop(TxLimit::new(4, Excess::Waits, NoSender, &credits)?);
        assert_eq!(count(), 0);
        credits.drain();
        Ok(())
    }

    #[test]
    fn comes_back_with_its_packets() -> Result {
        let credits = TxLimits::new()?;
        let credit = TxLimit::new(2, Excess::Waits, NoSender, &credits)?;
        let packets = [packet()?, packet()?, packet()?];
        // SAFETY: The packets are ours.
        let [first, second, third] = packets.map(|skb| unsafe { credit.charge(skb) });
        assert_eq!(third, Err(EAGAIN));
        assert!(!credit.available());
        free(second?);
        assert!(credit.available());
        // SAFETY: As above.
        let third = unsafe { credit.charge(packets[2]) };
        free(first?);
        free(third?);
        assert!(credit.is_whole());
        drop(credit);
        credits.drain();
        Ok(())
    }

    #[test]
    fn lets_packets_go_beyond_it() -> Result {
        let credits = TxLimits::new()?;
        let credit = TxLimit::new(1, Excess::GoesAfter(0), NoSender, &credits)?;
        let mut sent = [ptr::null_mut(); 3];
        for sent in &mut sent {
            assert!(credit.available());
            *sent = hand_over(&credit)?;
            assert_eq!(credit.in_flight(), 1);
        }
        sent.map(free);
        assert!(credit.is_whole());
        drop(credit);
        credits.drain();
        Ok(())
    }

    #[test]
    fn is_taken_from_packets_that_stay() -> Result {
        let credits = TxLimits::new()?;
        let credit = TxLimit::new(2, Excess::Waits, NoSender, &credits)?;
        let mut sent = [ptr::null_mut(); 2];
        for sent in &mut sent {
            *sent = hand_over(&credit)?;
        }
        drop(credit);
        credits.drain();
        sent.map(free);
        Ok(())
    }

    #[test]
    fn is_taken_from_packets_that_end_without_their_destructor() -> Result {
        let credits = TxLimits::new()?;
        let credit = TxLimit::new(2, Excess::Waits, NoSender, &credits)?;
        lose(&credit)?;
        lose(&credit)?;
        assert!(!credit.available());
        drop(credit);
        credits.drain();
        Ok(())
    }

    #[test]
    fn comes_back_from_packets_that_end_without_their_destructor() -> Result {
        let credits = TxLimits::new()?;
        let credit = TxLimit::new(3, Excess::Waits, NoSender, &credits)?;
        let still_there = hand_over(&credit)?;
        lose(&credit)?;
        lose(&credit)?;
        fsleep(Delta::from_millis(i64::from(RECOVERY_MS) + 20));
        assert!(credit.available());
        assert_eq!(credit.in_flight(), 1);
        free(still_there);
        assert!(credit.is_whole());
        drop(credit);
        credits.drain();
        Ok(())
    }
}
