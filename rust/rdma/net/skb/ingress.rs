// SPDX-License-Identifier: GPL-2.0

//! Ingress of received packets: the network device by which a packet came in, and whether this host
//! sent it.

use core::ptr::NonNull;

use kernel::ffi::c_int;

use super::rx::IPV4_LEN;
use crate::{bindings, net::netdev};

/// The network devices by which a packet came in. A packet between QPs of one network namespace has
/// none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ingress {
    /// Index of the device from which the IP layer took the packet. A VLAN, a bond, a bridge, a
    /// macvlan or a VRF counts instead of the device below it. Zero if the packet came by no
    /// network device.
    device: u32,
    /// Index of the VRF's port that the packet came by. For a packet that the VRF looped, index of
    /// the VRF or of the device that has the destination address. Zero if `device` is no VRF.
    slave: u32,
}

impl Ingress {
    /// Returns the index of the network device that received the packet. In a VRF this is the VRF's
    /// port.
    pub fn port(&self) -> u32 {
        match self.slave {
            0 => self.device,
            slave => slave,
        }
    }

    /// Returns whether the packet came by the network device of this index, or through the VRF of
    /// this index.
    #[inline]
    pub fn is_by(&self, index: u32) -> bool {
        index == self.device || index == self.slave
    }

    /// Returns whether the packet came from a QP of this network namespace, by no network device.
    #[inline]
    pub fn is_none(&self) -> bool {
        self.device == 0
    }
}

/// The way by which a packet reached the socket.
#[derive(Clone, Copy, Default)]
pub(super) struct Origin {
    /// The network devices by which the packet came in.
    pub(super) ingress: Ingress,
    /// Whether this host sent the packet, as
    /// [`RxSkb::is_from_this_host`](super::RxSkb::is_from_this_host) defines it.
    pub(super) from_this_host: bool,
}

impl Origin {
    /// Returns the origin of `skb`.
    ///
    /// IPv4 refuses packets from other hosts with a source address of this host
    /// (`fib_validate_source()`, net/ipv4/fib_frontend.c, unless `accept_local` is set). IPv6 has
    /// no such check, so this function checks the source addresses of IPv6 packets.
    ///
    /// # Safety
    ///
    /// `skb` must come from an `encap_rcv` callback that has not returned. `network` must point to
    /// its IP header, which has `header_len` linear bytes.
    pub(super) unsafe fn of(
        skb: NonNull<bindings::sk_buff>,
        network: *const u8,
        header_len: usize,
    ) -> Self {
        let skb = skb.as_ptr();
        // SAFETY: The caller guarantees that `skb` comes from a running callback (see `# Safety`):
        // a received packet has a device, which RCU keeps during the callback.
        let dev = unsafe { bindings::skb_dev(skb) };
        // SAFETY: The caller guarantees that `skb` is valid (see `# Safety`).
        let device = match unsafe { bindings::skb_ingress_index(skb) }.unsigned_abs() {
            // A device of IPsec in transport mode clears the index (`xfrmi_scrub_packet()`,
            // net/xfrm/xfrm_interface_core.c).
            // SAFETY: RCU keeps the device valid during the callback.
            0 => unsafe { netdev::index(dev) },
            index => index,
        };
        let is_v4 = header_len == IPV4_LEN;
        let slave = if is_v4 {
            // SAFETY: The control block still has the contents that the IPv4 layer wrote.
            unsafe { bindings::inet_sdif(skb) }
        } else {
            // SAFETY: The control block still has the contents that the IPv6 layer wrote.
            unsafe { bindings::inet6_sdif(skb) }
        };
        let slave = slave.unsigned_abs();
        let ingress = Ingress { device, slave };
        // SAFETY: The caller guarantees that `skb` comes from a running callback (see `# Safety`).
        // `dev` is its device.
        let is_looped = unsafe { is_looped(skb, dev, ingress) };
        let from_this_host = is_looped || {
            // SAFETY: The caller guarantees that `skb` comes from a running callback, and that
            // `network` points to its whole header (see `# Safety`), which is an IPv6 header. `dev`
            // is the device of `skb`.
            !is_v4 && unsafe { is_of_this_host_v6(skb, network, dev, ingress) }
        };
        Self {
            ingress,
            from_this_host,
        }
    }
}

/// Returns the network device that received a packet with the device `dev`. In a VRF this is the
/// VRF's port.
///
/// # Safety
///
/// `dev` must be valid under RCU.
unsafe fn port_of(dev: *mut bindings::net_device, ingress: Ingress) -> *mut bindings::net_device {
    if ingress.slave == 0 {
        return dev;
    }
    // SAFETY: The caller guarantees that `dev` is valid (see `# Safety`).
    let net = unsafe { bindings::dev_net(dev) };
    // SAFETY: The caller holds the RCU read lock, under which the namespace of `dev` is valid.
    let port = unsafe { bindings::dev_get_by_index_rcu(net, ingress.slave as c_int) };
    match port.is_null() {
        true => dev,
        false => port,
    }
}

/// Returns whether the packet came by the loopback device, by a VRF itself, or by the IP layer's
/// loop of multicast and broadcast packets.
///
/// # Safety
///
/// `skb` must come from an `encap_rcv` callback that has not returned, and `dev` must be its
/// device.
unsafe fn is_looped(
    skb: *mut bindings::sk_buff,
    dev: *mut bindings::net_device,
    ingress: Ingress,
) -> bool {
    // SAFETY: The caller guarantees that `dev` is the device of `skb` (see `# Safety`), so it is
    // valid.
    let by_loopback = unsafe { netdev::flags(dev) } & bindings::net_device_flags_IFF_LOOPBACK != 0;
    // SAFETY: The caller guarantees that `skb` is valid (see `# Safety`).
    let kind = u32::from(unsafe { bindings::skb_pkt_type(skb) });
    // A VRF receives the packets of other hosts by its ports, and this host's own packets by
    // itself.
    let by_vrf = ingress.slave != 0 && ingress.slave == ingress.device;
    by_loopback || by_vrf || kind == bindings::PACKET_LOOPBACK
}

/// Returns whether this host sent an IPv6 packet, or the packet has a source address of this host.
///
/// # Safety
///
/// `skb` must come from an `encap_rcv` callback that has not returned. `network` must point to its
/// whole IPv6 header, and `dev` must be its device.
unsafe fn is_of_this_host_v6(
    skb: *mut bindings::sk_buff,
    network: *const u8,
    dev: *mut bindings::net_device,
    ingress: Ingress,
) -> bool {
    // SAFETY: The caller guarantees that `dev` is the device of `skb` (see `# Safety`), so it is
    // valid under RCU.
    let port = unsafe { port_of(dev, ingress) };
    // SAFETY: The caller guarantees that `skb` comes from a running callback, that `network` points
    // to its whole IPv6 header, and that `dev` is its device (see `# Safety`). `port` is valid
    // under RCU.
    let in_vrf = ingress.slave != 0 && unsafe { is_looped_in_vrf(skb, network, dev, port) };
    // SAFETY: `port` is valid under RCU, and the caller guarantees that `network` points to an IPv6
    // header (see `# Safety`).
    in_vrf || unsafe { is_own_ipv6(port, network) }
}

/// Returns whether this host sent an IPv6 packet that `vrf` received by `port`.
///
/// The source address does not show that, since any process can send with an address that this host
/// does not have (`IPV6_FREEBIND`). Nor does the packet type: a VRF sets that of looped packets to
/// `PACKET_HOST` (`vrf_ip6_rcv()`, drivers/net/vrf.c). Nor does the index: a looped packet to an
/// address of this host has the index of the device that has the address (`ip6_rcv_core()`,
/// net/ipv6/ip6_input.c). But this host sends such a packet through the VRF, so the source address
/// in the link-layer header is the VRF's hardware address (`vrf_finish_output6()`,
/// drivers/net/vrf.c).
///
/// A packet to a multicast group that the IP layer loops back has no link-layer header
/// (`dev_loopback_xmit()`, net/core/dev.c). Nor has a packet from a device without a link layer. If
/// it is to a group, it cannot be distinguished from a looped one, and counts as looped.
///
/// # Safety
///
/// `skb` must come from an `encap_rcv` callback that has not returned. `network` must point to its
/// whole IPv6 header. Both devices must be valid under RCU.
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
    // SAFETY: The caller guarantees that `skb` is valid (see `# Safety`).
    let link = unsafe { bindings::skb_mac_header(skb) }.cast_const();
    if link == network {
        // SAFETY: The caller guarantees that `port` is valid (see `# Safety`).
        let is_ethernet = unsafe { netdev::kind(port) } == netdev::Kind::Ethernet;
        // SAFETY: The caller guarantees that `network` points to a whole IPv6 header (see
        // `# Safety`), whose destination address is at 24.
        return is_ethernet || unsafe { network.add(DESTINATION).read() } == MULTICAST;
    }
    // If the link-layer header is not set, its offset points behind the network header.
    let length = (network as usize).checked_sub(link as usize);
    if length.is_none_or(|length| length < HEADER) {
        return false;
    }
    // SAFETY: A whole Ethernet header lies between `link` and `network`, in the buffer's head.
    let source = unsafe { link.add(SOURCE).cast::<[u8; 6]>().read() };
    // SAFETY: The caller guarantees that `vrf` is valid (see `# Safety`).
    let own = unsafe { netdev::ethernet_address(vrf) };
    own == Some(source)
}

/// Returns whether the source address of an IPv6 packet that came by `port` is an address of this
/// host in the VRF of `port`. A link-local address must be one of `port` itself.
///
/// # Safety
///
/// `port` must be valid under RCU, and `network` must point to an IPv6 header.
unsafe fn is_own_ipv6(port: *mut bindings::net_device, network: *const u8) -> bool {
    const SOURCE: usize = 8;
    // SAFETY: The caller guarantees that `network` points to an IPv6 header (see `# Safety`), whose
    // source address is at 8.
    let source = unsafe { network.add(SOURCE) };
    // SAFETY: The caller guarantees that `port` is valid (see `# Safety`).
    let net = unsafe { bindings::dev_net(port) };
    // SAFETY: `net` and `port` are valid under RCU. `source` points to the 16 bytes of an address,
    // which the call reads as bytes.
    unsafe { bindings::ipv6_chk_addr(net, source.cast(), port, 0) != 0 }
}
