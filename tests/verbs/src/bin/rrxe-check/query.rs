// SPDX-License-Identifier: GPL-2.0

//! `ibv_query_qp` of QPs that transfer data.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rrxe_verbs::sys::*;

use crate::{
    pair::{ensure, Ends, Outcome, Pair, Plan, Send},
    tap::Tap,
};

/// Runs all cases.
pub fn run(tap: &mut Tap, ends: &Ends) {
    tap.result("QPs transfer data while they are queried", query_busy(ends));
}

/// Each WRITE is posted after the one before has completed. If a query lost a doorbell, no later
/// doorbell would make up for it, and the transfer would stop.
fn query_busy(ends: &Ends) -> Outcome {
    const WRITES: u64 = 2000;
    const QUERIES: u64 = 100;
    let pair = Pair::new(ends, Plan::default())?;
    let (a, b) = (pair.a.qp.raw as usize, pair.b.qp.raw as usize);
    let (stop, queries) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let querier = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for qp in [a, b] {
                    let (mut attr, mut init) =
                        (ibv_qp_attr::default(), ibv_qp_init_attr::default());
                    // SAFETY: The QPs outlive the scope, and the structures the call.
                    let errno = unsafe {
                        ibv_query_qp(qp as *mut ibv_qp, &mut attr, IBV_QP_STATE as i32, &mut init)
                    };
                    ensure((errno, attr.qp_state) == (0, IBV_QPS_RTS), || {
                        format!("errno {errno}, state {}", attr.qp_state)
                    })?;
                }
                queries.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        // A busy host may start the thread late.
        let continues = |id: &u64| {
            *id < WRITES || queries.load(Ordering::Relaxed) < QUERIES && !querier.is_finished()
        };
        let written = (0..).take_while(continues).try_for_each(|id| {
            let write = Send::new(id, IBV_WR_RDMA_WRITE, vec![pair.a.mr.sge(0, 64)]);
            pair.a.send(write.at(&pair.b, 0))?;
            pair.a.expect(id, IBV_WC_SUCCESS).map(|_| ())
        });
        stop.store(true, Ordering::Relaxed);
        let queried = querier.join().map_err(|_| "the querying thread panicked")?;
        written.and(queried)
    })
}
