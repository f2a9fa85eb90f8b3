// SPDX-License-Identifier: GPL-2.0

//! What runs when a QP has the turn: packets in, the clock, packets out, within a budget.

use kernel::{
    cpu::CpuId,
    prelude::*,
    sync::{Arc, ArcBorrow},
    time::hrtimer::ArcHrTimerHandle,
};
use rdma::{net::tx_cpu::TxCpu, support::table::LastLookup, trace};
use roce::{
    host::{AccessFault, Count, RemoteAccess},
    qp::{Attrs, Config, QpState, SendWqe, TransmitFault},
    responder::Replay,
    time::Instant,
    transmit::{Source, Transmit},
    wc::WcStatus,
    wire::packet::Service,
};

use crate::{
    device::stats::{Counter, Counters},
    gsi::Gsi,
    limits::INBOX,
    memory::{mr::Mr, mw::RemoteContext, remote::RemoteRange},
    net::{
        local,
        outgoing::Outgoing,
        rx::RxPacket,
        tx::{Frame, Payload},
    },
    qp::{
        arrivals::Arrivals,
        effects::{Continuation, RunEffects},
        engine_host::EngineHost,
        error_poll::ErrorPoll,
        parked::{ungathered, Parked},
        peer::Peer,
        raw,
        recv_queue::RecvQueue,
        send_queue::SendQueue,
        sge::OwnMemory,
        Qp,
    },
    verbs::pd::Pd,
};

/// The engine with the storage that this host gives it.
pub(crate) type Engine = roce::qp::Qp<KVVec<roce::qp::SendWqe>, KVVec<Replay>>;

/// Packets taken in or sent in one turn; a QP with more to do runs again later.
const BUDGET: u32 = 32;
/// Packets that a turn may send, however many it has taken in. Otherwise a peer that never pauses would silence the QP.
const LEAST_SENDS: u32 = 4;

/// So many turns empty a full inbox.
const INBOX_TURNS: u32 = INBOX.div_ceil(BUDGET);

/// All that belongs to the holder of the turn.
pub(crate) struct Core {
    pub(crate) engine: Engine,
    pub(crate) sq: SendQueue,
    pub(crate) rq: RecvQueue,
    pub(crate) pd: Arc<Pd>,
    /// Whom it talks to.
    pub(crate) peer: Peer,
    /// Keeps its packets in order.
    pub(crate) tx_cpu: TxCpu,
    /// The timer, and when it fires.
    pub(crate) timer: Option<(Instant, ArcHrTimerHandle<Qp>)>,
    /// The region of its owner that it used last.
    pub(crate) own_region: LastLookup<Mr>,
    /// The region that its peer came to last.
    pub(crate) peer_region: LastLookup<Mr>,
    /// The QP of this host to which it sent last.
    pub(crate) neighbour: LastLookup<Qp>,
    /// What waits for memory that isn't resident.
    pub(crate) parked: Parked,
    /// When it looks for receives in the error state.
    pub(crate) error_poll: ErrorPoll,
    /// The queues take nothing that is posted later: the device goes away.
    pub(crate) closed: bool,
    /// Turns for which what is due has waited for packets to be taken in.
    pub(crate) put_off: u32,
    /// Where it counts: its port's counters, or the set that it is bound to.
    pub(crate) counters: Arc<Counters>,
    /// The rates and the stand-in of a GSI QP's datagrams, and what it has asked.
    pub(crate) gsi: Option<KBox<Gsi>>,
}

impl Core {
    /// Runs the engine with its surroundings.
    pub(crate) fn with_engine<R>(
        &mut self,
        qp: &Qp,
        packet: Option<&RxPacket>,
        effects: &mut RunEffects,
        run: impl FnOnce(&mut Engine, &mut EngineHost<'_>) -> R,
    ) -> R {
        let mut host = EngineHost {
            sq: &mut self.sq,
            rq: &mut self.rq,
            own: OwnMemory {
                mrs: &qp.device.mrs,
                pd: self.pd.id(),
                recent: &mut self.own_region,
                parked: &mut self.parked,
            },
            peer_region: &mut self.peer_region,
            qp,
            counters: &self.counters,
            packet,
            sanitized: self.gsi.as_ref().map(|gsi| &gsi.sanitized),
            effects,
        };
        let result = run(&mut self.engine, &mut host);
        if core::mem::take(&mut effects.fatal) {
            self.fail(qp, effects);
        }
        result
    }

    /// Closes the queues: WQEs posted from now on are not taken. Returns whether the queues were open.
    pub(crate) fn close(&mut self) -> bool {
        if self.closed {
            return false;
        }
        self.closed = true;
        self.sq.close();
        self.rq.close();
        true
    }

    /// Whether the engine has work that is due at `now`.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.engine.poll_timeout().is_some_and(|due| due <= now)
    }

    /// A CQ that lost a completion is in error, and with it the QPs that use it (IBTA 1.x §11.6.3.2).
    fn fail(&mut self, qp: &Qp, effects: &mut RunEffects) {
        // To ERR is allowed from every state but RESET, where nothing completes.
        if matches!(self.engine.state(), QpState::Err | QpState::Reset) {
            return;
        }
        let error = Attrs {
            state: Some(QpState::Err),
            ..Attrs::default()
        };
        effects.events.insert(roce::host::Event::QpFatal);
        let now = qp.now();
        let _ = self.with_engine(qp, None, effects, |engine, host| {
            engine.modify(now, &error, host)
        });
    }

    /// One turn, which takes in the QP's `arrivals` as far as its budget goes. The turn is `by_packet` if
    /// nobody wants it for more than such packets.
    pub(crate) fn run(
        &mut self,
        qp: ArcBorrow<'_, Qp>,
        arrivals: &mut Arrivals<'_>,
        by_packet: bool,
    ) -> RunEffects {
        let now = qp.now();
        let mut effects = RunEffects::default();
        let mut budget = BUDGET;
        self.engine.begin_turn();
        if qp.flags.any() {
            self.handle_flags(&qp, &mut budget, &mut effects);
        }
        let resumes = self.parked.is_busy();
        if resumes && self.parked.stands() {
            self.flush_meanwhile(qp, now, &mut effects);
            return effects;
        }
        if self.receive(&qp, now, arrivals, &mut budget, &mut effects) {
            // What was put aside may be what the clock says is missing.
            if !resumes {
                self.keep_time(&qp, now, !arrivals.is_empty(), &mut effects);
            }
            if by_packet && !resumes && !self.engine.is_reliable() {
                self.defer_sends(&qp, &mut effects);
            } else {
                let mut sends = budget.max(LEAST_SENDS);
                self.transmit(&qp, now, resumes, &mut sends, &mut effects);
                budget = budget.min(sends);
            }
        }
        qp.cache_state(self.engine.state());
        if self.parked.is_busy() && !self.parked.settle() {
            effects.is_parked = true;
            if self.engine.flushes() {
                self.arm(qp, now, &mut effects);
            }
            return effects;
        }
        let ended_early = budget == 0 || effects.named.is_some();
        if ended_early && matches!(effects.continuation, Continuation::None) {
            effects.continuation = Continuation::Anywhere;
        }
        self.arm(qp, now, &mut effects);
        effects
    }

    /// Flushes while the QP stands still, if its state does so: flushing needs no memory, and the
    /// fault may never end.
    #[cold]
    fn flush_meanwhile(&mut self, qp: ArcBorrow<'_, Qp>, now: Instant, effects: &mut RunEffects) {
        if !self.engine.flushes() {
            return;
        }
        // Its WQE may be another's from now on.
        let _ = self.parked.take_transmit(self.engine.state());
        self.with_engine(&qp, None, effects, |engine, host| engine.flush_posted(host));
        qp.cache_state(self.engine.state());
        self.arm(qp, now, effects);
    }

    /// Sees to what few QPs have to be looked at for.
    #[cold]
    fn handle_flags(&mut self, qp: &Qp, budget: &mut u32, effects: &mut RunEffects) {
        if qp.flags.must_fail() {
            self.fail(qp, effects);
        }
        if let Some(frames) = qp.frames() {
            raw::receive(self, qp, frames, budget, effects);
        }
    }

    /// Takes in the arrivals; `false` if the QP must stand still for want of memory.
    #[inline(never)]
    fn receive(
        &mut self,
        qp: &Qp,
        now: Instant,
        arrivals: &mut Arrivals<'_>,
        budget: &mut u32,
        effects: &mut RunEffects,
    ) -> bool {
        // Only one queue of an XRC domain is told of at a time.
        while *budget > 0 && effects.named.is_none() {
            let Some(packet) = arrivals.next(&qp.net.drops) else {
                break;
            };
            *budget = budget.wrapping_sub(1);
            if !self.take_in(qp, now, &packet, effects) {
                arrivals.put_back(packet);
                return false;
            }
        }
        true
    }

    /// Has the engine do what is due at `now`, unless packets are still `waiting` to be taken in: they may
    /// be the answers that it takes for lost. Those that came before it was due have been taken in
    /// after [`INBOX_TURNS`] turns; it does not wait for others.
    fn keep_time(&mut self, qp: &Qp, now: Instant, waiting: bool, effects: &mut RunEffects) {
        let due = self.is_due(now);
        if due && waiting && self.put_off < INBOX_TURNS {
            self.put_off = self.put_off.wrapping_add(1);
            return;
        }
        self.put_off = 0;
        if due {
            self.with_engine(qp, None, effects, |engine, host| {
                engine.handle_timeout(now, host);
            });
        }
    }

    /// Takes in a packet; `false` if its memory is absent, so that it must come again.
    fn take_in(
        &mut self,
        qp: &Qp,
        now: Instant,
        packet: &RxPacket,
        effects: &mut RunEffects,
    ) -> bool {
        let (ingress, sender) = (packet.skb.ingress(), packet.skb.sender());
        let checked = self
            .peer
            .check(&qp.device, &packet.endpoints, ingress, sender)
            .and_then(|()| self.check_management(qp, now, packet));
        if let Err(why) = checked {
            self.counters.add(why, 1);
            qp.trace_drop(packet.packet.bth.psn, why);
            return true;
        }
        self.with_engine(qp, Some(packet), effects, |engine, host| {
            engine.handle_packet(now, &packet.packet, host);
        });
        if self.parked.is_busy() && self.parked.stands() {
            return false;
        }
        trace::packet_in(qp.device.link.device(), qp.qpn.get(), &packet.packet);
        self.counters.add(Counter::ReceivedPackets, 1);
        self.counters
            .add(Counter::ReceivedBytes, u64::from(packet.packet.payload_len));
        self.follow_question(qp, now, effects);
        true
    }

    /// Leaves what could be sent to a thread or a watcher, where it counts for the process. Of a QP without
    /// acknowledgements no packet that comes in lets a packet out, so a stranger's datagram has no softirq send what a
    /// process has posted without a call.
    fn defer_sends(&mut self, qp: &Qp, effects: &mut RunEffects) {
        match self.engine.state() {
            QpState::Rts if !self.has_nothing_to_send() && qp.tx_limit.available() => {
                effects.continuation = Continuation::Anywhere
            }
            _ if self.engine.flushes() => {
                self.with_engine(qp, None, effects, |engine, host| engine.flush_posted(host));
            }
            _ => {}
        }
    }

    /// Flushes, which needs no credit. Then sends what the engine has and the credit allows, unless it must leave from
    /// another CPU; first what was put aside, if the QP `resumes`.
    fn transmit(
        &mut self,
        qp: &Qp,
        now: Instant,
        resumes: bool,
        budget: &mut u32,
        effects: &mut RunEffects,
    ) {
        // With credit `poll_transmit` flushes.
        if self.engine.flushes() && !qp.tx_limit.available() {
            self.with_engine(qp, None, effects, |engine, host| engine.flush_posted(host));
        }
        while *budget > 0 && (resumes || !self.has_nothing_to_send()) && qp.tx_limit.available() {
            let arrived = || has_arrived(&self.engine, qp);
            if !self.tx_cpu.admits(CpuId::current(), arrived) {
                effects.continuation = Continuation::On(self.tx_cpu.cpu());
                break;
            }
            let Some(next) = self.build_next(qp, now, resumes, effects) else {
                break;
            };
            // From here, and not from where the packet was built: the network stack needs the rest of the kernel's stack.
            if let Next::Leaves(outgoing, transmit) = next {
                let sent = outgoing.send(&self.peer, &qp.tx_limit);
                self.settle(qp, now, &transmit, sent, effects);
            }
            *budget = budget.wrapping_sub(1);
        }
    }

    /// Builds the engine's next packet; `None` if it has none, or if the packet's memory is absent.
    #[inline(never)]
    fn build_next(
        &mut self,
        qp: &Qp,
        now: Instant,
        resumes: bool,
        effects: &mut RunEffects,
    ) -> Option<Next> {
        let mut aside = None;
        if resumes {
            let kept = self.parked.take_transmit(self.engine.state());
            aside = kept.filter(|transmit| self.engine.may_send(transmit));
        }
        let polled;
        let next = if aside.is_some() {
            aside.as_ref()
        } else {
            polled = self.with_engine(qp, None, effects, |engine, host| {
                engine.poll_transmit(now, host)
            });
            polled.as_ref()
        };
        let transmit = next?;
        match self.build(qp, transmit, effects) {
            Ok(Built::Leaves(outgoing)) => return Some(Next::Leaves(outgoing, *transmit)),
            Ok(Built::Stays(TxOutcome::Left | TxOutcome::Lost)) => {}
            Ok(Built::Stays(TxOutcome::Dropped)) => self.engine.transmit_dropped(now, transmit),
            Err(_) if self.parked.stands() => {
                self.parked.park_transmit(transmit);
                return None;
            }
            Err(fault) => self.with_engine(qp, None, effects, |engine, host| {
                engine.transmit_failed(now, transmit, fault, host);
            }),
        }
        Some(Next::Done)
    }

    /// Takes note of what the network stack said of a packet.
    #[inline(never)]
    fn settle(
        &mut self,
        qp: &Qp,
        now: Instant,
        transmit: &Transmit,
        sent: Result,
        effects: &mut RunEffects,
    ) {
        let Err(error) = sent else {
            return self.counters.add_sent(transmit.packet.payload_len);
        };
        self.counters.count(Count::SendErr);
        if error != EMSGSIZE {
            return self.engine.transmit_dropped(now, transmit);
        }
        if let Err(fault) = oversize(transmit) {
            self.with_engine(qp, None, effects, |engine, host| {
                engine.transmit_failed(now, transmit, fault, host);
            });
        }
    }

    /// There is nothing to send, which is so after most packets.
    fn has_nothing_to_send(&self) -> bool {
        !self.sq.has_posted() && self.engine.rests()
    }

    /// Builds one packet, and hands it over if it is for QPs of this host. Only a source that can't be resolved is an error.
    fn build(
        &mut self,
        qp: &Qp,
        transmit: &Transmit,
        effects: &mut RunEffects,
    ) -> Result<Built, TransmitFault> {
        if matches!(self.peer, Peer::Nobody) {
            let frame = raw::build(self, qp, transmit)?;
            return Ok(frame.map_or(Built::Stays(TxOutcome::Lost), Built::Leaves));
        }
        let packet = &transmit.packet;
        let counters = &self.counters;
        let (pd, mrs, length) = (self.pd.id(), &qp.device.mrs, packet.payload_len);
        let mut found = None;
        let way = match (packet.service, transmit.source) {
            (Service::Ud(_), Source::Send { slot, .. }) => {
                let destination = self.sq.destination(slot);
                found = destination.resolve(&qp.device, pd, qp.qpn, packet.bth.dest)?;
                found.as_ref().map(|(address, route)| (address, route))
            }
            _ => self.peer.connected(),
        };
        let frame = way.and_then(|(address, route)| Frame::new(address, route, transmit));
        let Some(mut frame) = frame else {
            counters.count(Count::SendErr);
            return Ok(Built::Stays(TxOutcome::Dropped));
        };
        match transmit.source {
            Source::None => {}
            Source::Send { slot, offset } => {
                let own = OwnMemory {
                    mrs,
                    pd,
                    recent: &mut self.own_region,
                    parked: &mut self.parked,
                };
                self.sq
                    .gather(slot, offset, length, &mut frame, own)
                    .map_err(ungathered)?;
            }
            Source::Remote { rkey, va, srqn } => {
                let pd = self.rq.reached(pd, srqn).map_err(TransmitFault::Remote)?;
                let qpn = qp.qpn.get();
                let range = RemoteRange {
                    context: RemoteContext { pd, qpn },
                    rkey,
                    va,
                    length,
                    access: RemoteAccess::Read,
                };
                let recent = &mut self.peer_region;
                let read = mrs.with_remote(recent, &range, |span| frame.append(&span));
                self.parked
                    .remote(read, &range)
                    .map_err(TransmitFault::Remote)?;
            }
        }
        let gsi = self.gsi.as_mut();
        if let Some(Err(why)) = gsi.map(|gsi| gsi.check_sent(qp, frame.payload(length))) {
            counters.add(why, 1);
            return Ok(Built::Stays(TxOutcome::Lost));
        }
        trace::packet_out(qp.device.link.device(), qp.qpn.get(), transmit);
        if frame.is_local() {
            let fate = local::deliver(qp, counters, frame, packet, &mut self.neighbour, effects);
            if fate == TxOutcome::Left {
                counters.add_sent(length);
            }
            return Ok(Built::Stays(fate));
        }
        if local::is_to_group(&frame, packet) {
            local::deliver_to_group(qp, &frame, effects);
        }
        let Ok(packet) = frame.into_packet() else {
            counters.count(Count::SendErr);
            return Ok(Built::Stays(TxOutcome::Dropped));
        };
        let route = found.map(|(_, route)| route);
        Ok(Built::Leaves(Outgoing::Packet { packet, route }))
    }
}

/// A packet that was built.
enum Built {
    /// The network stack is to send it.
    Leaves(Outgoing),
    /// It was dealt with.
    Stays(TxOutcome),
}

/// The engine's next packet.
enum Next {
    /// It is built, and the network stack is to send it.
    Leaves(Outgoing, Transmit),
    /// It was dealt with.
    Done,
}

/// What became of a packet that could be built, or for which memory was missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxOutcome {
    /// It left the host, or lies in one of its queues.
    Left,
    /// The host dropped it: for want of memory, of a route or of room in a queue.
    Dropped,
    /// The host dropped it, and the engine isn't told: what is sent again would be dropped again.
    Lost,
}

/// What becomes of a packet that is larger than the network device's MTU: that shrank below the path
/// MTU, which can't be changed in flight (IBTA 1.x §9.6.2.2). It may not be fragmented (annex A17), so
/// it would be lost whenever it is sent again; its WQE fails now, not after all retries. A datagram is
/// just lost.
fn oversize(transmit: &Transmit) -> Result<(), TransmitFault> {
    match transmit.source {
        _ if matches!(transmit.packet.service, Service::Ud(_)) => Ok(()),
        Source::None => Ok(()),
        Source::Send { .. } => Err(TransmitFault::Local(WcStatus::LocLenErr)),
        Source::Remote { .. } => Err(TransmitFault::Remote(AccessFault::Failed)),
    }
}

/// An engine in RESET that takes `window` send WQEs at a time. Process context.
///
/// # Errors
///
/// `ENOMEM`.
pub(crate) fn new_engine(config: Config, window: u32) -> Result<Engine> {
    let window = KVVec::from_elem(SendWqe::default(), window as usize, GFP_KERNEL_ACCOUNT)?;
    Ok(Engine::new(config, window, new_replays(0)?))
}

/// Room for as many answers as a QP is to remember; most ask for few. Process context.
///
/// # Errors
///
/// `ENOMEM`.
pub(crate) fn new_replays(count: u8) -> Result<KVVec<Replay>> {
    Ok(KVVec::from_elem(
        Replay::default(),
        count.into(),
        GFP_KERNEL_ACCOUNT,
    )?)
}

/// Whether a packet that is sent now, on whichever CPU, overtakes none that minds: the QP's packets have left this host,
/// or reached their QPs on this host.
fn has_arrived(engine: &Engine, qp: &Qp) -> bool {
    qp.tx_limit.is_whole() && (!engine.minds_order() || qp.tx_limit.reception_is_over())
}
