// SPDX-License-Identifier: GPL-2.0

//! The completion events that uverbs keeps for a process.
//!
//! `ib_uverbs_comp_handler()` (drivers/infiniband/core/uverbs_main.c) allocates an event for each
//! notification, charged to nobody, and keeps it until the process reads it. A process that reads none
//! would make the kernel keep events without limit. So a driver looks whether events of a CQ are unread,
//! and does not add to many of them. The list of these is in a structure that only uverbs knows;
//! [`CqEvents::of`] recognises it when the CQ is made.

use core::ffi::c_void;

use kernel::bindings::list_head;

use crate::{bindings, upcall::CqUpcall};

/// `struct ib_ucq_object` of drivers/infiniband/core/uverbs.h up to the list of events.
#[repr(C)]
struct UserCq {
    uobject: bindings::ib_uobject,
    event_file: *mut c_void,
    event_list: list_head,
    events_reported: u32,
    comp_list: list_head,
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
        let lists = unsafe { [&raw mut (*object).event_list, &raw mut (*object).comp_list] };
        // uverbs initialises the lists before it calls the driver (`create_cq()` of uverbs_cmd.c, and
        // UVERBS_METHOD_CQ_CREATE). What does not point to itself is something else.
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
unsafe fn is_empty(list: *mut list_head) -> bool {
    // SAFETY: The caller's promise.
    let next = unsafe { (&raw const (*list).next).read_volatile() };
    core::ptr::eq(next, list)
}
