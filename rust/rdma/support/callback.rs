// SPDX-License-Identifier: GPL-2.0

//! The object behind a callback that has no place for a pointer of ours.
//!
//! Such a callback finds its object in a static [`Place`], which one registration at a time has
//! claimed.

use core::{
    marker::PhantomData,
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

use kernel::{
    ffi::c_void,
    prelude::*,
    sync::{Arc, ArcBorrow},
    types::ForeignOwnable,
};

/// Where callbacks find an object. Changed only while they can't run.
pub(crate) struct Place(AtomicPtr<c_void>);

impl Place {
    /// Without an object.
    pub(crate) const fn empty() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Puts `object` in place until the result is dropped.
    ///
    /// # Errors
    ///
    /// `EBUSY` if there is one.
    pub(crate) fn claim<T: Send + Sync + 'static>(
        &'static self,
        object: Arc<T>,
    ) -> Result<Claim<T>> {
        let owned = object.into_foreign();
        let claimed =
            self.0
                .compare_exchange(ptr::null_mut(), owned, Ordering::AcqRel, Ordering::Relaxed);
        if claimed.is_err() {
            // SAFETY: From `into_foreign` above and given to nobody.
            drop(unsafe { Arc::<T>::from_foreign(owned) });
            return Err(EBUSY);
        }
        // INVARIANT: It was just put in place.
        Ok(Claim {
            place: self,
            _object: PhantomData,
        })
    }

    /// The object in place.
    ///
    /// # Safety
    ///
    /// A [`Claim`] of `T` on this place must exist for all of `'a`.
    pub(crate) unsafe fn get<'a, T: Send + Sync + 'static>(&self) -> ArcBorrow<'a, T> {
        // SAFETY: By the invariant of the claim that the caller promises.
        unsafe { Arc::<T>::borrow(self.0.load(Ordering::Acquire)) }
    }
}

/// The right to a place; it lets go of the object when it is dropped, which must be when no callback
/// can run.
///
/// # Invariants
///
/// `place` holds an `Arc<T>` that this owns.
pub(crate) struct Claim<T: Send + Sync + 'static> {
    place: &'static Place,
    _object: PhantomData<Arc<T>>,
}

impl<T: Send + Sync + 'static> Drop for Claim<T> {
    fn drop(&mut self) {
        let owned = self.place.0.swap(ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: An `Arc<T>` by the type invariant, and in no place any more.
        drop(unsafe { Arc::<T>::from_foreign(owned) });
    }
}
