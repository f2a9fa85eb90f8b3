// SPDX-License-Identifier: GPL-2.0

//! Limits for the times in messages of communication management that a peer chooses (IBTA 1.x
//! §12.6).
//!
//! For such a time ib_core keeps a message that waits for a response, and one of the few places for
//! such messages (`cm_alloc_priv_msg()`, cm.c; `mad_is_for_backlog()`, mad.c), or the state of an
//! ended connection (`cm_enter_timewait()`, cm.c). Each time is a number of five bits, `t`, that
//! stands for 4.096 µs · 2^t, so for up to 2.4 hours.

use super::{MadHeader, MAD_HEADER_LEN, MAD_LEN, MRA, REP, REQ};

/// Code for half a second. ib_core repeats a message up to 15 times, each time after the response
/// timeout, so a shorter timeout would let a peer cause a burst of messages.
const HALF_SECOND: u8 = 17;
/// Code for 8 s. ib_core itself requests 4 s, code 20 (`CMA_CM_RESPONSE_TIMEOUT`, cma.c).
const EIGHT_SECONDS: u8 = 21;
/// Code for about a minute, the longest time that ib_core itself requests (`CM_MRA_SETTING`, cm.c).
const MINUTE: u8 = 24;

/// Number of the bits of other fields in the same byte, below the time.
const OTHER_BITS: u32 = 3;
/// Mask of those bits.
const OTHERS: u8 = (1 << OTHER_BITS) - 1;

/// A time in a message: the upper five bits of a byte.
struct Time {
    message: u16,
    /// Offset of the byte after the header of the datagram.
    offset: usize,
    least: u8,
    most: u8,
}

/// All times that are limited, with their ranges.
const TIMES: [Time; 5] = [
    // The response timeout of the end that requests the connection (§12.6.5).
    Time {
        message: REQ,
        offset: 47,
        least: HALF_SECOND,
        most: EIGHT_SECONDS,
    },
    // The ACK timeouts of the two paths in a REQ. 0 means no timeout (§11.6.2).
    Time {
        message: REQ,
        offset: 95,
        least: 0,
        most: MINUTE,
    },
    Time {
        message: REQ,
        offset: 139,
        least: 0,
        most: MINUTE,
    },
    // The ACK delay of the end that accepts the connection (§12.6.8).
    Time {
        message: REP,
        offset: 26,
        least: 0,
        most: MINUTE,
    },
    // The time that the other end needs for its response (§12.6.6).
    Time {
        message: MRA,
        offset: 9,
        least: 0,
        most: MINUTE,
    },
];

/// Limits the times in a REQ, REP or MRA to the ranges of [`TIMES`]. Doesn't change other
/// datagrams.
pub fn limit_times(mad: &mut [u8; MAD_LEN]) {
    let header = mad.first_chunk().and_then(MadHeader::parse);
    let Some(message) = header.and_then(|header| header.cm_message()) else {
        return;
    };
    for time in TIMES.iter().filter(|time| time.message == message) {
        if let Some(byte) = mad.get_mut(MAD_HEADER_LEN.saturating_add(time.offset)) {
            let limited = (*byte >> OTHER_BITS).clamp(time.least, time.most);
            *byte = limited << OTHER_BITS | *byte & OTHERS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{BASE_VERSION, CLASS_CM, METHOD_SEND, RTU},
        *,
    };

    fn mad(message: u16, fill: u8) -> [u8; MAD_LEN] {
        let mut mad = [fill; MAD_LEN];
        mad[..4].copy_from_slice(&[BASE_VERSION, CLASS_CM, 2, METHOD_SEND]);
        mad[16..18].copy_from_slice(&message.to_be_bytes());
        mad
    }

    /// Checks that exactly these bytes change, to these values.
    fn assert_changes(mut mad: [u8; MAD_LEN], changes: &[(usize, u8)]) {
        let mut expected = mad;
        for (index, byte) in changes {
            expected[*index] = *byte;
        }
        limit_times(&mut mad);
        assert_eq!(mad, expected);
    }

    #[test]
    fn the_longest_times_are_shortened() {
        let (eight_seconds, minute) = (21 << 3 | 7, 24 << 3 | 7);
        let in_request = [(71, eight_seconds), (119, minute), (163, minute)];
        assert_changes(mad(REQ, 0xff), &in_request);
        assert_changes(mad(REP, 0xff), &[(50, minute)]);
        assert_changes(mad(MRA, 0xff), &[(33, minute)]);
    }

    #[test]
    fn a_short_response_timeout_becomes_longer() {
        assert_changes(mad(REQ, 0), &[(71, 17 << 3)]);
        assert_changes(mad(REP, 0), &[]);
        assert_changes(mad(MRA, 0), &[]);
    }

    #[test]
    fn usual_times_stay() {
        for byte in [17 << 3, 20 << 3 | 7, 21 << 3 | 2] {
            for message in [REQ, REP, MRA] {
                assert_changes(mad(message, byte), &[]);
            }
        }
    }

    #[test]
    fn other_datagrams_stay() {
        assert_changes(mad(RTU, 0xff), &[]);
        for (index, byte) in [(0, 2), (1, 4), (3, 1)] {
            let mut other = mad(REQ, 0xff);
            other[index] = byte;
            assert_changes(other, &[]);
        }
    }
}
