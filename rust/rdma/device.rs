// SPDX-License-Identifier: GPL-2.0

//! RDMA devices: `struct ib_device` (`include/rdma/ib_verbs.h`), from its allocation to its
//! unregistration.
//!
//! ib_core owns a registered `ib_device`. Three parties may unregister it, at any time and
//! concurrently: `rdma link del`, the unloading of another driver with the same driver id, and this
//! driver. The `ib_device` holds a reference to the driver's own device until it is unregistered.
//! The driver's own device in turn holds a count ([`ARef`]) of the `ib_device`'s memory. The
//! unregistration breaks this cycle, because it drops the reference to the driver's own device.

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

/// A `struct ib_device`, and behind it the reference to the driver's own device.
pub(crate) type DeviceObject<P> = Object<P, bindings::ib_device>;

/// Returns the driver's own device behind `device`.
///
/// # Safety
///
/// The caller guarantees for all of `'a` that [`Unregistered::new`] created `device` as a device of
/// `P`, and that `device` is not yet deallocated. ib_core calls all operations of the device under
/// this condition.
pub(crate) unsafe fn of<'a, P: Provider>(device: *const bindings::ib_device) -> &'a Arc<P::Device> {
    // SAFETY: The caller guarantees that `device` is an object of a device of `P`, created and not
    // yet deallocated, for `'a` (see `# Safety`).
    unsafe { DeviceObject::<P>::get(device) }
}

/// A reference-counted `struct ib_device` of this driver. A count keeps the memory alive, not the
/// registration.
///
/// # Invariants
///
/// [`Unregistered::new`] created the device. So it has exactly one port, and its operations contain
/// `dealloc_driver` once it is registered.
#[repr(transparent)]
pub struct IbDevice(Opaque<bindings::ib_device>);

// SAFETY: The methods only return pointers, or call functions of ib_core and of the driver core,
// which lock. Any CPU may drop the last count, which frees the memory.
unsafe impl Send for IbDevice {}
// SAFETY: The methods only return pointers, or call functions of ib_core and of the driver core,
// which lock, so that several threads may call the methods at once.
unsafe impl Sync for IbDevice {}

// SAFETY: `get_device()` and `put_device()` count the embedded `struct device`, whose release
// function frees the whole `ib_device`.
unsafe impl AlwaysRefCounted for IbDevice {
    fn inc_ref(&self) {
        // SAFETY: `&self` shows that the device's count isn't zero, so that it may be incremented.
        unsafe { bindings::get_device(self.embedded()) };
    }

    unsafe fn dec_ref(this: NonNull<Self>) {
        // SAFETY: The caller owns a count (see `AlwaysRefCounted::dec_ref`), so the device is
        // valid.
        let embedded = unsafe { this.as_ref() }.embedded();
        // SAFETY: The caller gives up its count, which `put_device()` drops.
        unsafe { bindings::put_device(embedded) };
    }
}

impl IbDevice {
    /// Returns the wrapper of a C device.
    ///
    /// # Safety
    ///
    /// The caller guarantees that [`Unregistered::new`] created `raw`, and that `raw` is valid for
    /// `'a`.
    pub(crate) unsafe fn from_raw<'a>(raw: *mut bindings::ib_device) -> &'a Self {
        // INVARIANT: The caller guarantees that `Unregistered::new` created the device (see
        // `# Safety`).
        // SAFETY: The caller guarantees that `raw` is valid for `'a`, and `IbDevice` is
        // `repr(transparent)`.
        unsafe { &*raw.cast::<Self>() }
    }

    /// Returns the C object.
    pub(crate) fn as_raw(&self) -> *mut bindings::ib_device {
        self.0.get()
    }

    /// Returns the device's name (`ib_device.name`) as a C string. A rename may change it while it
    /// is read.
    pub(crate) fn name_ptr(&self) -> *const kernel::ffi::c_char {
        // SAFETY: The field is in bounds of a valid `ib_device`. A rename never overwrites the zero
        // in the last byte of the array.
        unsafe { (&raw const (*self.as_raw()).name).cast() }
    }

    /// Returns the embedded `struct device` (`ib_device.dev`).
    pub(crate) fn embedded(&self) -> *mut bindings::device {
        // SAFETY: The field is in bounds of a valid `ib_device`.
        unsafe { &raw mut (*self.as_raw()).__bindgen_anon_1.dev }
    }

    /// Takes a count of the registration by `ib_device_try_get()`, which keeps the device
    /// registered while the result lives. Returns `None` if the device is not registered, or no
    /// longer so.
    ///
    /// # Context
    ///
    /// Any.
    pub fn try_get(&self) -> Option<Registered<'_>> {
        // SAFETY: `self` shows that the memory is valid. `ib_device_try_get()` fails if the device
        // isn't registered.
        if unsafe { bindings::ib_device_try_get(self.as_raw()) } {
            // INVARIANT: The count was just taken.
            Some(Registered(self))
        } else {
            None
        }
    }

    /// Unregisters the device by `ib_unregister_device()`, if it is still registered. After the
    /// return no operation of the driver is called on the device, even if another thread
    /// unregistered it.
    ///
    /// # Context
    ///
    /// Process; sleeps. The caller must be in no operation of this device, and must not hold the
    /// RTNL lock.
    pub fn unregister(&self) {
        // SAFETY: `self` shows that the memory is valid. The function has no effect on a device
        // that isn't registered any more.
        unsafe { bindings::ib_unregister_device(self.as_raw()) };
    }
}

/// A device that stays registered while this value lives. Drop the value soon, because the
/// unregistration waits until it is dropped.
///
/// # Invariants
///
/// The value owns a count of the device's registration.
pub struct Registered<'a>(&'a IbDevice);

impl Registered<'_> {
    /// Queues the unregistration of the device to ib_core's own work queue, by
    /// `ib_unregister_device_queued()`. Use [`IbDevice::unregister`] to wait for the
    /// unregistration.
    ///
    /// # Context
    ///
    /// Process; the caller may hold any lock.
    pub fn unregister_later(&self) {
        // SAFETY: The count of the registration keeps the device registered until after this call.
        // By the invariant of `IbDevice` its operations contain `dealloc_driver`, which the
        // function demands.
        unsafe { bindings::ib_unregister_device_queued(self.0.as_raw()) };
    }

    /// Dispatches `IB_EVENT_DEVICE_SPEED_CHANGE`: the speed of port 1 changed.
    ///
    /// # Context
    ///
    /// Process; the caller may hold any lock.
    pub fn speed_changed(&self) {
        let mut event: bindings::ib_event = pin_init::zeroed();
        event.device = self.0.as_raw();
        event.element.port_num = 1;
        event.event = bindings::ib_event_type_IB_EVENT_DEVICE_SPEED_CHANGE;
        // SAFETY: The device is registered by the type invariant, and `ib_dispatch_event()` copies
        // the event.
        unsafe { bindings::ib_dispatch_event(&event) };
    }

    /// Dispatches `IB_EVENT_PORT_ACTIVE` or `IB_EVENT_PORT_ERR` by
    /// `ib_dispatch_port_state_event()`, if the state of the port on `netdev` differs from the
    /// state at the last call.
    ///
    /// # Context
    ///
    /// Process; the caller may hold any lock that leaves interrupts enabled.
    pub fn port_state(&self, netdev: &Netdev) {
        // SAFETY: The device is registered by the type invariant, and `netdev` is valid by its own.
        unsafe { bindings::ib_dispatch_port_state_event(self.0.as_raw(), netdev.as_ptr()) };
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        // SAFETY: `self` owns the count of the registration by the type invariant, and gives it up
        // here.
        unsafe { bindings::ib_device_put(self.0.as_raw()) };
    }
}

/// Properties of a device besides its operations.
pub struct Description {
    /// GUID of the node (`ib_device.node_guid`), in host byte order.
    pub node_guid: u64,
    /// Description of the node (`ib_device.node_desc`).
    pub node_description: &'static CStr,
    /// Whether processes may open QPs of other processes (`ibv_open_qp`). Only the `rdma` cgroup
    /// limits the number of such handles, and their memory is charged to no account
    /// (`ib_open_qp()`, verbs.c).
    pub shares_qps: bool,
}

/// A device that is set up and not yet registered.
///
/// # Invariants
///
/// `device` is a [`DeviceObject`] of `P` that is set up and not registered. `self` owns it.
pub struct Unregistered<'net, P: Provider> {
    device: NonNull<bindings::ib_device>,
    /// The device points to its network namespace without a reference count. ib_core learns of the
    /// namespace's end only once the device is registered, so the namespace is borrowed until then.
    _net: PhantomData<&'net Net>,
    _provider: PhantomData<P>,
}

impl<'net, P: Provider> Unregistered<'net, P> {
    /// Creates a device in the network namespace `net`. `build` creates the driver's own device,
    /// which may keep a count of the `ib_device`.
    ///
    /// # Context
    ///
    /// Process; may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, or an error of `build`.
    pub fn new(
        net: &'net Net,
        description: &Description,
        build: impl FnOnce(ARef<IbDevice>) -> Result<Arc<P::Device>>,
    ) -> Result<Self> {
        // SAFETY: `SIZE` is the size of an object that starts with an `ib_device`. `net` is
        // borrowed, and so valid, until the device is registered.
        let raw = unsafe { bindings::_ib_alloc_device(DeviceObject::<P>::SIZE, net.as_ptr()) };
        let raw = NonNull::new(raw).ok_or(ENOMEM)?;
        // SAFETY: `_ib_alloc_device()` just allocated the device, so it is valid, and no other code
        // knows it.
        let device = unsafe { IbDevice::from_raw(raw.as_ptr()) };
        match build(device.into()) {
            Ok(inner) => {
                // SAFETY: The device was just allocated, with `SIZE` bytes, and this function
                // creates it.
                unsafe { DeviceObject::<P>::store(raw.as_ptr(), inner) };
            }
            Err(error) => {
                // SAFETY: The device was just allocated, and has no operations yet that
                // `ib_dealloc_device()` could call.
                unsafe { bindings::ib_dealloc_device(raw.as_ptr()) };
                return Err(error);
            }
        }
        // SAFETY: The device was just allocated, and no other code accesses it.
        describe::<P>(unsafe { &mut *raw.as_ptr() }, description);
        // SAFETY: The device is valid. `ib_set_device_ops()` copies the table.
        unsafe { bindings::ib_set_device_ops(raw.as_ptr(), &ops::table::<P>()) };
        // INVARIANT: The device is set up now, not yet registered, and owned by the result.
        Ok(Self {
            device: raw,
            _net: PhantomData,
            _provider: PhantomData,
        })
    }

    /// Registers the device under `name` by `ib_register_device()`. From then on ib_core owns the
    /// device.
    ///
    /// # Context
    ///
    /// Process; sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `name` is a pattern (contains `%`), `ENFILE` if the name is taken, `ENOMEM` and
    /// other errors of ib_core.
    pub fn register(self, name: &CStr) -> Result {
        if name.to_bytes().contains(&b'%') {
            return Err(EINVAL);
        }
        // SAFETY: `device` is valid and not registered by the type invariant.
        unsafe { bindings::ib_mark_name_assigned_by_user(self.device.as_ptr()) };
        // SAFETY: `device` is valid, set up and not registered by the type invariant. A null DMA
        // device is allowed: addresses are virtual ones then.
        to_result(unsafe {
            bindings::ib_register_device(
                self.device.as_ptr(),
                name.as_ptr().cast(),
                core::ptr::null_mut(),
            )
        })?;
        // The unregistration deallocates the device.
        core::mem::forget(self);
        Ok(())
    }
}

impl<P: Provider> Drop for Unregistered<'_, P> {
    /// Deallocates the device.
    ///
    /// If the registration failed while ib_core read the port's state (`ib_cache_setup_one()`,
    /// cache.c), handlers of network device events may still find the device and call its
    /// operations, and work items may still use its GID table. So this function keeps the driver's
    /// own device and the `ib_device` until these handlers and work items have ended.
    ///
    /// # Context
    ///
    /// Process; sleeps.
    fn drop(&mut self) {
        // SAFETY: `device` is valid by the type invariant, and `Unregistered::new` created it.
        let device: ARef<IbDevice> = unsafe { IbDevice::from_raw(self.device.as_ptr()) }.into();
        // SAFETY: `device` is a device of `P` by the type invariant, and it is not yet deallocated.
        let driver = unsafe { of::<P>(self.device.as_ptr()) }.clone();
        // SAFETY: `device` is not registered by the type invariant. This calls `dealloc_driver`,
        // and waits (`devices_rwsem`) for threads that found the device and call its operations.
        unsafe { bindings::ib_dealloc_device(self.device.as_ptr()) };
        // SAFETY: ib_core allocates `ib_wq` when it is loaded, and frees it when it is unloaded.
        unsafe { bindings::__flush_workqueue(bindings::ib_wq) };
        drop((driver, device));
    }
}

/// Fills in the fields of `device` that are not operations.
fn describe<P: Provider>(device: &mut bindings::ib_device, description: &Description) {
    device.node_type = bindings::RDMA_NODE_IB_CA as u8;
    device.phys_port_cnt = 1;
    device.local_dma_lkey = P::LOCAL_DMA_LKEY.0;
    // SAFETY: `num_possible_cpus()` has no requirements.
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
