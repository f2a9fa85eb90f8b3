// SPDX-License-Identifier: GPL-2.0

//! The receive path from the UDP socket to the QP.
//!
//! No packet causes a response before its QP is found. Packets that are for no QP are dropped and
//! counted. Until then memory is allocated only to make a packet's headers contiguous.

use kernel::{
    prelude::*,
    sync::{Arc, ArcBorrow},
};
use rdma::{
    net::skb::{Discard, Endpoints, Ingress, IpHeader, RxSkb},
    support::crc32::crc32_le,
    verbs::mr::{Span, SpanError},
};
use roce::{
    host::AccessFault,
    ids::Qpn,
    mtu::Mtu,
    train::Train,
    wire::{
        self,
        grh::{self, GRH_LEN},
        icrc::Icrc,
        packet::Packet,
        DropReason, BTH_LEN, ICRC_LEN, MAX_HEADER,
    },
};

use crate::{
    limits::{accounts::Payer, softirq_time::CopyBucket},
    memory::mr::MrTable,
    net::{drops::Drops, netns::NetContext, train},
    qp::Qp,
};

/// A packet with decoded headers, or a train (`net/train.rs`).
pub(crate) struct RxPacket {
    /// The socket buffer.
    pub(crate) skb: RxSkb,
    /// The decoded headers.
    pub(crate) packet: Packet,
    /// Number of packets. More than one only if the buffer holds a train.
    pub(crate) count: u32,
    /// Path MTU of the sender of a train.
    mtu: Mtu,
    /// Offset of the payload from the BTH, in bytes. In a train, offset of the payload's
    /// description.
    payload_offset: usize,
    /// Number of bytes of a train's payload before the payload of `packet`.
    skipped: u32,
    /// Sender of a train, if it still exists.
    sender: Option<Arc<Qp>>,
    /// Source and destination address.
    pub(crate) endpoints: Endpoints,
}

/// Part of a train that was received before: a number of packets, and the bytes of their payload.
#[derive(Clone, Copy)]
pub(crate) struct Selection {
    received: u32,
    skipped: u32,
}

impl RxPacket {
    /// Decodes the headers. The caller checks the ICRC. A packet with invalid headers is freed and
    /// counted in `drops`.
    #[inline(never)]
    pub(crate) fn decode(mut skb: RxSkb, drops: &Drops) -> Option<Self> {
        let length = skb.len();
        let decoded = match skb.header(MAX_HEADER) {
            Some(header) => wire::decode(header, length),
            None => Err(DropReason::TooShort),
        };
        match decoded {
            Ok(decoded) => {
                let packet = Self {
                    endpoints: skb.endpoints(),
                    skb,
                    packet: decoded.packet,
                    count: 1,
                    mtu: Mtu::Bytes4096,
                    payload_offset: decoded.payload_offset,
                    skipped: 0,
                    sender: None,
                };
                match packet.skb.train() {
                    Some(received) => packet.into_train(received, drops),
                    None => Some(packet),
                }
            }
            Err(reason) => {
                drops.discard(skb, Discard::Malformed(reason));
                None
            }
        }
    }

    /// Turns the packet into the train that its buffer holds, without the first `received` packets.
    /// Frees the buffer if none is left.
    #[cold]
    fn into_train(mut self, received: u32, drops: &Drops) -> Option<Self> {
        let payload = self.train_payload();
        let rest = payload.and_then(|payload| {
            self.packet.payload_len = payload.length;
            let train = Train {
                packet: self.packet,
                count: payload.count,
                mtu: payload.mtu,
            };
            train.skip(received)
        });
        let Some((rest, skipped)) = rest else {
            drops.discard(self.skb, Discard::Malformed(DropReason::TooShort));
            return None;
        };
        (self.packet, self.count, self.skipped) = (rest.packet, rest.count, skipped);
        self.mtu = rest.mtu;
        Some(self)
    }

    /// Returns the description of the payload, if the buffer holds a train.
    pub(crate) fn train_payload(&self) -> Option<train::Payload> {
        self.skb.train()?;
        train::Payload::decode(self.skb.linear().get(self.payload_offset..)?)
    }

    /// Returns the packets as a train.
    pub(crate) fn train(&self) -> Train {
        Train {
            packet: self.packet,
            count: self.count,
            mtu: self.mtu,
        }
    }

    /// Sets the sender of a train, whose memory holds the payload.
    pub(crate) fn set_sender(&mut self, sender: Option<Arc<Qp>>) {
        self.sender = sender;
    }

    /// Turns the packet, which is `train`, into packet `index` of it. The buffer keeps the train
    /// without the packets before this one. `first` is what was received of it before.
    pub(crate) fn select(&mut self, train: &Train, first: &Selection, index: u32) {
        let (packet, offset) = train.packet(index);
        (self.packet, self.count) = (packet, 1);
        self.skipped = first.skipped.saturating_add(offset);
        self.skb.set_train(first.received.saturating_add(index));
    }

    /// Returns how much of the train in the buffer was received before.
    pub(crate) fn selection(&self) -> Selection {
        Selection {
            received: self.skb.train().unwrap_or(0),
            skipped: self.skipped,
        }
    }

    /// Returns the socket buffer, without the decoded headers.
    pub(crate) fn into_skb(self) -> RxSkb {
        self.skb
    }

    /// Copies payload from `offset` on until `span` is full. `mrs` are the memory regions of the
    /// device.
    ///
    /// # Errors
    ///
    /// `Denied` if there is less payload or the span may not be written; `Retry` if a train's
    /// payload can't be read any more.
    pub(crate) fn copy_payload(
        &self,
        offset: u32,
        span: &Span<'_>,
        mrs: &MrTable,
    ) -> Result<(), AccessFault> {
        let start = self
            .locate(offset, span.len())
            .map_err(|_| AccessFault::Denied)?;
        match self.skb.train() {
            None => self
                .skb
                .copy_to_span(start, span)
                .map_err(|_| AccessFault::Denied),
            Some(_) => self.copy_train(offset, span, mrs),
        }
    }

    /// Works as [`Self::copy_payload`] for a train.
    #[inline(never)]
    fn copy_train(&self, offset: u32, span: &Span<'_>, mrs: &MrTable) -> Result<(), AccessFault> {
        let payload = self.train_payload().ok_or(AccessFault::Retry)?;
        let sender = self.sender.as_ref().ok_or(AccessFault::Retry)?;
        let offset = self.skipped.saturating_add(offset);
        let copy = || payload.copy_to(offset, span, mrs);
        let copied = sender.train_source.within(payload.session, copy);
        copied.unwrap_or(Err(AccessFault::Retry))
    }

    /// Copies payload from `offset` on until `to` is full.
    ///
    /// # Errors
    ///
    /// [`SpanError::Range`] if there is less payload.
    pub(crate) fn read_payload(&self, offset: u32, to: &mut [u8]) -> Result<(), SpanError> {
        let start = self.locate(offset, to.len())?;
        self.skb
            .copy_to_slice(start, to)
            .map_err(|_| SpanError::Range)
    }

    /// Returns the GRH that precedes a datagram's payload in the receive buffer: the IPv6 header,
    /// or one made from the IPv4 header.
    pub(crate) fn grh(&self) -> [u8; GRH_LEN as usize] {
        match self.skb.ip_header() {
            IpHeader::V4(ip) => grh::from_ipv4(ip),
            IpHeader::V6(ip) => *ip,
        }
    }

    /// Returns how many bytes behind the BTH's first byte the `len` bytes at `offset` of the
    /// payload begin.
    fn locate(&self, offset: u32, len: usize) -> Result<usize, SpanError> {
        let end = (offset as usize).saturating_add(len);
        if end > self.packet.payload_len as usize {
            return Err(SpanError::Range);
        }
        Ok(self.payload_offset.saturating_add(offset as usize))
    }

    /// Checks the ICRC, unless [`RxSkb::is_trusted`] says that it needs no check.
    ///
    /// # Errors
    ///
    /// [`Discard::Checksum`] if the ICRC is wrong.
    #[inline(never)]
    fn verify(&mut self) -> Result<(), Discard> {
        if !self.skb.is_trusted() {
            icrc_is_right(&self.skb).ok_or(Discard::Checksum)?;
            self.skb.trust();
        }
        Ok(())
    }
}

/// Returns `Some` if the last four bytes are the ICRC of the headers and of all bytes before.
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

/// Receives a packet from the network. Softirq, under RCU.
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
    // The table's read section (`read_section.rs`), which is not RCU's, ends before the QP runs.
    // Each run is a read section of its own. So a writer that removes an object from a table waits
    // for one run at most.
    match context.with_qp(qpn, to, ingress, |qp| admit(qp, ingress, &mut packet)) {
        Some(Ok(qp)) => Qp::receive(qp.as_arc_borrow(), packet),
        Some(Err(Refusal::Counted)) => packet.skb.discard(Discard::NoQueuePair),
        Some(Err(Refusal::Discard(why))) => drops.discard(packet.skb, why),
        None => drops.discard(packet.skb, Discard::NoQueuePair),
    }
}

/// Reason why a QP doesn't accept a packet.
enum Refusal {
    /// A reason that the QP has counted.
    Counted,
    /// A reason that the caller has to count.
    Discard(Discard),
}

/// Has a QP check a packet, and returns a reference to the QP. A packet from another sender than
/// the QP's peer is refused before its ICRC is computed.
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

/// Gives a packet to all QPs that are attached to its group. If the group has one member, returns
/// that QP and the packet: the QP receives the packet at once, as it does a unicast packet. The
/// members of a larger group get copies and run later, those of processes in threads, since each
/// may have much work and may run other QPs.
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
    deliver_copies(
        &packet.skb,
        Iterator::chain([first, second].into_iter(), members),
    );
    None
}

/// Gives each member of a group a copy of a packet, which waits for a later run of the member.
/// Softirq, or with the turn lock of a sending QP (`qp/turn.rs`) held.
pub(crate) fn deliver_copies(skb: &RxSkb, members: impl Iterator<Item = Arc<Qp>>) {
    for qp in members {
        let copy = || {
            // If memory is short, this member loses the packet.
            if let Some(copy) = skb.try_clone() {
                Qp::receive_later(qp.as_arc_borrow(), copy);
            }
        };
        // The time for copies is limited, since any host can send datagrams to a group. When a CPU
        // has used up its softirq time, each copy counts for the user of its member.
        if !qp
            .device
            .workqueues
            .softirq_time
            .spend_on_copy(copy_bucket(&qp), copy)
        {
            qp.net.drops.count(Discard::Overflow);
        }
    }
}

/// Returns the bucket of the QP's user: the part of the copies that a CPU grants although its
/// softirq time is used up. All QPs of in-kernel consumers have the same bucket.
fn copy_bucket(qp: &Qp) -> CopyBucket {
    CopyBucket::of(qp.payer().map_or(0, Payer::user_number))
}
