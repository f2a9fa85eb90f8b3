// SPDX-License-Identifier: GPL-2.0

//! Where packets go.

use core::ptr::NonNull;

use kernel::{error::from_err_ptr, ffi::c_int, prelude::*, sync::rcu};

use super::netdev::Netdev;
use roce::ids::Qpn;

use crate::{
    bindings,
    gid::{Gid, Network},
};

/// What the routing decision depends on.
#[derive(Clone, Copy)]
pub struct Flow {
    /// Source address; must be one of this host's, for IPv6 in the VRF, if any, of device `netdev_index`.
    pub source: Gid,
    /// Destination address, of the same version.
    pub destination: Gid,
    /// Index of the network device to leave by, unless the destination is local.
    pub netdev_index: u32,
    /// IPv4 type of service or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
    /// UDP source port.
    pub source_port: u16,
    /// UDP destination port.
    pub destination_port: u16,
}

/// A routing decision, for as long as it is valid.
///
/// # Invariants
///
/// `dst` is a valid `struct dst_entry`, of which `self` owns a count, and the first member of a
/// `struct rtable` or `struct rt6_info` as `network` says.
pub struct Route {
    dst: NonNull<bindings::dst_entry>,
    cookie: u32,
    network: Network,
    local: bool,
    /// Bytes to keep free in front of the IP header; whoever needs more then makes room.
    link_headroom: usize,
}

// SAFETY: A `dst_entry` is shared by all CPUs.
unsafe impl Send for Route {}

impl Route {
    /// Asks the routing tables of the namespace that `netdev` is in.
    ///
    /// A destination that is an address of this host is found whichever device in the same VRF has it, or in none if
    /// device `flow.netdev_index` is in none; any other is reached through that device.
    ///
    /// # Context
    ///
    /// Any but hard interrupts; doesn't sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the addresses are of different families or the source isn't this host's,
    /// otherwise what the routing tables say, as `ENETUNREACH`.
    pub fn lookup(netdev: &Netdev, flow: &Flow) -> Result<Self> {
        if flow.source.network() != flow.destination.network() {
            return Err(EINVAL);
        }
        let readers = rcu::read_lock();
        let net = netdev.net(&readers);
        if !is_link_local(&flow.destination) {
            // SAFETY: The namespace lives as long as `readers`.
            let vrf = unsafe { vrf_of_index(net, flow.netdev_index) };
            // SAFETY: As above.
            match unsafe { find(net, flow, Exit::Any { vrf }) } {
                // The table of local addresses of no VRF is asked first, whatever the VRF.
                Ok(route) if route.local && route.vrf(&readers) == vrf => return Ok(route),
                _ => (),
            }
        }
        // SAFETY: As above.
        unsafe { find(net, flow, Exit::By(flow.netdev_index)) }
    }

    /// A decision.
    ///
    /// # Safety
    ///
    /// `dst` must be as in the type's invariants; the caller gives up a count of it.
    unsafe fn new(
        dst: NonNull<bindings::dst_entry>,
        cookie: u32,
        network: Network,
        local: bool,
    ) -> Self {
        let link_headroom = if local {
            0
        } else {
            let _readers = rcu::read_lock();
            // SAFETY: `dst` is valid, and RCU keeps the device.
            let netdev = unsafe { bindings::dst_dev_rcu(dst.as_ptr()) };
            // SAFETY: As above.
            unsafe { bindings::LL_RESERVED_SPACE(netdev) as usize }
        };
        // INVARIANT: As the caller promises.
        Self {
            dst,
            cookie,
            network,
            local,
            link_headroom,
        }
    }

    /// Whether the decision still stands.
    pub fn is_valid(&self) -> bool {
        // SAFETY: Valid by the type invariant.
        !unsafe { bindings::dst_check(self.dst.as_ptr(), self.cookie) }.is_null()
    }

    /// Whether the destination is an address of this host, in the same namespace.
    pub fn is_local(&self) -> bool {
        self.local
    }

    /// The version of IP.
    pub fn network(&self) -> Network {
        self.network
    }

    /// Bytes to keep free in front of the IP header: none for what stays on this host.
    pub fn link_headroom(&self) -> usize {
        self.link_headroom
    }

    /// The entry with a count for the caller.
    pub(super) fn hold(&self) -> *mut bindings::dst_entry {
        // SAFETY: Valid by the type invariant.
        unsafe { bindings::dst_hold(self.dst.as_ptr()) };
        self.dst.as_ptr()
    }

    /// Most bytes of a packet, its IP header included: the MTU of the network device, or of the path if ICMP messages
    /// told of a smaller one.
    pub(super) fn mtu(&self) -> usize {
        // SAFETY: Valid by the type invariant.
        unsafe { bindings::dst_mtu(self.dst.as_ptr()) as usize }
    }

    /// The index of the VRF that the packet leaves in, or for a local destination that its address is in; 0 if in none.
    fn vrf(&self, _readers: &rcu::Guard) -> u32 {
        // SAFETY: Valid by the type invariant, and RCU keeps the device. That of a local destination is the VRF, or the
        // loopback device (`ip_route_output_key_hash_rcu()`, net/ipv4/route.c; `ip6_rt_get_dev_rcu()`,
        // net/ipv6/route.c).
        let netdev = unsafe { bindings::dst_dev_rcu(self.dst.as_ptr()) };
        // SAFETY: As above.
        unsafe { vrf_of(netdev) }
    }

    /// The namespace. Valid as long as `_readers` lives.
    pub(super) fn net(&self, _readers: &rcu::Guard) -> *mut bindings::net {
        // SAFETY: Valid by the type invariant, and RCU keeps the device.
        let netdev = unsafe { bindings::dst_dev_rcu(self.dst.as_ptr()) };
        // SAFETY: As above.
        unsafe { bindings::dev_net(netdev) }
    }
}

impl Clone for Route {
    fn clone(&self) -> Self {
        self.hold();
        // INVARIANT: The count just taken is the copy's.
        Self {
            dst: self.dst,
            cookie: self.cookie,
            network: self.network,
            local: self.local,
            link_headroom: self.link_headroom,
        }
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        // SAFETY: A count is owned by the type invariant.
        unsafe { bindings::dst_release(self.dst.as_ptr()) };
    }
}

/// The UDP source port for packets from QP `local` to QP `remote`: from the flow label, or if that
/// is zero from the two numbers.
pub fn source_port(flow_label: u32, local: Qpn, remote: Qpn) -> u16 {
    // SAFETY: No requirements.
    unsafe { bindings::rdma_get_udp_sport(flow_label, local.get(), remote.get()) }
}

/// By which devices a packet may leave.
#[derive(Clone, Copy)]
enum Exit {
    /// Any in the VRF of this index, or any in none if it is 0.
    Any { vrf: u32 },
    /// That of this index.
    By(u32),
}

/// The index of the VRF that the device of this index is in, or that it is; otherwise 0.
///
/// # Safety
///
/// `net` must be valid during the call.
unsafe fn vrf_of_index(net: *mut bindings::net, index: u32) -> u32 {
    let _readers = rcu::read_lock();
    // SAFETY: As the caller promises; the device is null, or lives as long as `_readers`.
    unsafe { vrf_of(bindings::dev_get_by_index_rcu(net, index as c_int)) }
}

/// The same for a device that is found.
///
/// # Safety
///
/// `netdev` must be null or valid, and the caller hold RCU for reading.
unsafe fn vrf_of(netdev: *const bindings::net_device) -> u32 {
    // SAFETY: As the caller promises.
    unsafe { bindings::l3mdev_master_ifindex_rcu(netdev) }.unsigned_abs()
}

/// Asks for a route that leaves by `exit`.
///
/// # Safety
///
/// `net` must be valid during the call.
unsafe fn find(net: *mut bindings::net, flow: &Flow, exit: Exit) -> Result<Route> {
    match (flow.source.ipv4(), flow.destination.ipv4()) {
        // SAFETY: As the caller promises.
        (Some(source), Some(destination)) => unsafe {
            find_v4(net, flow, exit, source, destination)
        },
        // SAFETY: As the caller promises.
        _ => unsafe { find_v6(net, flow, exit) },
    }
}

/// # Safety
///
/// As for [`find`].
unsafe fn find_v4(
    net: *mut bindings::net,
    flow: &Flow,
    exit: Exit,
    source: [u8; 4],
    destination: [u8; 4],
) -> Result<Route> {
    let mut key = bindings::flowi4 {
        saddr: u32::from_ne_bytes(source),
        daddr: u32::from_ne_bytes(destination),
        ..Default::default()
    };
    key.__fl_common = common(flow, exit);
    key.uli = ports(flow);
    // The tables refuse sources that aren't this host's; the policies of IPsec apply, as with `ip6_dst_lookup_flow`.
    // SAFETY: As the caller promises.
    let found = unsafe { bindings::ip_route_output_flow(net, &mut key, core::ptr::null()) };
    let found = NonNull::new(from_err_ptr(found)?).ok_or(EINVAL)?;
    // SAFETY: A valid entry was returned, with a count for us.
    let kind = u32::from(unsafe { (*found.as_ptr()).rt_type });
    // SAFETY: It is the first member of a `struct rtable`, and the count goes to the route.
    Ok(unsafe { Route::new(found.cast(), 0, Network::V4, kind == bindings::RTN_LOCAL) })
}

/// # Safety
///
/// As for [`find`].
unsafe fn find_v6(net: *mut bindings::net, flow: &Flow, exit: Exit) -> Result<Route> {
    let source = in6_addr(flow.source);
    // SAFETY: As the caller promises.
    if !unsafe { is_own(net, &source, flow.netdev_index) } {
        return Err(EINVAL);
    }
    let label = u32::from(flow.traffic_class) << 20 | flow.flow_label & 0xf_ffff;
    let mut key = bindings::flowi6 {
        saddr: source,
        daddr: in6_addr(flow.destination),
        flowlabel: label.to_be(),
        ..Default::default()
    };
    key.__fl_common = common(flow, exit);
    key.uli = ports(flow);
    let none = core::ptr::null();
    // SAFETY: As above.
    let found = unsafe { bindings::ip6_dst_lookup_flow(net, none, &mut key, none.cast()) };
    let dst = NonNull::new(from_err_ptr(found)?).ok_or(EINVAL)?;
    let entry = dst.as_ptr().cast::<bindings::rt6_info>();
    // SAFETY: What the IPv6 tables return is the first member of a `struct rt6_info`.
    let cookie = unsafe { bindings::rt6_get_cookie(entry) };
    // SAFETY: Likewise.
    let flags = unsafe { (*entry).rt6i_flags };
    // SAFETY: A valid entry was returned, with a count for us, which goes to the route.
    Ok(unsafe { Route::new(dst, cookie, Network::V6, flags & bindings::RTF_LOCAL != 0) })
}

/// Whether `address` is one of this host's, of any device in the VRF of device `index`; if that is in none, of any
/// device in none.
///
/// # Safety
///
/// `net` must be valid during the call.
unsafe fn is_own(net: *mut bindings::net, address: &bindings::in6_addr, index: u32) -> bool {
    let _readers = rcu::read_lock();
    // SAFETY: As the caller promises.
    let netdev = unsafe { bindings::dev_get_by_index_rcu(net, index as c_int) };
    let tentative = bindings::IFA_F_TENTATIVE;
    // SAFETY: As above; the device is null, or lives as long as `_readers`.
    unsafe { bindings::ipv6_chk_addr_and_flags(net, address, netdev, true, 0, tentative) != 0 }
}

fn in6_addr(gid: Gid) -> bindings::in6_addr {
    let mut address = bindings::in6_addr::default();
    address.in6_u.u6_addr8 = gid.0;
    address
}

fn common(flow: &Flow, exit: Exit) -> bindings::flowi_common {
    let (index, vrf) = match exit {
        Exit::Any { vrf } => (0, vrf),
        // The tables find its VRF (`l3mdev_update_flow()`, net/l3mdev/l3mdev.c).
        Exit::By(index) => (index, 0),
    };
    bindings::flowi_common {
        flowic_oif: index as c_int,
        flowic_l3mdev: vrf as c_int,
        flowic_proto: bindings::IPPROTO_UDP as u8,
        flowic_dscp: flow.traffic_class & 0xfc,
        ..Default::default()
    }
}

fn ports(flow: &Flow) -> bindings::flowi_uli {
    let mut ports = bindings::flowi_uli::default();
    ports.ports.sport = flow.source_port.to_be();
    ports.ports.dport = flow.destination_port.to_be();
    ports
}

/// Whether an address names a host only together with a device (fe80::/10).
fn is_link_local(gid: &Gid) -> bool {
    matches!(gid.0, [0xfe, second, ..] if second & 0xc0 == 0x80)
}
