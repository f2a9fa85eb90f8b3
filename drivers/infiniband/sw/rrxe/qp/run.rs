// SPDX-License-Identifier: GPL-2.0

//! Runs of a QP's engine, followed by runs of QPs of this host to which it sent packets (local
//! peers).

use kernel::{
    prelude::*,
    sync::{rcu, Arc, ArcBorrow},
};
use rdma::support::sync::bottom_halves_off;

use super::{run_budget::RunBudget, Qp};
use crate::qp::{
    arrivals::Arrivals,
    effects::{Continuation, RunEffects},
    engine::Core,
    turn::{Held, RunRequest},
};

/// Maximum number of runs that one caller makes, those of the QP and of its local peers of the same
/// payer together. The caller defers further work ([`Qp::defer`]).
const MAX_RUNS: u32 = 16;

impl Qp {
    /// Runs the engine in softirq, for a work item of the queue `rrxe`.
    ///
    /// A process's QP runs only if softirqs of this CPU have time left for QPs of processes
    /// (`limits/softirq_time.rs`). Otherwise the QP is deferred ([`Self::defer`]). If a thread then
    /// runs the QP on a CPU that must not send, the thread hands the QP over to a softirq of the
    /// sending CPU, once that softirq has time left (`qp/next_run.rs`). The local peers to which a
    /// process's QP sends packets are deferred in any case.
    pub(super) fn advance_in_softirq(this: ArcBorrow<'_, Self>) {
        if this.kernel_queue.is_some() {
            return Self::advance(this);
        }
        let run = || {
            let (arrivals, request) = (&mut Arrivals::of(&this.inbox), RunRequest::All);
            let mut budget = RunBudget::new(MAX_RUNS);
            if let Some(peer) = Self::run_engine(this, None, request, arrivals, &mut budget) {
                Self::defer(peer.as_arc_borrow());
            }
        };
        if !this.workqueues.softirq_time.spend(run) {
            Self::defer(this);
        }
    }

    /// Runs the engine, and the engines of local peers to which it sends packets. Any context up to
    /// softirq.
    ///
    /// Local peers of other payers (`limits/accounts.rs`) have one run in all, as for a packet from
    /// the network ([`RunRequest::Packet`]). Their processes may have posted more than this caller
    /// should spend time on. A QP of a kernel consumer defers all local peers of processes, because
    /// the softirqs that run it count their CPU time for no user.
    ///
    /// Bottom halves are disabled until the effects of the last run are reported, also between two
    /// runs. A thread that was preempted there would delay notifications and run requests of others
    /// for as long as it gets no CPU.
    pub(super) fn advance(this: ArcBorrow<'_, Self>) {
        Self::advance_with(this, &mut Arrivals::of(&this.inbox));
    }

    /// Runs the engine as [`Self::advance`] does, with `arrivals` that may have a packet at hand (a
    /// packet that was not queued in the inbox).
    pub(super) fn advance_with(this: ArcBorrow<'_, Self>, arrivals: &mut Arrivals<'_>) {
        let _off = bottom_halves_off();
        let request = match arrivals.has_latest() {
            true => RunRequest::Packet,
            false => RunRequest::All,
        };
        let mut budget = RunBudget::new(MAX_RUNS);
        let mut others_budget = RunBudget::new(u32::from(this.is_of_process()));
        let mut next = Self::run_engine(this, None, request, arrivals, &mut budget);
        while let Some(peer) = next {
            let peer = peer.as_arc_borrow();
            let (request, budget) = match this.has_same_payer(&peer) {
                true => (RunRequest::All, &mut budget),
                false => (RunRequest::Packet, &mut others_budget),
            };
            if !budget.is_left() {
                return Self::defer(peer);
            }
            next = Self::run_engine(peer, None, request, &mut Arrivals::of(&peer.inbox), budget);
        }
    }

    /// Returns whether the same accounts pay for both QPs.
    fn has_same_payer(&self, other: &Self) -> bool {
        match (self.payer(), other.payer()) {
            (Some(own), Some(others)) => own.has_accounts_of(others),
            (own, others) => own.is_none() && others.is_none(),
        }
    }

    /// Runs the engine until no run request is left, or leaves a run request if another CPU holds
    /// the turn lock. Defers the QP after a run that ended before its work was done, or schedules
    /// it on the CPU that must send. Also defers it if the run budget (`budget`) is used up while
    /// run requests are left. Returns a local peer that got packets and has not run. Bottom halves
    /// are disabled.
    ///
    /// `held` is the guard of the turn lock, if the caller has it. `request` is the purpose of the
    /// runs. `arrivals` may have a packet at hand: it is taken in, or goes to the inbox.
    pub(super) fn run_engine(
        this: ArcBorrow<'_, Self>,
        mut held: Option<Held<'_, Option<KBox<Core>>>>,
        request: RunRequest,
        arrivals: &mut Arrivals<'_>,
        budget: &mut RunBudget,
    ) -> Option<Arc<Self>> {
        if this.is_disassociated() {
            if let Some(latest) = arrivals.latest() {
                *latest = None;
            }
            return None;
        }
        let mut peer = None;
        // For a kernel consumer's QP the RCU read lock is held until all effects are reported: the
        // destruction of such a QP waits for RCU readers.
        let _readers = this.kernel_queue.as_ref().map(|_| rcu::read_lock());
        let mut run = |arrivals: &mut Arrivals<'_>, budget: &mut RunBudget| {
            this.turn.advance(
                held.take(),
                request,
                |core, requests| {
                    // All look-ups of the run share this read section, which makes them cheaper.
                    this.net.readers.within(|| match core {
                        Some(core) => core.run(this, arrivals, requests.are_for_packets()),
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
                    let goes_on = budget.spend();
                    if effects.is_parked {
                        Self::request_fault(this);
                    }
                    match effects.continuation {
                        Continuation::None if goes_on => return true,
                        // A caller that leaves a run request after this check finds the turn lock
                        // free.
                        Continuation::None if !this.turn.is_wanted() => {}
                        Continuation::None | Continuation::Anywhere => Self::defer(this),
                        Continuation::On(cpu) => Self::schedule_on(this, cpu),
                    }
                    false
                },
            );
        };
        run(arrivals, budget);
        if let Some(latest) = arrivals.latest() {
            // Another CPU holds the turn lock, or the runs ended before the packet was taken in.
            this.keep(latest);
            match budget.is_left() {
                true => run(arrivals, budget),
                false => Self::defer(this),
            }
        }
        peer
    }
}

/// Stores `other` as the local peer to run next. Defers a peer that was stored before.
pub(crate) fn note_peer(peer: &mut Option<Arc<Qp>>, other: Arc<Qp>) {
    if matches!(peer, Some(before) if Arc::ptr_eq(before, &other)) {
        return;
    }
    if let Some(before) = peer.replace(other) {
        Qp::defer(before.as_arc_borrow());
    }
}
