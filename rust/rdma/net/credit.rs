// SPDX-License-Identifier: GPL-2.0

//! How many packets a sender may have on their way through this host.
//!
//! A packet may wait in a queueing discipline or a device's ring for long, and outlive the QP that
//! sent it. So it holds nothing but a [`Credit`], which knows how to find the QP if it is still
//! there.

use core::ptr::NonNull;

use kernel::{
    prelude::*,
    sync::{
        atomic::{ordering, Atomic},
        Arc, SetOnce,
    },
    time::{delay::fsleep, Delta},
    types::ForeignOwnable,
};

use super::reception::Reception;
use crate::{
    bindings,
    module::InUse,
    net::path_mtu::ProbeSockets,
    random,
    sync::{smp_mb, wait_for_readers, wait_for_tasks},
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

/// All credits there are, with their packets.
static LIVE: Atomic<usize> = Atomic::new(0);

/// A sender's bound on packets in flight.
pub struct Credit<W: Wake> {
    /// A random number, not zero, that its packets carry.
    mark: u32,
    in_flight: Atomic<u32>,
    limit: u32,
    waiting: Atomic<bool>,
    reception: Reception,
    waker: W,
    probe: Arc<ProbeSockets>,
    /// Keeps the module while packets outlive their sender.
    in_use: SetOnce<InUse>,
}

impl<W: Wake> Credit<W> {
    /// Credit for `limit` packets, which are sent on behalf of `probe`; `waker` is told when it was used up and comes
    /// back. Another owner of `probe` must drop it last, after [`drain`].
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(limit: u32, waker: W, probe: Arc<ProbeSockets>) -> Result<Arc<Self>> {
        LIVE.fetch_add(1, ordering::Relaxed);
        let credit = Self {
            mark: random::next_u32().max(1),
            in_flight: Atomic::new(0),
            limit,
            waiting: Atomic::new(false),
            reception: Reception::new(),
            waker,
            probe,
            in_use: SetOnce::new(),
        };
        Ok(Arc::new(credit, GFP_KERNEL_ACCOUNT)?)
    }

    /// Whether another packet may be sent. If not, the waker will be called.
    pub fn available(&self) -> bool {
        if self.in_flight.load(ordering::Relaxed) < self.limit {
            return true;
        }
        self.waiting.store(true, ordering::Relaxed);
        // Pairs with the one in `put`: either that sees the wish, or we see what came back.
        smp_mb();
        self.in_flight.load(ordering::Relaxed) < self.limit
    }

    /// The sockets on whose behalf packets are sent; they outlive those packets.
    pub(super) fn probe(&self) -> &ProbeSockets {
        &self.probe
    }

    /// Packets in flight. Any context.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(ordering::Relaxed)
    }

    /// Whether no packet is in flight. This host may still be handling some that it sent to itself. Any context.
    pub fn is_whole(&self) -> bool {
        // Pairs with the one in `put`: what `Reception` notes before is seen.
        self.in_flight.load(ordering::Acquire) == 0
    }

    /// Whether this host has handled all packets that it sent to itself. It may say no when it has, but not for ever.
    /// Bottom halves off; the sender asks when [`Self::is_whole`], and sends nothing meanwhile.
    pub fn reception_is_over(&self) -> bool {
        self.reception.is_over()
    }

    /// The sender ends. Packets in flight keep the module from being removed from now on: an administrator of a network
    /// namespace can make them wait as long as it lives. If the module is being removed already, [`drain`] waits for them.
    /// Any context.
    pub fn sender_ends(&self) {
        if self.in_flight() == 0 {
            return;
        }
        // A module that is being removed waits in `drain`.
        if let Ok(in_use) = InUse::begin() {
            self.in_use.populate(in_use);
        }
    }

    /// Has `skb` hold the credit until it is destroyed, and counts it as sent.
    ///
    /// # Safety
    ///
    /// The caller owns `skb`, and has set no destructor but by [`ProbeSockets::charge_v6`] of
    /// [`Self::probe`].
    pub(super) unsafe fn charge(self: &Arc<Self>, skb: *mut bindings::sk_buff) {
        self.in_flight.fetch_add(1, ordering::Relaxed);
        let held = self.clone().into_foreign();
        // SAFETY: The caller owns the buffer.
        let shared = unsafe { bindings::skb_shinfo(skb) };
        // SAFETY: The shared info lives as long as its buffer; this field is its owner's.
        unsafe { (*shared).__bindgen_anon_2.destructor_arg = held };
        // The kernel uses the field only for a time stamp that `tx_flags` asks for (`__skb_tstamp_tx()`,
        // net/core/skbuff.c). `tx_flags` is zero here.
        // SAFETY: As above.
        unsafe { (*shared).tskey = self.mark };
        // SAFETY: The caller owns the buffer. `give_back` takes over what `destructor_arg` holds.
        unsafe { bindings::skb_set_destructor(skb, Some(give_back::<W>)) };
    }

    /// Whether `skb` shares its bytes with a packet that holds this credit or held it.
    ///
    /// An allocation leaves `destructor_arg` as it was (`__finalize_skb_around()`, net/core/skbuff.c), so a packet of
    /// somebody else may name this credit. But it clears `tskey`, which processes set to a number of
    /// their choice (`SCM_TS_OPT_ID`), and do not know here.
    ///
    /// # Safety
    ///
    /// `skb` must be valid.
    pub(super) unsafe fn is_of(self: &Arc<Self>, skb: *mut bindings::sk_buff) -> bool {
        // SAFETY: The caller's promise.
        let shared = unsafe { bindings::skb_shinfo(skb) };
        // SAFETY: The shared info lives as long as its buffer.
        let (held, mark) = unsafe { ((*shared).__bindgen_anon_2.destructor_arg, (*shared).tskey) };
        let own = self.clone().into_foreign();
        // SAFETY: From `into_foreign` just now, once.
        drop(unsafe { Arc::<Self>::from_foreign(own) });
        // Compared, and not followed.
        own == held && mark == self.mark
    }

    /// Counts a packet as gone; `received` if a softirq of this host is about to handle it.
    fn put(&self, received: bool) {
        if received {
            let is_last = self.in_flight.load(ordering::Relaxed) <= 1;
            self.reception.begins(is_last);
        }
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

impl<W: Wake> Drop for Credit<W> {
    fn drop(&mut self) {
        LIVE.fetch_sub(1, ordering::Release);
    }
}

/// The destructor of packets that hold a credit.
///
/// # Safety
///
/// `destructor_arg` of `skb` must hold an `Arc<Credit<W>>`, which is given up.
unsafe extern "C" fn give_back<W: Wake>(skb: *mut bindings::sk_buff) {
    // SAFETY: The network stack destroys valid buffers.
    let shared = unsafe { bindings::skb_shinfo(skb) };
    // SAFETY: As above. A softirq that receives a packet sets this; it is zero in one that is only sent.
    let received = unsafe { bindings::skb_ingress_index(skb) } != 0;
    // SAFETY: The shared info lives as long as its buffer.
    let held = unsafe { (*shared).__bindgen_anon_2.destructor_arg };
    if let Some(held) = NonNull::new(held) {
        // SAFETY: The caller promises that it is an `Arc<Credit<W>>`, and gives it up.
        let credit = unsafe { Arc::<Credit<W>>::from_foreign(held.as_ptr()) };
        // SAFETY: This is the buffer's destructor. Senders give buffers no other socket, and the
        // network stack makes a buffer forget its destructor before it gives it another socket.
        unsafe { credit.probe.uncharge(skb) };
        credit.put(received);
    }
}

/// Waits until no credit is left, with no packet that holds one: until then, code of this module
/// may still be called.
///
/// # Context
///
/// Process; sleeps for as long as packets wait in queues of other devices, of senders that had not ended when the module began to
/// be removed. Those of processes' QPs that ended before keep the module ([`Credit::sender_ends`]).
pub fn drain() {
    while LIVE.load(ordering::Acquire) != 0 {
        fsleep(Delta::from_millis(1));
    }
    // The last destructor may not have returned, in a softirq.
    wait_for_readers();
    // Nor in a task, which may be preempted there, outside of RCU's read-side sections: `__rtnl_unlock()`,
    // net/core/rtnetlink.c, frees the packets of a queueing discipline that was removed.
    wait_for_tasks();
}
