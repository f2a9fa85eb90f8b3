// SPDX-License-Identifier: GPL-2.0

//! Trains: consecutive packets of one message that are described, sent, received and acknowledged
//! as one.
//!
//! A train exists within a machine only, where it saves the work per packet. In a network its
//! packets travel one by one. A train has the same effects as its packets one after another. A
//! receiver that can't process a train as a whole processes its packets one by one.

use crate::mtu::Mtu;
use crate::wire::packet::{Body, Packet, ReadPart, SendPart, WritePart};

/// Consecutive packets of one SEND, RDMA WRITE or READ response, or a single packet of any type.
///
/// # Invariants
///
/// `count` is at least 1. All packets but the last one of the message are full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Train {
    /// All packets as one: the PSN of the first packet, the acknowledgment request and the
    /// solicited event of the last one, and the payload of all. Its place in the message (first,
    /// middle, last or only) is that of the train. So a train of a whole message has the place
    /// "only".
    pub packet: Packet,
    /// Number of packets, and of their PSNs. A READ request counts as one packet, though its
    /// responses take more PSNs.
    pub count: u32,
    /// Path MTU of the sender: the payload length of each packet but the last.
    pub mtu: Mtu,
}

impl Train {
    /// Returns the train of `count` packets that `packet` describes as one. The payload length and
    /// `count` determine the path MTU. Returns `None` if no path MTU fits them, if `count` is 1, or
    /// if `packet` is no SEND, RDMA WRITE or READ response.
    pub fn of(packet: Packet, count: u32) -> Option<Self> {
        let is_transfer = matches!(
            packet.body,
            Body::Send(_) | Body::Write(_) | Body::ReadResponse(_)
        );
        let mtu = Mtu::of_packets(packet.payload_len, count)?;
        (is_transfer && count > 1).then_some(Self { packet, count, mtu })
    }

    /// Returns packet `index` of the train, and the offset of its payload in that of the train, in
    /// bytes.
    pub fn packet(&self, index: u32) -> (Packet, u32) {
        if self.count <= 1 {
            return (self.packet, 0);
        }
        let first = index == 0;
        let last = index.wrapping_add(1) >= self.count;
        let offset = index.saturating_mul(self.mtu.bytes());
        let left = self.packet.payload_len.saturating_sub(offset);
        let mut packet = self.packet;
        packet.payload_len = left.min(self.mtu.bytes());
        packet.bth.psn = packet.bth.psn.plus(index);
        packet.bth.ack_req &= last;
        packet.bth.solicited &= last;
        packet.body = match packet.body {
            Body::Send(part) => Body::Send(send_part(part, first, last)),
            Body::Write(part) => Body::Write(write_part(part, first, last)),
            Body::ReadResponse(part) => Body::ReadResponse(read_part(part, first, last)),
            body => body,
        };
        (packet, offset)
    }

    /// Returns the train without its first `count` packets, and the offset of its payload in that
    /// of `self`. Returns `None` if no packet is left.
    pub fn skip(&self, count: u32) -> Option<(Self, u32)> {
        let left = self.count.checked_sub(count).filter(|left| *left != 0)?;
        if count == 0 {
            return Some((*self, 0));
        }
        let offset = count.saturating_mul(self.mtu.bytes());
        let mut packet = self.packet;
        packet.payload_len = packet.payload_len.saturating_sub(offset);
        packet.bth.psn = packet.bth.psn.plus(count);
        packet.body = match packet.body {
            Body::Send(part) => Body::Send(send_part(part, false, true)),
            Body::Write(part) => Body::Write(write_part(part, false, true)),
            Body::ReadResponse(part) => Body::ReadResponse(read_part(part, false, true)),
            body => body,
        };
        let rest = Self {
            packet,
            count: left,
            ..*self
        };
        Some((rest, offset))
    }
}

/// Returns the place of a part of a SEND's train. `first` and `last` say whether the part contains
/// the train's first and last packet.
fn send_part(train: SendPart, first: bool, last: bool) -> SendPart {
    let (starts, extra) = match train {
        SendPart::First => (true, None),
        SendPart::Middle => (false, None),
        SendPart::Last(extra) => (false, Some(extra)),
        SendPart::Only(extra) => (true, Some(extra)),
    };
    match (starts && first, extra.filter(|_| last)) {
        (true, None) => SendPart::First,
        (false, None) => SendPart::Middle,
        (false, Some(extra)) => SendPart::Last(extra),
        (true, Some(extra)) => SendPart::Only(extra),
    }
}

/// Returns the place of a part of an RDMA WRITE's train, as [`send_part`] does.
fn write_part(train: WritePart, first: bool, last: bool) -> WritePart {
    let (reth, imm) = match train {
        WritePart::First(reth) => (Some(reth), None),
        WritePart::Middle => (None, None),
        WritePart::Last(imm) => (None, Some(imm)),
        WritePart::Only(reth, imm) => (Some(reth), Some(imm)),
    };
    match (reth.filter(|_| first), imm.filter(|_| last)) {
        (Some(reth), None) => WritePart::First(reth),
        (None, None) => WritePart::Middle,
        (None, Some(imm)) => WritePart::Last(imm),
        (Some(reth), Some(imm)) => WritePart::Only(reth, imm),
    }
}

/// Returns the place of a part of a train of READ responses, as [`send_part`] does. The AETH is
/// that of the train.
fn read_part(train: ReadPart, first: bool, last: bool) -> ReadPart {
    let (starts, ends, aeth) = match train {
        ReadPart::First(aeth) => (true, false, aeth),
        ReadPart::Middle => return ReadPart::Middle,
        ReadPart::Last(aeth) => (false, true, aeth),
        ReadPart::Only(aeth) => (true, true, aeth),
    };
    match (starts && first, ends && last) {
        (true, false) => ReadPart::First(aeth),
        (false, false) => ReadPart::Middle,
        (false, true) => ReadPart::Last(aeth),
        (true, true) => ReadPart::Only(aeth),
    }
}
