// SPDX-License-Identifier: GPL-2.0

//! Tests of the limits of verbs' arguments: a call with an argument out of range fails with the
//! documented errno, and a call with an argument at the limit succeeds.

use std::{io, rc::Rc};

use rrxe_verbs::{
    link::{self, Settings},
    object::{Context, Cq, Depth, Mr, Pd, Qp, ALL_ACCESS},
    sys::*,
};

use crate::{
    pair::{ensure, Ends, Outcome, Pair, Plan},
    tap::Tap,
};

const EFAULT: i32 = 14;
const EINVAL: i32 = 22;
const ENOMEM: i32 = 12;
pub const EOPNOTSUPP: i32 = 95;

/// Runs all cases.
pub fn run(tap: &mut Tap, ends: &Ends) {
    let context = match Context::open(ends.a) {
        Ok(context) => context,
        Err(why) => return tap.result("open the device", Err(why)),
    };
    let pd = match Pd::new(&context) {
        Ok(pd) => pd,
        Err(why) => return tap.result("allocate a PD", Err(why)),
    };
    completion_queues(tap, &context);
    queue_pairs(tap, &context, &pd);
    regions(tap, &pd);
    ports_and_gids(tap, &context);
    transitions(tap, ends);
}

/// Checks that `result` is an error with one of `errnos`.
fn refused<T>(result: io::Result<T>, errnos: &[i32]) -> Outcome {
    match result {
        Ok(_) => Err("it succeeded".into()),
        Err(why) if errnos.contains(&why.raw_os_error().unwrap_or(0)) => Ok(()),
        Err(why) => Err(format!("{why}, expected errno {errnos:?}")),
    }
}

fn succeeds<T>(result: io::Result<T>) -> Outcome {
    result.map(|_| ()).map_err(|why| why.to_string())
}

fn completion_queues(tap: &mut Tap, context: &Rc<Context>) {
    let limit = match context.max_cqe() {
        Ok(limit) => limit,
        Err(why) => return tap.result("query_device", Err(why.to_string())),
    };
    for (entries, ok) in [
        (1, true),
        (limit, true),
        (limit + 1, false),
        (0, false),
        (-1, false),
    ] {
        let result = Cq::new(context, entries);
        let outcome = if ok {
            succeeds(result)
        } else {
            refused(result, &[EINVAL])
        };
        tap.result(&format!("create_cq with {entries} entries"), outcome);
    }
}

fn queue_pairs(tap: &mut Tap, context: &Rc<Context>, pd: &Rc<Pd>) {
    let cq = match Cq::new(context, 16) {
        Ok(cq) => cq,
        Err(why) => return tap.result("create_cq", Err(why)),
    };
    let usual = Depth {
        send: 16,
        recv: 16,
        sge: 1,
        inline: 0,
    };
    let cases = [
        ("the usual capacities", usual, true),
        ("32 SGEs", Depth { sge: 32, ..usual }, true),
        ("33 SGEs", Depth { sge: 33, ..usual }, false),
        (
            "512 bytes inline",
            Depth {
                inline: 512,
                ..usual
            },
            true,
        ),
        (
            "2^31 send WRs",
            Depth {
                send: 1 << 31,
                ..usual
            },
            false,
        ),
        (
            "2^20+1 receive WRs",
            Depth {
                recv: (1 << 20) + 1,
                ..usual
            },
            false,
        ),
        (
            "2^31 bytes inline",
            Depth {
                inline: 1 << 31,
                ..usual
            },
            false,
        ),
    ];
    for (name, depth, ok) in cases {
        let result = Qp::new(pd, &cq, depth);
        let outcome = if ok {
            succeeds(result)
        } else {
            refused(result, &[EINVAL, ENOMEM])
        };
        tap.result(&format!("create_qp with {name}"), outcome);
    }
}

fn reg(pd: &Rc<Pd>, addr: u64, len: usize, access: u32) -> io::Result<()> {
    // SAFETY: The region is not used. If the registration succeeds, the region is deregistered
    // while the memory still exists.
    unsafe {
        let mr = ibv_reg_mr_iova2(pd.raw, addr as *mut _, len, addr, access);
        if mr.is_null() {
            return Err(io::Error::last_os_error());
        }
        ibv_dereg_mr(mr);
    }
    Ok(())
}

fn regions(tap: &mut Tap, pd: &Rc<Pd>) {
    let mr = match Mr::new(pd, 8192, ALL_ACCESS) {
        Ok(mr) => mr,
        Err(why) => return tap.result("register memory", Err(why)),
    };
    let at = mr.buffer.addr();
    let cases = [
        (
            "one byte at an odd address",
            succeeds(reg(pd, at + 4095, 1, ALL_ACCESS)),
        ),
        (
            "an unmapped address",
            refused(reg(pd, 0x1000, 4096, ALL_ACCESS), &[EFAULT]),
        ),
        (
            "a range that wraps",
            refused(reg(pd, u64::MAX - 10, 4096, ALL_ACCESS), &[EINVAL, EFAULT]),
        ),
        (
            "remote write without local write",
            refused(reg(pd, at, 64, 2), &[EINVAL]),
        ),
        (
            "remote atomic without local write",
            refused(reg(pd, at, 64, 8), &[EINVAL]),
        ),
        (
            "unknown access flags",
            refused(reg(pd, at, 64, 1 << 19), &[EINVAL, EOPNOTSUPP]),
        ),
        (
            "a range longer than its mapping",
            refused(reg(pd, at, 1 << 40, ALL_ACCESS), &[EFAULT, ENOMEM]),
        ),
    ];
    for (name, outcome) in cases {
        tap.result(&format!("reg_mr with {name}"), outcome);
    }
}

fn ports_and_gids(tap: &mut Tap, context: &Rc<Context>) {
    for port in [0u8, 2, 255] {
        let mut attr = ibv_port_attr::default();
        // SAFETY: `attr` outlives the call.
        let errno = unsafe { ibv_query_port(context.0, port, (&raw mut attr).cast()) };
        let outcome = ensure(errno == EINVAL, || format!("errno {errno}"));
        tap.result(&format!("query_port {port}"), outcome);
    }
    let mut gid = ibv_gid::default();
    // SAFETY: `gid` outlives the call.
    let failed = unsafe { ibv_query_gid(context.0, 1, 100_000, &mut gid) };
    tap.result(
        "query_gid beyond the table",
        ensure(failed != 0, || "it succeeded".into()),
    );
    let mut pkey = 0;
    // SAFETY: `pkey` outlives the call.
    let failed = unsafe { ibv_query_pkey(context.0, 1, 0, &mut pkey) };
    tap.result(
        "pkey 0 is 0xffff",
        ensure(failed == 0 && pkey == 0xffff, || format!("{pkey:#x}")),
    );
}

fn transitions(tap: &mut Tap, ends: &Ends) {
    let mut expect = |name: &str, state: Result<io::Result<()>, String>| {
        let outcome = state.and_then(|result| refused(result, &[EINVAL]));
        tap.result(&format!("modify_qp: {name}"), outcome);
    };
    let state = |s: ibv_qp_state| ibv_qp_attr {
        qp_state: s,
        port_num: 1,
        ..Default::default()
    };
    let fresh = || -> Result<Qp, String> { new_qp(ends).map_err(|e: io::Error| e.to_string()) };

    let jump = |s| fresh().map(|qp| qp.modify(&state(s), IBV_QP_STATE));
    expect("RESET to RTS", jump(IBV_QPS_RTS));
    expect("RESET to RTR", jump(IBV_QPS_RTR));
    expect("RESET to INIT without port and rights", jump(IBV_QPS_INIT));

    let init = |port: u8, pkey: u16| {
        fresh().map(|qp| {
            let attr = ibv_qp_attr {
                port_num: port,
                pkey_index: pkey,
                ..state(IBV_QPS_INIT)
            };
            let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
            qp.modify(&attr, mask)
        })
    };
    expect("port 2", init(2, 0));
    expect("pkey index 5", init(1, 5));

    let connected = || Pair::new(ends, Plan::default());
    let with_settings = |settings: Settings| {
        connected().map(|pair| {
            let reset = pair.a.qp.modify(&state(IBV_QPS_RESET), IBV_QP_STATE);
            reset.and_then(|()| link::to_init(&pair.a.qp, ALL_ACCESS))?;
            link::to_rtr(&pair.a.qp, &pair.a.endpoint, &pair.b.endpoint, &settings)
        })
    };
    expect(
        "path MTU 0",
        with_settings(Settings {
            mtu: 0,
            ..Settings::default()
        }),
    );
    expect(
        "path MTU 4096 on a port with less",
        with_settings(Settings {
            mtu: IBV_MTU_4096,
            ..Settings::default()
        }),
    );
    expect(
        "255 outstanding READs",
        with_settings(Settings {
            rd_atomic: 255,
            ..Settings::default()
        }),
    );
    expect(
        "RNR timer 32",
        with_settings(Settings {
            min_rnr_timer: 32,
            ..Settings::default()
        }),
    );
    expect(
        "a wrong current state",
        connected().map(|pair| {
            let attr = ibv_qp_attr {
                cur_qp_state: IBV_QPS_SQD,
                ..state(IBV_QPS_RTS)
            };
            pair.a.qp.modify(&attr, IBV_QP_STATE | IBV_QP_CUR_STATE)
        }),
    );
}

fn new_qp(ends: &Ends) -> io::Result<Qp> {
    let context = Context::open(ends.a)?;
    let pd = Pd::new(&context)?;
    let cq = Cq::new(&context, 16)?;
    Qp::new(&pd, &cq, Depth::default())
}
