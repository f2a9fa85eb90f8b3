// SPDX-License-Identifier: GPL-2.0

//! Errors of RC QPs: each ends in the documented completion status and QP state, at the end or ends
//! concerned, and has no other effect.

use rrxe_verbs::sys::*;

use crate::{
    pair::{ensure, Ends, Outcome, Pair, Plan, Send},
    tap::Tap,
};

/// Runs all cases.
pub fn run(tap: &mut Tap, ends: &Ends) {
    tap.result("wrong lkey of a SEND: LOC_PROT_ERR", wrong_lkey(ends));
    tap.result(
        "SEND from beyond the region: LOC_PROT_ERR",
        beyond_local(ends),
    );
    tap.result(
        "wrong rkey of a WRITE: REM_ACCESS_ERR",
        wrong_rkey(ends, IBV_WR_RDMA_WRITE),
    );
    tap.result(
        "wrong rkey of a READ: REM_ACCESS_ERR",
        wrong_rkey(ends, IBV_WR_RDMA_READ),
    );
    tap.result(
        "WRITE beyond the region: REM_ACCESS_ERR",
        beyond_remote(ends, IBV_WR_RDMA_WRITE),
    );
    tap.result(
        "READ beyond the region: REM_ACCESS_ERR",
        beyond_remote(ends, IBV_WR_RDMA_READ),
    );
    tap.result(
        "WRITE to a read-only region: REM_ACCESS_ERR",
        region_right(ends),
    );
    tap.result(
        "a WRITE over the end of the region writes no byte",
        no_partial_write(ends),
    );
    tap.result(
        "READ without the QP's right: REM_INV_REQ_ERR or REM_ACCESS_ERR",
        qp_right(ends),
    );
    tap.result("no receive posted: RNR_RETRY_EXC_ERR", no_receive(ends));
    tap.result("a late receive: success after RNR", late_receive(ends));
    tap.result(
        "no response from the peer: RETRY_EXC_ERR",
        missing_peer(ends),
    );
    tap.result(
        "a receive too short: LOC_LEN_ERR and REM_INV_REQ_ERR",
        short_receive(ends),
    );
    tap.result(
        "wrong lkey of a receive: LOC_PROT_ERR and REM_OP_ERR",
        bad_receive(ends),
    );
    tap.result(
        "misaligned atomic: REM_INV_REQ_ERR",
        misaligned_atomic(ends),
    );
    tap.result("ERR flushes both queues in order", flush(ends));
    tap.result(
        "requests posted after ERR are flushed, too",
        flush_later(ends),
    );
    tap.result("a QP works again after RESET", reset(ends));
}

/// Posts `request`, whose `wr_id` is 7, at A. It must complete with `status` and take A to ERR.
fn expect_error(pair: &Pair, request: Send, status: ibv_wc_status) -> Outcome {
    pair.a.send(request)?;
    pair.a.expect(7, status)?;
    let state = pair.a.state()?;
    ensure(state == IBV_QPS_ERR, || {
        format!("A is in state {state} afterwards")
    })?;
    pair.a.expect_no_completion()
}

fn wrong_lkey(ends: &Ends) -> Outcome {
    let pair = Pair::new(ends, Plan::default())?;
    let mut source = pair.a.mr.sge(0, 100);
    source.lkey ^= 0x4321_0000;
    expect_error(
        &pair,
        Send::new(7, IBV_WR_SEND, vec![source]),
        IBV_WC_LOC_PROT_ERR,
    )
}

fn beyond_local(ends: &Ends) -> Outcome {
    let plan = Plan::default();
    let pair = Pair::new(ends, plan)?;
    let source = pair.a.mr.sge(plan.memory - 10, 100);
    expect_error(
        &pair,
        Send::new(7, IBV_WR_SEND, vec![source]),
        IBV_WC_LOC_PROT_ERR,
    )
}

/// As [`expect_error`], with REM_ACCESS_ERR, which must take B to ERR, too.
fn expect_remote_access_error(pair: &Pair, request: Send) -> Outcome {
    expect_error(pair, request, IBV_WC_REM_ACCESS_ERR)?;
    let state = pair.b.state()?;
    ensure(state == IBV_QPS_ERR, || {
        format!("B is in state {state} afterwards")
    })
}

fn wrong_rkey(ends: &Ends, opcode: ibv_wr_opcode) -> Outcome {
    let pair = Pair::new(ends, Plan::default())?;
    let mut request = Send::new(7, opcode, vec![pair.a.mr.sge(0, 100)]).at(&pair.b, 0);
    request.remote.1 ^= 0x1234_5600;
    expect_remote_access_error(&pair, request)
}

fn beyond_remote(ends: &Ends, opcode: ibv_wr_opcode) -> Outcome {
    let plan = Plan::default();
    let pair = Pair::new(ends, plan)?;
    let sges = vec![pair.a.mr.sge(0, 100)];
    expect_remote_access_error(
        &pair,
        Send::new(7, opcode, sges).at(&pair.b, plan.memory - 99),
    )
}

fn region_right(ends: &Ends) -> Outcome {
    let plan = Plan {
        mr_access: IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ,
        ..Plan::default()
    };
    let pair = Pair::new(ends, plan)?;
    let sges = vec![pair.a.mr.sge(0, 100)];
    expect_remote_access_error(&pair, Send::new(7, IBV_WR_RDMA_WRITE, sges).at(&pair.b, 0))
}

/// The driver checks the whole range of a WRITE before it writes the first byte.
fn no_partial_write(ends: &Ends) -> Outcome {
    let plan = Plan::default();
    let mut pair = Pair::new(ends, plan)?;
    pair.a.mr.buffer.fill(0, 100_000, 3);
    let start = plan.memory - 99_999;
    let sges = vec![pair.a.mr.sge(0, 100_000)];
    expect_remote_access_error(
        &pair,
        Send::new(7, IBV_WR_RDMA_WRITE, sges).at(&pair.b, start),
    )?;
    let touched = (start..plan.memory).find(|&at| pair.b.mr.buffer.get(at) != 0);
    ensure(touched.is_none(), || {
        format!("byte {touched:?} was written")
    })
}

fn qp_right(ends: &Ends) -> Outcome {
    let plan = Plan {
        qp_access: IBV_ACCESS_REMOTE_WRITE,
        ..Plan::default()
    };
    let pair = Pair::new(ends, plan)?;
    let sges = vec![pair.a.mr.sge(0, 100)];
    pair.a
        .send(Send::new(7, IBV_WR_RDMA_READ, sges).at(&pair.b, 0))?;
    let wc = pair.a.completion()?;
    let refused = wc.status == IBV_WC_REM_ACCESS_ERR || wc.status == IBV_WC_REM_INV_REQ_ERR;
    ensure(refused, || format!("status {}", wc.status))
}

fn no_receive(ends: &Ends) -> Outcome {
    let mut plan = Plan::default();
    plan.settings.rnr_retry = 2;
    plan.settings.min_rnr_timer = 1;
    let pair = Pair::new(ends, plan)?;
    let request = Send::new(7, IBV_WR_SEND, vec![pair.a.mr.sge(0, 100)]);
    expect_error(&pair, request, IBV_WC_RNR_RETRY_EXC_ERR)
}

fn late_receive(ends: &Ends) -> Outcome {
    let mut pair = Pair::new(ends, Plan::default())?;
    pair.a.mr.buffer.fill(0, 5000, 11);
    pair.a
        .send(Send::new(1, IBV_WR_SEND, vec![pair.a.mr.sge(0, 5000)]))?;
    pair.a.expect_no_completion()?;
    pair.b.recv(2, 0, 5000)?;
    pair.a.expect(1, IBV_WC_SUCCESS)?;
    pair.b.expect(2, IBV_WC_SUCCESS)?;
    let wrong = pair.b.mr.buffer.mismatch(0, 5000, 11);
    ensure(wrong.is_none(), || format!("byte {wrong:?} is wrong"))
}

fn missing_peer(ends: &Ends) -> Outcome {
    let mut plan = Plan {
        missing_peer: true,
        ..Plan::default()
    };
    plan.settings.timeout = 8;
    plan.settings.retry_cnt = 2;
    let pair = Pair::new(ends, plan)?;
    let request = Send::new(7, IBV_WR_SEND, vec![pair.a.mr.sge(0, 100)]);
    expect_error(&pair, request, IBV_WC_RETRY_EXC_ERR)
}

fn short_receive(ends: &Ends) -> Outcome {
    let pair = Pair::new(ends, Plan::default())?;
    pair.b.recv(9, 0, 99)?;
    let request = Send::new(7, IBV_WR_SEND, vec![pair.a.mr.sge(0, 100)]);
    expect_error(&pair, request, IBV_WC_REM_INV_REQ_ERR)?;
    pair.b.expect(9, IBV_WC_LOC_LEN_ERR).map(|_| ())
}

fn bad_receive(ends: &Ends) -> Outcome {
    let pair = Pair::new(ends, Plan::default())?;
    let mut target = [pair.b.mr.sge(0, 100)];
    target[0].lkey ^= 0x4321_0000;
    pair.b
        .qp
        .post_recv(9, &mut target)
        .map_err(|e| e.to_string())?;
    let request = Send::new(7, IBV_WR_SEND, vec![pair.a.mr.sge(0, 100)]);
    expect_error(&pair, request, IBV_WC_REM_OP_ERR)?;
    pair.b.expect(9, IBV_WC_LOC_PROT_ERR).map(|_| ())
}

fn misaligned_atomic(ends: &Ends) -> Outcome {
    let pair = Pair::new(ends, Plan::default())?;
    let sges = vec![pair.a.mr.sge(0, 8)];
    let mut request = Send::new(7, IBV_WR_ATOMIC_FETCH_AND_ADD, sges).at(&pair.b, 0);
    // The region begins at an aligned address, so the address 4 bytes later is misaligned. The
    // library may refuse a misaligned address itself, with EINVAL.
    request.remote.0 += 4;
    match pair.a.send(request.clone()) {
        Ok(()) => pair.a.expect(7, IBV_WC_REM_INV_REQ_ERR).map(|_| ()),
        Err(why) if why.contains("os error 22") => Ok(()),
        Err(why) => Err(why),
    }
}

fn to_err(pair: &Pair) -> Outcome {
    let attr = ibv_qp_attr {
        qp_state: IBV_QPS_ERR,
        ..Default::default()
    };
    pair.a
        .qp
        .modify(&attr, IBV_QP_STATE)
        .map_err(|e| format!("to ERR: {e}"))
}

fn flush(ends: &Ends) -> Outcome {
    let mut plan = Plan {
        missing_peer: true,
        ..Plan::default()
    };
    plan.settings.timeout = 20;
    let pair = Pair::new(ends, plan)?;
    for i in 0..20 {
        pair.a.recv(100 + i, 0, 64)?;
        pair.a
            .send(Send::new(i, IBV_WR_SEND, vec![pair.a.mr.sge(0, 3000)]))?;
    }
    to_err(&pair)?;
    let (mut sends, mut receives) = (0, 100);
    for _ in 0..40 {
        let wc = pair.a.completion()?;
        ensure(wc.status == IBV_WC_WR_FLUSH_ERR, || {
            format!("status {}", wc.status)
        })?;
        let next = if wc.wr_id < 100 {
            &mut sends
        } else {
            &mut receives
        };
        ensure(wc.wr_id == *next, || {
            format!("{} came, {next} is next", wc.wr_id)
        })?;
        *next += 1;
    }
    pair.a.expect_no_completion()
}

fn flush_later(ends: &Ends) -> Outcome {
    let pair = Pair::new(ends, Plan::default())?;
    to_err(&pair)?;
    pair.a
        .send(Send::new(1, IBV_WR_SEND, vec![pair.a.mr.sge(0, 64)]))?;
    pair.a.expect(1, IBV_WC_WR_FLUSH_ERR)?;
    pair.a.recv(2, 0, 64)?;
    pair.a.expect(2, IBV_WC_WR_FLUSH_ERR).map(|_| ())
}

fn reset(ends: &Ends) -> Outcome {
    let plan = Plan::default();
    let mut pair = Pair::new(ends, plan)?;
    let state = |end: &crate::pair::End, qp_state| {
        let attr = ibv_qp_attr {
            qp_state,
            ..Default::default()
        };
        end.qp
            .modify(&attr, IBV_QP_STATE)
            .map_err(|e| format!("to {qp_state}: {e}"))
    };
    pair.a.recv(50, 0, 64)?;
    for end in [&pair.a, &pair.b] {
        state(end, IBV_QPS_RESET)?;
    }
    pair.a.expect_no_completion()?;
    let text = |e: std::io::Error| e.to_string();
    for (end, peer) in [(&pair.a, &pair.b.endpoint), (&pair.b, &pair.a.endpoint)] {
        rrxe_verbs::link::to_init(&end.qp, plan.qp_access).map_err(text)?;
        rrxe_verbs::link::to_rtr(&end.qp, &end.endpoint, peer, &plan.settings).map_err(text)?;
        rrxe_verbs::link::to_rts(&end.qp, &end.endpoint, &plan.settings).map_err(text)?;
    }
    pair.a.mr.buffer.fill(0, 5000, 8);
    pair.b.recv(2, 0, 5000)?;
    pair.a
        .send(Send::new(1, IBV_WR_SEND, vec![pair.a.mr.sge(0, 5000)]))?;
    pair.a.expect(1, IBV_WC_SUCCESS)?;
    pair.b.expect(2, IBV_WC_SUCCESS)?;
    let wrong = pair.b.mr.buffer.mismatch(0, 5000, 8);
    ensure(wrong.is_none(), || format!("byte {wrong:?} is wrong"))
}
