// SPDX-License-Identifier: GPL-2.0

//! A client of ib_core, which hears that a device is about to be taken away from its users.
//!
//! Whoever unregisters a device, or moves it to another namespace, ib_core first tells its clients,
//! the latest registered first. So one that was registered after uverbs still finds the objects of
//! all processes.

use core::pin::Pin;

use kernel::{error::to_result, ffi::c_void, prelude::*, sync::Arc, types::Opaque};

use crate::{
    bindings,
    device::IbDevice,
    support::callback::{Claim, Place},
};

/// A device of whatever driver. Nothing can be done to it: an operation of [`IbDevice`] may not suit another driver's.
pub struct AnyDevice(*const bindings::ib_device);

impl AnyDevice {
    /// Whether it is `device`.
    pub fn is(&self, device: &IbDevice) -> bool {
        self.0 == device.as_raw()
    }
}

/// Who wants to know.
pub trait Observer: Send + Sync + 'static {
    /// `device` is about to be taken away.
    ///
    /// # Context
    ///
    /// Process; may sleep. ib_core holds a lock of the device when this goes away or moves to another namespace: the
    /// observer must not unregister it.
    fn leaving(&self, device: &AnyDevice);
}

/// The observer of the registration that exists.
static OBSERVER: Place = Place::empty();

/// A registered observer; dropping it ends the calls.
///
/// # Invariants
///
/// The client is in ib_core's list.
pub struct ClientRegistration<T: Observer> {
    client: Pin<KBox<Opaque<bindings::ib_client>>>,
    /// Let go when the client has left the list.
    _observer: Claim<T>,
}

// SAFETY: ib_core locks its list; the observer may be shared and sent.
unsafe impl<T: Observer> Send for ClientRegistration<T> {}
// SAFETY: There is nothing to do with a shared reference.
unsafe impl<T: Observer> Sync for ClientRegistration<T> {}

impl<T: Observer> ClientRegistration<T> {
    /// Calls `observer` from now on. There can be one registration at a time.
    ///
    /// # Context
    ///
    /// Process; sleeps.
    ///
    /// # Errors
    ///
    /// `EBUSY` if there is a registration, `ENOMEM`.
    pub fn new(name: &'static CStr, observer: Arc<T>) -> Result<Self> {
        let mut raw = bindings::ib_client {
            name: name.as_ptr().cast(),
            remove: Some(remove::<T>),
            ..pin_init::zeroed()
        };
        raw.set_no_kverbs_req(1);
        let client = KBox::pin(Opaque::new(raw), GFP_KERNEL)?;
        let observer = OBSERVER.claim(observer)?;
        // SAFETY: Pinned by the box until `drop` has unregistered it.
        to_result(unsafe { bindings::ib_register_client(client.get()) })?;
        // INVARIANT: It has just entered the list.
        Ok(Self {
            client,
            _observer: observer,
        })
    }
}

impl<T: Observer> Drop for ClientRegistration<T> {
    fn drop(&mut self) {
        // SAFETY: Registered by the type invariant. It waits for callbacks that are running.
        unsafe { bindings::ib_unregister_client(self.client.get()) };
    }
}

/// Implements `remove`.
///
/// # Safety
///
/// To be called by ib_core while a [`ClientRegistration`] of `T` exists.
unsafe extern "C" fn remove<T: Observer>(device: *mut bindings::ib_device, _context: *mut c_void) {
    // SAFETY: The registration has claimed it, until no callback can run.
    let observer = unsafe { OBSERVER.get::<T>() };
    observer.leaving(&AnyDevice(device));
}
