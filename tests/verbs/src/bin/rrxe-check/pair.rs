// SPDX-License-Identifier: GPL-2.0

//! Two connected QPs with memory at both ends, and helpers of all cases.

use std::{
    env, io, mem,
    rc::Rc,
    time::{Duration, Instant},
};

use rrxe_verbs::{
    link::{self, Endpoint, Settings},
    object::{Context, Cq, Depth, Mr, Pd, Qp, ALL_ACCESS},
    sys::*,
};

/// The result of a case or of a step of one: an error has a text.
pub type Outcome = Result<(), String>;

/// Names of the two devices, and the IP version.
pub struct Ends<'a> {
    pub a: &'a str,
    pub b: &'a str,
    pub v6: bool,
}

/// Whether the provider is stock librxe. No call of libibverbs names the provider, so a script that
/// installs librrxe sets `RRXE_PROVIDER`.
pub fn is_stock() -> bool {
    env::var_os("RRXE_PROVIDER").is_none()
}

/// Longest wait for a completion.
pub const COMPLETION_TIMEOUT: Duration = Duration::from_secs(120);

/// One end of a connection.
pub struct End {
    pub qp: Qp,
    pub cq: Rc<Cq>,
    pub mr: Mr,
    pub endpoint: Endpoint,
}

/// Parameters of a pair.
#[derive(Clone, Copy)]
pub struct Plan {
    pub kind: ibv_qp_type,
    pub memory: usize,
    pub depth: Depth,
    pub settings: Settings,
    /// Access rights of the memory regions.
    pub mr_access: u32,
    /// Remote access rights of the QPs.
    pub qp_access: u32,
    pub psn: u32,
    /// Connects A to a QP number that does not exist.
    pub missing_peer: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            kind: IBV_QPT_RC,
            memory: 4 << 20,
            depth: Depth::default(),
            settings: Settings::default(),
            mr_access: ALL_ACCESS,
            qp_access: ALL_ACCESS,
            psn: 0xff_fff0,
            missing_peer: false,
        }
    }
}

/// Two connected ends.
pub struct Pair {
    pub a: End,
    pub b: End,
}

impl Pair {
    /// Creates and connects both ends.
    pub fn new(ends: &Ends, plan: Plan) -> Result<Self, String> {
        let text = |e: io::Error| format!("set-up: {e}");
        let Self { a, b } = Self::unconnected(ends, plan)?;
        Self::connect(a, b, &plan).map_err(text)
    }

    /// As [`Self::new`], but A's QP is created by `make`.
    pub fn with_requester(
        ends: &Ends,
        plan: Plan,
        make: fn(&Rc<Pd>, &Rc<Cq>) -> io::Result<Qp>,
    ) -> Result<Self, String> {
        let text = |e: io::Error| format!("set-up: {e}");
        let Self { mut a, b } = Self::unconnected(ends, plan)?;
        a.qp = make(&a.qp.pd, &a.cq).map_err(text)?;
        a.endpoint.qpn = a.qp.number();
        Self::connect(a, b, &plan).map_err(text)
    }

    /// Creates another pair, whose end B is in the protection domain of this pair's end B.
    pub fn in_same_pd(&self, ends: &Ends, plan: Plan) -> Result<Self, String> {
        let text = |e: io::Error| format!("set-up: {e}");
        let a = End::new(ends.a, ends.v6, &plan).map_err(text)?;
        let b = End::on(&self.b.qp.pd, ends.v6, &plan).map_err(text)?;
        Self::connect(a, b, &plan).map_err(text)
    }

    /// Connects both ends.
    fn connect(a: End, b: End, plan: &Plan) -> io::Result<Self> {
        for end in [&a, &b] {
            link::to_init(&end.qp, plan.qp_access)?;
        }
        let mut target = b.endpoint;
        if plan.missing_peer {
            target.qpn ^= 0x5a5a5a;
        }
        for (end, peer) in [(&a, &target), (&b, &a.endpoint)] {
            link::to_rtr(&end.qp, &end.endpoint, peer, &plan.settings)?;
            link::to_rts(&end.qp, &end.endpoint, &plan.settings)?;
        }
        Ok(Self { a, b })
    }

    /// Creates both ends, with the QPs in RESET.
    pub fn unconnected(ends: &Ends, plan: Plan) -> Result<Self, String> {
        let text = |e: io::Error| format!("set-up: {e}");
        let a = End::new(ends.a, ends.v6, &plan).map_err(text)?;
        let b = End::new(ends.b, ends.v6, &plan).map_err(text)?;
        Ok(Self { a, b })
    }
}

impl End {
    fn new(device: &str, v6: bool, plan: &Plan) -> io::Result<Self> {
        Self::on(&Pd::new(&Context::open(device)?)?, v6, plan)
    }

    fn on(pd: &Rc<Pd>, v6: bool, plan: &Plan) -> io::Result<Self> {
        let cq = Cq::new(&pd.context, 1024)?;
        let mr = Mr::new(pd, plan.memory, plan.mr_access)?;
        let qp = Qp::of_type(plan.kind, pd, &cq, plan.depth)?;
        let endpoint = Endpoint {
            psn: plan.psn,
            ..Endpoint::with_memory(&pd.context, &qp, &mr, v6)?
        };
        Ok(Self {
            qp,
            cq,
            mr,
            endpoint,
        })
    }

    /// Posts a send work request.
    pub fn send(&self, what: Send) -> Outcome {
        let mut wr = ibv_send_wr {
            wr_id: what.id,
            opcode: what.opcode,
            send_flags: what.flags,
            ..Default::default()
        };
        wr.__bindgen_anon_1.imm_data = what.imm.to_be();
        match what.opcode {
            IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                wr.wr.atomic.remote_addr = what.remote.0;
                wr.wr.atomic.rkey = what.remote.1;
                wr.wr.atomic.compare_add = what.operands.0;
                wr.wr.atomic.swap = what.operands.1;
            }
            _ => {
                wr.wr.rdma.remote_addr = what.remote.0;
                wr.wr.rdma.rkey = what.remote.1;
            }
        }
        let mut sges = what.sges;
        self.qp
            .post_send(&mut wr, &mut sges)
            .map_err(|e| format!("post_send: {e}"))
    }

    /// Posts a receive into `length` bytes at `offset` of the region.
    pub fn recv(&self, id: u64, offset: usize, length: usize) -> Outcome {
        let mut sges = [self.mr.sge(offset, length)];
        self.qp
            .post_recv(id, &mut sges)
            .map_err(|e| format!("post_recv: {e}"))
    }

    /// Waits for the next completion.
    pub fn completion(&self) -> Result<ibv_wc, String> {
        next_completion(&self.cq)
    }

    /// Waits for the next completion, which must have the `wr_id` `id` and the status `status`.
    pub fn expect(&self, id: u64, status: ibv_wc_status) -> Result<ibv_wc, String> {
        let wc = self.completion()?;
        if wc.wr_id == id && wc.status == status {
            return Ok(wc);
        }
        Err(format!(
            "completion {} with status {}, expected {id} with {status}",
            wc.wr_id, wc.status
        ))
    }

    /// Checks that no completion comes ([`expect_no_completion`]).
    pub fn expect_no_completion(&self) -> Outcome {
        expect_no_completion(&self.cq)
    }

    /// The QP's state.
    pub fn state(&self) -> Result<ibv_qp_state, String> {
        let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        // SAFETY: Both structures outlive the call.
        let errno = unsafe { ibv_query_qp(self.qp.raw, &mut attr, IBV_QP_STATE as i32, &mut init) };
        if errno != 0 {
            return Err(format!("query_qp: errno {errno}"));
        }
        Ok(attr.qp_state)
    }
}

/// Waits for the next completion of a CQ.
pub fn next_completion(cq: &Cq) -> Result<ibv_wc, String> {
    let mut wc = [ibv_wc::default()];
    let start = Instant::now();
    while start.elapsed() < COMPLETION_TIMEOUT {
        if cq.poll(&mut wc) == 1 {
            return Ok(mem::take(&mut wc[0]));
        }
        std::thread::yield_now();
    }
    Err("no completion came".into())
}

/// Checks that a CQ has no completion after 50 ms.
pub fn expect_no_completion(cq: &Cq) -> Outcome {
    std::thread::sleep(Duration::from_millis(50));
    let mut wc = [ibv_wc::default()];
    match cq.poll(&mut wc) {
        0 => Ok(()),
        _ => Err(format!(
            "unexpected completion {} status {}",
            wc[0].wr_id, wc[0].status
        )),
    }
}

/// A send work request.
#[derive(Clone)]
pub struct Send {
    pub id: u64,
    pub opcode: ibv_wr_opcode,
    pub flags: u32,
    pub imm: u32,
    pub sges: Vec<ibv_sge>,
    /// Remote address and R_Key.
    pub remote: (u64, u32),
    /// The compare value or the addend, and the swap value.
    pub operands: (u64, u64),
}

impl Send {
    /// A signaled request.
    pub fn new(id: u64, opcode: ibv_wr_opcode, sges: Vec<ibv_sge>) -> Self {
        Self {
            id,
            opcode,
            flags: IBV_SEND_SIGNALED,
            imm: 0,
            sges,
            remote: (0, 0),
            operands: (0, 0),
        }
    }

    /// Sets the remote memory: `offset` bytes into `end`'s region.
    pub fn at(mut self, end: &End, offset: usize) -> Self {
        self.remote = (end.endpoint.addr + offset as u64, end.endpoint.rkey);
        self
    }
}

/// Turns a false condition into an error.
pub fn ensure(condition: bool, why: impl FnOnce() -> String) -> Outcome {
    if condition {
        Ok(())
    } else {
        Err(why())
    }
}
