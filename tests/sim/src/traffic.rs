// SPDX-License-Identifier: GPL-2.0

//! The packets between the two ends (QPs) of each connection, and the messages that the simulated
//! applications post.

use roce::early::{Direction, Kept};
use roce::host::AccessFault;
use roce::qp::{QpKind, QpState, TransmitFault};
use roce::transmit::{Source, Transmit};
use roce::wc::WcStatus;
use roce::wire::packet::{Body, NakCode, Packet, Service, Syndrome};

use crate::agenda::{Event, Flight};
use crate::answers;
use crate::recv::XRC_RINGS;
use crate::requester;
use crate::responder::{self, Forecast, Reference};
use crate::responses;
use crate::side::{Gap, Refusal, Rx};
use crate::wire;
use crate::workload::{self, Workload};
use crate::world::{Check, End, World, LONGEST_PAUSE};

/// Maximum number of packets that one end sends before other events are processed.
const BURST: u32 = 48;

/// Number of nanoseconds until an end continues after it has sent [`BURST`] packets.
const RESUME_DELAY: u64 = 2_000;

impl World {
    /// Polls the engine for packets until it has none or [`BURST`] were sent, and sends them over
    /// the network. Then sets the engine's timer, or has the engine polled later.
    pub(crate) fn turn(&mut self, end: usize) -> Check {
        for _ in 0..BURST {
            let side = &self.ends[end].side;
            let (before, state) = (side.completed, side.state);
            let forecast = responder::poll(side, &self.rings);
            let polled = self.call(end, &[], |qp, now, host| {
                let rests = qp.rests() && host.side.taken == host.side.messages.len();
                (rests, qp.poll_transmit(now, host))
            });
            self.settle(end, before, &forecast)?;
            if let Some((true, Some(_))) = polled {
                return Err(format!(
                    "end {end}: sent something while it said that it rests"
                ));
            }
            let polled = polled.map(|(_, transmit)| transmit);
            match polled {
                None => return Ok(()),
                Some(None) => return self.finish_turn(end),
                // This call overflowed the CQ and thereby ended the connection.
                Some(Some(_)) if self.ends[end].side.breaks_from(state) => {}
                Some(Some(transmit)) => self.transmit(end, transmit)?,
            }
        }
        let _ = self.call(end, &[], |qp, _, _| qp.begin_run());
        self.poll_later(end, RESUME_DELAY);
        Ok(())
    }

    /// Sets the engine's timer after a poll that returned no packet. Checks that the engine has
    /// left no due packet unsent.
    fn finish_turn(&mut self, end: usize) -> Check {
        let now = self.now;
        let due = self.ends[end].qp.as_ref().and_then(|qp| qp.poll_timeout());
        let idle = due.is_none_or(|due| due.0 > now);
        let paused = self.ends[end].side.paused.0 > now;
        let timeout = self.ends[end].side.profile.timeout;
        let side = &self.ends[end].side;
        if idle && !paused {
            if let Some(refusal) = side.rx.refusal.as_ref().filter(|refusal| !refusal.sent) {
                return Err(format!("end {end}: no NAK for {refusal:?}"));
            }
            if let (true, Some(owed)) = (side.receives(), side.rx.owes) {
                return Err(format!(
                    "end {end}: packet {owed} asked for an answer and got none"
                ));
            }
            let receives = side.receives() && !side.rx.may_be_silent;
            if let (true, Gap::Seen(_) | Gap::NotReady) = (receives, side.rx.gap) {
                return Err(format!("end {end}: no NAK for {:?}", side.rx.gap));
            }
            let tx = &side.tx;
            let waits = tx.rnr_until.is_some();
            // The responses to READs and atomics in flight let the waiting messages continue.
            let carried = side.messages[side.retired..]
                .iter()
                .any(|message| message.wants_response() && message.first < tx.cursor);
            // If the last posted message is unsignaled, nothing waits for its acknowledgment.
            let lingers = timeout != 0
                && tx.drain_at.is_none()
                && side.taken == side.messages.len()
                && side
                    .messages
                    .last()
                    .is_some_and(|last| !last.wr.signaled && !last.is_local());
            // The acknowledgment of an earlier packet also lets the engine continue.
            let asked = tx.una + u64::from(tx.unasked) < tx.cursor;
            let quiet = waits || carried || lingers || asked;
            if side.sends() && tx.una < tx.cursor && tx.unasked > 0 && !quiet {
                return Err(format!(
                    "end {end}: {} packets asked for no answer",
                    tx.unasked
                ));
            }
            if side.sends() && tx.una < tx.sent && timeout != 0 && due.is_none() {
                return Err(format!(
                    "end {end}: packet {} is in flight without a timer",
                    tx.una
                ));
            }
        }
        let Some(due) = due else {
            return Ok(());
        };
        let at = due
            .0
            .max(now + 1)
            .max(if idle { 0 } else { now + RESUME_DELAY });
        let end_of = &mut self.ends[end];
        if end_of.timer_at.is_none_or(|set| set > at || set <= now) {
            end_of.timer_at = Some(at);
            self.agenda.at(at, Event::Timer(end));
        }
        Ok(())
    }

    pub(crate) fn timer(&mut self, end: usize) -> Check {
        if self.ends[end].timer_at != Some(self.now) {
            return Ok(());
        }
        self.ends[end].timer_at = None;
        let before = self.ends[end].side.completed;
        self.call(end, &[], |qp, now, host| qp.handle_timeout(now, host));
        self.settle_quietly(end, before)?;
        self.turn(end)
    }

    /// Polls the engine now, or after a random delay of less than `swarm.laziness` nanoseconds.
    pub(crate) fn soon(&mut self, end: usize) -> Check {
        match self.swarm.laziness {
            0 => self.turn(end),
            most => {
                let delay = self.rng.below(most);
                self.poll_later(end, delay);
                Ok(())
            }
        }
    }

    fn poll_later(&mut self, end: usize, delay: u64) {
        if !self.ends[end].poll_due {
            self.ends[end].poll_due = true;
            self.agenda.at(self.now + delay, Event::Poll(end));
        }
    }

    fn transmit(&mut self, end: usize, transmit: Transmit) -> Check {
        let packet = transmit.packet;
        self.trace.line(self.now, || {
            format!(
                "end {end} -> {:?} {:?} {}",
                packet.bth.psn, packet.body, packet.payload_len
            )
        });
        let payload = match self.gather(end, &transmit) {
            Ok(payload) => payload,
            Err(fault) => return self.transmit_failed(end, &transmit, fault),
        };
        let [left, right] = &mut self.ends[end & !1..=end | 1] else {
            return Err("no such pair".into());
        };
        let (this, peer) = if end % 2 == 0 {
            (left, right)
        } else {
            (right, left)
        };
        // A pause delays a packet that the timer decided to send.
        let slack = self.swarm.laziness + 2 * RESUME_DELAY + this.side.pause;
        let dropped = !this.side.unreliable && self.rng.chance(self.impairments.no_memory);
        let undo = dropped.then(|| this.side.rx.clone());
        let connected = this.side.epoch == peer.side.epoch;
        let checked = if !is_response(&packet.body) {
            let sent = this.side.tx.sent;
            let checked = requester::request(&mut this.side, self.now, slack, &transmit);
            self.stats.resent += u64::from(this.side.tx.sent == sent);
            checked
        } else if connected {
            answers::response(&mut this.side, &peer.side, &transmit)
        } else {
            // The connection has ended at the peer, so the content of the response doesn't matter.
            this.side.rx.owes = None;
            if matches!(packet.body, Body::Ack(aeth) if !matches!(aeth.syndrome, Syndrome::Ack { .. }))
            {
                this.side.rx.gap = Gap::Said;
            }
            if let Some(refusal) = &mut this.side.rx.refusal {
                refusal.sent = true;
            }
            Ok(())
        };
        if let Source::Remote { rkey, va, .. } = transmit.source {
            let (node, len) = (this.side.node, packet.payload_len);
            if let Ok(at) = self.readable(node, rkey, va, len) {
                self.nodes[node].verify(at, len as usize)?;
            }
        }
        checked.map_err(|why| {
            format!(
                "end {end}: {why}; it sent {packet:?} from {:?}",
                transmit.source
            )
        })?;
        if let Some(undo) = undo {
            self.drop_in_host(end, &transmit, undo);
            return Ok(());
        }
        self.ends[end].side.paused.1 = 0;
        self.send(end, packet, &payload);
        Ok(())
    }

    /// Drops a packet in the sender's host, and tells the engine. `undo` is the oracle's state
    /// before the oracle saw the packet.
    fn drop_in_host(&mut self, end: usize, transmit: &Transmit, undo: Rx) {
        self.stats.no_memory += 1;
        self.lost(end, "no memory");
        self.call(end, &[], |qp, now, _| qp.transmit_dropped(now, transmit));
        let side = &mut self.ends[end].side;
        if is_response(&transmit.packet.body) {
            side.rx = undo;
            if reports_gap(&transmit.packet) {
                side.rx.past_reported = 0;
            }
        } else {
            requester::dropped(side, transmit.packet.bth.psn);
        }
        // Neither requests nor responses leave during the pause.
        side.tx.starved = true;
        let (_, drops) = side.paused;
        let pause = (100_000 << drops.min(10)).min(LONGEST_PAUSE);
        side.paused = (self.now + pause, drops + 1);
        side.pause = side.pause.max(2 * pause);
    }

    /// Returns the payload of a packet, which the host reads from the memory of the sender's node.
    fn gather(&self, end: usize, transmit: &Transmit) -> Result<Vec<u8>, TransmitFault> {
        let side = &self.ends[end].side;
        let len = transmit.packet.payload_len;
        let memory = &self.nodes[side.node];
        let at = match transmit.source {
            _ if len == 0 => return Ok(Vec::new()),
            Source::None => return Ok(vec![0; len as usize]),
            Source::Remote { rkey, va, .. } => self
                .readable(side.node, rkey, va, len)
                .map_err(TransmitFault::Remote)?,
            Source::Send { slot, offset } => {
                let message = side.message_in(slot.0).map(|index| &side.messages[index]);
                match message {
                    Some(message) if message.lacks(offset, side.profile.mtu) => {
                        return Err(TransmitFault::Local(WcStatus::LocProtErr));
                    }
                    Some(message) => message.local + offset as usize,
                    None => 0,
                }
            }
        };
        Ok(memory.bytes[at..at + len as usize].to_vec())
    }

    fn transmit_failed(&mut self, end: usize, transmit: &Transmit, fault: TransmitFault) -> Check {
        self.trace.line(self.now, || {
            format!("end {end}   has no payload: {fault:?}")
        });
        let before = self.ends[end].side.completed;
        let is_broken = |this: &End| this.qp.as_ref().map(|qp| qp.state()) == Some(QpState::Err);
        let was_broken = is_broken(&self.ends[end]);
        self.call(end, &[], |qp, now, host| {
            qp.transmit_failed(now, transmit, fault, host);
        });
        if let TransmitFault::Remote(fault) = fault {
            let this = &mut self.ends[end];
            let broken = is_broken(this);
            let rx = &mut this.side.rx;
            let ext = rx.numbering.ext(transmit.packet.bth.psn, rx.epsn);
            match ext {
                // The NAK of the request that broke the QP is due.
                _ if was_broken => {}
                // If the peer requests an answer again, the responder may refuse it without
                // breaking the QP.
                Some(ext) if !broken => rx.unreadable.push(ext),
                Some(ext) if fault != AccessFault::Retry => {
                    this.side.state = QpState::Err;
                    rx.refusal = Some(Refusal {
                        ext,
                        codes: responder::codes(fault),
                        sent: false,
                    });
                }
                _ => {}
            }
        }
        self.settle_quietly(end, before)
    }

    /// Sends a packet over the network, which applies its faults.
    fn send(&mut self, end: usize, packet: Packet, payload: &[u8]) {
        self.stats.packets += 1;
        if let Body::Ack(aeth) = packet.body {
            self.stats.rnr += u64::from(matches!(aeth.syndrome, Syndrome::RnrNak { .. }));
        }
        if self.ends[end].side.unreliable && self.rng.chance(self.impairments.no_memory) {
            self.stats.no_memory += 1;
            return self.lost(end, "no memory");
        }
        if self.rng.chance(self.impairments.drop) {
            self.stats.dropped += 1;
            return self.lost(end, "dropped");
        }
        let datagram = wire::seal(&packet, payload);
        self.trace.mix_bytes(&datagram[..datagram.len().min(48)]);
        let copies = 1 + u64::from(self.rng.chance(self.impairments.duplicate));
        self.stats.duplicated += copies - 1;
        for _ in 0..copies {
            let mut datagram = datagram.clone();
            let mut intact = Some(packet);
            if self.rng.chance(self.impairments.corrupt) {
                self.stats.corrupted += 1;
                self.lossy = true;
                intact = None;
                for _ in 0..self.rng.range(1, 4) {
                    let bit = self.rng.below(datagram.len() as u64 * 8) as usize;
                    datagram[bit / 8] ^= 1 << (bit % 8);
                }
            }
            let mut delay = self.impairments.latency;
            if self.rng.chance(self.impairments.reorder) {
                self.stats.reordered += 1;
                self.lossy = true;
                delay += self.rng.below(self.impairments.jitter);
            }
            let flight = Flight {
                to: end ^ 1,
                epoch: self.ends[end].side.epoch,
                datagram,
                intact,
            };
            self.flights += 1;
            self.agenda.at(self.now + delay, Event::Arrive(flight));
        }
    }

    fn lost(&mut self, end: usize, why: &str) {
        self.lossy = true;
        self.trace.mix(end as u64);
        self.trace.line(self.now, || format!("end {end}   {why}"));
    }

    /// Delivers a datagram to its destination. A datagram of an earlier connection is lost, unless
    /// the destination is in RESET or INIT, where the engine must drop the datagram.
    pub(crate) fn arrive(&mut self, flight: Flight) -> Check {
        self.flights -= 1;
        let end = flight.to;
        let opened = wire::open(&flight.datagram);
        let Some((packet, payload)) = opened else {
            self.trace
                .line(self.now, || format!("end {end} <- bad ICRC"));
            return match flight.intact {
                Some(packet) => Err(format!("the codec lost {packet:?}")),
                None => Ok(()),
            };
        };
        if let Some(sent) = flight.intact.filter(|sent| *sent != packet) {
            return Err(format!("{sent:?} was decoded as {packet:?}"));
        }
        let side = &self.ends[end].side;
        let current = flight.epoch == side.epoch && flight.epoch == self.ends[end ^ 1].side.epoch;
        let deaf = matches!(side.state, QpState::Reset | QpState::Init);
        if self.blackhole == Some(side.node) || (!current && !deaf) {
            self.lost(end, "never arrives");
            return Ok(());
        }
        self.trace.line(self.now, || {
            format!(
                "end {end} <- {:?} {:?} {}",
                packet.bth.psn, packet.body, packet.payload_len
            )
        });
        let (mut packet, mut payload) = (packet, payload);
        let answer = matches!(packet.body, Body::ReadResponse(_)) && self.deadline.is_none();
        if answer && self.rng.chance(self.swarm.mistakes.short_answer) {
            if let Some((_, cut)) = payload.split_last() {
                packet.payload_len -= 1;
                payload = cut;
                self.lossy = true;
            }
        }
        self.receive(end, &packet, payload)?;
        self.receive_early(end)?;
        if current && self.rng.chance(self.swarm.forged) {
            self.receive_forged(end, &packet, payload)?;
        }
        self.soon(end)
    }

    fn receive(&mut self, end: usize, packet: &Packet, payload: &[u8]) -> Check {
        let node = self.ends[end].side.node;
        if self.deadline.is_some() {
            self.replenish(end);
        } else if self.rng.chance(self.swarm.mistakes.memory_fault) {
            let fault =
                self.rng
                    .pick(&[AccessFault::Failed, AccessFault::Retry, AccessFault::Retry]);
            self.lossy = true;
            self.nodes[node].inject = Some(fault);
        }
        let kept = self.may_keep(end, packet);
        let forecast = self.forecast(end, packet, payload, kept);
        let expected = self.ends[end].side.tx.expected.clone();
        let before = self.ends[end].side.completed;
        let keep = self.call(end, payload, |qp, now, host| {
            if let Service::Xrc(srqn) = packet.service {
                host.srqn = srqn;
            }
            qp.handle_packet(now, packet, host);
            host.keep
        });
        if let Some((direction, psn)) = keep.flatten() {
            self.ends[end].early[direction as usize].insert(psn, (*packet, payload.to_vec()));
        }
        self.nodes[node].inject = None;
        self.settle(end, before, &forecast)?;
        if let Some(expected) = expected {
            let at = self.ends[end].side.messages[expected.message].local;
            let at = at + expected.offset as usize;
            self.nodes[node]
                .verify(at, expected.len as usize)
                .map_err(|why| format!("end {end}: {why}"))?;
        }
        Ok(())
    }

    /// Passes the early packets that the engine expects now to the engine.
    fn receive_early(&mut self, end: usize) -> Check {
        loop {
            let End { qp, early, .. } = &mut self.ends[end];
            let [requests, responses] = early;
            let next = qp.as_ref().and_then(|qp| {
                let request = requests.take(qp.expected_psn());
                request.or_else(|| responses.take(qp.oldest_unfinished()))
            });
            let Some((packet, payload)) = next else {
                return Ok(());
            };
            self.trace.line(self.now, || {
                format!("end {end} <- kept {:?}", packet.bth.psn)
            });
            self.receive(end, &packet, &payload)?;
        }
    }

    /// Returns the result of the attempt to keep a request packet, if it is early.
    fn may_keep(&mut self, end: usize, packet: &Packet) -> Kept {
        let End { qp, early, .. } = &mut self.ends[end];
        let expected = qp.as_ref().map(|qp| qp.expected_psn());
        match expected {
            Some(expected) if !is_response(&packet.body) => {
                early[Direction::Request as usize].check(expected, packet.bth.psn)
            }
            _ => Kept::Refused,
        }
    }

    fn forecast(&mut self, end: usize, packet: &Packet, payload: &[u8], kept: Kept) -> Forecast {
        let [left, right] = &mut self.ends[end & !1..=end | 1] else {
            return Forecast::default();
        };
        let (this, peer) = if end % 2 == 0 {
            (left, right)
        } else {
            (right, left)
        };
        let memory = &mut self.nodes[this.side.node];
        if is_response(&packet.body) {
            responses::response(&mut this.side, memory, self.now, packet, payload);
            return Forecast::default();
        }
        Reference {
            kept,
            side: &mut this.side,
            peer: &mut peer.side,
            memory,
            rings: &self.rings,
        }
        .request(packet)
    }

    /// Lets the application post receives and work requests.
    pub(crate) fn app(&mut self, end: usize) -> Check {
        // In ERR the engine flushes all posts at once, so a few posts suffice.
        let broken = self.ends[end].side.state == QpState::Err;
        let open = !broken || (self.deadline.is_none() && self.rng.chance(50));
        let eager = open && self.rng.chance(self.swarm.recv_eagerness);
        if eager || (open && self.deadline.is_some()) {
            self.replenish(end);
        }
        if self.deadline.is_none() && open {
            let burst = self.rng.below(u64::from(self.swarm.sq) + 1);
            for _ in 0..burst {
                self.post(end);
            }
        }
        let next = self.now + self.rng.range(1, self.swarm.pace);
        self.agenda.at(next, Event::App(end));
        self.turn(end)
    }

    /// Posts a random number of receives, or fills the ring if the faults have stopped.
    fn replenish(&mut self, end: usize) {
        let side = &self.ends[end].side;
        if !side.shared && (side.state == QpState::Reset || self.ends[end].qp.is_none()) {
            return;
        }
        let perfect = self.deadline.is_some();
        let ring = match side.kind {
            QpKind::XrcIni => return,
            QpKind::XrcTgt => self.rng.pick(&XRC_RINGS),
            _ => side.ring,
        };
        let ring = &mut self.rings[ring];
        let most = if perfect {
            u64::from(ring.capacity)
        } else {
            self.rng.range(1, u64::from(ring.capacity))
        };
        for _ in 0..most {
            let (length, fault) = workload::receive(&mut self.rng, &self.swarm, perfect);
            if ring.post(length, fault).is_none() {
                return;
            }
        }
    }

    /// Posts one work request, if one is left, the QP's state allows it, and there is room.
    pub(crate) fn post(&mut self, end: usize) {
        let World {
            ends,
            nodes,
            rng,
            swarm,
            ..
        } = self;
        let this = &mut ends[end];
        let side = &mut this.side;
        let open = matches!(
            side.state,
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err
        );
        let full = side.messages.len() - side.retired >= side.sq as usize;
        let target = side.kind == QpKind::XrcTgt;
        if this.to_post == 0 || !open || full || target || this.qp.is_none() {
            return;
        }
        let [left, right] = nodes.as_mut_slice() else {
            return;
        };
        let (local, remote) = if side.node == 0 {
            (left, right)
        } else {
            (right, left)
        };
        let kind = rng.pick(&swarm.kinds);
        let slot = side.messages.len() as u32 % side.sq;
        let results = side.results + slot as usize * swarm.max_message().max(8) as usize;
        let mut workload = Workload {
            rng,
            swarm,
            local,
            remote,
        };
        let message = workload.message(kind, this.next_id, slot, results);
        this.next_id += 1;
        this.to_post -= 1;
        this.kinds.push(kind);
        self.stats.ops[kind as usize] += 1;
        self.trace.line(self.now, || {
            format!("end {end}   posts {:?} {:?}", message.wr, message.fault)
        });
        requester::post(&mut self.ends[end].side, message);
    }
}

/// Returns whether a packet is a NAK of the first gap.
fn reports_gap(packet: &Packet) -> bool {
    let is_sequence_nak = matches!(
        packet.body,
        Body::Ack(aeth) if aeth.syndrome == Syndrome::Nak(NakCode::PsnSequence)
    );
    is_sequence_nak && !answers::is_later_gap(packet)
}

fn is_response(body: &Body) -> bool {
    matches!(
        body,
        Body::Ack(_) | Body::AtomicAck(..) | Body::ReadResponse(_)
    )
}
