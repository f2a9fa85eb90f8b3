// SPDX-License-Identifier: GPL-2.0

//! Calls up into the core: completion notifications and asynchronous events.
//!
//! An object of the driver lives by reference count and may be in use after the core has freed the
//! verbs object in front of it. An [`Upcall`] is the only way from the one to the other; the
//! provider glue revokes it before the core may free the object.

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
        Arc,
    },
    time::{delay::fsleep, Delta},
};

use crate::{
    bindings,
    support::{quota::Claims, sync::smp_mb},
    verbs::unread::{AsyncEvents, Raises},
};

/// How long to sleep before looking again whether a call has returned.
const NAP: Delta = Delta::from_micros(50);

/// A revocable way to the verbs object `C` in front of an object of the driver.
///
/// # Invariants
///
/// The pointer is null, or to an object that is not freed before it was set to null and nobody is
/// between raising and lowering `running` any more.
pub struct Upcall<C>(Arc<Target<C>>);

#[pin_data]
struct Target<C> {
    object: AtomicPtr<C>,
    /// Calls that are running.
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
    /// The way to `target`.
    ///
    /// # Safety
    ///
    /// `target` stays valid until [`Upcall::revoke`] has returned. ib_core is making it.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) unsafe fn new(target: *mut C) -> Result<Self>
    where
        C: Raises,
    {
        // SAFETY: The caller's promise.
        let events = unsafe { AsyncEvents::of(target) };
        // INVARIANT: The caller's promise.
        let target = pin_init!(Target {
            object: AtomicPtr::new(target),
            running: Atomic::new(0),
            events <- events,
        });
        Ok(Self(Arc::pin_init(target, GFP_KERNEL_ACCOUNT)?))
    }

    /// Makes all calls void, and waits for those that are running.
    ///
    /// # Context
    ///
    /// Process; sleeps.
    pub(crate) fn revoke(&self) {
        self.0.object.store(ptr::null_mut(), Ordering::Relaxed);
        // A call that isn't counted below sees the null pointer.
        smp_mb();
        while self.0.running.load(Acquire) != 0 {
            fsleep(NAP);
        }
    }

    /// Runs `call` on the object if it is still there. There is a full barrier before.
    pub(crate) fn with(&self, call: impl FnOnce(*mut C)) {
        // Fully ordered, before the pointer is read: `revoke` sees either this, or leaves null here.
        self.0.running.fetch_add(1, Full);
        let object = self.0.object.load(Ordering::Acquire);
        if !object.is_null() {
            call(object);
        }
        self.0.running.fetch_sub(1, Release);
    }

    /// Runs `call`, which raises an asynchronous event, on the object if it is still there and its process has not left
    /// too many unread. `claim` takes the room for more than a few.
    fn raise(&self, claim: impl FnOnce() -> Option<Claims>, call: impl FnOnce(*mut C))
    where
        C: Raises,
    {
        self.with(|object| {
            // SAFETY: By the type invariant the object is valid while this call runs.
            if unsafe { self.0.events.admits(object, claim) } {
                call(object);
            }
        });
    }
}

/// The way to an `ib_cq`.
pub type CqUpcall = Upcall<bindings::ib_cq>;

impl CqUpcall {
    /// Calls the completion handler. Any context, outside all locks.
    pub fn complete(&self) {
        self.with(|cq| {
            // SAFETY: By the type invariant the object is valid while this call runs.
            let (handler, context) = unsafe { ((*cq).comp_handler, (*cq).cq_context) };
            if let Some(handler) = handler {
                // SAFETY: The handler takes its own CQ and context.
                unsafe { handler(cq, context) };
            }
        });
    }

    /// Waits until the kernel's consumer has taken what was in the CQ, if it does so in a thread. Process context; sleeps;
    /// not from the work item that takes it.
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
                // SAFETY: As above; the item is the one of the union that such a CQ has.
                unsafe { bindings::flush_work(&raw mut (*cq).__bindgen_anon_1.work) };
            }
        });
    }

    /// Reports `IB_EVENT_CQ_ERR`. `claim` takes the room for more than a few unread events. Any context up to softirq,
    /// outside all locks.
    pub fn overflowed(&self, claim: impl FnOnce() -> Option<Claims>) {
        self.raise(claim, |cq| {
            // SAFETY: By the type invariant the object is valid while this call runs.
            let (handler, context) = unsafe { ((*cq).event_handler, (*cq).cq_context) };
            let Some(handler) = handler else { return };
            let mut event: bindings::ib_event = pin_init::zeroed();
            // SAFETY: As above.
            event.device = unsafe { (*cq).device };
            event.element.cq = cq;
            event.event = bindings::ib_event_type_IB_EVENT_CQ_ERR;
            // SAFETY: The handler takes an event of its own CQ and the context.
            unsafe { handler(&mut event, context) };
        });
    }
}

/// The way to an `ib_qp`.
pub type QpUpcall = Upcall<bindings::ib_qp>;

/// What the kernel's consumers know a QP by. It is passed on to them, never used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct QpToken(usize);

impl QpToken {
    /// That of no QP.
    pub const NONE: Self = Self(0);

    /// The `ib_qp`, which the consumer must not have destroyed.
    pub(crate) fn as_ptr(self) -> *mut bindings::ib_qp {
        ptr::with_exposed_provenance_mut(self.0)
    }
}

impl QpUpcall {
    /// What completions of the QP carry for the kernel's consumers. Any context.
    pub fn token(&self) -> QpToken {
        QpToken(self.0.object.load(Ordering::Relaxed).expose_provenance())
    }

    /// Reports an asynchronous event. `claim` takes the room for more than a few unread ones. Any context up to softirq,
    /// outside all locks.
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
            // SAFETY: As above.
            event.device = unsafe { (*qp).device };
            event.element.qp = qp;
            event.event = kind;
            // SAFETY: The handler takes an event of its own QP and the context.
            unsafe { handler(&mut event, context) };
        });
    }
}

/// The way to an `ib_srq`.
pub type SrqUpcall = Upcall<bindings::ib_srq>;

impl SrqUpcall {
    /// Reports `IB_EVENT_SRQ_LIMIT_REACHED`. `claim` takes the room for more than a few unread events. Any context up to
    /// softirq, outside all locks.
    pub fn limit_reached(&self, claim: impl FnOnce() -> Option<Claims>) {
        self.report(bindings::ib_event_type_IB_EVENT_SRQ_LIMIT_REACHED, claim);
    }

    /// Reports `IB_EVENT_SRQ_ERR`, as [`Self::limit_reached`].
    pub fn failed(&self, claim: impl FnOnce() -> Option<Claims>) {
        self.report(bindings::ib_event_type_IB_EVENT_SRQ_ERR, claim);
    }

    fn report(&self, kind: bindings::ib_event_type, claim: impl FnOnce() -> Option<Claims>) {
        self.raise(claim, |srq| {
            // SAFETY: By the type invariant the object is valid while this call runs.
            let (handler, context) = unsafe { ((*srq).event_handler, (*srq).srq_context) };
            let Some(handler) = handler else { return };
            let mut event: bindings::ib_event = pin_init::zeroed();
            // SAFETY: As above.
            event.device = unsafe { (*srq).device };
            event.element.srq = srq;
            event.event = kind;
            // SAFETY: The handler takes an event of its own queue and the context.
            unsafe { handler(&mut event, context) };
        });
    }
}
