// SPDX-License-Identifier: GPL-2.0

//! The acknowledgement header's syndrome byte, and the two scales encoded in it.

use super::packet::{Aeth, NakCode, Syndrome};
use crate::time::Duration;

/// The credit code that says "no end-to-end flow control" (IBTA 1.x §9.7.7.2).
pub const UNLIMITED_CREDITS: u8 = 31;

/// The kind of a syndrome: bits 6–5. Bit 7 is reserved and sent as zero.
const KIND: u8 = 0xe0;
const KIND_ACK: u8 = 0x00;
const KIND_RNR_NAK: u8 = 0x20;
const KIND_NAK: u8 = 0x60;

/// The low five bits: credits, timer or code.
const VALUE: u8 = 0x1f;

impl NakCode {
    const fn to_wire(self) -> u8 {
        match self {
            Self::PsnSequence => 0,
            Self::InvalidRequest => 1,
            Self::RemoteAccess => 2,
            Self::RemoteOperational => 3,
            Self::InvalidRdRequest => 4,
        }
    }

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
    /// The byte on the wire (§9.7.5.2). Bits of the values beyond the fifth are cut off.
    pub const fn to_wire(self) -> u8 {
        match self {
            Self::Ack { credits } => KIND_ACK | credits & VALUE,
            Self::RnrNak { timer } => KIND_RNR_NAK | timer & VALUE,
            Self::Nak(code) => KIND_NAK | code.to_wire(),
        }
    }

    /// What a byte on the wire says; `None` for the reserved ones.
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
    pub(super) const fn to_wire(self) -> [u8; 4] {
        let [_, high, mid, low] = self.msn.to_be_bytes();
        [self.syndrome.to_wire(), high, mid, low]
    }

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

/// The scale that both credits and RNR timers count on: 1, then doubling every second step.
const SCALE: [u16; 32] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// How long an RNR NAK with this timer code asks to wait (IBTA 1.x §9.7.5.2.8, table 45):
/// 10 µs for code 1 up to 491.52 ms for code 31, and 655.36 ms for code 0. Bits beyond the fifth
/// are ignored.
pub fn rnr_delay(timer: u8) -> Duration {
    /// One step of the scale in nanoseconds.
    const STEP: u64 = 10_000;

    let steps = match SCALE.get(usize::from(timer & VALUE)) {
        None | Some(0) => 65_536,
        Some(&steps) => u64::from(steps),
    };
    Duration(steps.saturating_mul(STEP))
}

/// The code for a count of posted receives: the largest one that promises no more than there are.
pub fn encode_credits(receives: u32) -> u8 {
    (0..UNLIMITED_CREDITS)
        .zip(SCALE)
        .take_while(|(_, count)| u32::from(*count) <= receives)
        .last()
        .map_or(0, |(code, _)| code)
}

/// How many messages a credit code allows; `None` means any number. Bits beyond the fifth are
/// ignored.
pub fn decode_credits(code: u8) -> Option<u32> {
    match code & VALUE {
        UNLIMITED_CREDITS => None,
        code => SCALE.get(usize::from(code)).map(|count| u32::from(*count)),
    }
}
