// SPDX-License-Identifier: GPL-2.0

//! Packets to QPs of the same host, which bypass the IP layer. All functions run with the turn lock
//! of the sending QP (`qp/turn.rs`) held.

use kernel::sync::Arc;
use rdma::{
    device::gid::Gid,
    net::skb::{Discard, Ingress, RxSkb},
    support::table::LastLookup,
};
use roce::{
    host::Count,
    ids::Qpn,
    wire::packet::{Packet, Service},
};

use crate::{
    device::stats::Counters,
    net::{rx::deliver_copies, tx::PacketBuilder},
    qp::{built::TxOutcome, effects::RunEffects, note_peer, Qp},
};

/// Puts a packet of `qp` into the inbox of the destination QP, its queue of received packets. That
/// QP runs after the sender's run.
///
/// `recent` caches the look-up of the destination QP. `effects` records the QP to run. Returns
/// [`TxOutcome::Dropped`] if memory or room in the inbox is short. A packet that no QP takes counts
/// as sent ([`TxOutcome::Left`]), as it would in a network.
pub(crate) fn deliver(
    qp: &Qp,
    counters: &Counters,
    builder: PacketBuilder<'_>,
    packet: &Packet,
    recent: &mut LastLookup<Qp>,
    effects: &mut RunEffects,
) -> TxOutcome {
    let endpoints = builder.endpoints();
    let sniffed = match builder.is_sniffed() {
        true => qp.device.link.netdev(),
        false => None,
    };
    let skb = match sniffed {
        Some(netdev) => builder.into_shown(qp.qpn, &netdev),
        None => builder.into_local(qp.qpn),
    };
    let Some(skb) = skb else {
        counters.count(Count::SendErr);
        return TxOutcome::Dropped;
    };
    let Some(peer) = find(qp, packet.bth.dest, endpoints.destination, recent) else {
        qp.net.drops.discard(skb, Discard::NoQueuePair);
        return TxOutcome::Left;
    };
    hand_over(qp, peer, skb, packet, effects)
}

/// Returns the QP `qpn` of this host, which has the address `address`. `recent` caches the look-up.
pub(crate) fn find(
    qp: &Qp,
    qpn: Qpn,
    address: Gid,
    recent: &mut LastLookup<Qp>,
) -> Option<Arc<Qp>> {
    qp.net
        .with_cached_qp(recent, qpn, address, |peer| peer.into())
}

/// Puts a packet or a train of `qp` into the inbox of `peer`, as [`deliver`] does.
pub(crate) fn hand_over(
    qp: &Qp,
    peer: Arc<Qp>,
    skb: RxSkb,
    packet: &Packet,
    effects: &mut RunEffects,
) -> TxOutcome {
    let (sender, endpoints) = (Some(qp.qpn.get()), skb.endpoints());
    if !peer.admit(packet, &endpoints, Ingress::default(), sender) {
        skb.discard(Discard::NoQueuePair);
        return TxOutcome::Left;
    }
    if let Err(skb) = peer.inbox.push(skb) {
        qp.net.drops.discard(skb, Discard::Overflow);
        return TxOutcome::Dropped;
    }
    note_peer(&mut effects.peer, peer);
    TxOutcome::Left
}

/// Returns whether a packet is a datagram to a multicast group.
pub(crate) fn is_to_group(builder: &PacketBuilder<'_>, packet: &Packet) -> bool {
    let is_datagram = matches!(packet.service, Service::Ud(_));
    is_datagram
        && packet.bth.dest == Qpn::MULTICAST
        && builder.endpoints().destination.is_multicast()
}

/// Puts copies of a packet into the inboxes of the QPs that are attached to its group on the
/// network device through which the packet leaves. If the group has one member, that QP runs after
/// the sender's run, as the destination of a unicast packet does. Several members run later, those
/// of processes in threads, since each may have much work and may run other QPs. Members for which
/// memory, room in the inbox or softirq time is short lose the packet.
#[inline(never)]
pub(crate) fn deliver_to_group(qp: &Qp, builder: &PacketBuilder<'_>, effects: &mut RunEffects) {
    let group = builder.endpoints().destination;
    let mut members = qp.net.groups.members(builder.exit(), group, Some(qp));
    let Some(first) = members.next() else {
        return;
    };
    let Some(skb) = builder.try_copy().and_then(|copy| copy.into_local(qp.qpn)) else {
        return qp.net.drops.count(Discard::Overflow);
    };
    if let Some(second) = members.next() {
        return deliver_copies(&skb, Iterator::chain([first, second].into_iter(), members));
    }
    match first.inbox.push(skb) {
        Ok(()) => note_peer(&mut effects.peer, first),
        Err(skb) => qp.net.drops.discard(skb, Discard::Overflow),
    }
}
