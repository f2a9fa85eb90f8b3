// SPDX-License-Identifier: GPL-2.0

//! Trains of a QP's packets (`net/train.rs`): sending and receiving them, with the turn lock held.

use kernel::sync::Arc;
use rdma::trace;
use roce::{
    host::Count,
    ids::Qpn,
    time::Instant,
    train::Train,
    transmit::{Source, TrainLimits, Transmit},
    wire::packet::Packet,
};

use super::{built::TxOutcome, burst_path::BurstPath, effects::RunEffects, engine::Core, Qp};
use crate::{
    device::stats::Counter,
    memory::mw::RemoteContext,
    net::{
        local,
        rx::RxPacket,
        train::{self, Memory, MAX_BYTES, PAYLOAD_LEN},
        tx::{PacketBuilder, Payload as _},
    },
};

/// State of a QP's trains.
#[derive(Default)]
pub(crate) struct Trains {
    /// The QP sent its last packet to a QP of this host.
    pub(crate) is_local: bool,
    /// Number of packets to send one by one to a QP of this host, because they can't be sent as a
    /// train.
    pub(crate) singles: u32,
    /// Whether bursts arrive at the peer.
    pub(super) path: BurstPath,
    /// Maximum number of packets of the next burst, or 0 for no such limit.
    pub(super) next_limit: u32,
}

/// Returns the part of a run's budget that sending `count` packets takes, one packet or a train.
/// The sender of a train copies no payload.
#[inline]
pub(super) fn cost(count: u32) -> u32 {
    match count {
        0 | 1 => count,
        _ => 1 + count / 16,
    }
}

/// Returns the part of a run's budget that the attempt to take in a train as one takes, beyond
/// that of a packet. To copy 32 KiB takes about as long as to take in a packet of 4 KiB.
fn copy_cost(train: &Train) -> u32 {
    train.packet.payload_len >> 15
}

impl Core {
    /// Returns the maximum number of packets that the engine may return at a time.
    #[inline]
    pub(super) fn train_limits(&mut self, qp: &Qp) -> TrainLimits {
        if !self.trains.is_local {
            return self.burst_limits(qp);
        }
        if let Some(left) = self.trains.singles.checked_sub(1) {
            self.trains.singles = left;
            return TrainLimits::SINGLE;
        }
        let mtu = self.engine.path_mtu().bytes();
        TrainLimits::both(MAX_BYTES.wrapping_shr(mtu.trailing_zeros()))
    }

    /// Puts a train into the inbox of the peer. Returns `None` if the packets can't be sent as a
    /// train: the peer is no QP of this device, a train can't describe the memory of their payload,
    /// that memory isn't always resident, or a program looks at the packets of all network
    /// devices.
    #[inline(never)]
    pub(super) fn send_train(
        &mut self,
        qp: &Qp,
        transmit: &Transmit,
        effects: &mut RunEffects,
    ) -> Option<TxOutcome> {
        let packet = &transmit.packet;
        let payload = train::Payload {
            count: transmit.count,
            length: packet.payload_len,
            mtu: self.engine.path_mtu(),
            session: qp.train_source.session(),
            memory: self.payload_memory(qp, transmit)?,
        };
        if !payload.is_resident(&qp.device.mrs) {
            return None;
        }
        let (address, route) = self.peer.connected()?;
        let peer = local::find(qp, packet.bth.dest, address.destination, &mut self.local_qp)?;
        if !route.is_local()
            || !Arc::ptr_eq(&peer.device, &qp.device)
            || route.is_namespace_sniffed()
        {
            return None;
        }
        let described = Packet {
            payload_len: PAYLOAD_LEN as u32,
            ..*packet
        };
        let skb = PacketBuilder::new(address, route, &described).and_then(|mut builder| {
            builder.copy(&payload.encode());
            builder.into_train(qp.qpn)
        });
        let Some(skb) = skb else {
            self.counters.count(Count::SendErr);
            return Some(TxOutcome::Dropped);
        };
        trace::packet_out(qp.device.link.device(), qp.qpn.get(), transmit, payload.mtu);
        let outcome = local::hand_over(qp, peer, skb, packet, effects);
        if outcome == TxOutcome::Left {
            self.counters.add(Counter::SentTrains, 1);
            self.counters
                .add_sent(transmit.count, transmit.packet.payload_len);
        }
        Some(outcome)
    }

    /// Returns the memory of a train's payload, or `None` if a train can't describe it.
    fn payload_memory(&self, qp: &Qp, transmit: &Transmit) -> Option<Memory> {
        let pd = self.pd.id();
        match transmit.source {
            // The peer's right depends on the SRQ that a packet names, and ends with it. A train
            // doesn't name it.
            Source::None | Source::Remote { srqn: Some(_), .. } => None,
            Source::Send { slot, offset } => {
                let length = transmit.packet.payload_len;
                let sges = self.sq.train_sges(slot, offset, length)?;
                Some(Memory::Sges(pd, sges))
            }
            Source::Remote {
                rkey,
                va,
                srqn: None,
            } => {
                let qpn = qp.qpn.get();
                Some(Memory::Remote(RemoteContext { pd, qpn }, rkey, va))
            }
        }
    }

    /// Has the engine take in a train or a burst whose sender `Peer::check` has admitted: as one,
    /// or else packet by packet. The run's `budget` has paid for the first packet. Returns `false`
    /// if the budget ends, or if memory that a packet needs is absent. Then that packet and those
    /// after it must be taken in again, and the buffer is marked so.
    #[inline(never)]
    pub(super) fn take_in_train(
        &mut self,
        qp: &Qp,
        now: Instant,
        packet: &mut RxPacket,
        budget: &mut u32,
        effects: &mut RunEffects,
    ) -> bool {
        let (train, first) = (packet.train(), packet.selection());
        let sender = packet.skb.sender().map(Qpn::new);
        let address = packet.endpoints.source;
        let sender = sender.and_then(|sender| local::find(qp, sender, address, &mut self.local_qp));
        packet.set_sender(sender);
        let is_whole = self.with_engine(qp, Some(packet), effects, |engine, host| {
            train.count > 1 && engine.handle_train(now, &train, host)
        });
        // An attempt that failed may have copied most of the payload.
        *budget = budget.saturating_sub(copy_cost(&train));
        if is_whole {
            self.count_received(qp, packet);
            return true;
        }
        if self.parked.is_parked() {
            return false;
        }
        for index in 0..train.count {
            packet.select(&train, &first, index);
            if index > 0 {
                let Some(left) = budget.checked_sub(1) else {
                    return false;
                };
                *budget = left;
            }
            self.with_engine(qp, Some(packet), effects, |engine, host| {
                engine.handle_packet(now, &packet.packet, host);
            });
            if self.parked.is_parked() {
                return false;
            }
            self.count_received(qp, packet);
        }
        true
    }

    /// Counts the packets of a train, or a single packet, that the engine has taken in.
    #[inline]
    pub(super) fn count_received(&self, qp: &Qp, packet: &RxPacket) {
        trace::packet_in(qp.device.link.device(), qp.qpn.get(), || packet.train());
        self.counters
            .add(Counter::ReceivedPackets, u64::from(packet.count));
        self.counters
            .add(Counter::ReceivedBytes, u64::from(packet.packet.payload_len));
    }
}
