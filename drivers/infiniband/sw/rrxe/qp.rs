// SPDX-License-Identifier: GPL-2.0

//! Queue pairs: the object [`Qp`], its verbs that post and destroy, and the modules that implement
//! the rest.
//!
//! A QP's state and protocol engine are in [`engine::Core`], behind the turn lock ([`turn::Turn`]).
//! A run is one execution of the engine by the holder of that lock. The other fields of [`Qp`] are
//! constant or synchronize their accesses themselves.

mod admin;
mod arrivals;
mod attributes;
pub(crate) mod built;
mod burst;
mod burst_path;
pub(crate) mod cached_state;
pub(crate) mod capacity;
mod create;
mod deliver;
mod early;
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
mod payload;
pub(crate) mod peer;
pub(crate) mod raw;
pub(crate) mod recv_queue;
pub(crate) mod recv_ring;
mod run;
mod run_budget;
mod schedule;
pub(crate) mod send_queue;
pub(crate) mod sge;
mod train;
pub(crate) mod train_source;
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
        upcall::{IbQpHandle, QpUpcall},
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
        kernel_queue::KernelQueue, train_source::TrainSource, turn::Turn,
    },
    verbs::{cq::Cq, pd::Pd, srq::Srq},
};

/// A queue pair.
///
/// References to it are held by the verbs object (`struct ib_qp`), by the namespace's table of QPs
/// and the process's doorbell page until [`Qp::destroy`], by its multicast groups and its flow
/// steering rules, by its timer, its work items and its page fault while they are pending, by the
/// list in which it waits for a thread, and for a short while by each caller that uses it.
#[pin_data]
pub(crate) struct Qp {
    /// QP number, 24 bits. All GSI QPs have number 1.
    pub(crate) qpn: Qpn,
    /// Index of the QP in the namespace's table of QPs. It equals `qpn`, except for GSI QPs.
    pub(crate) index: u32,
    /// Device of the QP.
    pub(crate) device: Arc<Device>,
    /// Claim on the device's quota of QPs ([`limits::MAX_QP`](crate::limits::MAX_QP)).
    _claim: Claim,
    /// Claim on the payer's quota of verbs objects.
    _object: ObjectClaim,
    /// State of the network namespace: table of QPs, sockets, multicast groups.
    pub(crate) net: Arc<NetContext>,
    /// Protection domain. The domain of an XRC target is that of its XRC domain.
    pd: Arc<Pd>,
    /// Send CQ. `None` for an XRC target QP.
    pub(crate) send_cq: Option<Arc<Cq>>,
    /// Receive CQ. `None` for an XRC QP.
    pub(crate) recv_cq: Option<Arc<Cq>>,
    /// Shared receive queue, if the QP takes its receives from one.
    srq: Option<Arc<Srq>>,
    /// Limit on the QP's packets in flight in this host.
    pub(crate) tx_limit: TxLimit,
    /// Inbox: received packets that no run has taken in yet, at most
    /// [`limits::INBOX`](crate::limits::INBOX).
    #[pin]
    pub(crate) inbox: SkbQueue,
    /// Permission for receivers to read the memory of trains that the QP has sent.
    #[pin]
    pub(crate) train_source: TrainSource,
    /// Copy of the peer's addresses, by which receivers without the turn lock refuse packets of
    /// other senders.
    pub(crate) filter: Filter,
    /// Received frames that no run has taken in yet. `None` unless the QP is a raw packet QP.
    frames: Option<Pin<KBox<FrameQueue>>>,
    /// Reports asynchronous events to ib_core (`ib_qp.event_handler`).
    upcall: QpUpcall,
    /// Value that names the QP in completions for kernel consumers (`ib_wc.qp`).
    handle: IbQpHandle,
    /// Producer side of the rings, for posts of a kernel consumer. `None` if the QP belongs to a
    /// process.
    kernel_queue: Option<Pin<KBox<KernelQueue>>>,
    /// State of the QP after its last run or `modify_qp`, for posters, which do not take the turn
    /// lock.
    pub(crate) cached_state: CachedState,
    /// Rare conditions that a run has to handle.
    pub(crate) flags: QpFlags,
    /// Work queues of the module.
    workqueues: Arc<Workqueues>,
    /// Doorbell of the send queue in the doorbell page of its process. `None` if the process rings
    /// by a system call only.
    doorbell: Option<Doorbell>,
    /// Capacities granted at creation (`struct ib_qp_cap`).
    cap: QpCap,
    /// Each send work request completes with a CQE (`IB_SIGNAL_ALL_WR`).
    signal_all: bool,
    /// The QP does not receive its own multicast packets (`IB_QP_CREATE_BLOCK_MULTICAST_LOOPBACK`).
    blocks_loopback: bool,
    /// Zero of the engine's clock: the instant of the QP's creation.
    epoch: kernel::time::Instant<Monotonic>,
    /// The protocol engine and all state that only a run uses. `None` after [`Qp::destroy`].
    #[pin]
    turn: Turn<Option<KBox<Core>>>,
    /// Timer of the engine. It schedules a run, and runs nothing itself.
    #[pin]
    timer: HrTimer<Self>,
    /// Runs the engine in softirq.
    #[pin]
    work: Work<Self>,
    /// Runs the engine in softirq on a certain CPU, while `work` may be the item that runs now.
    #[pin]
    hop: Work<Self, 3>,
    /// Counts calls of [`Qp::schedule_on`], which uses `hop` and `work` alternately.
    hops: Atomic<u32>,
    /// Runs the engine in a thread of `rrxe_deferred`. `work` is not used there for two reasons. An
    /// item that runs both in softirq and in threads has no consistent place in lockdep's order of
    /// locks. An item can be queued in one queue only, so it would wait in the wrong context.
    #[pin]
    deferred: Work<Self, 2>,
    /// Hands a page fault to a thread of the process whose memory is absent.
    #[pin]
    fault: Work<Self, 1>,
    /// Permission to occupy a thread of `rrxe_deferred` with `deferred`.
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
    /// Returns the time on the engine's clock: nanoseconds since the QP was created.
    pub(crate) fn now(&self) -> Instant {
        Instant(u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(0))
    }

    /// Takes the QP out of service for good (`destroy_qp`).
    ///
    /// After the return no packet, timer or process finds the QP, and no memory is accessed on its
    /// behalf.
    ///
    /// # Context
    ///
    /// Process context. Sleeps.
    pub(crate) fn destroy(&self) {
        let mut core = self.turn.wait().take();
        Self::withdraw_fault(core.as_mut().and_then(|core| core.parked.take_pending()));
        // Windows of type 2 know their QP by its number, so they are unbound before another QP can
        // get the number.
        if core.as_ref().is_some_and(|core| core.sq.binds()) {
            self.unbind_windows();
        }
        self.train_source.end_session();
        self.remove_from_cqs();
        self.deferred_permit.close();
        if let Some(doorbell) = &self.doorbell {
            doorbell.release();
        }
        drop(self.net.qps(self.qpn).remove(self.index));
        if self.kernel_queue.is_some() {
            // A caller that runs the QP of a kernel consumer is an RCU reader until it has reported
            // the last run's effects (`qp/effects.rs`). Effects of a process's QP may be reported
            // after the destruction.
            wait_for_readers();
        }
        // Dropped without the turn lock: the drop cancels the timer, waits for its function, and
        // frees the rings.
        drop(core);
        while self.inbox.pop().is_some() {}
        if let Some(frames) = &self.frames {
            while frames.pop().is_some() {}
        }
        for cq in self.cqs() {
            cq.forget(self.handle);
        }
    }

    /// Removes the QP from the lists of its CQs. Process context.
    fn remove_from_cqs(&self) {
        for cq in self.cqs() {
            cq.remove_qp(self.qpn, self.index);
        }
    }

    /// Returns the send CQ and the receive CQ, as far as the QP has them.
    fn cqs(&self) -> impl Iterator<Item = &Arc<Cq>> {
        [&self.send_cq, &self.recv_cq].into_iter().flatten()
    }

    /// Returns whether completions of the QP go to `cq`.
    pub(crate) fn completes_to(&self, cq: &Cq) -> bool {
        self.cqs().any(|own| core::ptr::eq(&**own, cq))
    }

    /// Puts the QP in the error state in its next run, or when it leaves RESET. Any context up to
    /// softirq.
    pub(crate) fn set_error(this: ArcBorrow<'_, Self>) {
        this.flags.set_error();
        Self::defer(this);
    }

    /// Unbinds all memory windows of type 2 that this QP has bound.
    fn unbind_windows(&self) {
        let mrs = &self.device.mrs;
        mrs.windows.unbind_all(self.qpn.get(), mrs);
    }

    /// Returns the value that names the QP in completions for kernel consumers.
    pub(crate) fn handle(&self) -> IbQpHandle {
        self.handle
    }

    /// Posts send work requests of a kernel consumer (`ib_post_send()`).
    ///
    /// # Context
    ///
    /// Any. The engine runs in softirq: usually before this returns if softirqs may run, otherwise
    /// later (`OwnedQueue::enqueue_eagerly()`).
    ///
    /// # Errors
    ///
    /// `EINVAL` if the QP belongs to a process, and the errors of [`KernelQueue::post_send`].
    pub(crate) fn post_send(this: &Arc<Self>, requests: &mut SendList<'_, Rrxe>) -> Result {
        let kernel_queue = this.kernel_queue.as_ref().ok_or(EINVAL)?;
        let posted = kernel_queue.post_send(&this.cached_state, requests);
        this.workqueues
            .softirq
            .enqueue_eagerly::<_, 0>(this.clone());
        posted
    }

    /// Posts receive work requests of a kernel consumer (`ib_post_recv()`). Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the QP belongs to a process, and the errors of [`KernelQueue::post_recv`].
    pub(crate) fn post_recv(this: &Arc<Self>, requests: &mut RecvList<'_>) -> Result {
        let kernel_queue = this.kernel_queue.as_ref().ok_or(EINVAL)?;
        let posted = kernel_queue.post_recv(&this.cached_state, requests);
        // In the error state a run flushes the receives. In other states they wait for packets.
        if this.cached_state.is(QpState::Err) {
            this.workqueues
                .softirq
                .enqueue_eagerly::<_, 0>(this.clone());
        }
        posted
    }

    /// Handles the doorbell system call of a process: executes the send work requests in the ring.
    /// A process also calls this without new work requests, to have the QP run. Process context.
    ///
    /// # Errors
    ///
    /// `EINVAL` before RTS (IBTA 1.x §10.8.3.1), `EIO` when the device is disassociated.
    pub(crate) fn doorbell(this: &Arc<Self>) -> Result {
        if this.is_disassociated() {
            return Err(EIO);
        }
        if !this.cached_state.takes_sends() {
            return Err(EINVAL);
        }
        Self::run_sends(this.as_arc_borrow());
        if let Some(doorbell) = &this.doorbell {
            doorbell.called();
        }
        Ok(())
    }

    /// Handles a doorbell that the process or the kernel has rung in the doorbell page, without a
    /// system call. Returns whether send work requests were posted since the last call, or an
    /// earlier run was deferred to the poller. Any context up to softirq.
    pub(crate) fn serve_doorbell(this: ArcBorrow<'_, Self>) -> bool {
        let Some(doorbell) = this.doorbell.as_ref().filter(|_| !this.is_disassociated()) else {
            return false;
        };
        if doorbell.take_deferred() {
            Self::advance(this);
            return true;
        }
        let news = this.cached_state.takes_sends() && doorbell.has_new_wqes();
        Self::run_sends(this);
        news
    }

    /// Runs the engine if the QP's state takes send work requests. Any context up to softirq.
    fn run_sends(this: ArcBorrow<'_, Self>) {
        if this.cached_state.takes_sends() {
            this.pd.note_send();
            Self::advance(this);
        }
    }

    /// Returns whether the QP receives no multicast packet of `sender`. A QP can exclude the
    /// packets that it sends itself.
    pub(crate) fn blocks(&self, sender: &Self) -> bool {
        self.blocks_loopback && core::ptr::eq(self, sender)
    }

    /// Returns whether the QP receives frames of the link layer: it is a raw packet QP.
    pub(crate) fn receives_frames(&self) -> bool {
        self.frames.is_some()
    }

    /// Returns the queue of received frames. `None` unless the QP is a raw packet QP.
    pub(crate) fn frames(&self) -> Option<&FrameQueue> {
        self.frames.as_deref()
    }

    /// Returns whether the engine makes no more runs: the QP belongs to a process and its device is
    /// disassociated. QPs of kernel consumers run until the consumers have destroyed them.
    #[inline]
    fn is_disassociated(&self) -> bool {
        self.device.link.has_flushed() && self.is_of_process()
    }

    /// Returns how long softirqs of `cpu` refuse to run the QP because they have used up their
    /// share of CPU time. `None` if they do not refuse it. Any context.
    pub(crate) fn remaining_pause(&self, cpu: CpuId) -> Option<Duration> {
        let time = &self.workqueues.softirq_time;
        time.remaining_pause(cpu).filter(|_| self.is_of_process())
    }

    /// Returns the user and the memory cgroup that pay for the QP. `None` for QPs of kernel
    /// consumers.
    pub(crate) fn payer(&self) -> Option<&Payer> {
        self.deferred_permit.payer()
    }

    /// Returns the permission to occupy a thread of `rrxe_deferred`.
    pub(crate) fn permit(&self) -> &ThreadPermit {
        &self.deferred_permit
    }
}
