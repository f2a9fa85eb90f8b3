// SPDX-License-Identifier: GPL-2.0

//! Devices: `struct ib_device`, from allocation to unregistration.
//!
//! An `ib_device` that is registered belongs to ib_core: `rdma link del`, another driver of the same
//! driver id that is unloaded, and this driver may all unregister it, at any time and at once. The
//! driver's own device is held by the `ib_device` until then, and holds a count ([`ARef`]) of the
//! `ib_device`'s memory; that ends the cycle as soon as the device is unregistered.

pub mod attr;
pub mod client;
pub(crate) mod counter;
pub mod gid;
pub(crate) mod gid_operations;
pub(crate) mod gid_table;
pub mod link;
pub mod mad;
pub(crate) mod operations;
pub(crate) mod port;
pub mod restrack;
pub mod stats;
pub(crate) mod sysfs;

use core::{marker::PhantomData, ptr::NonNull};
use kernel::{
    error::to_result,
    prelude::*,
    sync::{
        aref::{ARef, AlwaysRefCounted},
        Arc,
    },
    types::Opaque,
};

use crate::{
    bindings,
    net::{netdev::Netdev, netns::Net},
    ops,
    provider::Provider,
    verbs::object::Object,
};

pub(crate) type DeviceObject<P> = Object<P, bindings::ib_device>;

/// The driver's device.
///
/// # Safety
///
/// `device` must be a device of `P` that [`Unregistered::new`] made, and not yet deallocated, for all
/// of `'a`. ib_core calls all operations so.
pub(crate) unsafe fn of<'a, P: Provider>(device: *const bindings::ib_device) -> &'a Arc<P::Device> {
    // SAFETY: As the caller promises.
    unsafe { DeviceObject::<P>::get(device) }
}

/// A device as ib_core sees it. A count of it keeps the memory, not the registration.
///
/// # Invariants
///
/// [`Unregistered::new`] made it, so it has one port, and `dealloc_driver` when it is registered.
#[repr(transparent)]
pub struct IbDevice(Opaque<bindings::ib_device>);

// SAFETY: All methods go through ib_core's functions, which lock.
unsafe impl Send for IbDevice {}
// SAFETY: As above.
unsafe impl Sync for IbDevice {}

// SAFETY: The counts are those of the embedded `struct device`, whose release frees the whole.
unsafe impl AlwaysRefCounted for IbDevice {
    fn inc_ref(&self) {
        // SAFETY: The reference shows that the count isn't zero.
        unsafe { bindings::get_device(self.embedded()) };
    }

    unsafe fn dec_ref(this: NonNull<Self>) {
        // SAFETY: The caller gives up a count, so the device is valid.
        let embedded = unsafe { this.as_ref() }.embedded();
        // SAFETY: As above.
        unsafe { bindings::put_device(embedded) };
    }
}

impl IbDevice {
    /// # Safety
    ///
    /// `raw` must be valid for `'a`, and made by [`Unregistered::new`].
    pub(crate) unsafe fn from_raw<'a>(raw: *mut bindings::ib_device) -> &'a Self {
        // INVARIANT: As the caller promises.
        // SAFETY: Valid as the caller promises; the type is transparent.
        unsafe { &*raw.cast::<Self>() }
    }

    /// The C object.
    pub(crate) fn as_raw(&self) -> *mut bindings::ib_device {
        self.0.get()
    }

    /// Its name, as C has it; it may change while it is looked at.
    pub(crate) fn name_ptr(&self) -> *const kernel::ffi::c_char {
        // SAFETY: In bounds of a valid `ib_device`; the last byte is never anything but zero.
        unsafe { (&raw const (*self.as_raw()).name).cast() }
    }

    /// The `struct device` inside.
    pub(crate) fn embedded(&self) -> *mut bindings::device {
        // SAFETY: In bounds of a valid `ib_device`.
        unsafe { &raw mut (*self.as_raw()).__bindgen_anon_1.dev }
    }

    /// Keeps the device registered while the result lives; `None` if it isn't registered (any
    /// more). Any context.
    pub fn try_get(&self) -> Option<Registered<'_>> {
        // SAFETY: The memory is valid; the count of registrations is what is tried.
        if unsafe { bindings::ib_device_try_get(self.as_raw()) } {
            // INVARIANT: The count was just taken.
            Some(Registered(self))
        } else {
            None
        }
    }

    /// Unregisters the device if it still is registered. When this returns, nobody calls the
    /// driver's operations on it any more, whoever has unregistered it.
    ///
    /// # Context
    ///
    /// Process; sleeps. Neither in an operation of this device nor under the RTNL lock.
    pub fn unregister(&self) {
        // SAFETY: The memory is valid; unregistering again is harmless.
        unsafe { bindings::ib_unregister_device(self.as_raw()) };
    }
}

/// A device that stays registered while this lives. Keep it for a short time only: unregistration
/// waits for it.
///
/// # Invariants
///
/// Owns a count of the device's registration.
pub struct Registered<'a>(&'a IbDevice);

impl Registered<'_> {
    /// Has the device unregistered by ib_core's own work queue. Use [`IbDevice::unregister`] to wait
    /// for it. Process context, under any lock.
    pub fn unregister_later(&self) {
        // SAFETY: The count keeps the device registered until after this call, and by the invariant of `IbDevice` the
        // operations have `dealloc_driver`.
        unsafe { bindings::ib_unregister_device_queued(self.0.as_raw()) };
    }

    /// Tells users that the port's speed changed. Process context, under any lock.
    pub fn speed_changed(&self) {
        let mut event: bindings::ib_event = pin_init::zeroed();
        event.device = self.0.as_raw();
        event.element.port_num = 1;
        event.event = bindings::ib_event_type_IB_EVENT_DEVICE_SPEED_CHANGE;
        // SAFETY: The device is registered by the type invariant; the event is copied.
        unsafe { bindings::ib_dispatch_event(&event) };
    }

    /// Tells users if the state of the port on `netdev` is another than when this was last called.
    /// Process context, under any lock.
    pub fn port_state(&self, netdev: &Netdev) {
        // SAFETY: The device is registered by the type invariant, and `netdev` valid.
        unsafe { bindings::ib_dispatch_port_state_event(self.0.as_raw(), netdev.as_ptr()) };
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        // SAFETY: Gives up the count that the type invariant speaks of.
        unsafe { bindings::ib_device_put(self.0.as_raw()) };
    }
}

/// What a device needs besides its operations.
pub struct Description {
    /// The node's GUID, in host order.
    pub node_guid: u64,
    /// What the node calls itself.
    pub node_description: &'static CStr,
    /// Processes may open QPs that others made (`ibv_open_qp`). ib_core limits the number of their handles by the `rdma`
    /// cgroup alone, and counts their memory for nobody (`ib_open_qp()`, verbs.c).
    pub shares_qps: bool,
}

/// A device before its registration.
///
/// # Invariants
///
/// `device` is a [`DeviceObject`] of `P` that is set up and not registered, and `self` owns it.
pub struct Unregistered<'net, P: Provider> {
    device: NonNull<bindings::ib_device>,
    /// The device names its namespace without a count, and ib_core learns of the namespace's end from the registration on.
    _net: PhantomData<&'net Net>,
    _provider: PhantomData<P>,
}

impl<'net, P: Provider> Unregistered<'net, P> {
    /// A device in namespace `net`; `build` makes the driver's part, which may keep a count of the `ib_device`.
    ///
    /// # Context
    ///
    /// Process; may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; those of `build`.
    pub fn new(
        net: &'net Net,
        description: &Description,
        build: impl FnOnce(ARef<IbDevice>) -> Result<Arc<P::Device>>,
    ) -> Result<Self> {
        // SAFETY: The size is that of an object that starts with an `ib_device`; the
        // namespace is held until the device is registered.
        let raw = unsafe { bindings::_ib_alloc_device(DeviceObject::<P>::SIZE, net.as_ptr()) };
        let raw = NonNull::new(raw).ok_or(ENOMEM)?;
        // SAFETY: It was just made, so it is valid, and nobody else has it.
        let device = unsafe { IbDevice::from_raw(raw.as_ptr()) };
        match build(device.into()) {
            Ok(inner) => {
                // SAFETY: Just made, of the right size.
                unsafe { DeviceObject::<P>::store(raw.as_ptr(), inner) };
            }
            Err(error) => {
                // SAFETY: Just made, without operations yet.
                unsafe { bindings::ib_dealloc_device(raw.as_ptr()) };
                return Err(error);
            }
        }
        // SAFETY: Just made; nobody else knows of it.
        describe::<P>(unsafe { &mut *raw.as_ptr() }, description);
        // SAFETY: The table is copied.
        unsafe { bindings::ib_set_device_ops(raw.as_ptr(), &ops::table::<P>()) };
        // INVARIANT: It is set up now.
        Ok(Self {
            device: raw,
            _net: PhantomData,
            _provider: PhantomData,
        })
    }

    /// Registers the device under `name`. From then on it belongs to ib_core.
    ///
    /// # Context
    ///
    /// Process; sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a name that is a pattern, `ENFILE` if it is taken, `ENOMEM` and others of ib_core.
    pub fn register(self, name: &CStr) -> Result {
        if name.to_bytes().contains(&b'%') {
            return Err(EINVAL);
        }
        // SAFETY: By the type invariant.
        unsafe { bindings::ib_mark_name_assigned_by_user(self.device.as_ptr()) };
        // SAFETY: By the type invariant. Without a DMA device addresses are virtual ones.
        to_result(unsafe {
            bindings::ib_register_device(
                self.device.as_ptr(),
                name.as_ptr().cast(),
                core::ptr::null_mut(),
            )
        })?;
        // Unregistration deallocates it.
        core::mem::forget(self);
        Ok(())
    }
}

impl<P: Provider> Drop for Unregistered<'_, P> {
    /// Process context; sleeps.
    ///
    /// ib_core leaves threads and work items behind if the registration failed where it reads the port's state
    /// (`ib_cache_setup_one()`, cache.c). The threads call operations until they have found the device no more; the work items use
    /// its table of GIDs. So the driver's object and the `ib_device` are kept until both have ended.
    fn drop(&mut self) {
        // SAFETY: The device is valid by the type invariant.
        let device: ARef<IbDevice> = unsafe { IbDevice::from_raw(self.device.as_ptr()) }.into();
        // SAFETY: As above, and it is not yet deallocated.
        let driver = unsafe { of::<P>(self.device.as_ptr()) }.clone();
        // SAFETY: Not registered by the type invariant; this calls `dealloc_driver`. It waits for threads that call operations of
        // a device that they have found (`devices_rwsem`).
        unsafe { bindings::ib_dealloc_device(self.device.as_ptr()) };
        // SAFETY: ib_core makes its work queue when it is loaded, and keeps it until it is removed.
        unsafe { bindings::__flush_workqueue(bindings::ib_wq) };
        drop((driver, device));
    }
}

/// Fills in what isn't an operation.
fn describe<P: Provider>(device: &mut bindings::ib_device, description: &Description) {
    device.node_type = bindings::RDMA_NODE_IB_CA as u8;
    device.phys_port_cnt = 1;
    device.local_dma_lkey = P::LOCAL_DMA_LKEY.0;
    // SAFETY: No requirements.
    device.num_comp_vectors = unsafe { bindings::num_possible_cpus() } as i32;
    device.node_guid = description.node_guid.to_be();
    let text = description.node_description.to_bytes();
    for (place, byte) in device.node_desc.iter_mut().zip(text) {
        *place = *byte;
    }
    device.uverbs_cmd_mask |= 1 << bindings::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_POST_SEND
        | 1 << bindings::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_REQ_NOTIFY_CQ;
    if !description.shares_qps {
        device.uverbs_cmd_mask &= !(1 << bindings::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_OPEN_QP);
    }
}
