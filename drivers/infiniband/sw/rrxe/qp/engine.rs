// SPDX-License-Identifier: GPL-2.0

//! One run of a QP's protocol engine, with the turn lock held: takes packets in, handles timeouts,
//! sends packets, within a budget.

use kernel::{
    cpu::CpuId,
    prelude::*,
    sync::{Arc, ArcBorrow},
    time::hrtimer::ArcHrTimerHandle,
};
use rdma::{
    net::{route::Route, tx_cpu::TxCpu},
    support::table::LastLookup,
    trace,
};
use roce::{
    early::MOST_AHEAD,
    host::{AccessFault, Count},
    qp::{Attrs, QpState, TransmitFault},
    responder::Replay,
    time::Instant,
    transmit::{Source, Transmit},
    wc::WcStatus,
    wire::packet::Service,
};

use crate::{
    device::stats::Counters,
    gsi::Gsi,
    limits::INBOX,
    memory::mr::Mr,
    net::{local, outgoing::Outgoing, rx::RxPacket, tx::PacketBuilder},
    qp::{
        arrivals::Arrivals,
        built::{Built, Next, Polled, TxOutcome},
        burst,
        early::KeptPackets,
        effects::{Continuation, RunEffects},
        engine_host::EngineHost,
        error_poll::ErrorPoll,
        parked::Parked,
        payload::PayloadReader,
        peer::Peer,
        raw,
        recv_queue::RecvQueue,
        send_queue::SendQueue,
        sge::OwnMemory,
        train::{self, Trains},
        Qp,
    },
    verbs::pd::Pd,
};

/// The protocol engine of the `roce` crate, with storage in `KVVec`s.
pub(crate) type Engine = roce::qp::Qp<KVVec<roce::qp::SendWqe>, KVVec<Replay>>;

/// Maximum number of packets that a run takes in or sends. A QP with more work runs again later.
const BUDGET: u32 = 32;
/// Number of packets that a run may send however many it has taken in. Without this, a peer that
/// sends all the time would keep the QP from sending.
const MIN_SENDS: u32 = 4;

/// Number of runs that take in the packets of a full inbox and as many early packets as the QP may
/// keep of both directions. Trains may take more runs.
const INBOX_RUNS: u32 = INBOX
    .div_ceil(BUDGET)
    .wrapping_add(MOST_AHEAD.wrapping_mul(2).div_ceil(BUDGET));

/// The state of a QP that the turn lock (`qp/turn.rs`) protects.
pub(crate) struct Core {
    /// Protocol engine: QP state, requester and responder.
    pub(crate) engine: Engine,
    /// Send queue.
    pub(crate) sq: SendQueue,
    /// Receive queue.
    pub(crate) rq: RecvQueue,
    /// Protection domain.
    pub(crate) pd: Arc<Pd>,
    /// Peer: the remote QP of a connected QP, or the kind of senders that other QPs accept.
    pub(crate) peer: Peer,
    /// CPU that sends the QP's packets, so that they stay in order.
    pub(crate) tx_cpu: TxCpu,
    /// Running timer of the engine, and the time at which it fires.
    pub(crate) timer: Option<(Instant, ArcHrTimerHandle<Qp>)>,
    /// Memory region that the QP's own work requests used last.
    pub(crate) own_region: LastLookup<Mr>,
    /// Memory region that the peer accessed last.
    pub(crate) peer_region: LastLookup<Mr>,
    /// QP of this host to which the QP sent last.
    pub(crate) local_qp: LastLookup<Qp>,
    /// State of the trains that the QP sends.
    pub(crate) trains: Trains,
    /// Packets that arrived before a missing one.
    pub(crate) early: KeptPackets,
    /// Accesses and packets that wait for a page fault.
    pub(crate) parked: Parked,
    /// Times at which the QP polls its receive queue in the error state.
    pub(crate) error_poll: ErrorPoll,
    /// Set when the device is disassociated: the queues take no work requests that are posted after
    /// that.
    pub(crate) closed: bool,
    /// Number of runs in which a due timeout was postponed because packets were not taken in yet.
    pub(crate) postponed_runs: u32,
    /// Counters of the QP: those of its port, or the set that it is bound to (`rdma statistic qp
    /// bind`).
    pub(crate) counters: Arc<Counters>,
    /// State of a GSI QP, such as rate limits and the MAD requests that were sent. `None` for other
    /// QPs.
    pub(crate) gsi: Option<KBox<Gsi>>,
}

impl Core {
    /// Calls `run` with the engine and with the host interface ([`EngineHost`]) that the engine
    /// needs. `packet` is the packet to take in.
    ///
    /// If a CQ refuses a completion meanwhile, the QP enters the error state.
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
            early: &mut self.early,
            packet,
            sanitized: self.gsi.as_ref().map(|gsi| &gsi.sanitized),
            effects,
        };
        let result = run(&mut self.engine, &mut host);
        if core::mem::take(&mut effects.lost) {
            self.trains.path.note_loss();
        }
        if core::mem::take(&mut effects.fatal) {
            self.fail(qp, effects);
        }
        result
    }

    /// Closes the queues: work requests that are posted from now on are not taken. Returns whether
    /// the queues were open.
    pub(crate) fn close(&mut self) -> bool {
        if self.closed {
            return false;
        }
        self.closed = true;
        self.sq.close();
        self.rq.close();
        true
    }

    /// Returns whether the engine has work that is due at `now`.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.engine.poll_timeout().is_some_and(|due| due <= now)
    }

    /// Puts the QP in the error state and raises `QpFatal`. A CQ that lost a completion is in
    /// error, and with it the QPs that use it (IBTA 1.x §11.6.3.2).
    fn fail(&mut self, qp: &Qp, effects: &mut RunEffects) {
        // ERR can be entered from every state but RESET. In RESET nothing completes.
        if matches!(self.engine.state(), QpState::Err | QpState::Reset) {
            return;
        }
        let error = Attrs {
            state: Some(QpState::Err),
            ..Attrs::default()
        };
        qp.train_source.end_session();
        effects.events.insert(roce::host::Event::QpFatal);
        let now = qp.now();
        let _ = self.with_engine(qp, None, effects, |engine, host| {
            engine.modify(now, &error, host)
        });
    }

    /// Executes one run, which takes in `arrivals` as far as its budget allows. `by_packet` says
    /// that the run was requested only to take in packets. Returns the effects, which the caller
    /// applies after it has dropped the turn lock.
    pub(crate) fn run(
        &mut self,
        qp: ArcBorrow<'_, Qp>,
        arrivals: &mut Arrivals<'_>,
        by_packet: bool,
    ) -> RunEffects {
        let now = qp.now();
        let mut effects = RunEffects::default();
        let mut budget = BUDGET;
        self.engine.begin_run();
        if qp.flags.any() {
            self.handle_flags(&qp, &mut budget, &mut effects);
        }
        let resumes = self.parked.is_busy();
        if resumes && self.parked.is_parked() {
            self.flush_meanwhile(qp, now, &mut effects);
            return effects;
        }
        if self.receive(&qp, now, arrivals, &mut budget, &mut effects) {
            // A parked packet may be the one that the engine would take for lost.
            if !resumes {
                self.keep_time(&qp, now, !arrivals.is_empty(), &mut effects);
            }
            if by_packet && !resumes && !self.engine.is_reliable() {
                self.defer_sends(&qp, &mut effects);
            } else {
                let mut sends = budget.max(MIN_SENDS);
                self.transmit(&qp, now, resumes, &mut sends, &mut effects);
                budget = budget.min(sends);
            }
        }
        qp.cache_state(self.engine.state());
        if self.parked.is_busy() && !self.parked.finish_run() {
            effects.is_parked = true;
            // The QP may be parked for as long as its owner likes.
            self.early.clear_all();
            if self.engine.flushes() {
                self.arm(qp, now, &mut effects);
            }
            return effects;
        }
        let ended_early = budget == 0 || effects.xrc_srq.is_some();
        if ended_early && matches!(effects.continuation, Continuation::None) {
            effects.continuation = Continuation::Anywhere;
        }
        self.arm(qp, now, &mut effects);
        effects
    }

    /// Flushes work requests of a parked QP, if its state is an error state. Flushing needs no
    /// memory, and the page fault may never end.
    #[cold]
    fn flush_meanwhile(&mut self, qp: ArcBorrow<'_, Qp>, now: Instant, effects: &mut RunEffects) {
        if !self.engine.flushes() {
            return;
        }
        // Drops the parked packet, because the flush may give its WQE's slot to another work
        // request.
        let _ = self.parked.take_transmit(self.engine.state());
        self.with_engine(&qp, None, effects, |engine, host| engine.flush_posted(host));
        qp.cache_state(self.engine.state());
        self.arm(qp, now, effects);
    }

    /// Handles the conditions of [`QpFlags`](crate::qp::flags::QpFlags), which few QPs have.
    #[cold]
    fn handle_flags(&mut self, qp: &Qp, budget: &mut u32, effects: &mut RunEffects) {
        if qp.flags.must_fail() {
            self.fail(qp, effects);
        }
        if let Some(frames) = qp.frames() {
            raw::receive(self, qp, frames, budget, effects);
        }
    }

    /// Takes the arrivals in. Returns `false` if the QP is parked, because memory that a packet
    /// needs is absent.
    #[inline(never)]
    fn receive(
        &mut self,
        qp: &Qp,
        now: Instant,
        arrivals: &mut Arrivals<'_>,
        budget: &mut u32,
        effects: &mut RunEffects,
    ) -> bool {
        // Storage for a packet of the inbox. It is used in place, because a move would copy it.
        let mut place = None;
        // `effects` has room for one shared receive queue of an XRC domain.
        while *budget > 0 && effects.xrc_srq.is_none() {
            let slot = match self.early.take(&self.engine, &mut place, &qp.net.drops) {
                true => &mut place,
                false => arrivals.next(&mut place, &qp.net.drops),
            };
            let Some(packet) = slot else {
                break;
            };
            *budget = budget.saturating_sub(1);
            if self.take_in(qp, now, packet, budget, effects) {
                if let Some(direction) = effects.keeps.take() {
                    self.early.keep(direction, slot, &qp.net.drops);
                }
                RxPacket::free(slot);
            } else if let Some(rest) = slot.take() {
                arrivals.put_back(rest);
                if self.parked.is_parked() {
                    return false;
                }
            }
        }
        true
    }

    /// Has the engine handle timeouts that are due at `now`.
    ///
    /// If packets are still `waiting` to be taken in, a timeout is postponed: they may be the
    /// responses that the engine would take for lost. After [`INBOX_RUNS`] runs all packets that
    /// came before the timeout have been taken in, unless trains were among them. The timeout does
    /// not wait for later packets.
    fn keep_time(&mut self, qp: &Qp, now: Instant, waiting: bool, effects: &mut RunEffects) {
        let due = self.is_due(now);
        if due && waiting && self.postponed_runs < INBOX_RUNS {
            self.postponed_runs = self.postponed_runs.wrapping_add(1);
            return;
        }
        self.postponed_runs = 0;
        if due {
            self.with_engine(qp, None, effects, |engine, host| {
                engine.handle_timeout(now, host);
            });
        }
    }

    /// Takes in a packet, a train or a burst. The run's `budget` has paid for one packet. Returns
    /// `false` if the budget ends within a train, or if memory that a packet needs is absent. Then
    /// a later run must take in the rest of `packet`.
    fn take_in(
        &mut self,
        qp: &Qp,
        now: Instant,
        packet: &mut RxPacket,
        budget: &mut u32,
        effects: &mut RunEffects,
    ) -> bool {
        let (ingress, sender) = (packet.skb.ingress(), packet.skb.sender());
        let checked = self
            .peer
            .check(&qp.device, &packet.endpoints, ingress, sender)
            .and_then(|()| self.check_management(qp, now, packet));
        if let Err(reason) = checked {
            self.counters.add(reason, 1);
            qp.trace_drop(packet.packet.bth.psn, reason);
            return true;
        }
        if packet.is_train() {
            return self.take_in_train(qp, now, packet, budget, effects);
        }
        self.with_engine(qp, Some(packet), effects, |engine, host| {
            engine.handle_packet(now, &packet.packet, host);
        });
        if self.parked.is_busy() && self.parked.is_parked() {
            return false;
        }
        // A packet that is kept counts when it is taken in again.
        if effects.keeps.is_none() {
            self.count_received(qp, packet);
            self.receive_probe(qp, now, effects);
        }
        true
    }

    /// Flushes, or defers sending. A process's QP is deferred to a thread or to the poller of the
    /// doorbell page (`doorbells.rs`), where the CPU time counts for the process.
    ///
    /// Used for QPs without acknowledgments, where no received packet enables the QP to send.
    /// Otherwise a stranger's datagram would cause a softirq to send work requests that a process
    /// has posted without a system call.
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

    /// Flushes, which does not need the tx limit (the limit on packets in flight,
    /// `net/tx_limit.rs`). Then sends the engine's packets as far as the tx limit allows, unless
    /// another CPU has to send them. If the QP `resumes` after a page fault, the parked packet is
    /// sent first.
    fn transmit(
        &mut self,
        qp: &Qp,
        now: Instant,
        resumes: bool,
        budget: &mut u32,
        effects: &mut RunEffects,
    ) {
        // If the tx limit allows a packet, `poll_train` flushes (in `build_next`).
        if self.engine.flushes() && !qp.tx_limit.available() {
            self.with_engine(qp, None, effects, |engine, host| engine.flush_posted(host));
        }
        let mut polled = Polled::default();
        while *budget > 0 && (resumes || !self.has_nothing_to_send()) && qp.tx_limit.available() {
            let arrived = || has_arrived(&self.engine, qp);
            if !self.tx_cpu.admits(CpuId::current(), arrived) {
                effects.continuation = Continuation::On(self.tx_cpu.cpu());
                break;
            }
            let next = self.build_next(&mut polled, qp, now, resumes, effects);
            let (Some(next), Some(transmit)) = (next, &polled.transmit) else {
                break;
            };
            // Sent here and not in `build_next`, whose stack frame is gone by now: the network
            // stack needs the rest of the kernel stack.
            let cost = match next {
                Next::Send(outgoing) => {
                    let route = polled.route.as_ref().or_else(|| self.peer.route());
                    let sent = outgoing.send(route, &qp.tx_limit);
                    self.handle_sent(qp, now, transmit, sent, effects);
                    transmit.count
                }
                Next::Done(count) => train::cost(count),
            };
            *budget = budget.saturating_sub(cost);
        }
    }

    /// Builds the engine's next packet, which it stores in `polled`. Returns `None` if the engine
    /// has none, or if memory that the packet needs is absent.
    #[inline(never)]
    fn build_next(
        &mut self,
        polled: &mut Polled,
        qp: &Qp,
        now: Instant,
        resumes: bool,
        effects: &mut RunEffects,
    ) -> Option<Next> {
        let Polled { transmit, route } = polled;
        *transmit = None;
        if resumes {
            let taken = self.parked.take_transmit(self.engine.state());
            *transmit = taken.filter(|transmit| self.engine.may_send(transmit));
        }
        if transmit.is_none() {
            let limits = self.train_limits(qp);
            self.with_engine(qp, None, effects, |engine, host| {
                engine.poll_into(transmit, now, limits, host)
            });
        }
        let transmit = transmit.as_ref()?;
        if transmit.count > 1 {
            return self.build_several(qp, now, transmit, effects);
        }
        self.note_single(transmit);
        match self.build(qp, transmit, route, effects) {
            Ok(Built::Send(outgoing)) => return Some(Next::Send(outgoing)),
            Ok(Built::Handled(TxOutcome::Left | TxOutcome::Lost)) => {}
            Ok(Built::Handled(TxOutcome::Dropped)) => self.engine.transmit_dropped(now, transmit),
            Err(_) if self.parked.is_parked() => {
                self.parked.park_transmit(transmit);
                return None;
            }
            Err(fault) => self.with_engine(qp, None, effects, |engine, host| {
                engine.transmit_failed(now, transmit, fault, host);
            }),
        }
        Some(Next::Done(1))
    }

    /// Handles the result of the network stack for a packet: counts it, and tells the engine of a
    /// failure, unless the packet is just lost ([`oversize`]).
    #[inline(never)]
    fn handle_sent(
        &mut self,
        qp: &Qp,
        now: Instant,
        transmit: &Transmit,
        sent: Result,
        effects: &mut RunEffects,
    ) {
        let Err(error) = sent else {
            self.note_sent(transmit);
            return self
                .counters
                .add_sent(transmit.count, transmit.packet.payload_len);
        };
        self.counters.count(Count::SendErr);
        if error != EMSGSIZE {
            self.note_refusal(transmit);
            return self.engine.transmit_dropped(now, transmit);
        }
        if transmit.count > 1 {
            return self.send_singly(transmit);
        }
        if let Err(fault) = oversize(transmit) {
            self.with_engine(qp, None, effects, |engine, host| {
                engine.transmit_failed(now, transmit, fault, host);
            });
        }
    }

    /// Returns whether there is nothing to send, as after most packets.
    fn has_nothing_to_send(&self) -> bool {
        !self.sq.has_posted() && self.engine.rests()
    }

    /// Builds one packet, and stores the route of a datagram in `route`. A packet to a QP of this
    /// host is delivered here. Copies of a multicast packet are delivered to the group's members on
    /// this host.
    ///
    /// # Errors
    ///
    /// The reason why the memory of the packet's payload cannot be read, or why the QP cannot send
    /// to the address or a frame of this length. All other failures are a [`TxOutcome`].
    fn build(
        &mut self,
        qp: &Qp,
        transmit: &Transmit,
        route: &mut Option<Route>,
        effects: &mut RunEffects,
    ) -> Result<Built, TransmitFault> {
        if matches!(self.peer, Peer::Raw) {
            let frame = raw::build(self, qp, transmit)?;
            return Ok(frame.map_or(Built::Handled(TxOutcome::Lost), Built::Send));
        }
        let unmarked;
        let mut packet = &transmit.packet;
        if packet.bth.reserved.repeats_reads()
            && !self.trains.is_local
            && !self.peer.admits_bursts()
        {
            unmarked = burst::unmarked(packet);
            packet = &unmarked;
        }
        let counters = &self.counters;
        let (pd, length) = (self.pd.id(), packet.payload_len);
        let found;
        let resolved = match (packet.service, transmit.source) {
            (Service::Ud(_), Source::Send { slot, .. }) => {
                let destination = self.sq.destination(slot);
                let address;
                (address, *route) = destination
                    .resolve(&qp.device, pd, qp.qpn, packet.bth.dest)?
                    .unzip();
                found = address;
                found.as_ref().zip(route.as_ref())
            }
            _ => self.peer.connected(),
        };
        let frame =
            resolved.and_then(|(address, route)| PacketBuilder::new(address, route, packet));
        let Some(mut frame) = frame else {
            counters.count(Count::SendErr);
            return Ok(Built::Handled(TxOutcome::Dropped));
        };
        let mut payload = PayloadReader {
            qp,
            pd,
            sq: &self.sq,
            rq: &self.rq,
            own_region: &mut self.own_region,
            peer_region: &mut self.peer_region,
            parked: &mut self.parked,
        };
        payload.append(transmit.source, length, &mut frame)?;
        let gsi = self.gsi.as_mut();
        if let Some(Err(reason)) = gsi.map(|gsi| gsi.check_sent(qp, frame.payload(length))) {
            counters.add(reason, 1);
            return Ok(Built::Handled(TxOutcome::Lost));
        }
        let mtu = self.engine.path_mtu();
        trace::packet_out(qp.device.link.device(), qp.qpn.get(), transmit, mtu);
        self.trains.is_local = frame.is_local();
        if frame.is_local() {
            let outcome = local::deliver(qp, counters, frame, packet, &mut self.local_qp, effects);
            if outcome == TxOutcome::Left {
                counters.add_sent(1, length);
            }
            return Ok(Built::Handled(outcome));
        }
        if local::is_to_group(&frame, packet) {
            local::deliver_to_group(qp, &frame, effects);
        }
        let Ok(packet) = frame.into_packet() else {
            counters.count(Count::SendErr);
            return Ok(Built::Handled(TxOutcome::Dropped));
        };
        Ok(Built::Send(Outgoing::Packet(packet)))
    }
}

/// Returns the error for a packet that is larger than the network device's MTU. Returns `Ok` if the
/// packet is just lost, as a datagram is.
///
/// The device's MTU shrank below the path MTU, which is fixed while the QP is connected (IBTA 1.x
/// §9.6.2.2). A RoCEv2 packet may not be fragmented (annex A17), so each retry would be lost, too.
/// Therefore the WQE fails now and not after all retries.
fn oversize(transmit: &Transmit) -> Result<(), TransmitFault> {
    match transmit.source {
        _ if matches!(transmit.packet.service, Service::Ud(_)) => Ok(()),
        Source::None => Ok(()),
        Source::Send { .. } => Err(TransmitFault::Local(WcStatus::LocLenErr)),
        Source::Remote { .. } => Err(TransmitFault::Remote(AccessFault::Failed)),
    }
}

/// Creates storage for `count` records of READs, atomics, ATOMIC WRITEs and FLUSHes, by which a QP
/// answers repeated requests (`max_dest_rd_atomic`). Most QPs need few. Process context.
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

/// Returns whether any CPU may send the QP's next packet without overtaking an earlier packet for
/// which order matters: the QP's earlier packets have left this host, or have reached their QPs on
/// this host.
fn has_arrived(engine: &Engine, qp: &Qp) -> bool {
    qp.tx_limit.none_in_flight() && (!engine.needs_order() || qp.tx_limit.reception_is_over())
}
