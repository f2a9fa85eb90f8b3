// SPDX-License-Identifier: GPL-2.0

//! By which network device a packet came in.

use core::ptr::NonNull;

use kernel::ffi::c_int;

use super::rx::IPV4_LEN;
use crate::{bindings, net::netdev};

/// The network devices by which a packet came in. A packet between QPs of one host has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ingress {
    /// Index of the device whose addresses the IP layer looked at: a VLAN, a bond, a bridge, a macvlan, a VRF, or the
    /// port itself. Zero stands for none: the packet came by no network.
    device: u32,
    /// Index of the port of a VRF that the packet came by; zero if `device` isn't a VRF.
    slave: u32,
}

impl Ingress {
    /// The index of the network device that a packet came by: in a VRF that of the VRF's port.
    pub fn port(&self) -> u32 {
        match self.slave {
            0 => self.device,
            slave => slave,
        }
    }

    /// Whether the packet came by the network device of this index, or through the VRF of this index.
    #[inline]
    pub fn is_by(&self, index: u32) -> bool {
        index == self.device || index == self.slave
    }

    /// Whether the packet came from a QP of this host without any network device.
    #[inline]
    pub fn is_none(&self) -> bool {
        self.device == 0
    }
}

/// How a packet reached the socket.
#[derive(Clone, Copy, Default)]
pub(super) struct Arrival {
    pub(super) ingress: Ingress,
    /// As of [`RxSkb::is_from_this_host`](super::RxSkb::is_from_this_host).
    pub(super) from_this_host: bool,
}

impl Arrival {
    /// How `skb` arrived.
    ///
    /// IPv4 refuses packets from outside with a source address of this host (`fib_validate_source()` in
    /// net/ipv4/fib_frontend.c, unless `accept_local` is set); IPv6 has no such check.
    ///
    /// # Safety
    ///
    /// `skb` must come from an `encap_rcv` callback that has not returned, and `network` be its IP header, of which
    /// `header_len` bytes are linear.
    pub(super) unsafe fn of(
        skb: NonNull<bindings::sk_buff>,
        network: *const u8,
        header_len: usize,
    ) -> Self {
        let skb = skb.as_ptr();
        // SAFETY: The caller's promise: a received packet has a device, which RCU keeps during the callback.
        let dev = unsafe { bindings::skb_dev(skb) };
        // SAFETY: The buffer is valid.
        let device = match unsafe { bindings::skb_ingress_index(skb) }.unsigned_abs() {
            // IPsec in transport mode by a device of its own leaves none (`xfrmi_scrub_packet()`, net/xfrm/xfrm_interface_core.c).
            // SAFETY: RCU keeps the device.
            0 => unsafe { netdev::index(dev) },
            index => index,
        };
        let is_v4 = header_len == IPV4_LEN;
        let slave = if is_v4 {
            // SAFETY: The control block still holds what the IPv4 layer wrote.
            unsafe { bindings::inet_sdif(skb) }
        } else {
            // SAFETY: The control block still holds what the IPv6 layer wrote.
            unsafe { bindings::inet6_sdif(skb) }
        };
        let slave = slave.unsigned_abs();
        let ingress = Ingress { device, slave };
        // SAFETY: The caller's promise.
        let is_looped = unsafe { is_looped(skb, dev, ingress) };
        let from_this_host = is_looped || {
            // SAFETY: As above: a whole IPv6 header.
            !is_v4 && unsafe { is_of_this_host_v6(skb, network, dev, ingress) }
        };
        Self {
            ingress,
            from_this_host,
        }
    }
}

/// The network device that a packet came by, which `dev` received: in a VRF the VRF's port.
///
/// # Safety
///
/// `dev` must be valid under RCU.
unsafe fn port_of(dev: *mut bindings::net_device, ingress: Ingress) -> *mut bindings::net_device {
    if ingress.slave == 0 {
        return dev;
    }
    // SAFETY: The device is valid.
    let net = unsafe { bindings::dev_net(dev) };
    // SAFETY: The caller holds RCU, and the device keeps its namespace.
    let port = unsafe { bindings::dev_get_by_index_rcu(net, ingress.slave as c_int) };
    match port.is_null() {
        true => dev,
        false => port,
    }
}

/// Whether the packet came by the loopback device, by a VRF itself, or by the IP layer's own loop of multicast packets.
///
/// # Safety
///
/// As for [`Arrival::of`]; `dev` must be the device of `skb`.
unsafe fn is_looped(
    skb: *mut bindings::sk_buff,
    dev: *mut bindings::net_device,
    ingress: Ingress,
) -> bool {
    // SAFETY: The device is valid.
    let by_loopback = unsafe { netdev::flags(dev) } & bindings::net_device_flags_IFF_LOOPBACK != 0;
    // SAFETY: The buffer is valid.
    let kind = u32::from(unsafe { bindings::skb_pkt_type(skb) });
    // A VRF receives by its ports; by itself, what this host sent.
    let by_vrf = ingress.slave != 0 && ingress.slave == ingress.device;
    by_loopback || by_vrf || kind == bindings::PACKET_LOOPBACK
}

/// Whether this host sent a packet of IPv6, or it has a source address of this host.
///
/// # Safety
///
/// As for [`Arrival::of`], with an IPv6 header; `dev` must be the device of `skb`.
unsafe fn is_of_this_host_v6(
    skb: *mut bindings::sk_buff,
    network: *const u8,
    dev: *mut bindings::net_device,
    ingress: Ingress,
) -> bool {
    // SAFETY: The caller's promise.
    let port = unsafe { port_of(dev, ingress) };
    // SAFETY: As above.
    let in_vrf = ingress.slave != 0 && unsafe { is_looped_in_vrf(skb, network, dev, port) };
    // SAFETY: As above.
    in_vrf || unsafe { is_own_ipv6(port, network) }
}

/// Whether this host sent a packet of IPv6 that `vrf` received by `port`. Any process can send with a source address that is
/// none of this host's (`IPV6_FREEBIND`).
///
/// A VRF clears the mark of looped packets (`vrf_ip6_rcv()`, drivers/net/vrf.c), and a packet to an address of this host names
/// the device that has the address (`ip6_rcv_core()`, net/ipv6/ip6_input.c). But such a packet left by the VRF, whose hardware
/// address its link-layer header has (`vrf_finish_output6()`). What the IP layer loops to a group has no such header
/// (`dev_loopback_xmit()`, net/core/dev.c), as what comes by a device without a link layer, which can't be told from it.
///
/// # Safety
///
/// As for [`is_of_this_host_v6`]; both devices must be valid under RCU.
unsafe fn is_looped_in_vrf(
    skb: *mut bindings::sk_buff,
    network: *const u8,
    vrf: *mut bindings::net_device,
    port: *mut bindings::net_device,
) -> bool {
    const SOURCE: usize = 6;
    const HEADER: usize = 14;
    const DESTINATION: usize = 24;
    const MULTICAST: u8 = 0xff;
    // SAFETY: The buffer is valid.
    let link = unsafe { bindings::skb_mac_header(skb) }.cast_const();
    if link == network {
        // SAFETY: The device is valid.
        let is_ethernet = unsafe { netdev::kind(port) } == netdev::Kind::Ethernet;
        // SAFETY: The destination address is at 24.
        return is_ethernet || unsafe { network.add(DESTINATION).read() } == MULTICAST;
    }
    // Without a link-layer header set it is behind.
    let length = (network as usize).checked_sub(link as usize);
    if length.is_none_or(|length| length < HEADER) {
        return false;
    }
    // SAFETY: A whole Ethernet header lies between both, in the buffer's head.
    let source = unsafe { link.add(SOURCE).cast::<[u8; 6]>().read() };
    // SAFETY: The device is valid.
    let own = unsafe { netdev::ethernet_address(vrf) };
    own == Some(source)
}

/// Whether the source address of an IPv6 packet that came by `port` is one of this host's, in the VRF of `port`; a
/// link-local one counts if it is of `port` itself.
///
/// # Safety
///
/// `port` must be valid under RCU, and `network` point to an IPv6 header.
unsafe fn is_own_ipv6(port: *mut bindings::net_device, network: *const u8) -> bool {
    const SOURCE: usize = 8;
    // SAFETY: The source address is at 8.
    let source = unsafe { network.add(SOURCE) };
    // SAFETY: The device is valid.
    let net = unsafe { bindings::dev_net(port) };
    // SAFETY: All are valid; an address is read as bytes.
    unsafe { bindings::ipv6_chk_addr(net, source.cast(), port, 0) != 0 }
}
