// SPDX-License-Identifier: GPL-2.0

//! Packets to QPs of the same host, without the IP layer between them. All this runs in the sender's turn.

use kernel::sync::Arc;
use rdma::{
    net::skb::{Discard, Ingress},
    support::table::LastLookup,
};
use roce::{
    host::Count,
    ids::Qpn,
    wire::packet::{Packet, Service},
};

use crate::{
    device::stats::Counters,
    net::{rx::hand_out, tx::Frame},
    qp::{effects::RunEffects, engine::TxOutcome, note_peer, Qp},
};

/// Hands a frame to the QP that it is for.
pub(crate) fn deliver(
    qp: &Qp,
    counters: &Counters,
    frame: Frame<'_>,
    packet: &Packet,
    recent: &mut LastLookup<Qp>,
    effects: &mut RunEffects,
) -> TxOutcome {
    let endpoints = frame.endpoints();
    let Some(skb) = frame.into_local(qp.qpn) else {
        counters.count(Count::SendErr);
        return TxOutcome::Dropped;
    };
    let (dest, to) = (packet.bth.dest, endpoints.destination);
    let peer: Option<Arc<Qp>> = qp.net.with_recent_qp(recent, dest, to, |peer| peer.into());
    let Some(peer) = peer else {
        qp.net.drops.discard(skb, Discard::NoQueuePair);
        return TxOutcome::Left;
    };
    let sender = Some(qp.qpn.get());
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

/// Whether a frame is a datagram to a group.
pub(crate) fn is_to_group(frame: &Frame<'_>, packet: &Packet) -> bool {
    let is_datagram = matches!(packet.service, Service::Ud(_));
    is_datagram && packet.bth.dest == Qpn::MULTICAST && frame.endpoints().destination.is_multicast()
}

/// Hands copies of a frame to the members of its group on the network device by which the frame leaves. The only
/// member runs after this turn, as a frame's peer does; several run later: each has work and neighbours of its own. Members for
/// which there is no memory, room or time lose the frame.
#[inline(never)]
pub(crate) fn deliver_to_group(qp: &Qp, frame: &Frame<'_>, effects: &mut RunEffects) {
    let group = frame.endpoints().destination;
    let mut members = qp.net.groups.members(frame.exit(), group, Some(qp));
    let Some(first) = members.next() else {
        return;
    };
    let Some(skb) = frame.try_copy().and_then(|copy| copy.into_local(qp.qpn)) else {
        return qp.net.drops.count(Discard::Overflow);
    };
    if let Some(second) = members.next() {
        return hand_out(&skb, Iterator::chain([first, second].into_iter(), members));
    }
    match first.inbox.push(skb) {
        Ok(()) => note_peer(&mut effects.peer, first),
        Err(skb) => qp.net.drops.discard(skb, Discard::Overflow),
    }
}
