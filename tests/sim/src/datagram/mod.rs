// SPDX-License-Identifier: GPL-2.0

//! A world of datagram QPs, which send to one another and to a multicast group over the faulty
//! network.
//!
//! Datagrams may be lost, duplicated and reordered. The oracle checks that a work request sends its
//! datagram at most once and in order, that a datagram is received whole or not at all, and that
//! each receive ends once. An error of a send stops the send queue only (SQE), until the QP enters
//! RTS again.

mod chaos;
mod host;
mod oracle;
mod swarm;
mod workload;

use std::rc::Rc;

use roce::host::Event as AsyncEvent;
use roce::ids::Qpn;
use roce::psn::Psn;
use roce::qp::{Config, Qp, QpKind, QpState, TransmitFault};
use roce::time::Instant;
use roce::transmit::{Source, Transmit};
use roce::wc::WcStatus;
use roce::wire::grh::GRH_LEN;
use roce::wire::packet::Packet;
use roce::wr::SendWr;

use crate::agenda::Agenda;
use crate::memory::Memory;
use crate::message::{LocalFault, Posted};
use crate::recv::{Receive, RecvRing};
use crate::rng::Rng;
use crate::side::Effect;
use crate::stats::Stats;
use crate::swarm::{Impairments, Kind};
use crate::trace::Trace;
use crate::wire;
use crate::world::{Check, SimQp};

use host::DatagramHost;
use swarm::Swarm;

/// Number of polls after which the seed fails because the engine still has work.
const BURST: u32 = 512;

/// Number of events after which a seed counts as a livelock.
const MOST_EVENTS: u32 = 200_000;

/// Number of the first QP.
const FIRST_QPN: u32 = 0x40;

/// A datagram on the network, or another event of a QP.
#[derive(Debug)]
enum Event {
    Arrive {
        to: usize,
        datagram: Rc<[u8]>,
        /// The message, and its packet.
        origin: Origin,
        sent: Packet,
        /// The network flipped one of the datagram's bits.
        corrupt: bool,
    },
    App(usize),
    Chaos(usize),
    /// The transition to RTS: directly from SQD or SQE, through RESET from ERR. Does nothing if the
    /// QP's epoch is no longer this one.
    Restore(usize, u32),
}

/// Identifies a posted message for the whole run of the seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Origin {
    sender: usize,
    /// Index in [`World::letters`].
    letter: usize,
}

/// The content of a posted datagram. It is kept when the QP is reset.
#[derive(Clone, Debug)]
struct Letter {
    wr: SendWr,
    payload: Rc<[u8]>,
    /// The queue key in the packet.
    qkey: u32,
}

/// A posted work request.
#[derive(Clone, Debug)]
struct Message {
    wr: SendWr,
    fault: LocalFault,
    letter: usize,
    /// Its datagram was passed to the network.
    sent: bool,
    /// Its payload was requested, and its memory was missing.
    failed: bool,
}

impl Posted for Message {
    fn wr(&self) -> SendWr {
        self.wr
    }

    fn fault(&self) -> LocalFault {
        self.fault
    }
}

/// The host of one QP, and the oracle's state of it.
#[derive(Debug)]
struct Side {
    qpn: u32,
    kind: QpKind,
    qkey: u32,
    state: QpState,
    /// Number of times that the QP was reset.
    epoch: u32,
    ring: usize,
    shared: bool,
    messages: Vec<Message>,
    taken: usize,
    retired: usize,
    completed: usize,
    sq: u32,
    /// Length of the longest datagram in bytes.
    mtu: u32,
    /// PSN of the next datagram.
    psn: Psn,
    /// Receives that were taken and not released, and the one that the oracle expects to be held.
    held: Vec<Receive>,
    holds: Option<Receive>,
    effects: Vec<Effect>,
    events: Vec<AsyncEvent>,
    failure: Option<String>,
    resetting: bool,
    /// An event will bring the QP back to RTS.
    restore_due: bool,
    /// The status of each send completion of the current call.
    ended: Vec<WcStatus>,
}

impl Side {
    fn fail(&mut self, why: String) {
        self.failure.get_or_insert(why);
    }

    fn sends(&self) -> bool {
        matches!(self.state, QpState::Rts | QpState::Sqd)
    }

    fn receives(&self) -> bool {
        matches!(
            self.state,
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
        )
    }

    fn message_in(&self, slot: u32) -> Option<usize> {
        (self.retired..self.taken).find(|&index| self.messages[index].wr.slot.0 == slot)
    }

    fn clear(&mut self) {
        self.messages.clear();
        (self.taken, self.retired, self.completed) = (0, 0, 0);
        self.holds = None;
        self.effects.clear();
        self.state = QpState::Reset;
        self.epoch += 1;
        self.restore_due = false;
    }
}

/// One QP with its host.
struct End {
    qp: SimQp,
    side: Side,
    to_post: u32,
    next_id: u64,
    /// The QP is in the multicast group.
    member: bool,
}

/// The state of one seed's simulation.
pub(crate) struct World {
    swarm: Swarm,
    rng: Rng,
    pub(crate) now: u64,
    agenda: Agenda<Event>,
    flights: usize,
    memory: Memory,
    rings: Vec<RecvRing>,
    ends: Vec<End>,
    letters: Vec<Letter>,
    impairments: Impairments,
    /// The faults have stopped.
    faults_stopped: bool,
    pub(crate) trace: Trace,
    pub(crate) stats: Stats,
}

impl World {
    pub(crate) fn new(seed: u64, print: bool) -> Self {
        let mut rng = Rng::new(seed);
        let swarm = Swarm::new(&mut rng);
        let slot = swarm.mtu.bytes() + GRH_LEN;
        let area = slot as usize * swarm.rq as usize;
        let size = swarm::SOURCE + swarm.qps * area;
        let mut bytes = vec![0; size];
        rng.fill(&mut bytes[..swarm::SOURCE]);
        let rings = (0..swarm.qps)
            .map(|ring| {
                let at = swarm::SOURCE + ring * area;
                RecvRing::new(at, slot, swarm.rq, ring)
            })
            .collect();
        let ends = (0..swarm.qps)
            .map(|index| End::new(index, &swarm, &mut rng))
            .collect();
        Self {
            impairments: swarm.impairments.clone(),
            swarm,
            rng,
            now: 0,
            agenda: Agenda::default(),
            flights: 0,
            memory: Memory {
                base: 0,
                shadow: bytes.clone(),
                bytes,
                regions: Vec::new(),
                inject: None,
            },
            rings,
            ends,
            letters: Vec::new(),
            faults_stopped: false,
            trace: Trace::new(print),
            stats: Stats::default(),
        }
    }

    /// Simulates the seed to its end.
    pub(crate) fn run(&mut self) -> Check {
        self.trace.line(0, || format!("{:?}", self.swarm));
        for end in 0..self.ends.len() {
            self.connect(end)?;
            let at = self.rng.below(1000);
            self.agenda.at(at, Event::App(end));
        }
        for _ in 0..self.swarm.chaos {
            let end = self.rng.below(self.ends.len() as u64) as usize;
            let at = self.rng.below(u64::from(self.swarm.ops) * self.swarm.pace);
            self.agenda.at(at, Event::Chaos(end));
        }
        for _ in 0..MOST_EVENTS {
            let Some((at, event)) = self.agenda.next() else {
                return Err("nothing left to happen, yet work is left".into());
            };
            self.now = at;
            self.trace.mix(at);
            self.happen(event)?;
            if !self.faults_stopped && self.ends.iter().all(|end| end.to_post == 0) {
                self.faults_stopped = true;
                self.impairments = Impairments::none(self.impairments.latency);
                self.trace.line(self.now, || "--- faults stopped".into());
            }
            if self.faults_stopped && self.flights == 0 && self.ends.iter().all(End::drained) {
                return self.finale();
            }
        }
        Err("livelock".into())
    }

    fn happen(&mut self, event: Event) -> Check {
        match event {
            Event::Arrive {
                to,
                datagram,
                origin,
                sent,
                corrupt,
            } => {
                self.flights -= 1;
                match opened(&datagram, &sent, corrupt)? {
                    Some((packet, payload)) => self.arrive(to, origin, &packet, payload),
                    None => Ok(()),
                }
            }
            Event::App(end) => self.app(end),
            Event::Chaos(end) => self.chaos(end),
            Event::Restore(end, epoch) => self.restore(end, epoch),
        }
    }

    fn call<T>(
        &mut self,
        end: usize,
        payload: &[u8],
        call: impl FnOnce(&mut SimQp, Instant, &mut DatagramHost<'_>) -> T,
    ) -> T {
        let End { qp, side, .. } = &mut self.ends[end];
        let mut host = DatagramHost {
            ring: &mut self.rings[side.ring],
            side,
            memory: &mut self.memory,
            payload,
        };
        call(qp, Instant(self.now), &mut host)
    }

    /// Checks all conditions that must hold after a call.
    fn settle(&mut self, end: usize, effects: &[Effect]) -> Check {
        let End { qp, side, .. } = &mut self.ends[end];
        let name = |why: String| format!("end {end}: {why}");
        for effect in &side.effects {
            if let Effect::RecvDone(wc) = effect {
                self.stats.completed(wc.status);
                self.trace.mix(wc.wr_id ^ wc.status as u64);
            }
            self.trace
                .line(self.now, || format!("end {end}   {effect:?}"));
        }
        for status in side.ended.drain(..) {
            self.stats.completed(status);
            self.trace.mix(status as u64);
        }
        if let Some(why) = side.failure.take() {
            return Err(name(why));
        }
        oracle::compare(side, effects).map_err(name)?;
        if qp.state() != side.state {
            return Err(name(format!(
                "is in {:?}, should be in {:?}",
                qp.state(),
                side.state
            )));
        }
        for effect in effects {
            if let Effect::ScatterRecv { at, len } = *effect {
                self.memory.verify(at, len).map_err(name)?;
            }
        }
        if side.state == QpState::Err || side.state == QpState::Sqe {
            self.plan_restore(end);
        }
        Ok(())
    }

    /// Polls the engine until it has no work, and sends its packets.
    fn turn(&mut self, end: usize) -> Check {
        for _ in 0..BURST {
            let polled = self.call(end, &[], |qp, now, host| qp.poll_transmit(now, host));
            self.settle(end, &[])?;
            match polled {
                Some(transmit) => self.transmit(end, &transmit)?,
                None if self.ends[end].qp.poll_timeout().is_none() => {
                    return oracle::rested(&self.ends[end].side)
                        .map_err(|why| format!("end {end}: {why}"));
                }
                None => {}
            }
        }
        Err(format!("end {end}: never comes to rest"))
    }

    fn transmit(&mut self, end: usize, transmit: &Transmit) -> Check {
        let packet = transmit.packet;
        self.trace.line(self.now, || {
            format!("end {end} -> {packet:?} from {:?}", transmit.source)
        });
        let side = &mut self.ends[end].side;
        let index = oracle::request(side, transmit).map_err(|why| format!("end {end}: {why}"))?;
        let message = &mut side.messages[index];
        if message.fault != LocalFault::None {
            message.failed = true;
            let fault = TransmitFault::Local(WcStatus::LocProtErr);
            self.call(end, &[], |qp, now, host| {
                qp.transmit_failed(now, transmit, fault, host);
            });
            return self.settle(end, &[]);
        }
        message.sent = true;
        self.stats.done[Kind::Datagram as usize] += 1;
        let letter = message.letter;
        if let roce::wire::packet::Service::Ud(deth) = packet.service {
            self.letters[letter].qkey = deth.qkey.0;
        }
        let Source::Send { offset, .. } = transmit.source else {
            return Err(format!("end {end}: a datagram from {:?}", transmit.source));
        };
        let payload = self.letters[letter].payload.clone();
        let origin = Origin {
            sender: end,
            letter,
        };
        self.route(origin, packet, &payload[offset as usize..]);
        Ok(())
    }

    /// Sends a datagram over the network: to the QP that it names, or to each member of the group.
    fn route(&mut self, origin: Origin, packet: Packet, payload: &[u8]) {
        let to: Vec<usize> = (0..self.ends.len())
            .filter(|&to| match packet.bth.dest {
                Qpn::MULTICAST => self.ends[to].member,
                dest => self.ends[to].side.qpn == dest.get(),
            })
            .collect();
        let datagram: Rc<[u8]> = wire::seal(&packet, payload).into();
        self.trace.mix_bytes(&datagram[..datagram.len().min(48)]);
        self.stats.packets += 1;
        for to in to {
            self.send(to, origin, packet, &datagram);
        }
    }

    fn send(&mut self, to: usize, origin: Origin, packet: Packet, datagram: &Rc<[u8]>) {
        if self.rng.chance(self.impairments.no_memory) || self.rng.chance(self.impairments.drop) {
            self.stats.dropped += 1;
            return;
        }
        let copies = 1 + u64::from(self.rng.chance(self.impairments.duplicate));
        self.stats.duplicated += copies - 1;
        for _ in 0..copies {
            let mut datagram = datagram.clone();
            let corrupt = self.rng.chance(self.impairments.corrupt);
            if corrupt {
                self.stats.corrupted += 1;
                let mut bytes = datagram.to_vec();
                let bit = self.rng.below(bytes.len() as u64 * 8) as usize;
                bytes[bit / 8] ^= 1 << (bit % 8);
                datagram = bytes.into();
            }
            let mut delay = self.impairments.latency;
            if self.rng.chance(self.impairments.reorder) {
                self.stats.reordered += 1;
                delay += self.rng.below(self.impairments.jitter);
            }
            self.flights += 1;
            let event = Event::Arrive {
                to,
                datagram,
                origin,
                sent: packet,
                corrupt,
            };
            self.agenda.at(self.now + delay, event);
        }
    }

    /// Delivers a datagram to its QP, which may have been reset since the datagram was sent.
    fn arrive(&mut self, to: usize, origin: Origin, packet: &Packet, payload: &[u8]) -> Check {
        self.trace.line(self.now, || {
            format!("end {to} <- {:?} {} bytes", packet.service, payload.len())
        });
        let sender = self.ends[origin.sender].side.qpn;
        let letter = &self.letters[origin.letter];
        let End { side, .. } = &mut self.ends[to];
        let front = self.rings[side.ring].posted.front();
        let effects = oracle::receive(side, &mut self.memory, front, letter, sender);
        self.call(to, payload, |qp, now, host| {
            qp.handle_packet(now, packet, host);
        });
        self.settle(to, &effects)?;
        self.turn(to)
    }

    /// Lets the application post receives and work requests.
    fn app(&mut self, end: usize) -> Check {
        if self.rng.chance(self.swarm.recv_eagerness) || self.faults_stopped {
            self.replenish(end);
        }
        for _ in 0..self.rng.below(u64::from(self.swarm.sq) + 1) {
            self.post(end);
        }
        let next = self.now + self.rng.range(1, self.swarm.pace);
        self.agenda.at(next, Event::App(end));
        self.turn(end)
    }

    fn replenish(&mut self, end: usize) {
        let side = &self.ends[end].side;
        let dead = matches!(side.state, QpState::Reset | QpState::Err);
        if dead && !side.shared {
            return;
        }
        for _ in 0..self.rng.range(1, u64::from(self.swarm.rq)) {
            let (length, fault) = workload::receive(&mut self.rng, &self.swarm);
            if self.rings[side.ring].post(length, fault).is_none() {
                return;
            }
        }
    }

    fn post(&mut self, end: usize) {
        let side = &self.ends[end].side;
        let open = matches!(
            side.state,
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err
        );
        let full = side.messages.len() - side.retired >= side.sq as usize;
        if self.ends[end].to_post == 0 || !open || full {
            return;
        }
        let (wr, fault) = workload::message(&mut self.rng, &self.swarm, &self.ends, end);
        let start = self.rng.below((swarm::SOURCE - 8192) as u64) as usize;
        let payload = self.memory.bytes[start..start + wr.length as usize].into();
        self.stats.ops[Kind::Datagram as usize] += 1;
        self.trace
            .line(self.now, || format!("end {end}   posts {wr:?} {fault:?}"));
        let this = &mut self.ends[end];
        this.next_id += 1;
        this.to_post -= 1;
        this.side.messages.push(Message {
            wr,
            fault,
            letter: self.letters.len(),
            sent: false,
            failed: false,
        });
        self.letters.push(Letter {
            wr,
            payload,
            qkey: 0,
        });
    }

    /// Checks the end of a seed: all memory has the expected content, and ERR flushes all receives
    /// that are left in the QPs' own queues.
    fn finale(&mut self) -> Check {
        self.memory.verify_all()?;
        for end in 0..self.ends.len() {
            if self.ends[end].side.state != QpState::Reset {
                self.break_down(end)?;
                self.reset(end)?;
            }
        }
        self.memory.verify_all()
    }
}

/// Decodes a datagram. Only FECN, BECN and Resv6 may differ from the packet that was sent, since
/// the ICRC excludes them.
fn opened<'a>(
    datagram: &'a [u8],
    sent: &Packet,
    corrupt: bool,
) -> Result<Option<(Packet, &'a [u8])>, String> {
    let Some((packet, payload)) = wire::open(datagram) else {
        return match corrupt {
            true => Ok(None),
            false => Err(format!("the codec lost {sent:?}")),
        };
    };
    let mut seen = packet;
    seen.bth.reserved = sent.bth.reserved;
    if seen != *sent {
        return Err(format!("{sent:?} was decoded as {packet:?}"));
    }
    Ok(Some((packet, payload)))
}

impl End {
    fn new(index: usize, swarm: &Swarm, rng: &mut Rng) -> Self {
        let side = Side {
            qpn: FIRST_QPN + index as u32,
            kind: swarm.kind,
            qkey: swarm.qkey(rng),
            state: QpState::Reset,
            epoch: 0,
            ring: if swarm.srq { 0 } else { index },
            shared: swarm.srq,
            messages: Vec::new(),
            taken: 0,
            retired: 0,
            completed: 0,
            sq: swarm.sq,
            mtu: swarm.mtu.bytes(),
            psn: Psn::new(0),
            held: Vec::new(),
            holds: None,
            effects: Vec::new(),
            events: Vec::new(),
            failure: None,
            resetting: false,
            restore_due: false,
            ended: Vec::new(),
        };
        let config = Config {
            kind: swarm.kind,
            qpn: Qpn::new(side.qpn),
            has_srq: swarm.srq,
            port_mtu: swarm.mtu,
            fills_gaps: true,
        };
        Self {
            qp: Qp::new(
                config,
                vec![Default::default(); swarm.window],
                vec![Default::default(); 1],
            ),
            side,
            to_post: swarm.ops,
            next_id: (index as u64) << 32,
            member: rng.chance(600),
        }
    }

    fn drained(&self) -> bool {
        let sends = self.side.state == QpState::Rts;
        sends && self.side.retired == self.side.messages.len()
    }
}
