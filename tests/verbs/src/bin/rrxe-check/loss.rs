// SPDX-License-Identifier: GPL-2.0

//! UC and UD over a network that loses, duplicates and reorders packets: every message that arrives
//! is complete and unchanged, and over UC it arrives once.

use rrxe_verbs::{link, object::Ah, sys::*};

use crate::{
    pair::{ensure, Ends, Outcome, Pair, Plan, Send},
    tap::Tap,
};

const MESSAGES: usize = 200;
/// Bytes of a UC message: several packets at an MTU of 1,024.
const SIZE: usize = 4500;
/// Distance of two receives in the region, in bytes.
const STRIDE: usize = 8192;

/// Runs all cases.
pub fn run(tap: &mut Tap, ends: &Ends) {
    tap.result(
        "UC: messages that arrive over a bad network are whole",
        connected(ends),
    );
    tap.result(
        "UD: datagrams that arrive over a bad network are whole",
        datagrams(ends),
    );
}

/// Posts a receive for each message. The k-th message to arrive uses the k-th receive.
fn post_receives(pair: &Pair) -> Outcome {
    (0..MESSAGES).try_for_each(|i| pair.b.recv(i as u64, i * STRIDE, STRIDE))
}

/// Checks all completions. The immediate data of a message is its number, which is also the seed of
/// its data. `skip` bytes of GRH come in front.
fn check_arrivals(pair: &Pair, skip: usize, size: usize) -> Outcome {
    let mut seen = [false; MESSAGES];
    let mut wc = [ibv_wc::default()];
    while pair.b.cq.poll(&mut wc) == 1 {
        let wc = wc[0];
        ensure(wc.status == IBV_WC_SUCCESS, || {
            format!("status {}", wc.status)
        })?;
        // SAFETY: Every message carries immediate data.
        let number = u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data }) as usize;
        let seen = seen.get_mut(number).ok_or("a number that was not sent")?;
        ensure(wc.byte_len as usize == skip + size, || {
            format!("message {number}: byte_len {}", wc.byte_len)
        })?;
        let at = wc.wr_id as usize * STRIDE + skip;
        let wrong = pair.b.mr.buffer.mismatch(at, size, number as u64);
        ensure(wrong.is_none(), || {
            format!("message {number}: byte {wrong:?} is wrong")
        })?;
        // UD does not detect a datagram that the network has duplicated.
        ensure(!*seen || skip > 0, || {
            format!("message {number} came twice")
        })?;
        *seen = true;
    }
    let count = seen.iter().filter(|seen| **seen).count();
    println!("# {count} of {MESSAGES} arrived");
    ensure(count > 0, || "nothing arrived".into())
}

fn plan(kind: ibv_qp_type) -> Plan {
    let mut plan = Plan {
        kind,
        ..Plan::default()
    };
    plan.depth.recv = MESSAGES as u32;
    plan
}

/// Sends all messages with pauses of 1 ms between them, because the loss of a whole burst would
/// leave nothing to check.
fn send_all(
    pair: &mut Pair,
    size: usize,
    mut post: impl FnMut(&Pair, usize) -> Outcome,
) -> Outcome {
    for number in 0..MESSAGES {
        pair.a.mr.buffer.fill(0, size, number as u64);
        post(pair, number)?;
        pair.a.expect(number as u64, IBV_WC_SUCCESS)?;
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    std::thread::sleep(std::time::Duration::from_millis(200));
    Ok(())
}

fn connected(ends: &Ends) -> Outcome {
    let mut pair = Pair::new(ends, plan(IBV_QPT_UC))?;
    post_receives(&pair)?;
    send_all(&mut pair, SIZE, |pair, number| {
        let source = pair.a.mr.sge(0, SIZE);
        let mut request = Send::new(number as u64, IBV_WR_SEND_WITH_IMM, vec![source]);
        request.imm = number as u32;
        pair.a.send(request)
    })?;
    check_arrivals(&pair, 0, SIZE)
}

fn datagrams(ends: &Ends) -> Outcome {
    const GRH: usize = 40;
    const QKEY: u32 = 5;
    let size = 1000;
    let mut pair = Pair::unconnected(ends, plan(IBV_QPT_UD))?;
    let text = |e: std::io::Error| e.to_string();
    for end in [&pair.a, &pair.b] {
        link::to_datagram(&end.qp, QKEY).map_err(text)?;
    }
    post_receives(&pair)?;
    let (ours, theirs) = (pair.a.endpoint, pair.b.endpoint);
    let ah = Ah::new(&pair.a.qp.pd, ours.gid_index, theirs.gid).map_err(text)?;
    send_all(&mut pair, size, |pair, number| {
        let mut wr = ibv_send_wr {
            wr_id: number as u64,
            opcode: IBV_WR_SEND_WITH_IMM,
            send_flags: IBV_SEND_SIGNALED,
            ..Default::default()
        };
        wr.__bindgen_anon_1.imm_data = (number as u32).to_be();
        wr.wr.ud.ah = ah.raw;
        wr.wr.ud.remote_qpn = theirs.qpn;
        wr.wr.ud.remote_qkey = QKEY;
        let mut source = [pair.a.mr.sge(0, size)];
        let posted = pair.a.qp.post_send(&mut wr, &mut source);
        posted.map_err(|e| format!("post_send: {e}"))
    })?;
    check_arrivals(&pair, GRH, size)
}
