// SPDX-License-Identifier: GPL-2.0

//! A table from numbers to reference-counted objects, which readers search without a lock. Wraps
//! `struct xarray` (include/linux/xarray.h).
//!
//! A writer [reserves](Table::reserve) a number, creates the object with that number, and then
//! [publishes](Reservation::publish) it. To remove an object, the writer unpublishes it first.
//! [`Table::remove`] returns when no reader can still use the object through the table.
//!
//! Readers take no lock, and may be in any context but hard interrupts, unless a function says
//! otherwise. They use an object in a read section (`read_section.rs`), without a reference, unless
//! [`Table::get`] or [`Table::find_from`] takes one. Writers are in process context. The last owner
//! of a table may drop it in softirq.

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
    quota::Remaining,
    random::next_u32,
    read_section::ReadSections,
    sync::{cond_resched, BhSpinLock},
};

use last_lookup::Generation;
pub use last_lookup::LastLookup;
use retired::Batch;

/// Maximum number of objects that [`Table::for_each`] or [`Table::find_from`] visits in one read
/// section.
const AT_ONCE: usize = 64;

/// Mask of the tag bits of an xarray's entry. An internal entry has a tag bit set. The tag bits are
/// clear in every aligned pointer.
const INTERNAL: usize = 0b11;

/// A sparse array of `Arc<T>` whose readers take no lock.
///
/// # Invariants
///
/// `xa` is an initialised xarray. Each entry is reserved, and reads as null, or comes from
/// `Arc::<T>::into_foreign`, and the table owns that reference. Entries are used within sections of
/// `readers` only. The reference of an erased entry is given up only after `generation` was ended
/// (which makes each [`LastLookup`] stale), and after the readers of that time have left their
/// sections.
#[pin_data(PinnedDrop)]
pub struct Table<T: Send + Sync + 'static> {
    #[pin]
    xa: Opaque<bindings::xarray>,
    /// Number of further objects and reservations that the table's limit allows.
    remaining: Remaining,
    readers: Arc<ReadSections>,
    generation: Generation,
    #[pin]
    retired: BhSpinLock<Batch<T>>,
    _entries: PhantomData<Arc<T>>,
}

// SAFETY: The xarray's lock serialises its writers, and RCU protects its nodes for readers. The
// entries are `Arc`s of a `Send + Sync` type.
unsafe impl<T: Send + Sync + 'static> Send for Table<T> {}
// SAFETY: The xarray's lock serialises its writers, and RCU protects its nodes for readers. The
// entries are `Arc`s of a `Send + Sync` type.
unsafe impl<T: Send + Sync + 'static> Sync for Table<T> {}

impl<T: Send + Sync + 'static> Table<T> {
    /// Creates an initialiser for an empty table of at most `limit` objects.
    ///
    /// Several tables may have the same `readers`. The table's nodes are charged to the memory
    /// cgroup of the process that adds an object.
    pub fn new(limit: u32, readers: &Arc<ReadSections>) -> impl PinInit<Self> + '_ {
        pin_init!(Self {
            // SAFETY: `xa` is valid for writes while the closure runs.
            // INVARIANT: The xarray is initialised and empty.
            xa <- Opaque::ffi_init(|xa| unsafe { locked::init(xa) }),
            remaining: Remaining::new(limit),
            readers: readers.clone(),
            generation: Generation::new(),
            retired <- Batch::locked(),
            _entries: PhantomData,
        })
    }

    /// Runs `f` on the object with number `id`. Returns `None` if no object is published there.
    ///
    /// Callable in any context but hard interrupts. `f` must not sleep, since [`Table::remove`]
    /// waits for it.
    #[inline]
    pub fn with<R>(&self, id: u32, f: impl FnOnce(ArcBorrow<'_, T>) -> R) -> Option<R> {
        self.readers.within(|| {
            let entry = self.load(id);
            if entry.is_null() {
                return None;
            }
            // SAFETY: By the type invariant `entry` comes from `Arc::<T>::into_foreign`, and the
            // table's reference is not given up before this read section ends.
            Some(f(unsafe { Arc::<T>::borrow(entry) }))
        })
    }

    /// Returns a reference to the object with number `id`. Callable in any context but hard
    /// interrupts.
    pub fn get(&self, id: u32) -> Option<Arc<T>> {
        self.with(id, |object| object.into())
    }

    /// Reserves the lowest free number of `range`.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// Returns `ENOMEM` if there is no memory, if all numbers of the range are taken, or if the
    /// table is full.
    pub fn reserve(&self, range: RangeInclusive<u32>) -> Result<Reservation<'_, T>> {
        self.allocate(range)
            .map_err(|error| if error == EBUSY { ENOMEM } else { error })
    }

    /// Does the same as [`Table::reserve`], but returns `EBUSY` if all numbers are taken.
    fn allocate(&self, range: RangeInclusive<u32>) -> Result<Reservation<'_, T>> {
        self.remaining.take(1)?;
        let limit = bindings::xa_limit {
            max: *range.end(),
            min: *range.start(),
        };
        let mut id = 0;
        let flags = crate::bindings::GFP_KERNEL_ACCOUNT;
        let code = self.locked(|xa| {
            // SAFETY: `xa` is initialised by the type invariant, and `locked` holds its lock. A
            // null entry reserves the number.
            unsafe { bindings::__xa_alloc(xa, &mut id, ptr::null_mut(), limit, flags) }
        });
        to_result(code).inspect_err(|_| self.remaining.give_back(1))?;
        Ok(Reservation { table: self, id })
    }

    /// Reserves a number of `range` that other users cannot predict.
    ///
    /// The search for a free number begins at a random one of the lowest `scatter` numbers of the
    /// range. Each further factor of 64 in `scatter` adds a level to the xarray, and so a step to
    /// every look-up.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// Returns `ENOMEM` if there is no memory, if all numbers of the range are taken, or if the
    /// table is full; `EINVAL` if the range is empty.
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

    /// Reserves the number `id`.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// Returns `EBUSY` if the number is taken; `ENOMEM` if there is no memory or the table is full.
    pub fn reserve_exact(&self, id: u32) -> Result<Reservation<'_, T>> {
        self.allocate(id..=id)
    }

    /// Unpublishes the object with number `id` and returns it when no reader uses it through the
    /// table any more.
    ///
    /// Returns `None` if no object is published there.
    ///
    /// # Context
    ///
    /// Process context; sleeps.
    pub fn remove(&self, id: u32) -> Option<Arc<T>> {
        let entry = self.unpublish(id)?;
        self.readers.wait();
        // SAFETY: `entry` comes from `into_foreign` and has just left the table, so this reference
        // is taken once. No reader that could have found the entry is left.
        Some(unsafe { Arc::<T>::from_foreign(entry.as_ptr()) })
    }

    /// Replaces the object with number `id` by `object`. Returns the old object when no reader uses
    /// it through the table any more.
    ///
    /// # Context
    ///
    /// Process context; sleeps.
    ///
    /// # Errors
    ///
    /// Returns `ENOENT` if no object is published there. `object` is dropped then.
    pub fn replace(&self, id: u32, object: Arc<T>) -> Result<Arc<T>> {
        let old = self.locked(|xa| {
            // SAFETY: `xa` is initialised by the type invariant, and `locked` holds its lock.
            if unsafe { bindings::xa_load(xa, id as usize).is_null() } {
                return ptr::null_mut();
            }
            let entry = object.clone().into_foreign();
            // SAFETY: `xa` is initialised by the type invariant, and `locked` holds its lock. The
            // entry exists, so the store needs no memory.
            unsafe { bindings::__xa_store(xa, id as usize, entry, 0) }
        });
        if old.is_null() {
            return Err(ENOENT);
        }
        self.generation.end();
        self.readers.wait();
        // SAFETY: `old` comes from `into_foreign` and has just left the table, so this reference is
        // taken once. No reader that could have found the entry is left.
        Ok(unsafe { Arc::<T>::from_foreign(old) })
    }

    /// Runs `f` on each published object, in ascending order of the numbers.
    ///
    /// `f` may or may not see an object that is published or removed meanwhile. `f` must not sleep.
    /// One read section spans at most [`AT_ONCE`] objects.
    ///
    /// # Context
    ///
    /// Process context.
    pub fn for_each(&self, mut f: impl FnMut(u32, ArcBorrow<'_, T>)) {
        self.find_numbered(0, |id, object| {
            f(id, object);
            false
        });
    }

    /// Runs `f` on each published object, in ascending order of the numbers, until `f` returns
    /// `false`.
    ///
    /// One read section spans all objects, so the table must never have more than a few objects.
    /// `f` must not sleep. Callable in any context but hard interrupts.
    pub fn for_each_while(&self, mut f: impl FnMut(u32, ArcBorrow<'_, T>) -> bool) {
        self.readers.within(|| {
            let mut index = 0;
            let mut entry = self.find(&mut index, false);
            while !entry.is_null() {
                // SAFETY: By the type invariant `entry` comes from `Arc::<T>::into_foreign`, and
                // the table's reference is not given up before this read section ends.
                if !f(index as u32, unsafe { Arc::<T>::borrow(entry) }) {
                    return;
                }
                entry = self.find(&mut index, true);
            }
        });
    }

    /// Returns the entry with number `id`, or null if no object is published there.
    ///
    /// The caller is in a read section of the table. A section disables preemption, so the caller
    /// is an RCU reader, too.
    #[inline]
    fn load(&self, id: u32) -> *mut c_void {
        // Lockdep does not know that the read section makes the caller an RCU reader.
        let _rcu = cfg!(CONFIG_PROVE_RCU).then(rcu::read_lock);
        let xa = self.xa.get();
        // SAFETY: `xa` is initialised by the type invariant. The caller is in a read section, which
        // makes it an RCU reader.
        let entry = unsafe { crate::bindings::xa_load_locked(xa.cast(), id as usize) };
        if entry as usize & INTERNAL == 0 {
            return entry;
        }
        // The entry is reserved, or the tree is being rebuilt. `xa_load()` handles both.
        // SAFETY: `xa` is initialised by the type invariant. The caller is in a read section, which
        // makes it an RCU reader.
        unsafe { bindings::xa_load(xa, id as usize) }
    }

    /// Returns a reference to the first published object with a number of at least `start` for
    /// which `wanted` returns `true`.
    ///
    /// `wanted` must not sleep. One read section spans at most [`AT_ONCE`] objects.
    ///
    /// # Context
    ///
    /// Process context.
    pub fn find_from(
        &self,
        start: u32,
        wanted: impl Fn(ArcBorrow<'_, T>) -> bool,
    ) -> Option<Arc<T>> {
        self.find_numbered(start, |_, object| wanted(object))
    }

    /// Does the same as [`Table::find_from`], and passes the numbers to `wanted`, too.
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

    /// Visits up to [`AT_ONCE`] objects from `index` on, and moves `index` behind them.
    ///
    /// Breaks with the first object for which `wanted` returns `true`, or with `None` if there are
    /// no more objects.
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
                // SAFETY: By the type invariant `entry` comes from `Arc::<T>::into_foreign`, and
                // the table's reference is not given up before this read section ends.
                let object = unsafe { Arc::<T>::borrow(entry) };
                if wanted(*index as u32, object) {
                    return ControlFlow::Break(Some(object.into()));
                }
                *index = index.wrapping_add(1);
            }
            ControlFlow::Continue(())
        })
    }

    /// Erases the entry with number `id`, and returns it.
    fn erase(&self, id: u32) -> *mut c_void {
        // SAFETY: `xa` is initialised by the type invariant, and `locked` holds its lock.
        self.locked(|xa| unsafe { bindings::__xa_erase(xa, id as usize) })
    }

    /// Takes the object with number `id` out of the table, and returns the table's reference to it.
    ///
    /// Readers may still use the object. Returns `None` if no object is published there.
    fn unpublish(&self, id: u32) -> Option<NonNull<c_void>> {
        let entry = NonNull::new(self.erase(id))?;
        self.remaining.give_back(1);
        self.generation.end();
        Some(entry)
    }

    /// Returns the first entry at or after `index`, or after `index` if `beyond`, and moves `index`
    /// to it. Returns null if there is none.
    fn find(&self, index: &mut usize, beyond: bool) -> *mut c_void {
        let (xa, last) = (self.xa.get(), u32::MAX as usize);
        if beyond {
            // SAFETY: `xa` is initialised by the type invariant.
            unsafe { bindings::xa_find_after(xa, index, last, bindings::XA_PRESENT) }
        } else {
            // SAFETY: `xa` is initialised by the type invariant.
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
            // SAFETY: `entry` comes from `into_foreign`. No code can reach a table that is being
            // dropped, so there are no readers, and the loop visits each entry once.
            drop(unsafe { Arc::<T>::from_foreign(entry) });
            entry = self.find(&mut index, true);
        }
        let retired = self.retired.lock().take();
        // SAFETY: No code can reach a table that is being dropped, so there are no readers.
        unsafe { retired.free() };
        // SAFETY: `xa` is initialised by the type invariant, and is not used again.
        unsafe { bindings::xa_destroy(self.xa.get()) };
    }
}

/// A reserved number without an object. Dropping the reservation frees the number.
#[must_use = "the number becomes free again at once"]
pub struct Reservation<'a, T: Send + Sync + 'static> {
    table: &'a Table<T>,
    id: u32,
}

impl<T: Send + Sync + 'static> Reservation<'_, T> {
    /// Returns the number.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Publishes `object` under the number.
    ///
    /// # Context
    ///
    /// Process context. Does not sleep, since the reservation has allocated the entry.
    pub fn publish(self, object: Arc<T>) {
        let (entry, id) = (object.into_foreign(), self.id as usize);
        let flags = crate::bindings::GFP_KERNEL_ACCOUNT;
        let old = self.table.locked(|xa| {
            // SAFETY: `xa` is initialised by the type invariant, and `locked` holds its lock.
            // `entry` comes from `into_foreign`.
            unsafe { bindings::__xa_store(xa, id, entry, flags) }
        });
        // SAFETY: `xa_err` accepts every result of `__xa_store`.
        if unsafe { bindings::xa_err(old) } != 0 {
            // A reserved entry needs no memory, so this does not happen. If it did, the object
            // would stay invisible.
            // SAFETY: `entry` comes from `into_foreign` above, and the xarray did not store it.
            drop(unsafe { Arc::<T>::from_foreign(entry) });
            return;
        }
        core::mem::forget(self);
    }
}

impl<T: Send + Sync + 'static> Drop for Reservation<'_, T> {
    fn drop(&mut self) {
        self.table.erase(self.id);
        self.table.remaining.give_back(1);
    }
}

#[kunit_tests(rrxe_table)]
mod tests {
    use super::*;
    use kernel::sync::atomic::{ordering::Relaxed, Atomic};

    /// An object that counts itself in `live` while it exists.
    struct Counted {
        name: u32,
        live: Arc<Atomic<u32>>,
    }

    impl Counted {
        fn new(name: u32, live: &Arc<Atomic<u32>>) -> Result<Arc<Self>> {
            live.fetch_add(1, Relaxed);
            Ok(Arc::new(
                Self {
                    name,
                    live: live.clone(),
                },
                GFP_KERNEL,
            )?)
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.live.fetch_add(u32::MAX, Relaxed);
        }
    }

    fn live() -> Result<Arc<Atomic<u32>>> {
        Ok(Arc::new(Atomic::new(0), GFP_KERNEL)?)
    }

    fn readers() -> Result<Arc<ReadSections>> {
        Ok(Arc::new(ReadSections::new()?, GFP_KERNEL)?)
    }

    fn table() -> Result<Pin<KBox<Table<Counted>>>> {
        KBox::pin_init(Table::new(100, &readers()?), GFP_KERNEL)
    }

    fn name(table: &Table<Counted>, id: u32) -> Option<u32> {
        table.with(id, |object| object.name)
    }

    #[test]
    fn shows_an_object_from_publication_to_removal() -> Result {
        let (live, table) = (live()?, table()?);
        let reservation = table.reserve(5..=9)?;
        let id = reservation.id();
        assert_eq!(id, 5);
        assert!(name(&table, id).is_none());
        reservation.publish(Counted::new(77, &live)?);
        assert_eq!(name(&table, id), Some(77));
        assert_eq!(table.get(id).map(|object| object.name), Some(77));
        assert_eq!(live.load(Relaxed), 1);
        let removed = table.remove(id);
        assert_eq!(removed.map(|object| object.name), Some(77));
        assert!(name(&table, id).is_none());
        assert_eq!(live.load(Relaxed), 0);
        assert!(table.remove(id).is_none());
        Ok(())
    }

    #[test]
    fn replaces_an_object() -> Result {
        let (live, table) = (live()?, table()?);
        table.reserve_exact(3)?.publish(Counted::new(1, &live)?);
        let old = table.replace(3, Counted::new(2, &live)?)?;
        assert_eq!(old.name, 1);
        assert_eq!(name(&table, 3), Some(2));
        assert_eq!(live.load(Relaxed), 2);
        drop(old);
        assert_eq!(live.load(Relaxed), 1);
        // Neither a free number nor a reserved one has an object to replace.
        let _reserved = table.reserve_exact(4)?;
        for id in [4, 5] {
            assert!(table.replace(id, Counted::new(9, &live)?).is_err());
            assert!(name(&table, id).is_none());
        }
        assert_eq!(live.load(Relaxed), 1);
        Ok(())
    }

    #[test]
    fn keeps_a_referenced_object() -> Result {
        let (live, table) = (live()?, table()?);
        let reservation = table.reserve_exact(3)?;
        reservation.publish(Counted::new(1, &live)?);
        let held = table.get(3).ok_or(ENOENT)?;
        drop(table.remove(3));
        assert_eq!(live.load(Relaxed), 1);
        assert_eq!(held.name, 1);
        drop(held);
        assert_eq!(live.load(Relaxed), 0);
        Ok(())
    }

    #[test]
    fn frees_a_number_that_was_not_used() -> Result {
        let table = table()?;
        let reservation = table.reserve_exact(3)?;
        assert!(table.reserve_exact(3).is_err_and(|error| error == EBUSY));
        drop(reservation);
        assert!(table.reserve_exact(3).is_ok());
        Ok(())
    }

    #[test]
    fn finds_the_last_free_number() -> Result {
        let (live, table) = (live()?, table()?);
        let mut seen = 0u32;
        for _ in 0..20 {
            let reservation = table.reserve_random(40..=59, u32::MAX)?;
            assert!((40..60).contains(&reservation.id()));
            seen |= 1 << (reservation.id() - 40);
            reservation.publish(Counted::new(0, &live)?);
        }
        assert_eq!(seen, (1 << 20) - 1);
        // The search fails wherever it begins.
        for _ in 0..200 {
            assert!(table
                .reserve_random(40..=59, u32::MAX)
                .is_err_and(|error| error == ENOMEM));
        }
        Ok(())
    }

    #[test]
    fn is_full_at_its_limit() -> Result {
        let live = live()?;
        let table = KBox::pin_init(Table::<Counted>::new(2, &readers()?), GFP_KERNEL)?;
        let full = |table: &Table<Counted>| table.reserve(0..=9).is_err_and(|e| e == ENOMEM);
        table.reserve(0..=9)?.publish(Counted::new(1, &live)?);
        let reservation = table.reserve(0..=9)?;
        assert!(full(&table));
        drop(reservation);
        assert!(table.reserve_exact(0).is_err_and(|error| error == EBUSY));
        table.reserve(0..=9)?.publish(Counted::new(2, &live)?);
        assert!(full(&table));
        drop(table.remove(0));
        assert!(table.remove(0).is_none());
        let reservation = table.reserve(0..=9)?;
        assert!(full(&table));
        drop(reservation);
        Ok(())
    }

    #[test]
    fn visits_all_in_order_and_frees_them() -> Result {
        let (live, table) = (live()?, table()?);
        for id in [0xff_fffe, 0, 64, 16] {
            table.reserve_exact(id)?.publish(Counted::new(id, &live)?);
        }
        let _hidden = table.reserve_exact(20)?;
        let mut last = None;
        let mut count = 0;
        table.for_each(|id, object| {
            if object.name == id && last < Some(id) {
                count += 1;
            }
            last = Some(id);
        });
        assert_eq!(count, 4);
        assert_eq!(live.load(Relaxed), 4);
        drop(_hidden);
        drop(table);
        assert_eq!(live.load(Relaxed), 0);
        Ok(())
    }
}
