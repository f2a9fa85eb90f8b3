// SPDX-License-Identifier: GPL-2.0

//! Tests of the codec: an independent table of the specification's opcodes, and round trips.

use std::vec::Vec;

use proptest::prelude::*;

use super::packet::*;
use super::*;
use crate::ids::{Imm, Pkey, Qkey, Qpn, Rkey, Srqn};
use crate::psn::Psn;
use crate::wr::{AtomicOp, FlushKind, SendExtra};

/// Operation code, bytes of the operation's headers (IBTA 1.x table 38), maximum payload that
/// [`decode`] accepts.
const OPERATIONS: [(u8, usize, usize); 25] = [
    (0x00, 0, 4096),
    (0x01, 0, 4096),
    (0x02, 0, 4096),
    (0x03, 4, 4096),
    (0x04, 0, 4096),
    (0x05, 4, 4096),
    (0x06, 16, 4096),
    (0x07, 0, 4096),
    (0x08, 0, 4096),
    (0x09, 4, 4096),
    (0x0a, 16, 4096),
    (0x0b, 20, 4096),
    (0x0c, 16, 4096),
    (0x0d, 4, 4096),
    (0x0e, 0, 4096),
    (0x0f, 4, 4096),
    (0x10, 4, 4096),
    (0x11, 4, 0),
    (0x12, 12, 0),
    (0x13, 28, 4096),
    (0x14, 28, 4096),
    (0x16, 4, 4096),
    (0x17, 4, 4096),
    (0x1c, 20, 4096),
    (0x1d, 16, 4096),
];

/// Returns the number of header bytes and the maximum payload of an opcode. Returns `None` for a
/// reserved one.
fn expected(opcode: u8) -> Option<(usize, usize)> {
    if opcode == 0x81 {
        return Some((28, 0));
    }
    let operation = opcode & 0x1f;
    let (_, extension, most) = OPERATIONS.into_iter().find(|row| row.0 == operation)?;
    let transport_header = match opcode >> 5 {
        0 => Some(0),
        1 if operation < 0x0c => Some(0),
        3 if operation == 0x04 || operation == 0x05 => Some(8),
        5 if (0x0d..=0x12).contains(&operation) => Some(0),
        5 if operation < 0x18 => Some(4),
        _ => None,
    }?;
    Some((12 + transport_header + extension, most))
}

fn header_bytes(opcode: u8, pad: u8) -> [u8; MAX_HEADER] {
    let mut header = [0; MAX_HEADER];
    header[..12].copy_from_slice(&[opcode, pad << 4, 0xff, 0xff, 0, 1, 2, 3, 0x80, 4, 5, 6]);
    header
}

#[test]
fn every_opcode_pad_and_length_decodes_as_the_specification_says() {
    let mut packets = 0;
    for opcode in 0..=255 {
        for claimed_pad in 0..4 {
            let header = header_bytes(opcode, claimed_pad);
            for length in 0..=4200 {
                let linear = &header[..length.min(MAX_HEADER)];
                let wanted = expected(opcode).and_then(|(headers, most)| {
                    let words = length.checked_sub(headers + 4)?;
                    let payload = words.checked_sub(usize::from(claimed_pad))?;
                    let fits = words % 4 == 0 && payload <= most;
                    fits.then_some((headers, payload))
                });
                let got = decode(linear, length).ok();
                let seen = got.map(|got| (got.payload_offset, got.packet.payload_len as usize));
                assert_eq!(
                    seen, wanted,
                    "opcode {opcode:#x} pad {claimed_pad} length {length}"
                );
                if let Some(got) = got {
                    assert_eq!(&*got.packet.encode(), &header[..got.payload_offset]);
                    packets += 1;
                }
            }
        }
    }
    assert!(packets > 100_000, "only {packets} were accepted");
}

#[test]
fn each_fault_is_dropped_for_its_own_reason() {
    let valid = header_bytes(0x04, 0);
    type Change = fn(&mut [u8; MAX_HEADER]);
    let cases: [(&str, Change, usize, DropReason); 10] = [
        ("no room for the ICRC", |_| {}, 15, DropReason::TooShort),
        ("empty", |_| {}, 0, DropReason::TooShort),
        (
            "transport version 1",
            |h| h[1] = 1,
            16,
            DropReason::UnknownVersion,
        ),
        (
            "reliable datagram",
            |h| h[0] = 0x44,
            16,
            DropReason::UnknownOpcode,
        ),
        (
            "RESYNC of UD",
            |h| h[0] = 0x15 + 0x60,
            16,
            DropReason::UnknownOpcode,
        ),
        (
            "pad without payload",
            |h| h[1] = 0x10,
            16,
            DropReason::TooShort,
        ),
        (
            "pad byte after an empty payload",
            |h| h[1] = 0x10,
            17,
            DropReason::WrongPad,
        ),
        (
            "acknowledgment with payload",
            |h| h[0] = 0x11,
            24,
            DropReason::WrongLength,
        ),
        (
            "an ICRC where the AETH should be",
            |h| (h[0], h[12]) = (0x11, 0x40),
            16,
            DropReason::TooShort,
        ),
        (
            "reserved syndrome",
            |h| (h[0], h[12]) = (0x11, 0x40),
            20,
            DropReason::UnknownSyndrome,
        ),
    ];
    for (name, change, length, reason) in cases {
        let mut header = valid;
        change(&mut header);
        assert_eq!(decode(&header, length).err(), Some(reason), "{name}");
    }
}

#[test]
fn headers_outside_the_linear_part_are_too_short() {
    let header = header_bytes(0x14, 0);
    assert!(decode(&header[..40], 44).is_ok());
    assert_eq!(decode(&header[..39], 44).err(), Some(DropReason::TooShort));
}

fn bth() -> impl Strategy<Value = Bth> {
    (
        any::<(u32, u32, u16)>(),
        any::<[bool; 3]>(),
        any::<(u32, u32)>(),
    )
        .prop_map(|((dest, psn, pkey), flags, reserved)| {
            let [solicited, ack_req, mig_req] = flags;
            Bth {
                dest: Qpn::new(dest),
                psn: Psn::new(psn),
                pkey: Pkey(pkey),
                solicited,
                ack_req,
                mig_req,
                reserved: Reserved::decode(reserved.0, reserved.1),
            }
        })
}

fn reth() -> impl Strategy<Value = Reth> {
    (any::<(u64, u32)>(), 0..=MAX_MESSAGE).prop_map(|((va, rkey), length)| Reth {
        va,
        rkey: Rkey(rkey),
        length,
    })
}

fn aeth() -> BoxedStrategy<Aeth> {
    let syndrome = prop_oneof![
        (0..32u8).prop_map(|credits| Syndrome::Ack { credits }),
        (0..32u8).prop_map(|timer| Syndrome::RnrNak { timer }),
        prop_oneof![
            Just(NakCode::PsnSequence),
            Just(NakCode::InvalidRequest),
            Just(NakCode::RemoteAccess),
            Just(NakCode::RemoteOperational),
            Just(NakCode::InvalidRdRequest),
        ]
        .prop_map(Syndrome::Nak),
    ];
    (syndrome, 0..1u32 << 24)
        .prop_map(|(syndrome, msn)| Aeth { syndrome, msn })
        .boxed()
}

fn imm() -> impl Strategy<Value = Imm> {
    any::<u32>().prop_map(Imm)
}

fn extra() -> BoxedStrategy<SendExtra> {
    prop_oneof![
        Just(SendExtra::Plain),
        imm().prop_map(SendExtra::Imm),
        any::<u32>().prop_map(|key| SendExtra::Invalidate(Rkey(key))),
    ]
    .boxed()
}

/// Generates a packet that UC allows.
fn connected_body() -> BoxedStrategy<(Body, u32)> {
    let plain_extra = prop_oneof![Just(SendExtra::Plain), imm().prop_map(SendExtra::Imm)];
    let some = prop_oneof![
        Just(Body::Send(SendPart::First)),
        Just(Body::Send(SendPart::Middle)),
        plain_extra
            .clone()
            .prop_map(|extra| Body::Send(SendPart::Last(extra))),
        reth().prop_map(|reth| Body::Write(WritePart::First(reth))),
        Just(Body::Write(WritePart::Middle)),
        proptest::option::of(imm()).prop_map(|imm| Body::Write(WritePart::Last(imm))),
    ];
    let any = prop_oneof![
        plain_extra.prop_map(|extra| Body::Send(SendPart::Only(extra))),
        (reth(), proptest::option::of(imm()))
            .prop_map(|(reth, imm)| Body::Write(WritePart::Only(reth, imm))),
    ];
    prop_oneof![(some, 1..=MAX_PAYLOAD), (any, 0..=MAX_PAYLOAD)].boxed()
}

/// Generates a packet that both RC and XRC allow.
fn reliable_body() -> BoxedStrategy<(Body, u32)> {
    let some = prop_oneof![
        extra().prop_map(|extra| Body::Send(SendPart::Last(extra))),
        aeth().prop_map(|aeth| Body::ReadResponse(ReadPart::First(aeth))),
        Just(Body::ReadResponse(ReadPart::Middle)),
        aeth().prop_map(|aeth| Body::ReadResponse(ReadPart::Last(aeth))),
    ];
    let any_length = prop_oneof![
        extra().prop_map(|extra| Body::Send(SendPart::Only(extra))),
        aeth().prop_map(|aeth| Body::ReadResponse(ReadPart::Only(aeth))),
    ];
    let op = prop_oneof![
        any::<(u64, u64)>().prop_map(|(compare, swap)| AtomicOp::CompareSwap { compare, swap }),
        any::<u64>().prop_map(|add| AtomicOp::FetchAdd { add }),
    ];
    let none = prop_oneof![
        reth().prop_map(Body::ReadRequest),
        aeth().prop_map(Body::Ack),
        (aeth(), any::<u64>()).prop_map(|(aeth, original)| Body::AtomicAck(aeth, original)),
        (any::<(u64, u32)>(), op).prop_map(|((va, rkey), op)| Body::Atomic(AtomicEth {
            va,
            rkey: Rkey(rkey),
            op,
        })),
    ];
    prop_oneof![
        connected_body(),
        (some, 1..=MAX_PAYLOAD),
        (any_length, 0..=MAX_PAYLOAD),
        (none, Just(0)),
    ]
    .boxed()
}

/// Generates a packet that RC allows.
fn rc_body() -> BoxedStrategy<(Body, u32)> {
    let flush = (0..16u8, 0..4u8, reth()).prop_map(|(placement, selectivity, reth)| {
        let kind = FlushKind {
            placement,
            selectivity,
        };
        (Body::Flush(kind, reth), 0)
    });
    prop_oneof![
        3 => reliable_body(),
        1 => flush,
        1 => reth().prop_map(|reth| (Body::AtomicWrite(reth), 8)),
        1 => Just((Body::Cnp, 0)),
    ]
    .boxed()
}

fn xrc() -> BoxedStrategy<(Service, (Body, u32))> {
    (0..1u32 << 24, reliable_body())
        .prop_map(|(srq, body)| {
            let answers = matches!(
                body.0,
                Body::ReadResponse(_) | Body::Ack(_) | Body::AtomicAck(..)
            );
            (Service::Xrc((!answers).then_some(Srqn::new(srq))), body)
        })
        .boxed()
}

fn ud() -> BoxedStrategy<(Service, (Body, u32))> {
    let body = prop_oneof![Just(SendExtra::Plain), imm().prop_map(SendExtra::Imm)]
        .prop_map(|extra| Body::Send(SendPart::Only(extra)));
    (any::<(u32, u32)>(), body, 0..=MAX_PAYLOAD)
        .prop_map(|((qkey, src), body, length)| {
            let deth = Deth {
                qkey: Qkey(qkey),
                src: Qpn::new(src),
            };
            (Service::Ud(deth), (body, length))
        })
        .boxed()
}

fn packet() -> impl Strategy<Value = Packet> {
    let operation = prop_oneof![
        3 => rc_body().prop_map(|body| (Service::Rc, body)),
        1 => connected_body().prop_map(|body| (Service::Uc, body)),
        1 => ud(),
        1 => xrc(),
    ];
    (bth(), operation).prop_map(|(bth, (service, (body, payload_len)))| Packet {
        service,
        bth,
        body,
        payload_len,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn decode_undoes_encode(packet in packet()) {
        let header = packet.encode();
        let length = header.len() + (packet.payload_len + packet.pad()) as usize + ICRC_LEN;
        let decoded = Decoded { packet, payload_offset: header.len() };
        prop_assert_eq!(decode(&header, length), Ok(decoded));
    }

    #[test]
    fn encode_undoes_decode(
        bytes in proptest::collection::vec(any::<u8>(), 0..80),
        more in 0..4200usize,
    ) {
        let mut bytes: Vec<u8> = bytes;
        if let Some(flags) = bytes.get_mut(1) {
            *flags &= 0xf0;
        }
        if let Ok(decoded) = decode(&bytes, bytes.len() + more) {
            let again = decoded.packet.encode();
            let length = decoded.payload_offset + ICRC_LEN
                + (decoded.packet.payload_len + decoded.packet.pad()) as usize;
            prop_assert_eq!(length, bytes.len() + more);
            prop_assert_eq!(decode(&again, length), Ok(decoded));
        }
    }
}
