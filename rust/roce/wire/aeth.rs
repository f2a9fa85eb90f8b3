// SPDX-License-Identifier: GPL-2.0

//! The syndrome byte of the AETH, and the encoding of RNR timers.

use super::packet::{Aeth, NakCode, Syndrome};
use crate::time::Duration;

/// The credit code that means "no end-to-end flow control" (IBTA 1.x §9.7.7.2).
pub const UNLIMITED_CREDITS: u8 = 31;

/// Mask of the kind of a syndrome: bits 6–5, and bit 7, which is reserved and sent as zero.
const KIND: u8 = 0xe0;
const KIND_ACK: u8 = 0x00;
const KIND_RNR_NAK: u8 = 0x20;
const KIND_NAK: u8 = 0x60;

/// Mask of the low five bits: credits, timer or code.
const VALUE: u8 = 0x1f;

impl NakCode {
    /// Returns the code on the wire.
    const fn to_wire(self) -> u8 {
        match self {
            Self::PsnSequence => 0,
            Self::InvalidRequest => 1,
            Self::RemoteAccess => 2,
            Self::RemoteOperational => 3,
            Self::InvalidRdRequest => 4,
        }
    }

    /// Decodes a code from the wire. Returns `None` for the reserved values.
    const fn from_wire(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::PsnSequence),
            1 => Some(Self::InvalidRequest),
            2 => Some(Self::RemoteAccess),
            3 => Some(Self::RemoteOperational),
            4 => Some(Self::InvalidRdRequest),
            _ => None,
        }
    }
}

impl Syndrome {
    /// Returns the byte on the wire (§9.7.5.2). Only the low five bits of the values are used.
    pub const fn to_wire(self) -> u8 {
        match self {
            Self::Ack { credits } => KIND_ACK | (credits & VALUE),
            Self::RnrNak { timer } => KIND_RNR_NAK | (timer & VALUE),
            Self::Nak(code) => KIND_NAK | code.to_wire(),
        }
    }

    /// Decodes a byte from the wire. Returns `None` for the reserved values.
    pub const fn from_wire(byte: u8) -> Option<Self> {
        let value = byte & VALUE;
        match byte & KIND {
            KIND_ACK => Some(Self::Ack { credits: value }),
            KIND_RNR_NAK => Some(Self::RnrNak { timer: value }),
            KIND_NAK => match NakCode::from_wire(value) {
                Some(code) => Some(Self::Nak(code)),
                None => None,
            },
            _ => None,
        }
    }
}

impl Aeth {
    /// Encodes the header: the syndrome byte, and the MSN as a big-endian 24-bit number.
    pub(super) const fn to_wire(self) -> [u8; 4] {
        let [_, high, mid, low] = self.msn.to_be_bytes();
        [self.syndrome.to_wire(), high, mid, low]
    }

    /// Decodes the header. Returns `None` if the syndrome is reserved.
    pub(super) const fn from_wire([syndrome, high, mid, low]: [u8; 4]) -> Option<Self> {
        match Syndrome::from_wire(syndrome) {
            Some(syndrome) => Some(Self {
                syndrome,
                msn: u32::from_be_bytes([0, high, mid, low]),
            }),
            None => None,
        }
    }
}

/// The delays of the RNR timer codes in units of 10 µs: 1 for code 1, and from code 2 on doubled
/// every second code. Code 0 means 65,536 units, which a `u16` can't hold.
const SCALE: [u16; 32] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// Returns the wait that an RNR NAK with this timer code requests (IBTA 1.x §9.7.5.2.8, table 45):
/// 10 µs for code 1 up to 491.52 ms for code 31, and 655.36 ms for code 0. Bits above the low five
/// are ignored.
pub fn rnr_delay(timer: u8) -> Duration {
    /// The unit of [`SCALE`] in nanoseconds.
    const STEP: u64 = 10_000;

    let steps = match SCALE.get(usize::from(timer & VALUE)) {
        None | Some(0) => 65_536,
        Some(&steps) => u64::from(steps),
    };
    Duration(steps.saturating_mul(STEP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syndrome_bytes_are_those_of_the_specification() {
        let cases = [
            (0x00, Some(Syndrome::Ack { credits: 0 })),
            (0x1f, Some(Syndrome::Ack { credits: 31 })),
            (0x20, Some(Syndrome::RnrNak { timer: 0 })),
            (0x2c, Some(Syndrome::RnrNak { timer: 12 })),
            (0x3f, Some(Syndrome::RnrNak { timer: 31 })),
            (0x60, Some(Syndrome::Nak(NakCode::PsnSequence))),
            (0x61, Some(Syndrome::Nak(NakCode::InvalidRequest))),
            (0x62, Some(Syndrome::Nak(NakCode::RemoteAccess))),
            (0x63, Some(Syndrome::Nak(NakCode::RemoteOperational))),
            (0x64, Some(Syndrome::Nak(NakCode::InvalidRdRequest))),
            (0x65, None),
            (0x7f, None),
            (0x40, None),
            (0x80, None),
            (0xff, None),
        ];
        for (byte, syndrome) in cases {
            assert_eq!(Syndrome::from_wire(byte), syndrome, "{byte:#x}");
        }
        let defined = (0..=255).filter_map(|byte| Some((byte, Syndrome::from_wire(byte)?)));
        assert!(defined
            .clone()
            .all(|(byte, syndrome)| syndrome.to_wire() == byte));
        assert_eq!(defined.count(), 32 + 32 + 5);
    }

    /// Values from IBTA 1.x table 45, in milliseconds.
    #[test]
    fn rnr_delays_are_those_of_the_specification() {
        let cases = [
            (0, 655.36),
            (1, 0.01),
            (4, 0.04),
            (5, 0.06),
            (11, 0.48),
            (12, 0.64),
            (14, 1.28),
            (18, 5.12),
            (23, 30.72),
            (27, 122.88),
            (31, 491.52),
            (32, 655.36),
        ];
        for (timer, milliseconds) in cases {
            let nanoseconds = (milliseconds * 1e6_f64).round() as u64;
            assert_eq!(rnr_delay(timer), Duration(nanoseconds), "code {timer}");
        }
    }
}
