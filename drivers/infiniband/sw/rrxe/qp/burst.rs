// SPDX-License-Identifier: GPL-2.0

//! Bursts of a QP's packets: trains that pass through the network stack of this machine as one
//! buffer ([`TxBurst`](rdma::net::skb::TxBurst)). All functions run with the turn lock
//! (`qp/turn.rs`) held.

use rdma::trace;
use roce::{
    host::Count,
    time::Instant,
    transmit::{TrainLimits, Transmit},
    wire::packet::{Body, Packet, ReadPart, SendPart, WritePart},
};

use super::{
    built::{Built, Next, TxOutcome},
    effects::RunEffects,
    engine::Core,
    payload::PayloadReader,
    Qp,
};
use crate::{
    device::stats::Counter,
    net::{outgoing::Outgoing, tx::PacketBuilder},
};

/// Maximum number of payload bytes of a burst: 15 packets of 4 KiB, whose headers and ICRCs also
/// fit into the 64 KiB of an IP packet.
const MAX_BYTES: u32 = 15 << 12;
/// Maximum number of packets of a burst.
const MAX_PACKETS: u32 = 30;

/// Maximum number of packets that a burst may have whose packets have `mtu` bytes.
#[inline]
fn limit(mtu: u32) -> u32 {
    MAX_BYTES
        .wrapping_shr(mtu.trailing_zeros())
        .min(MAX_PACKETS)
}

impl Core {
    /// Sends the packets of `transmit`, which are more than one, as a train within the device, or
    /// builds a burst of them. Returns `None` if memory that they need is absent.
    #[inline(never)]
    pub(super) fn build_several(
        &mut self,
        qp: &Qp,
        now: Instant,
        transmit: &Transmit,
        effects: &mut RunEffects,
    ) -> Option<Next> {
        let built = if self.trains.is_local {
            self.send_train(qp, transmit, effects).map(Built::Handled)
        } else if !self.trains.path.admits_end() && ends_message(&transmit.packet) {
            // The last packet of the message goes alone, behind the burst.
            self.engine.withdraw(transmit);
            self.trains.next_limit = transmit.count.wrapping_sub(1);
            return Some(Next::Done(1));
        } else {
            self.build_burst(qp, transmit)
        };
        match built {
            Some(Built::Send(outgoing)) => return Some(Next::Send(outgoing)),
            Some(Built::Handled(TxOutcome::Left | TxOutcome::Lost)) => {}
            Some(Built::Handled(TxOutcome::Dropped)) => self.engine.transmit_dropped(now, transmit),
            None => {
                self.send_singly(transmit);
                return (!self.parked.is_parked()).then_some(Next::Done(1));
            }
        }
        Some(Next::Done(transmit.count))
    }

    /// Records that a packet is sent alone.
    #[inline]
    pub(super) fn note_single(&mut self, transmit: &Transmit) {
        self.trains.path.note_single();
        // The peer has repeated its READ. For requests, the engine counts the retry.
        if transmit.retransmission && is_response(&transmit.packet) {
            self.trains.path.note_lost_responses();
        }
    }

    /// Records that the network stack has accepted a packet or a burst.
    #[inline]
    pub(super) fn note_sent(&mut self, transmit: &Transmit) {
        if transmit.count > 1 {
            let past = transmit.packet.bth.psn.plus(transmit.count);
            let is_request = !is_response(&transmit.packet);
            let past = is_request.then_some(past);
            self.trains.path.note_burst(transmit.count, past);
        }
    }

    /// Records that the network stack has dropped a packet or a burst.
    #[cold]
    pub(super) fn note_refusal(&mut self, transmit: &Transmit) {
        if transmit.count > 1 {
            self.trains.path.note_refusal();
        }
    }

    /// Returns how many packets may be sent as a burst. Its loss must cause no more than a delay:
    /// requests are sent as a burst if this QP sends them again, READ responses if the peer repeats
    /// its READ.
    #[inline]
    pub(super) fn burst_limits(&mut self, qp: &Qp) -> TrainLimits {
        let engine = &self.engine;
        let path = &mut self.trains.path;
        let (requests, responses) = (engine.retries_losses(), engine.peer_repeats_reads());
        if !(requests || responses) || !path.admits(|past| engine.has_acknowledged(past)) {
            return TrainLimits::SINGLE;
        }
        let most = limit(engine.path_mtu().bytes()).min(qp.tx_limit.room());
        let most = match core::mem::take(&mut self.trains.next_limit) {
            0 => most,
            limit => most.min(limit),
        };
        TrainLimits {
            requests: if requests { most } else { 1 },
            responses: if responses { most } else { 1 },
        }
    }

    /// Has the packets of `transmit`, which was polled last, sent one by one, because they can't be
    /// sent as a train.
    pub(super) fn send_singly(&mut self, transmit: &Transmit) {
        self.engine.withdraw(transmit);
        match self.trains.is_local {
            true => self.trains.singles = transmit.count,
            false => self.trains.path.send_singly(transmit.count),
        }
    }

    /// Builds a burst. Returns `None` if it can't be built: the peer is a QP of this host, the
    /// route takes no bursts, or memory of the payload can't be read now.
    #[inline(never)]
    fn build_burst(&mut self, qp: &Qp, transmit: &Transmit) -> Option<Built> {
        let (address, route) = self.peer.connected()?;
        if route.is_local() {
            self.trains.is_local = true;
            return None;
        }
        if !route.admits_bursts() {
            self.trains.path.note_unfit();
            return None;
        }
        let mtu = self.engine.path_mtu();
        let packet = &transmit.packet;
        let burst = PacketBuilder::new_burst(address, route, packet, &qp.net.tx_pages);
        let Some(mut burst) = burst else {
            return Some(self.drop_burst());
        };
        let mut payload = PayloadReader {
            qp,
            pd: self.pd.id(),
            sq: &self.sq,
            rq: &self.rq,
            own_region: &mut self.own_region,
            peer_region: &mut self.peer_region,
            parked: &mut self.parked,
        };
        // If the memory can't be read, the packets are polled again one by one, and the error of a
        // packet is handled then.
        let read = payload.append(transmit.source, packet.payload_len, &mut burst);
        read.ok()?;
        let count = u16::try_from(transmit.count).ok()?;
        let Ok(burst) = burst.into_burst(count, mtu, qp.net.burst_icrcs) else {
            return Some(self.drop_burst());
        };
        trace::packet_out(qp.device.link.device(), qp.qpn.get(), transmit, mtu);
        self.counters.add(Counter::SentBursts, 1);
        Some(Built::Send(Outgoing::Burst(burst)))
    }

    /// Counts a burst for which there is no memory.
    #[cold]
    fn drop_burst(&mut self) -> Built {
        self.counters.count(Count::SendErr);
        self.trains.path.note_refusal();
        Built::Handled(TxOutcome::Dropped)
    }
}

/// Returns whether a train contains the end of its message.
fn ends_message(packet: &Packet) -> bool {
    match packet.body {
        Body::Send(part) => matches!(part, SendPart::Last(_) | SendPart::Only(_)),
        Body::Write(part) => matches!(part, WritePart::Last(_) | WritePart::Only(..)),
        Body::ReadResponse(part) => matches!(part, ReadPart::Last(_) | ReadPart::Only(_)),
        _ => true,
    }
}

/// Returns a READ request without the bit that admits bursts of responses. Only a receiver in the
/// same machine has a use for the bit.
#[cold]
pub(super) fn unmarked(packet: &Packet) -> Packet {
    let mut packet = *packet;
    packet.bth.reserved = packet.bth.reserved.with_repeats_reads(false);
    packet
}

/// Returns whether a packet is a READ response.
#[inline]
fn is_response(packet: &Packet) -> bool {
    matches!(packet.body, Body::ReadResponse(_))
}
