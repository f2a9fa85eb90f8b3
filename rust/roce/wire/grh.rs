// SPDX-License-Identifier: GPL-2.0

//! What a datagram's receiver finds in place of a global route header (IBTA annex A17 §A17.4.5).

use super::icrc::IPV4_LEN;
use crate::responder::GRH_LEN;

/// What the 40 bytes at the start of a receive buffer hold of an IPv4 datagram: its header in the
/// second half, zeros in the first. An IPv6 header fills all of them as it is.
///
/// The checksum is computed here: a packet that never left its host has none yet, and readers tell
/// the version of IP by it.
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

/// The Internet checksum (RFC 1071) of a header without its checksum field.
fn checksum(start: &[u8; 10], addresses: &[u8; 8]) -> u16 {
    let sum = start
        .chunks_exact(2)
        .chain(addresses.chunks_exact(2))
        .filter_map(|pair| pair.first_chunk())
        .fold(0u32, |sum, pair| {
            sum.wrapping_add(u16::from_be_bytes(*pair).into())
        });
    // Nine words carry at most 8 into the upper half, and that nothing more.
    let folded = (sum & 0xffff).wrapping_add(sum >> 16);
    !((folded & 0xffff).wrapping_add(folded >> 16) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 1071's usual illustration: 192.168.0.1 to 192.168.0.199.
    const HEADER: [u8; 20] = [
        0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00,
        0x01, 0xc0, 0xa8, 0x00, 0xc7,
    ];

    #[test]
    fn the_header_stands_behind_zeros() {
        let grh = from_ipv4(&HEADER);
        assert_eq!(grh[..20], [0; 20]);
        assert_eq!(grh[20..], HEADER);
    }

    #[test]
    fn the_checksum_is_right_whatever_was_there() {
        for garbage in [[0, 0], [0xff, 0xff], [0x12, 0x34]] {
            let mut header = HEADER;
            header[10..12].copy_from_slice(&garbage);
            assert_eq!(from_ipv4(&header)[30..32], [0xb8, 0x61]);
        }
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
