// SPDX-License-Identifier: GPL-2.0

//! Objects that have left a table and are freed later, many at a time.
//!
//! To wait for readers costs a look at each CPU, and the rest of a section on each CPU that is in one. A process that
//! ends may leave half a million memory windows behind: one wait for each of them would add up to many seconds.

use core::{marker::PhantomData, mem, ptr};

use kernel::{ffi::c_void, prelude::*, static_lock_class, sync::Arc, types::ForeignOwnable};

use super::Table;
use crate::support::sync::BhSpinLock;

/// The lock's name in lockdep. A literal would have an address of its own for each type of object, and lockdep compares
/// the addresses of the names of one class.
static NAME: &CStr = c"rrxe_retired";

/// Objects that one wait is for.
const BATCH: usize = 64;

/// Objects that have left a table since readers were last waited for.
///
/// # Invariants
///
/// The first `count` entries came from `Arc::<T>::into_foreign`, and their counts are the owner's of this.
pub(super) struct Batch<T> {
    entries: [*mut c_void; BATCH],
    count: usize,
    _objects: PhantomData<Arc<T>>,
}

// SAFETY: The entries are `Arc`s of a `Send + Sync` type.
unsafe impl<T: Send + Sync> Send for Batch<T> {}

impl<T: 'static> Batch<T> {
    /// No objects.
    const fn new() -> Self {
        // INVARIANT: There are none.
        Self {
            entries: [ptr::null_mut(); BATCH],
            count: 0,
            _objects: PhantomData,
        }
    }

    /// No objects, under a lock.
    ///
    /// Bottom halves are off while it is held: tables may be dropped in softirq.
    pub(super) fn locked() -> impl PinInit<BhSpinLock<Self>> {
        BhSpinLock::new(Self::new(), NAME, static_lock_class!())
    }

    /// Adds an object. Returns all of them, and keeps none, if the batch is full then.
    ///
    /// # Safety
    ///
    /// `entry` must come from `Arc::<T>::into_foreign`, and the caller gives its count away.
    unsafe fn add(&mut self, entry: *mut c_void) -> Option<Self> {
        // A full batch never stays, so there is a place.
        if let Some(place) = self.entries.get_mut(self.count) {
            // INVARIANT: As the caller promises.
            *place = entry;
            self.count = self.count.wrapping_add(1);
        }
        (self.count >= BATCH).then(|| self.take())
    }

    /// Returns all objects, and keeps none.
    pub(super) fn take(&mut self) -> Self {
        mem::replace(self, Self::new())
    }

    /// Gives up the counts of the objects.
    ///
    /// # Safety
    ///
    /// No reader of the table may see any of the objects any more.
    pub(super) unsafe fn free(self) {
        for entry in self.entries.iter().take(self.count) {
            // SAFETY: By the type invariant, and the caller promises that no borrow is left. `self` is consumed, so each
            // count is claimed once.
            drop(unsafe { Arc::<T>::from_foreign(*entry) });
        }
    }
}

impl<T: Send + Sync + 'static> Table<T> {
    /// Unpublishes the object of number `id`, and does not wait: readers that found it before use it until their sections
    /// end. The table gives its count of the object up when [`BATCH`] objects have been retired, or when the table is
    /// dropped.
    ///
    /// The object must not keep the table alive.
    ///
    /// # Context
    ///
    /// Process; one call of [`BATCH`] sleeps.
    pub fn retire(&self, id: u32) {
        let Some(entry) = self.unpublish(id) else {
            return;
        };
        // SAFETY: `entry` came from `into_foreign` and has just left the table, which gives its count away here.
        let full = unsafe { self.retired.lock().add(entry.as_ptr()) };
        if let Some(batch) = full {
            self.readers.wait();
            // SAFETY: All of them left the table before the wait.
            unsafe { batch.free() };
        }
    }
}

#[kunit_tests(rrxe_retired)]
mod tests {
    use super::*;
    use crate::support::read_section::ReadSections;
    use kernel::sync::atomic::{ordering::Relaxed, Atomic};

    /// Counts those that live.
    struct Guest(Arc<Atomic<u32>>);

    impl Drop for Guest {
        fn drop(&mut self) {
            self.0.fetch_add(u32::MAX, Relaxed);
        }
    }

    #[test]
    fn are_freed_many_at_a_time() -> Result {
        const MANY: u32 = 2 * BATCH as u32;
        let readers = Arc::new(ReadSections::new()?, GFP_KERNEL)?;
        let table = KBox::pin_init(Table::new(MANY, &readers), GFP_KERNEL)?;
        let live = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        for id in 0..MANY {
            live.fetch_add(1, Relaxed);
            let guest = Arc::new(Guest(live.clone()), GFP_KERNEL)?;
            table.reserve_exact(id)?.publish(guest);
        }
        for id in 0..BATCH as u32 {
            assert_eq!(live.load(Relaxed), MANY);
            table.retire(id);
            assert!(table.with(id, |_| ()).is_none());
            // Its number may be another's at once.
            assert!(table.reserve_exact(id).is_ok());
        }
        assert_eq!(live.load(Relaxed), MANY / 2);
        // There is none.
        table.retire(0);
        table.retire(MANY - 1);
        assert_eq!(live.load(Relaxed), MANY / 2);
        drop(table);
        assert_eq!(live.load(Relaxed), 0);
        Ok(())
    }
}
