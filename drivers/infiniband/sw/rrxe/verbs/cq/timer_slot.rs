// SPDX-License-Identifier: GPL-2.0

//! Slot in which an object keeps the handle of its own hrtimer.
//!
//! The handle holds a reference to the object. So the object can be freed only after its owner has
//! emptied the slot, and a handle that is stored later would never be dropped: [`TimerSlot::close`]
//! makes the slot refuse it. A timer is started outside the lock of its slot. Dropping a handle
//! cancels the timer and waits for its function, which takes that lock.

use kernel::prelude::*;

/// Slot for the handle of a timer. Protected by a lock of the object.
pub(crate) enum TimerSlot<H> {
    /// The object is in use. The handle is present if the timer was started.
    Open(Option<H>),
    /// The object is destroyed.
    Closed,
}

impl<H> TimerSlot<H> {
    /// Creates an empty slot.
    pub(crate) const fn new() -> Self {
        Self::Open(None)
    }

    /// Takes the handle. The caller drops it outside the lock. Any context.
    pub(crate) fn take(&mut self) -> Option<H> {
        match self {
            Self::Open(handle) => handle.take(),
            Self::Closed => None,
        }
    }

    /// Stores the handle of a timer that was just started. Returns a handle that another CPU has
    /// stored meanwhile. The caller drops it outside the lock. Any context.
    ///
    /// # Errors
    ///
    /// The given handle if the slot is closed. The caller drops it outside the lock.
    pub(crate) fn put(&mut self, handle: H) -> Result<Option<H>, H> {
        match self {
            Self::Open(place) => Ok(place.replace(handle)),
            Self::Closed => Err(handle),
        }
    }

    /// Empties the slot and closes it. The caller drops the returned handle outside the lock. Any
    /// context.
    pub(crate) fn close(&mut self) -> Option<H> {
        let handle = self.take();
        *self = Self::Closed;
        handle
    }
}

#[kunit_tests(rrxe_timer_slot)]
mod tests {
    use super::*;
    use kernel::sync::Arc;

    fn is_only_reference(owner: Arc<u32>) -> bool {
        Arc::into_unique_or_drop(owner).is_some()
    }

    #[test]
    fn keeps_the_last_handle() -> Result {
        let mut slot = TimerSlot::new();
        assert_eq!(slot.take(), None);
        assert_eq!(slot.put(1), Ok(None));
        assert_eq!(slot.put(2), Ok(Some(1)));
        assert_eq!(slot.take(), Some(2));
        assert_eq!(slot.take(), None);
        Ok(())
    }

    /// The object (a CQ) is destroyed after a completion has made a notification due, and before
    /// the notification starts the timer.
    #[test]
    fn a_timer_started_after_the_end_holds_nothing() -> Result {
        let owner = Arc::new(7, GFP_KERNEL)?;
        let mut slot = TimerSlot::new();
        let before = slot.put(owner.clone());
        assert!(matches!(before, Ok(None)));
        drop(slot.close());
        let late = slot.put(owner.clone());
        assert!(late.is_err());
        drop(late);
        assert!(slot.take().is_none());
        assert!(is_only_reference(owner));
        Ok(())
    }
}
