// SPDX-License-Identifier: GPL-2.0

//! Forged packets, made from a packet that was just processed. They must have no effect and get no
//! answer.

use roce::ids::{Pkey, Qkey, Qpn};
use roce::qp::QpState;
use roce::wire::packet::{Aeth, Body, Deth, Packet, Service, Syndrome};

use crate::rng::Rng;
use crate::side::Side;
use crate::world::{Check, End, World};

/// The partition key of a full member of another partition.
const OTHER_PARTITION: Pkey = Pkey(0x9234);

impl World {
    /// Passes a forged variant of `packet`, which `end` has just processed, to the same end.
    pub(crate) fn receive_forged(&mut self, end: usize, packet: &Packet, payload: &[u8]) -> Check {
        let side = &self.ends[end].side;
        let pair = [side.state, self.ends[end ^ 1].side.state];
        if side.unreliable || pair != [QpState::Rts; 2] {
            return Ok(());
        }
        // Sends all packets that are due, so that none of them looks like an answer.
        self.turn(end)?;
        let this = &self.ends[end];
        if this.poll_due || this.side.state != QpState::Rts || this.side.paused.0 > self.now {
            return Ok(());
        }
        let Some(forged) = forge(&mut self.rng, &this.side, packet) else {
            return Ok(());
        };
        let before = this.side.completed;
        let known = self.visible_state(end);
        self.trace
            .line(self.now, || format!("end {end} <- forged {forged:?}"));
        let answer = self.call(end, payload, |qp, now, host| {
            qp.handle_packet(now, &forged, host);
            qp.poll_transmit(now, host)
        });
        self.settle_quietly(end, before)?;
        match answer {
            Some(None) if self.visible_state(end) == known => Ok(()),
            answer => Err(format!(
                "end {end}: the forged {forged:?} was answered by {answer:?} or moved {known} to {}",
                self.visible_state(end)
            )),
        }
    }

    /// Returns the state that a packet may change, as text.
    fn visible_state(&self, end: usize) -> String {
        let End { side, qp, .. } = &self.ends[end];
        let attrs = qp.as_ref().map(|qp| (qp.attrs(), qp.poll_timeout()));
        format!(
            "{} {} {} {attrs:?}",
            side.taken, side.retired, side.completed
        )
    }
}

/// Returns a variant of `packet` that `side` must drop, of a random kind. Returns `None` if that
/// kind of variant doesn't exist for this packet.
fn forge(rng: &mut Rng, side: &Side, packet: &Packet) -> Option<Packet> {
    let mut forged = *packet;
    match (rng.below(5), &mut forged.body) {
        (0, _) => forged.bth.pkey = OTHER_PARTITION,
        (1, _) => {
            let (qkey, src) = (Qkey(0x1111), Qpn::new(side.peer_qpn));
            forged.service = Service::Ud(Deth { qkey, src });
        }
        (2, Body::Ack(_) | Body::ReadResponse(_) | Body::AtomicAck(..)) => {
            let syndrome = Syndrome::Ack { credits: 31 };
            let beyond = side.tx.sent + rng.below(4);
            forged.bth.psn = side.tx.numbering.psn(beyond);
            forged.body = Body::Ack(Aeth { syndrome, msn: 0 });
            forged.payload_len = 0;
        }
        (kind, Body::ReadRequest(reth)) if carried_out(side, packet) => match kind {
            3 => reth.rkey.0 ^= 1,
            // The READ may be a part of the original one, so this exceeds that one, too.
            _ => reth.length += 1 << 30,
        },
        (_, Body::Atomic(eth)) if carried_out(side, packet) => eth.va ^= 8,
        _ => return None,
    }
    Some(forged)
}

/// Returns whether the packet was carried out, so that it is a duplicate now.
fn carried_out(side: &Side, packet: &Packet) -> bool {
    let ext = side.rx.numbering.ext(packet.bth.psn, side.rx.epsn);
    ext.is_some_and(|ext| ext < side.rx.epsn)
}
