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
    link::{self, Endpoint, Settings},
    object::{Context, Cq, Depth, Mr, Pd, Qp, ALL_ACCESS},
    srq::Srq,
    sys::*,
};

use crate::{
    pair::{ensure, Ends, Outcome, COMPLETION_TIMEOUT},
    tap::Tap,
};

const EBUSY: i32 = 16;
pub const EINVAL: i32 = 22;
pub const ENOMEM: i32 = 12;

/// Bytes of one receive buffer. A message of this length takes more than one packet at every MTU.
const BUFFER_LEN: usize = 5000;
/// First PSN of both directions, close to the end of the range so that PSNs wrap.
const FIRST_PSN: u32 = 0xff_fffa;
/// Number of messages that one QP may have in flight.
const WINDOW: usize = 16;
/// Longest wait for an expected event, in milliseconds.
const EVENT_TIMEOUT_MS: i32 = 60_000;
/// Wait, in milliseconds, during which an unexpected event would come.
const NO_EVENT_WAIT_MS: i32 = 100;

/// Runs all cases.
pub fn run(tap: &mut Tap, ends: &Ends) {
    tap.result("several QPs take receives from an SRQ", several_qps(ends));
    tap.result("SENDs to an empty SRQ wait for receives", not_ready(ends));
    tap.result("a reached SRQ limit raises one event", limit(ends));
    tap.result(
        "an SRQ limit above the posted receives raises an event",
        passed_limit(ends),
    );
    tap.result("a resized SRQ keeps the posted receives", resize(ends));
    tap.result("an SRQ is resized while QPs receive", resize_busy(ends));
    tap.result(
        "a QP of an SRQ raises LAST_WQE_REACHED in ERR",
        last_wqe(ends),
    );
    tap.result("receives of an SRQ use the PD of the SRQ", pd_of_srq(ends));
    tap.result(
        "destroy_srq while a QP uses the SRQ: EBUSY",
        destroy_in_use(ends),
    );
    errnos(tap, ends);
}

fn text(what: &'static str) -> impl Fn(io::Error) -> String {
    move |why| format!("{what}: {why}")
}

/// QPs of device A, each connected to a QP of device B. The QPs of B share an SRQ.
pub struct SrqPairs {
    a: Vec<Qp>,
    pub b: Vec<Qp>,
    pub srq: Rc<Srq>,
    from: Mr,
    to: Mr,
    /// Number of receive buffers. Work request `id` uses buffer `id % buffers`. Posted work
    /// requests may share a buffer, but no two messages are in one buffer at the same time.
    buffers: usize,
}

impl SrqPairs {
    pub fn new(ends: &Ends, qps: usize, max_wr: u32) -> Result<Self, String> {
        Self::with_pds(ends, qps, max_wr, false)
    }

    /// As [`Self::new`]. With `separate_pd`, the QPs of B are in another protection domain than the
    /// SRQ and its memory.
    fn with_pds(ends: &Ends, qps: usize, max_wr: u32, separate_pd: bool) -> Result<Self, String> {
        Self::make(ends, qps, max_wr, separate_pd).map_err(text("set-up"))
    }

    fn make(ends: &Ends, qps: usize, max_wr: u32, separate_pd: bool) -> io::Result<Self> {
        let (context_a, context_b) = (Context::open(ends.a)?, Context::open(ends.b)?);
        let (pd_a, pd_b) = (Pd::new(&context_a)?, Pd::new(&context_b)?);
        let (cq_a, cq_b) = (Cq::new(&context_a, 4096)?, Cq::new(&context_b, 4096)?);
        let srq = Srq::new(&pd_b, max_wr, 2)?;
        let pd_qp = if separate_pd {
            Pd::new(&context_b)?
        } else {
            pd_b.clone()
        };
        let buffers = (srq.attr.max_wr as usize).min(512);
        let mut pairs = Self {
            buffers,
            from: Mr::new(&pd_a, qps * WINDOW * BUFFER_LEN, ALL_ACCESS)?,
            to: Mr::new(&pd_b, buffers * BUFFER_LEN, ALL_ACCESS)?,
            srq,
            a: Vec::new(),
            b: Vec::new(),
        };
        for _ in 0..qps {
            let a = Qp::new(&pd_a, &cq_a, Depth::default())?;
            let b = Qp::with_srq(&pd_qp, &cq_b, &pairs.srq, Depth::default())?;
            link::to_init(&a, ALL_ACCESS)?;
            link::to_init(&b, ALL_ACCESS)?;
            let end_a = Endpoint::new(&context_a, a.number(), FIRST_PSN, ends.v6)?;
            let end_b = Endpoint::new(&context_b, b.number(), FIRST_PSN, ends.v6)?;
            for (qp, ours, peer) in [(&a, &end_a, &end_b), (&b, &end_b, &end_a)] {
                link::to_rtr(qp, ours, peer, &Settings::default())?;
                link::to_rts(qp, ours, &Settings::default())?;
            }
            pairs.a.push(a);
            pairs.b.push(b);
        }
        Ok(pairs)
    }

    /// Posts receive `id` to the SRQ, with two SGEs.
    pub fn post(&self, id: usize) -> Outcome {
        let at = id % self.buffers * BUFFER_LEN;
        let mut sges = [
            self.to.sge(at, 100),
            self.to.sge(at + 100, BUFFER_LEN - 100),
        ];
        self.srq
            .post_recv(id as u64, &mut sges)
            .map_err(text("post_srq_recv"))
    }

    /// Sends message `number` of QP `qp`. The immediate data holds both numbers.
    pub fn send(&mut self, qp: usize, number: usize) -> Outcome {
        let at = (qp * WINDOW + number % WINDOW) * BUFFER_LEN;
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
    pub fn next_receive(&self) -> Result<ibv_wc, String> {
        next_completion(&self.b[0].cq)
    }

    /// Waits for the next completion of A's QPs, which must be a success.
    pub fn expect_sent(&self) -> Outcome {
        let status = self.next_send_status()?;
        ensure(status == IBV_WC_SUCCESS, || {
            format!("send ended with {status}")
        })
    }

    /// Waits for the next completion of A's QPs and returns its status.
    pub fn next_send_status(&self) -> Result<ibv_wc_status, String> {
        Ok(next_completion(&self.a[0].cq)?.status)
    }

    /// Sends a message by QP `qp` of A, and checks that it takes the receive `wanted` and that both
    /// complete.
    pub fn expect_message(&mut self, qp: usize, number: usize, wanted: usize) -> Outcome {
        self.send(qp, number)?;
        let wc = self.next_receive()?;
        let (_, _, id) = self.check(&wc)?;
        ensure(id == wanted, || {
            format!("buffer {id} in the place of {wanted}")
        })?;
        self.expect_sent()
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
            .mismatch(id % self.buffers * BUFFER_LEN, length, seed(qp, number))
        {
            Some(at) => Err(format!("byte {at} of message {number} of QP {qp} is wrong")),
            None => Ok((qp, number, id)),
        }
    }
}

/// Length of message `number`: from no byte to several packets.
fn length(number: usize) -> usize {
    [8, 0, 1023, 1024, 1025, 99, 101, BUFFER_LEN][number % 8]
}

fn seed(qp: usize, number: usize) -> u64 {
    ((qp << 20) | number) as u64 + 99
}

fn next_completion(cq: &Cq) -> Result<ibv_wc, String> {
    let mut wc = [ibv_wc::default()];
    let start = Instant::now();
    while start.elapsed() < COMPLETION_TIMEOUT {
        if cq.poll(&mut wc) == 1 {
            return Ok(std::mem::take(&mut wc[0]));
        }
        std::thread::yield_now();
    }
    Err("no completion came".into())
}

pub fn expect_event(context: &Context, wanted: Option<ibv_event_type>) -> Outcome {
    let wait = if wanted.is_some() {
        EVENT_TIMEOUT_MS
    } else {
        NO_EVENT_WAIT_MS
    };
    let event = context.async_event_within(wait).map_err(text("event"))?;
    ensure(event == wanted, || {
        format!("event {event:?}, expected {wanted:?}")
    })
}

/// Keeps `WINDOW` messages of each QP in flight until each QP has sent `messages` messages, and
/// checks that they arrive in order. Calls `on_receive` after every receive.
fn exchange(
    pairs: &mut SrqPairs,
    messages: usize,
    mut on_receive: impl FnMut(&SrqPairs, usize) -> Outcome,
) -> Outcome {
    let qps = pairs.a.len();
    let mut next = vec![0; qps];
    for number in 0..WINDOW.min(messages) {
        for qp in 0..qps {
            pairs.send(qp, number)?;
        }
    }
    for _ in 0..qps * messages {
        let wc = pairs.next_receive()?;
        let (qp, number, id) = pairs.check(&wc)?;
        ensure(number == next[qp], || {
            format!("message {number} of QP {qp} before {}", next[qp])
        })?;
        next[qp] += 1;
        on_receive(pairs, id)?;
        pairs.expect_sent()?;
        if number + WINDOW < messages {
            pairs.send(qp, number + WINDOW)?;
        }
    }
    Ok(())
}

pub fn several_qps(ends: &Ends) -> Outcome {
    let mut pairs = SrqPairs::new(ends, 4, 63)?;
    for id in 0..63 {
        pairs.post(id)?;
    }
    ensure(pairs.post(62).is_err(), || {
        "a receive was posted to a full SRQ".into()
    })?;
    exchange(&mut pairs, 200, |pairs, id| pairs.post(id))
}

fn not_ready(ends: &Ends) -> Outcome {
    let mut pairs = SrqPairs::new(ends, 2, 4)?;
    pairs.send(0, 0)?;
    pairs.send(1, 0)?;
    std::thread::sleep(Duration::from_millis(30));
    for id in 0..2 {
        pairs.post(id)?;
        let wc = pairs.next_receive()?;
        pairs.check(&wc)?;
        pairs.expect_sent()?;
    }
    Ok(())
}

fn limit(ends: &Ends) -> Outcome {
    let mut pairs = SrqPairs::new(ends, 2, 16)?;
    for id in 0..10 {
        pairs.post(id)?;
    }
    pairs.srq.arm(9).map_err(text("arm"))?;
    let query = |pairs: &SrqPairs| pairs.srq.query().map_err(text("query"));
    ensure(query(&pairs)?.srq_limit == 9, || {
        "the limit isn't armed".into()
    })?;
    let context = pairs.b[0].pd.context.clone();
    for (number, event) in [None, Some(IBV_EVENT_SRQ_LIMIT_REACHED), None]
        .into_iter()
        .enumerate()
    {
        pairs.send(number % 2, number)?;
        let wc = pairs.next_receive()?;
        pairs.check(&wc)?;
        pairs.expect_sent()?;
        expect_event(&context, event).map_err(|why| format!("receive {number}: {why}"))?;
        let armed = if number == 0 { 9 } else { 0 };
        let found = query(&pairs)?.srq_limit;
        ensure(found == armed, || {
            format!("limit {found} after receive {number}")
        })?;
    }
    Ok(())
}

fn passed_limit(ends: &Ends) -> Outcome {
    let pairs = SrqPairs::new(ends, 1, 16)?;
    for id in 0..3 {
        pairs.post(id)?;
    }
    let context = pairs.b[0].pd.context.clone();
    pairs.srq.arm(3).map_err(text("arm"))?;
    expect_event(&context, None)?;
    pairs.srq.arm(4).map_err(text("arm"))?;
    expect_event(&context, Some(IBV_EVENT_SRQ_LIMIT_REACHED))?;
    expect_event(&context, None)
}

fn resize(ends: &Ends) -> Outcome {
    let mut pairs = SrqPairs::new(ends, 2, 31)?;
    let mut next = 0;
    let mut receive = |pairs: &mut SrqPairs, count: usize| -> Outcome {
        for _ in 0..count {
            pairs.send(next % 2, next)?;
            let wc = pairs.next_receive()?;
            let (_, _, id) = pairs.check(&wc)?;
            ensure(id == next % 31, || {
                format!("buffer {id} in the place of {}", next % 31)
            })?;
            pairs.expect_sent()?;
            next += 1;
        }
        Ok(())
    };
    // After this the posted WQEs wrap around the end of the ring.
    for id in 0..31 {
        pairs.post(id)?;
    }
    receive(&mut pairs, 25)?;
    for id in 0..14 {
        pairs.post(id)?;
    }
    for (max_wr, granted) in [
        (100, 127),
        (20, 31),
        (16, 31),
        (1 << 12, (1 << 13) - 1),
        (31, 31),
    ] {
        pairs.srq.resize(max_wr).map_err(text("resize"))?;
        let found = pairs.srq.query().map_err(text("query"))?.max_wr;
        ensure(found == granted, || format!("{found} WQEs for {max_wr}"))?;
    }
    let refused = pairs.srq.resize(15);
    ensure(errno_of(&refused) == EINVAL, || {
        format!("{refused:?} for less than is posted")
    })?;
    receive(&mut pairs, 20)?;
    // The SRQ is empty now. Posts receives once more.
    for id in 14..31 {
        pairs.post(id)?;
    }
    receive(&mut pairs, 17)
}

fn resize_busy(ends: &Ends) -> Outcome {
    // So many posted receives that a resize takes some time to move them.
    const POSTED: usize = 1 << 13;
    const MESSAGES: usize = 40;
    const RESIZES: u32 = 6;
    // Messages of the three QPs in one exchange.
    const RECEIVES: usize = 3 * MESSAGES;
    let mut pairs = SrqPairs::new(ends, 3, POSTED as u32)?;
    for id in 0..POSTED {
        pairs.post(id)?;
    }
    let (queue, count) = (pairs.srq.raw as usize, AtomicU32::new(0));
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
        let mut remaining = POSTED;
        while count.load(Ordering::Relaxed) < RESIZES - 1 && !resizer.is_finished() {
            if remaining < RECEIVES {
                std::thread::yield_now();
                continue;
            }
            remaining -= RECEIVES;
            exchange(&mut pairs, MESSAGES, |_, id| {
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
    let mut pairs = SrqPairs::new(ends, 2, 16)?;
    for id in 0..4 {
        pairs.post(id)?;
    }
    let context = pairs.b[0].pd.context.clone();
    let error = ibv_qp_attr {
        qp_state: IBV_QPS_ERR,
        ..Default::default()
    };
    pairs.b[0]
        .modify(&error, IBV_QP_STATE)
        .map_err(text("modify"))?;
    expect_event(&context, Some(IBV_EVENT_QP_LAST_WQE_REACHED))?;
    expect_event(&context, None)?;
    // No receive of the SRQ was flushed, because the SRQ belongs to the other QPs, too.
    for number in 0..4 {
        pairs.expect_message(1, number, number)?;
    }
    Ok(())
}

fn pd_of_srq(ends: &Ends) -> Outcome {
    let mut pairs = SrqPairs::with_pds(ends, 1, 4, true)?;
    pairs.post(0)?;
    pairs.send(0, 0)?;
    let wc = pairs.next_receive()?;
    pairs.check(&wc)?;
    pairs.expect_sent()
}

fn destroy_in_use(ends: &Ends) -> Outcome {
    let mut pairs = SrqPairs::new(ends, 1, 4)?;
    let refused = pairs.srq.destroy();
    ensure(errno_of(&refused) == EBUSY, || {
        format!("{refused:?} with a QP")
    })?;
    // The SRQ still works.
    pairs.post(0)?;
    pairs.send(0, 0)?;
    let wc = pairs.next_receive()?;
    pairs.check(&wc)?;
    pairs.expect_sent()
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
            &format!("create_srq with {max_wr} WRs of {max_sge} SGEs: EINVAL"),
            outcome,
        );
    }
    let srq = match Srq::new(&pd, 10, 2) {
        Ok(srq) => srq,
        Err(why) => return tap.result("create_srq", Err(why)),
    };
    let both = IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT;
    let cases: [(&str, u32, u32, u32, i32); 11] = [
        ("no attribute", 0, 0, 0, 0),
        ("a capacity of zero", 0, 0, IBV_SRQ_MAX_WR, EINVAL),
        (
            "a capacity beyond the device's",
            (1 << 20) + 1,
            0,
            IBV_SRQ_MAX_WR,
            EINVAL,
        ),
        ("a limit beyond the capacity", 0, 16, IBV_SRQ_LIMIT, EINVAL),
        ("the largest limit", 0, u32::MAX, IBV_SRQ_LIMIT, EINVAL),
        (
            "both attributes, the limit beyond the capacity",
            20,
            21,
            both,
            EINVAL,
        ),
        ("an undefined attribute", 1, 1, 4, EINVAL),
        ("a limit equal to the capacity", 0, 15, IBV_SRQ_LIMIT, 0),
        ("a limit of zero", 0, 0, IBV_SRQ_LIMIT, 0),
        ("both attributes", 40, 40, both, 0),
        ("a limit of zero and a smaller capacity", 3, 0, both, 0),
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
