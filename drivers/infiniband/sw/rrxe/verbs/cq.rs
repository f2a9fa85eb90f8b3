// SPDX-License-Identifier: GPL-2.0

//! Completion queues (CQs).
//!
//! The engine of a QP pushes completions under the CQ's lock. A process polls them from the shared
//! ring without a system call. The push decides whether a notification is due. [`Cq::notify`]
//! delivers the notification later, outside all locks.
//!
//! A completion that finds the ring full is lost. Then, unless the CQ was created to ignore
//! overruns, the CQ enters an error state for good: it raises `IB_EVENT_CQ_ERR` once, refuses
//! further completions, and sets all QPs that complete to it to the error state, including idle QPs
//! (IBTA 1.x §11.6.3.2).

mod notify;
mod resize;
mod timer_slot;
mod users;

use kernel::{
    new_work,
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        Arc,
    },
    time::{
        hrtimer::{ArcHrTimerHandle, HrTimer},
        Instant, Monotonic,
    },
    workqueue::Work,
};
use rdma::{
    abi::{features::Arming, ring::Ring},
    new_irq_spinlock,
    support::{quota::Claim, sync::IrqSpinLock},
    verbs::{
        cq::{
            Arrival, CqCreated, CqEvents, CqInit, Cqe, CqeLayout, Moderation, NotifyWhen,
            Unannounced,
        },
        upcall::{CqUpcall, IbQpHandle},
    },
};
use roce::wc::{RecvWc, SendWc, WcStatus};

use crate::{
    device::Device,
    limits::{
        self,
        accounts::{ObjectClaim, PayerClaim, Threads},
        thread_permit::ThreadPermit,
    },
    verbs::cq::timer_slot::TimerSlot,
    verbs::{context::Context, members::Members},
};

/// The result of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// The completion is in the queue, or the CQ ignores overruns and has dropped the completion.
    Quiet,
    /// The completion is in the queue, and the caller must call [`Cq::notify`].
    Notify,
    /// The completion is lost: there was no room for it, or the CQ is in the error state or
    /// destroyed. The caller must set the QP to the error state and call [`Cq::notify`].
    Overflow,
}

/// The contents of a CQ, for `rdma resource show`.
pub(crate) struct CqLoad {
    /// Number of completions that the consumer has not polled.
    pub(crate) unread: u32,
    /// Kind of completion for which the CQ is armed, as text.
    pub(crate) armed: &'static CStr,
    /// Whether the CQ is in the error state, because it has lost a completion.
    pub(crate) overflowed: bool,
}

/// A completion queue.
#[pin_data]
pub(crate) struct Cq {
    /// Device of the CQ.
    device: Arc<Device>,
    /// Claim on the device's limit of CQs.
    _claim: Claim,
    /// Claim on the object limit of the payer.
    _object: ObjectClaim,
    /// Layout of the CQEs: the process's, or the kernel's.
    layout: CqeLayout,
    /// Callbacks of ib_core for completions and for the overflow.
    upcall: CqUpcall,
    /// Completion events that uverbs queues for the process; `None` for the kernel.
    events: Option<CqEvents>,
    /// State of the pushing side.
    #[pin]
    state: IrqSpinLock<State>,
    /// Polling side of a CQ of the kernel; `None` if a process polls the CQ.
    #[pin]
    poller: IrqSpinLock<Option<Poller>>,
    /// Timer that calls [`Cq::look`] to deliver a delayed notification.
    #[pin]
    timer: HrTimer<Self>,
    /// Work item in softirq that calls [`Cq::look`] after a CQ of the kernel was armed.
    #[pin]
    work: Work<Self>,
    /// QPs that complete to this CQ, by their indices in the tables of QPs.
    #[pin]
    users: Members,
    /// Work item that sets these QPs to the error state after an overflow.
    #[pin]
    end: Work<Self, 1>,
    /// Permit for a thread of `rrxe_deferred`, which runs `end`.
    #[pin]
    end_permit: ThreadPermit,
    /// Whether this is the receive CQ of a GSI QP.
    gsi: Atomic<bool>,
    /// Position where `end` continues: an index of the tables of QPs in the upper 32 bits, and an
    /// index in that table in the lower 32 bits.
    end_position: Atomic<u64>,
}

/// The polling side of a CQ of the kernel.
struct Poller {
    /// Ring, shared with the pushing side.
    ring: Ring,
    /// Slot of the oldest completion that was not polled.
    oldest: u32,
}

impl Poller {
    /// Takes the oldest completion out of the ring, and skips completions of destroyed QPs.
    fn poll(&mut self) -> Option<Cqe> {
        while self.oldest != self.ring.producer() {
            let cqe = self.entry(self.oldest);
            self.oldest = self.ring.next(self.oldest);
            self.ring.publish_consumer(self.oldest);
            if cqe.qp() != IbQpHandle::NONE {
                return Some(cqe);
            }
        }
        None
    }

    /// Reads the CQE in `slot`.
    fn entry(&self, slot: u32) -> Cqe {
        Cqe::from_bytes(&self.ring.read_array(slot))
    }

    /// Marks the unpolled completions of `qp` as completions of no QP.
    fn forget(&self, qp: IbQpHandle, layout: CqeLayout) {
        let mut slot = self.oldest;
        while slot != self.ring.producer() {
            let cqe = self.entry(slot);
            if cqe.qp() == qp {
                self.ring.write(slot, cqe.without_qp().as_bytes(layout));
            }
            slot = self.ring.next(slot);
        }
    }
}

/// The state of the pushing side.
struct State {
    /// Ring; `None` once the CQ is destroyed.
    ring: Option<Ring>,
    /// Number of completions pushed since the creation. Masked, it is the slot of the next
    /// completion.
    pushed: u64,
    /// Value of `pushed` at the last notification.
    covered: u64,
    /// Value of `pushed` after the last completion that was solicited or in error.
    urgent_end: u64,
    /// Kind of the completions after `covered` that the news word of the ring (`RRXE_CQ_NEWS`)
    /// reports to the process.
    unannounced: Unannounced,
    /// Consumer's index when it was last read. At least the slots before it are free.
    consumer: u32,
    /// Methods other than the system call by which the process arms the CQ.
    arming: Arming,
    /// Kind of completion for which a call of [`Cq::req_notify`] has armed the CQ. A process may
    /// also arm the CQ in its ring (`RRXE_CQ_ARM`).
    armed: Option<NotifyWhen>,
    /// Whether a call of [`Cq::look`] is pending for an armed CQ.
    look_pending: bool,
    /// Whether a completion found the ring full. Stays `false` if the CQ ignores overruns.
    overflowed: bool,
    /// Whether completions that find the ring full are dropped without an error
    /// (`IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN`).
    ignore_overrun: bool,
    /// Whether a notification is due.
    completion_due: bool,
    /// Whether the event of the overflow is due.
    overflow_due: bool,
    /// Whether the due notification is for a completion that was solicited or in error.
    urgent: bool,
    /// Time of the last notification.
    notified: Option<Instant<Monotonic>>,
    /// Moderation of the notifications that the consumer requested.
    moderation: Option<Moderation>,
    /// Number of notifications since the process had read all of them.
    events: u32,
    /// Claim of the right to more than one unread notification.
    many_events: Option<PayerClaim>,
    /// Number of completions since the last notification, for moderation.
    moderated: u16,
    /// Time of the first of the completions that `moderated` counts.
    since: Option<Instant<Monotonic>>,
    /// Handle of the timer, which delivers a paced or moderated notification, or one that arming
    /// triggers.
    pacer: TimerSlot<ArcHrTimerHandle<Cq>>,
}

/// The ring, the timer and the claim of a CQ that is being destroyed.
type Held = (
    Option<Ring>,
    Option<ArcHrTimerHandle<Cq>>,
    Option<PayerClaim>,
);

impl State {
    /// Creates the state of an empty CQ.
    fn new(ring: Ring, arming: Arming, ignore_overrun: bool) -> Self {
        Self {
            ring: Some(ring),
            arming,
            pushed: 0,
            covered: 0,
            urgent_end: 0,
            unannounced: Unannounced::None,
            consumer: 0,
            armed: None,
            look_pending: false,
            overflowed: false,
            ignore_overrun,
            completion_due: false,
            overflow_due: false,
            urgent: false,
            notified: None,
            events: 0,
            many_events: None,
            moderation: None,
            moderated: 0,
            since: None,
            pacer: TimerSlot::new(),
        }
    }

    /// Returns the contents of the CQ.
    fn load(&self) -> CqLoad {
        CqLoad {
            unread: self.ring.as_ref().map_or(0, Ring::claimed),
            armed: match self.armed() {
                None => c"no",
                Some(NotifyWhen::Solicited) => c"solicited",
                Some(NotifyWhen::Next) => c"next",
            },
            overflowed: self.overflowed,
        }
    }

    /// Closes the CQ: nothing is due, nothing can be pushed, and no timer can be stored from now
    /// on. The caller drops the result outside the lock.
    fn close(&mut self) -> Held {
        (self.completion_due, self.overflow_due) = (false, false);
        (
            self.ring.take(),
            self.pacer.close(),
            self.many_events.take(),
        )
    }
}

impl Cq {
    /// Creates a CQ that the process of `context` polls. Process context.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the capacity is zero or more than [`limits::MAX_CQE`]; `ENOMEM`; `EIO` if the
    /// context is going away.
    pub(crate) fn create(
        device: &Arc<Device>,
        init: CqInit,
        context: &Arc<Context>,
    ) -> Result<CqCreated<Self>> {
        check_capacity(init.capacity)?;
        let size = CqeLayout::User.size();
        let ring = Ring::new(context.mmap_entries(), size, init.capacity)?;
        Self::build(device, ring, CqeLayout::User, init, None, Some(context))
    }

    /// Creates a CQ that a kernel consumer polls. Process context.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the capacity is zero or more than [`limits::MAX_CQE`]; `ENOMEM`.
    pub(crate) fn create_kernel(device: &Arc<Device>, init: CqInit) -> Result<CqCreated<Self>> {
        check_capacity(init.capacity)?;
        let ring = Ring::unmapped(CqeLayout::Kernel.size(), init.capacity)?;
        let poller = Poller {
            ring: ring.share(),
            oldest: 0,
        };
        Self::build(device, ring, CqeLayout::Kernel, init, Some(poller), None)
    }

    /// Creates a CQ on `ring`. `poller` is `None` for a process, `context` is `None` for the
    /// kernel.
    fn build(
        device: &Arc<Device>,
        ring: Ring,
        layout: CqeLayout,
        init: CqInit,
        poller: Option<Poller>,
        context: Option<&Arc<Context>>,
    ) -> Result<CqCreated<Self>> {
        let arming = context.map_or_else(Arming::default, |context| context.arming());
        let payer = context.map(|context| context.payer().clone());
        let object = ObjectClaim::new(payer.as_ref())?;
        let end_permit = ThreadPermit::new(Threads::Deferred, payer)?;
        let CqInit {
            upcall,
            events,
            ignore_overrun,
            ..
        } = init;
        let claim = device.cqs.claim()?;
        let (capacity, reply) = (ring.capacity(), ring.mmap_reply());
        let cq = Arc::pin_init(
            pin_init!(Self {
                _claim: claim,
                _object: object,
                device: device.clone(),
                layout,
                upcall,
                events,
                state <- new_irq_spinlock!(State::new(ring, arming, ignore_overrun), "rrxe_cq"),
                poller <- new_irq_spinlock!(poller, "rrxe_cq_poller"),
                timer <- HrTimer::new(),
                work <- new_work!("Cq::work"),
                users <- Members::new(),
                end <- new_work!("Cq::end"),
                end_permit <- end_permit,
                gsi: Atomic::new(false),
                end_position: Atomic::new(0),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        Ok(CqCreated {
            cq,
            capacity,
            reply,
        })
    }

    /// Destroys the CQ. QPs no longer use it. Process context.
    ///
    /// The notification of a completion may be delivered later than this, because the destruction
    /// of a process's QP waits only for the end of the run that pushed the completion.
    /// [`Cq::notify`] does nothing then.
    pub(crate) fn destroy(&self) {
        self.end_permit.close();
        let held = self.state.lock().close();
        // Outside the lock, because this withdraws the ring's mapping and waits for the timer.
        drop(held);
    }

    /// Waits until a kernel consumer that polls in a thread has polled the completions in the CQ.
    /// The caller ensures that no further completions are pushed for which this call must wait.
    /// Process context; sleeps.
    pub(crate) fn settle(&self) {
        // Twice, because a running work item may have been queued again.
        self.upcall.settle();
        self.upcall.settle();
    }

    /// Polls one completion: takes the oldest completion out of a CQ of the kernel. Any context.
    ///
    /// A received datagram that ib_mad has not polled before the removal of its device is reported
    /// as flushed: ib_mad does not process flushed datagrams (`ib_mad_recv_done()`, mad.c).
    pub(crate) fn poll(&self) -> Option<Cqe> {
        let cqe = Option::as_mut(&mut self.poller.lock())?.poll()?;
        let is_late = self.is_gsis() && self.device.link.check_stays().is_err();
        Some(if is_late { cqe.flushed_recv() } else { cqe })
    }

    /// Records that this is the receive CQ of a GSI QP. Must be called before the QP receives.
    /// Process context.
    pub(crate) fn serve_gsi(&self) {
        self.gsi.store(true, Relaxed);
    }

    /// Returns whether this is the receive CQ of a GSI QP. Any context.
    pub(crate) fn is_gsis(&self) -> bool {
        self.gsi.load(Relaxed)
    }

    /// Discards the unpolled completions of a QP that is being destroyed, because they name the QP.
    /// For a CQ of the kernel; does nothing for other CQs. Nothing of the QP is pushed any more.
    /// Process context.
    pub(crate) fn forget(&self, qp: IbQpHandle) {
        if let Some(poller) = &*self.poller.lock() {
            poller.forget(qp, self.layout);
        }
    }

    /// Pushes the completion of a send by QP `qpn`. Any context.
    pub(crate) fn push_send(&self, wc: &SendWc, qpn: u32, qp: IbQpHandle) -> Pushed {
        let urgent = wc.status != WcStatus::Success;
        self.push(&Cqe::send(wc, qpn, qp), urgent)
    }

    /// Returns whether a kernel consumer polls the CQ.
    pub(crate) fn is_kernels(&self) -> bool {
        self.layout == CqeLayout::Kernel
    }

    /// Pushes the completion of a receive by QP `qpn`. `arrival` describes the arrival of a
    /// datagram, for kernel consumers. Any context.
    pub(crate) fn push_recv(
        &self,
        wc: &RecvWc,
        qpn: u32,
        qp: IbQpHandle,
        arrival: Option<Arrival>,
    ) -> Pushed {
        let urgent = wc.solicited || wc.status != WcStatus::Success;
        self.push(&Cqe::recv(wc, qpn, qp, arrival), urgent)
    }

    /// Pushes a completion. `urgent` means solicited or in error.
    fn push(&self, cqe: &Cqe, urgent: bool) -> Pushed {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let Some(ring) = state.ring.as_ref().filter(|_| !state.overflowed) else {
            return Pushed::Overflow;
        };
        let slot = state.pushed as u32;
        let after = ring.next(slot);
        if after == state.consumer {
            state.consumer = ring.consumer();
        }
        if after == state.consumer {
            if state.ignore_overrun {
                return Pushed::Quiet;
            }
            state.overflowed = true;
            state.overflow_due = true;
            // A paced notification may be due already.
            state.completion_due |= state.armed().is_some();
            state.disarm();
            return Pushed::Overflow;
        }
        ring.write(slot, cqe.as_bytes(self.layout));
        let news = if urgent {
            Unannounced::Solicited
        } else {
            Unannounced::Any
        };
        if state.arming.sees_news && state.unannounced < news {
            state.unannounced = news;
            ring.set_unannounced(news);
        }
        ring.publish_producer(after);
        state.pushed = state.pushed.wrapping_add(1);
        if urgent {
            state.urgent_end = state.pushed;
        }
        match state.announce(urgent) {
            true => Pushed::Notify,
            false => Pushed::Quiet,
        }
    }

    /// Returns whether the CQ is in the error state, because a completion was lost. QPs that
    /// complete to this CQ then deliver nothing any more. Any context.
    pub(crate) fn is_overflowed(&self) -> bool {
        self.state.lock().overflowed
    }

    /// Returns the contents of the CQ. Process context.
    pub(crate) fn load(&self) -> CqLoad {
        self.state.lock().load()
    }
}

/// Checks that a CQ may have `capacity` entries.
///
/// # Errors
///
/// `EINVAL` if it may not.
fn check_capacity(capacity: u32) -> Result {
    if capacity == 0 || capacity > limits::MAX_CQE {
        return Err(EINVAL);
    }
    Ok(())
}
