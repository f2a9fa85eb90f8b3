// SPDX-License-Identifier: GPL-2.0

//! Network namespaces and their end.

use core::{
    marker::PhantomData,
    pin::Pin,
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

use kernel::{
    error::to_result,
    ffi::c_void,
    prelude::*,
    sync::Arc,
    types::{ForeignOwnable, Opaque},
};

use crate::bindings;

/// Which namespace something belongs to. Two are the same only while neither ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetId(usize);

impl NetId {
    pub(crate) fn of(net: *const bindings::net) -> Self {
        Self(net as usize)
    }
}

/// Who wants to know when a namespace ends.
pub trait Observer: Send + Sync + 'static {
    /// Namespace `net` ends; its network devices are unregistered already. On return nothing of
    /// ours may depend on it.
    ///
    /// # Context
    ///
    /// Process, under the lock on the list of namespaces; may sleep.
    fn net_exit(&self, net: NetId);
}

/// The observer of the registration that exists: the callback has no place for it. Changed only
/// while the callback can't run.
static OBSERVER: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// A registered observer; dropping it ends the calls.
///
/// # Invariants
///
/// The operations are in the list of namespaces' callbacks, and [`OBSERVER`] is an `Arc<T>` that
/// this owns.
pub struct PerNet<T: Observer> {
    operations: Pin<KBox<Opaque<bindings::pernet_operations>>>,
    _observer: PhantomData<Arc<T>>,
}

// SAFETY: The list is locked by its owner; the observer may be shared and sent.
unsafe impl<T: Observer> Send for PerNet<T> {}
// SAFETY: There is nothing to do with a shared reference.
unsafe impl<T: Observer> Sync for PerNet<T> {}

impl<T: Observer> PerNet<T> {
    /// Calls `observer` from now on. There can be one registration at a time.
    ///
    /// # Errors
    ///
    /// `EBUSY` if there is a registration, `ENOMEM`.
    pub fn new(observer: Arc<T>) -> Result<Self> {
        let raw = bindings::pernet_operations {
            exit: Some(exit::<T>),
            ..Default::default()
        };
        let operations = KBox::pin(Opaque::new(raw), GFP_KERNEL)?;
        let owned = observer.into_foreign();
        let claimed =
            OBSERVER.compare_exchange(ptr::null_mut(), owned, Ordering::AcqRel, Ordering::Relaxed);
        if claimed.is_err() {
            // SAFETY: From `into_foreign` above and given to nobody.
            drop(unsafe { Arc::<T>::from_foreign(owned) });
            return Err(EBUSY);
        }
        // INVARIANT: Both are so when the call below has succeeded; otherwise `release` undoes it.
        // As a subsystem, so that it comes after the network devices when a namespace ends.
        // SAFETY: Pinned by the box until `drop` has unregistered it.
        let code = unsafe { bindings::register_pernet_subsys(operations.get()) };
        if let Err(error) = to_result(code) {
            release::<T>();
            return Err(error);
        }
        Ok(Self {
            operations,
            _observer: PhantomData,
        })
    }
}

impl<T: Observer> Drop for PerNet<T> {
    fn drop(&mut self) {
        // SAFETY: Registered by the type invariant. It waits for callbacks that are running.
        unsafe { bindings::unregister_pernet_subsys(self.operations.get()) };
        release::<T>();
    }
}

/// Lets go of the observer, which must be an `Arc<T>`, when no callback can run.
fn release<T: Observer>() {
    let owned = OBSERVER.swap(ptr::null_mut(), Ordering::AcqRel);
    if !owned.is_null() {
        // SAFETY: From `into_foreign` in `new`; no callback uses it any more.
        drop(unsafe { Arc::<T>::from_foreign(owned) });
    }
}

/// Implements `exit`.
///
/// # Safety
///
/// To be called for a namespace while a [`PerNet`] of `T` exists.
unsafe extern "C" fn exit<T: Observer>(net: *mut bindings::net) {
    // SAFETY: An `Arc<T>` that lives until no callback can run.
    let observer = unsafe { Arc::<T>::borrow(OBSERVER.load(Ordering::Acquire)) };
    observer.net_exit(NetId::of(net));
}
