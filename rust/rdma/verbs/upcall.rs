// SPDX-License-Identifier: GPL-2.0

//! Calls from the driver into ib_core's consumers: completion notifications and asynchronous
//! events.
//!
//! An object of the driver is reference-counted, and may be in use after ib_core has freed the C
//! object that referred to it. The driver's object reaches the C object only by an [`Upcall`]. The
//! destruction operation revokes the upcall before ib_core may free the C object.

use core::{
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            ordering::{Acquire, Full, Release},
            Atomic,
        },
        barrier::smp_mb,
        Arc,
    },
    time::{delay::fsleep, Delta},
};

use crate::{
    bindings,
    support::quota::Claims,
    verbs::unread::{AsyncEvents, RaisesEvents},
};

/// Time between two checks whether a running call has returned.
const POLL_INTERVAL: Delta = Delta::from_micros(50);

/// A revocable pointer from an object of the driver to the C object `C` that refers to it.
///
/// # Invariants
///
/// `object` is null or points to a valid object. That object is freed only after two events:
/// `object` was set to null, and then `running` was zero.
pub struct Upcall<C>(Arc<Target<C>>);

#[pin_data]
struct Target<C> {
    object: AtomicPtr<C>,
    /// Number of calls that are running.
    running: Atomic<u32>,
    #[pin]
    events: AsyncEvents,
}

impl<C> Clone for Upcall<C> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<C> Upcall<C> {
    /// Creates an upcall to `target`.
    ///
    /// # Safety
    ///
    /// ib_core must be creating `target`, which must stay valid until [`Upcall::revoke`] has
    /// returned.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) unsafe fn new(target: *mut C) -> Result<Self>
    where
        C: RaisesEvents,
    {
        // SAFETY: The caller guarantees that `target` is valid and being created, so its uobject is
        // set.
        let events = unsafe { AsyncEvents::of(target) };
        // INVARIANT: The caller guarantees that `target` is valid until `revoke` has returned.
        // `revoke` sets `object` to null, and then waits until `running` is zero.
        let target = pin_init!(Target {
            object: AtomicPtr::new(target),
            running: Atomic::new(0),
            events <- events,
        });
        Ok(Self(Arc::pin_init(target, GFP_KERNEL_ACCOUNT)?))
    }

    /// Disables all future calls, and waits for the end of those that are running.
    ///
    /// # Context
    ///
    /// Process; sleeps.
    pub(crate) fn revoke(&self) {
        self.0.object.store(ptr::null_mut(), Ordering::Relaxed);
        // A call that raises `running` after this barrier reads the null pointer. The loop below
        // waits for all others.
        smp_mb(Full);
        while self.0.running.load(Acquire) != 0 {
            fsleep(POLL_INTERVAL);
        }
    }

    /// Runs `call` with the object, unless the upcall is revoked. Executes a full memory barrier
    /// before.
    pub(crate) fn with(&self, call: impl FnOnce(*mut C)) {
        // The increment is fully ordered before the load of `object`. Either `revoke` sees it and
        // waits, or the load returns null.
        self.0.running.fetch_add(1, Full);
        let object = self.0.object.load(Ordering::Acquire);
        if !object.is_null() {
            call(object);
        }
        self.0.running.fetch_sub(1, Release);
    }

    /// Runs `call`, which raises an asynchronous event, with the object. Does nothing if the upcall
    /// is revoked, or if [`AsyncEvents::admits`] refuses the event. The third and later unread
    /// events of an object need the quota that `claim` claims.
    fn raise(&self, claim: impl FnOnce() -> Option<Claims>, call: impl FnOnce(*mut C))
    where
        C: RaisesEvents,
    {
        self.with(|object| {
            // SAFETY: By the type invariant the object is valid while this call runs.
            if unsafe { self.0.events.admits(object, claim) } {
                call(object);
            }
        });
    }
}

/// An upcall to an `ib_cq`.
pub type CqUpcall = Upcall<bindings::ib_cq>;

impl CqUpcall {
    /// Calls the completion handler (`ib_cq.comp_handler`). Any context; the caller must hold no
    /// lock.
    pub fn complete(&self) {
        self.with(|cq| {
            // SAFETY: By the type invariant the object is valid while this call runs.
            let (handler, context) = unsafe { ((*cq).comp_handler, (*cq).cq_context) };
            if let Some(handler) = handler {
                // SAFETY: The handler is this CQ's own, so it takes the CQ and its context.
                unsafe { handler(cq, context) };
            }
        });
    }

    /// Waits until the work item has run in which an in-kernel consumer polls the CQ
    /// (`IB_POLL_WORKQUEUE`, `IB_POLL_UNBOUND_WORKQUEUE`), if one is queued or runs. The work item
    /// may have queued itself again. Process context; sleeps. Must not be called from that work
    /// item.
    pub fn settle(&self) {
        self.with(|cq| {
            // SAFETY: By the type invariant the object is valid while this call runs.
            let context = unsafe { (*cq).poll_ctx };
            let by_thread = matches!(
                context,
                bindings::ib_poll_context_IB_POLL_WORKQUEUE
                    | bindings::ib_poll_context_IB_POLL_UNBOUND_WORKQUEUE
            );
            if by_thread {
                // SAFETY: The object is valid, as above. A CQ with this poll context uses the work
                // item of the union.
                unsafe { bindings::flush_work(&raw mut (*cq).__bindgen_anon_1.work) };
            }
        });
    }

    /// Reports `IB_EVENT_CQ_ERR`. The third and later unread events need the quota that `claim`
    /// claims. Any context up to softirq; the caller must hold no lock.
    pub fn overflowed(&self, claim: impl FnOnce() -> Option<Claims>) {
        self.raise(claim, |cq| {
            // SAFETY: By the type invariant the object is valid while this call runs.
            let (handler, context) = unsafe { ((*cq).event_handler, (*cq).cq_context) };
            let Some(handler) = handler else { return };
            let mut event: bindings::ib_event = pin_init::zeroed();
            // SAFETY: By the type invariant the object is valid while this call runs.
            event.device = unsafe { (*cq).device };
            event.element.cq = cq;
            event.event = bindings::ib_event_type_IB_EVENT_CQ_ERR;
            // SAFETY: The handler is this CQ's own, so it takes an event of the CQ and its context.
            unsafe { handler(&mut event, context) };
        });
    }
}

/// An upcall to an `ib_qp`.
pub type QpUpcall = Upcall<bindings::ib_qp>;

/// The `ib_qp` pointer by which in-kernel consumers know a QP, as a number. The driver passes it to
/// consumers and never dereferences it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct IbQpHandle(usize);

impl IbQpHandle {
    /// The handle of no QP: the null pointer.
    pub const NONE: Self = Self(0);

    /// Returns the `ib_qp` pointer. The `ib_qp` exists only while the consumer has not destroyed
    /// it.
    pub(crate) fn as_ptr(self) -> *mut bindings::ib_qp {
        ptr::with_exposed_provenance_mut(self.0)
    }
}

impl QpUpcall {
    /// Returns the handle that completions of the QP carry for in-kernel consumers (`ib_wc.qp`).
    /// Any context.
    pub fn handle(&self) -> IbQpHandle {
        IbQpHandle(self.0.object.load(Ordering::Relaxed).expose_provenance())
    }

    /// Reports an asynchronous event. The third and later unread events need the quota that `claim`
    /// claims. Any context up to softirq; the caller must hold no lock.
    pub fn event(&self, event: roce::host::Event, claim: impl FnOnce() -> Option<Claims>) {
        use roce::host::Event;
        let kind = match event {
            Event::CommEst => bindings::ib_event_type_IB_EVENT_COMM_EST,
            Event::SqDrained => bindings::ib_event_type_IB_EVENT_SQ_DRAINED,
            Event::QpFatal => bindings::ib_event_type_IB_EVENT_QP_FATAL,
            Event::QpReqErr => bindings::ib_event_type_IB_EVENT_QP_REQ_ERR,
            Event::QpAccessErr => bindings::ib_event_type_IB_EVENT_QP_ACCESS_ERR,
            Event::LastWqeReached => bindings::ib_event_type_IB_EVENT_QP_LAST_WQE_REACHED,
        };
        self.raise(claim, |qp| {
            // SAFETY: By the type invariant the object is valid while this call runs.
            let (handler, context) = unsafe { ((*qp).event_handler, (*qp).qp_context) };
            let Some(handler) = handler else { return };
            let mut event: bindings::ib_event = pin_init::zeroed();
            // SAFETY: By the type invariant the object is valid while this call runs.
            event.device = unsafe { (*qp).device };
            event.element.qp = qp;
            event.event = kind;
            // SAFETY: The handler is this QP's own, so it takes an event of the QP and its context.
            unsafe { handler(&mut event, context) };
        });
    }
}

/// An upcall to an `ib_srq`.
pub type SrqUpcall = Upcall<bindings::ib_srq>;

impl SrqUpcall {
    /// Reports `IB_EVENT_SRQ_LIMIT_REACHED`. The third and later unread events need the quota that
    /// `claim` claims. Any context up to softirq; the caller must hold no lock.
    pub fn limit_reached(&self, claim: impl FnOnce() -> Option<Claims>) {
        self.report(bindings::ib_event_type_IB_EVENT_SRQ_LIMIT_REACHED, claim);
    }

    /// Reports `IB_EVENT_SRQ_ERR`. Argument and context are those of [`Self::limit_reached`].
    pub fn failed(&self, claim: impl FnOnce() -> Option<Claims>) {
        self.report(bindings::ib_event_type_IB_EVENT_SRQ_ERR, claim);
    }

    fn report(&self, kind: bindings::ib_event_type, claim: impl FnOnce() -> Option<Claims>) {
        self.raise(claim, |srq| {
            // SAFETY: By the type invariant the object is valid while this call runs.
            let (handler, context) = unsafe { ((*srq).event_handler, (*srq).srq_context) };
            let Some(handler) = handler else { return };
            let mut event: bindings::ib_event = pin_init::zeroed();
            // SAFETY: By the type invariant the object is valid while this call runs.
            event.device = unsafe { (*srq).device };
            event.element.srq = srq;
            event.event = kind;
            // SAFETY: The handler is this queue's own. So it takes an event of the queue and its
            // context.
            unsafe { handler(&mut event, context) };
        });
    }
}
