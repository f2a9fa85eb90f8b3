// SPDX-License-Identifier: GPL-2.0

//! SEND, WRITE and READ of RC, and SEND and WRITE of UC, over a range of sizes, with the data
//! compared byte by byte; atomics; order of completions; completion events.

use rrxe_verbs::{object::Depth, sys::*};

use crate::{
    pair::{ensure, Ends, Outcome, Pair, Plan, Send},
    tap::Tap,
};

const SIZES: [usize; 12] = [
    0,
    1,
    3,
    64,
    255,
    1023,
    1024,
    1025,
    4096,
    10_000,
    65_539,
    1 << 20,
];

/// Offset of the source in A's region: odd, and 3 bytes before the end of a page.
const SOURCE: usize = 4093;
/// Offset of the target in B's region: odd, as [`SOURCE`].
const TARGET: usize = 2047;

/// Runs the cases of RC.
pub fn run(tap: &mut Tap, ends: &Ends) {
    tap.result("SEND of all sizes", sizes(ends, send));
    tap.result("SEND with immediate of all sizes", sizes(ends, send_imm));
    tap.result("WRITE of all sizes", sizes(ends, write));
    tap.result("WRITE with immediate of all sizes", sizes(ends, write_imm));
    tap.result("READ of all sizes", sizes(ends, read));
    tap.result("SEND, WRITE and READ over MTUs up to 1,024", mtus(ends));
    tap.result("inline SEND and WRITE", inline(ends));
    tap.result("SEND and receive with lists of SGEs", sge_lists(ends));
    tap.result("FETCH_ADD returns the old value and adds", fetch_add(ends));
    tap.result("CMP_SWP swaps only if the values are equal", cmp_swap(ends));
    tap.result("many unsignaled WRITEs, one completion", unsignaled(ends));
    tap.result("mixed operations complete in order", ordered(ends));
    tap.result("completion events, solicited and not", events(ends));
    tap.result(
        "WRITEs in both directions at the same time",
        both_directions(ends),
    );
}

fn sizes(ends: &Ends, transfer: fn(&mut Pair, usize, u64) -> Outcome) -> Outcome {
    sizes_over(ends, Plan::default(), SIZES.len(), transfer)
}

/// UC uses only the first eleven of [`SIZES`], because a receiver loses packets of a long message
/// that arrive too fast.
const UC_SIZES: usize = 11;

/// Runs the cases of UC.
pub fn run_uc(tap: &mut Tap, ends: &Ends) {
    let plan = Plan {
        kind: IBV_QPT_UC,
        ..Plan::default()
    };
    for (name, transfer) in [
        (
            "UC: SEND of all sizes",
            send as fn(&mut Pair, usize, u64) -> Outcome,
        ),
        ("UC: SEND with immediate of all sizes", send_imm),
        ("UC: WRITE of all sizes", write_uc),
        ("UC: WRITE with immediate of all sizes", write_imm),
    ] {
        tap.result(name, sizes_over(ends, plan, UC_SIZES, transfer));
    }
}

/// A WRITE over UC. The completion at A does not say that the data has arrived, so B waits for a
/// SEND that A posts after the WRITE.
pub fn write_uc(pair: &mut Pair, size: usize, seed: u64) -> Outcome {
    let source = pair.a.mr.sge(SOURCE, size);
    pair.a
        .send(Send::new(seed, IBV_WR_RDMA_WRITE, vec![source]).at(&pair.b, TARGET))?;
    pair.a.expect(seed, IBV_WC_SUCCESS)?;
    pair.b.recv(1, 0, 0)?;
    pair.a.send(Send::new(1, IBV_WR_SEND, vec![]))?;
    pair.a.expect(1, IBV_WC_SUCCESS)?;
    pair.b.expect(1, IBV_WC_SUCCESS)?;
    check_target(pair, size, seed)?;
    clear_target(pair, size);
    Ok(())
}

fn sizes_over(
    ends: &Ends,
    plan: Plan,
    count: usize,
    transfer: fn(&mut Pair, usize, u64) -> Outcome,
) -> Outcome {
    each_size(ends, plan, &SIZES[..count], transfer)
}

/// Connects a pair and makes one transfer of each of `sizes`.
pub fn each_size(
    ends: &Ends,
    plan: Plan,
    sizes: &[usize],
    transfer: fn(&mut Pair, usize, u64) -> Outcome,
) -> Outcome {
    let mut pair = Pair::new(ends, plan)?;
    for (round, &size) in sizes.iter().enumerate() {
        let seed = 77 + round as u64;
        pair.a.mr.buffer.fill(SOURCE, size, seed);
        transfer(&mut pair, size, seed).map_err(|e| format!("{size} bytes: {e}"))?;
    }
    Ok(())
}

/// Checks that the target holds the pattern of `seed`, and that the byte before it and the byte
/// after it are untouched.
fn check_target(pair: &Pair, size: usize, seed: u64) -> Outcome {
    let memory = &pair.b.mr.buffer;
    if let Some(at) = memory.mismatch(TARGET, size, seed) {
        return Err(format!("byte {at} is wrong"));
    }
    let neighbours = memory.get(TARGET - 1) | memory.get(TARGET + size);
    ensure(neighbours == 0, || {
        "a byte beside the target was written".into()
    })?;
    Ok(())
}

fn clear_target(pair: &mut Pair, size: usize) {
    for at in TARGET - 1..=TARGET + size {
        pair.b.mr.buffer.set(at, 0);
    }
}

pub fn send(pair: &mut Pair, size: usize, seed: u64) -> Outcome {
    pair.b.recv(seed, TARGET, size)?;
    pair.a.send(Send::new(
        seed,
        IBV_WR_SEND,
        vec![pair.a.mr.sge(SOURCE, size)],
    ))?;
    pair.a.expect(seed, IBV_WC_SUCCESS)?;
    let wc = pair.b.expect(seed, IBV_WC_SUCCESS)?;
    ensure(wc.byte_len as usize == size, || {
        format!("byte_len {}", wc.byte_len)
    })?;
    ensure(wc.opcode == IBV_WC_RECV, || format!("opcode {}", wc.opcode))?;
    ensure(wc.qp_num == pair.b.qp.number(), || "wrong qp_num".into())?;
    check_target(pair, size, seed)?;
    clear_target(pair, size);
    Ok(())
}

fn check_imm(wc: &ibv_wc, size: usize, imm: u32, opcode: ibv_wc_opcode) -> Outcome {
    // SAFETY: Every bit pattern is valid immediate data.
    let got = u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data });
    ensure(wc.wc_flags & IBV_WC_WITH_IMM != 0 && got == imm, || {
        format!("immediate {got:#x}")
    })?;
    ensure(wc.byte_len as usize == size, || {
        format!("byte_len {}", wc.byte_len)
    })?;
    ensure(wc.opcode == opcode, || format!("opcode {}", wc.opcode))
}

pub fn send_imm(pair: &mut Pair, size: usize, seed: u64) -> Outcome {
    pair.b.recv(seed, TARGET, size)?;
    let mut request = Send::new(
        seed,
        IBV_WR_SEND_WITH_IMM,
        vec![pair.a.mr.sge(SOURCE, size)],
    );
    request.imm = 0x1234_5678;
    pair.a.send(request)?;
    pair.a.expect(seed, IBV_WC_SUCCESS)?;
    let wc = pair.b.expect(seed, IBV_WC_SUCCESS)?;
    check_imm(&wc, size, 0x1234_5678, IBV_WC_RECV)?;
    check_target(pair, size, seed)?;
    clear_target(pair, size);
    Ok(())
}

pub fn write(pair: &mut Pair, size: usize, seed: u64) -> Outcome {
    let source = pair.a.mr.sge(SOURCE, size);
    pair.a
        .send(Send::new(seed, IBV_WR_RDMA_WRITE, vec![source]).at(&pair.b, TARGET))?;
    pair.a.expect(seed, IBV_WC_SUCCESS)?;
    check_target(pair, size, seed)?;
    clear_target(pair, size);
    Ok(())
}

pub fn write_imm(pair: &mut Pair, size: usize, seed: u64) -> Outcome {
    pair.b.recv(seed, 0, 0)?;
    let source = pair.a.mr.sge(SOURCE, size);
    let mut request = Send::new(seed, IBV_WR_RDMA_WRITE_WITH_IMM, vec![source]).at(&pair.b, TARGET);
    request.imm = 0xfeed_0001;
    pair.a.send(request)?;
    pair.a.expect(seed, IBV_WC_SUCCESS)?;
    let wc = pair.b.expect(seed, IBV_WC_SUCCESS)?;
    check_imm(&wc, size, 0xfeed_0001, IBV_WC_RECV_RDMA_WITH_IMM)?;
    check_target(pair, size, seed)?;
    clear_target(pair, size);
    Ok(())
}

/// A READ by B of A's memory, so that the same ranges as for a WRITE by A are compared.
pub fn read(pair: &mut Pair, size: usize, seed: u64) -> Outcome {
    let target = pair.b.mr.sge(TARGET, size);
    pair.b
        .send(Send::new(seed, IBV_WR_RDMA_READ, vec![target]).at(&pair.a, SOURCE))?;
    let wc = pair.b.expect(seed, IBV_WC_SUCCESS)?;
    ensure(wc.opcode == IBV_WC_RDMA_READ, || {
        format!("opcode {}", wc.opcode)
    })?;
    check_target(pair, size, seed)?;
    clear_target(pair, size);
    Ok(())
}

fn mtus(ends: &Ends) -> Outcome {
    for mtu in [IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024] {
        let mut plan = Plan::default();
        plan.settings.mtu = mtu;
        let mut pair = Pair::new(ends, plan)?;
        pair.a.mr.buffer.fill(SOURCE, 9000, 5);
        send(&mut pair, 9000, 5).map_err(|e| format!("MTU {mtu}: SEND: {e}"))?;
        write(&mut pair, 9000, 5).map_err(|e| format!("MTU {mtu}: WRITE: {e}"))?;
        read(&mut pair, 9000, 5).map_err(|e| format!("MTU {mtu}: READ: {e}"))?;
    }
    Ok(())
}

fn inline(ends: &Ends) -> Outcome {
    let mut pair = Pair::new(ends, Plan::default())?;
    for size in [0usize, 1, 13, 64] {
        pair.a.mr.buffer.fill(SOURCE, size, 9);
        for opcode in [IBV_WR_SEND, IBV_WR_RDMA_WRITE] {
            let mut source = pair.a.mr.sge(SOURCE, size);
            // Inline data needs no L_Key.
            source.lkey = 0xdead_beef;
            let mut request = Send::new(1, opcode, vec![source]).at(&pair.b, TARGET);
            request.flags |= IBV_SEND_INLINE;
            if opcode == IBV_WR_SEND {
                pair.b.recv(2, TARGET, size)?;
            }
            pair.a.send(request)?;
            pair.a.expect(1, IBV_WC_SUCCESS)?;
            if opcode == IBV_WR_SEND {
                pair.b.expect(2, IBV_WC_SUCCESS)?;
            }
            check_target(&pair, size, 9)?;
            clear_target(&mut pair, size);
        }
    }
    Ok(())
}

/// A SEND from a list of SGEs to a receive with SGEs of other lengths.
fn sge_lists(ends: &Ends) -> Outcome {
    let mut pair = Pair::new(ends, Plan::default())?;
    let (pieces_out, pieces_in) = ([1usize, 4097, 0, 5000], [3000usize, 1, 6097, 0]);
    let total: usize = pieces_out.iter().sum();
    pair.a.mr.buffer.fill(SOURCE, total, 21);
    let split = |end: &crate::pair::End, start: usize, pieces: &[usize]| {
        let mut at = start;
        let sges = pieces.iter().map(|&len| {
            at += len;
            end.mr.sge(at - len, len)
        });
        sges.collect::<Vec<_>>()
    };
    let mut target = split(&pair.b, TARGET, &pieces_in);
    pair.b
        .qp
        .post_recv(3, &mut target)
        .map_err(|e| e.to_string())?;
    pair.a.send(Send::new(
        4,
        IBV_WR_SEND,
        split(&pair.a, SOURCE, &pieces_out),
    ))?;
    pair.a.expect(4, IBV_WC_SUCCESS)?;
    pair.b.expect(3, IBV_WC_SUCCESS)?;
    check_target(&pair, total, 21)
}

/// Makes an atomic operation by A on the 64-bit word at offset 64 of B's region. Returns the
/// original value that A got.
fn atomic(pair: &Pair, opcode: ibv_wr_opcode, operands: (u64, u64)) -> Result<u64, String> {
    let result = pair.a.mr.sge(0, 8);
    let mut request = Send::new(1, opcode, vec![result]).at(&pair.b, 64);
    request.operands = operands;
    pair.a.send(request)?;
    pair.a.expect(1, IBV_WC_SUCCESS)?;
    Ok(pair.a.mr.buffer.word(0))
}

fn expect_word(what: &str, got: u64, expected: u64) -> Outcome {
    ensure(got == expected, || {
        format!("{what} {got}, expected {expected}")
    })
}

pub fn fetch_add(ends: &Ends) -> Outcome {
    let mut pair = Pair::new(ends, Plan::default())?;
    pair.b.mr.buffer.set_word(64, 1000);
    let got = atomic(&pair, IBV_WR_ATOMIC_FETCH_AND_ADD, (234, 0))?;
    expect_word("FETCH_ADD returned", got, 1000)?;
    expect_word("memory holds", pair.b.mr.buffer.word(64), 1234)
}

pub fn cmp_swap(ends: &Ends) -> Outcome {
    let mut pair = Pair::new(ends, Plan::default())?;
    pair.b.mr.buffer.set_word(64, 1234);
    for (compare, left) in [(1, 1234), (1234, 99)] {
        let got = atomic(&pair, IBV_WR_ATOMIC_CMP_AND_SWP, (compare, 99))?;
        expect_word("CMP_SWP returned", got, 1234)?;
        expect_word("memory holds", pair.b.mr.buffer.word(64), left)?;
    }
    Ok(())
}

fn unsignaled(ends: &Ends) -> Outcome {
    let mut pair = Pair::new(ends, Plan::default())?;
    pair.a.mr.buffer.fill(SOURCE, 3000, 33);
    for round in 0..10 {
        for i in 0..32u64 {
            let source = pair.a.mr.sge(SOURCE, 3000);
            let mut request = Send::new(i, IBV_WR_RDMA_WRITE, vec![source]).at(&pair.b, TARGET);
            request.flags = if i == 31 { IBV_SEND_SIGNALED } else { 0 };
            pair.a.send(request)?;
        }
        pair.a
            .expect(31, IBV_WC_SUCCESS)
            .map_err(|e| format!("round {round}: {e}"))?;
        check_target(&pair, 3000, 33)?;
        clear_target(&mut pair, 3000);
    }
    pair.a.expect_no_completion()
}

fn ordered(ends: &Ends) -> Outcome {
    let pair = Pair::new(ends, Plan::default())?;
    for i in 0..30 {
        let opcode = [IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_SEND][i % 3];
        if opcode == IBV_WR_SEND {
            pair.b.recv(i as u64, 100_000, 8192)?;
        }
        let sges = vec![pair.a.mr.sge(i * 8192, 8192)];
        pair.a
            .send(Send::new(i as u64, opcode, sges).at(&pair.b, i * 8192))?;
    }
    for i in 0..30 {
        pair.a.expect(i, IBV_WC_SUCCESS)?;
    }
    for i in (2..30).step_by(3) {
        pair.b.expect(i, IBV_WC_SUCCESS)?;
    }
    Ok(())
}

fn events(ends: &Ends) -> Outcome {
    let pair = Pair::new(ends, Plan::default())?;
    let text = |e: std::io::Error| e.to_string();
    let once = |flags: u32| -> Outcome {
        pair.b.recv(1, TARGET, 8)?;
        let mut request = Send::new(2, IBV_WR_SEND, vec![pair.a.mr.sge(0, 8)]);
        request.flags |= flags;
        pair.a.send(request)?;
        pair.a.expect(2, IBV_WC_SUCCESS)?;
        pair.b.expect(1, IBV_WC_SUCCESS).map(|_| ())
    };
    once(0)?;
    ensure(!pair.b.cq.event_within(50), || {
        "an event without being armed".into()
    })?;
    pair.b.cq.arm(false).map_err(text)?;
    once(0)?;
    ensure(pair.b.cq.event_within(20_000), || {
        "no event although armed".into()
    })?;
    pair.b.cq.wait().map_err(text)?;
    once(0)?;
    ensure(!pair.b.cq.event_within(50), || {
        "a second event for one arm".into()
    })?;
    pair.b.cq.arm(true).map_err(text)?;
    once(0)?;
    ensure(!pair.b.cq.event_within(50), || {
        "an unsolicited event".into()
    })?;
    once(IBV_SEND_SOLICITED)?;
    ensure(pair.b.cq.event_within(20_000), || {
        "no solicited event".into()
    })?;
    pair.b.cq.wait().map_err(text)
}

fn both_directions(ends: &Ends) -> Outcome {
    let mut plan = Plan::default();
    plan.depth = Depth {
        send: 32,
        recv: 32,
        ..plan.depth
    };
    // 2.1 s, because 1,024 packets are in flight each way, and the debug kernel needs longer than
    // 0.5 s for the packets before the first acknowledgment.
    plan.settings.timeout = 19;
    let mut pair = Pair::new(ends, plan)?;
    pair.a.mr.buffer.fill(0, 65536, 1);
    pair.b.mr.buffer.fill(0, 65536, 2);
    for i in 0..16u64 {
        let (from_a, from_b) = (pair.a.mr.sge(0, 65536), pair.b.mr.sge(0, 65536));
        pair.a
            .send(Send::new(i, IBV_WR_RDMA_WRITE, vec![from_a]).at(&pair.b, 1 << 20))?;
        pair.b
            .send(Send::new(i, IBV_WR_RDMA_WRITE, vec![from_b]).at(&pair.a, 1 << 20))?;
    }
    for i in 0..16 {
        pair.a.expect(i, IBV_WC_SUCCESS)?;
        pair.b.expect(i, IBV_WC_SUCCESS)?;
    }
    let wrong = pair.b.mr.buffer.mismatch(1 << 20, 65536, 1);
    ensure(wrong.is_none(), || format!("byte {wrong:?} at B"))?;
    let wrong = pair.a.mr.buffer.mismatch(1 << 20, 65536, 2);
    ensure(wrong.is_none(), || format!("byte {wrong:?} at A"))
}
