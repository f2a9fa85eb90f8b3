// SPDX-License-Identifier: GPL-2.0

//! The simulation of one row: two hosts, the QPs that connect them, and the network between them.
//!
//! The ends (QPs) with even indices belong to the first host, which posts the messages. The others
//! belong to the second host. Each direction of the network has the same links: that of the sending
//! host and, in some rows, the port of a switch. Then the packets travel for half of the round-trip
//! time. Hosts take no time to process a packet, but they see it up to a microsecond late.

use roce::ids::Qpn;
use roce::mtu::Mtu;
use roce::psn::Psn;
use roce::qp::{Attrs, Config, Qp, QpKind, QpState, RemoteRights, Replay, SendWqe};
use roce::time::Instant;
use roce::wire::packet::Packet;

use super::host::{AppHost, Early, Op, DEPTH, MESSAGE};
use super::impairment::{Channel, Fate, Impairment};
use super::link::{wire_bytes, Link};
use crate::agenda::Agenda;
use crate::rng::Rng;

/// Maximum number of packets of a QP that wait in its own host, as in the driver
/// (`limits::PACKETS_IN_FLIGHT`). A QP that has reached it continues when half of them have left, a
/// packet arrives or its timer expires.
const TX_LIMIT: u32 = 64;
/// Number of READs that may be in flight.
const RD_ATOMIC: u8 = 16;
/// Bits per second of one Gbit/s.
const GIGABIT: u64 = 1_000_000_000;
/// Maximum time in nanoseconds from the arrival of a packet to its processing. It is random for
/// each packet. Otherwise all QPs would send in phase, and a full queue would always drop the
/// packets of the same QPs.
const JITTER: u64 = 1000;
/// Maximum length of a run, in multiples of the duration of its row.
const MOST_TIMES: u64 = 4;

/// A port of a switch, through which all packets of a direction pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Port {
    /// Rate in Gbit/s.
    pub(super) rate: u32,
    /// Number of packets that may wait.
    pub(super) queue: u32,
}

/// The parameters of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Setup {
    pub(super) op: Op,
    pub(super) mtu: Mtu,
    /// Round-trip time in microseconds, without the time in which packets are sent or wait.
    pub(super) rtt: u32,
    /// Exponent of the Local ACK Timeout.
    pub(super) timeout: u8,
    /// Number of connections.
    pub(super) qps: u32,
    /// Rate of the hosts' links in Gbit/s.
    pub(super) rate: u32,
    pub(super) port: Option<Port>,
    pub(super) impairment: Impairment,
    pub(super) early: Early,
    /// Duration in milliseconds.
    pub(super) duration: u32,
    pub(super) seed: u64,
}

/// The measurements of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Bytes of the messages that ended.
    pub(super) bytes: u64,
    /// Duration in nanoseconds.
    pub(super) time: u64,
    /// Number of data packets that were sent, that were sent again, and that were lost. A data
    /// packet has payload.
    pub(super) sent: u64,
    pub(super) again: u64,
    pub(super) lost: u64,
    /// Number of RTOs that ended, and of retries because the acknowledgment timer expired.
    pub(super) rtos: u64,
    pub(super) timeouts: u64,
    /// Number of all retries (`Count::CompleterRetry`), and of received NAKs "PSN sequence error".
    pub(super) retries: u64,
    pub(super) naks: u64,
    /// Longest time in nanoseconds in which a QP stored no payload.
    pub(super) stall: u64,
}

#[derive(Debug)]
enum Happening {
    /// A packet of this end has left the end's host.
    Left(usize, Packet),
    /// A packet arrives at this end.
    Arrives(usize, Packet),
    /// The timer of this end may have expired.
    Timer(usize),
}

/// One end of a connection.
#[derive(Debug)]
struct End {
    qp: Qp<Vec<SendWqe>, Vec<Replay>>,
    host: AppHost,
    /// Number of packets that wait in the host.
    waiting: u32,
    /// The end has reached [`TX_LIMIT`], and continues when half of its packets have left at the
    /// latest.
    blocked: bool,
    /// Time of the next timer event.
    timer_at: Option<u64>,
    /// One past the newest PSN of a data packet that was sent.
    newest: Option<Psn>,
}

/// One direction of the network.
#[derive(Debug)]
struct Path {
    link: Link,
    port: Option<Link>,
    channel: Channel,
    /// Time of the latest arrival, without that of packets that come late.
    newest: u64,
}

#[derive(Debug)]
struct Transfer {
    now: u64,
    /// Time in nanoseconds that packets travel.
    latency: u64,
    agenda: Agenda<Happening>,
    ends: Vec<End>,
    paths: [Path; 2],
    /// Source of the times after which hosts see packets.
    rng: Rng,
    outcome: Outcome,
}

/// Simulates a row.
///
/// The run ends with the first message that ends after the duration of the row, since only whole
/// messages count. An error is the reason for which the simulation failed.
pub(super) fn run(setup: &Setup) -> Result<Outcome, String> {
    let mut transfer = Transfer::new(setup)?;
    let end = u64::from(setup.duration) * 1_000_000;
    transfer.run(end, end * MOST_TIMES)
}

impl Transfer {
    fn new(setup: &Setup) -> Result<Self, String> {
        let mut rng = Rng::new(setup.seed);
        let gigabits = |rate| u64::from(rate) * GIGABIT;
        let paths = [Op::Write, Op::Read].map(|op| Path {
            link: Link::new(gigabits(setup.rate), None),
            port: setup
                .port
                .map(|port| Link::new(gigabits(port.rate), Some(port.queue as usize))),
            channel: Channel::new(setup.impairment, setup.op == op, Rng::new(rng.next())),
            newest: 0,
        });
        let mut ends = Vec::new();
        for pair in 0..setup.qps {
            let psns = [rng.next(), rng.next()].map(|psn| Psn::new(psn as u32));
            for side in [0, 1] {
                ends.push(End::new(setup, 2 * pair + side, psns)?);
            }
        }
        Ok(Self {
            now: 0,
            latency: u64::from(setup.rtt) * 500,
            agenda: Agenda::default(),
            ends,
            paths,
            rng,
            outcome: Outcome::default(),
        })
    }

    fn run(&mut self, end: u64, latest: u64) -> Result<Outcome, String> {
        for index in (0..self.ends.len()).step_by(2) {
            self.turn(index);
        }
        while self.now < latest {
            let Some((at, happening)) = self.agenda.next() else {
                return Err(format!("nothing happens after {} ns", self.now));
            };
            self.now = at;
            let done = if at < end { 0 } else { self.done() };
            let (Happening::Left(index, _)
            | Happening::Arrives(index, _)
            | Happening::Timer(index)) = happening;
            match happening {
                Happening::Left(_, packet) => self.left(index, &packet),
                Happening::Arrives(_, packet) => self.arrive(index, &packet),
                Happening::Timer(_) => self.timer(index),
            }
            if let Some(why) = &self.ends[index].host.failure {
                return Err(format!("end {index} after {at} ns: {why}"));
            }
            if at >= end && self.done() > done {
                break;
            }
        }
        Ok(self.conclude())
    }

    /// Returns the number of messages that ended.
    fn done(&self) -> u64 {
        self.ends.iter().step_by(2).map(|end| end.host.done).sum()
    }

    fn conclude(&mut self) -> Outcome {
        let mut outcome = self.outcome;
        outcome.time = self.now;
        outcome.bytes = self.done() * u64::from(MESSAGE);
        for end in &mut self.ends {
            let host = &mut end.host;
            outcome.rtos += host.rtos;
            outcome.retries += host.retries;
            outcome.naks += host.naks;
            if host.stored.is_some() {
                host.note_stall(self.now);
                outcome.stall = outcome.stall.max(host.stall);
            }
        }
        outcome
    }

    /// Sends the packets of an end, as far as its host has room for them. Then sets its timer.
    fn turn(&mut self, index: usize) {
        let now = Instant(self.now);
        let end = &mut self.ends[index];
        end.host.now = self.now;
        end.host.payload_len = 0;
        let due = loop {
            if end.waiting >= TX_LIMIT {
                end.blocked = true;
                end.qp.begin_run();
                break end.qp.deadline();
            }
            let Some(transmit) = end.qp.poll_transmit(now, &mut end.host) else {
                break end.qp.poll_timeout();
            };
            end.waiting += 1;
            let packet = transmit.packet;
            if packet.payload_len > 0 {
                self.outcome.sent += 1;
                let past = packet.bth.psn.next();
                match end.newest {
                    Some(newest) if !newest.before(past) => self.outcome.again += 1,
                    _ => end.newest = Some(past),
                }
            }
            let link = &mut self.paths[index % 2].link;
            if let Some(at) = link.send(self.now, wire_bytes(&packet)) {
                self.agenda.at(at, Happening::Left(index, packet));
            }
        };
        if let Some(due) = due {
            let at = match due > now {
                true => due.0,
                // Work is left. The clock must advance.
                false => self.now + JITTER,
            };
            if end.timer_at.is_none_or(|set| set > at) {
                end.timer_at = Some(at);
                self.agenda.at(at, Happening::Timer(index));
            }
        }
    }

    /// Passes a packet that has left its host to the port, if there is one, and to the wire.
    fn left(&mut self, index: usize, packet: &Packet) {
        let path = &mut self.paths[index % 2];
        let departure = match &mut path.port {
            Some(port) => port.send(self.now, wire_bytes(packet)),
            None => Some(self.now),
        };
        let arrival = departure.and_then(|at| match path.channel.fate(at) {
            Fate::Lost => None,
            Fate::Arrives(0) => {
                let at = at + self.latency + self.rng.below(JITTER);
                path.newest = path.newest.max(at);
                Some(path.newest)
            }
            Fate::Arrives(extra) => Some(at + self.latency + extra),
        });
        match arrival {
            Some(at) => self.agenda.at(at, Happening::Arrives(index ^ 1, *packet)),
            None => self.outcome.lost += u64::from(packet.payload_len > 0),
        }
        let end = &mut self.ends[index];
        end.waiting -= 1;
        if end.blocked && end.waiting <= TX_LIMIT / 2 {
            end.blocked = false;
            self.turn(index);
        }
    }

    fn arrive(&mut self, index: usize, packet: &Packet) {
        let end = &mut self.ends[index];
        end.host.now = self.now;
        end.take_in(packet);
        while let Some(packet) = end.next_early() {
            end.take_in(&packet);
        }
        self.turn(index);
    }

    fn timer(&mut self, index: usize) {
        let end = &mut self.ends[index];
        if end.timer_at != Some(self.now) {
            return;
        }
        end.timer_at = None;
        let retries = end.host.retries;
        end.host.now = self.now;
        end.qp.handle_timeout(Instant(self.now), &mut end.host);
        self.outcome.timeouts += end.host.retries - retries;
        self.turn(index);
    }
}

impl End {
    /// Passes a packet to the QP. Keeps the packet if it is early.
    fn take_in(&mut self, packet: &Packet) {
        let host = &mut self.host;
        host.payload_len = packet.payload_len;
        self.qp.handle_packet(Instant(host.now), packet, host);
        if let Some((direction, psn)) = host.keeps.take() {
            host.early[direction as usize].insert(psn, *packet);
        }
    }

    /// Takes an early packet that the engine expects now.
    fn next_early(&mut self) -> Option<Packet> {
        let [requests, responses] = &mut self.host.early;
        let request = requests.take(self.qp.expected_psn());
        request.or_else(|| responses.take(self.qp.oldest_unfinished()))
    }

    /// Creates a connected QP. `psns` are the first PSNs of both sides.
    fn new(setup: &Setup, index: u32, psns: [Psn; 2]) -> Result<Self, String> {
        let is_second = index % 2 == 1;
        let [own, peer] = match is_second {
            false => psns,
            true => [psns[1], psns[0]],
        };
        let qpn = |index| Qpn::new(0x10 + index);
        let config = Config {
            kind: QpKind::Rc,
            qpn: qpn(index),
            has_srq: false,
            port_mtu: Mtu::Bytes4096,
            fills_gaps: setup.early != Early::Off,
        };
        let window = vec![SendWqe::default(); DEPTH as usize];
        let replays = vec![Replay::default(); usize::from(RD_ATOMIC)];
        let mut end = Self {
            qp: Qp::new(config, window, replays),
            host: AppHost::new(
                (!is_second).then_some(setup.op),
                setup.early == Early::Refused,
            ),
            waiting: 0,
            blocked: false,
            timer_at: None,
            newest: None,
        };
        let init = Attrs {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(RemoteRights {
                write: true,
                read: true,
                ..RemoteRights::default()
            }),
            ..Attrs::default()
        };
        let rtr = Attrs {
            state: Some(QpState::Rtr),
            av: true,
            path_mtu: Some(setup.mtu),
            dest_qpn: Some(qpn(index ^ 1)),
            rq_psn: Some(peer),
            max_dest_rd_atomic: Some(RD_ATOMIC),
            min_rnr_timer: Some(12),
            ..Attrs::default()
        };
        let rts = Attrs {
            state: Some(QpState::Rts),
            timeout: Some(setup.timeout),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            sq_psn: Some(own),
            max_rd_atomic: Some(RD_ATOMIC),
            ..Attrs::default()
        };
        for attrs in [init, rtr, rts] {
            end.qp
                .modify(Instant(0), &attrs, &mut end.host)
                .map_err(|why| format!("modify refused: {why:?}"))?;
        }
        Ok(end)
    }
}
