// SPDX-License-Identifier: GPL-2.0

//! The oracle of the responder: a reference implementation. It knows the messages that the peer
//! posted, and so forecasts the exact effects of each request packet.

use roce::early::Kept;
use roce::host::{AccessFault, RemoteAccess};
use roce::ids::Qpn;
use roce::qp::{QpKind, QpState};
use roce::wc::{RecvWc, WcOpcode, WcStatus};
use roce::wire::packet::{Body, NakCode, Packet, Reth};
use roce::wr::{SendExtra, SendOp};

use crate::host::apply_atomic;
use crate::memory::Memory;
use crate::message::Message;
use crate::recv::{self, Receive, RecvFault, RecvRing};
use crate::side::{Effect, Gap, PendingRead, Refusal, Rx, Side};

type Check = Result<(), String>;

/// The cookie of all responders: the hosts have no random numbers.
const COOKIE: u16 = 1;

/// The effects that one request packet must have.
#[derive(Debug, Default)]
pub(crate) struct Forecast {
    pub(crate) effects: Vec<Effect>,
    /// The receive that the engine may take before it sends an RNR NAK.
    pub(crate) may_take: Option<Receive>,
}

/// Both ends, and the memory and rings that a request may access.
pub(crate) struct Reference<'a> {
    /// Result of the host's attempt to keep the packet, if it is early.
    pub(crate) kept: Kept,
    pub(crate) side: &'a mut Side,
    pub(crate) peer: &'a mut Side,
    pub(crate) memory: &'a mut Memory,
    pub(crate) rings: &'a [RecvRing],
}

impl Rx {
    /// Records an early packet. One NAK may be sent, and another one for each early packet with the
    /// cookie that requests an acknowledgment.
    fn early(&mut self, ext: u64, packet: &Packet, kept: Kept) {
        let is_transfer = matches!(packet.body, Body::Send(_) | Body::Write(_));
        let reserved = packet.bth.reserved;
        let has_cookie = self.cookie != 0 && reserved.extension() == self.cookie;
        let is_proven = has_cookie && reserved.fills_gaps();
        if is_proven && !self.not_ready {
            self.past_seen = Some(self.past_seen.unwrap_or(0).max(ext + 1));
            self.peer_goes_back |= !is_transfer;
            if is_transfer && kept == Kept::Kept {
                self.early.insert(ext);
            }
            if packet.bth.ack_req && self.gap == Gap::Said {
                self.gap = Gap::None;
            }
            self.may_be_silent &= !packet.bth.ack_req;
        }
        self.gap = match self.gap {
            Gap::None => Gap::Seen(ext),
            Gap::Seen(newest) => Gap::Seen(newest.max(ext)),
            gap => gap,
        };
    }

    /// Forgets which early packets have arrived.
    fn forget_early(&mut self) {
        self.past_seen = None;
        self.peer_goes_back = false;
    }

    /// Determines, after a packet was carried out, whether a NAK may report the next gap.
    fn continue_gap(&mut self) {
        self.not_ready = false;
        let epsn = self.epsn;
        self.may_be_silent = false;
        self.early.retain(|ext| *ext >= epsn);
        let Some(past) = self.past_seen else {
            return;
        };
        if epsn >= past {
            self.forget_early();
            return;
        }
        let may_be_silent = match self.early.first() {
            Some(first) if *first == epsn => return,
            Some(_) => self.peer_goes_back || epsn < self.past_reported,
            None => self.peer_goes_back,
        };
        if self.early.is_empty() {
            self.forget_early();
        }
        if may_be_silent {
            if self.gap == Gap::None {
                self.gap = Gap::Said;
            }
            return;
        }
        self.gap = match self.gap {
            Gap::Seen(newest) => Gap::Seen(newest.max(past - 1)),
            _ => Gap::Seen(past - 1),
        };
    }
}

impl Reference<'_> {
    /// Carries out a request packet on the shadow copy of the memory. Returns the expected effects.
    pub(crate) fn request(&mut self, packet: &Packet) -> Forecast {
        let mut forecast = Forecast::default();
        if !self.side.receives() {
            return forecast;
        }
        if self.side.unreliable {
            self.unreliable(packet, &mut forecast.effects);
            return forecast;
        }
        let rx = &mut self.side.rx;
        let Some(ext) = rx.numbering.ext(packet.bth.psn, rx.epsn) else {
            return forecast;
        };
        let owed = rx.owes;
        if packet.bth.ack_req && ext <= rx.epsn {
            rx.owes = Some(rx.owes.unwrap_or(0).max(ext));
        }
        if ext > rx.epsn {
            rx.early(ext, packet, self.kept);
            return forecast;
        }
        if ext < rx.epsn {
            self.duplicate(ext, packet);
            return forecast;
        }
        let Some(index) = self.peer.message_at(ext) else {
            return forecast;
        };
        rx.early.remove(&ext);
        let gap = core::mem::take(&mut self.side.rx.gap);
        if !self.execute(index, ext, gap, &mut forecast.effects) {
            self.side.rx.gap = gap;
            self.side.rx.owes = owed;
            self.side.rx.may_be_silent = self.side.rx.past_seen.is_some();
        }
        let rx = &mut self.side.rx;
        // A due NAK would have acknowledged the packets before it. If it is no longer needed, an
        // ACK does that.
        let spared = rx.gap == Gap::None && matches!(gap, Gap::Seen(_) | Gap::NotReady);
        let due = packet.bth.ack_req || spared || !rx.may_ack.is_empty() || rx.past_seen.is_some();
        if rx.epsn > ext && due && !self.peer.messages[index].wants_response() {
            rx.may_ack.push(ext);
        }
        if rx.epsn > ext {
            if packet.bth.reserved.fills_gaps() {
                rx.cookie = COOKIE;
            }
            rx.continue_gap();
        }
        forecast
    }

    /// Handles a duplicate. A READ whose memory is gone may be refused without breaking the QP.
    fn duplicate(&mut self, ext: u64, packet: &Packet) {
        let Some(index) = self.peer.message_at(ext) else {
            return;
        };
        let message = &self.peer.messages[index];
        // The newest answers are remembered, and are sent again.
        let later = message.answer_end(ext) + 1..=self.side.rx.epsn;
        let later: usize = self.peer.messages[index..]
            .iter()
            .filter(|message| message.wants_response())
            .map(|message| {
                let cuts = message.cuts.iter().filter(|cut| later.contains(cut));
                cuts.count() + usize::from(later.contains(&message.end()))
            })
            .sum();
        let limit = match self.side.rx.raised {
            Some((since, before)) if message.answer_end(ext) <= since => before,
            _ => self.side.profile.max_dest_rd_atomic,
        };
        let remembered = later < usize::from(limit);
        if message.wants_response() && remembered && self.memory.inject.is_none() {
            self.side.rx.owes = Some(self.side.rx.owes.unwrap_or(0).max(ext));
        }
        if !message.wants_response() {
            // The acknowledgment covers all packets, unless that would skip an answer.
            let rx = &mut self.side.rx;
            let skips = ext + 1 < rx.recorded;
            rx.may_ack.push(if skips { ext } else { rx.epsn - 1 });
        }
        let SendOp::Read(at) = message.wr.op else {
            return;
        };
        if let Body::ReadRequest(reth) = packet.body {
            let mtu = self.side.profile.mtu.bytes();
            let end = ext + u64::from(reth.length.div_ceil(mtu).max(1));
            self.side.rx.parts.push(end);
        }
        let len = message.wr.length;
        let access = RemoteAccess::Read;
        if len > 0 && self.memory.grant(at.rkey, at.va, len, access).is_err() {
            self.side.rx.unreadable.push(ext);
        }
    }

    /// Executes the expected packet. `gap` is the value of `rx.gap` before the packet arrived.
    /// Returns `false` if the packet counts as lost.
    fn execute(&mut self, index: usize, ext: u64, gap: Gap, effects: &mut Vec<Effect>) -> bool {
        let message = self.peer.messages[index].clone();
        let segment = ext - message.first;
        let bytes = message.segment(segment, self.side.profile.mtu);
        let last = ext + 1 == message.end();
        let done = match message.wr.op {
            SendOp::Send(extra) => self.send(&message, extra, segment, bytes, effects),
            SendOp::Write(..) => self.write(&message, segment, bytes, effects),
            SendOp::Read(_) => self.read(&message, ext),
            _ => self.one_shot(&message, bytes, effects),
        };
        if let Err(codes) = done {
            if codes.is_empty() {
                return false;
            }
            if let Some(held) = self.side.rx.held.clone() {
                self.done(&held, WcStatus::GeneralErr, &message, effects);
            }
            self.refuse(ext, codes);
            return true;
        }
        if self.side.rx.gap == Gap::NotReady {
            return true;
        }
        let rx = &mut self.side.rx;
        rx.offset += bytes.len() as u32;
        let took = if message.is_read() {
            message.answer_end(ext) - ext
        } else {
            1
        };
        rx.epsn = ext + took;
        if message.wants_response() {
            rx.reads.push_back(PendingRead {
                next: ext,
                end: ext + took,
            });
        }
        if matches!(gap, Gap::Seen(newest) if newest >= rx.epsn) {
            // The early packet `newest` is not executed yet, so the NAK may still be sent.
            rx.gap = gap;
        }
        if last || message.is_read() {
            rx.msn = (rx.msn + 1) & 0xff_ffff;
            rx.offset = 0;
            let posted = &mut self.peer.messages[index];
            posted.executed = rx.epsn == message.end();
            if message.wants_response() {
                rx.recorded = rx.epsn;
                posted.msns.push((rx.epsn, rx.msn));
            }
        }
        true
    }

    fn refuse(&mut self, ext: u64, codes: Vec<NakCode>) {
        self.side.rx.refusal = Some(Refusal {
            ext,
            codes,
            sent: false,
        });
        self.side.state = QpState::Err;
    }

    /// Returns the ring whose receives a message may take.
    fn ring_for(&self, message: &Message) -> Result<usize, Vec<NakCode>> {
        match self.side.kind {
            QpKind::XrcTgt => {
                recv::named_ring(message.wr.srqn).ok_or(vec![NakCode::InvalidRequest])
            }
            _ => Ok(self.side.ring),
        }
    }

    pub(crate) fn send(
        &mut self,
        message: &Message,
        extra: SendExtra,
        segment: u64,
        bytes: &[u8],
        effects: &mut Vec<Effect>,
    ) -> Result<(), Vec<NakCode>> {
        if segment == 0 && !self.take(message, effects, WcOpcode::Recv)? {
            return Ok(());
        }
        let Some(held) = self.side.rx.held.clone() else {
            return Ok(());
        };
        let offset = self.side.rx.offset;
        if offset as usize + bytes.len() > held.length as usize {
            // On an unreliable connection, the receive waits for the next message.
            if !self.side.unreliable {
                self.done(&held, WcStatus::LocLenErr, message, effects);
            }
            return Err(vec![NakCode::InvalidRequest]);
        }
        if !bytes.is_empty() {
            if held.fault == RecvFault::Unreachable {
                self.done(&held, WcStatus::LocProtErr, message, effects);
                return Err(vec![NakCode::RemoteOperational]);
            }
            let at = held.at + offset as usize;
            Memory::store(&mut self.memory.shadow, at, bytes);
            effects.push(Effect::ScatterRecv {
                at,
                len: bytes.len(),
            });
        }
        if segment + 1 < message.packets {
            return Ok(());
        }
        if let SendExtra::Invalidate(rkey) = extra {
            let live = |region: &crate::memory::Region| region.live && region.key == rkey.0;
            if !self.memory.regions.iter().any(live) {
                self.done(&held, WcStatus::GeneralErr, message, effects);
                return Err(vec![NakCode::RemoteAccess]);
            }
            effects.push(Effect::Invalidate(rkey));
        }
        self.done(&held, WcStatus::Success, message, effects);
        Ok(())
    }

    /// Takes a receive for the message, unless one is held. Returns `false` if there is none.
    fn take(
        &mut self,
        message: &Message,
        effects: &mut Vec<Effect>,
        opcode: WcOpcode,
    ) -> Result<bool, Vec<NakCode>> {
        let ring = self.ring_for(message)?;
        let front = self.rings[ring].posted.front();
        let receive = match (self.side.rx.held.take(), front) {
            (Some(held), _) => held,
            (None, Some(next)) => {
                effects.push(Effect::TakeRecv(next.wr_id));
                next.clone()
            }
            (None, None) => {
                self.side.rx.gap = Gap::NotReady;
                self.side.rx.not_ready = true;
                self.side.rx.wanted = ring;
                return Ok(false);
            }
        };
        if let RecvFault::Malformed(status) = receive.fault {
            effects.push(Effect::RecvDone(wc(
                &receive,
                status,
                opcode,
                0,
                self.side.peer_qpn,
            )));
            return Err(vec![NakCode::RemoteOperational]);
        }
        self.side.rx.held = Some(receive);
        Ok(true)
    }

    fn done(
        &mut self,
        held: &Receive,
        status: WcStatus,
        message: &Message,
        effects: &mut Vec<Effect>,
    ) {
        self.side.rx.held = None;
        let opcode = match message.wr.op {
            SendOp::Write(..) => WcOpcode::RecvRdmaWithImm,
            _ => WcOpcode::Recv,
        };
        let mut wc = wc(held, status, opcode, message.wr.length, self.side.peer_qpn);
        wc.extra = match message.wr.op {
            SendOp::Send(SendExtra::Imm(imm)) | SendOp::Write(_, Some(imm)) => {
                roce::wc::RecvExtra::Imm(imm)
            }
            SendOp::Send(SendExtra::Invalidate(rkey)) => roce::wc::RecvExtra::Invalidated(rkey),
            _ => roce::wc::RecvExtra::None,
        };
        wc.solicited = message.solicits();
        effects.push(Effect::RecvDone(wc));
    }

    pub(crate) fn write(
        &mut self,
        message: &Message,
        segment: u64,
        bytes: &[u8],
        effects: &mut Vec<Effect>,
    ) -> Result<(), Vec<NakCode>> {
        let SendOp::Write(to, imm) = message.wr.op else {
            return Ok(());
        };
        if !self.side.profile.rights.write {
            return Err(vec![NakCode::InvalidRequest, NakCode::RemoteAccess]);
        }
        if segment == 0 {
            self.check(to.rkey.0, to.va, message, RemoteAccess::Write)?;
        }
        let completes = imm.is_some() && segment + 1 == message.packets;
        if completes && !self.take(message, effects, WcOpcode::RecvRdmaWithImm)? {
            return Ok(());
        }
        if !bytes.is_empty() {
            let va = to.va + u64::from(self.side.rx.offset);
            let at = self
                .memory
                .grant(to.rkey, va, bytes.len() as u32, RemoteAccess::Write)
                .map_err(codes)?;
            Memory::store(&mut self.memory.shadow, at, bytes);
            effects.push(Effect::Write {
                at,
                len: bytes.len(),
            });
        }
        if completes {
            if let Some(held) = self.side.rx.held.clone() {
                self.done(&held, WcStatus::Success, message, effects);
            }
        }
        Ok(())
    }

    /// Checks rights and room for an operation that is answered with more than an ACK.
    fn read_like(&self, message: &Message, access: RemoteAccess) -> Result<(), Vec<NakCode>> {
        let rights = self.side.profile.rights;
        let allowed = match access {
            RemoteAccess::Read => rights.read,
            RemoteAccess::Write => rights.write,
            RemoteAccess::Atomic => rights.atomic,
            RemoteAccess::Flush(kind) => {
                (kind.placement & 1 == 0 || rights.flush_global)
                    && (kind.placement & 2 == 0 || rights.flush_persistent)
            }
        };
        if !allowed {
            return Err(vec![NakCode::InvalidRequest, NakCode::RemoteAccess]);
        }
        if message.wants_response() && self.side.profile.max_dest_rd_atomic == 0 {
            return Err(vec![NakCode::InvalidRequest]);
        }
        Ok(())
    }

    /// Checks a READ, or the part of it that one request asks for.
    fn read(&self, message: &Message, ext: u64) -> Result<(), Vec<NakCode>> {
        self.read_like(message, RemoteAccess::Read)?;
        let mtu = self.side.profile.mtu;
        let (body, _) = message.request(ext - message.first, message.answer_end(ext), mtu);
        match body {
            Body::ReadRequest(Reth { va, rkey, length }) if length > 0 => {
                self.ring_for(message)?;
                self.memory
                    .grant(rkey, va, length, RemoteAccess::Read)
                    .map(|_| ())
                    .map_err(codes)
            }
            _ => Ok(()),
        }
    }

    /// Checks the whole range of a message, unless it is empty.
    fn check(
        &self,
        rkey: u32,
        va: u64,
        message: &Message,
        access: RemoteAccess,
    ) -> Result<usize, Vec<NakCode>> {
        if message.wr.length == 0 {
            return Ok(0);
        }
        self.ring_for(message)?;
        self.memory
            .grant(roce::ids::Rkey(rkey), va, message.wr.length, access)
            .map_err(codes)
    }

    /// Carries out an atomic, an ATOMIC WRITE or a FLUSH.
    fn one_shot(
        &mut self,
        message: &Message,
        bytes: &[u8],
        effects: &mut Vec<Effect>,
    ) -> Result<(), Vec<NakCode>> {
        let (at, access) = match message.wr.op {
            SendOp::Atomic(at, _) => (at, RemoteAccess::Atomic),
            SendOp::AtomicWrite(at) => (at, RemoteAccess::Write),
            SendOp::Flush(at, kind) => (at, RemoteAccess::Flush(kind)),
            _ => return Ok(()),
        };
        self.read_like(message, access)?;
        let aligned = matches!(message.wr.op, SendOp::Flush(..)) || at.va % 8 == 0;
        if !aligned {
            return Err(vec![NakCode::InvalidRequest]);
        }
        let offset = self.check(at.rkey.0, at.va, message, access)?;
        match message.wr.op {
            SendOp::Atomic(_, op) => {
                let original = apply_atomic(&mut self.memory.shadow, offset, op);
                let index = self.peer.message_at(message.first).unwrap_or(0);
                self.peer.messages[index].original = original;
                effects.push(Effect::Atomic {
                    at: offset,
                    original,
                });
            }
            SendOp::AtomicWrite(_) => {
                Memory::store(&mut self.memory.shadow, offset, bytes);
                effects.push(Effect::AtomicWrite { at: offset });
            }
            _ => {
                if message.wr.length > 0 {
                    effects.push(Effect::Flush {
                        at: offset,
                        len: message.wr.length,
                    });
                }
            }
        }
        Ok(())
    }
}

pub(crate) fn codes(fault: AccessFault) -> Vec<NakCode> {
    match fault {
        AccessFault::Denied => vec![NakCode::RemoteAccess],
        AccessFault::Invalid | AccessFault::NoQueue => vec![NakCode::InvalidRequest],
        AccessFault::Failed => vec![NakCode::RemoteOperational],
        AccessFault::Retry => Vec::new(),
    }
}

fn wc(receive: &Receive, status: WcStatus, opcode: WcOpcode, byte_len: u32, from: u32) -> RecvWc {
    RecvWc {
        wr_id: receive.wr_id,
        status,
        opcode,
        byte_len,
        extra: roce::wc::RecvExtra::None,
        src_qp: Qpn::new(from),
        solicited: false,
        grh: false,
    }
}

/// Returns the effects that a poll may have on the receive queue.
pub(crate) fn poll(side: &Side, rings: &[RecvRing]) -> Forecast {
    let looks = side.receives() && side.rx.gap == Gap::NotReady && side.rx.held.is_none();
    Forecast {
        effects: Vec::new(),
        may_take: rings[side.rx.wanted]
            .posted
            .front()
            .filter(|_| looks)
            .cloned(),
    }
}

/// Compares the engine's effects with the forecast. In ERR, flushed receives may follow.
pub(crate) fn compare(side: &mut Side, forecast: &Forecast) -> Check {
    let effects = core::mem::take(&mut side.effects);
    let mut got = effects.iter();
    for want in &forecast.effects {
        match got.next() {
            Some(effect) if same(want, effect) => {}
            other => return Err(format!("expected {want:?}, the engine did {other:?}")),
        }
    }
    if let (Some(receive), [Effect::TakeRecv(wr_id)]) = (&forecast.may_take, got.as_slice()) {
        if receive.wr_id == *wr_id {
            side.rx.held = forecast.may_take.clone();
            return Ok(());
        }
    }
    while let Some(effect) = got.next() {
        if side.state != QpState::Err {
            return Err(format!("unexpected {effect:?}"));
        }
        let wr_id = match effect {
            Effect::TakeRecv(wr_id) if side.rx.held.is_none() && !side.shared => {
                if !matches!(got.next(), Some(Effect::RecvDone(wc)) if wc.wr_id == *wr_id && flushed(wc))
                {
                    return Err(format!("receive {wr_id} was taken and not flushed"));
                }
                continue;
            }
            Effect::RecvDone(wc) if flushed(wc) => wc.wr_id,
            other => return Err(format!("{other:?} in ERR")),
        };
        if side.rx.held.take().map(|held| held.wr_id) != Some(wr_id) {
            return Err(format!("flushed receive {wr_id}, which was not held"));
        }
    }
    Ok(())
}

fn flushed(wc: &RecvWc) -> bool {
    wc.status == WcStatus::WrFlushErr
}

/// Compares two effects. The other fields of an error completion have no meaning.
fn same(want: &Effect, got: &Effect) -> bool {
    match (want, got) {
        (Effect::RecvDone(want), Effect::RecvDone(got)) if want.status != WcStatus::Success => {
            // `GeneralErr` stands for any error that isn't a flush.
            let any = want.status == WcStatus::GeneralErr
                && !matches!(got.status, WcStatus::Success | WcStatus::WrFlushErr);
            want.wr_id == got.wr_id && (want.status == got.status || any)
        }
        _ => want == got,
    }
}
