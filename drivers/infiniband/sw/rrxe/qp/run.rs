// SPDX-License-Identifier: GPL-2.0

//! How a QP takes turns, and how those of local peers follow.

use kernel::{
    prelude::*,
    sync::{rcu, Arc, ArcBorrow},
};
use rdma::{net::skb::Discard, support::sync::bottom_halves_off};

use super::{run_budget::RunBudget, Qp};
use crate::qp::{
    arrivals::Arrivals,
    effects::{Continuation, RunEffects},
    engine::Core,
    turn::{Held, RunRequest},
};

/// Turns that one caller takes in a row, those of one QP and of local peers together, before it leaves the
/// rest ([`Qp::leave`]).
const MAX_ROUNDS: u32 = 16;

impl Qp {
    /// Runs the engine in softirq. That of a process runs only if softirqs have time for it, and leaves those of local peers
    /// to threads; otherwise a thread runs it. A thread whose CPU must not send hands over to a softirq again, once that
    /// has time (`next_turn.rs`).
    pub(super) fn advance_in_softirq(this: ArcBorrow<'_, Self>) {
        if this.kernel_queue.is_some() {
            return Self::advance(this);
        }
        let run = || {
            let (mut rounds, arrivals) =
                (RunBudget::new(MAX_ROUNDS), &mut Arrivals::of(&this.inbox));
            if let Some(peer) = Self::take_turns(this, None, RunRequest::All, arrivals, &mut rounds)
            {
                Self::leave(peer.as_arc_borrow());
            }
        };
        if !this.workqueues.softirq_time.spend(run) {
            Self::leave(this);
        }
    }

    /// Runs the engine, and those of local peers to which it sent packets. Any context up to softirq.
    ///
    /// A local peer of another payer has one turn, as of a packet from the network, however often its turn would come: its
    /// process may have posted more than whoever calls this wants to wait for. A QP of the kernel leaves those of
    /// processes to threads, for softirqs run it without an account.
    ///
    /// Bottom halves are off until all is told, also between two turns: a thread that is preempted there would keep
    /// notifications and wishes of others for as long as it gets no CPU.
    pub(super) fn advance(this: ArcBorrow<'_, Self>) {
        Self::advance_with(this, &mut Arrivals::of(&this.inbox));
    }

    /// As [`Self::advance`], with `arrivals` that may have a packet which came just now.
    pub(super) fn advance_with(this: ArcBorrow<'_, Self>, arrivals: &mut Arrivals<'_>) {
        let _off = bottom_halves_off();
        let wish = match arrivals.has_latest() {
            true => RunRequest::Packet,
            false => RunRequest::All,
        };
        let mut rounds = RunBudget::new(MAX_ROUNDS);
        let mut rounds_of_others = RunBudget::new(u32::from(this.is_of_process()));
        let mut next = Self::take_turns(this, None, wish, arrivals, &mut rounds);
        while let Some(peer) = next {
            let peer = peer.as_arc_borrow();
            let (wish, rounds) = match this.has_payer_of(&peer) {
                true => (RunRequest::All, &mut rounds),
                false => (RunRequest::Packet, &mut rounds_of_others),
            };
            if !rounds.is_left() {
                return Self::leave(peer);
            }
            next = Self::take_turns(peer, None, wish, &mut Arrivals::of(&peer.inbox), rounds);
        }
    }

    /// Whether the same accounts pay for both QPs.
    fn has_payer_of(&self, other: &Self) -> bool {
        match (self.payer(), other.payer()) {
            (Some(own), Some(others)) => own.has_accounts_of(others),
            (own, others) => own.is_none() && others.is_none(),
        }
    }

    /// Runs the engine until it has nothing to do, its budget or the `rounds` are spent, or another CPU has it.
    /// Returns a local peer that got packets. `held` is the turn, if the caller has it; `wish` is what it is for. With bottom
    /// halves off.
    pub(super) fn take_turns(
        this: ArcBorrow<'_, Self>,
        mut held: Option<Held<'_, Option<KBox<Core>>>>,
        wish: RunRequest,
        arrivals: &mut Arrivals<'_>,
        rounds: &mut RunBudget,
    ) -> Option<Arc<Self>> {
        if this.is_at_end() {
            drop(arrivals.take_latest());
            return None;
        }
        let mut peer = None;
        // Until all is told: destruction waits for it, of QPs that the kernel uses.
        let _readers = this.kernel_queue.as_ref().map(|_| rcu::read_lock());
        let mut run = |arrivals: &mut Arrivals<'_>| {
            this.turn.advance(
                held.take(),
                wish,
                |core, wishes| {
                    // All look-ups of the turn share this section, and cost less.
                    this.net.readers.within(|| match core {
                        Some(core) => core.run(this, arrivals, wishes.are_for_packets()),
                        None => RunEffects::default(),
                    })
                },
                |effects| {
                    if !effects.is_quiet() {
                        this.conclude(&effects);
                    }
                    if let Some(other) = effects.peer {
                        note_peer(&mut peer, other);
                    }
                    let goes_on = rounds.spend();
                    if effects.is_parked {
                        Self::request_fault(this);
                    }
                    match effects.continuation {
                        Continuation::None if goes_on => return true,
                        // A wish that is made from now on finds the turn free.
                        Continuation::None if !this.turn.is_wanted() => {}
                        Continuation::None | Continuation::Anywhere => Self::leave(this),
                        Continuation::On(cpu) => Self::schedule_on(this, cpu),
                    }
                    false
                },
            );
        };
        run(arrivals);
        if let Some(packet) = arrivals.take_latest() {
            // Another CPU has the turn, or the turn ended before the packet was taken in.
            if let Err(skb) = this.inbox.push(packet.into_skb()) {
                this.net.drops.discard(skb, Discard::Overflow);
            }
            run(arrivals);
        }
        peer
    }
}

/// Remembers `other` as the peer to run; one that was remembered before runs later.
pub(crate) fn note_peer(peer: &mut Option<Arc<Qp>>, other: Arc<Qp>) {
    if matches!(peer, Some(before) if Arc::ptr_eq(before, &other)) {
        return;
    }
    if let Some(before) = peer.replace(other) {
        Qp::leave(before.as_arc_borrow());
    }
}
