// SPDX-License-Identifier: GPL-2.0

//! The events that uverbs keeps for a process.
//!
//! `ib_uverbs_comp_handler()` and `ib_uverbs_async_handler()` (drivers/infiniband/core/uverbs_main.c) allocate
//! an event for each notification, charged to nobody, and keep it until the process reads it. A process
//! that reads none would make the kernel keep events without limit, and free all of them with interrupts disabled when it
//! closes their file (`ib_uverbs_free_event_queue()`, uverbs_std_types.c). So a driver looks whether events of an object
//! are unread, and does not add to many of them. The lists of these are in structures that only uverbs knows.
//! They are recognised when the object is made. uverbs initialises the lists before it calls the driver, so they point
//! to themselves. A place that does not point to itself is something else.

use core::ffi::c_void;

use kernel::{bindings::list_head, prelude::*, static_lock_class, str::CStr};

use crate::{
    bindings,
    support::{quota::Claims, sync::BhSpinLock},
    verbs::upcall::CqUpcall,
};

/// Of the lock, for lockdep, which compares addresses of names. A literal in a generic function has several.
static NAME: &CStr = c"rrxe_raised";

/// Asynchronous events that any object may have unread: the error of a QP, and `LAST_WQE_REACHED` after it. More take
/// room that the accounts of the process have for a number of objects only.
const FEW: u32 = 2;

/// Asynchronous events of an object that may be unread.
const MAX_UNREAD: u32 = 16;

/// Asynchronous events of an object whose unread ones are not known, in its life.
const MAX_RAISED: u32 = 1024;

/// Asynchronous events of an XRC target QP, in its life. uverbs allocates each once for each handle of the target, and
/// keeps it until it is read or the handle is closed: 4 KiB for each handle. A connection takes two at most, of which
/// one tells of its error, so they do for 32 connections.
const MAX_RAISED_BY_TARGET: u32 = 64;

/// Handles of an XRC target QP beyond which it raises no events. An event goes to all handles, with interrupts off
/// (`__ib_shared_qp_event_handler()`, drivers/infiniband/core/verbs.c), and processes open as many as they like.
const MAX_HANDLES: u32 = 4096;

/// `struct ib_uevent_object` of drivers/infiniband/core/uverbs.h, up to the list of asynchronous events.
#[repr(C)]
pub(crate) struct UserObject {
    uobject: bindings::ib_uobject,
    event_file: *mut c_void,
    event_list: list_head,
    events_reported: u32,
}

/// `struct ib_ucq_object` of drivers/infiniband/core/uverbs.h, up to the list of completion events.
#[repr(C)]
struct UserCq {
    object: UserObject,
    comp_list: list_head,
}

/// A C object that raises asynchronous events.
pub(crate) trait Raises {
    /// The structure of uverbs in front of it. Null for an object of the kernel.
    fn user_object(&self) -> *mut UserObject;

    /// The object is shared: it may have several structures of uverbs or none, and they come and go.
    fn is_shared(&self) -> bool {
        false
    }

    /// How many handles a shared object has. Any context.
    ///
    /// # Safety
    ///
    /// `object` is alive.
    unsafe fn handles(_object: *const Self) -> u32 {
        0
    }
}

impl Raises for bindings::ib_cq {
    fn user_object(&self) -> *mut UserObject {
        self.uobject.cast()
    }
}

impl Raises for bindings::ib_srq {
    fn user_object(&self) -> *mut UserObject {
        self.uobject.cast()
    }
}

impl Raises for bindings::ib_qp {
    fn user_object(&self) -> *mut UserObject {
        self.uobject.cast()
    }

    /// An XRC target QP has none (`create_xrc_qp_user()` of verbs.c), and outlives the handle that it was made with
    /// (`__ib_destroy_shared_qp()`).
    fn is_shared(&self) -> bool {
        self.qp_type == bindings::ib_qp_type_IB_QPT_XRC_TGT
    }

    /// ib_core counts each in `usecnt` (`__ib_open_qp()` of verbs.c).
    unsafe fn handles(object: *const Self) -> u32 {
        // SAFETY: The caller's promise. The count may change meanwhile.
        let count = unsafe { (&raw const (*object).usecnt.counter).read_volatile() };
        u32::try_from(count).unwrap_or(0)
    }
}

/// The keeper of the events of an object until they are read.
enum Keeper {
    /// None: a consumer in the kernel is called.
    None,
    /// uverbs, in the list that is known here.
    List,
    /// uverbs, in the lists of the handles of an XRC target QP.
    Handles,
    /// uverbs, in a list that is not known here.
    Other,
}

/// The events of an object that may be unread.
struct Raised {
    /// Those since the list was empty, or since the object was made.
    count: u32,
    /// Their part of the limits of the process's accounts, if they are more than [`FEW`].
    room: Option<Claims>,
}

impl Raised {
    fn none() -> Self {
        Self {
            count: 0,
            room: None,
        }
    }

    /// Counts one more, unless there are `most`, or [`FEW`] without room for more.
    fn add(&mut self, most: u32, claim: impl FnOnce() -> Option<Claims>) -> bool {
        if self.count >= FEW && self.room.is_none() {
            self.room = claim();
        }
        let limit = match self.room {
            Some(_) => most,
            None => FEW,
        };
        let adds = self.count < limit;
        if adds {
            self.count = self.count.saturating_add(1);
        }
        adds
    }
}

/// Bounds the asynchronous events of an object that its process has not read.
#[pin_data]
pub(crate) struct AsyncEvents {
    keeper: Keeper,
    #[pin]
    raised: BhSpinLock<Raised>,
}

impl AsyncEvents {
    /// Those of an object.
    ///
    /// # Safety
    ///
    /// `object` is being made by ib_core, which has set its uobject.
    pub(crate) unsafe fn of<C: Raises>(object: *const C) -> impl PinInit<Self> {
        // SAFETY: The caller's promise.
        let object = unsafe { &*object };
        let user = object.user_object();
        let keeper = if object.is_shared() {
            Keeper::Handles
        } else if user.is_null() {
            Keeper::None
        // SAFETY: uverbs allocated it, at least as large as `UserObject`, before the driver was called.
        } else if unsafe { is_empty(&raw mut (*user).event_list) } {
            Keeper::List
        } else {
            Keeper::Other
        };
        pin_init!(Self {
            keeper,
            raised <- BhSpinLock::new(Raised::none(), NAME, static_lock_class!()),
        })
    }

    /// Counts an event. Returns whether it may be raised; `claim` takes the room for more than a few unread ones. Any context
    /// up to softirq.
    ///
    /// # Safety
    ///
    /// `object` is the one that this was made for, and is alive.
    pub(crate) unsafe fn admits<C: Raises>(
        &self,
        object: *const C,
        claim: impl FnOnce() -> Option<Claims>,
    ) -> bool {
        let mut raised = self.raised.lock();
        let most = match self.keeper {
            Keeper::None => return true,
            Keeper::List => {
                // SAFETY: The caller's promise.
                let user = unsafe { (*object).user_object() };
                // SAFETY: The structure was recognised, and lasts as long as the object.
                if unsafe { is_empty(&raw mut (*user).event_list) } {
                    *raised = Raised::none();
                }
                MAX_UNREAD
            }
            // SAFETY: The caller's promise.
            Keeper::Handles if unsafe { C::handles(object) } > MAX_HANDLES => return false,
            Keeper::Handles => MAX_RAISED_BY_TARGET,
            Keeper::Other => MAX_RAISED,
        };
        // Each thread that has not yet added the event it was admitted with may exceed the limit by one.
        raised.add(most, claim)
    }
}

/// The events of a process's CQ.
///
/// # Invariants
///
/// While the upcall is not revoked, `uobject` of its CQ points to an object that begins like [`UserCq`].
pub struct CqEvents(CqUpcall);

impl CqEvents {
    /// Those of `cq`, if uverbs keeps them in the list that is known here. `None` for a CQ of the kernel.
    ///
    /// # Safety
    ///
    /// `cq` is being made by ib_core, and `upcall` leads to it.
    pub(crate) unsafe fn of(cq: *mut bindings::ib_cq, upcall: &CqUpcall) -> Option<Self> {
        // SAFETY: The caller's promise.
        let object: *mut UserCq = unsafe { (*cq).uobject }.cast();
        if object.is_null() {
            return None;
        }
        // SAFETY: uverbs allocated the object, at least as large as `UserCq` (`uverbs_std_types_cq.c`).
        let lists = unsafe {
            [
                &raw mut (*object).object.event_list,
                &raw mut (*object).comp_list,
            ]
        };
        // SAFETY: They are within the object.
        let known = lists.into_iter().all(|list| unsafe { is_empty(list) });
        // INVARIANT: Lists that point to themselves are at the places of `UserCq`, and uverbs frees the
        // object after the driver's CQ, whose destruction revokes the upcall.
        known.then(|| Self(upcall.clone()))
    }

    /// An event of the CQ waits for its process. Any context; there is a full barrier before it looks, so an
    /// event that is found unread is read after all that was written before this.
    pub fn is_unread(&self) -> bool {
        let mut unread = false;
        self.0.with(|cq| {
            // SAFETY: The CQ is valid while this call runs.
            let object: *mut UserCq = unsafe { (*cq).uobject }.cast();
            // SAFETY: By the type invariant the object has a list there.
            let list = unsafe { &raw mut (*object).comp_list };
            // SAFETY: The list is valid as is the object.
            unread = unsafe { !is_empty(list) };
        });
        unread
    }
}

/// Whether a list points to itself. uverbs may change it meanwhile.
///
/// # Safety
///
/// `list` is valid for reads.
pub(crate) unsafe fn is_empty(list: *mut list_head) -> bool {
    // SAFETY: The caller's promise.
    let next = unsafe { (&raw const (*list).next).read_volatile() };
    core::ptr::eq(next, list)
}

#[kunit_tests(rrxe_unread)]
mod tests {
    use super::*;

    use crate::support::quota::Quota;

    /// How many of 100 events a new XRC target QP with so many handles raises, if there is room for more than a few, or not.
    fn raised_with(handles: u32, room: bool) -> Result<usize> {
        let quota = Quota::new(room.into())?;
        let mut qp = KBox::new(bindings::ib_qp::default(), GFP_KERNEL)?;
        qp.qp_type = bindings::ib_qp_type_IB_QPT_XRC_TGT;
        qp.usecnt.counter = handles as i32;
        // SAFETY: It has all that is looked at of one that is being made.
        let events = KBox::pin_init(unsafe { AsyncEvents::of(&raw const *qp) }, GFP_KERNEL)?;
        let claim = || Some([None, Some(quota.claim().ok()?)]);
        // SAFETY: It is the same, and alive.
        let admits = || unsafe { events.admits(&raw const *qp, claim) };
        Ok((0..100).filter(|_| admits()).count())
    }

    #[test]
    fn a_target_with_too_many_handles_raises_no_events() -> Result {
        assert_eq!(raised_with(1, true)?, MAX_RAISED_BY_TARGET as usize);
        assert_eq!(
            raised_with(MAX_HANDLES, true)?,
            MAX_RAISED_BY_TARGET as usize
        );
        assert_eq!(raised_with(MAX_HANDLES + 1, true)?, 0);
        Ok(())
    }

    #[test]
    fn without_room_an_object_raises_few_events() -> Result {
        assert_eq!(raised_with(1, false)?, FEW as usize);
        Ok(())
    }
}
