// SPDX-License-Identifier: GPL-2.0

//! The kernel's CRC-32 (lib/crc), which uses the CPU's instructions for CRC where it has them.

use kernel::prelude::*;

use crate::bindings;

/// Continues the little-endian CRC-32 `seed` over `bytes` (`crc32_le()`, include/linux/crc32.h).
///
/// Neither `seed` nor the result is inverted. Callable in any context.
#[inline]
pub fn crc32_le(seed: u32, bytes: &[u8]) -> u32 {
    // SAFETY: The slice is valid for reads of its length.
    unsafe { bindings::crc32_le(seed, bytes.as_ptr().cast(), bytes.len()) }
}

/// Does the same as [`crc32_le`] for memory that may change during the call, such as a page of a
/// process.
///
/// # Safety
///
/// `start` must be valid for reads of `len` bytes.
#[inline]
pub(crate) unsafe fn crc32_le_raw(seed: u32, start: *const u8, len: usize) -> u32 {
    // SAFETY: The caller guarantees that `start` is valid for reads of `len` bytes (see
    // `# Safety`). The callee is C code, so a concurrent change of the bytes only changes the sum.
    unsafe { bindings::crc32_le(seed, start.cast(), len) }
}

#[kunit_tests(rrxe_crc32)]
mod tests {
    use super::*;
    use roce::wire::icrc::Icrc;

    /// Computes the CRC bit by bit from the polynomial.
    fn bit_by_bit(mut register: u32, bytes: &[u8]) -> u32 {
        for byte in bytes {
            register ^= u32::from(*byte);
            for _ in 0..8 {
                let carry = if register & 1 != 0 { 0xedb8_8320 } else { 0 };
                register = register >> 1 ^ carry;
            }
        }
        register
    }

    #[test]
    fn is_the_catalogued_crc() {
        assert_eq!(!crc32_le(!0, b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn agrees_with_the_polynomial_at_all_lengths() {
        let mut bytes = [0u8; 300];
        let mut value = 1u8;
        for byte in &mut bytes {
            value = value.wrapping_mul(167).wrapping_add(13);
            *byte = value;
        }
        for len in 0..bytes.len() {
            let part = &bytes[..len];
            assert_eq!(crc32_le(0xdebb_20e3, part), bit_by_bit(0xdebb_20e3, part));
        }
    }

    #[test]
    fn starts_behind_the_local_route_header_where_the_icrc_does() {
        // Eight bytes of ones stand for the local route header (IBTA annex A17 §A17.3.3).
        assert_eq!(crc32_le(!0, &[0xff; 8]), 0xdebb_20e3);
    }

    #[test]
    fn goes_on_piece_by_piece() {
        let bytes = b"the quick brown fox jumps over the lazy dog";
        for cut in 0..bytes.len() {
            let (head, tail) = bytes.split_at(cut);
            assert_eq!(crc32_le(crc32_le(5, head), tail), crc32_le(5, bytes));
        }
    }

    /// Checks the ICRC of the packet `uc-send-only` in tests/vectors/hardware.txt.
    #[test]
    fn makes_the_icrc_of_a_published_packet() {
        let ip = [
            0x45, 0x01, 0x00, 0x40, 0x04, 0x78, 0x40, 0x00, 0x40, 0x11, 0xb4, 0xd5, 0xc0, 0xa8,
            0x00, 0x07, 0xc0, 0xa8, 0x00, 0x07,
        ];
        let udp = [0xc0, 0x00, 0x12, 0xb7, 0x00, 0x2c, 0xac, 0xa2];
        let bth = [
            0x24, 0x60, 0xff, 0xff, 0x00, 0x00, 0x00, 0xd3, 0x00, 0xcf, 0x17, 0x10,
        ];
        let payload = [
            0x46, 0x30, 0x81, 0x8b, 0xe2, 0x89, 0x35, 0xd9, 0x0e, 0x9a, 0x95, 0x50, 0x54, 0x01,
            0xbe, 0x88, 0x5e, 0x50, 0x00, 0x00,
        ];
        let at_once = Icrc::start_v4(crc32_le, &ip, &udp, &bth, &payload);
        let mut in_two = Icrc::start_v4(crc32_le, &ip, &udp, &bth, &[]);
        in_two.update(crc32_le, &payload);
        for icrc in [at_once, in_two] {
            assert_eq!(icrc.finish(), [0x78, 0xf3, 0x53, 0xf3]);
        }
    }
}
