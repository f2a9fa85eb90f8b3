// SPDX-License-Identifier: GPL-2.0

//! Questions of rrxe's own: ib_core's answer says that it has handled what came before.
//!
//! A probe asks to end a connection that does not exist. ib_cm answers it (`cm_dreq_handler()`, cm.c), unless there is no
//! memory. A connection exists if the communication IDs of both its ends are those of the request. Peers choose one of them, and
//! users can have ib_cm give out any other, so those of a probe are random. The queue of connection management handles one datagram at a time on each CPU, in order (`ib_cm_init()`, cm.c).
//! A question and the probe behind it get there by one thread, one after the other: by the same CPU, unless the thread
//! moves in between. The address handle for the answer is refused: nothing leaves the host.

use rdma::{net::skb::TxSkb, support::random};
use roce::wire::{
    icrc::{IPV6_LEN, UDP_LEN},
    mad, ICRC_LEN, MAX_HEADER,
};

use crate::{device::link::Link, net::rx::RxPacket};

/// A datagram like `question` with a probe for its payload, which came from this host. `None` if there is no memory. Any
/// context up to softirq.
pub(super) fn behind(question: &RxPacket, link: &Link) -> Option<RxPacket> {
    let probe = mad::disconnect_request([(); 2].map(|()| random::next_u32().to_ne_bytes()));
    let room = MAX_HEADER
        .saturating_add(probe.len())
        .saturating_add(ICRC_LEN);
    let mut skb = TxSkb::new(IPV6_LEN.saturating_add(UDP_LEN), room)?;
    let parts: [&[u8]; 3] = [&question.packet.encode(), &probe, &[0; ICRC_LEN]];
    for part in parts {
        skb.put(part).ok()?;
    }
    let (ip, udp) = (question.skb.ip_header(), question.skb.udp_header());
    let packet = skb.into_packet(ip, udp).ok()?;
    let skb = packet.into_rx(question.packet.bth.dest.get()).ok()?;
    RxPacket::decode(skb, link.drops())
}
