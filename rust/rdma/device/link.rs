// SPDX-License-Identifier: GPL-2.0

//! `rdma link add NAME type TYPE netdev NETDEV`.

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
    support::callback::{Claim, Place},
};

/// Makes devices on a user's behest.
pub trait LinkHandler: Send + Sync + 'static {
    /// Makes a device called `name` on `netdev`. `name` is neither empty nor holds a `%`.
    ///
    /// # Context
    ///
    /// Process; may sleep.
    ///
    /// # Errors
    ///
    /// Any; the user gets it.
    fn new_link(&self, name: &CStr, netdev: Netdev) -> Result;
}

/// The handler of the registration that exists.
static HANDLER: Place = Place::empty();

/// A registered type of links; dropping it unregisters it.
///
/// # Invariants
///
/// The operations are in ib_core's list.
pub struct LinkRegistration<T: LinkHandler> {
    operations: Pin<KBox<Opaque<bindings::rdma_link_ops>>>,
    /// Let go when the operations have left the list.
    _handler: Claim<T>,
}

// SAFETY: ib_core locks its list; the handler may be shared and sent.
unsafe impl<T: LinkHandler> Send for LinkRegistration<T> {}
// SAFETY: There is nothing to do with a shared reference.
unsafe impl<T: LinkHandler> Sync for LinkRegistration<T> {}

impl<T: LinkHandler> LinkRegistration<T> {
    /// Registers links of type `kind`, made by `handler`. There can be one registration at a time.
    ///
    /// # Context
    ///
    /// Process; sleeps.
    ///
    /// # Errors
    ///
    /// `EBUSY` if there is a registration, `ENOMEM`.
    pub fn new(kind: &'static CStr, handler: Arc<T>) -> Result<Self> {
        let raw = bindings::rdma_link_ops {
            type_: kind.as_ptr().cast(),
            newlink: Some(new_link::<T>),
            ..Default::default()
        };
        let operations = KBox::pin(Opaque::new(raw), GFP_KERNEL)?;
        let handler = HANDLER.claim(handler)?;
        // SAFETY: Pinned by the box until `drop` has unregistered it.
        unsafe { bindings::rdma_link_register(operations.get()) };
        // INVARIANT: They have just entered the list.
        Ok(Self {
            operations,
            _handler: handler,
        })
    }
}

impl<T: LinkHandler> Drop for LinkRegistration<T> {
    fn drop(&mut self) {
        // SAFETY: Registered by the type invariant. Waits for callbacks that are running.
        unsafe { bindings::rdma_link_unregister(self.operations.get()) };
    }
}

/// Implements `newlink`.
///
/// # Safety
///
/// To be called by ib_core while a [`LinkRegistration`] of `T` exists.
unsafe extern "C" fn new_link<T: LinkHandler>(
    name: *const c_char,
    netdev: *mut bindings::net_device,
) -> c_int {
    from_result(|| {
        // SAFETY: ib_core passes a string.
        let name = unsafe { CStr::from_char_ptr(name) };
        if name.is_empty() || name.to_bytes().contains(&b'%') {
            return Err(EINVAL);
        }
        let netdev = NonNull::new(netdev).ok_or(ENODEV)?;
        // SAFETY: ib_core holds a count of the device during the call.
        let netdev = unsafe { Netdev::hold(netdev) };
        // SAFETY: The registration has claimed it, until ib_core no longer calls.
        let handler = unsafe { HANDLER.get::<T>() };
        handler.new_link(name, netdev)?;
        Ok(0)
    })
}
