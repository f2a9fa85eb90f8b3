// SPDX-License-Identifier: GPL-2.0

//! Trains: consecutive packets of one message that are described, sent, received and acknowledged
//! as one.
//!
//! A train exists within a host only, where it saves the work per packet. In a network its packets
//! travel one by one, and a host may join those that arrive together ([`Train::join`]). A train has
//! the same effects as its packets one after another. A receiver that can't carry out a train as a
//! whole takes its packets one by one.

use crate::mtu::Mtu;
use crate::wire::packet::{Body, Bth, Packet, ReadPart, SendPart, WritePart};
use crate::wire::Header;

/// Consecutive packets of one SEND, RDMA WRITE or READ response.
///
/// # Invariants
///
/// `count` is at least 1. All packets but the last one of the message are full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Train {
    /// All packets as one: the PSN of the first packet, the acknowledgment request and the
    /// solicited event of the last one, and the payload of all. The place says which ends of the
    /// message the train contains, so the place of a whole message is "only".
    pub packet: Packet,
    /// Number of packets, and of PSNs that they take. A READ request counts as one packet.
    pub count: u32,
    /// Path MTU of the sender: the payload of each packet but the last.
    pub mtu: Mtu,
}

impl Train {
    /// Joins `count` packets, of which `first` is the first and `last` the last one. Returns `None`
    /// unless they are packets of one train. The caller compares those between with
    /// [`Self::packet`].
    pub fn join(first: &Packet, last: &Packet, count: u32) -> Option<Self> {
        // An empty last packet would be a full one at half the MTU.
        let mtu = Mtu::fitting(first.payload_len).filter(|_| last.payload_len != 0)?;
        let full = count.checked_sub(1)?.checked_mul(mtu.bytes())?;
        let bth = Bth {
            ack_req: last.bth.ack_req,
            solicited: last.bth.solicited,
            ..first.bth
        };
        let packet = Packet {
            bth,
            body: join_bodies(first.body, last.body)?,
            payload_len: full.checked_add(last.payload_len)?,
            ..*first
        };
        let train = Self { packet, count, mtu };
        let fits = |index, packet: &Packet| train.packet(index).0 == *packet;
        (count > 1 && fits(0, first) && fits(count.wrapping_sub(1), last)).then_some(train)
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

    /// Returns an iterator over the headers of the packets. The packets between the first and the
    /// last one differ by the PSN only, so their headers are encoded once.
    pub fn headers(&self) -> Headers<'_> {
        Headers {
            train: self,
            index: 0,
            between: None,
        }
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

/// The encoded headers of one packet of a train, and its payload.
#[derive(Clone, Copy, Debug)]
pub struct Encoded {
    /// Headers, from the BTH on.
    pub header: Header,
    /// Offset of the payload in that of the train, in bytes.
    pub offset: u32,
    /// Length of the payload in bytes.
    pub length: u32,
}

/// Iterator over the packets of a train ([`Train::headers`]).
pub struct Headers<'a> {
    train: &'a Train,
    /// Number of packets so far.
    index: u32,
    /// Headers of the last packet that was neither the first nor the last one.
    between: Option<Header>,
}

impl Iterator for Headers<'_> {
    type Item = Encoded;

    fn next(&mut self) -> Option<Encoded> {
        let (train, index) = (self.train, self.index);
        if index >= train.count {
            return None;
        }
        self.index = index.wrapping_add(1);
        let is_between = index != 0 && self.index < train.count;
        if let Some(mut header) = self.between.filter(|_| is_between) {
            header.set_psn(train.packet.bth.psn.plus(index));
            return Some(Encoded {
                header,
                offset: index.saturating_mul(train.mtu.bytes()),
                length: train.mtu.bytes(),
            });
        }
        let (packet, offset) = train.packet(index);
        let header = packet.encode();
        if is_between {
            self.between = Some(header);
        }
        Some(Encoded {
            header,
            offset,
            length: packet.payload_len,
        })
    }
}

/// Returns the place of a train from those of its first and its last packet.
fn join_bodies(first: Body, last: Body) -> Option<Body> {
    Some(match (first, last) {
        (Body::Send(first), Body::Send(last)) => Body::Send(match (first, last) {
            (SendPart::First, SendPart::Last(extra)) => SendPart::Only(extra),
            (SendPart::First, SendPart::Middle) => SendPart::First,
            (SendPart::Middle, last @ (SendPart::Middle | SendPart::Last(_))) => last,
            _ => return None,
        }),
        (Body::Write(first), Body::Write(last)) => Body::Write(match (first, last) {
            (WritePart::First(reth), WritePart::Last(imm)) => WritePart::Only(reth, imm),
            (first @ WritePart::First(_), WritePart::Middle) => first,
            (WritePart::Middle, last @ (WritePart::Middle | WritePart::Last(_))) => last,
            _ => return None,
        }),
        (Body::ReadResponse(first), Body::ReadResponse(last)) => {
            Body::ReadResponse(match (first, last) {
                (ReadPart::First(aeth), ReadPart::Last(_)) => ReadPart::Only(aeth),
                (first @ ReadPart::First(_), ReadPart::Middle) => first,
                (ReadPart::Middle, last @ (ReadPart::Middle | ReadPart::Last(_))) => last,
                _ => return None,
            })
        }
        _ => return None,
    })
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
