// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues: several RC QPs of device B take their receives from one SRQ, and QPs of
//! device A send to them.

use std::{
    io,
    rc::Rc,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use rrxe_verbs::{
    link::{self, Endpoint, Timing},
    object::{Context, Cq, Depth, Mr, Pd, Qp, ALL_ACCESS},
    srq::Srq,
    sys::*,
};

use crate::{
    pair::{ensure, Ends, Outcome, PATIENCE},
    tap::Tap,
};

const EBUSY: i32 = 16;
pub const EINVAL: i32 = 22;
const ENOMEM: i32 = 12;

/// Bytes of one receive buffer. A message of this length takes more than one packet at every MTU.
const ROOM: usize = 5000;
/// First PSN of both directions, close to the end of the range so that PSNs wrap.
const FIRST_PSN: u32 = 0xff_fffa;
/// Number of messages that one QP may have in flight.
const WINDOW: usize = 16;
/// Longest wait for an expected event, in milliseconds.
const SOON: i32 = 60_000;
/// Wait, in milliseconds, during which an unexpected event would come.
const NEVER: i32 = 100;

/// Runs all cases.
pub fn run(tap: &mut Tap, ends: &Ends) {
    tap.result("QPs take turns at an SRQ", turns(ends));
    tap.result("an empty SRQ is not ready", not_ready(ends));
    tap.result("the limit of an SRQ is told once", limit(ends));
    tap.result("a limit that is passed already is told", passed_limit(ends));
    tap.result("a resized SRQ keeps what is posted", resize(ends));
    tap.result("an SRQ is resized under traffic", resize_busy(ends));
    tap.result("QPs that leave an SRQ say so", last_wqe(ends));
    tap.result("receives of an SRQ belong to its PD", domains(ends));
    tap.result("an SRQ outlives its QPs only", busy(ends));
    errnos(tap, ends);
}

fn text(what: &'static str) -> impl Fn(io::Error) -> String {
    move |why| format!("{what}: {why}")
}

/// QPs of device A, each connected to a QP of device B. The QPs of B share an SRQ.
pub struct Fan {
    a: Vec<Qp>,
    pub b: Vec<Qp>,
    pub srq: Rc<Srq>,
    from: Mr,
    to: Mr,
    /// Number of receive buffers. Work request `id` uses buffer `id % rooms`. Two work requests
    /// with the same buffer are never used at the same time.
    rooms: usize,
}

impl Fan {
    pub fn new(ends: &Ends, qps: usize, max_wr: u32) -> Result<Self, String> {
        Self::in_domains(ends, qps, max_wr, false)
    }

    /// As [`Self::new`]. With `apart`, the QPs of B are in another protection domain than the SRQ
    /// and its memory.
    fn in_domains(ends: &Ends, qps: usize, max_wr: u32, apart: bool) -> Result<Self, String> {
        Self::make(ends, qps, max_wr, apart).map_err(text("set-up"))
    }

    fn make(ends: &Ends, qps: usize, max_wr: u32, apart: bool) -> io::Result<Self> {
        let (context_a, context_b) = (Context::open(ends.a)?, Context::open(ends.b)?);
        let (pd_a, pd_b) = (Pd::new(&context_a)?, Pd::new(&context_b)?);
        let (cq_a, cq_b) = (Cq::new(&context_a, 4096)?, Cq::new(&context_b, 4096)?);
        let srq = Srq::new(&pd_b, max_wr, 2)?;
        let pd_qp = if apart {
            Pd::new(&context_b)?
        } else {
            pd_b.clone()
        };
        let rooms = (srq.attr.max_wr as usize).min(512);
        let mut fan = Self {
            rooms,
            from: Mr::new(&pd_a, qps * WINDOW * ROOM, ALL_ACCESS)?,
            to: Mr::new(&pd_b, rooms * ROOM, ALL_ACCESS)?,
            srq,
            a: Vec::new(),
            b: Vec::new(),
        };
        for _ in 0..qps {
            let a = Qp::new(&pd_a, &cq_a, Depth::default())?;
            let b = Qp::sharing(&pd_qp, &cq_b, &fan.srq, Depth::default())?;
            link::to_init(&a, ALL_ACCESS)?;
            link::to_init(&b, ALL_ACCESS)?;
            let end_a = Endpoint::new(&context_a, a.number(), FIRST_PSN, ends.v6)?;
            let end_b = Endpoint::new(&context_b, b.number(), FIRST_PSN, ends.v6)?;
            for (qp, ours, peer) in [(&a, &end_a, &end_b), (&b, &end_b, &end_a)] {
                link::to_rtr(qp, ours, peer, &Timing::default())?;
                link::to_rts(qp, ours, &Timing::default())?;
            }
            fan.a.push(a);
            fan.b.push(b);
        }
        Ok(fan)
    }

    /// Posts receive `id` to the SRQ, with two SGEs.
    pub fn post(&self, id: usize) -> Outcome {
        let at = id % self.rooms * ROOM;
        let mut sges = [self.to.sge(at, 100), self.to.sge(at + 100, ROOM - 100)];
        self.srq
            .post_recv(id as u64, &mut sges)
            .map_err(text("post_srq_recv"))
    }

    /// Sends message `number` of QP `qp`. The immediate data holds both numbers.
    pub fn send(&mut self, qp: usize, number: usize) -> Outcome {
        let at = (qp * WINDOW + number % WINDOW) * ROOM;
        let length = length(number);
        self.from.buffer.fill(at, length, seed(qp, number));
        let mut wr = ibv_send_wr {
            wr_id: number as u64,
            opcode: IBV_WR_SEND_WITH_IMM,
            send_flags: IBV_SEND_SIGNALED,
            ..Default::default()
        };
        wr.__bindgen_anon_1.imm_data = (((qp << 16) | number) as u32).to_be();
        self.a[qp]
            .post_send(&mut wr, &mut [self.from.sge(at, length)])
            .map_err(text("post_send"))
    }

    /// Waits for the next completion of B's QPs.
    pub fn received(&self) -> Result<ibv_wc, String> {
        completion(&self.b[0].cq)
    }

    /// Waits for the next completion of A's QPs, which must be a success.
    pub fn sent(&self) -> Outcome {
        let status = self.sent_with()?;
        ensure(status == IBV_WC_SUCCESS, || {
            format!("send ended with {status}")
        })
    }

    /// Waits for the next completion of A's QPs and returns its status.
    pub fn sent_with(&self) -> Result<ibv_wc_status, String> {
        Ok(completion(&self.a[0].cq)?.status)
    }

    /// Checks a receive's completion and data. Returns the index of the QP, the number of the
    /// message and the `wr_id`.
    pub fn check(&self, wc: &ibv_wc) -> Result<(usize, usize, usize), String> {
        ensure(wc.status == IBV_WC_SUCCESS, || {
            format!("receive ended with {}", wc.status)
        })?;
        // SAFETY: All messages carry an immediate.
        let imm = u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data }) as usize;
        let (qp, number, id) = (imm >> 16, imm & 0xffff, wc.wr_id as usize);
        ensure(
            self.b.get(qp).is_some_and(|b| b.number() == wc.qp_num),
            || format!("QP {qp} and completion of {}", wc.qp_num),
        )?;
        let length = length(number);
        ensure(wc.byte_len as usize == length, || {
            format!("{} of {length} bytes", wc.byte_len)
        })?;
        match self
            .to
            .buffer
            .mismatch(id % self.rooms * ROOM, length, seed(qp, number))
        {
            Some(at) => Err(format!("byte {at} of message {number} of QP {qp} is wrong")),
            None => Ok((qp, number, id)),
        }
    }
}

/// Length of message `number`: from no byte to several packets.
fn length(number: usize) -> usize {
    [8, 0, 1023, 1024, 1025, 99, 101, ROOM][number % 8]
}

fn seed(qp: usize, number: usize) -> u64 {
    ((qp << 20) | number) as u64 + 99
}

fn completion(cq: &Cq) -> Result<ibv_wc, String> {
    let mut wc = [ibv_wc::default()];
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if cq.poll(&mut wc) == 1 {
            return Ok(std::mem::take(&mut wc[0]));
        }
        std::thread::yield_now();
    }
    Err("no completion came".into())
}

pub fn expect_event(context: &Context, wanted: Option<ibv_event_type>) -> Outcome {
    let wait = if wanted.is_some() { SOON } else { NEVER };
    let event = context.async_event_within(wait).map_err(text("event"))?;
    ensure(event == wanted, || {
        format!("event {event:?}, expected {wanted:?}")
    })
}

/// Keeps `WINDOW` messages of each QP in flight until each QP has sent `messages` messages, and
/// checks that they arrive in order. Calls `received` after every receive.
fn exchange(
    fan: &mut Fan,
    messages: usize,
    mut received: impl FnMut(&Fan, usize) -> Outcome,
) -> Outcome {
    let qps = fan.a.len();
    let mut next = vec![0; qps];
    for number in 0..WINDOW.min(messages) {
        for qp in 0..qps {
            fan.send(qp, number)?;
        }
    }
    for _ in 0..qps * messages {
        let wc = fan.received()?;
        let (qp, number, id) = fan.check(&wc)?;
        ensure(number == next[qp], || {
            format!("message {number} of QP {qp} before {}", next[qp])
        })?;
        next[qp] += 1;
        received(fan, id)?;
        fan.sent()?;
        if number + WINDOW < messages {
            fan.send(qp, number + WINDOW)?;
        }
    }
    Ok(())
}

pub fn turns(ends: &Ends) -> Outcome {
    let mut fan = Fan::new(ends, 4, 63)?;
    for id in 0..63 {
        fan.post(id)?;
    }
    ensure(fan.post(62).is_err(), || {
        "a full queue took one more".into()
    })?;
    exchange(&mut fan, 200, |fan, id| fan.post(id))
}

fn not_ready(ends: &Ends) -> Outcome {
    let mut fan = Fan::new(ends, 2, 4)?;
    fan.send(0, 0)?;
    fan.send(1, 0)?;
    std::thread::sleep(Duration::from_millis(30));
    for id in 0..2 {
        fan.post(id)?;
        let wc = fan.received()?;
        fan.check(&wc)?;
        fan.sent()?;
    }
    Ok(())
}

fn limit(ends: &Ends) -> Outcome {
    let mut fan = Fan::new(ends, 2, 16)?;
    for id in 0..10 {
        fan.post(id)?;
    }
    fan.srq.arm(9).map_err(text("arm"))?;
    let query = |fan: &Fan| fan.srq.query().map_err(text("query"));
    ensure(query(&fan)?.srq_limit == 9, || {
        "the limit isn't armed".into()
    })?;
    let context = fan.b[0].pd.context.clone();
    for (number, event) in [None, Some(IBV_EVENT_SRQ_LIMIT_REACHED), None]
        .into_iter()
        .enumerate()
    {
        fan.send(number % 2, number)?;
        let wc = fan.received()?;
        fan.check(&wc)?;
        fan.sent()?;
        expect_event(&context, event).map_err(|why| format!("receive {number}: {why}"))?;
        let armed = if number == 0 { 9 } else { 0 };
        let found = query(&fan)?.srq_limit;
        ensure(found == armed, || {
            format!("limit {found} after receive {number}")
        })?;
    }
    Ok(())
}

fn passed_limit(ends: &Ends) -> Outcome {
    let fan = Fan::new(ends, 1, 16)?;
    for id in 0..3 {
        fan.post(id)?;
    }
    let context = fan.b[0].pd.context.clone();
    fan.srq.arm(3).map_err(text("arm"))?;
    expect_event(&context, None)?;
    fan.srq.arm(4).map_err(text("arm"))?;
    expect_event(&context, Some(IBV_EVENT_SRQ_LIMIT_REACHED))?;
    expect_event(&context, None)
}

fn resize(ends: &Ends) -> Outcome {
    let mut fan = Fan::new(ends, 2, 31)?;
    let mut next = 0;
    let mut receive = |fan: &mut Fan, count: usize| -> Outcome {
        for _ in 0..count {
            fan.send(next % 2, next)?;
            let wc = fan.received()?;
            let (_, _, id) = fan.check(&wc)?;
            ensure(id == next % 31, || {
                format!("buffer {id} in the place of {}", next % 31)
            })?;
            fan.sent()?;
            next += 1;
        }
        Ok(())
    };
    // After this the posted WQEs lie around the end of the ring.
    for id in 0..31 {
        fan.post(id)?;
    }
    receive(&mut fan, 25)?;
    for id in 0..14 {
        fan.post(id)?;
    }
    for (max_wr, granted) in [
        (100, 127),
        (20, 31),
        (16, 31),
        (1 << 12, (1 << 13) - 1),
        (31, 31),
    ] {
        fan.srq.resize(max_wr).map_err(text("resize"))?;
        let found = fan.srq.query().map_err(text("query"))?.max_wr;
        ensure(found == granted, || format!("{found} WQEs for {max_wr}"))?;
    }
    let refused = fan.srq.resize(15);
    ensure(errno_of(&refused) == EINVAL, || {
        format!("{refused:?} for less than is posted")
    })?;
    receive(&mut fan, 20)?;
    // The SRQ is empty now. Fills it once more.
    for id in 14..31 {
        fan.post(id)?;
    }
    receive(&mut fan, 17)
}

fn resize_busy(ends: &Ends) -> Outcome {
    // Enough that a resize takes some time to move them.
    const POSTED: usize = 1 << 13;
    const MESSAGES: usize = 40;
    const RESIZES: u32 = 6;
    // Messages of the three QPs in one exchange.
    const TAKEN: usize = 3 * MESSAGES;
    let mut fan = Fan::new(ends, 3, POSTED as u32)?;
    for id in 0..POSTED {
        fan.post(id)?;
    }
    let (queue, count) = (fan.srq.raw as usize, AtomicU32::new(0));
    let mut taken = vec![false; POSTED];
    std::thread::scope(|scope| {
        let resizer = scope.spawn(|| {
            for round in 0..RESIZES {
                let max_wr = (POSTED << (round & 1)) as u32;
                // SAFETY: The SRQ outlives the scope, and the library takes its lock.
                let errno = unsafe { resize_raw(queue as *mut ibv_srq, max_wr) };
                ensure(errno == 0, || format!("resize {round}: errno {errno}"))?;
                count.store(round, Ordering::Relaxed);
            }
            Ok(())
        });
        let mut left = POSTED;
        while count.load(Ordering::Relaxed) < RESIZES - 1 && !resizer.is_finished() {
            if left < TAKEN {
                std::thread::yield_now();
                continue;
            }
            left -= TAKEN;
            exchange(&mut fan, MESSAGES, |_, id| {
                // The order between the QPs is undefined, but each work request is used once.
                let place = taken.get_mut(id).ok_or_else(|| format!("receive {id}"))?;
                ensure(!std::mem::replace(place, true), || {
                    format!("receive {id} twice")
                })
            })?;
        }
        resizer.join().map_err(|_| "the resizer panicked")?
    })
}

/// # Safety
///
/// The queue must be alive.
unsafe fn resize_raw(srq: *mut ibv_srq, max_wr: u32) -> i32 {
    let mut attr = ibv_srq_attr {
        max_wr,
        ..Default::default()
    };
    // SAFETY: As the caller promises; `attr` outlives the call.
    unsafe { ibv_modify_srq(srq, &mut attr, IBV_SRQ_MAX_WR as i32) }
}

fn last_wqe(ends: &Ends) -> Outcome {
    let mut fan = Fan::new(ends, 2, 16)?;
    for id in 0..4 {
        fan.post(id)?;
    }
    let context = fan.b[0].pd.context.clone();
    let error = ibv_qp_attr {
        qp_state: IBV_QPS_ERR,
        ..Default::default()
    };
    fan.b[0]
        .modify(&error, IBV_QP_STATE)
        .map_err(text("modify"))?;
    expect_event(&context, Some(IBV_EVENT_QP_LAST_WQE_REACHED))?;
    expect_event(&context, None)?;
    // No receive of the SRQ was flushed, because the SRQ belongs to the other QPs, too.
    for number in 0..4 {
        fan.send(1, number)?;
        let wc = fan.received()?;
        let (_, _, id) = fan.check(&wc)?;
        ensure(id == number, || {
            format!("buffer {id} in the place of {number}")
        })?;
        fan.sent()?;
    }
    Ok(())
}

fn domains(ends: &Ends) -> Outcome {
    let mut fan = Fan::in_domains(ends, 1, 4, true)?;
    fan.post(0)?;
    fan.send(0, 0)?;
    let wc = fan.received()?;
    fan.check(&wc)?;
    fan.sent()
}

fn busy(ends: &Ends) -> Outcome {
    let mut fan = Fan::new(ends, 1, 4)?;
    let refused = fan.srq.destroy();
    ensure(errno_of(&refused) == EBUSY, || {
        format!("{refused:?} with a QP")
    })?;
    // The SRQ still works.
    fan.post(0)?;
    fan.send(0, 0)?;
    let wc = fan.received()?;
    fan.check(&wc)?;
    fan.sent()
}

pub fn errno_of(result: &io::Result<()>) -> i32 {
    match result {
        Ok(()) => 0,
        Err(why) => why.raw_os_error().unwrap_or(-1),
    }
}

fn errnos(tap: &mut Tap, ends: &Ends) {
    let made = Context::open(ends.a).and_then(|context| Pd::new(&context));
    let pd = match made {
        Ok(pd) => pd,
        Err(why) => return tap.result("open the device", Err(why)),
    };
    let grants: [(u32, u32, u32, u32); 5] = [
        (1, 1, 1, 1),
        (2, 0, 3, 1),
        (3, 2, 3, 2),
        (100, 27, 127, 27),
        (1 << 17, 1, (1 << 18) - 1, 1),
    ];
    for (max_wr, max_sge, wrs, sges) in grants {
        let outcome = Srq::new(&pd, max_wr, max_sge)
            .map_err(text("create_srq"))
            .and_then(|srq| {
                let (attr, found) = (srq.attr, srq.query().map_err(text("query_srq"))?);
                let granted = [attr.max_wr, found.max_wr, attr.max_sge, found.max_sge];
                ensure(
                    granted == [wrs, wrs, sges, sges] && found.srq_limit == 0,
                    || format!("{granted:?} granted, limit {}", found.srq_limit),
                )
            });
        tap.result(
            &format!("create_srq with {max_wr} WRs of {max_sge} SGEs"),
            outcome,
        );
    }
    for (max_wr, max_sge) in [
        (0, 1),
        ((1 << 20) + 1, 1),
        (u32::MAX, 1),
        (1, 33),
        (1, u32::MAX),
    ] {
        let refused = Srq::new(&pd, max_wr, max_sge).map(|_| ());
        let outcome = ensure(errno_of(&refused) == EINVAL, || format!("{refused:?}"));
        tap.result(
            &format!("create_srq with {max_wr} WRs of {max_sge} SGEs"),
            outcome,
        );
    }
    let srq = match Srq::new(&pd, 10, 2) {
        Ok(srq) => srq,
        Err(why) => return tap.result("create_srq", Err(why)),
    };
    let both = IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT;
    let cases: [(&str, u32, u32, u32, i32); 11] = [
        ("nothing", 0, 0, 0, 0),
        ("a capacity of zero", 0, 0, IBV_SRQ_MAX_WR, EINVAL),
        (
            "a capacity beyond the device's",
            (1 << 20) + 1,
            0,
            IBV_SRQ_MAX_WR,
            EINVAL,
        ),
        ("a limit beyond the capacity", 0, 16, IBV_SRQ_LIMIT, EINVAL),
        ("a limit beyond all", 0, u32::MAX, IBV_SRQ_LIMIT, EINVAL),
        ("both, the limit beyond the capacity", 20, 21, both, EINVAL),
        ("an attribute that is none", 1, 1, 4, EINVAL),
        ("a limit of the capacity", 0, 15, IBV_SRQ_LIMIT, 0),
        ("no limit", 0, 0, IBV_SRQ_LIMIT, 0),
        ("both", 40, 40, both, 0),
        ("no limit and less room", 3, 0, both, 0),
    ];
    for (name, max_wr, limit, mask, errno) in cases {
        let found = errno_of(&srq.modify(max_wr, limit, mask));
        let outcome = ensure(found == errno, || {
            format!("errno {found}, expected {errno}")
        });
        tap.result(&format!("modify_srq with {name}"), outcome);
    }
    let mut sges = [ibv_sge::default(); 3];
    let outcome = ensure(errno_of(&srq.post_recv(0, &mut sges)) == EINVAL, || {
        "it was taken".into()
    });
    tap.result("post_srq_recv with too many SGEs", outcome);
    let posts: Vec<i32> = (0..4)
        .map(|id| errno_of(&srq.post_recv(id, &mut sges[..1])))
        .collect();
    let outcome = ensure(posts == [0, 0, 0, ENOMEM], || format!("{posts:?}"));
    tap.result("post_srq_recv to a full queue", outcome);
}
