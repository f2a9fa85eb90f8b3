// SPDX-License-Identifier: GPL-2.0

//! Tests of the packet codec and the ICRC with datagrams of other implementations: scapy, C
//! rdma_rxe and hardware. The head of each vector file names its source, and `reading.py` describes
//! the format.

use std::collections::BTreeMap;

use roce::ids::{Imm, Rkey};
use roce::wire::icrc::{Icrc, IPV4_LEN, IPV6_LEN, UDP_LEN};
use roce::wire::packet::{
    Aeth, AtomicEth, Body, Packet, ReadPart, Reth, SendPart, Service, WritePart,
};
use roce::wire::{decode, BTH_LEN, ICRC_LEN};
use roce::wr::{AtomicOp, SendExtra};

/// CRC-32, computed bit by bit after its definition.
fn crc32(register: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(register, |register, byte| {
        (0..8).fold(register ^ u32::from(*byte), |register, _| {
            let carry = register & 1 != 0;
            (register >> 1) ^ if carry { 0xedb8_8320 } else { 0 }
        })
    })
}

const FLUSH: u8 = 0x1c;

type Fields = BTreeMap<String, u64>;

struct Vector {
    name: String,
    datagram: Vec<u8>,
    fields: Fields,
}

fn parse(text: &str) -> Vec<Vector> {
    let mut vectors: Vec<Vector> = Vec::new();
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    for line in lines {
        let (key, value) = line.split_once(' ').expect("a key and a value");
        if key == "packet" {
            vectors.push(Vector {
                name: value.to_owned(),
                datagram: Vec::new(),
                fields: Fields::new(),
            });
            continue;
        }
        let vector = vectors.last_mut().expect("a packet line first");
        if key == "datagram" {
            vector.datagram = hex(value);
        } else {
            let number = value.strip_prefix("0x").expect("hexadecimal");
            let number = u64::from_str_radix(number, 16).expect("hexadecimal");
            vector.fields.insert(key.to_owned(), number);
        }
    }
    vectors
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2)
        .map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("hexadecimal"))
        .collect()
}

/// Returns the length of the IP header, and the datagram from the BTH on.
fn split(datagram: &[u8]) -> (usize, &[u8]) {
    let ip_len = match datagram[0] >> 4 {
        4 => IPV4_LEN,
        6 => IPV6_LEN,
        version => panic!("IP version {version}"),
    };
    let udp_len = u16::from_be_bytes([datagram[ip_len + 4], datagram[ip_len + 5]]);
    assert_eq!(usize::from(udp_len), datagram.len() - ip_len, "UDP length");
    (ip_len, &datagram[ip_len + UDP_LEN..])
}

/// Computes the ICRC of a datagram, with the bytes behind the BTH in pieces of `piece_len` bytes,
/// and with the bytes `extra` behind them.
fn icrc(datagram: &[u8], piece_len: usize, extra: &[u8]) -> [u8; ICRC_LEN] {
    let (ip_len, transport) = split(datagram);
    let udp = datagram[ip_len..ip_len + UDP_LEN]
        .try_into()
        .expect("8 bytes");
    let (bth, rest) = transport.split_first_chunk::<BTH_LEN>().expect("a BTH");
    let mut runs = rest[..rest.len() - ICRC_LEN].chunks(piece_len);
    let next = runs.next().unwrap_or_default();
    let mut icrc = match ip_len {
        IPV4_LEN => {
            let ip = datagram[..ip_len].try_into().expect("20");
            Icrc::start_v4(crc32, ip, udp, bth, next)
        }
        _ => {
            let ip = datagram[..ip_len].try_into().expect("40");
            Icrc::start_v6(crc32, ip, udp, bth, next)
        }
    };
    for run in runs {
        icrc.update(crc32, run);
    }
    icrc.update(crc32, extra);
    icrc.finish()
}

/// The bytes that `rdma_rxe` (Linux 7.2) includes in the ICRC of a FLUSH a second time: it takes
/// the headers of a FLUSH for payload as well. Other implementations must drop such a packet,
/// because its ICRC is wrong.
fn bytes_in_icrc_twice<'a>(source: &str, transport: &'a [u8]) -> &'a [u8] {
    match (source, transport[0]) {
        ("rdma_rxe", FLUSH) => &transport[..transport.len() - ICRC_LEN],
        _ => &[],
    }
}

/// The fields of a decoded packet under Wireshark's names.
fn fields(packet: &Packet) -> Fields {
    let mut fields = Fields::new();
    let mut field = |name: &str, value: u64| {
        assert!(
            fields.insert(name.to_owned(), value).is_none(),
            "{name} twice"
        );
    };
    let bth = &packet.bth;
    field("bth.opcode", packet.encode()[0].into());
    field("bth.se", bth.solicited.into());
    field("bth.m", bth.mig_req.into());
    field("bth.padcnt", packet.pad().into());
    field("bth.p_key", bth.pkey.0.into());
    field("bth.destqp", bth.dest.get().into());
    field("bth.a", bth.ack_req.into());
    field("bth.psn", bth.psn.get().into());
    match packet.service {
        Service::Rc | Service::Uc | Service::Xrc(None) => {}
        Service::Ud(deth) => {
            field("deth.q_key", deth.qkey.0.into());
            field("deth.srcqp", deth.src.get().into());
        }
        Service::Xrc(Some(srq)) => field("xrceth.xrcsrq", srq.get().into()),
    }
    body_fields(&packet.body, &mut field);
    fields
}

fn body_fields(body: &Body, field: &mut dyn FnMut(&str, u64)) {
    match body {
        Body::Send(SendPart::First | SendPart::Middle) | Body::Cnp => {}
        Body::Send(SendPart::Last(tail) | SendPart::Only(tail)) => match tail {
            SendExtra::Plain => {}
            SendExtra::Imm(Imm(imm)) => field("immdt", (*imm).into()),
            SendExtra::Invalidate(Rkey(rkey)) => field("ieth", (*rkey).into()),
        },
        Body::Write(part) => write_fields(part, field),
        Body::ReadRequest(reth) | Body::AtomicWrite(reth) => reth_fields(reth, field),
        Body::ReadResponse(ReadPart::Middle) => {}
        Body::ReadResponse(ReadPart::First(aeth) | ReadPart::Last(aeth) | ReadPart::Only(aeth))
        | Body::Ack(aeth) => aeth_fields(aeth, field),
        Body::AtomicAck(aeth, original) => {
            aeth_fields(aeth, field);
            field("atomicacketh.origremdt", *original);
        }
        Body::Atomic(eth) => atomic_fields(eth, field),
        Body::Flush(kind, reth) => {
            field("feth.plt", kind.placement.into());
            field("feth.sel", kind.selectivity.into());
            reth_fields(reth, field);
        }
    }
}

fn write_fields(part: &WritePart, field: &mut dyn FnMut(&str, u64)) {
    match part {
        WritePart::Middle | WritePart::Last(None) => {}
        WritePart::First(reth) | WritePart::Only(reth, None) => reth_fields(reth, field),
        WritePart::Last(Some(Imm(imm))) => field("immdt", (*imm).into()),
        WritePart::Only(reth, Some(Imm(imm))) => {
            reth_fields(reth, field);
            field("immdt", (*imm).into());
        }
    }
}

fn reth_fields(reth: &Reth, field: &mut dyn FnMut(&str, u64)) {
    field("reth.va", reth.va);
    field("reth.r_key", reth.rkey.0.into());
    field("reth.dmalen", reth.length.into());
}

fn aeth_fields(aeth: &Aeth, field: &mut dyn FnMut(&str, u64)) {
    field("aeth.syndrome", aeth.syndrome.to_wire().into());
    field("aeth.msn", aeth.msn.into());
}

fn atomic_fields(eth: &AtomicEth, field: &mut dyn FnMut(&str, u64)) {
    let (swap_or_add, compare) = match eth.op {
        AtomicOp::CompareSwap { compare, swap } => (swap, compare),
        AtomicOp::FetchAdd { add } => (add, 0),
    };
    field("reth.va", eth.va);
    field("reth.r_key", eth.rkey.0.into());
    field("atomiceth.swapdt", swap_or_add);
    field("atomiceth.cmpdt", compare);
}

/// Checks each vector of a file: the ICRC, the decoded fields, the encoded headers and the pad.
/// Returns the opcodes of the file, each once.
fn check(source: &str, text: &str) -> Vec<u8> {
    let mut opcodes = Vec::new();
    for mut vector in parse(text) {
        let name = &vector.name;
        let (_, transport) = split(&vector.datagram);
        let end = transport.len() - ICRC_LEN;
        let stored = &transport[end..];
        let extra = bytes_in_icrc_twice(source, transport);
        for piece_len in [usize::MAX, 7] {
            let computed = icrc(&vector.datagram, piece_len, extra);
            assert_eq!(computed, stored, "{name}: ICRC in pieces of {piece_len}");
        }
        vector.fields.remove("invariant.crc");

        let decoded =
            decode(transport, transport.len()).unwrap_or_else(|e| panic!("{name}: {e:?}"));
        let packet = decoded.packet;
        assert_eq!(fields(&packet), vector.fields, "{name}");
        assert_eq!(
            *packet.encode(),
            transport[..decoded.payload_offset],
            "{name}: encoded again"
        );
        let pad = end - decoded.payload_offset - packet.payload_len as usize;
        assert_eq!(pad, packet.pad() as usize, "{name}: pad");
        opcodes.push(transport[0]);
    }
    opcodes.sort_unstable();
    opcodes.dedup();
    opcodes
}

/// Number of opcodes of RC, UC and UD.
const RC_UC_UD_OPCODES: usize = 25 + 12 + 2;

/// Number of opcodes of the codec: also those of XRC, and CNP.
const ALL_OPCODES: usize = RC_UC_UD_OPCODES + 23 + 1;

#[test]
fn scapy_packets_of_every_opcode() {
    assert_eq!(check("scapy", include_str!("scapy.txt")).len(), ALL_OPCODES);
}

#[test]
fn captured_packets_of_rdma_rxe() {
    assert_eq!(
        check("rdma_rxe", include_str!("rxe.txt")).len(),
        RC_UC_UD_OPCODES
    );
}

#[test]
fn packets_of_hardware() {
    assert_eq!(
        check("hardware", include_str!("hardware.txt")),
        [0x24, 0x81]
    );
}

#[test]
fn a_bit_flipped_in_an_invariant_field_changes_the_icrc() {
    for vector in parse(include_str!("scapy.txt")) {
        let (ip_len, transport) = split(&vector.datagram);
        let stored = &transport[transport.len() - ICRC_LEN..];
        let variant_bytes: &[usize] = match ip_len {
            IPV4_LEN => &[1, 8, 10, 11, 26, 27, 32],
            _ => &[1, 2, 3, 7, 46, 47, 52],
        };
        for at in 0..vector.datagram.len() - ICRC_LEN {
            // Not the byte of the IP version and those of the UDP length, because this test's own
            // parser needs them.
            if at == 0 || at == ip_len + 4 || at == ip_len + 5 {
                continue;
            }
            let mut changed = vector.datagram.clone();
            changed[at] ^= 1;
            let same = icrc(&changed, usize::MAX, &[]) == stored;
            assert_eq!(
                same,
                variant_bytes.contains(&at),
                "{}: byte {at}",
                vector.name
            );
        }
    }
}
