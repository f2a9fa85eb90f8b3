// SPDX-License-Identifier: GPL-2.0

//! The region behind an `ib_mr`, which `rereg_user_mr` may replace while a netlink dump reads it.
//!
//! uverbs holds the region's `uobject` for writing during `rereg_user_mr`, which excludes the other
//! verbs. It doesn't exclude `fill_res_mr_entry`: a netlink dump holds only a count of `ib_mr.res`,
//! for which ib_core waits before `dereg_mr`, but not before `rereg_user_mr`. So `rereg_user_mr`
//! and `fill_res_mr_entry` both take the lock of [`CurrentRegion`].

use core::mem::{self, MaybeUninit};

use kernel::{
    prelude::*,
    sync::{Arc, UniqueArc},
};

use super::MrObject;
use crate::{
    bindings, new_irq_spinlock,
    provider::Provider,
    support::sync::IrqSpinLock,
    verbs::object::{Object, Room},
};

/// The region that an `ib_mr` currently stands for.
#[pin_data]
pub(crate) struct CurrentRegion<T> {
    /// The region, if work requests register it (fast registration). Such a region is never
    /// replaced, so it is read without the lock.
    fast: Option<Arc<T>>,
    #[pin]
    region: IrqSpinLock<Arc<T>>,
}

impl<T> CurrentRegion<T> {
    fn new(region: Arc<T>, is_fast: bool) -> impl PinInit<Self> {
        pin_init!(Self {
            fast: is_fast.then(|| region.clone()),
            region <- new_irq_spinlock!(region, "rrxe_mr_current"),
        })
    }

    /// Returns the region if work requests register it (fast registration). Takes no lock. Any
    /// context.
    pub(crate) fn fast(&self) -> Option<&Arc<T>> {
        self.fast.as_ref()
    }

    /// Returns a counted reference to the region. Process context, because the drop of the
    /// reference may end the region.
    pub(super) fn get(&self) -> Arc<T> {
        self.region.lock().clone()
    }

    /// Runs `f` with the region. Interrupts are disabled and the region isn't replaced meanwhile,
    /// so `f` must not sleep. Any context.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&Arc<T>) -> R) -> R {
        f(&self.region.lock())
    }

    /// Replaces the region and returns the old one. No [`Self::with`] reads the old region after
    /// the return. Any context.
    pub(super) fn replace(&self, region: Arc<T>) -> Arc<T> {
        mem::replace(&mut *self.region.lock(), region)
    }
}

/// Uninitialized memory for an `ib_mr` and its [`CurrentRegion`].
pub(super) struct MrMemory<P: Provider> {
    object: Room<MrObject<P>>,
    current: UniqueArc<MaybeUninit<CurrentRegion<P::Mr>>>,
}

impl<P: Provider> MrMemory<P> {
    /// Allocates the memory. An operation calls this before it creates the region, so that a
    /// failure leaves nothing to undo. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            object: MrObject::<P>::alloc()?,
            current: UniqueArc::new_uninit(GFP_KERNEL_ACCOUNT)?,
        })
    }

    /// Creates the `ib_mr` that stands for `mr`. ib_core fills in the remaining fields.
    pub(super) fn create_ib_mr(
        self,
        mr: Arc<P::Mr>,
        iova: u64,
        length: u64,
    ) -> Result<*mut bindings::ib_mr> {
        let keys = P::mr_keys(&mr);
        let is_fast = P::fast_memory(&mr).is_some();
        let current = self
            .current
            .write_pin_init(CurrentRegion::new(mr, is_fast))?;
        let base = Object::<P, _>::create(self.object, current.into());
        // SAFETY: The object was just created, and no other code accesses it.
        let c_part = unsafe { &mut *base };
        c_part.lkey = keys.lkey.0;
        c_part.rkey = keys.rkey.0;
        c_part.iova = iova;
        c_part.length = length;
        Ok(base)
    }
}
