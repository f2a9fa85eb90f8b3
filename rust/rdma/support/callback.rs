// SPDX-License-Identifier: GPL-2.0

//! Access to a driver object from a C callback that has no private data pointer.
//!
//! Such a callback finds its object in a static [`CallbackSlot`]. At most one registration at
//! a time claims a slot, so a module can have one registration of a kind, such as one `struct
//! pernet_operations`.

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

/// A static slot with the object of a callback.
///
/// The slot is changed only while the callback cannot run.
pub(crate) struct CallbackSlot(AtomicPtr<c_void>);

impl CallbackSlot {
    /// Creates a slot without an object.
    pub(crate) const fn empty() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Stores `object` in the slot until the returned [`SlotClaim`] is dropped.
    ///
    /// The caller registers its callback after this call, and unregisters the callback before it
    /// drops the claim.
    ///
    /// # Errors
    ///
    /// Returns `EBUSY` if the slot holds an object. `object` is dropped then.
    pub(crate) fn claim<T: Send + Sync + 'static>(
        &'static self,
        object: Arc<T>,
    ) -> Result<SlotClaim<T>> {
        let owned = object.into_foreign();
        let claimed =
            self.0
                .compare_exchange(ptr::null_mut(), owned, Ordering::AcqRel, Ordering::Relaxed);
        if claimed.is_err() {
            // SAFETY: `owned` comes from `into_foreign` above. The exchange failed, so no other
            // code has the pointer.
            drop(unsafe { Arc::<T>::from_foreign(owned) });
            return Err(EBUSY);
        }
        // INVARIANT: The exchange above stored an `Arc<T>` in `slot`, which the claim owns.
        Ok(SlotClaim {
            slot: self,
            _object: PhantomData,
        })
    }

    /// Returns the object in the slot. Callable in any context.
    ///
    /// # Safety
    ///
    /// A [`SlotClaim`] of `T` on this slot must exist for all of `'a`.
    pub(crate) unsafe fn get<'a, T: Send + Sync + 'static>(&self) -> ArcBorrow<'a, T> {
        // SAFETY: The caller guarantees that a `SlotClaim<T>` on this slot exists during `'a` (see
        // `# Safety`). By the claim's invariant the slot holds an `Arc<T>`, so the pointer comes
        // from `Arc::<T>::into_foreign` and stays valid during `'a`.
        unsafe { Arc::<T>::borrow(self.0.load(Ordering::Acquire)) }
    }
}

/// Exclusive use of a [`CallbackSlot`] for one object.
///
/// Dropping the claim drops its reference to the object. The owner drops the claim only when no
/// callback can run.
///
/// # Invariants
///
/// `slot` holds an `Arc<T>` that the claim owns.
pub(crate) struct SlotClaim<T: Send + Sync + 'static> {
    slot: &'static CallbackSlot,
    _object: PhantomData<Arc<T>>,
}

impl<T: Send + Sync + 'static> Drop for SlotClaim<T> {
    fn drop(&mut self) {
        let owned = self.slot.0.swap(ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: By the type invariant `owned` is an `Arc<T>` that the claim owns. The exchange
        // above removed it from the slot, so no other code converts it back.
        drop(unsafe { Arc::<T>::from_foreign(owned) });
    }
}
