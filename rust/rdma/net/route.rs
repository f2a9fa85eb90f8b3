// SPDX-License-Identifier: GPL-2.0

//! Where packets go.

use core::{mem::ManuallyDrop, ptr::NonNull};

use kernel::{
    error::{from_err_ptr, to_result},
    ffi::c_int,
    prelude::*,
    sync::rcu,
};

use super::netdev::{self, index, Netdev};
use roce::ids::Qpn;

use crate::{
    bindings,
    device::gid::{Gid, Network},
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
    /// Whether IPsec changes the packets.
    protected: bool,
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
    /// `EINVAL` if the addresses are of different families or the source isn't this host's, `EACCES` if the
    /// destination is a broadcast address, otherwise what the routing tables say, as `ENETUNREACH`. Over IPv4 a destination that no
    /// table leads to, or that a table refuses, is on the link of device `flow.netdev_index` (`ip_route_output_key_hash_rcu()`,
    /// net/ipv4/route.c).
    pub fn lookup(netdev: &Netdev, flow: &Flow) -> Result<Self> {
        if flow.source.network() != flow.destination.network() {
            return Err(EINVAL);
        }
        let readers = rcu::read_lock();
        let net = netdev.net(&readers);
        // SAFETY: The namespace lives as long as `readers`.
        let vrf = unsafe { vrf_of_index(net, flow.netdev_index) };
        let unscoped = !is_link_local(&flow.destination);
        if unscoped {
            // SAFETY: As above.
            match unsafe { find(net, flow, Exit::Any { vrf }) } {
                // The table of local addresses of no VRF is asked first, whatever the VRF.
                Ok(route) if route.local && route.vrf(&readers) == vrf => {
                    // SAFETY: As above.
                    return unsafe { route.under_policies(net, flow, &readers) };
                }
                _ => (),
            }
        }
        // SAFETY: As above.
        let route = unsafe { find(net, flow, Exit::By(flow.netdev_index)) }?;
        let fits = match route.local {
            // The device of a local link-local destination is the loopback device, which is in no VRF.
            true => !unscoped || route.vrf(&readers) == vrf,
            // If the device is a VRF, a rule behind that of the VRF's table may name any other table.
            false => route.leaves_by(flow.netdev_index, &readers),
        };
        if !fits {
            return Err(ENETUNREACH);
        }
        // SAFETY: As above.
        unsafe { route.under_policies(net, flow, &readers) }
    }

    /// A decision; `protected` says whether IPsec made the entry.
    ///
    /// # Safety
    ///
    /// `dst` must be as in the type's invariants; the caller gives up a count of it.
    unsafe fn new(dst: NonNull<bindings::dst_entry>, network: Network, protected: bool) -> Self {
        let (cookie, local) = match network {
            Network::V4 => {
                let entry = dst.as_ptr().cast::<bindings::rtable>();
                // SAFETY: As the caller promises.
                let kind = unsafe { (*entry).rt_type };
                (0, u32::from(kind) == bindings::RTN_LOCAL)
            }
            Network::V6 => {
                let entry = dst.as_ptr().cast::<bindings::rt6_info>();
                // SAFETY: As the caller promises.
                let cookie = unsafe { bindings::rt6_get_cookie(entry) };
                // SAFETY: Likewise.
                let flags = unsafe { (*entry).rt6i_flags };
                (cookie, flags & bindings::RTF_LOCAL != 0)
            }
        };
        // INVARIANT: As the caller promises.
        Self {
            dst,
            cookie,
            network,
            local,
            protected,
        }
    }

    /// The decision after the policies of IPsec.
    ///
    /// While IPsec has no state for a policy, there is no decision. An entry of IPsec's that keeps packets meanwhile
    /// (`xfrm_lookup_route()`, net/xfrm/xfrm_policy.c) would keep the credit of their QP.
    ///
    /// # Errors
    ///
    /// What the policies say, as `EPERM`; `EAGAIN` or `EREMOTE` while there is no state.
    ///
    /// # Safety
    ///
    /// `net` must be the namespace in which `self` was found for `flow`, and valid during the call.
    unsafe fn under_policies(
        self,
        net: *mut bindings::net,
        flow: &Flow,
        readers: &rcu::Guard,
    ) -> Result<Self> {
        let network = self.network;
        let by = Exit::By(self.netdev_index(readers));
        let mut v4 = v4_key(flow, by);
        let mut v6 = v6_key(flow, by);
        let key: *mut bindings::flowi = match network {
            Network::V4 => (&raw mut v4).cast(),
            Network::V6 => (&raw mut v6).cast(),
        };
        // The call takes the count.
        let dst = ManuallyDrop::new(self).dst;
        // SAFETY: `dst` is valid by the type invariant. A `struct flowi` is a union of the keys of all versions, of which
        // the call reads that of the entry's.
        let found = unsafe { bindings::xfrm_lookup(net, dst.as_ptr(), key, core::ptr::null(), 0) };
        let found = NonNull::new(from_err_ptr(found)?).ok_or(EINVAL)?;
        // SAFETY: A valid entry of the same version was returned, with a count for us.
        Ok(unsafe { Self::new(found, network, found != dst) })
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

    /// Whether IPsec changes the packets. Those that it makes longer than the path's MTU leave in fragments.
    pub fn is_protected(&self) -> bool {
        self.protected
    }

    /// The identification of an IPv4 packet to send from `source` to `destination` that may leave in fragments: the next one of the
    /// two addresses. Any context.
    pub fn identification(&self, source: [u8; 4], destination: [u8; 4]) -> u16 {
        let mut header = bindings::iphdr {
            protocol: bindings::IPPROTO_UDP as u8,
            ..Default::default()
        };
        let addresses = bindings::iphdr__bindgen_ty_1__bindgen_ty_1 {
            saddr: u32::from_ne_bytes(source),
            daddr: u32::from_ne_bytes(destination),
        };
        header.__bindgen_anon_1.__bindgen_anon_1 = addresses;
        let readers = rcu::read_lock();
        // SAFETY: RCU keeps the device and its namespace. The call reads the addresses and the protocol, and writes the identification.
        unsafe { bindings::__ip_select_ident(self.net(&readers), &mut header, 1) };
        u16::from_be(header.id)
    }

    /// The version of IP.
    pub fn network(&self) -> Network {
        self.network
    }

    /// Bytes to keep free in front of the IP header: none for what stays on this host. The network device may need more or less
    /// from one packet to the next (veth, as its peer's XDP programs come and go); one that finds too few copies the packet,
    /// and ends its account early (`skb_expand_head()`). `None` if it needs too many (`netdev::headroom`). Any context but hard
    /// interrupts.
    pub fn link_headroom(&self) -> Option<usize> {
        if self.local {
            return Some(0);
        }
        let _readers = rcu::read_lock();
        // SAFETY: Valid by the type invariant, and RCU keeps the device.
        let netdev = unsafe { bindings::dst_dev_rcu(self.dst.as_ptr()) };
        // SAFETY: As above.
        unsafe { netdev::headroom(netdev) }
    }

    /// Gives a packet of `len` bytes, its IP header included, its entry. Returns the namespace to send it in, which is valid as long
    /// as `readers` lives.
    ///
    /// It may be as long as the MTU of the network device. If IPsec makes it longer than the path's MTU afterwards, or netfilter
    /// gives it another path, it leaves in fragments.
    ///
    /// The IPv6 layer drops packets that are longer than the path's MTU, of which ICMP messages tell that anybody can forge.
    /// It asks the socket of the buffer whether it is to take the network device's MTU (`ip6_skb_dst_mtu()`,
    /// include/net/ip6_route.h). But the packets must not have a socket: the network stack changes `truesize` of a buffer
    /// with a socket, and the socket's count only if `sock_wfree()` is the buffer's destructor
    /// (`inet_frag_reasm_prepare()`, net/ipv4/inet_fragment.c). So a longer packet gets an entry of its own, as the
    /// kernel's neighbour solicitations do (`icmp6_dst_alloc()`, net/ipv6/route.c). The entry holds the network device, and
    /// nobody would tell it when the device goes. So it ends with the read-side section of `readers`. A queue that would keep
    /// it finds that it has no count, and keeps the packet without (`skb_dst_force()`, include/net/dst.h). `ip6_fragment()`
    /// (net/ipv6/ip6_output.c) does not look for a count, and its fragments would keep the entry after its end. So no packet is too
    /// long for the entry: netfilter may lengthen a packet that has one. Packets that netfilter has reassembled are fragmented
    /// again whatever the entry (`__ip6_finish_output()`, net/ipv6/ip6_output.c), but none of its hooks can make a fragment of a
    /// packet before that (`nft_nh_write_ok_ip6()`, net/netfilter/nft_payload.c, refuses to change the next header).
    ///
    /// Packets that IPsec protects or a lightweight tunnel encapsulates have no such entry, and may leave in fragments.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE` if the packet is longer than the MTU of the network device; `ENOMEM`; `ENODEV` if that device goes;
    /// `ENETUNREACH` if the decision no longer stands; `ENOSPC` if the device wants too much room in front of packets.
    ///
    /// # Safety
    ///
    /// The caller owns `skb`, which has no entry, and sends or frees it while `readers` lives.
    pub(super) unsafe fn attach(
        &self,
        skb: *mut bindings::sk_buff,
        len: usize,
        readers: &rcu::Guard,
    ) -> Result<*mut bindings::net> {
        let netdev = self.netdev(readers)?;
        // SAFETY: RCU keeps the device.
        if len > unsafe { netdev::mtu(netdev) } as usize {
            return Err(EMSGSIZE);
        }
        // The IP layer would make the room that is missing, as much as there may be.
        // SAFETY: As above.
        unsafe { netdev::headroom(netdev) }.ok_or(ENOSPC)?;
        // SAFETY: RCU keeps the device.
        let net = unsafe { bindings::dev_net(netdev) };
        // Otherwise `__xfrm6_output()` (net/ipv6/xfrm6_output.c) reads the socket of the buffer, which has none, if the packet is too
        // long and the caller of `ip6_local_out()` has named a socket. A rule of netfilter gives such a packet to IPsec.
        // SAFETY: The buffer is the caller's.
        unsafe { bindings::skb_set_ignore_df(skb) };
        if self.network == Network::V4 || !self.is_narrow_for(len) {
            // SAFETY: The count that `hold` takes is given to the buffer, which is the caller's.
            unsafe { bindings::skb_dst_set(skb, self.hold()) };
            return Ok(net);
        }
        // SAFETY: RCU keeps the device.
        let own = unsafe { self.without_mtu(netdev) }?;
        // SAFETY: The buffer is the caller's. RCU keeps the entry while `readers` lives.
        unsafe { bindings::skb_dst_set_noref(skb, own) };
        // SAFETY: The count is ours. `dst_release()` (net/core/dst.c) frees the entry after a grace period.
        unsafe { bindings::dst_release(own) };
        Ok(net)
    }

    /// The network device that packets leave by, for the IP layer. It is valid as long as `_readers` lives. The next call may find
    /// another one: the kernel takes the device from entries that are void, at any time. It gives them one whose MTU is 68 bytes, in the
    /// initial namespace (`dst_dev_put()`, net/core/dst.c).
    ///
    /// # Errors
    ///
    /// `ENETUNREACH` if the entry is void.
    fn netdev(&self, _readers: &rcu::Guard) -> Result<*mut bindings::net_device> {
        // SAFETY: Valid by the type invariant, and the caller is a reader of RCU.
        let netdev = unsafe { bindings::dst_dev_rcu(self.dst.as_ptr()) };
        // SAFETY: The kernel set the variable when it booted.
        if netdev == unsafe { bindings::blackhole_netdev } {
            return Err(ENETUNREACH);
        }
        Ok(netdev)
    }

    /// Whether a packet of `len` bytes is longer than the path's MTU, and the path has neither IPsec nor a tunnel.
    fn is_narrow_for(&self, len: usize) -> bool {
        let dst = self.dst.as_ptr();
        // SAFETY: Valid by the type invariant.
        let is_long = len > unsafe { bindings::dst_mtu(dst) } as usize;
        // SAFETY: As above.
        is_long && !self.protected && unsafe { (*dst).lwtstate }.is_null()
    }

    /// An entry of IPv6 like this one, which IPsec has not made, for packets of any length that leave by `netdev`. The caller has a
    /// count.
    ///
    /// # Safety
    ///
    /// RCU must keep the device.
    unsafe fn without_mtu(
        &self,
        netdev: *mut bindings::net_device,
    ) -> Result<*mut bindings::dst_entry> {
        let old = self.dst.as_ptr().cast::<bindings::rt6_info>();
        let flags = bindings::DST_NOCOUNT as c_int;
        // SAFETY: RCU keeps the device and its namespace.
        let new = unsafe { bindings::ip6_dst_alloc(bindings::dev_net(netdev), netdev, flags) };
        let new = NonNull::new(new).ok_or(ENOMEM)?.as_ptr();
        // SAFETY: As above. `ip6_dst_destroy()` (net/ipv6/route.c) puts the count.
        let settings = unsafe { bindings::in6_dev_get(netdev) };
        // SAFETY: Valid by the type invariant. `dst_dev_put()` (net/core/dst.c) changes `input` and `output` when the device
        // goes, and a single load shows either value; the rest is constant. The new entry is ours alone.
        unsafe {
            (*new).dst.input = (&raw const (*old).dst.input).read_volatile();
            (*new).dst.output = (&raw const (*old).dst.output).read_volatile();
            (*new).rt6i_dst = (*old).rt6i_dst;
            (*new).rt6i_gateway = (*old).rt6i_gateway;
            (*new).rt6i_flags = (*old).rt6i_flags & bindings::RTF_GATEWAY;
            (*new).rt6i_idev = settings;
        }
        let new = new.cast::<bindings::dst_entry>();
        if settings.is_null() {
            // SAFETY: The count is ours.
            unsafe { bindings::dst_release(new) };
            return Err(ENODEV);
        }
        // SAFETY: The entry is ours alone.
        unsafe { bindings::dst_metric_set(new, bindings::RTAX_MTU as c_int, UNLIMITED) };
        // Without memory the entry has no metrics.
        // SAFETY: As above.
        if unsafe { bindings::dst_mtu(new) } != UNLIMITED {
            // SAFETY: The count is ours.
            unsafe { bindings::dst_release(new) };
            return Err(ENOMEM);
        }
        Ok(new)
    }

    /// The entry with a count for the caller.
    fn hold(&self) -> *mut bindings::dst_entry {
        // SAFETY: Valid by the type invariant.
        unsafe { bindings::dst_hold(self.dst.as_ptr()) };
        self.dst.as_ptr()
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

    /// The index of the network device that packets leave by. Any context but hard interrupts.
    pub fn exit(&self) -> u32 {
        self.netdev_index(&rcu::read_lock())
    }

    /// The same, while the caller reads.
    fn netdev_index(&self, _readers: &rcu::Guard) -> u32 {
        // SAFETY: Valid by the type invariant, and RCU keeps the device.
        unsafe { index(bindings::dst_dev_rcu(self.dst.as_ptr())) }
    }

    /// Whether the packet leaves by the device of this index, or by one in it if it is a VRF.
    fn leaves_by(&self, index: u32, readers: &rcu::Guard) -> bool {
        self.netdev_index(readers) == index || self.vrf(readers) == index
    }

    /// The namespace, or another one if the decision no longer stands. Valid as long as `_readers` lives.
    fn net(&self, _readers: &rcu::Guard) -> *mut bindings::net {
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
            protected: self.protected,
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

/// The MTU of an entry for which no IPv6 packet is too long.
const UNLIMITED: u32 = u16::MAX as u32;

/// Asks for a route that leaves by `exit`, whatever the policies of IPsec.
///
/// # Safety
///
/// `net` must be valid during the call.
unsafe fn find(net: *mut bindings::net, flow: &Flow, exit: Exit) -> Result<Route> {
    match flow.source.network() {
        // SAFETY: As the caller promises.
        Network::V4 => unsafe { find_v4(net, flow, exit) },
        // SAFETY: As the caller promises.
        Network::V6 => unsafe { find_v6(net, flow, exit) },
    }
}

/// # Safety
///
/// As for [`find`].
unsafe fn find_v4(net: *mut bindings::net, flow: &Flow, exit: Exit) -> Result<Route> {
    let mut key = v4_key(flow, exit);
    // The tables refuse sources that aren't this host's.
    // SAFETY: As the caller promises.
    let found = unsafe { bindings::ip_route_output_key_hash(net, &mut key, core::ptr::null()) };
    let found = NonNull::new(from_err_ptr(found)?).ok_or(EINVAL)?;
    // SAFETY: A valid entry was returned.
    let kind = unsafe { (*found.as_ptr()).rt_type };
    // SAFETY: As above: the first member of a `struct rtable`, with a count for us.
    let route = unsafe { Route::new(found.cast(), Network::V4, false) };
    // RoCE has no broadcast. A socket must ask for it (`SO_BROADCAST`).
    if u32::from(kind) == bindings::RTN_BROADCAST {
        return Err(EACCES);
    }
    Ok(route)
}

/// # Safety
///
/// As for [`find`].
unsafe fn find_v6(net: *mut bindings::net, flow: &Flow, exit: Exit) -> Result<Route> {
    // SAFETY: No requirements.
    if !unsafe { bindings::ipv6_mod_enabled() } {
        // Then the namespace has no table of addresses. ib_core has link-local GIDs nevertheless.
        return Err(EAFNOSUPPORT);
    }
    // SAFETY: As the caller promises.
    if !unsafe { is_own(net, &in6_addr(flow.source), flow.netdev_index) } {
        return Err(EINVAL);
    }
    let mut key = v6_key(flow, exit);
    // Without the flag a route by another device is better than a shorter one by this device, since the source is given.
    let flags = match exit {
        Exit::By(_) => bindings::RT6_LOOKUP_F_IFACE as c_int,
        Exit::Any { .. } => 0,
    };
    // SAFETY: As the caller promises.
    let found =
        unsafe { bindings::ip6_route_output_flags(net, core::ptr::null(), &mut key, flags) };
    let dst = NonNull::new(found).ok_or(EINVAL)?;
    // SAFETY: A valid entry is returned, the first member of a `struct rt6_info`, with a count for us.
    let route = unsafe { Route::new(dst, Network::V6, false) };
    // SAFETY: Valid by the type invariant of `route`.
    to_result(c_int::from(unsafe { (*dst.as_ptr()).error }))?;
    Ok(route)
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

/// What the tables of IPv4 are asked for; of no use unless the addresses are of IPv4.
fn v4_key(flow: &Flow, exit: Exit) -> bindings::flowi4 {
    let address = |gid: Gid| u32::from_ne_bytes(gid.ipv4().unwrap_or_default());
    let mut key = bindings::flowi4 {
        saddr: address(flow.source),
        daddr: address(flow.destination),
        ..Default::default()
    };
    key.__fl_common = common(flow, exit);
    key.uli = ports(flow);
    key
}

/// What the tables of IPv6 are asked for.
fn v6_key(flow: &Flow, exit: Exit) -> bindings::flowi6 {
    let label = u32::from(flow.traffic_class) << 20 | flow.flow_label & 0xf_ffff;
    let mut key = bindings::flowi6 {
        saddr: in6_addr(flow.source),
        daddr: in6_addr(flow.destination),
        flowlabel: label.to_be(),
        ..Default::default()
    };
    key.__fl_common = common(flow, exit);
    key.uli = ports(flow);
    key
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
