// SPDX-License-Identifier: GPL-2.0

//! Extended reliable connections (XRC): an initiator of device A sends over one target of device B
//! to SRQs that belong to several protection domains.

use std::rc::Rc;

use rrxe_verbs::{
    link::{Endpoint, Settings},
    object::{Context, Cq, Mr, Pd, ALL_ACCESS},
    sys::*,
    xrc::{Initiator, Request, Target, XrcSrq, Xrcd},
};

use crate::{
    pair::{ensure, next_completion, Ends, Outcome},
    srq::{errno_of, expect_event},
    tap::Tap,
};

const EBUSY: i32 = 16;
const MEMORY: usize = 1 << 16;
/// Bytes of a message: more than one packet.
const LENGTH: usize = 5000;
/// Maximum number of asynchronous events of a target in its life (`MAX_RAISED_BY_TARGET`,
/// rust/rdma/verbs/unread.rs).
const MAX_EVENTS: usize = 64;
/// Wait for the next event, in milliseconds. Without an event for so long, all have been read.
const EVENT_TIMEOUT_MS: i32 = 100;

/// Runs all cases.
pub fn run(tap: &mut Tap, ends: &Ends) {
    tap.result(
        "XRC: a SEND uses a receive of the SRQ that it names",
        sends(ends),
    );
    tap.result(
        "XRC: a WRITE with immediate uses the SRQ that it names",
        imm(ends),
    );
    tap.result(
        "XRC: requests access memory of the PD of their SRQ",
        memory_of_srq(ends),
    );
    tap.result(
        "XRC: a SEND waits for a receive in its own SRQ",
        waits_for_own_srq(ends),
    );
    tap.result(
        "XRC: a request with an unknown SRQ: REM_INV_REQ_ERR",
        unknown_srq(ends),
    );
    tap.result(
        "XRC: an SRQ of another XRC domain: REM_INV_REQ_ERR",
        other_domain(ends),
    );
    tap.result("XRC: an SRQ whose ring is broken: REM_OP_ERR", broken(ends));
    tap.result(
        "XRC: close_xrcd of a domain in use: EBUSY",
        close_in_use(ends),
    );
    tap.result("XRC: a target raises at most 64 events", few_events(ends));
    tap.result(
        "XRC: a target created with an SRQ serves all SRQs",
        target_with_srq(ends),
    );
}

/// An SRQ with a protection domain, memory and a CQ of its own.
struct Owner {
    srq: XrcSrq,
    mr: Mr,
}

impl Owner {
    fn new(context: &Rc<Context>, xrcd: &Rc<Xrcd>) -> std::io::Result<Self> {
        let pd = Pd::new(context)?;
        let cq = Cq::new(context, 64)?;
        Ok(Self {
            mr: Mr::new(&pd, MEMORY, ALL_ACCESS)?,
            srq: XrcSrq::new(&pd, &cq, xrcd, 16)?,
        })
    }
}

/// A connection, and two owners of SRQs in the XRC domain of its target.
struct Connection {
    ini: Initiator,
    mr: Mr,
    tgt: Target,
    owners: [Owner; 2],
    context: Rc<Context>,
    xrcd: Rc<Xrcd>,
}

impl Connection {
    fn new(ends: &Ends) -> Result<Self, String> {
        Self::make(ends).map_err(|why| format!("set-up: {why}"))
    }

    fn make(ends: &Ends) -> std::io::Result<Self> {
        let context_b = Context::open(ends.b)?;
        let xrcd = Xrcd::new(&context_b)?;
        let owners = [
            Owner::new(&context_b, &xrcd)?,
            Owner::new(&context_b, &xrcd)?,
        ];
        Self::connect(ends, context_b, xrcd, owners)
    }

    /// Connects an initiator on device A to a new target of `xrcd`.
    fn connect(
        ends: &Ends,
        context_b: Rc<Context>,
        xrcd: Rc<Xrcd>,
        owners: [Owner; 2],
    ) -> std::io::Result<Self> {
        let context_a = Context::open(ends.a)?;
        let pd = Pd::new(&context_a)?;
        let cq = Cq::new(&context_a, 64)?;
        let mut connection = Self {
            ini: Initiator::new(&pd, &cq)?,
            mr: Mr::new(&pd, MEMORY, ALL_ACCESS)?,
            tgt: Target::new(&xrcd)?,
            owners,
            context: context_b,
            xrcd,
        };
        connection.pair(ends)?;
        Ok(connection)
    }

    /// Connects the initiator and the target, which are in RESET.
    fn pair(&mut self, ends: &Ends) -> std::io::Result<()> {
        let context_a = &self.ini.pd.context;
        let ours = Endpoint::new(context_a, self.ini.number(), 0xff_fffd, ends.v6)?;
        let theirs = Endpoint::new(&self.context, self.tgt.number(), 7, ends.v6)?;
        let settings = Settings::default();
        self.tgt.connect(ALL_ACCESS, &theirs, &ours, &settings)?;
        self.ini.connect(&ours, &theirs, &settings)
    }

    /// Resets the target and connects it to a new initiator.
    fn reconnect(&mut self, ends: &Ends) -> std::io::Result<()> {
        self.tgt.reset()?;
        self.ini = Initiator::new(&self.ini.pd.clone(), &self.ini.cq.clone())?;
        self.pair(ends)
    }

    fn request(&self, owner: usize, opcode: ibv_wr_opcode) -> Request {
        let owner = &self.owners[owner];
        Request {
            wr_id: 1,
            opcode,
            imm: 0x1234,
            srqn: owner.srq.number,
            remote: owner.mr.buffer.addr(),
            rkey: owner.mr.rkey(),
        }
    }

    fn post(&self, request: &Request, offset: usize) -> Outcome {
        let sge = self.mr.sge(offset, LENGTH);
        self.ini.post(request, &sge).map_err(|why| why.to_string())
    }

    /// Waits for the completion of a request and returns its status.
    fn status(&self) -> Result<ibv_wc_status, String> {
        Ok(next_completion(&self.ini.cq)?.status)
    }

    fn expect(&self, wanted: ibv_wc_status) -> Outcome {
        let status = self.status()?;
        ensure(status == wanted, || {
            format!("status {status}, not {wanted}")
        })
    }

    /// Waits for the owner's next receive, which must be by this connection's target.
    fn received(&self, owner: usize, opcode: ibv_wc_opcode) -> Result<ibv_wc, String> {
        let wc = next_completion(&self.owners[owner].srq.cq)?;
        ensure(
            (wc.status, wc.opcode, wc.qp_num) == (IBV_WC_SUCCESS, opcode, self.tgt.number()),
            || format!("status {} opcode {} QP {}", wc.status, wc.opcode, wc.qp_num),
        )?;
        Ok(wc)
    }
}

fn sends(ends: &Ends) -> Outcome {
    let mut connection = Connection::new(ends)?;
    for round in 0..6 {
        let owner = round % 2;
        let Owner { srq, mr } = &connection.owners[owner];
        let offset = round * 8192;
        srq.post_recv(round as u64, &mr.sge(offset, LENGTH));
        connection.mr.buffer.fill(0, LENGTH, round as u64);
        connection.post(&connection.request(owner, IBV_WR_SEND), 0)?;
        let wc = connection.received(owner, IBV_WC_RECV)?;
        let right = (wc.wr_id, wc.byte_len) == (round as u64, LENGTH as u32);
        ensure(right, || format!("WR {} of {}", wc.wr_id, wc.byte_len))?;
        connection.expect(IBV_WC_SUCCESS)?;
        let wrong = connection.owners[owner]
            .mr
            .buffer
            .mismatch(offset, LENGTH, round as u64);
        ensure(wrong.is_none(), || format!("wrong byte at {wrong:?}"))?;
    }
    Ok(())
}

fn imm(ends: &Ends) -> Outcome {
    let mut connection = Connection::new(ends)?;
    let Owner { srq, mr } = &connection.owners[1];
    srq.post_recv(5, &mr.sge(0, 0));
    connection.mr.buffer.fill(0, LENGTH, 9);
    connection.post(&connection.request(1, IBV_WR_RDMA_WRITE_WITH_IMM), 0)?;
    let wc = connection.received(1, IBV_WC_RECV_RDMA_WITH_IMM)?;
    ensure(wc.wr_id == 5, || format!("WR {}", wc.wr_id))?;
    connection.expect(IBV_WC_SUCCESS)?;
    let wrong = connection.owners[1].mr.buffer.mismatch(0, LENGTH, 9);
    ensure(wrong.is_none(), || format!("wrong byte at {wrong:?}"))
}

fn memory_of_srq(ends: &Ends) -> Outcome {
    let mut connection = Connection::new(ends)?;
    connection.mr.buffer.fill(0, LENGTH, 3);
    connection.post(&connection.request(0, IBV_WR_RDMA_WRITE), 0)?;
    connection.expect(IBV_WC_SUCCESS)?;
    connection.post(&connection.request(0, IBV_WR_RDMA_READ), 16384)?;
    connection.expect(IBV_WC_SUCCESS)?;
    let wrong = connection.mr.buffer.mismatch(16384, LENGTH, 3);
    ensure(wrong.is_none(), || format!("wrong byte at {wrong:?}"))?;
    // A request that names the SRQ of one owner can't access the memory of the other.
    let other = Request {
        srqn: connection.owners[1].srq.number,
        ..connection.request(0, IBV_WR_RDMA_WRITE)
    };
    connection.post(&other, 0)?;
    connection.expect(IBV_WC_REM_ACCESS_ERR)?;
    expect_event(&connection.context, Some(IBV_EVENT_QP_ACCESS_ERR))
}

fn waits_for_own_srq(ends: &Ends) -> Outcome {
    let connection = Connection::new(ends)?;
    let Owner { srq, mr } = &connection.owners[0];
    srq.post_recv(1, &mr.sge(0, LENGTH));
    connection.post(&connection.request(1, IBV_WR_SEND), 0)?;
    std::thread::sleep(std::time::Duration::from_millis(20));
    let Owner { srq, mr } = &connection.owners[1];
    srq.post_recv(2, &mr.sge(0, LENGTH));
    let wc = connection.received(1, IBV_WC_RECV)?;
    ensure(wc.wr_id == 2, || format!("WR {}", wc.wr_id))?;
    connection.expect(IBV_WC_SUCCESS)
}

fn unknown_srq(ends: &Ends) -> Outcome {
    for opcode in [IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ] {
        let connection = Connection::new(ends)?;
        let no_srq = Request {
            srqn: connection.owners[0].srq.number ^ connection.owners[1].srq.number ^ 1,
            ..connection.request(0, opcode)
        };
        connection.post(&no_srq, 0)?;
        connection.expect(IBV_WC_REM_INV_REQ_ERR)?;
        expect_event(&connection.context, Some(IBV_EVENT_QP_ACCESS_ERR))?;
    }
    Ok(())
}

fn other_domain(ends: &Ends) -> Outcome {
    let connection = Connection::new(ends)?;
    let xrcd = Xrcd::new(&connection.context).map_err(|why| why.to_string())?;
    let owner = Owner::new(&connection.context, &xrcd).map_err(|why| why.to_string())?;
    owner.srq.post_recv(1, &owner.mr.sge(0, LENGTH));
    let request = Request {
        srqn: owner.srq.number,
        ..connection.request(0, IBV_WR_SEND)
    };
    connection.post(&request, 0)?;
    connection.expect(IBV_WC_REM_INV_REQ_ERR)
}

fn broken(ends: &Ends) -> Outcome {
    let connection = Connection::new(ends)?;
    let [damaged, sound] = &connection.owners;
    sound.srq.post_recv(1, &sound.mr.sge(0, LENGTH));
    damaged.srq.break_producer_index();
    connection.post(&connection.request(0, IBV_WR_SEND), 0)?;
    connection.expect(IBV_WC_REM_OP_ERR)?;
    for event in [IBV_EVENT_SRQ_ERR, IBV_EVENT_QP_FATAL] {
        expect_event(&connection.context, Some(event))?;
    }
    // Another connection to the same XRC domain still works.
    let Connection {
        context,
        xrcd,
        owners,
        ..
    } = connection;
    let other = Connection::connect(ends, context, xrcd, owners).map_err(|why| why.to_string())?;
    other.post(&other.request(1, IBV_WR_SEND), 0)?;
    other.received(1, IBV_WC_RECV)?;
    other.expect(IBV_WC_SUCCESS)
}

fn close_in_use(ends: &Ends) -> Outcome {
    let context = Context::open(ends.b).map_err(|why| why.to_string())?;
    let xrcd = Xrcd::new(&context).map_err(|why| why.to_string())?;
    let tgt = Target::new(&xrcd).map_err(|why| why.to_string())?;
    let errno = errno_of(&xrcd.close());
    ensure(errno == EBUSY, || format!("errno {errno} with a QP"))?;
    drop(tgt);
    let owner = Owner::new(&context, &xrcd).map_err(|why| why.to_string())?;
    let errno = errno_of(&xrcd.close());
    ensure(errno == EBUSY, || format!("errno {errno} with a queue"))?;
    drop(owner);
    let errno = errno_of(&xrcd.close());
    ensure(errno == 0, || format!("errno {errno}"))
}

fn few_events(ends: &Ends) -> Outcome {
    let mut connection = Connection::new(ends)?;
    for _ in 0..MAX_EVENTS + 16 {
        // An R_Key that no region has.
        let request = Request {
            rkey: 0,
            ..connection.request(0, IBV_WR_RDMA_WRITE)
        };
        connection.post(&request, 0)?;
        connection.expect(IBV_WC_REM_ACCESS_ERR)?;
        connection.reconnect(ends).map_err(|why| why.to_string())?;
    }
    let mut count = 0;
    let next = || connection.context.async_event_within(EVENT_TIMEOUT_MS);
    while let Some(event) = next().map_err(|why| why.to_string())? {
        ensure(event == IBV_EVENT_QP_ACCESS_ERR, || {
            format!("event {event}")
        })?;
        count += 1;
    }
    ensure(count == MAX_EVENTS, || format!("{count} events"))
}

fn target_with_srq(ends: &Ends) -> Outcome {
    let mut connection = Connection::new(ends)?;
    connection.tgt = Target::with_srq(&connection.xrcd, &connection.owners[0].srq)
        .map_err(|why| why.to_string())?;
    connection.ini = Initiator::new(&connection.ini.pd.clone(), &connection.ini.cq.clone())
        .map_err(|why| why.to_string())?;
    connection.pair(ends).map_err(|why| why.to_string())?;
    for owner in 0..2 {
        let Owner { srq, mr } = &connection.owners[owner];
        srq.post_recv(1, &mr.sge(0, LENGTH));
        connection.post(&connection.request(owner, IBV_WR_SEND), 0)?;
        connection.received(owner, IBV_WC_RECV)?;
        connection.expect(IBV_WC_SUCCESS)?;
    }
    Ok(())
}
