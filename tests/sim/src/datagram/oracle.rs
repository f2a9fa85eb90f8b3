// SPDX-License-Identifier: GPL-2.0

//! The oracle of a datagram QP: the packets that it may send, the datagrams that it must receive,
//! and the status of its work requests.

use roce::ids::Qpn;
use roce::qp::{QpKind, QpState};
use roce::transmit::{Source, Transmit};
use roce::wc::{RecvExtra, RecvWc, SendWc, WcOpcode, WcStatus};
use roce::wire::grh::GRH_LEN;
use roce::wire::packet::{Body, SendPart, Service};
use roce::wr::{SendExtra, SendOp};

use super::host::GRH;
use super::swarm::{GSI_QKEY, MAD_LEN};
use super::{Letter, Message, Side};
use crate::memory::Memory;
use crate::message::LocalFault;
use crate::recv::{Receive, RecvFault};
use crate::side::Effect;
use crate::world::Check;

/// Checks a packet that the engine wants to send. Returns the index of its message.
pub(super) fn request(side: &mut Side, transmit: &Transmit) -> Result<usize, String> {
    if !side.sends() {
        return Err(format!("sent in {:?}", side.state));
    }
    let packet = &transmit.packet;
    let Source::Send { slot, offset: 0 } = transmit.source else {
        return Err(format!("a datagram from {:?}", transmit.source));
    };
    let index = side
        .message_in(slot.0)
        .ok_or(format!("{slot:?} isn't taken"))?;
    let skipped = side.messages[side.retired..index]
        .iter()
        .find(|message| !message.sent && sends(message, side.mtu));
    if let Some(skipped) = skipped {
        return Err(format!("message {index} overtook {:?}", skipped.wr));
    }
    let message = &side.messages[index];
    let SendOp::Datagram(dest, imm) = message.wr.op else {
        return Err(format!("sent {:?}", message.wr));
    };
    let own = dest.qkey.0 >> 31 != 0;
    let qkey = if own { side.qkey } else { dest.qkey.0 };
    let extra = imm.map_or(SendExtra::Plain, SendExtra::Imm);
    let Service::Ud(deth) = packet.service else {
        return Err(format!("a datagram of {:?}", packet.service));
    };
    let right = packet.body == Body::Send(SendPart::Only(extra))
        && (deth.qkey.0, deth.src.get()) == (qkey, side.qpn)
        && packet.bth.dest == dest.qpn
        && packet.bth.psn == side.psn
        && packet.bth.solicited == message.wr.solicited
        && !packet.bth.ack_req
        && packet.payload_len == message.wr.length;
    if !right || message.sent || message.failed {
        return Err(format!("{:?} was sent as {packet:?}", message.wr));
    }
    side.psn = side.psn.next();
    Ok(index)
}

/// Returns whether a datagram must be sent for the message before it may succeed.
fn sends(message: &Message, mtu: u32) -> bool {
    message.wr.length <= mtu
}

/// Applies an intact datagram to the shadow copy of the memory. Returns the expected effects.
pub(super) fn receive(
    side: &mut Side,
    memory: &mut Memory,
    front: Option<&Receive>,
    letter: &Letter,
    sender: u32,
) -> Vec<Effect> {
    let mut effects = Vec::new();
    let own = match side.kind {
        QpKind::Gsi => GSI_QKEY,
        _ => side.qkey,
    };
    let fits = side.kind != QpKind::Gsi || letter.payload.len() == MAD_LEN as usize;
    if !side.receives() || letter.qkey != own || !fits {
        return effects;
    }
    if side.holds.is_none() {
        let Some(front) = front else {
            return effects;
        };
        effects.push(Effect::TakeRecv(front.wr_id));
        side.holds = Some(front.clone());
    }
    let Some(held) = side.holds.clone() else {
        return effects;
    };
    let len = letter.payload.len() + GRH.len();
    let status = match held.fault {
        RecvFault::Malformed(status) => status,
        // A datagram must not break a QP by its length.
        _ if len > held.length as usize => return effects,
        RecvFault::Unreachable => WcStatus::LocProtErr,
        RecvFault::None => WcStatus::Success,
    };
    side.holds = None;
    let mut wc = wc(&held, status);
    if status == WcStatus::Success {
        Memory::store(&mut memory.shadow, held.at, &GRH);
        Memory::store(&mut memory.shadow, held.at + GRH.len(), &letter.payload);
        effects.push(Effect::ScatterRecv { at: held.at, len });
        wc.byte_len = letter.wr.length + GRH_LEN;
        wc.src_qp = Qpn::new(sender);
        wc.solicited = letter.wr.solicited;
        wc.grh = true;
        if let SendOp::Datagram(_, Some(imm)) = letter.wr.op {
            wc.extra = RecvExtra::Imm(imm);
        }
    } else {
        side.state = QpState::Err;
    }
    effects.push(Effect::RecvDone(wc));
    effects
}

fn wc(receive: &Receive, status: WcStatus) -> RecvWc {
    RecvWc {
        wr_id: receive.wr_id,
        status,
        opcode: WcOpcode::Recv,
        byte_len: 0,
        extra: RecvExtra::None,
        src_qp: Qpn::new(0),
        solicited: false,
        grh: false,
    }
}

/// Compares the engine's effects on the receive queue with the forecast. In ERR, flushed receives
/// may follow.
pub(super) fn compare(side: &mut Side, forecast: &[Effect]) -> Check {
    let effects = core::mem::take(&mut side.effects);
    let mut got = effects.iter();
    for want in forecast {
        match got.next() {
            Some(effect) if same(want, effect) => {}
            other => return Err(format!("expected {want:?}, the engine did {other:?}")),
        }
    }
    while let Some(effect) = got.next() {
        let flushed = |effect: Option<&Effect>| match effect {
            Some(Effect::RecvDone(wc)) if wc.status == WcStatus::WrFlushErr => Some(wc.wr_id),
            _ => None,
        };
        let right = side.state == QpState::Err
            && match effect {
                Effect::TakeRecv(wr_id) => !side.shared && flushed(got.next()) == Some(*wr_id),
                other => {
                    let held = side.holds.take().map(|held| held.wr_id);
                    held.is_some() && flushed(Some(other)) == held
                }
            };
        if !right {
            return Err(format!("{effect:?} in {:?}", side.state));
        }
    }
    Ok(())
}

fn same(want: &Effect, got: &Effect) -> bool {
    match (want, got) {
        (Effect::RecvDone(want), Effect::RecvDone(got)) if want.status != WcStatus::Success => {
            (want.wr_id, want.status) == (got.wr_id, got.status)
        }
        _ => want == got,
    }
}

/// Checks a completion, and updates the expected state of the QP.
pub(super) fn completion(side: &mut Side, wc: &SendWc) -> Check {
    if side.resetting {
        return Err("completion in RESET".into());
    }
    let index = next_completion(side, wc)?;
    let message = &side.messages[index];
    if index >= side.taken || side.retired <= index {
        return Err(format!("message {index} completed before its time"));
    }
    match wc.status {
        WcStatus::Success if !succeeds(side, message) => {
            return Err(format!("message {index} has no right to succeed"));
        }
        WcStatus::Success => {
            if (wc.opcode, wc.byte_len) != (WcOpcode::Send, message.wr.length) {
                return Err(format!("completion of {:?}", message.wr));
            }
        }
        WcStatus::WrFlushErr => {
            if side.sends() || message.sent {
                return Err(format!("message {index} flushed in {:?}", side.state));
            }
        }
        status => {
            if !side.sends() || cause(message) != Some(status) {
                return Err(format!("message {index} failed in {:?}", side.state));
            }
            side.state = QpState::Sqe;
        }
    }
    side.ended.push(wc.status);
    side.completed = index + 1;
    Ok(())
}

/// Returns whether the message must succeed: it has no cause to fail, and its datagram was sent or
/// it exceeds the MTU, so that no packet is sent (IBTA 1.x §11.4.1.1).
fn succeeds(side: &Side, message: &Message) -> bool {
    cause(message).is_none() && (message.sent || !sends(message, side.mtu))
}

/// Returns the error in which a message must end.
fn cause(message: &Message) -> Option<WcStatus> {
    match (message.fault, message.wr.op) {
        (LocalFault::Malformed(status), _) => Some(status),
        (_, SendOp::Datagram(..)) => message.failed.then_some(WcStatus::LocProtErr),
        _ => Some(WcStatus::LocQpOpErr),
    }
}

/// Finds the message of a completion. The messages before it must have succeeded unsignaled.
fn next_completion(side: &Side, wc: &SendWc) -> Result<usize, String> {
    for (index, message) in side.messages.iter().enumerate().skip(side.completed) {
        if message.wr.wr_id == wc.wr_id {
            return Ok(index);
        }
        if message.wr.signaled || !succeeds(side, message) {
            return Err(format!("the next completion is message {index}'s"));
        }
    }
    Err("completion of no posted message".into())
}

/// Checks the conditions that must hold when the engine has nothing more to do.
pub(super) fn rested(side: &Side) -> Check {
    let unfinished = side.messages[side.completed..side.retired]
        .iter()
        .find(|message| message.wr.signaled || !succeeds(side, message));
    if let Some(message) = unfinished {
        return Err(format!("{:?} retired without a completion", message.wr));
    }
    let left = side.messages.len() - side.retired;
    let rests = matches!(
        side.state,
        QpState::Sqd | QpState::Init | QpState::Rtr | QpState::Reset
    );
    if left != 0 && !rests {
        return Err(format!("{left} messages rest in {:?}", side.state));
    }
    Ok(())
}
