// SPDX-License-Identifier: GPL-2.0

//! Network devices and what happens to them.

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

use super::netns::{Net, NetId};
use crate::{bindings, new_bh_spinlock, support::sync::BhSpinLock};

/// A counted network device. It may move to another namespace meanwhile.
///
/// # Invariants
///
/// The device is valid, and `self` owns a count of it.
pub struct Netdev(NonNull<bindings::net_device>);

// SAFETY: A network device is shared by all CPUs, and may be released by any.
unsafe impl Send for Netdev {}
// SAFETY: As above; what is read here is read with single loads.
unsafe impl Sync for Netdev {}

impl Netdev {
    /// Takes a count of a device of C's.
    ///
    /// # Safety
    ///
    /// It must be valid for the duration of the call.
    pub(crate) unsafe fn hold(netdev: NonNull<bindings::net_device>) -> Self {
        // SAFETY: The caller promises that it is valid.
        unsafe { bindings::dev_hold(netdev.as_ptr()) };
        // INVARIANT: The count was just taken.
        Self(netdev)
    }

    /// Takes over a count from C.
    ///
    /// # Safety
    ///
    /// It must be valid, and the caller give up a count of it.
    pub(crate) unsafe fn from_raw(netdev: NonNull<bindings::net_device>) -> Self {
        // INVARIANT: As the caller promises.
        Self(netdev)
    }

    /// Gives the count to C.
    pub(crate) fn into_raw(self) -> *mut bindings::net_device {
        ManuallyDrop::new(self).as_ptr()
    }

    /// The device for C.
    pub(crate) fn as_ptr(&self) -> *mut bindings::net_device {
        self.0.as_ptr()
    }

    /// Its namespace. Valid as long as `_readers` lives.
    pub(crate) fn net(&self, _readers: &rcu::Guard) -> *mut bindings::net {
        // SAFETY: Valid by the type invariant.
        unsafe { bindings::dev_net(self.as_ptr()) }
    }

    /// A count of its namespace; `None` if that is ending. Any context.
    pub fn hold_net(&self) -> Option<Net> {
        let readers = rcu::read_lock();
        // SAFETY: The namespace lives as long as `readers`.
        unsafe { Net::hold(self.net(&readers)) }
    }

    /// Its namespace's identity.
    pub fn net_id(&self) -> NetId {
        NetId::of(self.net(&rcu::read_lock()))
    }

    /// Its index in its namespace.
    pub fn index(&self) -> u32 {
        // SAFETY: Valid by the type invariant.
        unsafe { index(self.as_ptr()) }
    }

    /// A copy of its name, which may change at any time. A copy made during a change may have bytes of both names.
    pub fn name(&self) -> Name {
        // SAFETY: Valid by the type invariant; a byte of a racing change shows either value.
        Name(unsafe { addr_of!((*self.as_ptr()).name).read_volatile() })
    }

    /// Most bytes of an IP packet.
    pub fn mtu(&self) -> u32 {
        // SAFETY: Valid by the type invariant.
        unsafe { mtu(self.as_ptr()) }
    }

    /// Bytes of its link-layer header.
    pub fn header_len(&self) -> u32 {
        // SAFETY: Valid by the type invariant; a racing change shows either value.
        let len = unsafe { addr_of!((*self.as_ptr()).hard_header_len).read_volatile() };
        len.into()
    }

    /// Bytes to keep free in front of a frame for what the device puts there. `None` if it wants too many ([`headroom`]).
    pub fn headroom(&self) -> Option<usize> {
        // SAFETY: Valid by the type invariant.
        unsafe { headroom(self.as_ptr()) }
    }

    /// Its hardware address, if it has six bytes, as all kinds of Ethernet do.
    pub fn ethernet_address(&self) -> Option<[u8; 6]> {
        // SAFETY: Valid by the type invariant.
        unsafe { ethernet_address(self.as_ptr()) }
    }

    /// Whether it is up and has a carrier.
    pub fn is_active(&self) -> bool {
        self.is_up() && self.has_carrier()
    }

    /// Whether it is up.
    pub fn is_up(&self) -> bool {
        // SAFETY: Valid by the type invariant.
        unsafe { bindings::netif_running(self.as_ptr()) }
    }

    /// Whether it has a carrier.
    pub fn has_carrier(&self) -> bool {
        // SAFETY: Valid by the type invariant.
        unsafe { bindings::netif_carrier_ok(self.as_ptr()) }
    }

    /// Megabits a second, if it knows. Process context, not under RTNL; sleeps. Not in a notifier, where
    /// the device's own lock may be held as well, which this takes.
    pub fn speed(&self) -> Option<u32> {
        const UNKNOWN: u32 = bindings::SPEED_UNKNOWN as u32;
        let mut settings = bindings::ethtool_link_ksettings::default();
        // SAFETY: No requirements but those of the documentation.
        unsafe { bindings::rtnl_lock() };
        let known = self.is_registered() && {
            // SAFETY: Valid by the type invariant; RTNL is held.
            unsafe { bindings::__ethtool_get_link_ksettings(self.as_ptr(), &mut settings) == 0 }
        };
        // SAFETY: Locked above.
        unsafe { bindings::rtnl_unlock() };
        (known && settings.base.speed != UNKNOWN).then_some(settings.base.speed)
    }

    /// Whether it is registered, and not on its way out.
    pub fn is_registered(&self) -> bool {
        // SAFETY: Valid by the type invariant.
        let state = unsafe { addr_of!((*self.as_ptr()).reg_state).read_volatile() };
        u32::from(state) == bindings::netdev_reg_state_NETREG_REGISTERED
    }

    /// Whether it is a VLAN on top of another device.
    pub fn is_vlan(&self) -> bool {
        // SAFETY: Valid by the type invariant.
        unsafe { bindings::is_vlan_dev(self.as_ptr()) }
    }

    /// What kind of device it is.
    pub fn kind(&self) -> Kind {
        // SAFETY: Valid by the type invariant.
        unsafe { kind(self.as_ptr()) }
    }
}

/// The name of a network device, as it was at one time.
pub struct Name([c_char; bindings::IFNAMSIZ as usize]);

impl Name {
    /// The name, without the zeros behind it.
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or(c"")
    }
}

/// The index of a device in its namespace.
///
/// # Safety
///
/// It must be valid.
pub(crate) unsafe fn index(netdev: *const bindings::net_device) -> u32 {
    // SAFETY: The caller promises that it is valid; a racing change shows either value.
    let index = unsafe { addr_of!((*netdev).ifindex).read_volatile() };
    index.unsigned_abs()
}

/// The flags of a device (`IFF_*`).
///
/// # Safety
///
/// It must be valid.
pub(super) unsafe fn flags(netdev: *mut bindings::net_device) -> bindings::net_device_flags {
    // SAFETY: The caller promises that it is valid; a racing change shows either value.
    unsafe { addr_of!((*netdev).flags).read_volatile() }
}

/// The MTU of a device.
///
/// # Safety
///
/// It must be valid.
pub(super) unsafe fn mtu(netdev: *mut bindings::net_device) -> u32 {
    // SAFETY: The caller promises that it is valid; a racing change shows either value.
    unsafe { addr_of!((*netdev).mtu).read_volatile() }
}

/// Most bytes that a device may want in front of a packet. Tunnels ask for some hundred.
const MOST_HEADROOM: u32 = 4096;

/// Bytes to keep free in front of a packet for what a device puts there. `None` if it wants more than [`MOST_HEADROOM`].
///
/// Headers lie within 64 KiB of a buffer's beginning: the kernel keeps their places in 16 bits (`struct sk_buff`), and writes
/// where a place leads to that wrapped (`neigh_resolve_output()`, net/core/neighbour.c). A device may want nearly as much. VXLAN
/// devices add to what the device below wants, and a bridge has its ports want as much, also the other end of a veth pair,
/// whatever namespace that is in (`update_headroom()`, net/bridge/br_if.c; `veth_set_rx_headroom()`, drivers/net/veth.c).
///
/// # Safety
///
/// It must be valid.
pub(super) unsafe fn headroom(netdev: *mut bindings::net_device) -> Option<usize> {
    // SAFETY: The caller promises that it is valid.
    let bytes = unsafe { bindings::LL_RESERVED_SPACE(netdev) };
    (bytes <= MOST_HEADROOM).then_some(bytes as usize)
}

/// The hardware address of a device, if it has six bytes.
///
/// # Safety
///
/// It must be valid.
pub(super) unsafe fn ethernet_address(netdev: *mut bindings::net_device) -> Option<[u8; 6]> {
    // SAFETY: The caller promises that it is valid; a racing change shows either value.
    let len = unsafe { addr_of!((*netdev).addr_len).read_volatile() };
    // SAFETY: As above.
    let address = unsafe { addr_of!((*netdev).dev_addr).read_volatile() };
    // SAFETY: `dev_addr` points to MAX_ADDR_LEN bytes while the device is there (`dev_addr_init()`,
    // net/core/dev_addr_lists.c); a byte of a racing change shows either value.
    (len == 6).then(|| unsafe { address.cast::<[u8; 6]>().read_volatile() })
}

/// The kind of a device.
///
/// # Safety
///
/// It must be valid.
pub(super) unsafe fn kind(netdev: *mut bindings::net_device) -> Kind {
    // SAFETY: The caller promises that it is valid; a racing change shows either value.
    let kind = unsafe { addr_of!((*netdev).type_).read_volatile() };
    match u32::from(kind) {
        bindings::ARPHRD_ETHER => Kind::Ethernet,
        bindings::ARPHRD_LOOPBACK => Kind::Loopback,
        bindings::ARPHRD_NONE => Kind::Tun,
        _ => Kind::Other,
    }
}

/// The kinds of network devices that matter here (`ARPHRD_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Ethernet and all that looks like it.
    Ethernet,
    /// The loopback device.
    Loopback,
    /// IP only, without a link layer.
    Tun,
    /// Anything else.
    Other,
}

impl Clone for Netdev {
    fn clone(&self) -> Self {
        // SAFETY: Valid by the type invariant.
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
        // SAFETY: A count is owned by the type invariant.
        unsafe { bindings::dev_put(self.as_ptr()) };
    }
}

/// Holds a network device until it goes away.
#[pin_data]
pub struct NetdevSlot {
    #[pin]
    netdev: BhSpinLock<Option<Netdev>>,
}

impl NetdevSlot {
    /// Holds `netdev`.
    pub fn new(netdev: Netdev) -> impl PinInit<Self> {
        pin_init!(Self {
            netdev <- new_bh_spinlock!(Some(netdev), "rdma_netdev_slot"),
        })
    }

    /// The device, unless it is gone.
    pub fn get(&self) -> Option<Netdev> {
        self.netdev.lock().clone()
    }

    /// Lets go of the device.
    pub fn clear(&self) {
        let netdev = self.netdev.lock().take();
        drop(netdev);
    }
}

/// What happened to a device (`NETDEV_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It went up or down, its carrier came or went, or it is a bond which uses another device now.
    State,
    /// It goes away, or leaves its namespace.
    Unregister,
}

/// Who wants to know.
pub trait Observer: Send + Sync + 'static {
    /// Something happened to `netdev`.
    ///
    /// # Context
    ///
    /// Process, under RTNL: must not wait for anything that takes it.
    fn netdev_event(&self, netdev: &Netdev, event: Event);
}

/// A registered observer. Dropping it ends the calls.
pub struct Notifier<T: Observer>(Pin<KBox<Block<T>>>);

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
// SAFETY: As above.
unsafe impl<T: Observer> Sync for Block<T> {}

impl<T: Observer> Notifier<T> {
    /// Tells `observer` what happens from now on, in all namespaces.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(observer: Arc<T>) -> Result<Self> {
        let block = KBox::pin_init(
            pin_init!(Block {
                block <- Opaque::ffi_init(|slot: *mut bindings::notifier_block| {
                    let block = bindings::notifier_block {
                        notifier_call: Some(notify::<T>),
                        ..Default::default()
                    };
                    // SAFETY: The slot is valid for writes.
                    unsafe { slot.write(block) }
                }),
                observer,
            }),
            GFP_KERNEL,
        )?;
        // SAFETY: The block is pinned, and unregistered before it goes.
        to_result(unsafe { bindings::register_netdevice_notifier(block.block.get()) })?;
        Ok(Self(block))
    }
}

impl<T: Observer> Drop for Notifier<T> {
    fn drop(&mut self) {
        // SAFETY: It was registered by `new`.
        unsafe { bindings::unregister_netdevice_notifier(self.0.block.get()) };
    }
}

/// # Safety
///
/// `block` must be that of a [`Block<T>`], and `of` a `struct netdev_notifier_info`.
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
    // SAFETY: The notifier chain passes such a structure.
    let netdev = unsafe { bindings::netdev_notifier_info_to_dev(of.cast()) };
    if let Some(netdev) = NonNull::new(netdev) {
        // SAFETY: The device is valid during the call.
        let netdev = unsafe { Netdev::hold(netdev) };
        // SAFETY: The block is the first member of a `Block<T>`, which outlives its registration.
        let block = unsafe { &*block.cast::<Block<T>>() };
        block.observer.netdev_event(&netdev, event);
    }
    bindings::NOTIFY_DONE as c_int
}
