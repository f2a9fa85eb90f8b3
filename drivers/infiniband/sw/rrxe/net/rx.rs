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
    net::skb::{Contents, Discard, Endpoints, Headers, Ingress, IpHeader, RxSkb},
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
/// burst (`qp/burst.rs`).
pub(crate) struct RxPacket {
    /// The socket buffer.
    pub(crate) skb: RxSkb,
    /// The decoded headers.
    pub(crate) packet: Packet,
    /// Number of packets. More than one only if this is a train.
    pub(crate) count: u32,
    /// Path MTU of the sender of a train.
    mtu: Mtu,
    /// Offset of the payload from the start of the buffer's data, in bytes. If the buffer holds a
    /// description of the payload, offset of the description.
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
    /// Decodes the headers, unless they are decoded. The caller checks the ICRC. A packet with
    /// invalid headers is freed and counted in `drops`.
    pub(crate) fn decode(skb: RxSkb, drops: &Drops) -> Option<Self> {
        let mut place = None;
        Self::decode_into(&mut place, skb, drops);
        place
    }

    /// Works as [`Self::decode`], but stores the packet in `place`, so that it isn't moved.
    #[inline(never)]
    pub(crate) fn decode_into(place: &mut Option<Self>, mut skb: RxSkb, drops: &Drops) {
        match skb.decoded() {
            Some(Headers { packet, endpoints }) => {
                *place = Some(Self::new(skb, packet, 0, endpoints));
            }
            None => match decode(&mut skb) {
                Ok(wire::Decoded {
                    packet,
                    payload_offset,
                }) => {
                    let endpoints = skb.endpoints();
                    *place = Some(Self::new(skb, packet, payload_offset, endpoints));
                }
                Err(reason) => drops.discard(skb, Discard::Malformed(reason)),
            },
        }
        let is_train = place.as_ref().is_some_and(Self::is_train);
        if is_train && !place.as_mut().is_some_and(Self::become_train) {
            if let Some(packet) = place.take() {
                drops.discard(packet.skb, Discard::Malformed(DropReason::WrongLength));
            }
        }
    }

    /// Frees the packet, if there is one. Not inlined: `*place = None` would copy bytes without a
    /// value.
    #[inline(never)]
    pub(crate) fn free(place: &mut Option<Self>) {
        *place = None;
    }

    /// Creates a single packet.
    #[inline(always)]
    fn new(skb: RxSkb, packet: Packet, payload_offset: usize, endpoints: Endpoints) -> Self {
        Self {
            skb,
            packet,
            count: 1,
            mtu: Mtu::Bytes4096,
            payload_offset,
            skipped: 0,
            sender: None,
            endpoints,
        }
    }

    /// Turns the packet into the train that its buffer holds, without the packets that were
    /// received before. Returns `false` if the buffer holds no valid train or no packet is left.
    #[inline(never)]
    fn become_train(&mut self) -> bool {
        let train = self.described_train();
        let Some((rest, skipped)) = train.and_then(|train| train.skip(self.skb.received())) else {
            return false;
        };
        (self.packet, self.count, self.skipped) = (rest.packet, rest.count, skipped);
        self.mtu = rest.mtu;
        true
    }

    /// Returns the train that the buffer holds, with the packets that were received before.
    fn described_train(&self) -> Option<Train> {
        match self.skb.contents() {
            Contents::Packet => None,
            Contents::Train => {
                let payload = self.train_payload()?;
                let mut packet = self.packet;
                packet.payload_len = payload.length;
                Some(Train {
                    packet,
                    count: payload.count,
                    mtu: payload.mtu,
                })
            }
            Contents::Burst(count) => Train::of(self.packet, count.into()),
        }
    }

    /// Returns the description of the payload. The buffer must hold one.
    pub(crate) fn train_payload(&self) -> Option<train::Payload> {
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
        self.skb.set_received(first.received.saturating_add(index));
    }

    /// Returns how much of the train in the buffer was received before.
    pub(crate) fn selection(&self) -> Selection {
        Selection {
            received: self.skb.received(),
            skipped: self.skipped,
        }
    }

    /// Returns whether this is a train or a burst.
    #[inline]
    pub(crate) fn is_train(&self) -> bool {
        self.skb.contents() != Contents::Packet
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
        if self.skb.contents() == Contents::Train {
            return self.copy_train(offset, span, mrs);
        }
        self.skb
            .copy_to_span(start, span)
            .map_err(|_| AccessFault::Denied)
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
            Some(IpHeader::V4(ip)) => grh::from_ipv4(ip),
            Some(IpHeader::V6(ip)) => *ip,
            // Only the headers of packets between connected QPs stay decoded.
            None => [0; GRH_LEN as usize],
        }
    }

    /// Returns the place in the buffer's data, in bytes, of the `len` bytes at `offset` of the
    /// payload.
    fn locate(&self, offset: u32, len: usize) -> Result<usize, SpanError> {
        let end = (offset as usize).saturating_add(len);
        if end > self.packet.payload_len as usize {
            return Err(SpanError::Range);
        }
        let offset = self.skipped.saturating_add(offset);
        Ok(self.payload_offset.saturating_add(offset as usize))
    }

    /// Checks the ICRC, unless [`RxSkb::is_trusted`] says that it needs no check. The ICRC of a
    /// burst covers the payload if `burst_icrcs` is set.
    ///
    /// # Errors
    ///
    /// [`Discard::Checksum`] if the ICRC is wrong, or if the network stack has moved a part of the
    /// payload of a burst.
    #[inline(never)]
    fn verify(&mut self, burst_icrcs: bool) -> Result<(), Discard> {
        if self.skb.is_trusted() {
            return Ok(());
        }
        let is_right = match self.skb.contents() {
            Contents::Burst(count) => self.burst_is_right(count, burst_icrcs),
            _ => icrc_is_right(&self.skb),
        };
        is_right.ok_or(Discard::Checksum)?;
        self.skb.trust();
        Ok(())
    }

    /// Returns `Some` if a burst has the right ICRC, and its linear data are its headers. The
    /// network stack writes to linear data only, and moves other data there before
    /// (`skb_ensure_writable()`, net/core/skbuff.c). So nobody has written to the payload.
    #[inline(never)]
    fn burst_is_right(&self, count: u16, burst_icrcs: bool) -> Option<()> {
        let (linear, covered) = (self.skb.linear(), self.skb.len().checked_sub(ICRC_LEN)?);
        if linear.len() != self.payload_offset {
            return None;
        }
        let headers = start_icrc(&self.skb, linear)?;
        let payload = covered.checked_sub(linear.len())?;
        let icrc = burst_icrc(headers, count, burst_icrcs, |register| {
            self.skb.crc32(register, linear.len(), payload)
        })?;
        (icrc == trailer(&self.skb, covered)?).then_some(())
    }
}

/// Returns the ICRC of a burst of `count` packets. `headers` is the ICRC of its headers, and
/// `add_payload` continues a CRC over its payload, which is covered if `covers_payload` is set.
pub(super) fn burst_icrc(
    mut headers: Icrc,
    count: u16,
    covers_payload: bool,
    add_payload: impl FnOnce(u32) -> Option<u32>,
) -> Option<[u8; ICRC_LEN]> {
    headers.update(crc32_le, &count.to_be_bytes());
    if covers_payload {
        headers = Icrc::resume(add_payload(headers.register())?);
    }
    Some(headers.finish())
}

/// Decodes the headers of a buffer.
#[inline]
fn decode(skb: &mut RxSkb) -> Result<wire::Decoded, DropReason> {
    let length = skb.len();
    if let Contents::Burst(_) = skb.contents() {
        // The headers are linear, and nothing else may be (`burst_is_right`).
        return wire::decode_train(skb.linear(), length);
    }
    let header = skb.header(MAX_HEADER).ok_or(DropReason::TooShort)?;
    wire::decode(header, length)
}

/// Starts the ICRC of a packet whose bytes begin with `bytes`.
#[inline(always)]
fn start_icrc(skb: &RxSkb, bytes: &[u8]) -> Option<Icrc> {
    let (bth, next) = bytes.split_first_chunk::<BTH_LEN>()?;
    let udp = skb.udp_header()?;
    Some(match skb.ip_header()? {
        IpHeader::V4(ip) => Icrc::start_v4(crc32_le, ip, udp, bth, next),
        IpHeader::V6(ip) => Icrc::start_v6(crc32_le, ip, udp, bth, next),
    })
}

/// Returns `Some` if the last four bytes are the ICRC of the headers and of all bytes before.
fn icrc_is_right(skb: &RxSkb) -> Option<()> {
    let covered = skb.len().checked_sub(ICRC_LEN)?;
    let linear = skb.linear();
    let done = covered.min(linear.len());
    let start = start_icrc(skb, linear.get(..done)?)?;
    let register = skb.crc32(start.register(), done, covered.checked_sub(done)?)?;
    (Icrc::resume(register).finish() == trailer(skb, covered)?).then_some(())
}

/// Returns the ICRC of a packet, which has `covered` bytes before it.
#[inline]
fn trailer(skb: &RxSkb, covered: usize) -> Option<[u8; ICRC_LEN]> {
    let linear = skb.linear().get(covered..);
    if let Some(icrc) = linear.and_then(|tail| tail.first_chunk()) {
        return Some(*icrc);
    }
    let mut icrc = [0; ICRC_LEN];
    skb.copy_to_slice(covered, &mut icrc).ok()?;
    Some(icrc)
}

/// Receives a packet or a burst from the network. Softirq, under RCU.
pub(crate) fn receive(context: &NetContext, skb: RxSkb) {
    if skb.is_from_this_host() {
        return context.drops.discard(skb, Discard::Looped);
    }
    // The packet is moved as little as possible: each move needs room in a stack frame. The QP's
    // packets are sent within this call, so the network stack needs the rest of the kernel stack.
    let mut packet = None;
    RxPacket::decode_into(&mut packet, skb, &context.drops);
    if let Some(qp) = accept(context, &mut packet) {
        Qp::receive(qp.as_arc_borrow(), &mut packet);
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

/// Returns the QP that a packet or a burst is for, if that QP accepts it.
fn find(context: &NetContext, packet: &mut RxPacket) -> Result<Arc<Qp>, Refusal> {
    let (qpn, to) = (packet.packet.bth.dest, packet.endpoints.destination);
    let ingress = packet.skb.ingress();
    // The table's read section (`read_section.rs`), which is not RCU's, ends before the QP runs.
    // Each run is a read section of its own. So a writer that removes an object from a table waits
    // for one run at most.
    let found = context.with_qp(qpn, to, ingress, |qp| {
        admit(qp, ingress, packet, context.burst_icrcs)
    });
    found.unwrap_or(Err(Refusal::Discard(Discard::NoQueuePair)))
}

/// Frees the buffer of a packet that no QP accepts.
#[cold]
#[inline(never)]
fn refuse(context: &NetContext, packet: Option<RxPacket>, refusal: Refusal) {
    let Some(RxPacket { skb, .. }) = packet else {
        return;
    };
    match refusal {
        Refusal::Counted => skb.discard(Discard::NoQueuePair),
        Refusal::Discard(why) => context.drops.discard(skb, why),
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
    burst_icrcs: bool,
) -> Result<Arc<Qp>, Refusal> {
    if !qp.admit(&packet.packet, &packet.endpoints, ingress, None) {
        return Err(Refusal::Counted);
    }
    packet.verify(burst_icrcs).map_err(Refusal::Discard)?;
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
    if let Err(why) = packet.verify(context.burst_icrcs) {
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
        let copy = || match skb.try_clone() {
            Some(copy) => Qp::receive_later(qp.as_arc_borrow(), copy),
            // Memory is short. This member loses the packet.
            None => qp.net.drops.count(Discard::Overflow),
        };
        // The time for copies is limited, since any host can send datagrams to a group. When a CPU
        // has used up its softirq time, it makes a limited number of copies for each user.
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

/// Returns the token bucket of the QP's user, which limits the copies that a CPU makes while its
/// softirq time is used up. All QPs of in-kernel consumers have the same bucket.
fn copy_bucket(qp: &Qp) -> CopyBucket {
    CopyBucket::of(qp.payer().map_or(0, Payer::user_number))
}
