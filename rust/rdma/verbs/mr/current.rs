// SPDX-License-Identifier: GPL-2.0

//! The region behind an `ib_mr`. `rereg_user_mr` may replace it while a netlink dump reads it.
//!
//! uverbs holds the region's `uobject` for writing during `rereg_user_mr`, which excludes the other
//! verbs. It doesn't exclude `fill_res_mr_entry`: a netlink dump holds only a count of `ib_mr.res`, for
//! which ib_core waits before `dereg_mr`, but not before `rereg_user_mr`. So both take the lock here.

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

/// The region that an `ib_mr` stands for now.
#[pin_data]
pub(crate) struct Current<T> {
    /// The region if work requests register it. Such a region is never replaced.
    fast: Option<Arc<T>>,
    #[pin]
    region: IrqSpinLock<Arc<T>>,
}

impl<T> Current<T> {
    fn new(region: Arc<T>, is_fast: bool) -> impl PinInit<Self> {
        pin_init!(Self {
            fast: is_fast.then(|| region.clone()),
            region <- new_irq_spinlock!(region, "rrxe_mr_current"),
        })
    }

    /// The region if work requests register it. Any context.
    pub(crate) fn fast(&self) -> Option<&Arc<T>> {
        self.fast.as_ref()
    }

    /// A count of the region. Process context, because it may be the last one.
    pub(super) fn get(&self) -> Arc<T> {
        self.region.lock().clone()
    }

    /// Runs `f`, which must not sleep, on the region. Interrupts are disabled and the region isn't
    /// replaced meanwhile. Any context.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&Arc<T>) -> R) -> R {
        f(&self.region.lock())
    }

    /// Replaces the region and returns the old one, which no [`Self::with`] sees after the return.
    /// Any context.
    pub(super) fn replace(&self, region: Arc<T>) -> Arc<T> {
        mem::replace(&mut *self.region.lock(), region)
    }
}

/// Memory for an `ib_mr` and its [`Current`].
pub(super) struct MrRoom<P: Provider> {
    object: Room<MrObject<P>>,
    current: UniqueArc<MaybeUninit<Current<P::Mr>>>,
}

impl<P: Provider> MrRoom<P> {
    /// Allocates it before the region is made, so that an error leaves nothing to undo. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            object: MrObject::<P>::room()?,
            current: UniqueArc::new_uninit(GFP_KERNEL_ACCOUNT)?,
        })
    }

    /// Makes the `ib_mr` in front of `mr`. ib_core fills in the rest of it.
    pub(super) fn expose(
        self,
        mr: Arc<P::Mr>,
        iova: u64,
        length: u64,
    ) -> Result<*mut bindings::ib_mr> {
        let keys = P::mr_keys(&mr);
        let is_fast = P::fast_memory(&mr).is_some();
        let current = self.current.write_pin_init(Current::new(mr, is_fast))?;
        let base = Object::<P, _>::make(self.object, current.into());
        // SAFETY: It was just made, and nobody else knows it.
        let c_part = unsafe { &mut *base };
        c_part.lkey = keys.lkey.0;
        c_part.rkey = keys.rkey.0;
        c_part.iova = iova;
        c_part.length = length;
        Ok(base)
    }
}
