// SPDX-License-Identifier: GPL-2.0

//! Limits on the unread events that uverbs keeps for a process.
//!
//! `ib_uverbs_comp_handler()` and `ib_uverbs_async_handler()`
//! (drivers/infiniband/core/uverbs_main.c) allocate an event for each notification. The event is
//! charged to no account, and is kept until the process reads it. A process that reads no events
//! would make the kernel keep events without limit. When the process closes their file, the kernel
//! frees all of them with interrupts disabled (`ib_uverbs_free_event_queue()`, uverbs_std_types.c).
//! So the driver checks whether events of an object are unread, and raises no more once there are
//! many.
//!
//! The lists of unread events are in structures that are private to uverbs. Rust mirrors these
//! structures ([`UserObject`], [`UserCq`]), and checks the mirror when the object is created:
//! uverbs initialises the lists before it calls the driver, so each list head points to itself. If
//! the memory at the place of a list does not point to itself, the layout differs, and the lists
//! are not used.

use core::ffi::c_void;

use kernel::{bindings::list_head, prelude::*, static_lock_class, str::CStr};

use crate::{
    bindings,
    support::{quota::Claims, sync::BhSpinLock},
    verbs::upcall::CqUpcall,
};

/// Name of the lock for lockdep, which compares the addresses of names. A literal in a generic
/// function would have several addresses.
static NAME: &CStr = c"rrxe_raised";

/// Number of unread asynchronous events that any object may have: the error of a QP, and the
/// `LAST_WQE_REACHED` that follows. More events need quota, which a process's accounts have for a
/// limited number of objects only.
const MAX_WITHOUT_QUOTA: u32 = 2;

/// Number of unread asynchronous events that an object with quota may have.
const MAX_UNREAD: u32 = 16;

/// Number of asynchronous events of an object in its life, if its unread events can't be seen.
const MAX_RAISED: u32 = 1024;

/// Number of asynchronous events of an XRC target QP in its life. For each event uverbs allocates
/// one copy per handle of the target, and keeps it until it is read or the handle is closed. The
/// copies of 64 events take 4 KiB for each handle. A connection causes two events at most, one of
/// which reports its error. So the limit suffices for 32 connections.
const MAX_RAISED_BY_TARGET: u32 = 64;

/// Number of handles of an XRC target QP beyond which the QP raises no events. An event goes to all
/// handles, with interrupts disabled (`__ib_shared_qp_event_handler()`,
/// drivers/infiniband/core/verbs.c), and processes may open any number of handles.
const MAX_HANDLES: u32 = 4096;

/// Mirror of `struct ib_uevent_object` (drivers/infiniband/core/uverbs.h), which contains the list
/// of asynchronous events.
#[repr(C)]
pub(crate) struct UserObject {
    uobject: bindings::ib_uobject,
    event_file: *mut c_void,
    event_list: list_head,
    events_reported: u32,
}

/// Mirror of the beginning of `struct ib_ucq_object` (drivers/infiniband/core/uverbs.h), up to the
/// list of completion events.
#[repr(C)]
struct UserCq {
    object: UserObject,
    comp_list: list_head,
}

/// A C object that raises asynchronous events.
pub(crate) trait RaisesEvents {
    /// Returns the structure of uverbs that belongs to the object, or null for an object of an
    /// in-kernel consumer.
    fn user_object(&self) -> *mut UserObject;

    /// Returns whether the object is shared: any number of structures of uverbs refer to it, and
    /// that number changes.
    fn is_shared(&self) -> bool {
        false
    }

    /// Returns the number of handles of a shared object. Any context.
    ///
    /// # Safety
    ///
    /// `object` must be alive.
    unsafe fn handles(_object: *const Self) -> u32 {
        0
    }
}

impl RaisesEvents for bindings::ib_cq {
    fn user_object(&self) -> *mut UserObject {
        self.uobject.cast()
    }
}

impl RaisesEvents for bindings::ib_srq {
    fn user_object(&self) -> *mut UserObject {
        self.uobject.cast()
    }
}

impl RaisesEvents for bindings::ib_qp {
    fn user_object(&self) -> *mut UserObject {
        self.uobject.cast()
    }

    /// An XRC target QP is shared: its `ib_qp` refers to no structure of uverbs
    /// (`ib_create_qp_user()` of verbs.c), and outlives the handle that created it
    /// (`__ib_destroy_shared_qp()`).
    fn is_shared(&self) -> bool {
        self.qp_type == bindings::ib_qp_type_IB_QPT_XRC_TGT
    }

    /// ib_core counts the handles of an XRC target QP in `usecnt` (`__ib_open_qp()` of verbs.c).
    unsafe fn handles(object: *const Self) -> u32 {
        // SAFETY: The caller guarantees that `object` is alive. The read is volatile because the
        // count may change meanwhile.
        let count = unsafe { (&raw const (*object).usecnt.counter).read_volatile() };
        u32::try_from(count).unwrap_or(0)
    }
}

/// The place where the events of an object are kept until they are read.
enum EventStore {
    /// No place: events call a function of an in-kernel consumer.
    None,
    /// The list of uverbs that [`UserObject`] mirrors.
    List,
    /// The lists of uverbs for the handles of an XRC target QP.
    Handles,
    /// A list of uverbs whose place is unknown.
    Unknown,
}

/// The asynchronous events of an object that may be unread.
struct EventCount {
    /// Number of events since the list was last empty, or since the object was created.
    count: u32,
    /// Quota for more than [`MAX_WITHOUT_QUOTA`] events, if it was claimed.
    quota: Option<Claims>,
}

impl EventCount {
    fn none() -> Self {
        Self {
            count: 0,
            quota: None,
        }
    }

    /// Counts one more event if fewer than `most` are counted, or fewer than
    /// [`MAX_WITHOUT_QUOTA`] without quota. Returns whether it was counted.
    fn add(&mut self, most: u32, claim: impl FnOnce() -> Option<Claims>) -> bool {
        if self.count >= MAX_WITHOUT_QUOTA && self.quota.is_none() {
            self.quota = claim();
        }
        let limit = match self.quota {
            Some(_) => most,
            None => MAX_WITHOUT_QUOTA,
        };
        let adds = self.count < limit;
        if adds {
            self.count = self.count.saturating_add(1);
        }
        adds
    }
}

/// Limit on the unread asynchronous events of an object.
#[pin_data]
pub(crate) struct AsyncEvents {
    store: EventStore,
    #[pin]
    raised: BhSpinLock<EventCount>,
}

impl AsyncEvents {
    /// Creates the limit for `object`.
    ///
    /// # Safety
    ///
    /// ib_core must be creating `object`, and must have set its uobject.
    pub(crate) unsafe fn of<C: RaisesEvents>(object: *const C) -> impl PinInit<Self> {
        // SAFETY: The caller guarantees that `object` is being created, so it is valid.
        let object = unsafe { &*object };
        let user = object.user_object();
        let store = if object.is_shared() {
            EventStore::Handles
        } else if user.is_null() {
            EventStore::None
        // SAFETY: uverbs allocated it, at least as large as `UserObject`, before it called the
        // driver.
        } else if unsafe { is_empty(&raw mut (*user).event_list) } {
            EventStore::List
        } else {
            EventStore::Unknown
        };
        pin_init!(Self {
            store,
            raised <- BhSpinLock::new(EventCount::none(), NAME, static_lock_class!()),
        })
    }

    /// Counts an asynchronous event. Returns whether it may be raised. `claim` claims quota,
    /// and is called if the object has none and already has [`MAX_WITHOUT_QUOTA`] unread
    /// events. Any context up to softirq.
    ///
    /// # Safety
    ///
    /// `object` must be the object that this limit was created for, and must be alive.
    pub(crate) unsafe fn admits<C: RaisesEvents>(
        &self,
        object: *const C,
        claim: impl FnOnce() -> Option<Claims>,
    ) -> bool {
        let mut raised = self.raised.lock();
        let most = match self.store {
            EventStore::None => return true,
            EventStore::List => {
                // SAFETY: The caller guarantees that `object` is alive.
                let user = unsafe { (*object).user_object() };
                // SAFETY: The structure was recognised as a `UserObject`, and lives as long as the
                // object.
                if unsafe { is_empty(&raw mut (*user).event_list) } {
                    *raised = EventCount::none();
                }
                MAX_UNREAD
            }
            // SAFETY: The caller guarantees that `object` is alive.
            EventStore::Handles if unsafe { C::handles(object) } > MAX_HANDLES => return false,
            EventStore::Handles => MAX_RAISED_BY_TARGET,
            EventStore::Unknown => MAX_RAISED,
        };
        // Several threads may exceed the limit by one event each: an event is admitted before it is
        // in the list, so the list may be empty while `count` is reset.
        raised.add(most, claim)
    }
}

/// View of the unread completion events of a process's CQ.
///
/// # Invariants
///
/// While the upcall is not revoked, `uobject` of its CQ points to an object that begins like
/// [`UserCq`].
pub struct CqEvents(CqUpcall);

impl CqEvents {
    /// Creates the view for `cq`, if uverbs keeps its events in the list that [`UserCq`] mirrors.
    /// Returns `None` if that is not so, or if `cq` belongs to an in-kernel consumer.
    ///
    /// # Safety
    ///
    /// ib_core must be creating `cq`, and `upcall` must be an upcall to `cq`.
    pub(crate) unsafe fn of(cq: *mut bindings::ib_cq, upcall: &CqUpcall) -> Option<Self> {
        // SAFETY: The caller guarantees that `cq` is being created, so it is valid.
        let object: *mut UserCq = unsafe { (*cq).uobject }.cast();
        if object.is_null() {
            return None;
        }
        // SAFETY: uverbs allocated the object, at least as large as `UserCq`
        // (`uverbs_std_types_cq.c`).
        let lists = unsafe {
            [
                &raw mut (*object).object.event_list,
                &raw mut (*object).comp_list,
            ]
        };
        // SAFETY: Both lists are within the object.
        let known = lists.into_iter().all(|list| unsafe { is_empty(list) });
        // INVARIANT: Both list heads point to themselves, so the object begins like `UserCq`.
        // uverbs frees the object after the driver's CQ, whose destruction revokes the upcall.
        known.then(|| Self(upcall.clone()))
    }

    /// Returns whether a completion event of the CQ waits for its process. Returns `false` once the
    /// upcall is revoked. Any context.
    ///
    /// A full memory barrier precedes the check. So a process that reads an event found here also
    /// sees all that was written before this call.
    pub fn is_unread(&self) -> bool {
        let mut unread = false;
        self.0.with(|cq| {
            // SAFETY: The CQ is valid while this call runs, by the invariant of `Upcall`.
            let object: *mut UserCq = unsafe { (*cq).uobject }.cast();
            // SAFETY: By the type invariant the object begins like `UserCq`.
            let list = unsafe { &raw mut (*object).comp_list };
            // SAFETY: The list is part of the object, which is valid.
            unread = unsafe { !is_empty(list) };
        });
        unread
    }
}

/// Returns whether a list head points to itself. uverbs may change the list meanwhile.
///
/// # Safety
///
/// `list` must be valid for reads.
pub(crate) unsafe fn is_empty(list: *mut list_head) -> bool {
    // SAFETY: The caller guarantees that `list` is valid for reads.
    let next = unsafe { (&raw const (*list).next).read_volatile() };
    core::ptr::eq(next, list)
}

#[kunit_tests(rrxe_unread)]
mod tests {
    use super::*;

    use crate::support::quota::Quota;

    /// Returns how many of 100 events a new XRC target QP raises that has `handles` handles.
    /// `has_quota` says whether there is quota for more than [`MAX_WITHOUT_QUOTA`].
    fn raised_with(handles: u32, has_quota: bool) -> Result<usize> {
        let quota = Quota::new(has_quota.into())?;
        let mut qp = KBox::new(bindings::ib_qp::default(), GFP_KERNEL)?;
        qp.qp_type = bindings::ib_qp_type_IB_QPT_XRC_TGT;
        qp.usecnt.counter = handles as i32;
        // SAFETY: The QP is initialised as far as `AsyncEvents` reads a QP that is being created.
        let events = KBox::pin_init(unsafe { AsyncEvents::of(&raw const *qp) }, GFP_KERNEL)?;
        let claim = || Some([None, Some(quota.claim().ok()?)]);
        // SAFETY: `events` was created for this QP, which is alive.
        let admits = || unsafe { events.admits(&raw const *qp, claim) };
        Ok((0..100).filter(|_| admits()).count())
    }

    #[test]
    fn an_xrc_target_with_too_many_handles_raises_no_events() -> Result {
        assert_eq!(raised_with(1, true)?, MAX_RAISED_BY_TARGET as usize);
        assert_eq!(
            raised_with(MAX_HANDLES, true)?,
            MAX_RAISED_BY_TARGET as usize
        );
        assert_eq!(raised_with(MAX_HANDLES + 1, true)?, 0);
        Ok(())
    }

    #[test]
    fn without_quota_an_object_raises_two_events() -> Result {
        assert_eq!(raised_with(1, false)?, MAX_WITHOUT_QUOTA as usize);
        Ok(())
    }
}
