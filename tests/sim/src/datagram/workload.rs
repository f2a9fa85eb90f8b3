// SPDX-License-Identifier: GPL-2.0

//! The work requests that the applications of datagram QPs post.

use roce::ids::{Imm, Qkey, Qpn, Rkey};
use roce::qp::QpKind;
use roce::wc::WcStatus;
use roce::wire::grh::GRH_LEN;
use roce::wr::{RemoteAddr, SendExtra, SendOp, SendSlot, SendWr, UdDest};

use super::swarm::{Swarm, MAD_LEN};
use super::End;
use crate::message::LocalFault;
use crate::recv::RecvFault;
use crate::rng::Rng;

/// With this bit a work request selects the QP's own queue key (IBTA 1.x §10.2.5).
const OWN_QKEY: u32 = 1 << 31;

/// Draws a work request of the QP `end`, and its fault.
pub(super) fn message(
    rng: &mut Rng,
    swarm: &Swarm,
    ends: &[End],
    end: usize,
) -> (SendWr, LocalFault) {
    let side = &ends[end].side;
    let mut fault = LocalFault::None;
    let mut op = SendOp::Datagram(
        dest(rng, swarm, ends),
        rng.chance(300).then(|| Imm(rng.next() as u32)),
    );
    if rng.chance(swarm.bad_local) {
        let nowhere = RemoteAddr {
            va: 0,
            rkey: Rkey(1),
        };
        match rng.below(4) {
            0 => fault = LocalFault::Malformed(WcStatus::LocQpOpErr),
            1 => op = SendOp::Write(nowhere, None),
            2 => op = SendOp::Send(SendExtra::Plain),
            _ => fault = LocalFault::Late,
        }
    }
    let wr = SendWr {
        slot: SendSlot(side.messages.len() as u32 % side.sq),
        wr_id: ends[end].next_id,
        op,
        length: length(rng, swarm),
        signaled: !rng.chance(swarm.unsignaled),
        solicited: rng.chance(300),
        fence: rng.chance(300),
        srqn: Default::default(),
    };
    (wr, fault)
}

fn dest(rng: &mut Rng, swarm: &Swarm, ends: &[End]) -> UdDest {
    let qpn = if rng.chance(swarm.multicast) {
        Qpn::MULTICAST
    } else {
        // One of these numbers belongs to no QP.
        Qpn::new(super::FIRST_QPN + rng.below(ends.len() as u64 + 1) as u32)
    };
    let qkey = match rng.below(3) {
        0 => OWN_QKEY | rng.next() as u32,
        _ => swarm.qkey(rng),
    };
    UdDest {
        qpn,
        qkey: Qkey(qkey),
    }
}

fn length(rng: &mut Rng, swarm: &Swarm) -> u32 {
    let mtu = swarm.mtu.bytes();
    if rng.chance(swarm.too_long) {
        return mtu + rng.pick(&[1, 4, mtu]);
    }
    match rng.below(4) {
        0..3 if swarm.kind == QpKind::Gsi => MAD_LEN,
        0 => rng.pick(&[0, 1, mtu - 1, mtu]),
        _ => rng.below(u64::from(mtu) + 1) as u32,
    }
}

/// Draws the length and the fault of a receive.
pub(super) fn receive(rng: &mut Rng, swarm: &Swarm) -> (u32, RecvFault) {
    let mut length = swarm.mtu.bytes() + GRH_LEN;
    if rng.chance(swarm.short_recv) {
        length = rng.below(u64::from(length) + 1) as u32;
    }
    let malformed = RecvFault::Malformed(WcStatus::LocQpOpErr);
    let fault = if rng.chance(swarm.bad_recv) {
        rng.pick(&[RecvFault::Unreachable, malformed])
    } else {
        RecvFault::None
    };
    (length, fault)
}
