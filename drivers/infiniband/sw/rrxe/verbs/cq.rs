// SPDX-License-Identifier: GPL-2.0

//! Completion queues.
//!
//! Completions are pushed under the CQ's lock by whoever runs a QP; the process polls them from the
//! shared ring without a system call. Whether a notification is due is decided with the push, but
//! the notification itself is delivered later, outside all locks, by [`Cq::notify`].
//!
//! A completion that finds the ring full is not lost silently: the CQ enters an error state for
//! good, raises `CQ_ERR` once, refuses what comes after, and takes all QPs that complete to it along
//! into error, those that rest too (IBTA 1.x §11.6.3.2).

mod notify;
mod resize;
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
    abi::ring::Ring,
    new_irq_spinlock,
    support::{quota::Claim, sync::IrqSpinLock},
    verbs::{
        cq::{Arrival, CqCreated, CqEvents, CqInit, Cqe, CqeLayout, Moderation, News, NotifyWhen},
        ucontext::Arming,
        upcall::{CqUpcall, QpToken},
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
    qp::timer_slot::TimerSlot,
    verbs::{context::Context, members::Members},
};

/// What became of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// It is in the queue.
    Quiet,
    /// It is in the queue, and [`Cq::notify`] is to be called.
    Notify,
    /// There was no room for it: the QP is to be put in error. [`Cq::notify`] is to be called.
    Overflow,
}

/// What lies in a CQ, for administrators.
pub(crate) struct CqLoad {
    /// Completions that nobody has fetched.
    pub(crate) unread: u32,
    /// What its consumer waits for.
    pub(crate) armed: &'static CStr,
    /// It lost a completion.
    pub(crate) overflowed: bool,
}

/// A completion queue.
#[pin_data]
pub(crate) struct Cq {
    device: Arc<Device>,
    _claim: Claim,
    _object: ObjectClaim,
    layout: CqeLayout,
    upcall: CqUpcall,
    events: Option<CqEvents>,
    #[pin]
    state: IrqSpinLock<State>,
    /// The kernel's polling side; none where a process polls.
    #[pin]
    poller: IrqSpinLock<Option<Poller>>,
    #[pin]
    timer: HrTimer<Self>,
    /// Looks at a CQ of the kernel that was armed.
    #[pin]
    work: Work<Self>,
    /// The QPs that complete here, by their places.
    #[pin]
    users: Members,
    /// Puts these QPs in error.
    #[pin]
    end: Work<Self, 1>,
    /// Its share in the threads of `rrxe_deferred`, which run `end`.
    #[pin]
    end_share: ThreadPermit,
    /// A GSI QP completes here.
    gsi: Atomic<bool>,
    /// Where `end` goes on: an index of the tables of QPs, and below 32 bits a place.
    condemned: Atomic<u64>,
}

/// The kernel's polling side of a queue.
struct Poller {
    ring: Ring,
    /// The oldest completion that was not polled.
    oldest: u32,
}

impl Poller {
    fn poll(&mut self) -> Option<Cqe> {
        while self.oldest != self.ring.producer() {
            let cqe = self.entry(self.oldest);
            self.oldest = self.ring.next(self.oldest);
            self.ring.publish_consumer(self.oldest);
            if cqe.qp() != QpToken::NONE {
                return Some(cqe);
            }
        }
        None
    }

    fn entry(&self, slot: u32) -> Cqe {
        Cqe::from_bytes(&self.ring.read_array(slot))
    }

    fn forget(&self, qp: QpToken, layout: CqeLayout) {
        let mut slot = self.oldest;
        while slot != self.ring.producer() {
            let cqe = self.entry(slot);
            if cqe.qp() == qp {
                self.ring.write(slot, cqe.of_nobody().as_bytes(layout));
            }
            slot = self.ring.next(slot);
        }
    }
}

/// What the pushing side knows of the queue.
struct State {
    /// `None` once destroyed.
    ring: Option<Ring>,
    /// Completions since the beginning: masked, the slot for the next one.
    pushed: u64,
    /// Of these, those that the last notification told of.
    told: u64,
    /// Of these, those up to the last one that is solicited or in error.
    urgent_end: u64,
    /// What the process knows of those behind `told`.
    news: News,
    /// The consumer's index when last looked at: at least the slots up to it are free.
    consumer: u32,
    /// How the process arms it, besides the call.
    arming: Arming,
    /// What brings about the next notification.
    armed: Option<NotifyWhen>,
    /// [`Cq::look`] is about to run.
    looks: bool,
    /// A completion did not fit.
    overflowed: bool,
    /// Such completions are of no interest.
    ignore_overrun: bool,
    /// To be delivered: a notification, …
    completion_due: bool,
    /// … and the event of the overflow.
    overflow_due: bool,
    /// A completion that the notification tells of was solicited, or in error.
    urgent: bool,
    /// When the consumer was last notified.
    notified: Option<Instant<Monotonic>>,
    /// How the consumer wants its notifications moderated, if it does.
    moderation: Option<Moderation>,
    /// Notifications since the process had read all of them …
    events: u32,
    /// … and the right to more than one.
    many_events: Option<PayerClaim>,
    /// Completions since the last notification, of a CQ that is moderated …
    gathered: u16,
    /// … and when the first of them came.
    since: Option<Instant<Monotonic>>,
    /// The timer that delivers what is paced or moderated.
    pacer: TimerSlot<ArcHrTimerHandle<Cq>>,
}

/// The ring, the timer and the claim of a CQ that is destroyed.
type Held = (
    Option<Ring>,
    Option<ArcHrTimerHandle<Cq>>,
    Option<PayerClaim>,
);

impl State {
    /// That of an empty queue.
    fn new(ring: Ring, arming: Arming, ignore_overrun: bool) -> Self {
        Self {
            ring: Some(ring),
            arming,
            pushed: 0,
            told: 0,
            urgent_end: 0,
            news: News::None,
            consumer: 0,
            armed: None,
            looks: false,
            overflowed: false,
            ignore_overrun,
            completion_due: false,
            overflow_due: false,
            urgent: false,
            notified: None,
            events: 0,
            many_events: None,
            moderation: None,
            gathered: 0,
            since: None,
            pacer: TimerSlot::new(),
        }
    }

    /// Nothing is due from now on, nothing can be pushed, and no timer is kept. The caller drops the result outside the
    /// lock.
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
    /// Makes a CQ that the process of `context` polls. Process context.
    ///
    /// # Errors
    ///
    /// `EINVAL` for more entries than the limit, `ENOMEM`.
    pub(crate) fn create(
        device: &Arc<Device>,
        init: CqInit,
        context: &Arc<Context>,
    ) -> Result<CqCreated<Self>> {
        check_capacity(init.capacity)?;
        let size = CqeLayout::User.size();
        let ring = Ring::new(context.mappings(), size, init.capacity)?;
        Self::build(device, ring, CqeLayout::User, init, None, Some(context))
    }

    /// Makes a CQ that the kernel polls. Process context.
    ///
    /// # Errors
    ///
    /// `EINVAL` for more entries than the limit, `ENOMEM`.
    pub(crate) fn create_kernel(device: &Arc<Device>, init: CqInit) -> Result<CqCreated<Self>> {
        check_capacity(init.capacity)?;
        let ring = Ring::unmapped(CqeLayout::Kernel.size(), init.capacity)?;
        let poller = Poller {
            ring: ring.share(),
            oldest: 0,
        };
        Self::build(device, ring, CqeLayout::Kernel, init, Some(poller), None)
    }

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
        let end_share = ThreadPermit::new(Threads::Rests, payer)?;
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
                end_share <- end_share,
                gsi: Atomic::new(false),
                condemned: Atomic::new(0),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        Ok(CqCreated {
            cq,
            capacity,
            reply,
        })
    }

    /// Takes the CQ out of service; QPs no longer use it. Process context.
    ///
    /// A turn that pushed a completion may deliver the notification later than this, because the
    /// destruction of a process's QP waits for the end of the turn only. [`Cq::notify`] does nothing then.
    pub(crate) fn destroy(&self) {
        self.end_share.close();
        let held = self.state.lock().close();
        // Outside the lock: this withdraws the ring's mapping and waits for the timer.
        drop(held);
    }

    /// Waits until the kernel's consumer has taken what is in the CQ, if it does so in a thread. Nothing is pushed meanwhile
    /// that it must have taken. Process context; sleeps.
    pub(crate) fn settle(&self) {
        // The item that runs may have been queued again behind itself.
        self.upcall.settle();
        self.upcall.settle();
    }

    /// Takes the oldest completion out, of a CQ that the kernel polls. Any context.
    ///
    /// A datagram that ib_mad has not seen yet when its device leaves is flushed: ib_mad does nothing for such a one
    /// (`ib_mad_recv_done()`, mad.c).
    pub(crate) fn poll(&self) -> Option<Cqe> {
        let cqe = Option::as_mut(&mut self.poller.lock())?.poll()?;
        let is_late = self.is_gsis() && self.device.link.check_stays().is_err();
        Some(if is_late { cqe.flushed_recv() } else { cqe })
    }

    /// A GSI QP completes here. Process context, before it does.
    pub(crate) fn serve_gsi(&self) {
        self.gsi.store(true, Relaxed);
    }

    /// Whether a GSI QP completes here. Any context.
    pub(crate) fn is_gsis(&self) -> bool {
        self.gsi.load(Relaxed)
    }

    /// Makes the kernel's consumer miss the completions of a QP that is destroyed, which would name it.
    /// Process context; nothing of the QP is pushed any more.
    pub(crate) fn forget(&self, qp: QpToken) {
        if let Some(poller) = &*self.poller.lock() {
            poller.forget(qp, self.layout);
        }
    }

    /// Appends the completion of a send by QP `qpn`. Any context.
    pub(crate) fn push_send(&self, wc: &SendWc, qpn: u32, qp: QpToken) -> Pushed {
        let urgent = wc.status != WcStatus::Success;
        self.push(&Cqe::send(wc, qpn, qp), urgent)
    }

    /// The kernel polls it.
    pub(crate) fn is_kernels(&self) -> bool {
        self.layout == CqeLayout::Kernel
    }

    /// Appends the completion of a receive by QP `qpn`. `arrival` is that of a datagram, for the kernel. Any context.
    pub(crate) fn push_recv(
        &self,
        wc: &RecvWc,
        qpn: u32,
        qp: QpToken,
        arrival: Option<Arrival>,
    ) -> Pushed {
        let urgent = wc.solicited || wc.status != WcStatus::Success;
        self.push(&Cqe::recv(wc, qpn, qp, arrival), urgent)
    }

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
            // A paced one may still be due.
            state.completion_due |= state.armed().is_some();
            state.disarm();
            return Pushed::Overflow;
        }
        ring.write(slot, cqe.as_bytes(self.layout));
        let news = if urgent { News::Solicited } else { News::Any };
        if state.arming.sees_news && state.news < news {
            state.news = news;
            ring.set_news(news);
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

    /// A completion was lost: nothing comes of QPs that complete here. Any context.
    pub(crate) fn is_overflowed(&self) -> bool {
        self.state.lock().overflowed
    }

    /// What lies in it. Process context.
    pub(crate) fn load(&self) -> CqLoad {
        let state = self.state.lock();
        CqLoad {
            unread: state.ring.as_ref().map_or(0, Ring::claimed),
            armed: match state.armed {
                None => c"no",
                Some(NotifyWhen::Solicited) => c"solicited",
                Some(NotifyWhen::Next) => c"next",
            },
            overflowed: state.overflowed,
        }
    }
}

fn check_capacity(capacity: u32) -> Result {
    if capacity == 0 || capacity > limits::MAX_CQE {
        return Err(EINVAL);
    }
    Ok(())
}
