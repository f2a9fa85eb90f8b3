// SPDX-License-Identifier: GPL-2.0

//! Errors of UC QPs: the sender gets error completions only for errors that its own device finds.
//! Then its send queue is in error (SQE) and its receive queue still works.

use rrxe_verbs::sys::*;

use crate::{
    pair::{ensure, Ends, Outcome, Pair, Plan, Send},
    tap::Tap,
};

/// Runs all cases.
pub fn run(tap: &mut Tap, ends: &Ends) {
    tap.result(
        "UC: wrong lkey: LOC_PROT_ERR, SQE, and back to RTS",
        wrong_lkey(ends),
    );
    tap.result("UC: READ: LOC_QP_OP_ERR or EINVAL", read_unsupported(ends));
    tap.result(
        "UC: a WRITE with a wrong rkey writes no byte",
        wrong_rkey(ends),
    );
    tap.result("UC: a SEND without a receive is dropped", no_receive(ends));
    tap.result(
        "UC: a SEND longer than its receive is dropped",
        too_long(ends),
    );
}

fn pair(ends: &Ends) -> Result<Pair, String> {
    let kind = IBV_QPT_UC;
    let plan = Plan::default();
    Pair::new(ends, Plan { kind, ..plan })
}

fn in_state(pair: &Pair, expected: ibv_qp_state) -> Outcome {
    let state = pair.a.state()?;
    ensure(state == expected, || format!("A is in state {state}"))
}

/// Checks that a SEND of `size` bytes arrives.
fn expect_send_arrives(pair: &Pair, size: usize) -> Outcome {
    pair.b.recv(1, 0, size)?;
    pair.a
        .send(Send::new(2, IBV_WR_SEND, vec![pair.a.mr.sge(0, size)]))?;
    pair.a.expect(2, IBV_WC_SUCCESS)?;
    let wc = pair.b.expect(1, IBV_WC_SUCCESS)?;
    ensure(wc.byte_len as usize == size, || {
        format!("byte_len {}", wc.byte_len)
    })
}

fn wrong_lkey(ends: &Ends) -> Outcome {
    let pair = pair(ends)?;
    let mut source = pair.a.mr.sge(0, 5000);
    source.lkey ^= 0x4321_0000;
    pair.a.send(Send::new(7, IBV_WR_SEND, vec![source]))?;
    pair.a.expect(7, IBV_WC_LOC_PROT_ERR)?;
    in_state(&pair, IBV_QPS_SQE)?;
    pair.a
        .send(Send::new(8, IBV_WR_SEND, vec![pair.a.mr.sge(0, 10)]))?;
    pair.a.expect(8, IBV_WC_WR_FLUSH_ERR)?;
    // The receive queue still works.
    pair.a.recv(9, 0, 100)?;
    pair.b
        .send(Send::new(10, IBV_WR_SEND, vec![pair.b.mr.sge(0, 100)]))?;
    pair.b.expect(10, IBV_WC_SUCCESS)?;
    pair.a.expect(9, IBV_WC_SUCCESS)?;
    let attr = ibv_qp_attr {
        qp_state: IBV_QPS_RTS,
        cur_qp_state: IBV_QPS_SQE,
        ..Default::default()
    };
    pair.a
        .qp
        .modify(&attr, IBV_QP_STATE | IBV_QP_CUR_STATE)
        .map_err(|e| format!("SQE to RTS: {e}"))?;
    expect_send_arrives(&pair, 5000)
}

fn read_unsupported(ends: &Ends) -> Outcome {
    let pair = pair(ends)?;
    let target = vec![pair.a.mr.sge(0, 100)];
    match pair
        .a
        .send(Send::new(7, IBV_WR_RDMA_READ, target).at(&pair.b, 0))
    {
        Ok(()) => pair.a.expect(7, IBV_WC_LOC_QP_OP_ERR).map(|_| ()),
        Err(why) if why.contains("os error 22") => Ok(()),
        Err(why) => Err(why),
    }
}

fn wrong_rkey(ends: &Ends) -> Outcome {
    let mut pair = pair(ends)?;
    pair.a.mr.buffer.fill(0, 5000, 3);
    let mut request = Send::new(7, IBV_WR_RDMA_WRITE, vec![pair.a.mr.sge(0, 5000)]);
    request = request.at(&pair.b, 0);
    request.remote.1 ^= 0x1234_5600;
    pair.a.send(request)?;
    pair.a.expect(7, IBV_WC_SUCCESS)?;
    expect_send_arrives(&pair, 0)?;
    let touched = (0..5000).find(|&at| pair.b.mr.buffer.get(at) != 0);
    ensure(touched.is_none(), || {
        format!("byte {touched:?} was written")
    })
}

fn no_receive(ends: &Ends) -> Outcome {
    let pair = pair(ends)?;
    pair.a
        .send(Send::new(7, IBV_WR_SEND, vec![pair.a.mr.sge(0, 5000)]))?;
    pair.a.expect(7, IBV_WC_SUCCESS)?;
    pair.b.expect_no_completion()?;
    expect_send_arrives(&pair, 5000)
}

/// The receive stays posted, and a later SEND that fits uses it.
fn too_long(ends: &Ends) -> Outcome {
    let pair = pair(ends)?;
    pair.b.recv(9, 0, 99)?;
    pair.a
        .send(Send::new(7, IBV_WR_SEND, vec![pair.a.mr.sge(0, 100)]))?;
    pair.a.expect(7, IBV_WC_SUCCESS)?;
    pair.b.expect_no_completion()?;
    pair.a
        .send(Send::new(8, IBV_WR_SEND, vec![pair.a.mr.sge(0, 99)]))?;
    pair.a.expect(8, IBV_WC_SUCCESS)?;
    let wc = pair.b.expect(9, IBV_WC_SUCCESS)?;
    ensure(wc.byte_len == 99, || format!("byte_len {}", wc.byte_len))
}
