// SPDX-License-Identifier: GPL-2.0

//! A cache of the object that one reader of a table looked up last.
//!
//! Most readers look the same object up again and again. A QP does so with its memory regions and
//! its peer. Such a reader caches the pointer to the object. It searches the table only for another
//! number, or after an object has left the table.

use core::{
    marker::PhantomData,
    ptr,
    sync::atomic::{AtomicU64, Ordering},
};

use kernel::{
    ffi::c_void,
    prelude::*,
    sync::{Arc, ArcBorrow},
    types::ForeignOwnable,
};

use super::Table;

/// The number of the latest generation of any table.
static LAST: AtomicU64 = AtomicU64::new(0);

/// The number of a table's current generation. A generation is a period in which no object leaves
/// the table.
///
/// # Invariants
///
/// No other table has, or had, this number.
pub(super) struct Generation(AtomicU64);

impl Generation {
    /// Returns the generation of an empty table.
    pub(super) fn new() -> Self {
        // INVARIANT: `next` returns a number that no table had before.
        Self(AtomicU64::new(Self::next()))
    }

    /// Ends the generation after an object was taken out of the table.
    ///
    /// The caller waits for readers only after this call.
    pub(super) fn end(&self) {
        // A reader that sees the new number sees that the object is gone. So does a reader that
        // sees a later number, since an exchange continues the release sequence of the earlier
        // ones.
        // INVARIANT: `next` returns a number that no table had before.
        self.0.swap(Self::next(), Ordering::AcqRel);
    }

    /// Returns a number that no generation had before.
    fn next() -> u64 {
        LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }
}

/// The number and the pointer of the object that a reader looked up last in a table.
///
/// # Invariants
///
/// Unless `generation` is zero, the table had this generation when `generation` was read, and
/// `entry` was found in that table afterwards, under number `id`.
pub struct LastLookup<T> {
    generation: u64,
    id: u32,
    entry: *mut c_void,
    _object: PhantomData<*const T>,
}

// SAFETY: The pointer is used in read sections of the table only, where any thread may use the
// object.
unsafe impl<T: Send + Sync> Send for LastLookup<T> {}

impl<T> LastLookup<T> {
    /// Creates an empty cache.
    pub const fn new() -> Self {
        // INVARIANT: The generation is zero.
        Self {
            generation: 0,
            id: 0,
            entry: ptr::null_mut(),
            _object: PhantomData,
        }
    }
}

impl<T> Default for LastLookup<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Send + Sync + 'static> Table<T> {
    /// Does the same as [`Table::with`], but does not search for an object that `cache` caches.
    ///
    /// Stores in `cache` the object that a search finds. Callable in any context but hard
    /// interrupts.
    #[inline]
    pub fn with_cached<R>(
        &self,
        cache: &mut LastLookup<T>,
        id: u32,
        f: impl FnOnce(ArcBorrow<'_, T>) -> R,
    ) -> Option<R> {
        self.readers.within(|| {
            // The generation is read before the search. An object that leaves the table later ends
            // this generation.
            let generation = self.generation.0.load(Ordering::Acquire);
            if cache.generation != generation || cache.id != id {
                let entry = self.load(id);
                if entry.is_null() {
                    return None;
                }
                // INVARIANT: `load` has just found `entry` under `id`, after `generation` was read.
                *cache = LastLookup {
                    generation,
                    id,
                    entry,
                    _object: PhantomData,
                };
            }
            // SAFETY: By the type invariants `entry` comes from `into_foreign`, and was in this
            // table during this generation. A CPU that takes it out of the table ends the
            // generation, and then waits for readers. Had that wait ended before this section
            // began, the section would have seen the new generation: the outermost
            // `ReadSections::within` is a full barrier, and so is the beginning of the wait, which
            // looks at the outermost section. So the table's reference is not given up before this
            // section ends.
            Some(f(unsafe { Arc::<T>::borrow(cache.entry) }))
        })
    }
}

#[kunit_tests(rrxe_last_lookup)]
mod tests {
    use super::*;
    use crate::support::read_section::ReadSections;

    fn table() -> Result<Pin<KBox<Table<u32>>>> {
        let readers = Arc::new(ReadSections::new()?, GFP_KERNEL)?;
        KBox::pin_init(Table::new(9, &readers), GFP_KERNEL)
    }

    fn publish(table: &Table<u32>, id: u32, number: u32) -> Result {
        table
            .reserve_exact(id)?
            .publish(Arc::new(number, GFP_KERNEL)?);
        Ok(())
    }

    fn look_up(table: &Table<u32>, cache: &mut LastLookup<u32>, id: u32) -> Option<u32> {
        table.with_cached(cache, id, |number| *number)
    }

    #[test]
    fn follows_changes_of_the_table() -> Result {
        let (table, mut cache) = (table()?, LastLookup::new());
        assert_eq!(look_up(&table, &mut cache, 3), None);
        publish(&table, 3, 7)?;
        publish(&table, 4, 8)?;
        for (id, number) in [(3, 7), (3, 7), (4, 8), (4, 8), (3, 7)] {
            assert_eq!(look_up(&table, &mut cache, id), Some(number));
        }
        drop(table.remove(3));
        assert_eq!(look_up(&table, &mut cache, 3), None);
        assert_eq!(look_up(&table, &mut cache, 4), Some(8));
        drop(table.replace(4, Arc::new(9, GFP_KERNEL)?)?);
        assert_eq!(look_up(&table, &mut cache, 4), Some(9));
        drop(table.remove(4));
        publish(&table, 4, 10)?;
        assert_eq!(look_up(&table, &mut cache, 4), Some(10));
        Ok(())
    }

    #[test]
    fn tells_tables_apart() -> Result {
        let (first, second, mut cache) = (table()?, table()?, LastLookup::new());
        publish(&first, 3, 1)?;
        publish(&second, 3, 2)?;
        for (table, number) in [(&first, 1), (&second, 2), (&first, 1)] {
            assert_eq!(look_up(table, &mut cache, 3), Some(number));
        }
        drop(first);
        let third = table()?;
        assert_eq!(look_up(&third, &mut cache, 3), None);
        assert_eq!(look_up(&second, &mut cache, 3), Some(2));
        Ok(())
    }
}
