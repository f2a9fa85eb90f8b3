// SPDX-License-Identifier: GPL-2.0

//! Objects that have left a table and are freed later, many at a time.
//!
//! A wait for readers reads the state of each CPU, and lasts until each CPU that is in a read
//! section (`read_section.rs`) has left it. A process that ends may leave half a million memory
//! windows behind. One wait for each of them would add up to many seconds.

use core::{marker::PhantomData, mem, ptr};

use kernel::{ffi::c_void, prelude::*, static_lock_class, sync::Arc, types::ForeignOwnable};

use super::Table;
use crate::support::sync::BhSpinLock;

/// The lock's name in lockdep. Lockdep compares the addresses of the names of one lock class, and a
/// literal would have an address of its own for each type of object.
static NAME: &CStr = c"rrxe_retired";

/// Number of objects for which one wait for readers is made.
const BATCH: usize = 64;

/// Objects that [`Table::retire`] has taken out of a table and that are not freed yet.
///
/// # Invariants
///
/// The first `count` entries come from `Arc::<T>::into_foreign`, and the owner of the batch owns
/// these references.
pub(super) struct Batch<T> {
    entries: [*mut c_void; BATCH],
    count: usize,
    _objects: PhantomData<Arc<T>>,
}

// SAFETY: The entries are `Arc`s of a `Send + Sync` type.
unsafe impl<T: Send + Sync> Send for Batch<T> {}

impl<T: 'static> Batch<T> {
    /// Creates an empty batch.
    const fn new() -> Self {
        // INVARIANT: The batch has no entries.
        Self {
            entries: [ptr::null_mut(); BATCH],
            count: 0,
            _objects: PhantomData,
        }
    }

    /// Creates an initialiser for an empty batch under a spinlock.
    ///
    /// The lock is held with bottom halves disabled, since tables may be dropped in softirq.
    pub(super) fn locked() -> impl PinInit<BhSpinLock<Self>> {
        BhSpinLock::new(Self::new(), NAME, static_lock_class!())
    }

    /// Adds an object. If the batch is full then, returns all objects and becomes empty.
    ///
    /// # Safety
    ///
    /// `entry` must come from `Arc::<T>::into_foreign`, and the caller must own that reference,
    /// which it gives up.
    unsafe fn add(&mut self, entry: *mut c_void) -> Option<Self> {
        // A full batch is emptied at once, so there is a free entry.
        if let Some(place) = self.entries.get_mut(self.count) {
            // INVARIANT: The caller guarantees that `entry` comes from `into_foreign`, and gives
            // the reference up (see `# Safety`).
            *place = entry;
            self.count = self.count.wrapping_add(1);
        }
        (self.count >= BATCH).then(|| self.take())
    }

    /// Returns all objects, and becomes empty.
    pub(super) fn take(&mut self) -> Self {
        mem::replace(self, Self::new())
    }

    /// Drops the references to the objects.
    ///
    /// # Safety
    ///
    /// No reader of the table may be able to use any of the objects any more.
    pub(super) unsafe fn free(self) {
        for entry in self.entries.iter().take(self.count) {
            // SAFETY: By the type invariant the entry comes from `Arc::<T>::into_foreign` and the
            // batch's owner owns the reference. The caller guarantees that no reader borrows the
            // object (see `# Safety`). `self` is consumed, so each reference is taken once.
            drop(unsafe { Arc::<T>::from_foreign(*entry) });
        }
    }
}

impl<T: Send + Sync + 'static> Table<T> {
    /// Unpublishes the object with number `id`, and does not wait for readers.
    ///
    /// A reader that found the object before may use it until its read section ends. The table
    /// drops its reference when [`BATCH`] objects have been retired, or when the table is dropped.
    /// The object must not keep the table alive.
    ///
    /// # Context
    ///
    /// Process context. One call in [`BATCH`] sleeps.
    pub fn retire(&self, id: u32) {
        let Some(entry) = self.unpublish(id) else {
            return;
        };
        // SAFETY: `entry` comes from `into_foreign` and has just left the table, which gives its
        // reference up here.
        let full = unsafe { self.retired.lock().add(entry.as_ptr()) };
        if let Some(batch) = full {
            self.readers.wait();
            // SAFETY: All objects of the batch left the table before the wait, which has ended.
            unsafe { batch.free() };
        }
    }
}

#[kunit_tests(rrxe_retired)]
mod tests {
    use super::*;
    use crate::support::read_section::ReadSections;
    use kernel::sync::atomic::{ordering::Relaxed, Atomic};

    /// An object that counts itself while it exists.
    struct Counted(Arc<Atomic<u32>>);

    impl Drop for Counted {
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
            let object = Arc::new(Counted(live.clone()), GFP_KERNEL)?;
            table.reserve_exact(id)?.publish(object);
        }
        for id in 0..BATCH as u32 {
            assert_eq!(live.load(Relaxed), MANY);
            table.retire(id);
            assert!(table.with(id, |_| ()).is_none());
            // The number is free at once.
            assert!(table.reserve_exact(id).is_ok());
        }
        assert_eq!(live.load(Relaxed), MANY / 2);
        // The number has no object.
        table.retire(0);
        table.retire(MANY - 1);
        assert_eq!(live.load(Relaxed), MANY / 2);
        drop(table);
        assert_eq!(live.load(Relaxed), 0);
        Ok(())
    }
}
