// SPDX-License-Identifier: GPL-2.0

//! Creation of devices by `rdma link add NAME type TYPE netdev NETDEV` (`struct rdma_link_ops`).

use core::{pin::Pin, ptr::NonNull};
use kernel::{
    error::from_result,
    ffi::{c_char, c_int},
    prelude::*,
    sync::Arc,
    types::Opaque,
};

use crate::{
    bindings,
    net::netdev::Netdev,
    support::callback::{CallbackSlot, SlotClaim},
};

/// A handler that creates devices for `rdma link add`.
pub trait LinkHandler: Send + Sync + 'static {
    /// Creates a device called `name` on `netdev`. `name` is not empty and contains no `%`.
    ///
    /// # Context
    ///
    /// Process; may sleep.
    ///
    /// # Errors
    ///
    /// Any. The user gets it.
    fn new_link(&self, name: &CStr, netdev: Netdev) -> Result;
}

/// Handler of the current registration.
static HANDLER: CallbackSlot = CallbackSlot::empty();

/// A registered type of links. The type is unregistered when this value is dropped.
///
/// # Invariants
///
/// `operations` is in ib_core's list of link types.
pub struct LinkRegistration<T: LinkHandler> {
    operations: Pin<KBox<Opaque<bindings::rdma_link_ops>>>,
    /// The claim of [`HANDLER`]. It is dropped when the operations have left the list.
    _handler: SlotClaim<T>,
}

// SAFETY: ib_core locks its list, and `T` is `Send` and `Sync`.
unsafe impl<T: LinkHandler> Send for LinkRegistration<T> {}
// SAFETY: The type has no method that takes a shared reference.
unsafe impl<T: LinkHandler> Sync for LinkRegistration<T> {}

impl<T: LinkHandler> LinkRegistration<T> {
    /// Registers the link type `kind` by `rdma_link_register()`. `handler` creates links of this
    /// type. Only one registration can exist at a time.
    ///
    /// # Context
    ///
    /// Process; sleeps.
    ///
    /// # Errors
    ///
    /// `EBUSY` if a registration exists, `ENOMEM`.
    pub fn new(kind: &'static CStr, handler: Arc<T>) -> Result<Self> {
        let raw = bindings::rdma_link_ops {
            type_: kind.as_ptr().cast(),
            newlink: Some(new_link::<T>),
            ..Default::default()
        };
        let operations = KBox::pin(Opaque::new(raw), GFP_KERNEL)?;
        let handler = HANDLER.claim(handler)?;
        // SAFETY: The operations are pinned by the box until `drop` has unregistered them.
        unsafe { bindings::rdma_link_register(operations.get()) };
        // INVARIANT: The operations have just been added to the list.
        Ok(Self {
            operations,
            _handler: handler,
        })
    }
}

impl<T: LinkHandler> Drop for LinkRegistration<T> {
    fn drop(&mut self) {
        // SAFETY: The operations are registered by the type invariant. The function waits for
        // running callbacks.
        unsafe { bindings::rdma_link_unregister(self.operations.get()) };
    }
}

/// Implements `newlink` of `struct rdma_link_ops`.
///
/// # Safety
///
/// Must be called only by ib_core while a [`LinkRegistration`] of `T` exists.
unsafe extern "C" fn new_link<T: LinkHandler>(
    name: *const c_char,
    netdev: *mut bindings::net_device,
) -> c_int {
    from_result(|| {
        // SAFETY: ib_core passes a valid C string.
        let name = unsafe { CStr::from_char_ptr(name) };
        if name.is_empty() || name.to_bytes().contains(&b'%') {
            return Err(EINVAL);
        }
        let netdev = NonNull::new(netdev).ok_or(ENODEV)?;
        // SAFETY: ib_core holds a count of the network device during the call.
        let netdev = unsafe { Netdev::hold(netdev) };
        // SAFETY: The registration claims the handler, which is a `T`, until ib_core calls this
        // function no more.
        let handler = unsafe { HANDLER.get::<T>() };
        handler.new_link(name, netdev)?;
        Ok(0)
    })
}
