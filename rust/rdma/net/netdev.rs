// SPDX-License-Identifier: GPL-2.0

//! Network devices and their events. Wraps `struct net_device` (include/linux/netdevice.h).

use core::{
    mem::ManuallyDrop,
    pin::Pin,
    ptr::{addr_of, NonNull},
};

use kernel::{
    error::to_result,
    ffi::{c_char, c_int, c_ulong, c_void},
    prelude::*,
    sync::{rcu, Arc},
    types::Opaque,
};

use super::netns::{Net, NetnsId};
use crate::{bindings, new_bh_spinlock, support::sync::BhSpinLock};

/// A counted reference to a network device. The device may move to another network namespace while
/// the reference exists.
///
/// # Invariants
///
/// The device is valid, and `self` owns a reference to it.
pub struct Netdev(NonNull<bindings::net_device>);

// SAFETY: All CPUs share a network device, and any of them may put a reference.
unsafe impl Send for Netdev {}
// SAFETY: All CPUs share a network device. The methods read its fields, and a race with a
// change does no harm.
unsafe impl Sync for Netdev {}

impl Netdev {
    /// Takes a reference to a device (`dev_hold()`). Callable in any context.
    ///
    /// # Safety
    ///
    /// `netdev` must be valid during the call.
    pub(crate) unsafe fn hold(netdev: NonNull<bindings::net_device>) -> Self {
        // SAFETY: The caller guarantees that `netdev` is valid (see `# Safety`).
        unsafe { bindings::dev_hold(netdev.as_ptr()) };
        // INVARIANT: `dev_hold()` has just taken the reference.
        Self(netdev)
    }

    /// Takes over a reference to a device.
    ///
    /// # Safety
    ///
    /// `netdev` must be valid, and the caller must own a reference to it, which it gives up.
    pub(crate) unsafe fn from_raw(netdev: NonNull<bindings::net_device>) -> Self {
        // INVARIANT: The caller guarantees that `netdev` is valid and gives up a reference to it
        // (see `# Safety`).
        Self(netdev)
    }

    /// Gives up the reference: the caller must put it (`dev_put()`).
    pub(crate) fn into_raw(self) -> *mut bindings::net_device {
        ManuallyDrop::new(self).as_ptr()
    }

    /// Returns the device for C functions. It is valid as long as `self`.
    pub(crate) fn as_ptr(&self) -> *mut bindings::net_device {
        self.0.as_ptr()
    }

    /// Returns the network namespace of the device, which is valid as long as `_readers` lives.
    pub(crate) fn net(&self, _readers: &rcu::Guard) -> *mut bindings::net {
        // SAFETY: The device is valid by the type invariant.
        unsafe { bindings::dev_net(self.as_ptr()) }
    }

    /// Returns a reference to the network namespace of the device, or `None` if the namespace is
    /// ending. Callable in any context.
    pub fn hold_net(&self) -> Option<Net> {
        let readers = rcu::read_lock();
        // SAFETY: The namespace lives as long as `readers`.
        unsafe { Net::hold(self.net(&readers)) }
    }

    /// Returns the identity of the device's network namespace. Callable in any context.
    pub fn net_id(&self) -> NetnsId {
        NetnsId::of(self.net(&rcu::read_lock()))
    }

    /// Returns the index of the device (`ifindex`) in its network namespace.
    pub fn index(&self) -> u32 {
        // SAFETY: The device is valid by the type invariant.
        unsafe { index(self.as_ptr()) }
    }

    /// Returns a copy of the device's name.
    ///
    /// The name may change at any time. A copy that is made during a change may have bytes of both
    /// names.
    pub fn name(&self) -> Name {
        // SAFETY: The device is valid by the type invariant. The read may race with a change of the
        // name; each byte is from the old or the new name.
        Name(unsafe { addr_of!((*self.as_ptr()).name).read_volatile() })
    }

    /// Returns the MTU: the maximum length of an IP packet, in bytes.
    pub fn mtu(&self) -> u32 {
        // SAFETY: The device is valid by the type invariant.
        unsafe { mtu(self.as_ptr()) }
    }

    /// Returns the length of the link-layer header in bytes.
    pub fn header_len(&self) -> u32 {
        // SAFETY: The device is valid by the type invariant. The read may race with a change, and
        // returns the old or the new value then.
        let len = unsafe { addr_of!((*self.as_ptr()).hard_header_len).read_volatile() };
        len.into()
    }

    /// Returns the number of bytes to keep free in front of a frame for headers that the device
    /// adds. Returns `None` if the device needs too many ([`headroom`]).
    pub fn headroom(&self) -> Option<usize> {
        // SAFETY: The device is valid by the type invariant.
        unsafe { headroom(self.as_ptr()) }
    }

    /// Returns the hardware address if it has six bytes, as that of every kind of Ethernet device.
    pub fn ethernet_address(&self) -> Option<[u8; 6]> {
        // SAFETY: The device is valid by the type invariant.
        unsafe { ethernet_address(self.as_ptr()) }
    }

    /// Returns whether the device is up and has a carrier.
    pub fn is_active(&self) -> bool {
        self.is_up() && self.has_carrier()
    }

    /// Returns whether the device is up (`netif_running()`).
    pub fn is_up(&self) -> bool {
        // SAFETY: The device is valid by the type invariant.
        unsafe { bindings::netif_running(self.as_ptr()) }
    }

    /// Returns whether the device has a carrier (`netif_carrier_ok()`).
    pub fn has_carrier(&self) -> bool {
        // SAFETY: The device is valid by the type invariant.
        unsafe { bindings::netif_carrier_ok(self.as_ptr()) }
    }

    /// Returns the speed of the link in megabits a second, or `None` if the device does not know
    /// it.
    ///
    /// Must be called in process context, without RTNL held; sleeps. Must not be called in a
    /// notifier of network devices: the device's own lock, which this function takes, may be held
    /// there.
    pub fn speed(&self) -> Option<u32> {
        const UNKNOWN: u32 = bindings::SPEED_UNKNOWN as u32;
        let mut settings = bindings::ethtool_link_ksettings::default();
        // SAFETY: `rtnl_lock()` requires the context that this function's documentation names.
        unsafe { bindings::rtnl_lock() };
        let known = self.is_registered() && {
            // SAFETY: The device is valid by the type invariant. RTNL is held.
            unsafe { bindings::__ethtool_get_link_ksettings(self.as_ptr(), &mut settings) == 0 }
        };
        // SAFETY: This function took the lock above.
        unsafe { bindings::rtnl_unlock() };
        (known && settings.base.speed != UNKNOWN).then_some(settings.base.speed)
    }

    /// Returns whether the device is registered, and not about to be unregistered.
    pub fn is_registered(&self) -> bool {
        // SAFETY: The device is valid by the type invariant. The read may race with a change, and
        // returns the old or the new value then.
        let state = unsafe { addr_of!((*self.as_ptr()).reg_state).read_volatile() };
        u32::from(state) == bindings::netdev_reg_state_NETREG_REGISTERED
    }

    /// Returns whether the device is a VLAN on top of another device.
    pub fn is_vlan(&self) -> bool {
        // SAFETY: The device is valid by the type invariant.
        unsafe { bindings::is_vlan_dev(self.as_ptr()) }
    }

    /// Returns the kind of the device.
    pub fn kind(&self) -> Kind {
        // SAFETY: The device is valid by the type invariant.
        unsafe { kind(self.as_ptr()) }
    }
}

/// A copy of the name of a network device.
pub struct Name([c_char; bindings::IFNAMSIZ as usize]);

impl Name {
    /// Returns the name without the zeros behind it.
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or(c"")
    }
}

/// Returns the index of a device in its network namespace.
///
/// # Safety
///
/// `netdev` must be valid.
pub(crate) unsafe fn index(netdev: *const bindings::net_device) -> u32 {
    // SAFETY: The caller guarantees that `netdev` is valid (see `# Safety`). The read may race with
    // a change, and returns the old or the new value then.
    let index = unsafe { addr_of!((*netdev).ifindex).read_volatile() };
    index.unsigned_abs()
}

/// Returns the flags of a device (`IFF_*`).
///
/// # Safety
///
/// `netdev` must be valid.
pub(super) unsafe fn flags(netdev: *mut bindings::net_device) -> bindings::net_device_flags {
    // SAFETY: The caller guarantees that `netdev` is valid (see `# Safety`). The read may race with
    // a change, and returns the old or the new value then.
    unsafe { addr_of!((*netdev).flags).read_volatile() }
}

/// Returns the MTU of a device in bytes.
///
/// # Safety
///
/// `netdev` must be valid.
pub(super) unsafe fn mtu(netdev: *mut bindings::net_device) -> u32 {
    // SAFETY: The caller guarantees that `netdev` is valid (see `# Safety`). The read may race with
    // a change, and returns the old or the new value then.
    unsafe { addr_of!((*netdev).mtu).read_volatile() }
}

/// Returns whether a device has all of `features` (`NETIF_F_*`).
///
/// # Safety
///
/// `netdev` must be valid.
pub(super) unsafe fn has_features(
    netdev: *mut bindings::net_device,
    features: bindings::netdev_features_t,
) -> bool {
    // SAFETY: The caller guarantees that `netdev` is valid (see `# Safety`). The read may race with
    // a change, and returns the old or the new value then.
    let all = unsafe { addr_of!((*netdev).features).read_volatile() };
    all & features == features
}

/// Maximum number of bytes that this crate keeps free in front of a packet. Tunnels ask for some
/// hundred.
const MAX_HEADROOM: u32 = 4096;

/// Returns the number of bytes to keep free in front of a packet for the link-layer header and for
/// headers that the device adds. Returns `None` if the device asks for more than [`MAX_HEADROOM`].
///
/// The offsets of a buffer's headers have 16 bits (`struct sk_buff`), so headers must lie within
/// the first 64 KiB of a buffer. The kernel writes to the wrong place if an offset has wrapped
/// (`neigh_resolve_output()`, net/core/neighbour.c). A device may ask for nearly 64 KiB. A VXLAN
/// device asks for more bytes than the device below it. A bridge tells all its ports the largest
/// number for which one of them asks. If a port is one end of a veth pair, both ends then ask for
/// that number, in whatever network namespaces they are (`update_headroom()`, net/bridge/br_if.c;
/// `veth_set_rx_headroom()`, drivers/net/veth.c).
///
/// # Safety
///
/// `netdev` must be valid.
pub(super) unsafe fn headroom(netdev: *mut bindings::net_device) -> Option<usize> {
    // SAFETY: The caller guarantees that `netdev` is valid (see `# Safety`).
    let bytes = unsafe { bindings::LL_RESERVED_SPACE(netdev) };
    (bytes <= MAX_HEADROOM).then_some(bytes as usize)
}

/// Returns the hardware address of a device if it has six bytes.
///
/// # Safety
///
/// `netdev` must be valid.
pub(super) unsafe fn ethernet_address(netdev: *mut bindings::net_device) -> Option<[u8; 6]> {
    // SAFETY: The caller guarantees that `netdev` is valid (see `# Safety`). The read may race with
    // a change, and returns the old or the new value then.
    let len = unsafe { addr_of!((*netdev).addr_len).read_volatile() };
    // SAFETY: The caller guarantees that `netdev` is valid (see `# Safety`). The read may race with
    // a change, and returns the old or the new value then.
    let address = unsafe { addr_of!((*netdev).dev_addr).read_volatile() };
    // SAFETY: `dev_addr` points to MAX_ADDR_LEN bytes as long as the device exists
    // (`dev_addr_init()`, net/core/dev_addr_lists.c). The read may race with a change; each byte is
    // from the old or the new address.
    (len == 6).then(|| unsafe { address.cast::<[u8; 6]>().read_volatile() })
}

/// Returns the kind of a device.
///
/// # Safety
///
/// `netdev` must be valid.
pub(super) unsafe fn kind(netdev: *mut bindings::net_device) -> Kind {
    // SAFETY: The caller guarantees that `netdev` is valid (see `# Safety`). The read may race with
    // a change, and returns the old or the new value then.
    let kind = unsafe { addr_of!((*netdev).type_).read_volatile() };
    match u32::from(kind) {
        bindings::ARPHRD_ETHER => Kind::Ethernet,
        bindings::ARPHRD_LOOPBACK => Kind::Loopback,
        bindings::ARPHRD_NONE => Kind::Tun,
        _ => Kind::Other,
    }
}

/// The kinds of network devices that this crate distinguishes (`ARPHRD_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An Ethernet device, or a device that behaves like one (`ARPHRD_ETHER`).
    Ethernet,
    /// The loopback device.
    Loopback,
    /// A device for IP packets without a link layer (`ARPHRD_NONE`).
    Tun,
    /// A device of any other kind.
    Other,
}

impl Clone for Netdev {
    fn clone(&self) -> Self {
        // SAFETY: The device is valid by the type invariant.
        unsafe { Self::hold(self.0) }
    }
}

impl PartialEq for Netdev {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Drop for Netdev {
    fn drop(&mut self) {
        // SAFETY: By the type invariant `self` owns a reference, which is put once, here.
        unsafe { bindings::dev_put(self.as_ptr()) };
    }
}

/// A place for a network device, which an [`Observer`] clears before the device is unregistered or
/// leaves its network namespace.
///
/// Its methods are callable in any context but hard interrupts.
#[pin_data]
pub struct NetdevSlot {
    #[pin]
    netdev: BhSpinLock<Option<Netdev>>,
}

impl NetdevSlot {
    /// Creates an initialiser for a slot that holds `netdev`.
    pub fn new(netdev: Netdev) -> impl PinInit<Self> {
        pin_init!(Self {
            netdev <- new_bh_spinlock!(Some(netdev), "rdma_netdev_slot"),
        })
    }

    /// Returns a reference to the device, or `None` if the slot was cleared.
    pub fn get(&self) -> Option<Netdev> {
        self.netdev.lock().clone()
    }

    /// Clears the slot and puts its reference to the device.
    pub fn clear(&self) {
        let netdev = self.netdev.lock().take();
        drop(netdev);
    }
}

/// An event of a network device (`NETDEV_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The device went up or down, its carrier changed, or it is a bond that changed its active
    /// slave.
    State,
    /// The device is about to be unregistered or to leave its network namespace.
    Unregister,
}

/// Receiver of the events of network devices.
pub trait Observer: Send + Sync + 'static {
    /// Handles an event of `netdev`.
    ///
    /// # Context
    ///
    /// Process context with RTNL held. Must not wait for any code that takes RTNL.
    fn netdev_event(&self, netdev: &Netdev, event: Event);
}

/// A registered observer (`register_netdevice_notifier()`).
///
/// Dropping the value unregisters the observer. The kernel then reports each network device to it
/// as unregistered (`unregister_netdevice_notifier()`, net/core/dev.c), and nothing afterwards.
pub struct Notifier<T: Observer>(Pin<KBox<Block<T>>>);

/// The kernel's notifier block, with the observer behind it.
///
/// # Invariants
///
/// `block` is the first member.
#[repr(C)]
#[pin_data]
struct Block<T: Observer> {
    #[pin]
    block: Opaque<bindings::notifier_block>,
    observer: Arc<T>,
}

// SAFETY: The block is touched only by the notifier chain, under its lock.
unsafe impl<T: Observer> Send for Block<T> {}
// SAFETY: The block is touched only by the notifier chain, under its lock.
unsafe impl<T: Observer> Sync for Block<T> {}

impl<T: Observer> Notifier<T> {
    /// Registers `observer` for the events of network devices in all network namespaces. Must be
    /// called in process context without RTNL held; sleeps.
    ///
    /// # Errors
    ///
    /// Returns `ENOMEM` if there is no memory.
    pub fn new(observer: Arc<T>) -> Result<Self> {
        let block = KBox::pin_init(
            pin_init!(Block {
                block <- Opaque::ffi_init(|slot: *mut bindings::notifier_block| {
                    let block = bindings::notifier_block {
                        notifier_call: Some(notify::<T>),
                        ..Default::default()
                    };
                    // SAFETY: `slot` is valid for writes while the closure runs.
                    unsafe { slot.write(block) }
                }),
                observer,
            }),
            GFP_KERNEL,
        )?;
        // SAFETY: The block is pinned, and `drop` unregisters it before it is freed.
        to_result(unsafe { bindings::register_netdevice_notifier(block.block.get()) })?;
        Ok(Self(block))
    }
}

impl<T: Observer> Drop for Notifier<T> {
    fn drop(&mut self) {
        // SAFETY: `new` registered the block.
        unsafe { bindings::unregister_netdevice_notifier(self.0.block.get()) };
    }
}

/// Passes an event of a network device to the observer (`notifier_block.notifier_call`).
///
/// # Safety
///
/// `block` must be the first member of a registered [`Block<T>`], and `of` must point to a
/// `struct netdev_notifier_info`.
unsafe extern "C" fn notify<T: Observer>(
    block: *mut bindings::notifier_block,
    event: c_ulong,
    of: *mut c_void,
) -> c_int {
    let event = match event as bindings::netdev_cmd {
        bindings::netdev_cmd_NETDEV_UP
        | bindings::netdev_cmd_NETDEV_DOWN
        | bindings::netdev_cmd_NETDEV_CHANGE
        | bindings::netdev_cmd_NETDEV_BONDING_FAILOVER => Event::State,
        bindings::netdev_cmd_NETDEV_UNREGISTER => Event::Unregister,
        _ => return bindings::NOTIFY_DONE as c_int,
    };
    // SAFETY: The notifier chain passes a `struct netdev_notifier_info`.
    let netdev = unsafe { bindings::netdev_notifier_info_to_dev(of.cast()) };
    if let Some(netdev) = NonNull::new(netdev) {
        // SAFETY: The device is valid during the call.
        let netdev = unsafe { Netdev::hold(netdev) };
        // SAFETY: `block` is the first member of a `Block<T>`, which is freed only after it was
        // unregistered.
        let block = unsafe { &*block.cast::<Block<T>>() };
        block.observer.netdev_event(&netdev, event);
    }
    bindings::NOTIFY_DONE as c_int
}
