// SPDX-License-Identifier: GPL-2.0

//! The simulated world: two nodes, the QPs on them, and the loop of virtual time.

use roce::early::{EarlyQueue, MOST_AHEAD};
use roce::host::RemoteAccess;
use roce::ids::Qpn;
use roce::qp::{Config, Qp, QpKind, QpState, Replay, SendWqe};
use roce::time::Instant;
use roce::wc::WcStatus;

use crate::agenda::{Agenda, Event};
use crate::host::{Early, SimHost};
use crate::lifecycle::to;
use crate::memory::{Memory, Region};
use crate::recv::{RecvRing, FOREIGN_RING};
use crate::requester;
use crate::responder::{self, Forecast};
use crate::rng::Rng;
use crate::side::{Effect, Gap, Side};
use crate::stats::Stats;
use crate::swarm::{Impairments, Kind, Swarm};
use crate::trace::Trace;
use crate::workload::{GRANTS, TARGETS};

pub(crate) type Check = Result<(), String>;

/// Number of events after which a seed counts as a livelock.
const MOST_EVENTS: u32 = 1_000_000;

/// Maximum number of nanoseconds of a pause after a QP's host dropped a packet.
pub(crate) const LONGEST_PAUSE: u64 = 100_000 << 10;

/// Maximum number of READs and atomics that a QP remembers.
pub(crate) const REPLAYS: u64 = 16;

pub(crate) type SimQp = Qp<Vec<SendWqe>, Vec<Replay>>;

/// One QP with its host.
pub(crate) struct End {
    /// `None` before the QP is created and after it was destroyed.
    pub(crate) qp: Option<SimQp>,
    pub(crate) side: Side,
    /// The early packets that the host keeps.
    pub(crate) early: Early,
    /// Number of work requests that are still to be posted.
    pub(crate) to_post: u32,
    pub(crate) next_id: u64,
    /// The kinds of the posted messages, with the same indices as `side.messages`.
    pub(crate) kinds: Vec<Kind>,
    pub(crate) timer_at: Option<u64>,
    pub(crate) poll_due: bool,
}

/// The state of one seed's simulation.
pub(crate) struct World {
    pub(crate) swarm: Swarm,
    pub(crate) rng: Rng,
    pub(crate) now: u64,
    pub(crate) agenda: Agenda<Event>,
    /// Number of datagrams on the network.
    pub(crate) flights: usize,
    pub(crate) nodes: Vec<Memory>,
    pub(crate) rings: Vec<RecvRing>,
    pub(crate) ends: Vec<End>,
    pub(crate) impairments: Impairments,
    /// The node to which all packets are lost.
    pub(crate) blackhole: Option<usize>,
    /// Set when the faults have stopped: the time at which all ends must have drained.
    pub(crate) deadline: Option<u64>,
    /// A fault may have lost a packet.
    pub(crate) lossy: bool,
    /// Earliest time at which the faults stop.
    pub(crate) faults_until: u64,
    pub(crate) recovering: Vec<bool>,
    pub(crate) trace: Trace,
    pub(crate) stats: Stats,
}

impl World {
    pub(crate) fn new(seed: u64, print: bool) -> Self {
        let mut rng = Rng::new(seed);
        let swarm = Swarm::new(&mut rng);
        let count = swarm.pairs * 2;
        let rings = count.max(FOREIGN_RING + 1);
        let slot = swarm.max_message().max(8) as usize;
        let recv_area = swarm.source() + TARGETS * swarm.target();
        let recv_size = slot * swarm.rq as usize;
        let result_size = slot * swarm.sq as usize;
        let result_area = recv_area + rings / 2 * recv_size;
        let size = result_area + swarm.pairs * result_size;
        let nodes = (0..2).map(|_| memory(&mut rng, &swarm, size)).collect();
        let rings = (0..rings)
            .map(|i| {
                let area = recv_area + i / 2 * recv_size;
                RecvRing::new(area, slot as u32, swarm.rq, i)
            })
            .collect();
        let ends = (0..count)
            .map(|index| {
                let results = result_area + index / 2 * result_size;
                End::new(index, &swarm, results)
            })
            .collect();
        let faults_until = u64::from(swarm.ops) * swarm.pace / 4;
        Self {
            impairments: swarm.impairments.clone(),
            recovering: vec![false; swarm.pairs],
            swarm,
            rng,
            now: 0,
            agenda: Agenda::default(),
            flights: 0,
            nodes,
            rings,
            ends,
            blackhole: None,
            deadline: None,
            lossy: false,
            faults_until,
            trace: Trace::new(print),
            stats: Stats::default(),
        }
    }

    /// Simulates the seed to its end.
    pub(crate) fn run(&mut self) -> Check {
        self.trace.line(0, || format!("{:?}", self.swarm));
        for pair in 0..self.swarm.pairs {
            self.connect(pair)?;
        }
        for end in 0..self.ends.len() {
            self.agenda.at(self.rng.below(1000), Event::App(end));
        }
        for chaos in self.swarm.chaos.clone() {
            let at = self.rng.below(self.faults_until + 1);
            self.agenda.at(at, Event::Chaos(chaos));
        }
        for _ in 0..MOST_EVENTS {
            let Some((at, event)) = self.agenda.next() else {
                return Err("nothing left to happen, yet work is left".into());
            };
            self.now = at;
            self.trace.mix(at);
            self.happen(event)?;
            if self.check_end()? {
                return self.finale();
            }
        }
        Err("livelock".into())
    }

    fn happen(&mut self, event: Event) -> Check {
        match event {
            Event::Arrive(flight) => self.arrive(flight),
            Event::Timer(end) => self.timer(end),
            Event::Poll(end) => {
                self.ends[end].poll_due = false;
                self.turn(end)
            }
            Event::App(end) => self.app(end),
            Event::Chaos(chaos) => self.chaos(chaos),
            Event::Recover(pair) => self.recover(pair),
            Event::Ready(end, epoch) => self.ready(end, epoch),
            Event::Undrain(end, epoch) => self.undrain(end, epoch),
            Event::Resume(end, epoch) => self.resume(end, epoch),
            Event::BlackholeEnds => {
                self.blackhole = None;
                Ok(())
            }
        }
    }

    /// Stops the faults when all messages are posted, but not before `faults_until`, or when that
    /// takes too long. Returns whether all ends have drained since then, except ends that may wait
    /// for ever.
    fn check_end(&mut self) -> Result<bool, String> {
        match self.deadline {
            None => {
                let posted = self.ends.iter().all(|end| end.to_post == 0);
                let overdue = self.now > self.faults_until * 4 + 40 * self.swarm.ack_timeout();
                if (posted && self.now >= self.faults_until) || overdue {
                    self.stop_faults();
                }
                Ok(false)
            }
            Some(deadline) => {
                // Without an acknowledgment timer, a lost packet isn't sent again.
                let excused = self.swarm.timeout == 0 && self.lossy;
                let drained = self.flights == 0
                    && self
                        .ends
                        .iter()
                        .all(|end| end.drained() || (excused && end.waits()));
                if drained || self.now <= deadline {
                    return Ok(drained);
                }
                // A QP that waits for ever may hold a receive of a shared queue. The messages to
                // other QPs then never get this receive.
                let stuck = |end: &End| end.waits() && !end.drained();
                if excused && self.swarm.srq && self.ends.iter().any(stuck) {
                    return Ok(true);
                }
                let is_left = |end: &usize| !self.ends[*end].is_idle();
                let mut left = (0..self.ends.len()).filter(is_left).peekable();
                if left.peek().is_some() && left.all(|end| self.is_starved(end)) {
                    return Ok(true);
                }
                Err(self.stuck())
            }
        }
    }

    /// Returns whether the peer of `end` waits for a receive of a shared queue that it never gets,
    /// because other QPs hold all receives of the queue. One of them waits for the rest of a
    /// message, but its peer doesn't send any more.
    fn is_starved(&self, end: usize) -> bool {
        let waiting = &self.ends[end ^ 1].side;
        let wanted = waiting.rx.wanted;
        let ring = &self.rings[wanted];
        let is_empty = ring.posted.is_empty() && ring.free.is_empty();
        let refused = matches!(waiting.rx.gap, Gap::NotReady | Gap::Said);
        let holds = |end: &usize| {
            let holder = &self.ends[*end];
            let held = holder.side.rx.held.as_ref();
            holder.qp.is_some() && held.is_some_and(|receive| receive.ring == wanted)
        };
        let is_orphan = |holder: usize| !self.ends[holder ^ 1].side.sends();
        let mut holders = (0..self.ends.len()).filter(holds);
        waiting.shared && refused && waiting.rx.held.is_none() && is_empty && holders.any(is_orphan)
    }

    /// Stops the faults. All ends must drain within 20 timeouts and the time that a network without
    /// faults needs.
    fn stop_faults(&mut self) {
        self.impairments = Impairments::none(self.swarm.impairments.latency);
        self.blackhole = None;
        for end in &mut self.ends {
            end.side.tx.tries_without_faults = 0;
        }
        let outstanding: u64 = self
            .ends
            .iter()
            .map(|end| end.side.tx.assigned - end.side.tx.una)
            .sum();
        let round = 2 * (self.impairments.latency + self.swarm.laziness) + 10_000;
        let waits = 2 * requester::rnr_delay(self.swarm.min_rnr_timer);
        let pause = if self.swarm.impairments.no_memory == 0 {
            0
        } else {
            LONGEST_PAUSE
        };
        let spare = self.swarm.impairments.jitter + waits + pause + outstanding * round;
        self.deadline = Some(self.now + 20 * self.swarm.ack_timeout() + spare);
        self.trace.line(self.now, || "--- faults stopped".into());
    }

    fn stuck(&self) -> String {
        let mut text = format!("not drained ({} in flight):", self.flights);
        for (index, end) in self.ends.iter().enumerate() {
            let side = &end.side;
            text += &format!(
                " end {index} {:?}: posted {} taken {} retired {}, unacknowledged {}..{} of {}, \
                 receives {}, timer {:?};",
                side.state,
                side.messages.len(),
                side.taken,
                side.retired,
                side.tx.una,
                side.tx.sent,
                side.tx.assigned,
                self.rings[side.ring].posted.len(),
                end.qp.as_ref().map(|qp| qp.poll_timeout()),
            );
        }
        text
    }

    /// Calls the engine. Returns `None` if the QP is gone.
    pub(crate) fn call<T>(
        &mut self,
        end: usize,
        payload: &[u8],
        call: impl FnOnce(&mut SimQp, Instant, &mut SimHost<'_>) -> T,
    ) -> Option<T> {
        let End {
            qp, side, early, ..
        } = &mut self.ends[end];
        let node = side.node;
        let mut host = SimHost {
            now: self.now,
            side,
            memory: &mut self.nodes[node],
            rings: &mut self.rings,
            payload,
            srqn: None,
            early,
            keep: None,
        };
        let qp = qp.as_mut()?;
        Some(call(qp, Instant(self.now), &mut host))
    }

    /// Checks all conditions that must hold after a call. `before` is the number of messages that
    /// had completed before it.
    pub(crate) fn settle(&mut self, end: usize, before: usize, forecast: &Forecast) -> Check {
        self.show(end, before);
        let End {
            qp, side, kinds, ..
        } = &mut self.ends[end];
        let Some(qp) = qp else {
            return Ok(());
        };
        if let Some(why) = side.failure.take() {
            return Err(format!("end {end}: {why}"));
        }
        let name = |why: String| format!("end {end}: {why}");
        let state = qp.state();
        responder::compare(side, forecast).map_err(name)?;
        if state != side.state {
            return Err(name(format!(
                "is in {state:?}, should be in {:?}",
                side.state
            )));
        }
        requester::settled(side).map_err(name)?;
        // The owner gets one event once the QP takes no more from its shared receive queue.
        let last_wqe = usize::from(side.shared && !side.is_xrc() && state == QpState::Err);
        if side.last_wqe != last_wqe && !side.resetting {
            let got = side.last_wqe;
            return Err(name(format!("{got} LAST_WQE_REACHED events")));
        }
        let memory = &mut self.nodes[side.node];
        for effect in &forecast.effects {
            match *effect {
                Effect::ScatterRecv { at, len } | Effect::Write { at, len } => {
                    memory.verify(at, len).map_err(name)?;
                }
                Effect::Atomic { at, .. } | Effect::AtomicWrite { at } => {
                    memory.verify(at, 8).map_err(name)?;
                }
                _ => {}
            }
        }
        let done = before..side.completed;
        for (message, kind) in side.messages[done.clone()].iter().zip(&kinds[done]) {
            if let Some(status) = message.completed {
                self.stats.completed(status);
            }
            let succeeded = message
                .completed
                .is_none_or(|status| status == WcStatus::Success);
            self.stats.done[*kind as usize] += u64::from(succeeded);
        }
        let (side, peer) = (&self.ends[end].side, &self.ends[end ^ 1].side);
        let gave_up = side.completed > before
            && side.messages[side.completed - 1].completed == Some(WcStatus::RetryExcErr);
        let answers = peer.receives() && peer.epoch == side.epoch;
        if self.deadline.is_some() && gave_up && answers && side.tx.tries_without_faults > 1 {
            return Err(name(format!(
                "gave up after {} tries on a network without faults",
                side.tx.tries_without_faults
            )));
        }
        let (broken, stopped) = (side.state == QpState::Err, side.failed.is_some());
        if stopped && !self.ends[end].side.resumes {
            self.ends[end].side.resumes = true;
            let wait = self.rng.below(4 * self.swarm.ack_timeout());
            let epoch = self.ends[end].side.epoch;
            self.agenda.at(self.now + wait, Event::Resume(end, epoch));
        }
        self.lossy |= broken;
        if broken && self.deadline.is_none() {
            self.plan_recovery(end / 2);
        }
        if std::mem::take(&mut self.ends[end].side.overflow) && !broken {
            return self.modify(end, &to(QpState::Err));
        }
        Ok(())
    }

    /// Traces the completions and events of the last call.
    fn show(&mut self, end: usize, before: usize) {
        let events = std::mem::take(&mut self.ends[end].side.events);
        let drained = events
            .iter()
            .filter(|event| **event == roce::host::Event::SqDrained);
        self.ends[end].side.sq_drained += drained.count();
        let last_wqe = events
            .iter()
            .filter(|event| **event == roce::host::Event::LastWqeReached);
        self.ends[end].side.last_wqe += last_wqe.count();
        let side = &self.ends[end].side;
        for index in before..side.completed {
            let status = side.messages[index].completed;
            self.trace.mix(status.map_or(99, |status| status as u64));
            self.trace.line(self.now, || {
                format!("end {end}   message {index} completed: {status:?}")
            });
        }
        for effect in &side.effects {
            if let Effect::RecvDone(wc) = effect {
                self.trace.mix(wc.wr_id ^ wc.status as u64);
                self.stats.completed(wc.status);
            }
            self.trace
                .line(self.now, || format!("end {end}   {effect:?}"));
        }
        for event in &events {
            self.trace
                .line(self.now, || format!("end {end}   event {event:?}"));
        }
    }

    /// Checks all conditions after a call that may have no effects but flushed receives.
    pub(crate) fn settle_quietly(&mut self, end: usize, before: usize) -> Check {
        self.settle(end, before, &Forecast::default())
    }

    /// Returns where the data of a READ response is in the node's memory, if it may still be read.
    pub(crate) fn readable(
        &self,
        node: usize,
        rkey: roce::ids::Rkey,
        va: u64,
        len: u32,
    ) -> Result<usize, roce::host::AccessFault> {
        self.nodes[node].grant(rkey, va, len, RemoteAccess::Read)
    }
}

impl End {
    fn new(index: usize, swarm: &Swarm, results: usize) -> Self {
        let qpn = 0x10 + index as u32;
        let node = index % 2;
        let ring = if swarm.srq { node } else { index };
        let kind = match (swarm.unreliable, swarm.xrc, node) {
            (true, ..) => QpKind::Uc,
            (false, false, _) => QpKind::Rc,
            (false, true, 0) => QpKind::XrcIni,
            (false, true, _) => QpKind::XrcTgt,
        };
        let mut side = Side {
            kind,
            qpn,
            peer_qpn: 0x10 + (index as u32 ^ 1),
            node,
            ring,
            shared: swarm.srq || swarm.xrc,
            unreliable: swarm.unreliable,
            state: QpState::Reset,
            profile: crate::lifecycle::profile(swarm),
            epoch: 0,
            messages: Vec::new(),
            taken: 0,
            retired: 0,
            completed: 0,
            sq: swarm.sq,
            results,
            tx: Default::default(),
            rx: Default::default(),
            held: Vec::new(),
            effects: Vec::new(),
            events: Vec::new(),
            sq_drained: 0,
            last_wqe: 0,
            cq_full: false,
            overflow: false,
            failed: None,
            resumes: false,
            notify: false,
            failure: None,
            paused: (0, 0),
            pause: 0,
            resetting: false,
            keeps_early: false,
        };
        side.clear();
        Self {
            qp: None,
            side,
            early: [Vec::new(), Vec::new()].map(EarlyQueue::new),
            to_post: if kind == QpKind::XrcTgt { 0 } else { swarm.ops },
            next_id: (index as u64) << 32,
            kinds: Vec::new(),
            timer_at: None,
            poll_due: false,
        }
    }

    /// Creates a QP.
    pub(crate) fn create(&mut self, window: usize, keeps_early: bool) {
        self.side.keeps_early = keeps_early;
        let places = if keeps_early { MOST_AHEAD } else { 0 };
        self.early = [(), ()].map(|()| EarlyQueue::new(vec![None; places as usize]));
        let config = Config {
            kind: self.side.kind,
            qpn: Qpn::new(self.side.qpn),
            has_srq: self.side.shared && !self.side.is_xrc(),
            port_mtu: self.side.profile.mtu,
            fills_gaps: keeps_early,
        };
        let window = vec![SendWqe::default(); window];
        self.qp = Some(Qp::new(config, window, Vec::new()));
    }

    /// Returns whether the end has nothing to do until a packet arrives, but to drop early packets.
    fn waits(&self) -> bool {
        let has_early = self.side.rx.past_seen.is_some();
        let idle = |qp: &SimQp| has_early || qp.poll_timeout().is_none();
        !self.poll_due && self.qp.as_ref().is_none_or(idle)
    }

    fn drained(&self) -> bool {
        self.is_idle() && (self.qp.is_none() || !self.poll_due)
    }

    /// Returns whether all posted messages have ended.
    fn is_idle(&self) -> bool {
        self.qp.is_none() || self.side.idle()
    }
}

fn memory(rng: &mut Rng, swarm: &Swarm, size: usize) -> Memory {
    let mut bytes = vec![0; size];
    rng.fill(&mut bytes[..swarm.source()]);
    let regions = (0..TARGETS)
        .map(|index| Region {
            key: rng.next() as u32 & !(1 << 31),
            start: swarm.source() + index * swarm.target(),
            at: swarm.source() + index * swarm.target(),
            len: swarm.target(),
            grant: GRANTS[index],
            live: true,
        })
        .collect();
    Memory {
        base: rng.below(1 << 40) << 12,
        shadow: bytes.clone(),
        bytes,
        regions,
        inject: None,
    }
}
