// SPDX-License-Identifier: GPL-2.0

//! Invalidation and deallocation of windows, and the end of regions, QPs and protection domains
//! that have windows.

use rrxe_verbs::{
    object::{Mr, Mw, Pd},
    sys::*,
};

use super::{
    alloc, bound_window, expect_granted, expect_refused, plan, request, window_start, Bind, MEMORY,
    REMOTE,
};
use crate::pair::{ensure, End, Ends, Outcome, Pair, Send};

const EINVAL: i32 = 22;
const EBUSY: i32 = 16;

pub fn changed_key(ends: &Ends, kind: ibv_mw_type) -> Outcome {
    let (pair, mw) = bound_window(ends, kind, REMOTE)?;
    let old = mw.rkey();
    if kind == IBV_MW_TYPE_2 {
        invalidate(&pair.b, old, IBV_WC_SUCCESS)?;
    }
    Bind::new(&mw, &pair.b.mr, REMOTE).done(&pair.b)?;
    ensure(mw.rkey() != old, || "the key is the same".into())?;
    let attempt = |key| request(&pair, IBV_WR_RDMA_READ, window_start(&pair), 8, key);
    expect_granted(&pair, attempt(mw.rkey()))?;
    expect_refused(&pair, attempt(old))
}

/// Posts LOCAL_INV of `key` at `end`. It must complete with `status`.
fn invalidate(end: &End, key: u32, status: ibv_wc_status) -> Outcome {
    let mut request = Send::new(6, IBV_WR_LOCAL_INV, vec![]);
    request.imm = key.to_be();
    end.send(request)?;
    end.expect(6, status).map(|_| ())
}

fn deregister(mr: Mr) -> Outcome {
    mr.deregister()
        .map(drop)
        .map_err(|(_, e)| format!("dereg_mr: {e}"))
}

/// Checks that the deregistration of a region with bound windows fails with EINVAL. Returns the
/// region.
fn expect_dereg_refused(mr: Mr) -> Result<Mr, String> {
    match mr.deregister() {
        Ok(_) => Err("the region was deregistered".into()),
        Err((mr, why)) if why.raw_os_error() == Some(EINVAL) => Ok(mr),
        Err((_, why)) => Err(format!("dereg_mr: {why}")),
    }
}

pub fn dereg_region_in_use(ends: &Ends, kind: ibv_mw_type) -> Outcome {
    let (Pair { a, b }, first) = bound_window(ends, kind, REMOTE)?;
    let second = alloc(&b.qp.pd, kind)?;
    Bind::new(&second, &b.mr, REMOTE).done(&b)?;
    let End {
        qp,
        cq,
        mr,
        endpoint,
    } = b;
    drop(first);
    let mr = expect_dereg_refused(mr)?;
    // The region can still be used through the second window.
    let pair = Pair {
        a,
        b: End {
            qp,
            cq,
            mr,
            endpoint,
        },
    };
    let attempt = request(
        &pair,
        IBV_WR_RDMA_READ,
        window_start(&pair),
        8,
        second.rkey(),
    );
    expect_granted(&pair, attempt)?;
    drop(second);
    let End { mr, .. } = pair.b;
    deregister(mr)
}

pub fn dealloc(ends: &Ends, kind: ibv_mw_type) -> Outcome {
    let (pair, mw) = bound_window(ends, kind, REMOTE)?;
    let key = mw.rkey();
    expect_granted(
        &pair,
        request(&pair, IBV_WR_RDMA_READ, window_start(&pair), 8, key),
    )?;
    drop(mw);
    expect_refused(
        &pair,
        request(&pair, IBV_WR_RDMA_READ, window_start(&pair), 8, key),
    )
}

pub fn unbind(ends: &Ends) -> Outcome {
    let (pair, mw) = bound_window(ends, IBV_MW_TYPE_1, REMOTE)?;
    expect_granted(
        &pair,
        request(&pair, IBV_WR_RDMA_READ, window_start(&pair), 8, mw.rkey()),
    )?;
    Bind::new(&mw, &pair.b.mr, 0).length(0).done(&pair.b)?;
    expect_refused(
        &pair,
        request(&pair, IBV_WR_RDMA_READ, window_start(&pair), 8, mw.rkey()),
    )?;
    let End { mr, .. } = pair.b;
    deregister(mr)
}

pub fn local_inv(ends: &Ends) -> Outcome {
    let (pair, mw) = bound_window(ends, IBV_MW_TYPE_2, REMOTE)?;
    let attempt = |key| request(&pair, IBV_WR_RDMA_READ, window_start(&pair), 8, key);
    for _ in 0..300 {
        expect_granted(&pair, attempt(mw.rkey()))?;
        invalidate(&pair.b, mw.rkey(), IBV_WC_SUCCESS)?;
        Bind::new(&mw, &pair.b.mr, REMOTE).done(&pair.b)?;
    }
    invalidate(&pair.b, mw.rkey(), IBV_WC_SUCCESS)?;
    expect_refused(&pair, attempt(mw.rkey()))?;
    let End { mr, .. } = pair.b;
    deregister(mr)
}

pub fn remote_inv(ends: &Ends) -> Outcome {
    let flags = send_with_invalidate(ends)?;
    ensure(flags & IBV_WC_WITH_INV != 0, || format!("flags {flags:#x}"))
}

/// A SEND with invalidate by A invalidates the R_Key of a window of B. Returns the flags of B's
/// completion.
pub fn send_with_invalidate(ends: &Ends) -> Result<u32, String> {
    let (mut pair, mw) = bound_window(ends, IBV_MW_TYPE_2, REMOTE)?;
    let at = MEMORY - 3000;
    pair.a.mr.buffer.fill(0, 3000, 5);
    pair.b.recv(4, at, 3000)?;
    let mut send = Send::new(3, IBV_WR_SEND_WITH_INV, vec![pair.a.mr.sge(0, 3000)]);
    send.imm = mw.rkey().to_be();
    pair.a.send(send)?;
    pair.a.expect(3, IBV_WC_SUCCESS)?;
    let wc = pair.b.expect(4, IBV_WC_SUCCESS)?;
    // SAFETY: Every bit pattern is a valid R_Key.
    let key = unsafe { wc.__bindgen_anon_1.invalidated_rkey };
    ensure(key == mw.rkey(), || format!("key {key:#x}"))?;
    let wrong = pair.b.mr.buffer.mismatch(at, 3000, 5);
    ensure(wrong.is_none(), || format!("byte {wrong:?} is wrong"))?;
    pair.a.send(request(
        &pair,
        IBV_WR_RDMA_READ,
        window_start(&pair),
        8,
        mw.rkey(),
    ))?;
    pair.a.expect(7, IBV_WC_REM_ACCESS_ERR)?;
    let End { mr, .. } = pair.b;
    deregister(mr)?;
    Ok(wc.wc_flags)
}

pub fn bad_inv(ends: &Ends) -> Outcome {
    // The R_Keys of a region, of a window of type 1, of an unbound window, of no object, and of a
    // window that another QP bound.
    let keys: [(&str, fn(&Pair, &[Mw; 3]) -> u32); 5] = [
        ("a region", |pair, _| pair.b.mr.rkey()),
        ("type 1", |_, mws| mws[0].rkey()),
        ("unbound", |_, mws| mws[1].rkey()),
        ("nothing", |_, mws| mws[2].rkey() ^ 0x5a5a00),
        ("another QP's", |_, mws| mws[2].rkey()),
    ];
    for (name, key) in keys {
        for local in [true, false] {
            let pair = Pair::new(ends, plan())?;
            let other_pair = pair.in_same_pd(ends, plan())?;
            let pd = &pair.b.qp.pd;
            let mws = [
                alloc(pd, IBV_MW_TYPE_1)?,
                alloc(pd, IBV_MW_TYPE_2)?,
                alloc(pd, IBV_MW_TYPE_2)?,
            ];
            Bind::new(&mws[0], &pair.b.mr, REMOTE).done(&pair.b)?;
            Bind::new(&mws[2], &pair.b.mr, REMOTE).done(&other_pair.b)?;
            let key = key(&pair, &mws);
            let outcome = if local {
                invalidate(&pair.b, key, IBV_WC_LOC_PROT_ERR)
            } else {
                pair.b.recv(4, 0, 100)?;
                let mut send = Send::new(3, IBV_WR_SEND_WITH_INV, vec![pair.a.mr.sge(0, 8)]);
                send.imm = key.to_be();
                pair.a.send(send)?;
                pair.a.expect(3, IBV_WC_REM_ACCESS_ERR).map(|_| ())
            };
            outcome.map_err(|why| format!("{name}, local {local}: {why}"))?;
            // The window of the other QP is still bound.
            let attempt = request(
                &other_pair,
                IBV_WR_RDMA_READ,
                window_start(&pair),
                8,
                mws[2].rkey(),
            );
            expect_granted(&other_pair, attempt)?;
        }
    }
    Ok(())
}

pub fn reset(ends: &Ends) -> Outcome {
    let (pair, _mw) = bound_window(ends, IBV_MW_TYPE_2, REMOTE)?;
    let attr = ibv_qp_attr {
        qp_state: IBV_QPS_RESET,
        ..Default::default()
    };
    let modified = pair.b.qp.modify(&attr, IBV_QP_STATE);
    modified.map_err(|e| format!("to RESET: {e}"))?;
    let End { mr, .. } = pair.b;
    deregister(mr)
}

pub fn destroy(ends: &Ends) -> Outcome {
    let (pair, mw) = bound_window(ends, IBV_MW_TYPE_2, REMOTE)?;
    let End { qp, mr, .. } = pair.b;
    let mr = expect_dereg_refused(mr)?;
    drop(qp);
    deregister(mr)?;
    drop(mw);
    Ok(())
}

pub fn dealloc_pd_in_use(ends: &Ends) -> Outcome {
    let pair = Pair::new(ends, plan())?;
    let text = |e: std::io::Error| format!("set-up: {e}");
    let pd = Pd::new(&pair.b.qp.pd.context).map_err(text)?;
    let mw = alloc(&pd, IBV_MW_TYPE_1)?;
    // SAFETY: The domain is alive. If the call succeeds, the domain is not used any more.
    let errno = unsafe { ibv_dealloc_pd(pd.raw) };
    if errno != EBUSY {
        std::mem::forget((pd, mw));
        return Err(format!("dealloc_pd: errno {errno}"));
    }
    Ok(())
}
