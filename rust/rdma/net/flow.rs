// SPDX-License-Identifier: GPL-2.0

//! Keys of routing decisions. Wraps `struct flowi4` and `struct flowi6` (include/net/flow.h).

use kernel::ffi::c_int;

use crate::{bindings, device::gid::Gid};

/// The key of a routing decision.
#[derive(Clone, Copy)]
pub struct Flow {
    /// Source address. It must be an address of this host. An IPv6 address must be in the VRF of
    /// device `netdev_index`, if the device is in one.
    pub source: Gid,
    /// Destination address, of the same IP version.
    pub destination: Gid,
    /// Index of the network device to send by, unless the destination is local.
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

/// The network devices by which a packet may leave.
#[derive(Clone, Copy)]
pub(super) enum Exit {
    /// Any device in the VRF of this index, or any device in no VRF if the index is 0.
    Any { vrf: u32 },
    /// The device of this index.
    By(u32),
}

/// Returns the IPv6 address of a GID.
pub(super) fn in6_addr(gid: Gid) -> bindings::in6_addr {
    let mut address = bindings::in6_addr::default();
    address.in6_u.u6_addr8 = gid.0;
    address
}

/// Returns the key of an IPv4 look-up. It is meaningless unless both addresses are IPv4 addresses.
pub(super) fn v4_key(flow: &Flow, exit: Exit) -> bindings::flowi4 {
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

/// Returns the key of an IPv6 look-up.
pub(super) fn v6_key(flow: &Flow, exit: Exit) -> bindings::flowi6 {
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
        // The look-up finds the VRF (`l3mdev_update_flow()`, net/l3mdev/l3mdev.c).
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
