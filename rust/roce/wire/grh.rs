// SPDX-License-Identifier: GPL-2.0

//! The global route header in the receive buffer of a datagram (IBTA annex A17 §A17.4.5).

use super::icrc::IPV4_LEN;

/// Number of bytes at the start of a datagram's receive buffer that hold the global route header.
pub const GRH_LEN: u32 = 40;

/// Returns the 40 bytes at the start of the receive buffer of an IPv4 datagram: 20 zeros, then the
/// IPv4 header. An IPv6 header fills all 40 bytes itself.
///
/// This computes the checksum of the header, since a packet that didn't leave its host has none
/// yet. Readers use the checksum to tell the IP version.
pub fn from_ipv4(header: &[u8; IPV4_LEN]) -> [u8; GRH_LEN as usize] {
    let [start @ .., _, _, s0, s1, s2, s3, d0, d1, d2, d3] = *header;
    let addresses = [s0, s1, s2, s3, d0, d1, d2, d3];
    let [c0, c1] = checksum(&start, &addresses).to_be_bytes();
    let mut grh = [0; GRH_LEN as usize];
    let header = start.into_iter().chain([c0, c1]).chain(addresses);
    for (place, byte) in grh.iter_mut().skip(IPV4_LEN).zip(header) {
        *place = byte;
    }
    grh
}

/// Returns `grh` with the receiver's own address in place of the sender's, and `number` (20 bits)
/// in place of the flow label.
///
/// For IPv4, `number` and the traffic class are in the first half of the 40 bytes. The version in
/// that half stays zero, so that readers take the second half for the header.
pub fn with_stand_in(mut grh: [u8; GRH_LEN as usize], number: u32) -> [u8; GRH_LEN as usize] {
    let [first, second, ..] = grh;
    let type_of_service = grh.get(IPV4_LEN + 1).map_or(0, |byte| *byte);
    // The version, the traffic class, the offsets of source and destination, and the length of an
    // address.
    let (version, class, source, destination, len) = match first >> 4 {
        6 => (6, first << 4 | second >> 4, 8, 24, 16),
        _ => (0, type_of_service, IPV4_LEN + 12, IPV4_LEN + 16, 4),
    };
    let word = version << 28 | u32::from(class) << 20 | number & 0xf_ffff;
    let own = grh.into_iter().skip(destination).take(len);
    let places = source..GRH_LEN as usize;
    let word = (0..4).zip(word.to_be_bytes());
    for (place, byte) in word.chain(places.zip(own)) {
        if let Some(field) = grh.get_mut(place) {
            *field = byte;
        }
    }
    grh
}

/// Computes the Internet checksum (RFC 1071) of an IPv4 header without its checksum field.
fn checksum(start: &[u8; 10], addresses: &[u8; 8]) -> u16 {
    let sum = start
        .chunks_exact(2)
        .chain(addresses.chunks_exact(2))
        .filter_map(|pair| pair.first_chunk())
        .fold(0u32, |sum, pair| {
            sum.wrapping_add(u16::from_be_bytes(*pair).into())
        });
    // The sum of nine words has at most 8 in its upper half. After one addition of that, one carry
    // can remain.
    let folded = (sum & 0xffff).wrapping_add(sum >> 16);
    !((folded & 0xffff).wrapping_add(folded >> 16) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A common example for RFC 1071: a datagram from 192.168.0.1 to 192.168.0.199.
    const HEADER: [u8; 20] = [
        0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00,
        0x01, 0xc0, 0xa8, 0x00, 0xc7,
    ];

    #[test]
    fn the_ipv4_header_follows_zeros() {
        let grh = from_ipv4(&HEADER);
        assert_eq!(grh[..20], [0; 20]);
        assert_eq!(grh[20..], HEADER);
    }

    #[test]
    fn the_checksum_is_computed_anew() {
        for garbage in [[0, 0], [0xff, 0xff], [0x12, 0x34]] {
            let mut header = HEADER;
            header[10..12].copy_from_slice(&garbage);
            assert_eq!(from_ipv4(&header)[30..32], [0xb8, 0x61]);
        }
    }

    #[test]
    fn the_receiver_stands_in_for_a_sender_of_ipv4() {
        let mut header = HEADER;
        header[1] = 0xb8;
        let whole = from_ipv4(&header);
        let grh = with_stand_in(whole, 0x1_2345);
        assert_eq!(grh[..4], [0x0b, 0x81, 0x23, 0x45]);
        assert_eq!(grh[4..32], whole[4..32]);
        assert_eq!(grh[32..], [0xc0, 0xa8, 0x00, 0xc7, 0xc0, 0xa8, 0x00, 0xc7]);
    }

    #[test]
    fn the_receiver_stands_in_for_a_sender_of_ipv6() {
        let mut header = [0x60; 40];
        header[8..24].fill(1);
        header[24..].fill(2);
        header[..4].copy_from_slice(&[0x61, 0x2a, 0xbc, 0xde]);
        let grh = with_stand_in(header, 0xf_ffff);
        assert_eq!(grh[..4], [0x61, 0x2f, 0xff, 0xff]);
        assert_eq!(grh[4..8], header[4..8]);
        assert_eq!(grh[8..], [2; 32]);
    }

    #[test]
    fn carries_are_added_back() {
        let header = [0xff; 20];
        let grh = from_ipv4(&header);
        let words = grh[20..].chunks(2);
        let sum: u32 = words
            .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
            .sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    }
}
