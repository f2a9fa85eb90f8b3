// SPDX-License-Identifier: GPL-2.0

//! Bursts of a QP's packets: trains that pass through the network stack of this host as one buffer
//! ([`TxBurst`]). All functions run with the turn lock (`qp/turn.rs`) held.

use rdma::{net::skb::TxBurst, trace};
use roce::transmit::Transmit;

use super::{
    engine::{Built, Core, TxOutcome},
    payload::PayloadReader,
    train::Trains,
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

/// Number of packets that a QP sends one by one after its first loss of a burst.
const FIRST_PAUSE: u32 = 1 << 8;
/// Maximum number of packets that a QP sends one by one after a loss of a burst.
const LONGEST_PAUSE: u32 = 1 << 20;
/// Number of packets that a QP sends one by one if its network device takes no bursts. The device
/// may take bursts later.
const UNFIT_PAUSE: u32 = 1 << 10;

/// Maximum number of packets that a burst may have whose packets have `mtu` bytes.
#[inline]
pub(super) fn limit(mtu: u32) -> u32 {
    MAX_BYTES
        .wrapping_shr(mtu.trailing_zeros())
        .min(MAX_PACKETS)
}

impl Trains {
    /// Records that a single packet is sent. A retransmission may mean that the path loses bursts,
    /// such as a program of the administrator that takes no buffers with lists. So packets are sent
    /// one by one for a time, which doubles with each burst that was lost before as many packets
    /// have been sent in bursts.
    #[inline]
    pub(super) fn note_single(&mut self, transmit: &Transmit) {
        if transmit.retransmission && self.sent_in_bursts != 0 {
            self.pause_bursts();
        }
    }

    #[cold]
    fn pause_bursts(&mut self) {
        let is_lasting = self.sent_in_bursts >= self.pause;
        self.pause = match is_lasting {
            true => FIRST_PAUSE,
            false => self.pause.saturating_mul(2).min(LONGEST_PAUSE),
        };
        self.singles = self.pause;
        self.sent_in_bursts = 0;
    }
}

impl Core {
    /// Has the packets of `transmit` sent one by one, which was polled last and can't be sent as a
    /// train.
    pub(super) fn send_singly(&mut self, transmit: &Transmit) {
        self.engine.withdraw(transmit);
        self.trains.singles = self.trains.singles.max(transmit.count);
    }

    /// Builds a burst. Returns `None` if the packets must be sent one by one: the route takes no
    /// bursts, or memory of the payload can't be read now.
    #[inline(never)]
    pub(super) fn build_burst(&mut self, qp: &Qp, transmit: &Transmit) -> Option<Built> {
        let (address, route) = self.peer.connected()?;
        if route.is_local() {
            self.trains.is_local = true;
            return None;
        }
        if !route.admits_bursts() {
            self.trains.singles = UNFIT_PAUSE;
            return None;
        }
        let mtu = self.engine.path_mtu();
        let train = transmit.train(mtu);
        let mut payload = PayloadReader {
            qp,
            pd: self.pd.id(),
            sq: &self.sq,
            rq: &self.rq,
            own_region: &mut self.own_region,
            peer_region: &mut self.peer_region,
            parked: &mut self.parked,
        };
        let mut burst: Option<TxBurst> = None;
        for (index, packet) in (0u16..).zip(train.headers()) {
            let pages = &qp.net.tx_pages;
            let frame = PacketBuilder::new_member(address, route, &packet, index, pages);
            let Some(mut frame) = frame else {
                return Some(Built::Handled(TxOutcome::Dropped));
            };
            let source = transmit.source.behind(packet.offset);
            if payload.append(source, packet.length, &mut frame).is_err() {
                // The packet is polled again alone, and its error handled then.
                return None;
            }
            let Ok(packet) = frame.into_packet() else {
                return Some(Built::Handled(TxOutcome::Dropped));
            };
            match &mut burst {
                None => burst = Some(TxBurst::new(packet)),
                Some(burst) => burst.push(packet).ok()?,
            }
        }
        trace::packet_out(qp.device.link.device(), qp.qpn.get(), transmit, mtu);
        self.counters.add(Counter::SentBursts, 1);
        self.trains.sent_in_bursts = self.trains.sent_in_bursts.saturating_add(transmit.count);
        Some(Built::Send(Outgoing::Burst(burst?)))
    }
}
