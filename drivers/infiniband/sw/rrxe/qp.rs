// SPDX-License-Identifier: GPL-2.0

//! Queue pairs: the verbs' side of them, and what happens after a turn.

mod attributes;
pub(crate) mod concerns;
mod create;
pub(crate) mod engine;
pub(crate) mod engine_host;
pub(crate) mod error_poll;
mod fault;
pub(crate) mod filter;
mod manage;
pub(crate) mod next_turn;
pub(crate) mod noted_state;
pub(crate) mod page_fault;
pub(crate) mod peer;
pub(crate) mod poster;
pub(crate) mod qp_cap;
pub(crate) mod raw;
pub(crate) mod recv_queue;
pub(crate) mod recv_ring;
mod rounds;
mod run;
pub(crate) mod send_queue;
pub(crate) mod sge;
pub(crate) mod timer_slot;
pub(crate) mod turn;
pub(crate) mod wqe;

pub(crate) use run::note_peer;

use kernel::{
    cpu::CpuId,
    impl_has_hr_timer, impl_has_work,
    prelude::*,
    sync::{
        atomic::{ordering, Atomic},
        Arc, ArcBorrow,
    },
    time::{
        hrtimer::{
            HrTimer, HrTimerCallback, HrTimerCallbackContext, HrTimerRestart, RelativeSoftMode,
        },
        Monotonic,
    },
    workqueue::{Work, WorkItem},
};
use rdma::{
    abi::post::{RecvList, SendList},
    net::{
        credit::{SenderCredit, Wake},
        skb::{Discard, Endpoints, FrameQueue, Ingress, RxFrame, RxSkb, SkbQueue},
    },
    support::{
        quota::Claim,
        sync::{bottom_halves_off, wait_for_readers},
    },
    verbs::{
        qp::QpCap,
        upcall::{QpToken, QpUpcall},
    },
};
use roce::{
    ids::Qpn,
    qp::QpState,
    responder::check_management,
    time::{Duration, Instant},
    wire::packet::Packet,
};

use crate::{
    device::{stats, workers::Workers, Device},
    doorbells::Doorbell,
    limits::{
        accounts::{ObjectClaim, Payer},
        thread_share::{ThreadShare, Waiter},
    },
    net::{netns::NetContext, rx::RxPacket},
    provider::Rrxe,
    qp::{
        concerns::Concerns, engine::Core, engine_host::Upshot, filter::Filter,
        noted_state::NotedState, poster::Poster, turn::Turn,
    },
    verbs::{cq::Cq, pd::Pd, srq::Srq},
};

/// A queue pair.
///
/// Held by the verbs object, by the namespace's table of QPs until it is destroyed, and for a short
/// while by whoever runs it.
#[pin_data]
pub(crate) struct Qp {
    pub(crate) qpn: Qpn,
    /// Its place among the QPs of the namespace.
    pub(crate) place: u32,
    pub(crate) device: Arc<Device>,
    _claim: Claim,
    _object: ObjectClaim,
    pub(crate) net: Arc<NetContext>,
    pd: Arc<Pd>,
    /// `None` of an XRC target.
    pub(crate) send_cq: Option<Arc<Cq>>,
    /// `None` of QPs without a receive queue.
    pub(crate) recv_cq: Option<Arc<Cq>>,
    srq: Option<Arc<Srq>>,
    pub(crate) credit: SenderCredit,
    #[pin]
    pub(crate) inbox: SkbQueue,
    /// Whose packets it takes.
    pub(crate) filter: Filter,
    /// Frames that wait for it, if it is a raw packet QP.
    frames: Option<Pin<KBox<FrameQueue>>>,
    upcall: QpUpcall,
    token: QpToken,
    /// How the kernel posts, if it is the kernel's.
    poster: Option<Pin<KBox<Poster>>>,
    /// For those who post.
    pub(crate) noted: NotedState,
    pub(crate) concerns: Concerns,
    workers: Arc<Workers>,
    /// Where its process rings for its sends, if it does not call.
    doorbell: Option<Doorbell>,
    cap: QpCap,
    signal_all: bool,
    /// Its packets to a group don't come back to itself.
    blocks_own: bool,
    epoch: kernel::time::Instant<Monotonic>,
    /// `None` once destroyed.
    #[pin]
    turn: Turn<Option<KBox<Core>>>,
    #[pin]
    timer: HrTimer<Self>,
    /// Runs the engine in softirq.
    #[pin]
    work: Work<Self>,
    /// Runs the engine in softirq, too, on another CPU than `work`.
    #[pin]
    hop: Work<Self, 3>,
    /// The next request for a certain CPU takes `hop`, and the one after it `work`.
    hops: Atomic<u32>,
    /// Runs the engine in a thread. Not `work`: an item that runs in both contexts has no
    /// consistent place in a lock order, and waits in one queue while the other one's context is
    /// wanted.
    #[pin]
    rest: Work<Self, 2>,
    /// Has a thread of a process fault in what the QP waits for.
    #[pin]
    fault: Work<Self, 1>,
    /// Its share in the threads of `rrxe_rest`, which run `rest`.
    #[pin]
    rest_share: ThreadShare,
}

impl_has_work! {
    impl HasWork<Self> for Qp { self.work }
    impl HasWork<Self, 2> for Qp { self.rest }
    impl HasWork<Self, 3> for Qp { self.hop }
}

impl_has_hr_timer! {
    impl HasHrTimer<Self> for Qp {
        mode: RelativeSoftMode<Monotonic>, field: self.timer
    }
}

impl WorkItem for Qp {
    type Pointer = Arc<Qp>;

    fn run(this: Arc<Qp>) {
        Qp::advance_in_softirq(this.as_arc_borrow());
    }
}

impl WorkItem<3> for Qp {
    type Pointer = Arc<Qp>;

    fn run(this: Arc<Qp>) {
        Qp::advance_in_softirq(this.as_arc_borrow());
    }
}

impl WorkItem<2> for Qp {
    type Pointer = Arc<Qp>;

    fn run(this: Arc<Qp>) {
        this.rest_share.run();
        Qp::advance(this.as_arc_borrow(), &mut None);
        this.rest_share.end();
        if this.rest_share.is_needed_again() {
            Qp::leave_to_thread(this);
        }
    }
}

impl HrTimerCallback for Qp {
    type Pointer<'a> = Arc<Qp>;

    fn run(this: ArcBorrow<'_, Qp>, _: HrTimerCallbackContext<'_, Qp>) -> HrTimerRestart {
        // Not here: the holder of the turn cancels the timer, and would wait for this very
        // function.
        Qp::leave(this);
        HrTimerRestart::NoRestart
    }
}

/// Wakes a QP that waited for its packets to leave. It names the QP only, for packets may outlive
/// it.
pub(crate) struct Waker {
    net: Arc<NetContext>,
    qpn: Qpn,
    place: u32,
}

impl Wake for Waker {
    fn wake(&self) {
        self.net.qps(self.qpn).with(self.place, Qp::schedule);
    }
}

impl Qp {
    /// The engine's clock: nanoseconds since the QP was made.
    pub(crate) fn now(&self) -> Instant {
        Instant(u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(0))
    }

    /// Takes the QP out of service for good. When this returns no packet, timer or process finds it
    /// any more and no memory is touched on its behalf. Process context.
    pub(crate) fn destroy(&self) {
        let mut core = self.turn.wait().take();
        Self::withdraw_fault(core.as_mut().and_then(|core| core.stall.take_pending()));
        // Before somebody else can have the number, by which windows know their QP.
        if core.as_ref().is_some_and(|core| core.sq.binds()) {
            self.unbind_windows();
        }
        self.leave_cqs();
        self.rest_share.close();
        if let Some(doorbell) = &self.doorbell {
            doorbell.release();
        }
        drop(self.net.qps(self.qpn).remove(self.place));
        if self.poster.is_some() {
            // For those who still tell of the last turn; a process may be told later.
            wait_for_readers();
        }
        // Outside the lock: this waits for the timer and takes the rings away.
        drop(core);
        while self.inbox.pop().is_some() {}
        if let Some(frames) = &self.frames {
            while frames.pop().is_some() {}
        }
        for cq in self.cqs() {
            cq.forget(self.token);
        }
    }

    /// Strikes the QP from its CQs. Process context.
    fn leave_cqs(&self) {
        for cq in self.cqs() {
            cq.strike_user(self.qpn, self.place);
        }
    }

    fn cqs(&self) -> impl Iterator<Item = &Arc<Cq>> {
        [&self.send_cq, &self.recv_cq].into_iter().flatten()
    }

    /// Its completions go to `cq`.
    pub(crate) fn completes_to(&self, cq: &Cq) -> bool {
        self.cqs().any(|own| core::ptr::eq(&**own, cq))
    }

    /// Puts the QP in error at its next turn, or when it leaves RESET. Any context up to softirq.
    pub(crate) fn condemn(this: ArcBorrow<'_, Self>) {
        this.concerns.condemn();
        Self::leave(this);
    }

    /// Takes the grants of the windows away that this QP bound.
    fn unbind_windows(&self) {
        let mrs = &self.device.mrs;
        mrs.windows.unbind_all(self.qpn.get(), mrs);
    }

    /// Its name for the kernel's consumers.
    pub(crate) fn token(&self) -> QpToken {
        self.token
    }

    /// Posts sends of the kernel. Any context: the QP runs in softirq, as after an interrupt.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is a process's; those of [`Poster::post_send`].
    pub(crate) fn post_send(this: &Arc<Self>, requests: &mut SendList<'_, Rrxe>) -> Result {
        let poster = this.poster.as_ref().ok_or(EINVAL)?;
        let posted = poster.post_send(&this.noted, requests);
        this.workers.turns.enqueue_eagerly::<_, 0>(this.clone());
        posted
    }

    /// Posts receives of the kernel. Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is a process's; those of [`Poster::post_recv`].
    pub(crate) fn post_recv(this: &Arc<Self>, requests: &mut RecvList<'_>) -> Result {
        let poster = this.poster.as_ref().ok_or(EINVAL)?;
        let posted = poster.post_recv(&this.noted, requests);
        // They are flushed, not filled.
        if this.noted.is(QpState::Err) {
            this.workers.turns.enqueue_eagerly::<_, 0>(this.clone());
        }
        posted
    }

    /// The process posted send work requests, or wants what is there to be looked at.
    ///
    /// # Errors
    ///
    /// `EINVAL` before RTS (IBTA 1.x §10.8.3.1); `EIO` when the device goes away.
    pub(crate) fn doorbell(this: &Arc<Self>) -> Result {
        if this.is_at_end() {
            return Err(EIO);
        }
        if !this.noted.takes_sends() {
            return Err(EINVAL);
        }
        Self::look_at_sends(this.as_arc_borrow());
        if let Some(doorbell) = &this.doorbell {
            doorbell.called();
        }
        Ok(())
    }

    /// As [`Self::doorbell`], for one that was rung without a call. Returns whether anything was
    /// posted since the last time, or left to do then. Any context up to softirq.
    pub(crate) fn look_at_doorbell(this: ArcBorrow<'_, Self>) -> bool {
        let Some(doorbell) = this.doorbell.as_ref().filter(|_| !this.is_at_end()) else {
            return false;
        };
        if doorbell.take_left() {
            Self::advance(this, &mut None);
            return true;
        }
        let news = this.noted.takes_sends() && doorbell.has_news();
        Self::look_at_sends(this);
        news
    }

    fn look_at_sends(this: ArcBorrow<'_, Self>) {
        if this.noted.takes_sends() {
            this.pd.note_send();
            Self::advance(this, &mut None);
        }
    }

    /// Whether the QP takes no packet that `sender` sends to a group of both: it may block what it sends itself.
    pub(crate) fn blocks(&self, sender: &Self) -> bool {
        self.blocks_own && core::ptr::eq(self, sender)
    }

    /// Refuses the packet of a stranger, and what is no management datagram for QP1, and counts it; `sender` as for
    /// [`Peer::check`](crate::qp::peer::Peer::check). Returns whether the packet is admitted. Any context up to softirq.
    #[inline]
    pub(crate) fn admit(
        &self,
        packet: &Packet,
        endpoints: &Endpoints,
        ingress: Ingress,
        sender: Option<u32>,
    ) -> bool {
        let link = &self.device.link;
        let mut checked = self.filter.check(link, endpoints, ingress, sender);
        // Users' QPs can send anything to QP1 but its queue key, unless they have CAP_NET_RAW.
        if self.qpn == Qpn::GSI {
            checked = checked.and_then(|()| check_management(packet).map_err(stats::drop_counter));
        }
        let Err(why) = checked else {
            return true;
        };
        self.device.counters.add(why, 1);
        self.trace_drop(packet.bth.psn, why);
        false
    }

    /// A packet for this QP came; its ICRC is right. It is taken: in by a turn here, if softirqs have time for a process's
    /// QP, else later. Softirq.
    pub(crate) fn receive(this: ArcBorrow<'_, Self>, packet: &mut Option<RxPacket>) {
        if this.poster.is_some() {
            return Self::advance(this, packet);
        }
        let has_run = this
            .workers
            .softirq_time
            .spend(|| Self::advance(this, packet));
        if let Some(packet) = packet.take_if(|_| !has_run) {
            Self::receive_later(this, packet.into_skb());
        }
    }

    /// A packet for this QP came; its ICRC is right. It is taken in later, by a thread: what QPs have to do is too much for
    /// a softirq, or may be, since the packet is for many. Softirq.
    pub(crate) fn receive_later(this: ArcBorrow<'_, Self>, skb: RxSkb) {
        match this.inbox.push(skb) {
            Ok(()) => Self::leave(this),
            Err(skb) => this.net.drops.discard(skb, Discard::Overflow),
        }
    }

    /// Whether it is of the kind that receives whole frames.
    pub(crate) fn receives_frames(&self) -> bool {
        self.frames.is_some()
    }

    /// The frames that wait for it, if it is of that kind.
    pub(crate) fn frames(&self) -> Option<&FrameQueue> {
        self.frames.as_deref()
    }

    /// Frames for this QP came. It gets copies, and takes them in later: this may be under another QP's turn. What there is
    /// no room or memory for is lost to this QP. Any context up to softirq.
    pub(crate) fn receive_frames(this: ArcBorrow<'_, Self>, frames: &[RxFrame]) {
        let Some(queue) = this.frames() else {
            return;
        };
        let mut any = false;
        for frame in frames {
            match queue.push_copy(frame) {
                Ok(()) => any = true,
                Err(_) => this.net.drops.count(Discard::Overflow),
            }
        }
        if any {
            Self::leave(this);
        }
    }

    /// Takes no more turns: it is a process's, and its device goes away. Those of the kernel's users go on
    /// until these have destroyed them.
    #[inline]
    fn is_at_end(&self) -> bool {
        self.device.link.has_flushed() && self.is_of_process()
    }

    /// How long softirqs of a CPU don't run the QP, if they have spent their time. Any context.
    pub(crate) fn pause_of(&self, cpu: CpuId) -> Option<Duration> {
        let time = &self.workers.softirq_time;
        time.pause_of(cpu).filter(|_| self.is_of_process())
    }

    /// Tells ib_core what a turn brought about. No lock is held.
    ///
    /// The kernel's consumers count on being called as by an interrupt, not in process context
    /// where one could call them again.
    #[inline(never)]
    fn conclude(&self, upshot: &Upshot) {
        let _as_interrupt = self.poster.as_ref().map(|_| bottom_halves_off());
        if let Some(cq) = self.send_cq.as_ref().filter(|_| upshot.notify_send) {
            Cq::notify(cq);
        }
        if upshot.notify_recv {
            self.notify_recv();
        }
        if let Some(srq) = self.srq.as_ref().filter(|_| upshot.notify_srq) {
            srq.notify();
        }
        if let Some(srq) = &upshot.named {
            srq.notify();
            if let Some(cq) = srq.cq() {
                Cq::notify(cq);
            }
        }
        for event in upshot.events.iter() {
            self.upcall
                .event(event, || self.payer()?.claim_async_events().ok());
        }
    }

    /// Wakes whoever waits for receives: at once if the process answers what it receives.
    fn notify_recv(&self) {
        let Some(cq) = &self.recv_cq else {
            return;
        };
        if self.pd.answers() {
            Cq::notify(cq);
        } else {
            Cq::notify_paced(cq);
        }
    }

    /// Leaves the work of a process's QP to the watcher of its doorbells, so that it counts for
    /// that process, or to a thread, so that others have their share of the CPU. Any context up to softirq.
    fn leave(this: ArcBorrow<'_, Self>) {
        if this.poster.is_some() {
            Self::schedule(this);
        } else if !this.is_left_to_watcher() {
            Self::leave_to_thread(Arc::from(this));
        }
    }

    /// Has a thread run the engine, once the QP's payer has one for it. Any context up to softirq.
    fn leave_to_thread(this: Arc<Self>) {
        Waiter::Qp(this).begin();
    }

    /// Has a thread run the engine of a QP that was given one. Any context.
    pub(crate) fn enqueue_rest(this: Arc<Self>) {
        let workers = this.workers.clone();
        // It isn't queued: the QP has its thread until the item has run.
        let _ = workers.rests.enqueue::<_, 2>(this);
    }

    /// The payer of the QP. `None` for QPs of the kernel.
    pub(crate) fn payer(&self) -> Option<&Payer> {
        self.rest_share.payer()
    }

    /// Its share in the threads of `rrxe_rest`.
    pub(crate) fn share(&self) -> &ThreadShare {
        &self.rest_share
    }

    /// Leaves the rest of the work to the watcher of the process's doorbells, if there is one. Any
    /// context.
    fn is_left_to_watcher(&self) -> bool {
        self.doorbell.as_ref().is_some_and(Doorbell::leave)
    }

    /// Lets the work queue run the engine. Any context.
    pub(crate) fn schedule(this: ArcBorrow<'_, Self>) {
        // Already queued is as good: it has not run yet.
        let _ = this.workers.turns.enqueue::<_, 0>(Arc::from(this));
    }

    /// Lets the work queue run the engine on `cpu`. Any context with interrupts enabled.
    ///
    /// An item that is queued while it runs runs again on the CPU that it runs on (`__queue_work()`,
    /// kernel/workqueue.c), and would ask for `cpu` again, for as long as packets of the QP are in flight. So two items
    /// take turns: at most one of them is the item that runs.
    fn schedule_on(this: ArcBorrow<'_, Self>, cpu: CpuId) {
        let turns = &this.workers.turns;
        // Queued elsewhere it will come here again, or needn't.
        if this.hops.fetch_add(1, ordering::Relaxed) % 2 == 0 {
            let _ = turns.enqueue_on::<_, 3>(cpu, Arc::from(this));
        } else {
            let _ = turns.enqueue_on::<_, 0>(cpu, Arc::from(this));
        }
    }
}
