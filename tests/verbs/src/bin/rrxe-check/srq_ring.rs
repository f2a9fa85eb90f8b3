// SPDX-License-Identifier: GPL-2.0

//! Malformed contents of an SRQ's ring. A process shares the ring with the kernel and can write any
//! bytes to it. The driver must break only the QPs that use the ring.

use std::{fs, ptr, time::Duration};

use rrxe_verbs::sys::*;

use crate::{
    pair::{ensure, Ends, Outcome},
    srq::{errno_of, expect_event, SrqPairs, EINVAL},
    tap::Tap,
};

/// Offset of the producer index in the ring (`struct rxe_queue_buf`, `rdma_user_rxe.h`).
const PRODUCER: usize = 128;
/// Offset of the first WQE in the ring.
const ELEMENTS: usize = 384;
/// Offset of the number of SGEs in a WQE (`struct rxe_recv_wqe`).
const NUM_SGE: usize = 28;

/// Runs all cases.
pub fn run(tap: &mut Tap, ends: &Ends) {
    tap.result(
        "a malformed WQE breaks the QP that takes it",
        malformed(ends),
    );
    tap.result(
        "WQEs of an SRQ that were never written have no SGEs",
        unwritten_wqes(ends),
    );
    tap.result("a producer index out of range breaks an SRQ", broken(ends));
    tap.result(
        "garbage in an SRQ's ring does not affect other SRQs",
        garbage(ends),
    );
}

/// The mapping of a queue's ring.
struct Ring {
    start: *mut u8,
    len: usize,
}

impl Ring {
    /// Calls `make` and returns its result, with the mappings of device files that were added.
    fn added_by<T>(make: impl FnOnce() -> Result<T, String>) -> Result<(T, Vec<Self>), String> {
        let before = Self::mappings()?;
        let made = make()?;
        let added = Self::mappings()?;
        let added = added
            .into_iter()
            .filter(|(start, _)| before.iter().all(|(b, _)| b != start));
        Ok((
            made,
            added
                .map(|(start, len)| Self {
                    start: start as *mut u8,
                    len,
                })
                .collect(),
        ))
    }

    fn mappings() -> Result<Vec<(usize, usize)>, String> {
        let maps = fs::read_to_string("/proc/self/maps").map_err(|why| why.to_string())?;
        let ring = |line: &str| {
            let (range, _) = line
                .split_once(' ')
                .filter(|(_, rest)| rest.contains("/uverbs"))?;
            let (start, end) = range.split_once('-')?;
            let start = usize::from_str_radix(start, 16).ok()?;
            Some((start, usize::from_str_radix(end, 16).ok()? - start))
        };
        Ok(maps.lines().filter_map(ring).collect())
    }

    fn word(&self, at: usize) -> *mut u32 {
        assert!(at % 4 == 0 && at + 4 <= self.len);
        // SAFETY: In bounds of the mapping. The mapping stays, because no case uses the ring after
        // a successful resize of the SRQ.
        unsafe { self.start.add(at).cast() }
    }

    fn get(&self, at: usize) -> u32 {
        // SAFETY: Valid, as `word` checked.
        unsafe { ptr::read_volatile(self.word(at)) }
    }

    fn set(&self, at: usize, word: u32) {
        // SAFETY: Valid, as `word` checked. The provider library expects that the ring's other side
        // changes the ring.
        unsafe { ptr::write_volatile(self.word(at), word) };
    }
}

/// Creates `SrqPairs` and finds the ring of its SRQ among the new mappings, by its index mask.
fn pairs(ends: &Ends) -> Result<(SrqPairs, Ring), String> {
    // No other ring of `SrqPairs` has this index mask.
    const WRS: u32 = 255;
    let (pairs, rings) = Ring::added_by(|| SrqPairs::new(ends, 2, WRS))?;
    let ring = rings.into_iter().find(|ring| ring.get(4) == WRS);
    Ok((pairs, ring.ok_or("the queue's ring isn't mapped")?))
}

fn element(ring: &Ring, slot: usize) -> usize {
    ELEMENTS + (slot << ring.get(0))
}

/// Checks that the sender completes with REM_OP_ERR, which reports the error of the receiver.
fn expect_rem_op_err(pairs: &SrqPairs) -> Outcome {
    let status = pairs.next_send_status()?;
    ensure(status == IBV_WC_REM_OP_ERR, || {
        format!("the sender's status is {status}")
    })
}

fn malformed(ends: &Ends) -> Outcome {
    let (mut pairs, ring) = pairs(ends)?;
    pairs.post(0)?;
    pairs.post(1)?;
    ring.set(element(&ring, 0) + NUM_SGE, 1000);
    pairs.send(0, 0)?;
    let wc = pairs.next_receive()?;
    ensure(
        (wc.status, wc.wr_id, wc.qp_num) == (IBV_WC_LOC_QP_OP_ERR, 0, pairs.b[0].number()),
        || format!("status {} of WR {}", wc.status, wc.wr_id),
    )?;
    expect_rem_op_err(&pairs)?;
    expect_event(&pairs.b[0].pd.context, Some(IBV_EVENT_QP_LAST_WQE_REACHED))?;
    pairs.send(1, 0)?;
    let wc = pairs.next_receive()?;
    pairs.check(&wc)?;
    pairs.expect_sent()
}

fn unwritten_wqes(ends: &Ends) -> Outcome {
    let (mut pairs, ring) = pairs(ends)?;
    ring.set(PRODUCER, 200);
    // A WQE of zeros has no SGE: messages without payload fit, and a message with payload does not.
    for number in [1, 9] {
        pairs.send(0, number)?;
        let wc = pairs.next_receive()?;
        ensure(wc.status == IBV_WC_SUCCESS && wc.byte_len == 0, || {
            format!("status {}", wc.status)
        })?;
        pairs.expect_sent()?;
    }
    pairs.send(0, 0)?;
    let wc = pairs.next_receive()?;
    ensure(wc.status == IBV_WC_LOC_LEN_ERR, || {
        format!("status {}", wc.status)
    })
}

fn broken(ends: &Ends) -> Outcome {
    let (mut pairs, ring) = pairs(ends)?;
    pairs.post(0)?;
    ring.set(PRODUCER, 0x8000_0001);
    pairs.send(0, 0)?;
    expect_rem_op_err(&pairs)?;
    let context = pairs.b[0].pd.context.clone();
    for event in [
        IBV_EVENT_SRQ_ERR,
        IBV_EVENT_QP_FATAL,
        IBV_EVENT_QP_LAST_WQE_REACHED,
    ] {
        expect_event(&context, Some(event))?;
    }
    let errnos = [
        errno_of(&pairs.srq.query().map(|_| ())),
        errno_of(&pairs.srq.arm(0)),
        errno_of(&pairs.srq.resize(300)),
    ];
    ensure(errnos == [EINVAL; 3], || format!("errnos {errnos:?}"))?;
    // The SRQ stays in error after the index was repaired. The other QP gets the error when it
    // needs a receive.
    ring.set(PRODUCER, 1);
    pairs.send(1, 0)?;
    expect_rem_op_err(&pairs)?;
    expect_event(&context, Some(IBV_EVENT_QP_FATAL))
}

fn garbage(ends: &Ends) -> Outcome {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next_random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u32
    };
    let (mut victim, _) = pairs(ends)?;
    for round in 0..10 {
        let (mut pairs, ring) = pairs(ends)?;
        for number in 0..8 {
            for at in (PRODUCER..ELEMENTS + 4096).step_by(4) {
                ring.set(at, next_random());
            }
            if round % 2 == 0 {
                ring.set(PRODUCER, next_random() & 255);
            }
            // The message may fail, because the QP may be in error already. Posting succeeds.
            let _ = pairs.send(number % 2, number);
            std::thread::sleep(Duration::from_millis(1));
        }
        // Resizing may fail, because it moves the garbage. On success the ring is another one.
        let _ = pairs.srq.resize(300);
        victim.post(0)?;
        victim.send(0, round)?;
        let wc = victim.next_receive()?;
        victim.check(&wc)?;
        victim.expect_sent()?;
    }
    Ok(())
}
