// SPDX-License-Identifier: GPL-2.0

//! Queue pairs: the verbs' side of them, and what happens after a turn.

mod admin;
mod arrivals;
mod attributes;
pub(crate) mod cached_state;
pub(crate) mod capacity;
mod create;
mod deliver;
pub(crate) mod effects;
pub(crate) mod engine;
pub(crate) mod engine_host;
pub(crate) mod error_poll;
pub(crate) mod filter;
pub(crate) mod flags;
pub(crate) mod kernel_queue;
pub(crate) mod next_run;
mod page_fault;
pub(crate) mod parked;
pub(crate) mod peer;
pub(crate) mod raw;
pub(crate) mod recv_queue;
pub(crate) mod recv_ring;
mod run;
mod run_budget;
mod schedule;
pub(crate) mod send_queue;
pub(crate) mod sge;
pub(crate) mod timer_slot;
pub(crate) mod turn;
pub(crate) mod wqe;

pub(crate) use {run::note_peer, schedule::Waker};

use kernel::{
    cpu::CpuId,
    impl_has_hr_timer, impl_has_work,
    prelude::*,
    sync::{atomic::Atomic, Arc, ArcBorrow},
    time::{
        hrtimer::{HrTimer, RelativeSoftMode},
        Monotonic,
    },
    workqueue::Work,
};
use rdma::{
    abi::post::{RecvList, SendList},
    net::{
        skb::{FrameQueue, SkbQueue},
        tx_limit::TxLimit,
    },
    support::{quota::Claim, sync::wait_for_readers},
    verbs::{
        qp::QpCap,
        upcall::{QpToken, QpUpcall},
    },
};
use roce::{
    ids::Qpn,
    qp::QpState,
    time::{Duration, Instant},
};

use crate::{
    device::{workqueues::Workqueues, Device},
    doorbells::Doorbell,
    limits::{
        accounts::{ObjectClaim, Payer},
        thread_permit::ThreadPermit,
    },
    net::netns::NetContext,
    provider::Rrxe,
    qp::{
        cached_state::CachedState, engine::Core, filter::Filter, flags::QpFlags,
        kernel_queue::KernelQueue, turn::Turn,
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
    pub(crate) tx_limit: TxLimit,
    #[pin]
    pub(crate) inbox: SkbQueue,
    /// Whose packets it takes.
    pub(crate) filter: Filter,
    /// Frames that wait for it, if it is a raw packet QP.
    frames: Option<Pin<KBox<FrameQueue>>>,
    upcall: QpUpcall,
    token: QpToken,
    /// How the kernel posts, if it is the kernel's.
    kernel_queue: Option<Pin<KBox<KernelQueue>>>,
    /// For those who post.
    pub(crate) cached_state: CachedState,
    pub(crate) flags: QpFlags,
    workqueues: Arc<Workqueues>,
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
    deferred: Work<Self, 2>,
    /// Has a thread of a process fault in what the QP waits for.
    #[pin]
    fault: Work<Self, 1>,
    /// Its share in the threads of `rrxe_deferred`, which run `deferred`.
    #[pin]
    deferred_permit: ThreadPermit,
}

impl_has_work! {
    impl HasWork<Self> for Qp { self.work }
    impl HasWork<Self, 2> for Qp { self.deferred }
    impl HasWork<Self, 3> for Qp { self.hop }
}

impl_has_hr_timer! {
    impl HasHrTimer<Self> for Qp {
        mode: RelativeSoftMode<Monotonic>, field: self.timer
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
        Self::withdraw_fault(core.as_mut().and_then(|core| core.parked.take_pending()));
        // Before somebody else can have the number, by which windows know their QP.
        if core.as_ref().is_some_and(|core| core.sq.binds()) {
            self.unbind_windows();
        }
        self.leave_cqs();
        self.deferred_permit.close();
        if let Some(doorbell) = &self.doorbell {
            doorbell.release();
        }
        drop(self.net.qps(self.qpn).remove(self.place));
        if self.kernel_queue.is_some() {
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
    pub(crate) fn set_error(this: ArcBorrow<'_, Self>) {
        this.flags.set_error();
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
    /// `EINVAL` if it is a process's; those of [`KernelQueue::post_send`].
    pub(crate) fn post_send(this: &Arc<Self>, requests: &mut SendList<'_, Rrxe>) -> Result {
        let kernel_queue = this.kernel_queue.as_ref().ok_or(EINVAL)?;
        let posted = kernel_queue.post_send(&this.cached_state, requests);
        this.workqueues
            .softirq
            .enqueue_eagerly::<_, 0>(this.clone());
        posted
    }

    /// Posts receives of the kernel. Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is a process's; those of [`KernelQueue::post_recv`].
    pub(crate) fn post_recv(this: &Arc<Self>, requests: &mut RecvList<'_>) -> Result {
        let kernel_queue = this.kernel_queue.as_ref().ok_or(EINVAL)?;
        let posted = kernel_queue.post_recv(&this.cached_state, requests);
        // They are flushed, not filled.
        if this.cached_state.is(QpState::Err) {
            this.workqueues
                .softirq
                .enqueue_eagerly::<_, 0>(this.clone());
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
        if !this.cached_state.takes_sends() {
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
        if doorbell.take_deferred() {
            Self::advance(this);
            return true;
        }
        let news = this.cached_state.takes_sends() && doorbell.has_news();
        Self::look_at_sends(this);
        news
    }

    fn look_at_sends(this: ArcBorrow<'_, Self>) {
        if this.cached_state.takes_sends() {
            this.pd.note_send();
            Self::advance(this);
        }
    }

    /// Whether the QP takes no packet that `sender` sends to a group of both: it may block what it sends itself.
    pub(crate) fn blocks(&self, sender: &Self) -> bool {
        self.blocks_own && core::ptr::eq(self, sender)
    }

    /// Whether it is of the kind that receives whole frames.
    pub(crate) fn receives_frames(&self) -> bool {
        self.frames.is_some()
    }

    /// The frames that wait for it, if it is of that kind.
    pub(crate) fn frames(&self) -> Option<&FrameQueue> {
        self.frames.as_deref()
    }

    /// Takes no more turns: it is a process's, and its device goes away. Those of the kernel's users go on
    /// until these have destroyed them.
    #[inline]
    fn is_at_end(&self) -> bool {
        self.device.link.has_flushed() && self.is_of_process()
    }

    /// How long softirqs of a CPU don't run the QP, if they have spent their time. Any context.
    pub(crate) fn pause_of(&self, cpu: CpuId) -> Option<Duration> {
        let time = &self.workqueues.softirq_time;
        time.pause_of(cpu).filter(|_| self.is_of_process())
    }

    /// The payer of the QP. `None` for QPs of the kernel.
    pub(crate) fn payer(&self) -> Option<&Payer> {
        self.deferred_permit.payer()
    }

    /// Its share in the threads of `rrxe_deferred`.
    pub(crate) fn permit(&self) -> &ThreadPermit {
        &self.deferred_permit
    }
}
