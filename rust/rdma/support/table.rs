// SPDX-License-Identifier: GPL-2.0

//! A table of counted objects by number, read without locks.
//!
//! Objects are published last and unpublished first: a number is [reserved](Table::reserve), the
//! object built with it, then [published](Reservation::publish); [`Table::remove`] returns only
//! when no reader can still be looking at the object through the table.
//!
//! Readers may be in any context but hard interrupts; they take no lock and no reference. Writers are in
//! process context. The last owner may drop a table in softirq.

mod last_lookup;
mod locked;
mod retired;

use core::{
    marker::PhantomData,
    ops::{ControlFlow, RangeInclusive},
    pin::Pin,
    ptr::{self, NonNull},
};

use kernel::{
    bindings,
    error::to_result,
    ffi::c_void,
    prelude::*,
    sync::{rcu, Arc, ArcBorrow},
    types::{ForeignOwnable, Opaque},
};

use crate::support::{
    quota::Left,
    random::next_u32,
    read_section::ReadSections,
    sync::{cond_resched, BhSpinLock},
};

use last_lookup::Generation;
pub use last_lookup::LastLookup;
use retired::Batch;

/// How many objects are looked at in a section when many are.
const AT_ONCE: usize = 64;

/// Set in what the xarray keeps for itself, clear in every aligned pointer.
const INTERNAL: usize = 0b11;

/// A sparse array of `Arc<T>` with readers that don't lock.
///
/// # Invariants
///
/// `xa` is an initialised xarray; each entry is reserved (reads as null) or came from
/// `Arc::<T>::into_foreign`, whose count the table owns. Entries are looked at within `readers` only. An
/// erased one's count is given up only when `generation` was ended and those that were there have left.
#[pin_data(PinnedDrop)]
pub struct Table<T: Send + Sync + 'static> {
    #[pin]
    xa: Opaque<bindings::xarray>,
    /// How many more numbers may be taken.
    left: Left,
    readers: Arc<ReadSections>,
    generation: Generation,
    #[pin]
    retired: BhSpinLock<Batch<T>>,
    _entries: PhantomData<Arc<T>>,
}

// SAFETY: The xarray synchronises its writers by its lock and its readers, by RCU as to its own nodes; the entries are
// `Arc`s of a `Send + Sync` type.
unsafe impl<T: Send + Sync + 'static> Send for Table<T> {}
// SAFETY: As above.
unsafe impl<T: Send + Sync + 'static> Sync for Table<T> {}

impl<T: Send + Sync + 'static> Table<T> {
    /// Initialises an empty table of at most `limit` objects, which may share its `readers` with others.
    /// Its nodes count for the memory cgroup of the process that adds an object.
    pub fn new(limit: u32, readers: &Arc<ReadSections>) -> impl PinInit<Self> + '_ {
        pin_init!(Self {
            // SAFETY: `xa` is valid for writes while the closure runs.
            // INVARIANT: It is initialised and empty.
            xa <- Opaque::ffi_init(|xa| unsafe { locked::init(xa) }),
            left: Left::new(limit),
            readers: readers.clone(),
            generation: Generation::new(),
            retired <- Batch::locked(),
            _entries: PhantomData,
        })
    }

    /// Runs `f` on the object of number `id`, or returns `None` if none is published there.
    ///
    /// `f` must not sleep: [`Table::remove`] waits for it.
    #[inline]
    pub fn with<R>(&self, id: u32, f: impl FnOnce(ArcBorrow<'_, T>) -> R) -> Option<R> {
        self.readers.within(|| {
            let entry = self.load(id);
            if entry.is_null() {
                return None;
            }
            // SAFETY: By the type invariant `entry` came from `into_foreign`, and its count is not
            // given up while this reader runs.
            Some(f(unsafe { Arc::<T>::borrow(entry) }))
        })
    }

    /// Returns a count of the object of number `id`.
    pub fn get(&self, id: u32) -> Option<Arc<T>> {
        self.with(id, |object| object.into())
    }

    /// Reserves the lowest free number of `range`.
    ///
    /// # Context
    ///
    /// Process; may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, also if all are taken or the table is full.
    pub fn reserve(&self, range: RangeInclusive<u32>) -> Result<Reservation<'_, T>> {
        self.allocate(range)
            .map_err(|error| if error == EBUSY { ENOMEM } else { error })
    }

    /// As [`Table::reserve`], but `EBUSY` if all are taken.
    fn allocate(&self, range: RangeInclusive<u32>) -> Result<Reservation<'_, T>> {
        self.left.take(1)?;
        let limit = bindings::xa_limit {
            max: *range.end(),
            min: *range.start(),
        };
        let mut id = 0;
        let flags = crate::bindings::GFP_KERNEL_ACCOUNT;
        let code = self.locked(|xa| {
            // SAFETY: `xa` is initialised, and its lock is held; a null entry is a reserved one.
            unsafe { bindings::__xa_alloc(xa, &mut id, ptr::null_mut(), limit, flags) }
        });
        to_result(code).inspect_err(|_| self.left.give_back(1))?;
        Ok(Reservation { table: self, id })
    }

    /// Reserves a number of `range` that nobody can foretell: the first free one after a random place
    /// among its lowest `scatter`. Each factor of 64 costs every look-up a step.
    ///
    /// # Context
    ///
    /// Process; may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, also if all are taken or the table is full; `EINVAL` if the range is empty.
    pub fn reserve_random(
        &self,
        range: RangeInclusive<u32>,
        scatter: u32,
    ) -> Result<Reservation<'_, T>> {
        let (first, last) = (*range.start(), *range.end());
        let span = last.checked_sub(first).ok_or(EINVAL)?;
        let random = next_u32();
        let offset = random % span.saturating_add(1).min(scatter.max(1));
        let start = first.saturating_add(offset);
        match self.allocate(start..=last) {
            Err(error) if error == EBUSY && start > first => {
                self.reserve(first..=start.saturating_sub(1))
            }
            Err(error) if error == EBUSY => Err(ENOMEM),
            reserved => reserved,
        }
    }

    /// Reserves exactly `id`.
    ///
    /// # Context
    ///
    /// Process; may sleep.
    ///
    /// # Errors
    ///
    /// `EBUSY` if it is taken, `ENOMEM`.
    pub fn reserve_exact(&self, id: u32) -> Result<Reservation<'_, T>> {
        self.allocate(id..=id)
    }

    /// Unpublishes the object of number `id` and waits until no reader sees it any more.
    ///
    /// # Context
    ///
    /// Process; sleeps.
    pub fn remove(&self, id: u32) -> Option<Arc<T>> {
        let entry = self.unpublish(id)?;
        self.readers.wait();
        // SAFETY: `entry` came from `into_foreign` and has just left the table, so this count is
        // claimed once; no reader is left that could see it.
        Some(unsafe { Arc::<T>::from_foreign(entry.as_ptr()) })
    }

    /// Puts `object` in the place of the one of number `id`, waits until no reader sees that any more, and returns it.
    ///
    /// # Context
    ///
    /// Process; sleeps.
    ///
    /// # Errors
    ///
    /// `ENOENT` if none is published there; then `object` is dropped.
    pub fn replace(&self, id: u32, object: Arc<T>) -> Result<Arc<T>> {
        let old = self.locked(|xa| {
            // SAFETY: `xa` is initialised, and its lock is held.
            if unsafe { bindings::xa_load(xa, id as usize).is_null() } {
                return ptr::null_mut();
            }
            let entry = object.clone().into_foreign();
            // SAFETY: As above. The place is there, so that no memory is needed.
            unsafe { bindings::__xa_store(xa, id as usize, entry, 0) }
        });
        if old.is_null() {
            return Err(ENOENT);
        }
        self.generation.end();
        self.readers.wait();
        // SAFETY: `old` came from `into_foreign` and has just left the table; no reader is left that
        // could see it.
        Ok(unsafe { Arc::<T>::from_foreign(old) })
    }

    /// Runs `f` on each published object, in the order of numbers. Those that come or go meanwhile
    /// may or may not be seen. `f` must not sleep. A section spans [`AT_ONCE`] objects at most.
    ///
    /// # Context
    ///
    /// Process.
    pub fn for_each(&self, mut f: impl FnMut(u32, ArcBorrow<'_, T>)) {
        self.find_numbered(0, |id, object| {
            f(id, object);
            false
        });
    }

    /// As [`Table::for_each`], until `f` says `false`. Any context but hard interrupts. One section spans all objects:
    /// for tables that are short whoever uses them.
    pub fn for_each_while(&self, mut f: impl FnMut(u32, ArcBorrow<'_, T>) -> bool) {
        self.readers.within(|| {
            let mut index = 0;
            let mut entry = self.find(&mut index, false);
            while !entry.is_null() {
                // SAFETY: As in `with`.
                if !f(index as u32, unsafe { Arc::<T>::borrow(entry) }) {
                    return;
                }
                entry = self.find(&mut index, true);
            }
        });
    }

    /// The entry of number `id`; null if none is published there. Within a section: there nothing preempts the
    /// caller, which makes it a reader of RCU as well.
    #[inline]
    fn load(&self, id: u32) -> *mut c_void {
        // Lockdep wants to be told.
        let _rcu = cfg!(CONFIG_PROVE_RCU).then(rcu::read_lock);
        let xa = self.xa.get();
        // SAFETY: `xa` is initialised by the type invariant, and the caller is a reader.
        let entry = unsafe { crate::bindings::xa_load_locked(xa.cast(), id as usize) };
        if entry as usize & INTERNAL == 0 {
            return entry;
        }
        // Reserved, or the tree is just being rebuilt: the whole of it knows what to make of that.
        // SAFETY: As above.
        unsafe { bindings::xa_load(xa, id as usize) }
    }

    /// A count of the first published object with a number of at least `start` that is `wanted`, which
    /// must not sleep. A section spans [`AT_ONCE`] objects at most.
    ///
    /// # Context
    ///
    /// Process.
    pub fn find_from(
        &self,
        start: u32,
        wanted: impl Fn(ArcBorrow<'_, T>) -> bool,
    ) -> Option<Arc<T>> {
        self.find_numbered(start, |_, object| wanted(object))
    }

    /// As [`Table::find_from`], by numbers as well.
    fn find_numbered(
        &self,
        start: u32,
        mut wanted: impl FnMut(u32, ArcBorrow<'_, T>) -> bool,
    ) -> Option<Arc<T>> {
        let mut index = start as usize;
        loop {
            if let ControlFlow::Break(found) = self.find_at_once(&mut index, &mut wanted) {
                return found;
            }
            cond_resched();
        }
    }

    /// Looks at [`AT_ONCE`] objects from `index` on, which is moved behind them; breaks with the one
    /// that is `wanted`, or with `None` if there are no more objects.
    fn find_at_once(
        &self,
        index: &mut usize,
        wanted: &mut impl FnMut(u32, ArcBorrow<'_, T>) -> bool,
    ) -> ControlFlow<Option<Arc<T>>> {
        self.readers.within(|| {
            for _ in 0..AT_ONCE {
                let entry = self.find(index, false);
                if entry.is_null() {
                    return ControlFlow::Break(None);
                }
                // SAFETY: As in `with`.
                let object = unsafe { Arc::<T>::borrow(entry) };
                if wanted(*index as u32, object) {
                    return ControlFlow::Break(Some(object.into()));
                }
                *index = index.wrapping_add(1);
            }
            ControlFlow::Continue(())
        })
    }

    fn erase(&self, id: u32) -> *mut c_void {
        // SAFETY: `xa` is initialised, and its lock is held.
        self.locked(|xa| unsafe { bindings::__xa_erase(xa, id as usize) })
    }

    /// Takes the object of number `id` out of the table, with the table's count of it. Readers may
    /// still see it. `None` if there is none.
    fn unpublish(&self, id: u32) -> Option<NonNull<c_void>> {
        let entry = NonNull::new(self.erase(id))?;
        self.left.give_back(1);
        self.generation.end();
        Some(entry)
    }

    /// The entry at or after (`beyond`: after) `index`, which is moved to it.
    fn find(&self, index: &mut usize, beyond: bool) -> *mut c_void {
        let (xa, last) = (self.xa.get(), u32::MAX as usize);
        if beyond {
            // SAFETY: `xa` is initialised by the type invariant.
            unsafe { bindings::xa_find_after(xa, index, last, bindings::XA_PRESENT) }
        } else {
            // SAFETY: As above.
            unsafe { bindings::xa_find(xa, index, last, bindings::XA_PRESENT) }
        }
    }
}

#[pinned_drop]
impl<T: Send + Sync + 'static> PinnedDrop for Table<T> {
    fn drop(self: Pin<&mut Self>) {
        let mut index = 0;
        let mut entry = self.find(&mut index, false);
        while !entry.is_null() {
            // SAFETY: `entry` came from `into_foreign`; nobody can reach a table that is being
            // dropped, so there are no readers, and each entry is visited once.
            drop(unsafe { Arc::<T>::from_foreign(entry) });
            entry = self.find(&mut index, true);
        }
        let retired = self.retired.lock().take();
        // SAFETY: As above, there are no readers.
        unsafe { retired.free() };
        // SAFETY: `xa` is initialised, and is not used again.
        unsafe { bindings::xa_destroy(self.xa.get()) };
    }
}

/// A number that is taken but names no object yet. Dropped, it becomes free again.
#[must_use = "the number becomes free again at once"]
pub struct Reservation<'a, T: Send + Sync + 'static> {
    table: &'a Table<T>,
    id: u32,
}

impl<T: Send + Sync + 'static> Reservation<'_, T> {
    /// The number.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Makes `object` visible under the number.
    ///
    /// # Context
    ///
    /// Process; does not sleep, since the place is there already.
    pub fn publish(self, object: Arc<T>) {
        let (entry, id) = (object.into_foreign(), self.id as usize);
        let flags = crate::bindings::GFP_KERNEL_ACCOUNT;
        let old = self.table.locked(|xa| {
            // SAFETY: `xa` is initialised, and its lock is held; `entry` came from `into_foreign`.
            unsafe { bindings::__xa_store(xa, id, entry, flags) }
        });
        // SAFETY: `xa_err` takes what `__xa_store` returns.
        if unsafe { bindings::xa_err(old) } != 0 {
            // A reserved place needs no memory, so this cannot come about; if it did, the object
            // would only stay invisible.
            // SAFETY: The table did not take `entry`.
            drop(unsafe { Arc::<T>::from_foreign(entry) });
            return;
        }
        core::mem::forget(self);
    }
}

impl<T: Send + Sync + 'static> Drop for Reservation<'_, T> {
    fn drop(&mut self) {
        self.table.erase(self.id);
        self.table.left.give_back(1);
    }
}

#[kunit_tests(rrxe_table)]
mod tests {
    use super::*;
    use kernel::sync::atomic::{ordering::Relaxed, Atomic};

    /// Counts itself while it lives.
    struct Guest {
        name: u32,
        house: Arc<Atomic<u32>>,
    }

    impl Guest {
        fn new(name: u32, house: &Arc<Atomic<u32>>) -> Result<Arc<Self>> {
            house.fetch_add(1, Relaxed);
            Ok(Arc::new(
                Self {
                    name,
                    house: house.clone(),
                },
                GFP_KERNEL,
            )?)
        }
    }

    impl Drop for Guest {
        fn drop(&mut self) {
            self.house.fetch_add(u32::MAX, Relaxed);
        }
    }

    fn house() -> Result<Arc<Atomic<u32>>> {
        Ok(Arc::new(Atomic::new(0), GFP_KERNEL)?)
    }

    fn readers() -> Result<Arc<ReadSections>> {
        Ok(Arc::new(ReadSections::new()?, GFP_KERNEL)?)
    }

    fn table() -> Result<Pin<KBox<Table<Guest>>>> {
        KBox::pin_init(Table::new(100, &readers()?), GFP_KERNEL)
    }

    fn name(table: &Table<Guest>, id: u32) -> Option<u32> {
        table.with(id, |guest| guest.name)
    }

    #[test]
    fn shows_an_object_from_publication_to_removal() -> Result {
        let (house, table) = (house()?, table()?);
        let place = table.reserve(5..=9)?;
        let id = place.id();
        assert_eq!(id, 5);
        assert!(name(&table, id).is_none());
        place.publish(Guest::new(77, &house)?);
        assert_eq!(name(&table, id), Some(77));
        assert_eq!(table.get(id).map(|guest| guest.name), Some(77));
        assert_eq!(house.load(Relaxed), 1);
        let removed = table.remove(id);
        assert_eq!(removed.map(|guest| guest.name), Some(77));
        assert!(name(&table, id).is_none());
        assert_eq!(house.load(Relaxed), 0);
        assert!(table.remove(id).is_none());
        Ok(())
    }

    #[test]
    fn replaces_an_object() -> Result {
        let (house, table) = (house()?, table()?);
        table.reserve_exact(3)?.publish(Guest::new(1, &house)?);
        let old = table.replace(3, Guest::new(2, &house)?)?;
        assert_eq!(old.name, 1);
        assert_eq!(name(&table, 3), Some(2));
        assert_eq!(house.load(Relaxed), 2);
        drop(old);
        assert_eq!(house.load(Relaxed), 1);
        // Neither an empty place nor one that is only reserved has anything to replace.
        let _reserved = table.reserve_exact(4)?;
        for id in [4, 5] {
            assert!(table.replace(id, Guest::new(9, &house)?).is_err());
            assert!(name(&table, id).is_none());
        }
        assert_eq!(house.load(Relaxed), 1);
        Ok(())
    }

    #[test]
    fn keeps_an_object_that_somebody_holds() -> Result {
        let (house, table) = (house()?, table()?);
        let place = table.reserve_exact(3)?;
        place.publish(Guest::new(1, &house)?);
        let held = table.get(3).ok_or(ENOENT)?;
        drop(table.remove(3));
        assert_eq!(house.load(Relaxed), 1);
        assert_eq!(held.name, 1);
        drop(held);
        assert_eq!(house.load(Relaxed), 0);
        Ok(())
    }

    #[test]
    fn frees_a_number_that_was_not_used() -> Result {
        let table = table()?;
        let place = table.reserve_exact(3)?;
        assert!(table.reserve_exact(3).is_err_and(|error| error == EBUSY));
        drop(place);
        assert!(table.reserve_exact(3).is_ok());
        Ok(())
    }

    #[test]
    fn finds_the_last_free_number() -> Result {
        let (house, table) = (house()?, table()?);
        let mut seen = 0u32;
        for _ in 0..20 {
            let place = table.reserve_random(40..=59, u32::MAX)?;
            assert!((40..60).contains(&place.id()));
            seen |= 1 << (place.id() - 40);
            place.publish(Guest::new(0, &house)?);
        }
        assert_eq!(seen, (1 << 20) - 1);
        // Wherever the search begins.
        for _ in 0..200 {
            assert!(table
                .reserve_random(40..=59, u32::MAX)
                .is_err_and(|error| error == ENOMEM));
        }
        Ok(())
    }

    #[test]
    fn is_full_at_its_limit() -> Result {
        let house = house()?;
        let table = KBox::pin_init(Table::<Guest>::new(2, &readers()?), GFP_KERNEL)?;
        let full = |table: &Table<Guest>| table.reserve(0..=9).is_err_and(|e| e == ENOMEM);
        table.reserve(0..=9)?.publish(Guest::new(1, &house)?);
        let place = table.reserve(0..=9)?;
        assert!(full(&table));
        drop(place);
        assert!(table.reserve_exact(0).is_err_and(|error| error == EBUSY));
        table.reserve(0..=9)?.publish(Guest::new(2, &house)?);
        assert!(full(&table));
        drop(table.remove(0));
        assert!(table.remove(0).is_none());
        let place = table.reserve(0..=9)?;
        assert!(full(&table));
        drop(place);
        Ok(())
    }

    #[test]
    fn visits_all_in_order_and_frees_them() -> Result {
        let (house, table) = (house()?, table()?);
        for id in [0xff_fffe, 0, 64, 16] {
            table.reserve_exact(id)?.publish(Guest::new(id, &house)?);
        }
        let _hidden = table.reserve_exact(20)?;
        let mut last = None;
        let mut count = 0;
        table.for_each(|id, guest| {
            if guest.name == id && last < Some(id) {
                count += 1;
            }
            last = Some(id);
        });
        assert_eq!(count, 4);
        assert_eq!(house.load(Relaxed), 4);
        drop(_hidden);
        drop(table);
        assert_eq!(house.load(Relaxed), 0);
        Ok(())
    }
}
