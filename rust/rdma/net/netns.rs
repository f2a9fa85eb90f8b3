// SPDX-License-Identifier: GPL-2.0

//! Network namespaces and their end. Wraps `struct net` (include/net/net_namespace.h).

use core::{pin::Pin, ptr::NonNull};

use kernel::{error::to_result, prelude::*, sync::Arc, types::Opaque};

use crate::{
    bindings,
    support::callback::{CallbackSlot, SlotClaim},
};

/// The identity of a network namespace. Two identities are comparable only while both namespaces
/// exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetnsId(usize);

impl NetnsId {
    /// Returns the identity of `net`. Callable in any context.
    pub(crate) fn of(net: *const bindings::net) -> Self {
        Self(net as usize)
    }
}

/// A counted reference to a network namespace, which does not end while the reference exists.
///
/// # Invariants
///
/// The value owns a reference to a valid namespace.
pub struct Net(NonNull<bindings::net>);

impl Net {
    /// Takes a reference to `net` (`maybe_get_net()`). Returns `None` if the namespace is ending.
    /// Callable in any context.
    ///
    /// # Safety
    ///
    /// `net` must be valid during the call.
    pub(super) unsafe fn hold(net: *mut bindings::net) -> Option<Self> {
        // SAFETY: The caller guarantees that `net` is valid (see `# Safety`).
        let net = unsafe { bindings::maybe_get_net(net) };
        // INVARIANT: `maybe_get_net()` has just taken the reference.
        NonNull::new(net).map(Self)
    }

    /// Returns the identity of the namespace.
    pub fn id(&self) -> NetnsId {
        NetnsId::of(self.as_ptr())
    }

    /// Returns whether the host's administrators administer the namespace: it belongs to the
    /// initial user namespace, which has no parent.
    pub fn is_of_host(&self) -> bool {
        // SAFETY: The namespace is valid by the type invariant. It has held a reference to its user
        // namespace since its creation (`copy_net_ns()`, net/core/net_namespace.c), and gives it up
        // only after the last `put_net()`.
        unsafe { (*(*self.as_ptr()).user_ns).parent.is_null() }
    }

    /// Returns the namespace for C functions. It is valid as long as `self`.
    pub(crate) fn as_ptr(&self) -> *mut bindings::net {
        self.0.as_ptr()
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the value owns a reference, which is put once, here.
        unsafe { bindings::put_net(self.as_ptr()) };
    }
}

/// Receiver of the ends of network namespaces.
pub trait Observer: Send + Sync + 'static {
    /// Handles the end of namespace `net`.
    ///
    /// The namespace's network devices are still registered. References to the namespace can no
    /// longer be taken, unless the call comes from the end of the observer's registration. After
    /// the return, nothing of this kernel module may use the namespace.
    ///
    /// # Context
    ///
    /// Process context, with the lock on the list of `pernet_operations` held (`pernet_ops_rwsem`);
    /// may sleep.
    fn net_exit(&self, net: NetnsId);
}

/// The observer of the only registration.
static OBSERVER: CallbackSlot = CallbackSlot::empty();

/// A registered observer (`register_pernet_subsys()`).
///
/// Dropping the value unregisters the observer. The kernel then reports each network namespace to
/// it as ended (`unregister_pernet_subsys()`, net/core/net_namespace.c), and nothing afterwards.
///
/// # Invariants
///
/// The operations are registered.
pub struct PerNet<T: Observer> {
    operations: Pin<KBox<Opaque<bindings::pernet_operations>>>,
    /// Claim of the observer's slot. It is dropped after the operations were unregistered.
    _observer: SlotClaim<T>,
}

// SAFETY: The list of operations has a lock of its own. The observer is `Send + Sync`.
unsafe impl<T: Observer> Send for PerNet<T> {}
// SAFETY: A shared reference has no methods.
unsafe impl<T: Observer> Sync for PerNet<T> {}

impl<T: Observer> PerNet<T> {
    /// Registers `observer` for the ends of network namespaces. Only one registration may exist at
    /// a time. Must be called in process context; sleeps.
    ///
    /// # Errors
    ///
    /// Returns `EBUSY` if there is a registration; `ENOMEM` if there is no memory.
    pub fn new(observer: Arc<T>) -> Result<Self> {
        let raw = bindings::pernet_operations {
            // The kernel calls each `pre_exit` before any `exit`. ib_core's `exit` would move each
            // RDMA device to the initial namespace.
            pre_exit: Some(pre_exit::<T>),
            ..Default::default()
        };
        let operations = KBox::pin(Opaque::new(raw), GFP_KERNEL)?;
        let observer = OBSERVER.claim(observer)?;
        // SAFETY: The box pins the operations until `drop` has unregistered them.
        to_result(unsafe { bindings::register_pernet_subsys(operations.get()) })?;
        // INVARIANT: The operations have just been registered.
        Ok(Self {
            operations,
            _observer: observer,
        })
    }
}

impl<T: Observer> Drop for PerNet<T> {
    fn drop(&mut self) {
        // SAFETY: The operations are registered by the type invariant. The call waits for running
        // callbacks.
        unsafe { bindings::unregister_pernet_subsys(self.operations.get()) };
    }
}

/// Passes the end of a namespace to the observer (`pernet_operations.pre_exit`).
///
/// # Safety
///
/// `net` must be a namespace, and a [`PerNet`] of `T` must be registered during the call.
unsafe extern "C" fn pre_exit<T: Observer>(net: *mut bindings::net) {
    // SAFETY: The registration holds the claim of a `T` on the slot until no callback can run. The
    // caller guarantees that the registration exists (see `# Safety`).
    let observer = unsafe { OBSERVER.get::<T>() };
    observer.net_exit(NetnsId::of(net));
}
