// SPDX-License-Identifier: GPL-2.0

//! The C objects of verbs (`ib_pd`, `ib_qp`, …) and the references in them to driver objects.
//!
//! ib_core allocates most C objects with the size that the driver states in `struct ib_device_ops`,
//! and passes the driver a pointer to the beginning. The driver allocates `ib_mr` and `ib_dm`. One
//! counted reference to the driver's own object lies behind the C part. The driver's object refers
//! back to the C object only by a revocable [`crate::verbs::upcall::Upcall`]. So the driver's
//! object may outlive the C object.

use core::mem::MaybeUninit;
use kernel::{prelude::*, sync::Arc};
use pin_init::Zeroable;

use crate::{
    bindings,
    provider::Provider,
    verbs::{mr::CurrentRegion, ucontext::UserContext, upcall::Upcall},
};

/// Uninitialized memory for an object.
pub(crate) type Room<O> = KBox<MaybeUninit<O>>;

/// A C object of verbs. Only this trait states the type of the driver's object behind the C object,
/// so that no operation can use another type.
pub(crate) trait Verb<P: Provider> {
    /// The type of the driver's object.
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
    ib_mr: CurrentRegion<P::Mr>,
    ib_mw: P::Mw,
    ib_pd: P::Pd,
    ib_qp: P::Qp,
    ib_srq: P::Srq,
    ib_ucontext: UserContext<P::Context>,
    ib_xrcd: P::Xrcd,
}

/// A C object, and behind it a reference to the driver's object.
///
/// # Invariants
///
/// `inner` is initialized from the success of the creation operation until the success of the
/// destruction operation. ib_core calls no other operation on the object outside of that time.
#[repr(C)]
pub(crate) struct Object<P: Provider, B: Verb<P>> {
    base: B,
    inner: MaybeUninit<Arc<B::Inner>>,
}

impl<P: Provider, B: Verb<P>> Object<P, B> {
    /// Number of bytes that ib_core must allocate for an object.
    pub(crate) const SIZE: usize = core::mem::size_of::<Self>();

    /// Stores the reference to the driver's object behind the C object.
    ///
    /// # Safety
    ///
    /// `base` must point to the beginning of [`Self::SIZE`] bytes of memory of this type, and the
    /// caller must be the creation operation of the object.
    pub(crate) unsafe fn store(base: *mut B, inner: Arc<B::Inner>) {
        // SAFETY: The caller guarantees that [`Self::SIZE`] bytes are valid at `base`, so the field
        // is in bounds (see `# Safety`).
        let place = unsafe { &raw mut (*base.cast::<Self>()).inner };
        // SAFETY: The field is in bounds. The caller is the creation operation, during which no
        // other code accesses the object.
        unsafe { place.write(MaybeUninit::new(inner)) };
    }

    /// Returns the driver's object behind the C object.
    ///
    /// # Safety
    ///
    /// `base` must be the C part of an object of a device of `P`. For all of `'a`, its creation
    /// must have succeeded and its destruction must not.
    pub(crate) unsafe fn get<'a>(base: *const B) -> &'a Arc<B::Inner> {
        // SAFETY: The caller guarantees that `base` is the C part of such an object, so the field
        // is in bounds.
        let inner = unsafe { &(*base.cast::<Self>()).inner };
        // SAFETY: The caller guarantees that the object is created and not destroyed, so `inner` is
        // initialized by the type invariant.
        unsafe { inner.assume_init_ref() }
    }

    /// Moves the reference to the driver's object out of the C object.
    ///
    /// # Safety
    ///
    /// `base` must meet the conditions of [`Self::get`]. The caller must be the destruction
    /// operation, past the point where it can fail.
    pub(crate) unsafe fn take(base: *mut B) -> Arc<B::Inner> {
        // SAFETY: The caller guarantees that `base` is the C part of such an object, so the field
        // is in bounds.
        let inner = unsafe { &raw const (*base.cast::<Self>()).inner };
        // SAFETY: `inner` is initialized by the type invariant. It is not read again, except for a
        // device that was not registered. For that device another reference keeps the driver's
        // object alive meanwhile (`Unregistered::drop`).
        unsafe { inner.read().assume_init() }
    }
}

/// For the types that ib_core leaves to the driver to allocate.
impl<P: Provider, B: Verb<P> + Zeroable> Object<P, B> {
    /// Allocates memory for an object. An operation calls this first, so that a failure leaves
    /// nothing to undo.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn alloc() -> Result<Room<Self>> {
        Ok(KBox::new_uninit(GFP_KERNEL_ACCOUNT)?)
    }

    /// Creates an object whose C part is zeroed. [`Self::free`] frees it.
    pub(crate) fn create(room: Room<Self>, inner: Arc<B::Inner>) -> *mut B {
        let base: *mut B = KBox::into_raw(room).cast();
        // SAFETY: `base` points to allocated memory for an object, which no other code accesses.
        unsafe { base.write(pin_init::zeroed()) };
        // SAFETY: `base` points to the memory of an object, and this is the object's creation.
        unsafe { Self::store(base, inner) };
        base
    }

    /// Frees an object and returns the driver's object.
    ///
    /// # Safety
    ///
    /// `base` must come from [`Self::create`], and the conditions of [`Self::take`] must hold.
    pub(crate) unsafe fn free(base: *mut B) -> Arc<B::Inner> {
        // SAFETY: The caller guarantees the conditions of `take` (see `# Safety`).
        let inner = unsafe { Self::take(base) };
        // SAFETY: The caller guarantees that `base` comes from `create`, which leaked memory of
        // this type. The reference in it was moved out above.
        drop(unsafe { Room::<Self>::from_raw(base.cast()) });
        inner
    }
}

/// The C part of an object that raises events: ib_core's own part, and the upcall by which the
/// driver's object reaches it.
///
/// # Invariants
///
/// `upcall` is initialized whenever the `inner` of the [`Object`] is.
#[repr(C)]
pub(crate) struct WithUpcall<B> {
    base: B,
    upcall: MaybeUninit<Upcall<B>>,
}

impl<P: Provider, B: Verb<P>> Verb<P> for WithUpcall<B> {
    type Inner = B::Inner;
}

impl<P: Provider, B: Verb<P>> Object<P, WithUpcall<B>> {
    /// Stores the driver's object and its upcall behind the C object.
    ///
    /// # Safety
    ///
    /// The conditions of [`Self::store`] must hold.
    pub(crate) unsafe fn store_with_upcall(base: *mut B, upcall: Upcall<B>, inner: Arc<B::Inner>) {
        let head: *mut WithUpcall<B> = base.cast();
        // SAFETY: The caller guarantees that the memory is valid for this type, so the field is in
        // bounds. No other code accesses the object during its creation.
        unsafe { (*head).upcall.write(upcall) };
        // SAFETY: The caller guarantees the conditions of `store` (see `# Safety`).
        unsafe { Self::store(head, inner) };
    }

    /// Moves the driver's object and its upcall out of the C object. The caller must revoke the
    /// upcall.
    ///
    /// # Safety
    ///
    /// The conditions of [`Self::take`] must hold.
    unsafe fn take_with_upcall(base: *mut B) -> (Arc<B::Inner>, Upcall<B>) {
        let head: *mut WithUpcall<B> = base.cast();
        // SAFETY: `upcall` is initialized by the type invariant. It is not read again, because this
        // is the destruction.
        let upcall = unsafe { (*head).upcall.assume_init_read() };
        // SAFETY: The caller guarantees the conditions of `take` (see `# Safety`).
        (unsafe { Self::take(head) }, upcall)
    }

    /// Destroys an object: moves the driver's object out, calls `destroy` with it, and revokes its
    /// upcall. Returns 0, the result of a destruction operation.
    ///
    /// # Safety
    ///
    /// The conditions of [`Self::take`] must hold.
    pub(crate) unsafe fn destroy_with_upcall(
        base: *mut B,
        destroy: impl FnOnce(&Arc<B::Inner>),
    ) -> c_int {
        // SAFETY: The caller guarantees the conditions of `take` (see `# Safety`).
        let (inner, upcall) = unsafe { Self::take_with_upcall(base) };
        destroy(&inner);
        upcall.revoke();
        0
    }
}
