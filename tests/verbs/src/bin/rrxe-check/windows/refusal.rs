// SPDX-License-Identifier: GPL-2.0

//! Bindings of windows that fail with MW_BIND_ERR.

use rrxe_verbs::{
    object::{Mr, Pd},
    sys::*,
};

use super::{alloc, bound_window, plan, Bind, MEMORY, REMOTE, START};
use crate::pair::{Ends, Outcome, Pair, Plan};

/// A change that makes a valid binding invalid.
type Mutation = fn(&mut Bind<'_>);

pub fn all(ends: &Ends, kind: ibv_mw_type) -> Outcome {
    let mutations: [(&str, Mutation); 8] = [
        ("an address before the region", |b| {
            b.addr -= START as u64 + 1
        }),
        ("a range one byte too long", |b| {
            b.length = (MEMORY - START + 1) as u64;
        }),
        ("a range that wraps", |b| b.length = u64::MAX),
        ("an address far away", |b| b.addr = u64::MAX),
        ("another window's key", |b| b.rkey ^= 0x100),
        ("an unknown right", |b| b.access |= 1 << 30),
        ("the access right MW_BIND", |b| {
            b.access |= IBV_ACCESS_MW_BIND
        }),
        ("a wrong current rkey", |b| b.mw.set_rkey(b.mw.rkey() ^ 1)),
    ];
    for (name, mutate) in mutations {
        let pair = Pair::new(ends, plan())?;
        let mw = alloc(&pair.b.qp.pd, kind)?;
        let mut bind = Bind::new(&mw, &pair.b.mr, REMOTE);
        mutate(&mut bind);
        bind.expect(&pair.b, IBV_WC_MW_BIND_ERR)
            .map_err(|why| format!("{name}: {why}"))?;
    }
    // A window may reach to the last byte of the region.
    let pair = Pair::new(ends, plan())?;
    let mw = alloc(&pair.b.qp.pd, kind)?;
    Bind::new(&mw, &pair.b.mr, REMOTE)
        .length((MEMORY - START) as u64)
        .done(&pair.b)?;
    refused_regions(ends, kind)?;
    match kind {
        IBV_MW_TYPE_1 => {
            let pair = Pair::new(ends, plan())?;
            let mw = alloc(&pair.b.qp.pd, kind)?;
            let bind = Bind::new(&mw, &pair.b.mr, REMOTE | IBV_ACCESS_ZERO_BASED);
            bind.expect(&pair.b, IBV_WC_MW_BIND_ERR)
        }
        _ => {
            let pair = Pair::new(ends, plan())?;
            let mw = alloc(&pair.b.qp.pd, kind)?;
            let bind = Bind::new(&mw, &pair.b.mr, REMOTE).length(0);
            bind.expect(&pair.b, IBV_WC_MW_BIND_ERR)?;
            let (pair, mw) = bound_window(ends, kind, REMOTE)?;
            let again = Bind::new(&mw, &pair.b.mr, REMOTE);
            again.expect(&pair.b, IBV_WC_MW_BIND_ERR)
        }
    }
}

/// Checks bindings to regions that lack rights or are zero-based, and bindings with a region or a
/// window of another protection domain. A binding that only reads needs no local write.
fn refused_regions(ends: &Ends, kind: ibv_mw_type) -> Outcome {
    let cases = [
        (
            "a region without MW_BIND",
            IBV_ACCESS_LOCAL_WRITE,
            REMOTE,
            IBV_WC_MW_BIND_ERR,
        ),
        (
            "write without local write",
            IBV_ACCESS_MW_BIND,
            IBV_ACCESS_REMOTE_WRITE,
            IBV_WC_MW_BIND_ERR,
        ),
        (
            "atomic without local write",
            IBV_ACCESS_MW_BIND,
            IBV_ACCESS_REMOTE_ATOMIC,
            IBV_WC_MW_BIND_ERR,
        ),
        (
            "read without local write",
            IBV_ACCESS_MW_BIND,
            IBV_ACCESS_REMOTE_READ,
            IBV_WC_SUCCESS,
        ),
        (
            "a zero-based region",
            IBV_ACCESS_MW_BIND | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED,
            REMOTE,
            IBV_WC_MW_BIND_ERR,
        ),
    ];
    for (name, region, access, status) in cases {
        let pair = Pair::new(
            ends,
            Plan {
                mr_access: region,
                ..plan()
            },
        )?;
        let mw = alloc(&pair.b.qp.pd, kind)?;
        let mut bind = Bind::new(&mw, &pair.b.mr, access);
        if region & IBV_ACCESS_ZERO_BASED != 0 {
            bind.addr = START as u64;
        }
        bind.expect(&pair.b, status)
            .map_err(|why| format!("{name}: {why}"))?;
    }
    let pair = Pair::new(ends, plan())?;
    let text = |e: std::io::Error| format!("set-up: {e}");
    let other = Pd::new(&pair.b.qp.pd.context).map_err(text)?;
    let foreign_mr = Mr::new(&other, MEMORY, plan().mr_access).map_err(text)?;
    let mw = alloc(&pair.b.qp.pd, kind)?;
    let bind = Bind::new(&mw, &foreign_mr, REMOTE);
    bind.expect(&pair.b, IBV_WC_MW_BIND_ERR)
        .map_err(|why| format!("a region of another PD: {why}"))?;
    let pair = Pair::new(ends, plan())?;
    let other = Pd::new(&pair.b.qp.pd.context).map_err(text)?;
    let mw = alloc(&other, kind)?;
    let bind = Bind::new(&mw, &pair.b.mr, REMOTE);
    bind.expect(&pair.b, IBV_WC_MW_BIND_ERR)
        .map_err(|why| format!("a window of another PD: {why}"))
}
