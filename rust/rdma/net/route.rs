// SPDX-License-Identifier: GPL-2.0

//! IP routes of packets to send. Wraps `struct dst_entry` (include/net/dst.h) of IPv4 and IPv6.

use core::{mem::ManuallyDrop, ptr::NonNull};

use kernel::{
    error::{from_err_ptr, to_result},
    ffi::c_int,
    prelude::*,
    sync::rcu,
};

pub use super::flow::Flow;
use super::{
    flow::{in6_addr, v4_key, v6_key, Exit},
    netdev::{self, index, Netdev},
    skb::FEATURES,
};
use roce::ids::Qpn;

use crate::{
    bindings,
    device::gid::{Gid, Network},
};

/// A routing decision. [`Self::is_valid`] tells whether it still applies.
///
/// # Invariants
///
/// `dst` is a valid `struct dst_entry`, to which `self` owns a reference. It is the first member of
/// a `struct rtable` or a `struct rt6_info`, as `network` says.
pub struct Route {
    dst: NonNull<bindings::dst_entry>,
    cookie: u32,
    network: Network,
    local: bool,
    /// Whether IPsec transforms the packets.
    protected: bool,
}

// SAFETY: All CPUs share a `dst_entry`.
unsafe impl Send for Route {}

impl Route {
    /// Looks up a route in the network namespace of `netdev`.
    ///
    /// A destination that is an address of this host is found if any device in the VRF of device
    /// `flow.netdev_index` has it. If that device is in no VRF, any device outside VRFs may have
    /// the address. All other and all link-local destinations are reached by that device.
    ///
    /// # Context
    ///
    /// Any context but hard interrupts; does not sleep.
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` if the addresses are of different IP versions or an IPv6 source is not this
    /// host's; `ENETUNREACH` if an IPv4 source is not; `EACCES` if the destination is a broadcast
    /// address; `EAFNOSUPPORT` for IPv6 addresses if IPv6 is disabled; the errors of
    /// `apply_policies`; otherwise the routing tables' error. Outside of VRFs, an IPv4 destination
    /// for which no table has a route, or which a table refuses, counts as on the link of device
    /// `flow.netdev_index` (`ip_route_output_key_hash_rcu()`, net/ipv4/route.c).
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
            // SAFETY: The namespace lives as long as `readers`.
            match unsafe { find(net, flow, Exit::Any { vrf }) } {
                // The kernel searches the local table outside of VRFs first, whatever `vrf` is.
                Ok(route) if route.local && route.vrf(&readers) == vrf => {
                    // SAFETY: The namespace lives as long as `readers`.
                    return unsafe { route.apply_policies(net, flow, &readers) };
                }
                _ => (),
            }
        }
        // SAFETY: The namespace lives as long as `readers`.
        let route = unsafe { find(net, flow, Exit::By(flow.netdev_index)) }?;
        let fits = match route.local {
            // A local link-local destination has the loopback device, which is in no VRF.
            true => !unscoped || route.vrf(&readers) == vrf,
            // If the device is a VRF and its table has no route, a later routing rule may name any
            // table.
            false => route.leaves_by(flow.netdev_index, &readers),
        };
        if !fits {
            return Err(ENETUNREACH);
        }
        // SAFETY: The namespace lives as long as `readers`.
        unsafe { route.apply_policies(net, flow, &readers) }
    }

    /// Creates a route from `dst`. `protected` tells whether IPsec created the entry.
    ///
    /// # Safety
    ///
    /// `dst` must be as the type's invariants say. The caller gives up a reference to it.
    unsafe fn new(dst: NonNull<bindings::dst_entry>, network: Network, protected: bool) -> Self {
        let (cookie, local) = match network {
            Network::V4 => {
                let entry = dst.as_ptr().cast::<bindings::rtable>();
                // SAFETY: By the safety requirement `dst` begins a `struct rtable`.
                let kind = unsafe { (*entry).rt_type };
                (0, u32::from(kind) == bindings::RTN_LOCAL)
            }
            Network::V6 => {
                let entry = dst.as_ptr().cast::<bindings::rt6_info>();
                // SAFETY: By the safety requirement `dst` begins a `struct rt6_info`.
                let cookie = unsafe { bindings::rt6_get_cookie(entry) };
                // SAFETY: By the safety requirement `dst` begins a `struct rt6_info`.
                let flags = unsafe { (*entry).rt6i_flags };
                (cookie, flags & bindings::RTF_LOCAL != 0)
            }
        };
        // INVARIANT: The caller guarantees that `dst` is as the invariants say (see `# Safety`).
        Self {
            dst,
            cookie,
            network,
            local,
            protected,
        }
    }

    /// Applies the policies of IPsec to the route.
    ///
    /// Fails while IPsec has no state for a policy. `xfrm_lookup_route()` (net/xfrm/xfrm_policy.c)
    /// would return an entry that queues packets, and the queue would use up the number of packets
    /// that their QP may have in flight.
    ///
    /// # Errors
    ///
    /// Returns the policies' error, such as `EPERM`; `EAGAIN` or `EREMOTE` while there is no state.
    ///
    /// # Safety
    ///
    /// `net` must be the namespace in which `self` was found for `flow`, and valid during the call.
    unsafe fn apply_policies(
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
        // The call takes over the reference.
        let dst = ManuallyDrop::new(self).dst;
        // SAFETY: `dst` is valid by the type invariant. A `struct flowi` is a union of the keys of
        // both IP versions, and the call reads the key of the entry's version.
        let found = unsafe { bindings::xfrm_lookup(net, dst.as_ptr(), key, core::ptr::null(), 0) };
        let found = NonNull::new(from_err_ptr(found)?).ok_or(EINVAL)?;
        // SAFETY: The call returned a valid entry of the same IP version, with a reference.
        Ok(unsafe { Self::new(found, network, found != dst) })
    }

    /// Returns whether the routing decision still applies (`dst_check()`).
    #[inline]
    pub fn is_valid(&self) -> bool {
        // SAFETY: The entry is valid by the type invariant.
        !unsafe { bindings::dst_check(self.dst.as_ptr(), self.cookie) }.is_null()
    }

    /// Returns whether the destination is an address of this host, in the same network namespace.
    pub fn is_local(&self) -> bool {
        self.local
    }

    /// Returns whether IPsec transforms the packets. Packets that are longer than the path's MTU
    /// afterwards are fragmented.
    pub fn is_protected(&self) -> bool {
        self.protected
    }

    /// Returns the identification for an IPv4 packet from `source` to `destination` that may be
    /// fragmented: the next one of this pair of addresses. Callable in any context.
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
        // SAFETY: RCU keeps the device valid, and the device keeps its namespace valid. The call
        // accesses `header`.
        unsafe { bindings::__ip_select_ident(self.net(&readers), &mut header, 1) };
        u16::from_be(header.id)
    }

    /// Returns whether packets may leave in bursts ([`TxBurst`](super::skb::TxBurst)). Not for hard
    /// interrupts.
    ///
    /// They may if the route is not local, the network device takes bursts, no program of this host
    /// looks at the device's packets (packet sockets), and neither IPsec nor a lightweight tunnel
    /// changes the packets. Nor may the device have a queueing discipline: some drop bursts,
    /// because they can't take them apart (`tbf_segment()`, net/sched/sch_tbf.c).
    #[inline]
    pub fn admits_bursts(&self) -> bool {
        // SAFETY: The entry is valid by the type invariant.
        if self.local || self.protected || unsafe { !(*self.dst.as_ptr()).lwtstate.is_null() } {
            return false;
        }
        let _readers = rcu::read_lock();
        // SAFETY: The entry is valid by the type invariant, and RCU keeps the device valid.
        let netdev = unsafe { bindings::dst_dev_rcu(self.dst.as_ptr()) };
        // SAFETY: RCU keeps the device valid.
        unsafe {
            netdev::has_features(netdev, FEATURES)
                && !bindings::netdev_has_queue(netdev)
                && !bindings::dev_nit_active_rcu(netdev)
        }
    }

    /// Returns whether a program looks at the packets of all network devices of the route's network
    /// namespace (packet sockets without a device). Not for hard interrupts.
    #[inline]
    pub fn is_namespace_sniffed(&self) -> bool {
        let _readers = rcu::read_lock();
        // SAFETY: The entry is valid by the type invariant. RCU keeps the device valid, and the
        // device keeps its namespace valid.
        unsafe { bindings::dst_namespace_is_sniffed(self.dst.as_ptr()) }
    }

    /// Returns the IP version.
    pub fn network(&self) -> Network {
        self.network
    }

    /// Returns the number of bytes to keep free in front of the IP header: zero for a local route.
    /// Returns `None` if the network device needs too many (`netdev::headroom`).
    ///
    /// The need may change from one packet to the next, as that of veth does with the peer's XDP
    /// programs. A device that finds too few bytes copies the packet, and the packet's destructor
    /// is called early (`skb_expand_head()`). Callable in any context but hard interrupts.
    pub fn link_headroom(&self) -> Option<usize> {
        if self.local {
            return Some(0);
        }
        let _readers = rcu::read_lock();
        // SAFETY: The entry is valid by the type invariant, and RCU keeps the device valid.
        let netdev = unsafe { bindings::dst_dev_rcu(self.dst.as_ptr()) };
        // SAFETY: RCU keeps the device valid.
        unsafe { netdev::headroom(netdev) }
    }

    /// Sets the `struct dst_entry` of a packet of `len` bytes, IP header included. Returns the
    /// namespace to send the packet in, which is valid as long as `readers`.
    ///
    /// The packet may be as long as the network device's MTU. It is fragmented if IPsec makes it
    /// longer than the path's MTU afterwards, or if netfilter changes its route.
    ///
    /// The IPv6 layer fragments packets that are longer than the path's MTU, which any host can
    /// change by forged ICMP messages, and receivers refuse fragmented packets. The IPv6 layer uses
    /// the network device's MTU instead if the buffer's socket demands it (`ip6_skb_dst_mtu()`).
    /// But the packets must not have a socket. The network stack changes `truesize` of a buffer
    /// with a socket, and adjusts the socket's count only if the destructor is `sock_wfree()` or a
    /// variant of it (`inet_frag_reasm_prepare()`, net/ipv4/inet_fragment.c).
    ///
    /// So a longer packet gets an entry of its own, as neighbour solicitations do
    /// (`icmp6_dst_alloc()`, net/ipv6/route.c). The entry does not give up its reference to the
    /// network device when the device is unregistered. So the entry ends with the read-side section
    /// of `readers`. A queue that would keep the entry finds the entry's reference count zero, and
    /// keeps the packet without the entry (`skb_dst_force()`, include/net/dst.h).
    ///
    /// `ip6_fragment()` (net/ipv6/ip6_output.c) does not check the count, so fragments would keep
    /// the entry after its end. So the entry's MTU is so large that no packet exceeds it, not even
    /// a packet that netfilter has lengthened. Packets that netfilter has reassembled are
    /// fragmented whatever their entry's MTU is (`__ip6_finish_output()`, net/ipv6/ip6_output.c).
    /// But none of netfilter's hooks can turn a packet into a fragment before
    /// (`nft_nh_write_ok_ip6()`, net/netfilter/nft_payload.c, refuses to change the next header).
    ///
    /// Packets that IPsec protects or a lightweight tunnel encapsulates get no such entry, and may
    /// be fragmented.
    ///
    /// # Errors
    ///
    /// Returns `EMSGSIZE` if the packet is longer than the device's MTU; `ENOMEM` if there is no
    /// memory; `ENODEV` if the device is being unregistered; `ENETUNREACH` if the route is no
    /// longer valid; `ENOSPC` if the device needs too much headroom.
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
        // SAFETY: RCU keeps the device valid.
        if len > unsafe { netdev::mtu(netdev) } as usize {
            return Err(EMSGSIZE);
        }
        // The IP layer would allocate missing headroom, however much that is.
        // SAFETY: RCU keeps the device valid.
        unsafe { netdev::headroom(netdev) }.ok_or(ENOSPC)?;
        // SAFETY: RCU keeps the device valid.
        let net = unsafe { bindings::dev_net(netdev) };
        // Without `ignore_df`, `__xfrm6_output()` (net/ipv6/xfrm6_output.c) reads the buffer's
        // socket, which is null, if the packet is too long and `ip6_local_out()` was passed a
        // socket. Netfilter may give a packet to IPsec.
        // SAFETY: The caller owns the buffer (see `# Safety`).
        unsafe { bindings::skb_set_ignore_df(skb) };
        if self.network == Network::V4 || !self.exceeds_path_mtu(len) {
            // SAFETY: The caller owns the buffer, which gets the reference that `hold` takes.
            unsafe { bindings::skb_dst_set(skb, self.hold()) };
            return Ok(net);
        }
        // SAFETY: RCU keeps the device valid.
        let own = unsafe { self.with_unlimited_mtu(netdev) }?;
        // SAFETY: The caller owns the buffer. RCU keeps the entry while `readers` lives.
        unsafe { bindings::skb_dst_set_noref(skb, own) };
        // SAFETY: This function owns the reference. `dst_release()` (net/core/dst.c) frees the
        // entry after a grace period.
        unsafe { bindings::dst_release(own) };
        Ok(net)
    }

    /// Returns the network device that the IP layer sends by, which is valid as long as `_readers`.
    ///
    /// The next call may return another device. The kernel may replace the device of an invalid
    /// entry at any time, by one in the initial namespace whose MTU is 68 bytes (`dst_dev_put()`,
    /// net/core/dst.c).
    ///
    /// # Errors
    ///
    /// Returns `ENETUNREACH` if the entry is invalid in this way.
    fn netdev(&self, _readers: &rcu::Guard) -> Result<*mut bindings::net_device> {
        // SAFETY: The entry is valid by the type invariant, and the caller is an RCU reader.
        let netdev = unsafe { bindings::dst_dev_rcu(self.dst.as_ptr()) };
        // SAFETY: The kernel sets the variable when it boots.
        if netdev == unsafe { bindings::blackhole_netdev } {
            return Err(ENETUNREACH);
        }
        Ok(netdev)
    }

    /// Returns whether a packet of `len` bytes is longer than the path's MTU, and the path has
    /// neither IPsec nor a tunnel.
    fn exceeds_path_mtu(&self, len: usize) -> bool {
        let dst = self.dst.as_ptr();
        // SAFETY: The entry is valid by the type invariant.
        let is_long = len > unsafe { bindings::dst_mtu(dst) } as usize;
        // SAFETY: The entry is valid by the type invariant.
        is_long && !self.protected && unsafe { (*dst).lwtstate }.is_null()
    }

    /// Creates an IPv6 entry like this one, without IPsec, for packets of any length that leave by
    /// `netdev`. The caller gets a reference.
    ///
    /// # Safety
    ///
    /// `netdev` must be a valid device, which RCU keeps.
    unsafe fn with_unlimited_mtu(
        &self,
        netdev: *mut bindings::net_device,
    ) -> Result<*mut bindings::dst_entry> {
        let old = self.dst.as_ptr().cast::<bindings::rt6_info>();
        let flags = bindings::DST_NOCOUNT as c_int;
        // SAFETY: RCU keeps the device valid, and the device keeps its namespace valid.
        let new = unsafe { bindings::ip6_dst_alloc(bindings::dev_net(netdev), netdev, flags) };
        let new = NonNull::new(new).ok_or(ENOMEM)?.as_ptr();
        // SAFETY: RCU keeps the device valid. `ip6_dst_destroy()` (net/ipv6/route.c) puts the
        // reference.
        let settings = unsafe { bindings::in6_dev_get(netdev) };
        // SAFETY: Both entries are valid. `dst_dev_put()` (net/core/dst.c) may change `input` and
        // `output` of the old one meanwhile, and a single load returns either value; its other
        // fields are constant. Only this function uses the new entry.
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
            // SAFETY: This function owns the reference.
            unsafe { bindings::dst_release(new) };
            return Err(ENODEV);
        }
        // SAFETY: Only this function uses the new entry.
        unsafe { bindings::dst_metric_set(new, bindings::RTAX_MTU as c_int, UNLIMITED) };
        // The entry has no metrics if there is no memory.
        // SAFETY: Only this function uses the new entry.
        if unsafe { bindings::dst_mtu(new) } != UNLIMITED {
            // SAFETY: This function owns the reference.
            unsafe { bindings::dst_release(new) };
            return Err(ENOMEM);
        }
        Ok(new)
    }

    /// Takes a reference to the entry for the caller.
    fn hold(&self) -> *mut bindings::dst_entry {
        // SAFETY: The entry is valid by the type invariant.
        unsafe { bindings::dst_hold(self.dst.as_ptr()) };
        self.dst.as_ptr()
    }

    /// Returns the index of the VRF by which packets leave or, for a local route, of the VRF of the
    /// destination address; 0 if there is none.
    fn vrf(&self, _readers: &rcu::Guard) -> u32 {
        // SAFETY: The entry is valid by the type invariant, and RCU keeps the device valid. The
        // device of a local route is the VRF or the loopback device
        // (`ip_route_output_key_hash_rcu()`, net/ipv4/route.c; `ip6_rt_get_dev_rcu()`,
        // net/ipv6/route.c).
        let netdev = unsafe { bindings::dst_dev_rcu(self.dst.as_ptr()) };
        // SAFETY: RCU keeps the device valid.
        unsafe { vrf_of(netdev) }
    }

    /// Returns the index of the network device that packets leave by. Not for hard interrupts.
    pub fn exit(&self) -> u32 {
        self.netdev_index(&rcu::read_lock())
    }

    /// Implements [`Self::exit`] with the RCU read lock held.
    fn netdev_index(&self, _readers: &rcu::Guard) -> u32 {
        // SAFETY: The entry is valid by the type invariant, and RCU keeps the device valid.
        unsafe { index(bindings::dst_dev_rcu(self.dst.as_ptr())) }
    }

    /// Returns whether packets leave by device `index` or, if that is a VRF, by a device in it.
    fn leaves_by(&self, index: u32, readers: &rcu::Guard) -> bool {
        self.netdev_index(readers) == index || self.vrf(readers) == index
    }

    /// Returns the network namespace, or another one if the route is no longer valid. The result is
    /// valid as long as `_readers`.
    fn net(&self, _readers: &rcu::Guard) -> *mut bindings::net {
        // SAFETY: The entry is valid by the type invariant, and RCU keeps the device valid.
        let netdev = unsafe { bindings::dst_dev_rcu(self.dst.as_ptr()) };
        // SAFETY: RCU keeps the device valid.
        unsafe { bindings::dev_net(netdev) }
    }
}

impl Clone for Route {
    fn clone(&self) -> Self {
        self.hold();
        // INVARIANT: The copy owns the reference that `hold` has just taken.
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
        // SAFETY: By the type invariant `self` owns a reference, which is put once, here.
        unsafe { bindings::dst_release(self.dst.as_ptr()) };
    }
}

/// Returns the UDP source port for packets from QP `local` to QP `remote` (`rdma_get_udp_sport()`):
/// a function of the flow label or, if that is zero, of both QPNs.
pub fn source_port(flow_label: u32, local: Qpn, remote: Qpn) -> u16 {
    // SAFETY: The function has no requirements.
    unsafe { bindings::rdma_get_udp_sport(flow_label, local.get(), remote.get()) }
}

/// Returns the index of the VRF that device `index` is in or that it is; 0 if there is none.
///
/// # Safety
///
/// `net` must be valid during the call.
unsafe fn vrf_of_index(net: *mut bindings::net, index: u32) -> u32 {
    let _readers = rcu::read_lock();
    // SAFETY: `net` is valid by the safety requirement, and the device under `_readers` or null.
    unsafe { vrf_of(bindings::dev_get_by_index_rcu(net, index as c_int)) }
}

/// Does the same as [`vrf_of_index`] for a device.
///
/// # Safety
///
/// `netdev` must be null or valid, and the caller must hold the RCU read lock.
unsafe fn vrf_of(netdev: *const bindings::net_device) -> u32 {
    // SAFETY: The caller guarantees that `netdev` is null or valid, and holds the RCU read lock.
    unsafe { bindings::l3mdev_master_ifindex_rcu(netdev) }.unsigned_abs()
}

/// MTU of an entry for which no IPv6 packet is too long.
const UNLIMITED: u32 = u16::MAX as u32;

/// Looks up a route that leaves by `exit`, without the policies of IPsec.
///
/// # Safety
///
/// `net` must be valid during the call.
unsafe fn find(net: *mut bindings::net, flow: &Flow, exit: Exit) -> Result<Route> {
    match flow.source.network() {
        // SAFETY: `net` is valid by the safety requirement.
        Network::V4 => unsafe { find_v4(net, flow, exit) },
        // SAFETY: `net` is valid by the safety requirement.
        Network::V6 => unsafe { find_v6(net, flow, exit) },
    }
}

/// Implements [`find`] for IPv4.
///
/// # Safety
///
/// `net` must be valid during the call.
unsafe fn find_v4(net: *mut bindings::net, flow: &Flow, exit: Exit) -> Result<Route> {
    let mut key = v4_key(flow, exit);
    // The call refuses source addresses that are not this host's.
    // SAFETY: `net` is valid by the safety requirement.
    let found = unsafe { bindings::ip_route_output_key_hash(net, &mut key, core::ptr::null()) };
    let found = NonNull::new(from_err_ptr(found)?).ok_or(EINVAL)?;
    // SAFETY: The call returned a valid entry.
    let kind = unsafe { (*found.as_ptr()).rt_type };
    // SAFETY: The call returned the first member of a `struct rtable`, with a reference.
    let route = unsafe { Route::new(found.cast(), Network::V4, false) };
    // RoCE has no broadcast. A socket must ask for it (`SO_BROADCAST`).
    if u32::from(kind) == bindings::RTN_BROADCAST {
        return Err(EACCES);
    }
    Ok(route)
}

/// Implements [`find`] for IPv6.
///
/// # Safety
///
/// `net` must be valid during the call.
unsafe fn find_v6(net: *mut bindings::net, flow: &Flow, exit: Exit) -> Result<Route> {
    // SAFETY: The function has no requirements.
    if !unsafe { bindings::ipv6_mod_enabled() } {
        // The namespace has no table of addresses then. ib_core has link-local GIDs nevertheless.
        return Err(EAFNOSUPPORT);
    }
    // SAFETY: `net` is valid by the safety requirement.
    if !unsafe { is_own(net, &in6_addr(flow.source), flow.netdev_index) } {
        return Err(EINVAL);
    }
    let mut key = v6_key(flow, exit);
    // Without the flag, a route with a longer prefix by another device would win. As the source is
    // given, the kernel sets the flag itself only for destinations such as link-local ones.
    let flags = match exit {
        Exit::By(_) => bindings::RT6_LOOKUP_F_IFACE as c_int,
        Exit::Any { .. } => 0,
    };
    // SAFETY: `net` is valid by the safety requirement.
    let found =
        unsafe { bindings::ip6_route_output_flags(net, core::ptr::null(), &mut key, flags) };
    let dst = NonNull::new(found).ok_or(EINVAL)?;
    // SAFETY: The call returned the first member of a `struct rt6_info`, with a reference.
    let route = unsafe { Route::new(dst, Network::V6, false) };
    // SAFETY: The entry is valid by the type invariant of `route`.
    to_result(c_int::from(unsafe { (*dst.as_ptr()).error }))?;
    Ok(route)
}

/// Returns whether `address` is an address of this host, of any device in the VRF of device `index`
/// or, if that is in none, of any device in no VRF.
///
/// # Safety
///
/// `net` must be valid during the call.
unsafe fn is_own(net: *mut bindings::net, address: &bindings::in6_addr, index: u32) -> bool {
    let _readers = rcu::read_lock();
    // SAFETY: `net` is valid by the safety requirement.
    let netdev = unsafe { bindings::dev_get_by_index_rcu(net, index as c_int) };
    let tentative = bindings::IFA_F_TENTATIVE;
    // SAFETY: `net` is valid by the safety requirement, and the device under `_readers` or null.
    unsafe { bindings::ipv6_chk_addr_and_flags(net, address, netdev, true, 0, tentative) != 0 }
}

/// Returns whether an IPv6 address is link-local (fe80::/10).
fn is_link_local(gid: &Gid) -> bool {
    matches!(gid.0, [0xfe, second, ..] if second & 0xc0 == 0x80)
}
