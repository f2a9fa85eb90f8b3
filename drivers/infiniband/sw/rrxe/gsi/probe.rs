// SPDX-License-Identifier: GPL-2.0

//! Probes: MAD requests of rrxe's own. ib_cm's response to a probe shows that ib_cm has handled the
//! MADs before it.
//!
//! A probe is a request to end a connection that does not exist (DREQ). ib_cm responds to it
//! (`cm_dreq_handler()`, cm.c) unless memory is short or ib_core does not find the probe's address.
//! If some connection had the two communication IDs of the probe, ib_cm might not respond. If that
//! connection were one of QPN 0, the probe would end it. A user may name that QPN for an
//! `rdma_cm_id` without a QP. A peer chooses one of a connection's IDs, and a user can have ib_cm
//! assign any value to the other. So the IDs of a probe are random.
//!
//! The queue of ib_cm handles one datagram at a time on each CPU, in order (`ib_cm_init()`, cm.c).
//! ib_mad's work item queues a MAD and the probe behind it, one after the other
//! (`ib_mad_recv_done()`, mad.c; `cm_recv_handler()`, cm.c). So both are in the queue of the same
//! CPU, unless the work item moves to another CPU in between.
//!
//! ib_cm creates an address handle for its response. By the address in it, rrxe recognizes the
//! response to a probe (`super::take_probe_response()`). rrxe then refuses to create the address
//! handle, so no packet leaves the host.

use rdma::{net::skb::TxSkb, support::random};
use roce::wire::{
    icrc::{IPV6_LEN, UDP_LEN},
    mad, ICRC_LEN, MAX_HEADER,
};

use crate::{device::link::Link, net::rx::RxPacket};

/// Builds a packet of this host that has a probe as its payload, and the headers of `before`, the
/// MAD that the probe follows. Returns `None` if memory is short. Any context up to softirq.
pub(super) fn behind(before: &RxPacket, link: &Link) -> Option<RxPacket> {
    let probe = mad::disconnect_request([(); 2].map(|()| random::next_u32().to_ne_bytes()));
    let room = MAX_HEADER
        .saturating_add(probe.len())
        .saturating_add(ICRC_LEN);
    let mut skb = TxSkb::new(IPV6_LEN.saturating_add(UDP_LEN), room)?;
    let parts: [&[u8]; 3] = [&before.packet.encode(), &probe, &[0; ICRC_LEN]];
    for part in parts {
        skb.put(part).ok()?;
    }
    let (ip, udp) = (before.skb.ip_header()?, before.skb.udp_header()?);
    let packet = skb.into_packet(ip, udp).ok()?;
    let skb = packet.into_rx(before.packet.bth.dest.get()).ok()?;
    RxPacket::decode(skb, link.drops())
}
