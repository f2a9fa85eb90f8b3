// SPDX-License-Identifier: GPL-2.0

//! A client of ib_core (`struct ib_client`). ib_core calls the client when it is about to take a
//! device away from its consumers.
//!
//! When a device is unregistered or moved to another network namespace, ib_core first tells its
//! clients, in the reverse order of their registration. So a client that registered after uverbs is
//! told while the objects of processes still exist.

use core::pin::Pin;

use kernel::{error::to_result, ffi::c_void, prelude::*, sync::Arc, types::Opaque};

use crate::{
    bindings,
    device::IbDevice,
    support::callback::{CallbackSlot, SlotClaim},
};

/// A device of any driver. It has no operations, since those of [`IbDevice`] may not suit another
/// driver's device.
pub struct AnyDevice(*const bindings::ib_device);

impl AnyDevice {
    /// Returns whether this is `device`.
    pub fn is(&self, device: &IbDevice) -> bool {
        self.0 == device.as_raw()
    }
}

/// An observer of devices that are about to be taken away.
pub trait Observer: Send + Sync + 'static {
    /// Handles that `device` is about to be taken away from its consumers. ib_core also calls this
    /// for each device when the [`ClientRegistration`] is dropped (`ib_unregister_client()`).
    ///
    /// # Context
    ///
    /// Process; may sleep. While the device goes away or moves to another namespace, ib_core holds
    /// a lock of the device, so the observer must not unregister the device.
    fn leaving(&self, device: &AnyDevice);
}

/// Observer of the current registration.
static OBSERVER: CallbackSlot = CallbackSlot::empty();

/// A registered observer. No call of the observer runs after this value is dropped.
///
/// # Invariants
///
/// `client` is in ib_core's list of clients.
pub struct ClientRegistration<T: Observer> {
    client: Pin<KBox<Opaque<bindings::ib_client>>>,
    /// The claim of [`OBSERVER`]. It is dropped when the client has left the list.
    _observer: SlotClaim<T>,
}

// SAFETY: ib_core locks its list, and `T` is `Send` and `Sync`.
unsafe impl<T: Observer> Send for ClientRegistration<T> {}
// SAFETY: The type has no method that takes a shared reference.
unsafe impl<T: Observer> Sync for ClientRegistration<T> {}

impl<T: Observer> ClientRegistration<T> {
    /// Registers `observer` by `ib_register_client()` under `name`. Only one registration can exist
    /// at a time.
    ///
    /// # Context
    ///
    /// Process; sleeps.
    ///
    /// # Errors
    ///
    /// `EBUSY` if a registration exists, `ENOMEM`.
    pub fn new(name: &'static CStr, observer: Arc<T>) -> Result<Self> {
        let mut raw = bindings::ib_client {
            name: name.as_ptr().cast(),
            remove: Some(remove::<T>),
            ..pin_init::zeroed()
        };
        raw.set_no_kverbs_req(1);
        let client = KBox::pin(Opaque::new(raw), GFP_KERNEL)?;
        let observer = OBSERVER.claim(observer)?;
        // SAFETY: The client is pinned by the box until `drop` has unregistered it.
        to_result(unsafe { bindings::ib_register_client(client.get()) })?;
        // INVARIANT: The client has just been added to the list.
        Ok(Self {
            client,
            _observer: observer,
        })
    }
}

impl<T: Observer> Drop for ClientRegistration<T> {
    fn drop(&mut self) {
        // SAFETY: The client is registered by the type invariant. The function waits for running
        // callbacks.
        unsafe { bindings::ib_unregister_client(self.client.get()) };
    }
}

/// Implements `remove` of `struct ib_client`.
///
/// # Safety
///
/// Must be called only by ib_core while a [`ClientRegistration`] of `T` exists.
unsafe extern "C" fn remove<T: Observer>(device: *mut bindings::ib_device, _context: *mut c_void) {
    // SAFETY: The registration claims the observer, which is a `T`, until this function can run no
    // more.
    let observer = unsafe { OBSERVER.get::<T>() };
    observer.leaving(&AnyDevice(device));
}
