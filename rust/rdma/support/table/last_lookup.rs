// SPDX-License-Identifier: GPL-2.0

//! What one reader of a table looked up last.
//!
//! Most readers come to the same object again and again: a QP to a region, to a peer. Such a reader remembers where
//! the object is, and searches only when it wants another, or when something has left the table.

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

/// The number of the generation that began last, of any table.
static LAST: AtomicU64 = AtomicU64::new(0);

/// A time in a table's life in which nothing leaves it.
///
/// # Invariants
///
/// No other table has, or had, this number.
pub(super) struct Generation(AtomicU64);

impl Generation {
    /// That of an empty table.
    pub(super) fn new() -> Self {
        // INVARIANT: The number is new.
        Self(AtomicU64::new(Self::next()))
    }

    /// Something was taken out. To be called before readers are waited for.
    pub(super) fn end(&self) {
        // Who sees the new number sees that the object is gone, and so does who sees a later one: an exchange goes on
        // with what was released before.
        // INVARIANT: The number is new.
        self.0.swap(Self::next(), Ordering::AcqRel);
    }

    fn next() -> u64 {
        LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }
}

/// The object of a table that its owner looked up last.
///
/// # Invariants
///
/// Unless `generation` is zero, `entry` was found in the table that had this generation, under number `id`, after that
/// was read.
pub struct LastLookup<T> {
    generation: u64,
    id: u32,
    entry: *mut c_void,
    _object: PhantomData<*const T>,
}

// SAFETY: The pointer is used in sections of the table only, where any thread may look at the object.
unsafe impl<T: Send + Sync> Send for LastLookup<T> {}

impl<T> LastLookup<T> {
    /// Nothing was looked up yet.
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
    /// As [`Table::with`]; doesn't search for what `recent` remembers, and has it remember what was found.
    #[inline]
    pub fn with_recent<R>(
        &self,
        recent: &mut LastLookup<T>,
        id: u32,
        f: impl FnOnce(ArcBorrow<'_, T>) -> R,
    ) -> Option<R> {
        self.readers.within(|| {
            // Read before the search: what leaves the table later belongs to another generation.
            let generation = self.generation.0.load(Ordering::Acquire);
            if recent.generation != generation || recent.id != id {
                let entry = self.load(id);
                if entry.is_null() {
                    return None;
                }
                // INVARIANT: Just found.
                *recent = LastLookup {
                    generation,
                    id,
                    entry,
                    _object: PhantomData,
                };
            }
            // SAFETY: By the invariants `entry` came from `into_foreign`, and was in this table during this generation.
            // A CPU that takes it out ends the generation, and then waits for readers. If that wait was over before this section began,
            // the section would have seen the new generation (the outermost `ReadSections::within` is a full barrier, and so is the
            // beginning of the wait, which looks at the outermost section); so its count is not given up while this section lasts.
            Some(f(unsafe { Arc::<T>::borrow(recent.entry) }))
        })
    }
}

#[kunit_tests(rrxe_recent)]
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

    fn look(table: &Table<u32>, recent: &mut LastLookup<u32>, id: u32) -> Option<u32> {
        table.with_recent(recent, id, |number| *number)
    }

    #[test]
    fn sees_what_comes_and_goes() -> Result {
        let (table, mut recent) = (table()?, LastLookup::new());
        assert_eq!(look(&table, &mut recent, 3), None);
        publish(&table, 3, 7)?;
        publish(&table, 4, 8)?;
        for (id, number) in [(3, 7), (3, 7), (4, 8), (4, 8), (3, 7)] {
            assert_eq!(look(&table, &mut recent, id), Some(number));
        }
        drop(table.remove(3));
        assert_eq!(look(&table, &mut recent, 3), None);
        assert_eq!(look(&table, &mut recent, 4), Some(8));
        drop(table.replace(4, Arc::new(9, GFP_KERNEL)?)?);
        assert_eq!(look(&table, &mut recent, 4), Some(9));
        drop(table.remove(4));
        publish(&table, 4, 10)?;
        assert_eq!(look(&table, &mut recent, 4), Some(10));
        Ok(())
    }

    #[test]
    fn tells_tables_apart() -> Result {
        let (first, second, mut recent) = (table()?, table()?, LastLookup::new());
        publish(&first, 3, 1)?;
        publish(&second, 3, 2)?;
        for (table, number) in [(&first, 1), (&second, 2), (&first, 1)] {
            assert_eq!(look(table, &mut recent, 3), Some(number));
        }
        drop(first);
        let third = table()?;
        assert_eq!(look(&third, &mut recent, 3), None);
        assert_eq!(look(&second, &mut recent, 3), Some(2));
        Ok(())
    }
}
