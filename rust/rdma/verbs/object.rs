// SPDX-License-Identifier: GPL-2.0

//! The C objects of verbs (`ib_pd`, `ib_qp`, …) and the driver's objects inside them.
//!
//! ib_core allocates each C object in the size that the driver asks for and calls it by a pointer to
//! its beginning. Behind the C part lies one counted reference to the driver's own object. The driver's object never points back except by a revocable
//! [`crate::verbs::upcall::Upcall`], so it may outlive the C object.

use core::mem::MaybeUninit;
use kernel::{prelude::*, sync::Arc};
use pin_init::Zeroable;

use crate::{
    bindings,
    provider::Provider,
    verbs::{mr::Current, ucontext::UserContext, upcall::Upcall},
};

/// Memory for an object.
pub(crate) type Room<O> = KBox<MaybeUninit<O>>;

/// A C object of verbs. This alone says of which type the driver's object behind it is, so that no operation can take it
/// for another type.
pub(crate) trait Verb<P: Provider> {
    /// The driver's object.
    type Inner;
}

macro_rules! verbs {
    ($($c_part:ident: $inner:ty,)*) => {
        $(impl<P: Provider> Verb<P> for bindings::$c_part {
            type Inner = $inner;
        })*
    };
}

verbs! {
    ib_ah: P::Ah,
    ib_cq: P::Cq,
    ib_device: P::Device,
    ib_dm: P::Dm,
    ib_mr: Current<P::Mr>,
    ib_mw: P::Mw,
    ib_pd: P::Pd,
    ib_qp: P::Qp,
    ib_srq: P::Srq,
    ib_ucontext: UserContext<P::Context>,
    ib_xrcd: P::Xrcd,
}

/// A C object with a reference to the driver's object behind it.
///
/// # Invariants
///
/// Between the creation operation's success and the destruction operation's, `inner` is
/// initialized. ib_core calls no other operation on the object outside of that time.
#[repr(C)]
pub(crate) struct Object<P: Provider, B: Verb<P>> {
    base: B,
    inner: MaybeUninit<Arc<B::Inner>>,
}

impl<P: Provider, B: Verb<P>> Object<P, B> {
    /// What to ask ib_core to allocate.
    pub(crate) const SIZE: usize = core::mem::size_of::<Self>();

    /// Puts the driver's object in place.
    ///
    /// # Safety
    ///
    /// `base` must point to the beginning of [`Self::SIZE`] bytes of memory of this type, and the
    /// caller must be its creation operation.
    pub(crate) unsafe fn store(base: *mut B, inner: Arc<B::Inner>) {
        // SAFETY: In bounds, as the caller promises.
        let place = unsafe { &raw mut (*base.cast::<Self>()).inner };
        // SAFETY: During creation nobody else accesses the object, as the caller promises.
        unsafe { place.write(MaybeUninit::new(inner)) };
    }

    /// The driver's object.
    ///
    /// # Safety
    ///
    /// `base` must be the C part of an object of a device of `P`, whose creation has succeeded and whose
    /// destruction has not, for all of `'a`.
    pub(crate) unsafe fn get<'a>(base: *const B) -> &'a Arc<B::Inner> {
        // SAFETY: In bounds, as the caller promises.
        let inner = unsafe { &(*base.cast::<Self>()).inner };
        // SAFETY: By the type invariant.
        unsafe { inner.assume_init_ref() }
    }

    /// Takes the driver's object out.
    ///
    /// # Safety
    ///
    /// As for [`Self::get`], and the caller must be the destruction operation, past the point where
    /// it can fail.
    pub(crate) unsafe fn take(base: *mut B) -> Arc<B::Inner> {
        // SAFETY: In bounds, as the caller promises.
        let inner = unsafe { &raw const (*base.cast::<Self>()).inner };
        // SAFETY: Initialized by the type invariant. Nothing reads it again, but for a device that was not registered: another
        // reference keeps the driver's object meanwhile (`Unregistered::drop`).
        unsafe { inner.read().assume_init() }
    }
}

/// Of kinds that ib_core leaves to the driver to allocate.
impl<P: Provider, B: Verb<P> + Zeroable> Object<P, B> {
    /// Memory for an object, to be had before anything is made that would have to be unmade.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn room() -> Result<Room<Self>> {
        Ok(KBox::new_uninit(GFP_KERNEL_ACCOUNT)?)
    }

    /// An object whose C part is zeros. It lasts until [`Self::unmake`].
    pub(crate) fn make(room: Room<Self>, inner: Arc<B::Inner>) -> *mut B {
        let base: *mut B = KBox::into_raw(room).cast();
        // SAFETY: `base` is the beginning of memory for an object, which nobody else knows.
        unsafe { base.write(pin_init::zeroed()) };
        // SAFETY: As above; this is the creation.
        unsafe { Self::store(base, inner) };
        base
    }

    /// Frees an object and returns the driver's.
    ///
    /// # Safety
    ///
    /// As for [`Self::take`], and `base` must come from [`Self::make`].
    pub(crate) unsafe fn unmake(base: *mut B) -> Arc<B::Inner> {
        // SAFETY: As the caller promises.
        let inner = unsafe { Self::take(base) };
        // SAFETY: It was made in such memory, and its reference was taken out above.
        drop(unsafe { Room::<Self>::from_raw(base.cast()) });
        inner
    }
}

/// The C part of an object that raises events: ib_core's own, and the driver's way back to it.
///
/// # Invariants
///
/// `upcall` is initialized whenever the `inner` of the [`Object`] is.
#[repr(C)]
pub(crate) struct Raising<B> {
    base: B,
    upcall: MaybeUninit<Upcall<B>>,
}

impl<P: Provider, B: Verb<P>> Verb<P> for Raising<B> {
    type Inner = B::Inner;
}

impl<P: Provider, B: Verb<P>> Object<P, Raising<B>> {
    /// Puts the driver's object and its way back in place.
    ///
    /// # Safety
    ///
    /// As for [`Self::store`].
    pub(crate) unsafe fn store_raising(base: *mut B, upcall: Upcall<B>, inner: Arc<B::Inner>) {
        let head: *mut Raising<B> = base.cast();
        // SAFETY: In bounds, and during creation nobody else accesses the object, as the caller
        // promises.
        unsafe { (*head).upcall.write(upcall) };
        // SAFETY: As the caller promises.
        unsafe { Self::store(head, inner) };
    }

    /// Takes the driver's object and its way back out. The latter is to be revoked.
    ///
    /// # Safety
    ///
    /// As for [`Self::take`].
    unsafe fn take_raising(base: *mut B) -> (Arc<B::Inner>, Upcall<B>) {
        let head: *mut Raising<B> = base.cast();
        // SAFETY: Initialized by the type invariant, and never read again.
        let upcall = unsafe { (*head).upcall.assume_init_read() };
        // SAFETY: As the caller promises.
        (unsafe { Self::take(head) }, upcall)
    }

    /// Takes the driver's object out, has the driver `destroy` it, and revokes its way back. Returns 0, as destruction
    /// operations do.
    ///
    /// # Safety
    ///
    /// As for [`Self::take`].
    pub(crate) unsafe fn destroy_raising(
        base: *mut B,
        destroy: impl FnOnce(&Arc<B::Inner>),
    ) -> c_int {
        // SAFETY: As the caller promises.
        let (inner, upcall) = unsafe { Self::take_raising(base) };
        destroy(&inner);
        upcall.revoke();
        0
    }
}
