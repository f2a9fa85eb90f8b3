// SPDX-License-Identifier: GPL-2.0

//! One case for each operation that works between rrxe and C rxe: device A requests, device B
//! responds, and the data is compared.

use rrxe_verbs::{
    object::{Depth, Qp},
    sys::*,
};

use crate::{
    datagram, group,
    pair::{ensure, Ends, Outcome, Pair, Plan},
    srq,
    tap::Tap,
    transfer::{self, each_size},
    windows,
};

/// Bytes of the messages: none, one packet with pad bytes, one full packet, several packets.
const SIZES: [usize; 4] = [0, 61, 1024, 10_001];

type Transfer = fn(&mut Pair, usize, u64) -> Outcome;

/// Runs all cases.
pub fn run(tap: &mut Tap, ends: &Ends) {
    let rc: [(&str, Transfer); 4] = [
        ("matrix: RC SEND", transfer::send),
        ("matrix: RC SEND with immediate", transfer::send_imm),
        ("matrix: RC WRITE", transfer::write),
        ("matrix: RC WRITE with immediate", transfer::write_imm),
    ];
    for (name, transfer) in rc {
        tap.result(name, each_size(ends, Plan::default(), &SIZES, transfer));
    }
    tap.result("matrix: RC SEND with invalidate", invalidate(ends));
    tap.result("matrix: RC READ", read(ends));
    tap.result("matrix: RC CMP_SWP", transfer::cmp_swap(ends));
    tap.result("matrix: RC FETCH_ADD", transfer::fetch_add(ends));
    tap.result("matrix: RC ATOMIC_WRITE", atomic_write(ends));
    tap.result(
        "matrix: RC WRITE and READ in a window of type 1",
        window_1(ends),
    );
    tap.result(
        "matrix: RC WRITE and READ in a window of type 2",
        window_2(ends),
    );
    tap.result("matrix: RC SEND to an SRQ", srq::several_qps(ends));
    let uc: [(&str, Transfer); 4] = [
        ("matrix: UC SEND", transfer::send),
        ("matrix: UC SEND with immediate", transfer::send_imm),
        ("matrix: UC WRITE", transfer::write_uc),
        ("matrix: UC WRITE with immediate", transfer::write_imm),
    ];
    let plan = Plan {
        kind: IBV_QPT_UC,
        ..Plan::default()
    };
    for (name, transfer) in uc {
        tap.result(name, each_size(ends, plan, &SIZES, transfer));
    }
    tap.result("matrix: UD SEND", datagram::sizes(ends));
    tap.result("matrix: UD SEND with immediate", datagram::immediate(ends));
    tap.result("matrix: UD SEND to a group", group::copies(ends));
}

fn invalidate(ends: &Ends) -> Outcome {
    // The completion's flags are ignored, because not all providers set IBV_WC_WITH_INV.
    windows::lifetime::send_with_invalidate(ends).map(|_| ())
}

fn window_1(ends: &Ends) -> Outcome {
    windows::whole_range(ends, IBV_MW_TYPE_1)
}

fn window_2(ends: &Ends) -> Outcome {
    windows::whole_range(ends, IBV_MW_TYPE_2)
}

/// READs by device A. The ends are swapped, because in `transfer::read` the second end reads.
fn read(ends: &Ends) -> Outcome {
    let (a, b) = (ends.b, ends.a);
    let swapped = Ends { a, b, v6: ends.v6 };
    each_size(&swapped, Plan::default(), &SIZES, transfer::read)
}

fn atomic_write(ends: &Ends) -> Outcome {
    let pair = Pair::with_requester(ends, Plan::default(), |pd, cq| {
        Qp::extended(pd, cq, Depth::default(), IBV_QP_EX_WITH_ATOMIC_WRITE)
    })?;
    let bytes = *b"one word";
    let at = pair.b.endpoint.addr + 64;
    pair.a
        .qp
        .atomic_write(7, (at, pair.b.endpoint.rkey), bytes)
        .map_err(|e| format!("posting: {e}"))?;
    let wc = pair.a.expect(7, IBV_WC_SUCCESS)?;
    ensure(wc.opcode == IBV_WC_ATOMIC_WRITE, || {
        format!("opcode {}", wc.opcode)
    })?;
    let got = pair.b.mr.buffer.word(64);
    ensure(got == u64::from_ne_bytes(bytes), || {
        format!("memory holds {got:#x}")
    })?;
    let neighbours = pair.b.mr.buffer.word(56) | pair.b.mr.buffer.word(72);
    ensure(neighbours == 0, || {
        "a word next to the target was written".into()
    })
}
