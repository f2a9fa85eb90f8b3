// SPDX-License-Identifier: GPL-2.0

//! Datagrams: each packet is encoded with its ICRC when it is sent, and decoded when it arrives.

use roce::wire::icrc::Icrc;
use roce::wire::packet::Packet;
use roce::wire::{decode, BTH_LEN, ICRC_LEN};

/// The headers before the BTH. All packets of the simulation have the same.
const IP: [u8; 20] = [
    0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
];
const UDP: [u8; 8] = [0xc0, 0, 0x12, 0xb7, 0, 0, 0, 0];

/// Tables with which the CRC of eight bytes is computed at once.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & 0u32.wrapping_sub(crc & 1));
            bit += 1;
        }
        tables[0][i] = crc;
        i += 1;
    }
    let mut level = 1;
    while level < 8 {
        let mut i = 0;
        while i < 256 {
            let below = tables[level - 1][i];
            tables[level][i] = (below >> 8) ^ tables[0][(below & 0xff) as usize];
            i += 1;
        }
        level += 1;
    }
    tables
}

fn crc32(mut crc: u32, bytes: &[u8]) -> u32 {
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let low = crc ^ u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
        let mut next = 0;
        for (i, byte) in low.to_le_bytes().into_iter().enumerate() {
            next ^= TABLES[7 - i][usize::from(byte)];
        }
        for (i, byte) in chunk[4..].iter().enumerate() {
            next ^= TABLES[3 - i][usize::from(*byte)];
        }
        crc = next;
    }
    for byte in chunks.remainder() {
        crc = (crc >> 8) ^ TABLES[0][usize::from(crc as u8 ^ byte)];
    }
    crc
}

fn icrc(datagram: &[u8]) -> Option<[u8; ICRC_LEN]> {
    let (bth, rest) = datagram.split_first_chunk::<BTH_LEN>()?;
    Some(Icrc::start_v4(crc32, &IP, &UDP, bth, rest).finish())
}

/// Builds the datagram of a packet, from the BTH to the ICRC.
pub(crate) fn seal(packet: &Packet, payload: &[u8]) -> Vec<u8> {
    let header = packet.encode();
    let mut datagram = Vec::with_capacity(header.len() + payload.len() + 8);
    datagram.extend_from_slice(&header);
    datagram.extend_from_slice(payload);
    datagram.resize(datagram.len() + packet.pad() as usize, 0);
    if let Some(icrc) = icrc(&datagram) {
        datagram.extend_from_slice(&icrc);
    }
    datagram
}

/// Decodes a datagram. Returns `None` if its ICRC or headers are wrong.
pub(crate) fn open(datagram: &[u8]) -> Option<(Packet, &[u8])> {
    let (body, sealed) = datagram.split_last_chunk::<ICRC_LEN>()?;
    if icrc(body)? != *sealed {
        return None;
    }
    let decoded = decode(datagram, datagram.len()).ok()?;
    let end = decoded.payload_offset + decoded.packet.payload_len as usize;
    Some((decoded.packet, datagram.get(decoded.payload_offset..end)?))
}
