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

/// A packet with decoded headers, or a train: one of a QP of this device (`net/train.rs`), or a
/// burst, whose packets arrived together.
pub(crate) struct RxPacket {
    /// The socket buffer, that of the first packet of a burst.
    pub(crate) skb: RxSkb,
    /// The buffers of the other packets of a burst. `None` if this is no burst.
    rest: Option<KVec<RxSkb>>,
    /// The decoded headers.
    pub(crate) packet: Packet,
    /// Number of packets. More than one only if this is a train.
    pub(crate) count: u32,
    /// Path MTU of the sender of a train.
    mtu: Mtu,
    /// Offset of the payload from the BTH, in bytes. If the buffer holds a train, offset of the
    /// payload's description.
    payload_offset: usize,
    /// Offsets of the payload in the further buffers of a burst.
    rest_offsets: RestOffsets,
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
        match decode(&mut skb) {
            Ok(decoded) => {
                let packet = Self {
                    endpoints: skb.endpoints(),
                    skb,
                    rest: None,
                    packet: decoded.packet,
                    count: 1,
                    mtu: Mtu::Bytes4096,
                    payload_offset: decoded.payload_offset,
                    rest_offsets: RestOffsets::default(),
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

    /// Decodes the headers of a burst. The caller checks the ICRCs.
    ///
    /// # Errors
    ///
    /// The buffers, if the packets aren't a train.
    #[inline(never)]
    fn decode_burst(mut skb: RxSkb, mut rest: KVec<RxSkb>) -> Result<Self, (RxSkb, KVec<RxSkb>)> {
        let Some((train, payload_offset, rest_offsets)) = join(&mut skb, &mut rest) else {
            return Err((skb, rest));
        };
        Ok(Self {
            endpoints: skb.endpoints(),
            skb,
            rest: Some(rest),
            packet: train.packet,
            count: train.count,
            mtu: train.mtu,
            payload_offset,
            rest_offsets,
            skipped: 0,
            sender: None,
        })
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

    /// Returns whether this is a burst.
    pub(crate) fn is_burst(&self) -> bool {
        self.rest.is_some()
    }

    /// Returns the socket buffers in the order of their packets, without the decoded headers.
    pub(crate) fn into_skbs(self) -> impl Iterator<Item = RxSkb> {
        Iterator::chain([self.skb].into_iter(), self.rest.unwrap_or_default())
    }

    /// Passes the socket buffers to `take`, the last one first.
    pub(crate) fn take_skbs_backwards(mut self, take: impl Fn(RxSkb)) {
        while let Some(skb) = self.rest.as_mut().and_then(KVec::pop) {
            take(skb);
        }
        take(self.skb);
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
            None if self.is_burst() => self
                .copy_burst(offset, span)
                .map_err(|_| AccessFault::Denied),
            None => self
                .skb
                .copy_to_span(start, span)
                .map_err(|_| AccessFault::Denied),
            Some(_) => self.copy_train(offset, span, mrs),
        }
    }

    /// Works as [`Self::copy_payload`] for a burst.
    #[inline(never)]
    fn copy_burst(&self, offset: u32, span: &Span<'_>) -> Result<(), SpanError> {
        let mtu = self.mtu.bytes() as usize;
        let total = self.packet.payload_len as usize;
        let (mut from, mut done) = (offset as usize, 0usize);
        while done < span.len() {
            // All packets but the last one are full.
            let index = from.wrapping_shr(mtu.trailing_zeros());
            let start = index.wrapping_mul(mtu);
            let within = from.wrapping_sub(start);
            let left = total.saturating_sub(from).min(mtu.saturating_sub(within));
            let count = left.min(span.len().wrapping_sub(done));
            let (skb, at) = self.member(index).ok_or(SpanError::Range)?;
            if count == 0 {
                return Err(SpanError::Range);
            }
            skb.copy_to_span(at.saturating_add(within), &span.part(done, count)?)?;
            (from, done) = (from.saturating_add(count), done.saturating_add(count));
        }
        Ok(())
    }

    /// Returns buffer `index` of a burst, and the offset of the payload in it.
    fn member(&self, index: usize) -> Option<(&RxSkb, usize)> {
        let Some(behind) = index.checked_sub(1) else {
            return Some((&self.skb, self.payload_offset));
        };
        let rest = self.rest.as_ref()?;
        let at = match index == rest.len() {
            true => self.rest_offsets.last,
            false => self.rest_offsets.between,
        };
        Some((rest.get(behind)?, at))
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
        // The payloads that the caller reads by this function have one packet each.
        if self.is_burst() {
            return Err(SpanError::Range);
        }
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
    fn verify(&mut self) -> Result<(), Discard> {
        verify(&mut self.skb)?;
        match &mut self.rest {
            Some(rest) => rest.iter_mut().try_for_each(verify),
            None => Ok(()),
        }
    }
}

/// Works as [`RxPacket::verify`] for one buffer.
#[inline(never)]
fn verify(skb: &mut RxSkb) -> Result<(), Discard> {
    if !skb.is_trusted() {
        icrc_is_right(skb).ok_or(Discard::Checksum)?;
        skb.trust();
    }
    Ok(())
}

/// Offsets of the payload from the BTH, in bytes, in the buffers behind the first one of a burst.
#[derive(Clone, Copy, Default)]
struct RestOffsets {
    /// Offset in all these buffers but the last one.
    between: usize,
    /// Offset in the last buffer.
    last: usize,
}

/// Returns the train that the packets of a burst are, and the offsets of the payload in the first
/// and in the further buffers. Returns `None` if the packets aren't a train.
fn join(first: &mut RxSkb, rest: &mut KVec<RxSkb>) -> Option<(Train, usize, RestOffsets)> {
    let count = u32::try_from(rest.len()).ok()?.checked_add(1)?;
    let start = decode(first).ok()?;
    let (last, between) = rest.split_last_mut()?;
    let end = decode(last).ok()?;
    let train = Train::join(&start.packet, &end.packet, count)?;
    let mut offsets = RestOffsets {
        between: 0,
        last: end.payload_offset,
    };
    for (skb, expected) in between.iter_mut().zip(train.headers().skip(1)) {
        let header = &*expected.header;
        let length = header
            .len()
            .saturating_add(expected.length as usize)
            .saturating_add(ICRC_LEN);
        if skb.len() != length || skb.header(header.len())? != header {
            return None;
        }
        offsets.between = header.len();
    }
    Some((train, start.payload_offset, offsets))
}

/// Decodes the headers of one buffer.
#[inline]
fn decode(skb: &mut RxSkb) -> Result<wire::Decoded, DropReason> {
    let length = skb.len();
    let header = skb.header(MAX_HEADER).ok_or(DropReason::TooShort)?;
    wire::decode(header, length)
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

/// Receives a packet, or a burst whose packets after the first are `rest`, from the network.
/// Softirq, under RCU.
pub(crate) fn receive(context: &NetContext, skb: RxSkb, rest: Option<KVec<RxSkb>>) {
    // The packet is moved as little as possible: the stack frames of the functions that are called
    // take room from the network stack, which sends the QP's packets.
    let mut packet = decode_received(context, skb, rest);
    if let Some(qp) = accept(context, &mut packet) {
        Qp::receive(qp.as_arc_borrow(), &mut packet);
    }
}

/// Decodes the headers of a packet or a burst. The packets of a burst that is no train are handled
/// one by one.
#[inline(never)]
fn decode_received(
    context: &NetContext,
    skb: RxSkb,
    rest: Option<KVec<RxSkb>>,
) -> Option<RxPacket> {
    if skb.is_from_this_host() {
        let skbs = Iterator::chain([skb].into_iter(), rest.unwrap_or_default());
        skbs.for_each(|skb| context.drops.discard(skb, Discard::Looped));
        return None;
    }
    let Some(rest) = rest else {
        return RxPacket::decode(skb, &context.drops);
    };
    match RxPacket::decode_burst(skb, rest) {
        Ok(packet) => Some(packet),
        Err((skb, rest)) => {
            deliver_singly(context, Iterator::chain([skb].into_iter(), rest));
            None
        }
    }
}

/// Returns the QP that shall receive the packet or the burst now. Otherwise takes the packet: it
/// was refused, or the members of a group receive it later.
#[inline(never)]
fn accept(context: &NetContext, slot: &mut Option<RxPacket>) -> Option<Arc<Qp>> {
    let packet = slot.as_mut()?;
    let (qpn, to) = (packet.packet.bth.dest, packet.endpoints.destination);
    if to.is_multicast() || qpn == Qpn::MULTICAST {
        let (only, packet) = deliver_to_group(context, slot.take()?)?;
        *slot = Some(packet);
        return Some(only);
    }
    find(context, packet)
        .map_err(|refusal| refuse(context, slot.take(), refusal))
        .ok()
}

/// Puts the packets of a burst into the inbox of their QP one by one, if it accepts them. Runs no
/// QP, because the caller's stack frames have no room for that.
#[cold]
#[inline(never)]
fn deliver_singly(context: &NetContext, skbs: impl Iterator<Item = RxSkb>) {
    for skb in skbs {
        let Some(mut packet) = RxPacket::decode(skb, &context.drops) else {
            continue;
        };
        match find(context, &mut packet) {
            Ok(qp) => packet
                .into_skbs()
                .for_each(|skb| Qp::receive_later(qp.as_arc_borrow(), skb)),
            Err(refusal) => refuse(context, Some(packet), refusal),
        }
    }
}

/// Returns the QP that a packet or a burst is for, if that QP accepts it.
fn find(context: &NetContext, packet: &mut RxPacket) -> Result<Arc<Qp>, Refusal> {
    let (qpn, to) = (packet.packet.bth.dest, packet.endpoints.destination);
    let ingress = packet.skb.ingress();
    // The table's read section (`read_section.rs`), which is not RCU's, ends before the QP runs.
    // Each run is a read section of its own. So a writer that removes an object from a table waits
    // for one run at most.
    let found = context.with_qp(qpn, to, ingress, |qp| admit(qp, ingress, packet));
    found.unwrap_or(Err(Refusal::Discard(Discard::NoQueuePair)))
}

/// Frees the buffers of a packet that no QP accepts. One packet of a burst may be corrupted: the
/// packets are handled one by one then.
#[cold]
#[inline(never)]
fn refuse(context: &NetContext, packet: Option<RxPacket>, refusal: Refusal) {
    let Some(packet) = packet else {
        return;
    };
    let is_corrupted = matches!(refusal, Refusal::Discard(Discard::Checksum));
    if is_corrupted && packet.is_burst() {
        return deliver_singly(context, packet.into_skbs());
    }
    packet.into_skbs().for_each(|skb| match refusal {
        Refusal::Counted => skb.discard(Discard::NoQueuePair),
        Refusal::Discard(why) => context.drops.discard(skb, why),
    });
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
