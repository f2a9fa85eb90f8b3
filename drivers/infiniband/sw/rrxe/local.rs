// SPDX-License-Identifier: GPL-2.0

//! Packets to QPs of the same host, without the IP layer between them. All this runs in the sender's turn.

use kernel::sync::Arc;
use rdma::{
    net::skb::{Discard, Ingress},
    table::Recent,
};
use roce::{host::Count, ids::Qpn, wire::packet::Packet};

use crate::{
    engine::Fate,
    engine_host::Upshot,
    qp::{note_peer, Qp},
    stats::Counters,
    tx::Frame,
};

/// Hands a frame to the QP that it is for.
pub(crate) fn deliver(
    qp: &Qp,
    counters: &Counters,
    frame: Frame<'_>,
    packet: &Packet,
    recent: &mut Recent<Qp>,
    upshot: &mut Upshot,
) -> Fate {
    let endpoints = frame.endpoints();
    let Some(skb) = frame.into_local(qp.qpn) else {
        counters.count(Count::SendErr);
        return Fate::Dropped;
    };
    let (dest, to) = (packet.bth.dest, endpoints.destination);
    let peer: Option<Arc<Qp>> = qp.net.with_recent_qp(recent, dest, to, |peer| peer.into());
    let Some(peer) = peer else {
        qp.net.drops.discard(skb, Discard::NoQueuePair);
        return Fate::Left;
    };
    let sender = Some(qp.qpn.get());
    if !peer.admit(packet, &endpoints, Ingress::default(), sender) {
        skb.discard(Discard::NoQueuePair);
        return Fate::Left;
    }
    if let Err(skb) = peer.inbox.push(skb) {
        qp.net.drops.discard(skb, Discard::Overflow);
        return Fate::Dropped;
    }
    note_peer(&mut upshot.peer, peer);
    Fate::Left
}

/// Hands copies of a frame to a group to the group's members on the network device by which the frame leaves. The only
/// member runs after this turn, as a frame's peer does; several run later: each has work and neighbours of its own. Members for
/// which there is no memory or room lose the frame. Returns how many copies it handed out.
pub(crate) fn deliver_to_group(
    qp: &Qp,
    frame: &Frame<'_>,
    packet: &Packet,
    upshot: &mut Upshot,
) -> u32 {
    let group = frame.endpoints().destination;
    if !group.is_multicast() || packet.bth.dest != Qpn::MULTICAST {
        return 0;
    }
    let Some(members) = qp.net.groups.members(frame.exit(), group) else {
        return 0;
    };
    let mut takers = members.into_iter().filter(|member| !member.blocks(qp));
    let Some(first) = takers.next() else {
        return 0;
    };
    let Some(skb) = frame.try_copy().and_then(|copy| copy.into_local(qp.qpn)) else {
        qp.net.drops.count(Discard::Overflow);
        return 0;
    };
    let Some(second) = takers.next() else {
        match first.inbox.push(skb) {
            Ok(()) => note_peer(&mut upshot.peer, first),
            Err(skb) => qp.net.drops.discard(skb, Discard::Overflow),
        }
        return 1;
    };
    let mut copies = 0u32;
    for member in Iterator::chain([first, second].into_iter(), takers) {
        copies = copies.saturating_add(1);
        match skb.try_clone() {
            Some(copy) => Qp::receive_later(member.as_arc_borrow(), copy),
            None => qp.net.drops.count(Discard::Overflow),
        }
    }
    copies
}
