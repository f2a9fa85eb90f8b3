// SPDX-License-Identifier: GPL-2.0

//! Memory windows: the access that they grant, their QPs, their end, and the bindings that are
//! refused.
//!
//! The region of B has no remote access rights itself, so A can access it only through windows.

use std::rc::Rc;

pub mod lifetime;
mod refusal;

use rrxe_verbs::{
    object::{Mr, Mw, Pd},
    sys::*,
};

use crate::{
    pair::{ensure, End, Ends, Outcome, Pair, Plan, Send},
    tap::Tap,
};

/// Offset of B's windows in its region.
const START: usize = 4096 + 13;
/// Bytes of B's windows.
const LENGTH: usize = 9000;
/// Bytes of a region.
const MEMORY: usize = 32768;
const KINDS: [ibv_mw_type; 2] = [IBV_MW_TYPE_1, IBV_MW_TYPE_2];
const REMOTE: u32 = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

/// Runs all cases.
pub fn run(tap: &mut Tap, ends: &Ends) {
    for kind in KINDS {
        tap.result(
            &format!("type {kind}: a window gives access to its range only"),
            bounds(ends, kind),
        );
        tap.result(
            &format!("type {kind}: a window grants only the rights of its binding"),
            rights(ends, kind),
        );
        tap.result(
            &format!("type {kind}: an unbound window gives no access"),
            unbound_window(ends, kind),
        );
        tap.result(
            &format!("type {kind}: binding changes the rkey"),
            lifetime::changed_key(ends, kind),
        );
        tap.result(
            &format!("type {kind}: dereg_mr of a region with windows: EINVAL"),
            lifetime::dereg_region_in_use(ends, kind),
        );
        tap.result(
            &format!("type {kind}: a deallocated window gives no access"),
            lifetime::dealloc(ends, kind),
        );
        tap.result(
            &format!("type {kind}: invalid bindings: MW_BIND_ERR"),
            refusal::all(ends, kind),
        );
    }
    tap.result(
        "type 1: binding zero bytes unbinds the window",
        lifetime::unbind(ends),
    );
    tap.result("type 1: bind_mw binds the window", verb(ends));
    tap.result("type 1: all QPs of the PD can use the window", shared(ends));
    tap.result(
        "type 2: only the QP that bound the window can use it",
        other_qp(ends),
    );
    tap.result(
        "type 2: a zero-based window has addresses from zero",
        zero_based(ends),
    );
    tap.result(
        "type 2: a window is bound again after LOCAL_INV",
        lifetime::local_inv(ends),
    );
    tap.result(
        "type 2: SEND_WITH_INV unbinds the window",
        lifetime::remote_inv(ends),
    );
    tap.result(
        "invalidation of an invalid rkey fails",
        lifetime::bad_inv(ends),
    );
    tap.result(
        "type 2: RESET of the QP unbinds the window",
        lifetime::reset(ends),
    );
    tap.result(
        "type 2: destroying the QP unbinds the window",
        lifetime::destroy(ends),
    );
    tap.result(
        "dealloc_pd of a PD with windows: EBUSY",
        lifetime::dealloc_pd_in_use(ends),
    );
    tap.result(
        "the rkey of a window as lkey: LOC_PROT_ERR",
        not_local(ends),
    );
}

fn plan() -> Plan {
    Plan {
        memory: MEMORY,
        mr_access: IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND,
        ..Plan::default()
    }
}

/// A BIND_MW request.
struct Bind<'a> {
    mw: &'a Mw,
    rkey: u32,
    mr: &'a Mr,
    addr: u64,
    length: u64,
    access: u32,
}

impl<'a> Bind<'a> {
    fn new(mw: &'a Mw, mr: &'a Mr, access: u32) -> Self {
        Self {
            mw,
            rkey: next_key(mw.rkey()),
            mr,
            addr: mr.buffer.addr() + START as u64,
            length: LENGTH as u64,
            access,
        }
    }

    fn length(self, length: u64) -> Self {
        Self { length, ..self }
    }

    fn info(&self) -> ibv_mw_bind_info {
        ibv_mw_bind_info {
            mr: self.mr.raw,
            addr: self.addr,
            length: self.length,
            mw_access_flags: self.access,
        }
    }

    /// Posts the work request, which must complete with `status`. On success stores the new R_Key
    /// in the library's window.
    fn expect(self, end: &End, status: ibv_wc_status) -> Outcome {
        let mut wr = ibv_send_wr {
            wr_id: 5,
            opcode: IBV_WR_BIND_MW,
            send_flags: IBV_SEND_SIGNALED,
            ..Default::default()
        };
        wr.__bindgen_anon_2.bind_mw.mw = self.mw.raw;
        wr.__bindgen_anon_2.bind_mw.rkey = self.rkey;
        wr.__bindgen_anon_2.bind_mw.bind_info = self.info();
        let posted = end.qp.post_send(&mut wr, &mut []);
        posted.map_err(|e| format!("post_send: {e}"))?;
        let wc = end.expect(5, status)?;
        if status == IBV_WC_SUCCESS {
            self.mw.set_rkey(self.rkey);
            ensure(wc.opcode == IBV_WC_BIND_MW, || {
                format!("opcode {}", wc.opcode)
            })?;
        }
        Ok(())
    }

    fn done(self, end: &End) -> Outcome {
        self.expect(end, IBV_WC_SUCCESS)
    }
}

fn next_key(key: u32) -> u32 {
    key & !0xff | key.wrapping_add(1) & 0xff
}

fn alloc(pd: &Rc<Pd>, kind: ibv_mw_type) -> Result<Mw, String> {
    Mw::new(pd, kind).map_err(|e| format!("alloc_mw: {e}"))
}

/// Creates a pair whose end B has a window of type `kind`, bound with the rights `access`.
fn bound_window(ends: &Ends, kind: ibv_mw_type, access: u32) -> Result<(Pair, Mw), String> {
    let pair = Pair::new(ends, plan())?;
    let mw = alloc(&pair.b.qp.pd, kind)?;
    Bind::new(&mw, &pair.b.mr, access).done(&pair.b)?;
    Ok((pair, mw))
}

/// A request by A for `length` bytes at the remote address `addr`.
fn request(pair: &Pair, opcode: ibv_wr_opcode, addr: u64, length: usize, rkey: u32) -> Send {
    let mut request = Send::new(7, opcode, vec![pair.a.mr.sge(0, length)]);
    request.remote = (addr, rkey);
    request
}

fn window_start(pair: &Pair) -> u64 {
    pair.b.mr.buffer.addr() + START as u64
}

fn expect_granted(pair: &Pair, request: Send) -> Outcome {
    pair.a.send(request)?;
    pair.a.expect(7, IBV_WC_SUCCESS).map(|_| ())
}

/// Posts a request at A, which must fail with REM_ACCESS_ERR and write no byte at B.
fn expect_refused(pair: &Pair, request: Send) -> Outcome {
    pair.a.send(request)?;
    pair.a.expect(7, IBV_WC_REM_ACCESS_ERR)?;
    let touched = (0..MEMORY).find(|&at| pair.b.mr.buffer.get(at) != 0);
    ensure(touched.is_none(), || {
        format!("byte {touched:?} was written")
    })
}

/// A writes and reads the whole range of a window. No byte outside of the range is written.
pub fn whole_range(ends: &Ends, kind: ibv_mw_type) -> Outcome {
    let (mut pair, mw) = bound_window(ends, kind, REMOTE)?;
    pair.a.mr.buffer.fill(0, LENGTH, 3);
    let whole = request(
        &pair,
        IBV_WR_RDMA_WRITE,
        window_start(&pair),
        LENGTH,
        mw.rkey(),
    );
    expect_granted(&pair, whole)?;
    let wrong = pair.b.mr.buffer.mismatch(START, LENGTH, 3);
    ensure(wrong.is_none(), || format!("byte {wrong:?} is wrong"))?;
    let outside = (0..START).chain(START + LENGTH..MEMORY);
    let touched = { outside }.find(|&at| pair.b.mr.buffer.get(at) != 0);
    ensure(touched.is_none(), || {
        format!("byte {touched:?} was written")
    })?;
    pair.a.mr.buffer.fill(0, LENGTH, 4);
    let whole = request(
        &pair,
        IBV_WR_RDMA_READ,
        window_start(&pair),
        LENGTH,
        mw.rkey(),
    );
    expect_granted(&pair, whole)?;
    let wrong = pair.a.mr.buffer.mismatch(0, LENGTH, 3);
    ensure(wrong.is_none(), || format!("byte {wrong:?} was read wrong"))
}

fn bounds(ends: &Ends, kind: ibv_mw_type) -> Outcome {
    whole_range(ends, kind)?;
    let around: [(i64, usize); 8] = [
        (-1, 1),
        (-1, 2),
        (LENGTH as i64, 1),
        (LENGTH as i64 - 1, 2),
        (0, LENGTH + 1),
        (-1, LENGTH + 2),
        (-(START as i64), 8),
        (i64::MIN, 8),
    ];
    for opcode in [IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ] {
        for (distance, length) in around {
            let (mut pair, mw) = bound_window(ends, kind, REMOTE)?;
            pair.a.mr.buffer.fill(0, LENGTH, 3);
            let addr = window_start(&pair).wrapping_add(distance as u64);
            expect_refused(&pair, request(&pair, opcode, addr, length, mw.rkey()))
                .map_err(|why| format!("{length} bytes at {distance}: {why}"))?;
        }
    }
    Ok(())
}

fn rights(ends: &Ends, kind: ibv_mw_type) -> Outcome {
    let needs = [
        (IBV_WR_RDMA_WRITE, IBV_ACCESS_REMOTE_WRITE),
        (IBV_WR_RDMA_READ, IBV_ACCESS_REMOTE_READ),
        (IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_ACCESS_REMOTE_ATOMIC),
    ];
    for (opcode, right) in needs {
        for access in [right, REMOTE & !right] {
            let (pair, mw) = bound_window(ends, kind, access)?;
            // The first aligned 64-bit word of the window.
            let addr = window_start(&pair).next_multiple_of(8);
            let attempt = request(&pair, opcode, addr, 8, mw.rkey());
            let outcome = if access == right {
                expect_granted(&pair, attempt)
            } else {
                expect_refused(&pair, attempt)
            };
            outcome.map_err(|why| format!("opcode {opcode} with {access:#x}: {why}"))?;
        }
    }
    Ok(())
}

fn unbound_window(ends: &Ends, kind: ibv_mw_type) -> Outcome {
    let pair = Pair::new(ends, plan())?;
    let mw = alloc(&pair.b.qp.pd, kind)?;
    let attempt = request(&pair, IBV_WR_RDMA_READ, window_start(&pair), 8, mw.rkey());
    expect_refused(&pair, attempt)
}

fn verb(ends: &Ends) -> Outcome {
    let pair = Pair::new(ends, plan())?;
    let mw = alloc(&pair.b.qp.pd, IBV_MW_TYPE_1)?;
    let old = mw.rkey();
    let mut bind = ibv_mw_bind {
        wr_id: 8,
        send_flags: IBV_SEND_SIGNALED,
        bind_info: Bind::new(&mw, &pair.b.mr, REMOTE).info(),
    };
    // SAFETY: The operation table is that of the open context; the request outlives the call.
    let errno = unsafe {
        let verb = (*pair.b.qp.pd.context.0).ops.bind_mw;
        verb.expect("the provider has windows")(pair.b.qp.raw, mw.raw, &mut bind)
    };
    ensure(errno == 0, || format!("bind_mw: errno {errno}"))?;
    pair.b.expect(8, IBV_WC_SUCCESS)?;
    ensure(mw.rkey() == next_key(old), || {
        "the key isn't the next".into()
    })?;
    expect_granted(
        &pair,
        request(&pair, IBV_WR_RDMA_READ, window_start(&pair), 8, mw.rkey()),
    )
}

fn shared(ends: &Ends) -> Outcome {
    let (pair, mw) = bound_window(ends, IBV_MW_TYPE_1, REMOTE)?;
    let other_pair = pair.in_same_pd(ends, plan())?;
    expect_granted(
        &other_pair,
        request(
            &other_pair,
            IBV_WR_RDMA_READ,
            window_start(&pair),
            8,
            mw.rkey(),
        ),
    )
}

fn other_qp(ends: &Ends) -> Outcome {
    let (pair, mw) = bound_window(ends, IBV_MW_TYPE_2, REMOTE)?;
    let other_pair = pair.in_same_pd(ends, plan())?;
    expect_granted(
        &pair,
        request(&pair, IBV_WR_RDMA_READ, window_start(&pair), 8, mw.rkey()),
    )?;
    expect_refused(
        &other_pair,
        request(
            &other_pair,
            IBV_WR_RDMA_READ,
            window_start(&pair),
            8,
            mw.rkey(),
        ),
    )
}

fn zero_based(ends: &Ends) -> Outcome {
    let access = REMOTE | IBV_ACCESS_ZERO_BASED;
    let (mut pair, mw) = bound_window(ends, IBV_MW_TYPE_2, access)?;
    pair.a.mr.buffer.fill(0, LENGTH, 9);
    expect_granted(
        &pair,
        request(&pair, IBV_WR_RDMA_WRITE, 0, LENGTH, mw.rkey()),
    )?;
    let wrong = pair.b.mr.buffer.mismatch(START, LENGTH, 9);
    ensure(wrong.is_none(), || format!("byte {wrong:?} is wrong"))?;
    for (addr, length) in [(LENGTH as u64, 1), (1, LENGTH), (u64::MAX, 1)] {
        let (pair, mw) = bound_window(ends, IBV_MW_TYPE_2, access)?;
        expect_refused(
            &pair,
            request(&pair, IBV_WR_RDMA_WRITE, addr, length, mw.rkey()),
        )?;
    }
    let (pair, mw) = bound_window(ends, IBV_MW_TYPE_2, access)?;
    expect_refused(
        &pair,
        request(&pair, IBV_WR_RDMA_WRITE, window_start(&pair), 1, mw.rkey()),
    )
}

fn not_local(ends: &Ends) -> Outcome {
    let (pair, mw) = bound_window(ends, IBV_MW_TYPE_2, REMOTE)?;
    let mut source = pair.b.mr.sge(START, 8);
    source.lkey = mw.rkey();
    pair.b.send(Send::new(7, IBV_WR_SEND, vec![source]))?;
    pair.b.expect(7, IBV_WC_LOC_PROT_ERR).map(|_| ())
}
