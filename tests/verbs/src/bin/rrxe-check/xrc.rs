// SPDX-License-Identifier: GPL-2.0

//! Extended reliable connections (XRC): an initiator of device A sends over one target of device B
//! to SRQs that belong to several protection domains.

use std::rc::Rc;

use rrxe_verbs::{
    link::{Endpoint, Timing},
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
/// Number of asynchronous events that a target raises in its life (`MAX_RAISED_BY_TARGET`,
/// rust/rdma/verbs/unread.rs).
const MOST_EVENTS: usize = 64;
/// Wait for the next event, in milliseconds. Without an event for so long, all have been read.
const PATIENCE: i32 = 100;

/// Runs all cases.
pub fn run(tap: &mut Tap, ends: &Ends) {
    tap.result("XRC: SENDs reach the queues that they name", sends(ends));
    tap.result("XRC: immediate data takes from the queue named", imm(ends));
    tap.result("XRC: the queue says whose memory it is", memory(ends));
    tap.result("XRC: a SEND waits for its own queue only", waits(ends));
    tap.result("XRC: no such queue", no_queue(ends));
    tap.result("XRC: a queue of another domain", foreign(ends));
    tap.result("XRC: a queue whose ring is broken", broken(ends));
    tap.result("XRC: a domain in use stays", busy(ends));
    tap.result("XRC: a target raises few events", few_events(ends));
    tap.result("XRC: a target made with a queue serves all", queue(ends));
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
struct Bench {
    ini: Initiator,
    mr: Mr,
    tgt: Target,
    owners: [Owner; 2],
    context: Rc<Context>,
    xrcd: Rc<Xrcd>,
}

impl Bench {
    fn new(ends: &Ends) -> Result<Self, String> {
        Self::make(ends).map_err(|why| format!("set-up: {why}"))
    }

    fn make(ends: &Ends) -> std::io::Result<Self> {
        let far = Context::open(ends.b)?;
        let xrcd = Xrcd::new(&far)?;
        let owners = [Owner::new(&far, &xrcd)?, Owner::new(&far, &xrcd)?];
        Self::connect(ends, far, xrcd, owners)
    }

    /// Connects an initiator on device A to a new target of `xrcd`.
    fn connect(
        ends: &Ends,
        far: Rc<Context>,
        xrcd: Rc<Xrcd>,
        owners: [Owner; 2],
    ) -> std::io::Result<Self> {
        let near = Context::open(ends.a)?;
        let pd = Pd::new(&near)?;
        let cq = Cq::new(&near, 64)?;
        let mut bench = Self {
            ini: Initiator::new(&pd, &cq)?,
            mr: Mr::new(&pd, MEMORY, ALL_ACCESS)?,
            tgt: Target::new(&xrcd)?,
            owners,
            context: far,
            xrcd,
        };
        bench.pair(ends)?;
        Ok(bench)
    }

    /// Connects the initiator and the target, which are in RESET.
    fn pair(&mut self, ends: &Ends) -> std::io::Result<()> {
        let near = &self.ini.pd.context;
        let ours = Endpoint::new(near, self.ini.number(), 0xff_fffd, ends.v6)?;
        let theirs = Endpoint::new(&self.context, self.tgt.number(), 7, ends.v6)?;
        let timing = Timing::default();
        self.tgt.connect(ALL_ACCESS, &theirs, &ours, &timing)?;
        self.ini.connect(&ours, &theirs, &timing)
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
    let mut bench = Bench::new(ends)?;
    for round in 0..6 {
        let owner = round % 2;
        let Owner { srq, mr } = &bench.owners[owner];
        let offset = round * 8192;
        srq.post_recv(round as u64, &mr.sge(offset, LENGTH));
        bench.mr.buffer.fill(0, LENGTH, round as u64);
        bench.post(&bench.request(owner, IBV_WR_SEND), 0)?;
        let wc = bench.received(owner, IBV_WC_RECV)?;
        let right = (wc.wr_id, wc.byte_len) == (round as u64, LENGTH as u32);
        ensure(right, || format!("WR {} of {}", wc.wr_id, wc.byte_len))?;
        bench.expect(IBV_WC_SUCCESS)?;
        let wrong = bench.owners[owner]
            .mr
            .buffer
            .mismatch(offset, LENGTH, round as u64);
        ensure(wrong.is_none(), || format!("wrong byte at {wrong:?}"))?;
    }
    Ok(())
}

fn imm(ends: &Ends) -> Outcome {
    let mut bench = Bench::new(ends)?;
    let Owner { srq, mr } = &bench.owners[1];
    srq.post_recv(5, &mr.sge(0, 0));
    bench.mr.buffer.fill(0, LENGTH, 9);
    bench.post(&bench.request(1, IBV_WR_RDMA_WRITE_WITH_IMM), 0)?;
    let wc = bench.received(1, IBV_WC_RECV_RDMA_WITH_IMM)?;
    ensure(wc.wr_id == 5, || format!("WR {}", wc.wr_id))?;
    bench.expect(IBV_WC_SUCCESS)?;
    let wrong = bench.owners[1].mr.buffer.mismatch(0, LENGTH, 9);
    ensure(wrong.is_none(), || format!("wrong byte at {wrong:?}"))
}

fn memory(ends: &Ends) -> Outcome {
    let mut bench = Bench::new(ends)?;
    bench.mr.buffer.fill(0, LENGTH, 3);
    bench.post(&bench.request(0, IBV_WR_RDMA_WRITE), 0)?;
    bench.expect(IBV_WC_SUCCESS)?;
    bench.post(&bench.request(0, IBV_WR_RDMA_READ), 16384)?;
    bench.expect(IBV_WC_SUCCESS)?;
    let wrong = bench.mr.buffer.mismatch(16384, LENGTH, 3);
    ensure(wrong.is_none(), || format!("wrong byte at {wrong:?}"))?;
    // A request that names the SRQ of one owner can't access the memory of the other.
    let other = Request {
        srqn: bench.owners[1].srq.number,
        ..bench.request(0, IBV_WR_RDMA_WRITE)
    };
    bench.post(&other, 0)?;
    bench.expect(IBV_WC_REM_ACCESS_ERR)?;
    expect_event(&bench.context, Some(IBV_EVENT_QP_ACCESS_ERR))
}

fn waits(ends: &Ends) -> Outcome {
    let bench = Bench::new(ends)?;
    let Owner { srq, mr } = &bench.owners[0];
    srq.post_recv(1, &mr.sge(0, LENGTH));
    bench.post(&bench.request(1, IBV_WR_SEND), 0)?;
    std::thread::sleep(std::time::Duration::from_millis(20));
    let Owner { srq, mr } = &bench.owners[1];
    srq.post_recv(2, &mr.sge(0, LENGTH));
    let wc = bench.received(1, IBV_WC_RECV)?;
    ensure(wc.wr_id == 2, || format!("WR {}", wc.wr_id))?;
    bench.expect(IBV_WC_SUCCESS)
}

fn no_queue(ends: &Ends) -> Outcome {
    for opcode in [IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ] {
        let bench = Bench::new(ends)?;
        let nobody = Request {
            srqn: bench.owners[0].srq.number ^ bench.owners[1].srq.number ^ 1,
            ..bench.request(0, opcode)
        };
        bench.post(&nobody, 0)?;
        bench.expect(IBV_WC_REM_INV_REQ_ERR)?;
        expect_event(&bench.context, Some(IBV_EVENT_QP_ACCESS_ERR))?;
    }
    Ok(())
}

fn foreign(ends: &Ends) -> Outcome {
    let bench = Bench::new(ends)?;
    let xrcd = Xrcd::new(&bench.context).map_err(|why| why.to_string())?;
    let owner = Owner::new(&bench.context, &xrcd).map_err(|why| why.to_string())?;
    owner.srq.post_recv(1, &owner.mr.sge(0, LENGTH));
    let request = Request {
        srqn: owner.srq.number,
        ..bench.request(0, IBV_WR_SEND)
    };
    bench.post(&request, 0)?;
    bench.expect(IBV_WC_REM_INV_REQ_ERR)
}

fn broken(ends: &Ends) -> Outcome {
    let bench = Bench::new(ends)?;
    let [damaged, sound] = &bench.owners;
    sound.srq.post_recv(1, &sound.mr.sge(0, LENGTH));
    damaged.srq.damage();
    bench.post(&bench.request(0, IBV_WR_SEND), 0)?;
    bench.expect(IBV_WC_REM_OP_ERR)?;
    for event in [IBV_EVENT_SRQ_ERR, IBV_EVENT_QP_FATAL] {
        expect_event(&bench.context, Some(event))?;
    }
    // Another connection to the same XRC domain still works.
    let Bench {
        context,
        xrcd,
        owners,
        ..
    } = bench;
    let other = Bench::connect(ends, context, xrcd, owners).map_err(|why| why.to_string())?;
    other.post(&other.request(1, IBV_WR_SEND), 0)?;
    other.received(1, IBV_WC_RECV)?;
    other.expect(IBV_WC_SUCCESS)
}

fn busy(ends: &Ends) -> Outcome {
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
    let mut bench = Bench::new(ends)?;
    for _ in 0..MOST_EVENTS + 16 {
        // An R_Key that no region has.
        let request = Request {
            rkey: 0,
            ..bench.request(0, IBV_WR_RDMA_WRITE)
        };
        bench.post(&request, 0)?;
        bench.expect(IBV_WC_REM_ACCESS_ERR)?;
        bench.reconnect(ends).map_err(|why| why.to_string())?;
    }
    let mut count = 0;
    let next = || bench.context.async_event_within(PATIENCE);
    while let Some(event) = next().map_err(|why| why.to_string())? {
        ensure(event == IBV_EVENT_QP_ACCESS_ERR, || {
            format!("event {event}")
        })?;
        count += 1;
    }
    ensure(count == MOST_EVENTS, || format!("{count} events"))
}

fn queue(ends: &Ends) -> Outcome {
    let mut bench = Bench::new(ends)?;
    bench.tgt =
        Target::with_queue(&bench.xrcd, &bench.owners[0].srq).map_err(|why| why.to_string())?;
    bench.ini = Initiator::new(&bench.ini.pd.clone(), &bench.ini.cq.clone())
        .map_err(|why| why.to_string())?;
    bench.pair(ends).map_err(|why| why.to_string())?;
    for owner in 0..2 {
        let Owner { srq, mr } = &bench.owners[owner];
        srq.post_recv(1, &mr.sge(0, LENGTH));
        bench.post(&bench.request(owner, IBV_WR_SEND), 0)?;
        bench.received(owner, IBV_WC_RECV)?;
        bench.expect(IBV_WC_SUCCESS)?;
    }
    Ok(())
}
