// SPDX-License-Identifier: GPL-2.0

//! From the UDP socket to the QP.
//!
//! Nothing is answered before a QP is found. Packets that no QP wants are dropped and counted. Until then memory is allocated
//! only to make the headers of a packet contiguous.

use kernel::{
    prelude::*,
    sync::{Arc, ArcBorrow},
};
use rdma::{
    net::skb::{Discard, Endpoints, Ingress, IpHeader, RxSkb},
    support::crc32::crc32_le,
    verbs::mr::{Span, SpanFault},
};
use roce::{
    ids::Qpn,
    wire::{
        self,
        grh::{self, GRH_LEN},
        icrc::Icrc,
        packet::Packet,
        DropReason, BTH_LEN, ICRC_LEN, MAX_HEADER,
    },
};

use crate::{
    limits::{accounts::Payer, softirq_time::Lot},
    net::{drops::Drops, netns::NetContext},
    qp::Qp,
};

/// A packet with its headers decoded and its ICRC checked.
pub(crate) struct RxPacket {
    pub(crate) skb: RxSkb,
    pub(crate) packet: Packet,
    pub(crate) payload_offset: usize,
    pub(crate) endpoints: Endpoints,
}

impl RxPacket {
    /// Decodes the headers; the ICRC is the caller's business. What is no packet is freed and counted
    /// in `drops`.
    #[inline(never)]
    pub(crate) fn decode(mut skb: RxSkb, drops: &Drops) -> Option<Self> {
        let length = skb.len();
        let decoded = match skb.header(MAX_HEADER) {
            Some(header) => wire::decode(header, length),
            None => Err(DropReason::TooShort),
        };
        match decoded {
            Ok(decoded) => Some(Self {
                endpoints: skb.endpoints(),
                skb,
                packet: decoded.packet,
                payload_offset: decoded.payload_offset,
            }),
            Err(reason) => {
                drops.discard(skb, Discard::Malformed(reason));
                None
            }
        }
    }

    /// The packet without what was found out about its headers.
    pub(crate) fn into_skb(self) -> RxSkb {
        self.skb
    }

    /// Copies payload from `offset` on until `span` is full.
    ///
    /// # Errors
    ///
    /// [`SpanFault::Range`] if there is less payload, [`SpanFault::ReadOnly`].
    pub(crate) fn copy_payload(&self, offset: u32, span: &Span<'_>) -> Result<(), SpanFault> {
        let start = self.locate(offset, span.len())?;
        self.skb.copy_to_span(start, span)
    }

    /// Copies payload from `offset` on until `to` is full.
    ///
    /// # Errors
    ///
    /// [`SpanFault::Range`] if there is less payload.
    pub(crate) fn read_payload(&self, offset: u32, to: &mut [u8]) -> Result<(), SpanFault> {
        let start = self.locate(offset, to.len())?;
        self.skb
            .copy_to_slice(start, to)
            .map_err(|_| SpanFault::Range)
    }

    /// What stands in front of a datagram's payload in the receive buffer.
    pub(crate) fn grh(&self) -> [u8; GRH_LEN as usize] {
        match self.skb.ip_header() {
            IpHeader::V4(ip) => grh::from_ipv4(ip),
            IpHeader::V6(ip) => *ip,
        }
    }

    /// Where `len` bytes at `offset` of the payload lie in the packet.
    fn locate(&self, offset: u32, len: usize) -> Result<usize, SpanFault> {
        let end = (offset as usize).saturating_add(len);
        if end > self.packet.payload_len as usize {
            return Err(SpanFault::Range);
        }
        Ok(self.payload_offset.saturating_add(offset as usize))
    }

    /// Checks the ICRC, unless the packet never left this host.
    ///
    /// # Errors
    ///
    /// [`Discard::Checksum`].
    #[inline(never)]
    fn verify(&mut self) -> Result<(), Discard> {
        if !self.skb.is_trusted() {
            icrc_is_right(&self.skb).ok_or(Discard::Checksum)?;
            self.skb.trust();
        }
        Ok(())
    }
}

/// `None` unless the last four bytes are the ICRC of all before them and of the headers.
fn icrc_is_right(skb: &RxSkb) -> Option<()> {
    let covered = skb.len().checked_sub(ICRC_LEN)?;
    let linear = skb.linear();
    let bth: &[u8; BTH_LEN] = linear.first_chunk()?;
    let next = linear.get(BTH_LEN..covered.min(linear.len()))?;
    let start = match skb.ip_header() {
        IpHeader::V4(ip) => Icrc::start_v4(crc32_le, ip, skb.udp_header(), bth, next),
        IpHeader::V6(ip) => Icrc::start_v6(crc32_le, ip, skb.udp_header(), bth, next),
    };
    let done = BTH_LEN.saturating_add(next.len());
    let register = skb.crc32(start.register(), done, covered.checked_sub(done)?)?;
    let icrc = match linear.get(covered..).and_then(|tail| tail.first_chunk()) {
        Some(icrc) => *icrc,
        None => {
            let mut icrc = [0; ICRC_LEN];
            skb.copy_to_slice(covered, &mut icrc).ok()?;
            icrc
        }
    };
    (Icrc::resume(register).finish() == icrc).then_some(())
}

/// Takes in a packet from the wire. Softirq, under RCU.
pub(crate) fn receive(context: &NetContext, skb: RxSkb) {
    let drops = &context.drops;
    let Some(mut packet) = RxPacket::decode(skb, drops) else {
        return;
    };
    if packet.skb.is_from_this_host() {
        return drops.discard(packet.skb, Discard::Looped);
    }
    let (qpn, to) = (packet.packet.bth.dest, packet.endpoints.destination);
    if to.is_multicast() || qpn == Qpn::MULTICAST {
        if let Some((only, packet)) = deliver_to_group(context, packet) {
            Qp::receive(only.as_arc_borrow(), packet);
        }
        return;
    }
    let ingress = packet.skb.ingress();
    // The QP's turns are no section: whoever takes an object out of a table waits for one turn at most.
    match context.with_qp(qpn, to, ingress, |qp| admit(qp, ingress, &mut packet)) {
        Some(Ok(qp)) => Qp::receive(qp.as_arc_borrow(), packet),
        Some(Err(Refusal::Counted)) => packet.skb.discard(Discard::NoQueuePair),
        Some(Err(Refusal::Discard(why))) => drops.discard(packet.skb, why),
        None => drops.discard(packet.skb, Discard::NoQueuePair),
    }
}

/// Why a QP doesn't take a packet.
enum Refusal {
    /// For a reason of its own, which is counted.
    Counted,
    /// For one that is still to be counted.
    Discard(Discard),
}

/// Has a QP admit a packet, and returns a count of the QP. A stranger's is refused before anything else is done for it.
fn admit(
    qp: ArcBorrow<'_, Qp>,
    ingress: Ingress,
    packet: &mut RxPacket,
) -> Result<Arc<Qp>, Refusal> {
    if !qp.admit(&packet.packet, &packet.endpoints, ingress, None) {
        return Err(Refusal::Counted);
    }
    packet.verify().map_err(Refusal::Discard)?;
    Ok(qp.into())
}

/// Hands a packet to all QPs that are attached to its group. Returns the only member, for which it is left, and the packet: that
/// takes it in at once, as a packet to one QP. A group of more has members that have work and neighbours of their own.
#[inline(never)]
fn deliver_to_group(context: &NetContext, mut packet: RxPacket) -> Option<(Arc<Qp>, RxPacket)> {
    let (group, port) = (packet.endpoints.destination, packet.skb.ingress().port());
    let mut members = context.groups.members(port, group, None);
    let is_for_group = packet.packet.bth.dest == Qpn::MULTICAST;
    let Some(first) = is_for_group.then(|| members.next()).flatten() else {
        context.drops.discard(packet.skb, Discard::NoQueuePair);
        return None;
    };
    if let Err(why) = packet.verify() {
        context.drops.discard(packet.skb, why);
        return None;
    }
    let Some(second) = members.next() else {
        return Some((first, packet));
    };
    hand_out(
        &packet.skb,
        Iterator::chain([first, second].into_iter(), members),
    );
    None
}

/// Gives each member of a group a copy of a packet, which waits for a thread. Softirq, or under a sender's turn.
pub(crate) fn hand_out(skb: &RxSkb, members: impl Iterator<Item = Arc<Qp>>) {
    for qp in members {
        let copy = || {
            // For want of memory it is lost to this one.
            if let Some(copy) = skb.try_clone() {
                Qp::receive_later(qp.as_arc_borrow(), copy);
            }
        };
        // Anybody's datagrams would have softirqs copy without an end. One of many members doesn't pay for the others.
        if !qp
            .device
            .workqueues
            .softirq_time
            .spend_of(lot_of(&qp), copy)
        {
            qp.net.drops.count(Discard::Overflow);
        }
    }
}

/// Its user's part of what a CPU in debt grants. All QPs of the kernel have the same.
fn lot_of(qp: &Qp) -> Lot {
    Lot::of(qp.payer().map_or(0, Payer::user_number))
}
