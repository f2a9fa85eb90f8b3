// SPDX-License-Identifier: GPL-2.0

//! Network namespaces and their end.

use core::{pin::Pin, ptr::NonNull};

use kernel::{error::to_result, prelude::*, sync::Arc, types::Opaque};

use crate::{
    bindings,
    support::callback::{Claim, Place},
};

/// Which namespace something belongs to. Two are the same only while neither ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetId(usize);

impl NetId {
    pub(crate) fn of(net: *const bindings::net) -> Self {
        Self(net as usize)
    }
}

/// A counted namespace: it does not end while this lives.
///
/// # Invariants
///
/// Owns a count of a valid namespace.
pub struct Net(NonNull<bindings::net>);

impl Net {
    /// A count of `net`; `None` if that is ending.
    ///
    /// # Safety
    ///
    /// `net` must be valid during the call.
    pub(super) unsafe fn hold(net: *mut bindings::net) -> Option<Self> {
        // SAFETY: As the caller promises.
        let net = unsafe { bindings::maybe_get_net(net) };
        // INVARIANT: The count was just taken.
        NonNull::new(net).map(Self)
    }

    /// Its identity.
    pub fn id(&self) -> NetId {
        NetId::of(self.as_ptr())
    }

    /// Whether its administrators are those of the host: it belongs to the initial user namespace, which has no parent.
    pub fn is_of_host(&self) -> bool {
        // SAFETY: Valid by the type invariant. It has counted its user namespace since it was made (`copy_net_ns()`,
        // net/core/net_namespace.c), and `put_net()` comes before that count is given up.
        unsafe { (*(*self.as_ptr()).user_ns).parent.is_null() }
    }

    /// The namespace for C.
    pub(crate) fn as_ptr(&self) -> *mut bindings::net {
        self.0.as_ptr()
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // SAFETY: The count is owned by the type invariant, and given up once, here.
        unsafe { bindings::put_net(self.as_ptr()) };
    }
}

/// Who wants to know when a namespace ends.
pub trait Observer: Send + Sync + 'static {
    /// Namespace `net` ends: nobody can count it any more. Its network devices are still
    /// registered. On return nothing of ours may depend on it.
    ///
    /// # Context
    ///
    /// Process, under the lock on the list of namespaces; may sleep.
    fn net_exit(&self, net: NetId);
}

/// The observer of the registration that exists.
static OBSERVER: Place = Place::empty();

/// A registered observer; dropping it ends the calls.
///
/// # Invariants
///
/// The operations are in the list of namespaces' callbacks.
pub struct PerNet<T: Observer> {
    operations: Pin<KBox<Opaque<bindings::pernet_operations>>>,
    /// Let go when the operations have left the list.
    _observer: Claim<T>,
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
            // Precedes the `exit` of all others: ib_core's would give each RDMA device to the
            // initial namespace first.
            pre_exit: Some(pre_exit::<T>),
            ..Default::default()
        };
        let operations = KBox::pin(Opaque::new(raw), GFP_KERNEL)?;
        let observer = OBSERVER.claim(observer)?;
        // SAFETY: Pinned by the box until `drop` has unregistered it.
        to_result(unsafe { bindings::register_pernet_subsys(operations.get()) })?;
        // INVARIANT: They have just entered the list.
        Ok(Self {
            operations,
            _observer: observer,
        })
    }
}

impl<T: Observer> Drop for PerNet<T> {
    fn drop(&mut self) {
        // SAFETY: Registered by the type invariant. It waits for callbacks that are running.
        unsafe { bindings::unregister_pernet_subsys(self.operations.get()) };
    }
}

/// Implements `pre_exit`.
///
/// # Safety
///
/// To be called for a namespace while a [`PerNet`] of `T` exists.
unsafe extern "C" fn pre_exit<T: Observer>(net: *mut bindings::net) {
    // SAFETY: The registration has claimed it, until no callback can run.
    let observer = unsafe { OBSERVER.get::<T>() };
    observer.net_exit(NetId::of(net));
}
