// SPDX-License-Identifier: GPL-2.0

//! Tx limits: bounds on the number of packets that a sender, such as a QP, may have in flight in
//! this host.
//!
//! A packet may wait for long in a queueing discipline or in a device's ring, and outlive the QP
//! that sent it. So a packet holds a reference to its sender's [`TxCount`] only. The [`Wake`] of
//! the `TxCount` finds the QP if that still exists.

use core::{ops::Deref, ptr};

use kernel::{
    prelude::*,
    sync::{
        atomic::{ordering, Atomic},
        barrier::{smp_mb, Full},
        Arc,
    },
    time::msecs_to_jiffies,
};

pub use super::senders::TxLimits;
use super::{
    in_flight::{Departure, Slot, Slots, RECOVERY_MS},
    reception::Reception,
};
use crate::{bindings, device::gid::Network};

/// Waker of a sender that waits until packets have left.
pub trait Wake: Send + Sync + 'static {
    /// Wakes the sender. Called when no more than half of the tx limit is in flight again.
    ///
    /// # Context
    ///
    /// Any context but hard interrupts, possibly deep in the network stack. Must neither sleep nor
    /// send.
    fn wake(&self);
}

/// The behaviour of a sender that has reached its tx limit.
#[derive(Clone, Copy)]
pub enum Beyond {
    /// The sender waits.
    Waits,
    /// The sender waits until half of its packets are at least this many milliseconds old. It then
    /// sends further packets, which are not counted, until some of the counted packets have left.
    ///
    /// For senders with several receivers, one of which may leave packets in a queue.
    SendsAfter(u32),
}

/// The tx limit of a sender. Dropping it ends the sender. Packets in flight stay counted.
pub struct TxLimit(Arc<TxCount>);

impl TxLimit {
    /// Creates a tx limit of `limit` packets, and adds it to `all`.
    ///
    /// `beyond` is the behaviour of the sender at the limit. `waker` is called when packets have
    /// left, after [`TxCount::available`] has returned `false`. Must be called in process context;
    /// may sleep.
    ///
    /// # Errors
    ///
    /// Returns `ENOMEM` if there is no memory.
    pub fn new(limit: u32, beyond: Beyond, waker: impl Wake, all: &Arc<TxLimits>) -> Result<Self> {
        let slots = Slots::new(limit)?;
        let waker = KBox::new(waker, GFP_KERNEL_ACCOUNT)?;
        let tx_count = TxCount {
            in_flight: Atomic::new(0),
            limit,
            beyond,
            waiting: Atomic::new(false),
            reception: Reception::new(),
            waker,
            slots: slots.clone_arc(),
            all: all.clone(),
        };
        all.senders.lock().register(slots);
        all.recover_ended();
        Ok(Self(Arc::new(tx_count, GFP_KERNEL_ACCOUNT)?))
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
        all.senders.lock().end(slots);
        all.recover_ended();
    }
}

/// The count of a sender's packets in flight, with its limit. Packets hold references to it.
pub struct TxCount {
    /// Number of packets in flight.
    in_flight: Atomic<u32>,
    /// Maximum number of packets in flight.
    limit: u32,
    beyond: Beyond,
    /// Whether the sender waits for a call of the waker.
    waiting: Atomic<bool>,
    /// Reception of the packets that this host sends to itself.
    reception: Reception,
    waker: KBox<dyn Wake>,
    slots: Arc<Slots>,
    /// The set that the sender's tx limit is an element of.
    all: Arc<TxLimits>,
}

impl TxCount {
    /// Returns whether another packet may be sent.
    ///
    /// If not, the waker is called later. But a packet that is freed without a call of its
    /// destructor (`in_flight.rs`) causes no call of the waker. So the sender must ask again after
    /// [`Self::retry_ms`]. Callable in any context, by one caller at a time.
    #[inline]
    pub fn available(&self) -> bool {
        self.has_room() || self.makes_room()
    }

    /// Works as [`Self::available`] if the limit is reached.
    #[cold]
    #[inline(never)]
    fn makes_room(&self) -> bool {
        if self.recover() || self.may_exceed() {
            return true;
        }
        self.waiting.store(true, ordering::Relaxed);
        // The barrier pairs with that in `subtract`: either `subtract` sees `waiting`, or
        // `has_room` below sees the reduced count.
        smp_mb(Full);
        self.has_room()
    }

    /// Returns whether fewer packets than the limit are in flight.
    #[inline]
    fn has_room(&self) -> bool {
        // The acquire pairs with `subtract`: a slot is free, too.
        self.in_flight.load(ordering::Acquire) < self.limit
    }

    /// Subtracts packets that were freed without a call of their destructor. Returns whether there
    /// were any.
    fn recover(&self) -> bool {
        if !self.slots.is_time_to_recover() {
            return false;
        }
        let packets = self.slots.recover().map(|freed| freed.packets);
        let recovered = packets.fold(0, u32::wrapping_add);
        self.in_flight.fetch_sub(recovered, ordering::Relaxed);
        recovered != 0
    }

    /// Returns whether the sender may go beyond its limit ([`Beyond::SendsAfter`]).
    fn may_exceed(&self) -> bool {
        let Beyond::SendsAfter(retry_ms) = self.beyond else {
            return false;
        };
        let age = msecs_to_jiffies(retry_ms) as u32;
        self.slots.older_than(age) >= self.limit as usize / 2
    }

    /// Returns the number of milliseconds after which a sender at its limit must call
    /// [`Self::available`] again. That may then return `true` although the waker was not called.
    pub fn retry_ms(&self) -> u32 {
        match self.beyond {
            Beyond::Waits => RECOVERY_MS,
            Beyond::SendsAfter(milliseconds) => milliseconds,
        }
    }

    /// Returns the socket to pass to the IP layer with packets of this IP version. It is valid as
    /// long as `self`, or null.
    pub(super) fn socket(&self, network: Network) -> *mut bindings::sock {
        self.all.sockets.of(network)
    }

    /// Returns the number of packets that may be sent in one burst: those up to the limit, but one
    /// at least. Callable in any context.
    #[inline]
    pub fn room(&self) -> u32 {
        self.limit.saturating_sub(self.in_flight()).max(1)
    }

    /// Returns the number of packets in flight. Callable in any context.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(ordering::Relaxed)
    }

    /// Returns whether no packet is in flight. This host may still be handling packets that it sent
    /// to itself.
    ///
    /// Callable in any context, by one caller at a time.
    pub fn none_in_flight(&self) -> bool {
        // The acquire pairs with `subtract`: the preceding changes of `Reception` are seen, too.
        let none_in_flight = || self.in_flight.load(ordering::Acquire) == 0;
        none_in_flight() || (self.recover() && none_in_flight())
    }

    /// Returns whether this host has handled all packets that it sent to itself.
    ///
    /// May return `false` for some time after that. The caller must have bottom halves disabled,
    /// [`Self::none_in_flight`] must have returned `true`, and the sender must not send meanwhile.
    pub fn reception_is_over(&self) -> bool {
        self.reception.is_over()
    }

    /// Counts the buffer `skb` as `packets` packets in flight, [`Self::room`] at most, and returns
    /// a clone of it, which must be sent instead. The clone's destructor subtracts the packets. If
    /// the limit is reached and the sender may go beyond it ([`Beyond::SendsAfter`]), the result is
    /// `skb` itself. Only one caller at a time is allowed.
    ///
    /// # Errors
    ///
    /// Returns `EAGAIN` if the limit is reached and the sender may not go beyond it; `ENOMEM` if
    /// there is no memory; `EINVAL` if `alloc_skb_fclone()` did not create `skb`. The caller still
    /// owns `skb` then.
    ///
    /// # Safety
    ///
    /// The caller must own `skb`, which it gives up on success. It must have no clone, destructor
    /// or socket.
    pub(super) unsafe fn charge(
        self: &Arc<Self>,
        skb: *mut bindings::sk_buff,
        packets: u32,
    ) -> Result<*mut bindings::sk_buff> {
        let Some(slot) = self.slots.free() else {
            return match self.beyond {
                Beyond::SendsAfter(_) => Ok(skb),
                Beyond::Waits => Err(EAGAIN),
            };
        };
        // SAFETY: The caller guarantees that it owns the valid buffer (see `# Safety`).
        if !unsafe { bindings::skb_has_clone_room(skb) } {
            return Err(EINVAL);
        }
        // No code reads the bytes of the original, so the owner of the clone may write headers. The
        // network stack lets GRO take the fragments that both share (`skb_gro_receive()`,
        // net/core/gro.c): the last of the two buffers that is freed frees the fragments that the
        // shared info names then.
        // SAFETY: The caller guarantees that it owns the buffer, and that the buffer has no clone
        // (see `# Safety`).
        unsafe { bindings::__skb_header_release(skb) };
        // SAFETY: The caller guarantees that it owns the buffer (see `# Safety`).
        let clone = unsafe { bindings::skb_clone(skb, bindings::GFP_ATOMIC) };
        if clone.is_null() {
            return Err(ENOMEM);
        }
        // SAFETY: The caller gives the original up, and this function owns the clone. As was
        // checked above, `alloc_skb_fclone()` created the original. The first clone of such a
        // buffer is in one object with it (`skb_clone()`, net/core/skbuff.c).
        unsafe { slot.occupy(clone, skb, packets, self) };
        self.in_flight.fetch_add(packets, ordering::Relaxed);
        // SAFETY: This function owns the clone.
        let shared = unsafe { bindings::skb_shinfo(clone) };
        let slot = ptr::from_ref(slot).cast_mut();
        // SAFETY: The shared info is valid as long as its buffer. The field is at the disposal of
        // the buffer's owner.
        unsafe { (*shared).__bindgen_anon_2.destructor_arg = slot.cast() };
        // SAFETY: This function owns the clone, whose `destructor_arg` is its slot, as
        // `packet_destructor` requires.
        unsafe { bindings::skb_set_destructor(clone, Some(packet_destructor)) };
        Ok(clone)
    }

    /// Records that a softirq of this host is about to handle a buffer of `packets` packets, which
    /// are still counted as in flight.
    fn note_reception(&self, packets: u32) {
        let is_last = self.in_flight.load(ordering::Relaxed) <= packets;
        self.reception.record_packet(is_last);
    }

    /// Subtracts packets, and wakes the sender if it waits and no more than half of the limit is in
    /// flight.
    fn subtract(&self, packets: u32) {
        let before = self.in_flight.fetch_sub(packets, ordering::Full);
        smp_mb(Full);
        if before.saturating_sub(packets) > self.limit / 2 || !self.waiting.load(ordering::Relaxed)
        {
            return;
        }
        if self.waiting.xchg(false, ordering::Full) {
            self.waker.wake();
        }
    }
}

impl Drop for TxCount {
    fn drop(&mut self) {
        let slots = self.all.senders.lock().unregister(&self.slots);
        // The slots are dropped without the lock.
        drop(slots);
    }
}

/// The destructor of packets that are counted.
///
/// # Safety
///
/// `destructor_arg` of `skb` must be the packet's slot. The slot must hold its reference to the
/// [`TxCount`] until [`Slot::vacate`] or, if that returns [`Departure::Taken`], until
/// [`TxLimits::drain`] has waited for destructors.
pub(super) unsafe extern "C" fn packet_destructor(skb: *mut bindings::sk_buff) {
    // SAFETY: The network stack destroys valid buffers.
    let shared = unsafe { bindings::skb_shinfo(skb) };
    // SAFETY: The buffer is valid. A softirq that receives a packet sets the field, which is zero
    // in a packet that is only sent.
    let received = unsafe { bindings::skb_ingress_index(skb) } != 0;
    // SAFETY: The shared info is valid as long as its buffer.
    let slot = unsafe { (*shared).__bindgen_anon_2.destructor_arg }.cast::<Slot>();
    // SAFETY: The caller guarantees that the slot holds a reference to the `TxCount` (see
    // `# Safety`), which owns the slot.
    let slot = unsafe { &*slot };
    // SAFETY: The caller guarantees that the slot has a packet, and holds its reference to the
    // `TxCount` (see `# Safety`).
    let tx_count = unsafe { slot.tx_count() };
    if received {
        tx_count.note_reception(slot.packets());
    }
    match slot.vacate(skb) {
        Departure::Freed(freed) => freed.tx_count.subtract(freed.packets),
        Departure::Checking => {}
        // The slot keeps its reference.
        Departure::Taken => tx_count.all.wait_for_take_back(),
    }
}

#[kunit_tests(rrxe_tx_limit)]
mod tests {
    use super::*;
    use kernel::time::{delay::fsleep, Delta};

    struct NoSender;

    impl Wake for NoSender {
        fn wake(&self) {}
    }

    fn packet() -> Result<*mut bindings::sk_buff> {
        // SAFETY: The function has no requirements.
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

    /// Returns a packet in flight.
    fn send_packet(tx_count: &Arc<TxCount>) -> Result<*mut bindings::sk_buff> {
        // SAFETY: `packet` has just created the buffer with `alloc_skb_fclone()`.
        unsafe { tx_count.charge(packet()?, 1) }
    }

    /// Frees a packet in flight without a call of its destructor, as GRO does.
    fn free_without_destructor(tx_count: &Arc<TxCount>) -> Result {
        let sent = send_packet(tx_count)?;
        // SAFETY: The test owns the packet.
        unsafe { bindings::skb_set_destructor(sent, None) };
        free(sent);
        Ok(())
    }

    #[test]
    fn ends_with_the_packets_of_an_ended_sender() -> Result {
        let tx_limits = TxLimits::new()?;
        let count = || tx_limits.senders.lock().count;
        let ended = TxLimit::new(4, Beyond::Waits, NoSender, &tx_limits)?;
        free_without_destructor(&ended)?;
        drop(ended);
        assert_eq!(count(), 0);
        let ended = TxLimit::new(4, Beyond::Waits, NoSender, &tx_limits)?;
        free_without_destructor(&ended)?;
        let (kept, lost) = (send_packet(&ended)?, send_packet(&ended)?);
        drop(ended);
        assert_eq!(count(), 1);
        // SAFETY: The test owns the packet.
        unsafe { bindings::skb_set_destructor(lost, None) };
        free(lost);
        free(kept);
        assert_eq!(count(), 1);
        drop(TxLimit::new(4, Beyond::Waits, NoSender, &tx_limits)?);
        assert_eq!(count(), 0);
        tx_limits.drain();
        Ok(())
    }

    #[test]
    fn counts_packets_until_they_are_freed() -> Result {
        let tx_limits = TxLimits::new()?;
        let tx_limit = TxLimit::new(2, Beyond::Waits, NoSender, &tx_limits)?;
        let packets = [packet()?, packet()?, packet()?];
        // SAFETY: `packet` has just created the buffers with `alloc_skb_fclone()`.
        let [first, second, third] = packets.map(|skb| unsafe { tx_limit.charge(skb, 1) });
        assert_eq!(third, Err(EAGAIN));
        assert!(!tx_limit.available());
        free(second?);
        assert!(tx_limit.available());
        // SAFETY: `packet` created the buffer with `alloc_skb_fclone()`, and the failed call left
        // it to the test.
        let third = unsafe { tx_limit.charge(packets[2], 1) };
        free(first?);
        free(third?);
        assert!(tx_limit.none_in_flight());
        drop(tx_limit);
        tx_limits.drain();
        Ok(())
    }

    #[test]
    fn lets_a_sender_exceed_the_limit() -> Result {
        let tx_limits = TxLimits::new()?;
        let tx_limit = TxLimit::new(1, Beyond::SendsAfter(0), NoSender, &tx_limits)?;
        let mut sent = [ptr::null_mut(); 3];
        for sent in &mut sent {
            assert!(tx_limit.available());
            *sent = send_packet(&tx_limit)?;
            assert_eq!(tx_limit.in_flight(), 1);
        }
        sent.map(free);
        assert!(tx_limit.none_in_flight());
        drop(tx_limit);
        tx_limits.drain();
        Ok(())
    }

    #[test]
    fn drain_takes_packets_back() -> Result {
        let tx_limits = TxLimits::new()?;
        let tx_limit = TxLimit::new(2, Beyond::Waits, NoSender, &tx_limits)?;
        let mut sent = [ptr::null_mut(); 2];
        for sent in &mut sent {
            *sent = send_packet(&tx_limit)?;
        }
        drop(tx_limit);
        tx_limits.drain();
        sent.map(free);
        Ok(())
    }

    #[test]
    fn drain_takes_back_packets_that_were_freed_without_destructor() -> Result {
        let tx_limits = TxLimits::new()?;
        let tx_limit = TxLimit::new(2, Beyond::Waits, NoSender, &tx_limits)?;
        free_without_destructor(&tx_limit)?;
        free_without_destructor(&tx_limit)?;
        assert!(!tx_limit.available());
        drop(tx_limit);
        tx_limits.drain();
        Ok(())
    }

    #[test]
    fn recovers_packets_that_were_freed_without_destructor() -> Result {
        let tx_limits = TxLimits::new()?;
        let tx_limit = TxLimit::new(3, Beyond::Waits, NoSender, &tx_limits)?;
        let still_there = send_packet(&tx_limit)?;
        free_without_destructor(&tx_limit)?;
        free_without_destructor(&tx_limit)?;
        fsleep(Delta::from_millis(i64::from(RECOVERY_MS) + 20));
        assert!(tx_limit.available());
        assert_eq!(tx_limit.in_flight(), 1);
        free(still_there);
        assert!(tx_limit.none_in_flight());
        drop(tx_limit);
        tx_limits.drain();
        Ok(())
    }
}
