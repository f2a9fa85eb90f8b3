// SPDX-License-Identifier: GPL-2.0

//! Request packets that arrived before a missing one (`roce::early`). A QP keeps them until the
//! missing packet arrives, so that the peer need not send them again.
//!
//! A packet is kept only if it has the QP's cookie, a random number that acknowledgments tell the
//! peer. A peer can make a QP keep packets, and so can a forger who has found out the cookie. So
//! the packets count in the limits of the QP's payer and network namespace, which leave memory to
//! the inboxes (`has_room_to_keep()`, `rust/rdma/net/skb/backlog.rs`). The engine drops the packets
//! if none of the missing packets arrives for a second.

use kernel::prelude::*;
use rdma::net::skb::{Discard, HeldPackets, HeldSkb, SkbQueue};
use roce::{
    early::{EarlyQueue, Kept, MOST_AHEAD},
    psn::Psn,
};

use crate::{
    net::{drops::Drops, rx::RxPacket},
    qp::engine::Engine,
};

/// The packets that a QP keeps, and their memory.
struct Packets {
    queue: EarlyQueue<HeldSkb, KVec<Option<HeldSkb>>>,
    memory: HeldPackets,
}

/// The packets that a QP keeps. The turn lock (`qp/turn.rs`) protects them.
#[derive(Default)]
pub(crate) struct EarlyRequests {
    /// Memory is allocated only while there are packets.
    packets: Option<Packets>,
}

impl EarlyRequests {
    /// Returns whether a packet with the PSN of `packet` is kept already, or can be kept. If it
    /// can, the caller passes it to [`Self::keep`]. `expected` is the PSN that the engine expects.
    /// Any context up to softirq.
    #[cold]
    pub(super) fn check(&mut self, inbox: &SkbQueue, expected: Psn, packet: &RxPacket) -> Kept {
        let psn = packet.packet.bth.psn;
        if !(1..MOST_AHEAD).contains(&psn.ahead_of(expected)) {
            return Kept::Refused;
        }
        if self.packets.is_none() {
            self.packets = Packets::new(inbox).ok();
        }
        match &mut self.packets {
            Some(packets) if packets.memory.has_room_for(&packet.skb) => {
                packets.queue.check(expected, psn)
            }
            _ => Kept::Refused,
        }
    }

    /// Takes a packet from its place, and keeps it after [`Self::check`] has returned
    /// [`Kept::Kept`]. If there is no memory for a copy, the packet is dropped and counted in
    /// `drops`. The engine reports it missing by a NAK.
    #[cold]
    pub(super) fn keep(&mut self, place: &mut Option<RxPacket>, drops: &Drops) {
        let (Some(packets), Some(packet)) = (&mut self.packets, place.take()) else {
            return;
        };
        let psn = packet.packet.bth.psn;
        match packets.memory.hold(packet.skb) {
            Ok(held) => packets.queue.insert(psn, held),
            Err(skb) => drops.discard(skb, Discard::Overflow),
        }
    }

    /// Moves the packet that the engine expects now to `place`, if it is kept. Returns whether it
    /// is. Frees the memory after the last packet.
    #[inline]
    pub(super) fn take(
        &mut self,
        engine: &Engine,
        place: &mut Option<RxPacket>,
        drops: &Drops,
    ) -> bool {
        match &self.packets {
            Some(_) => self.take_kept(engine.expected_psn(), place, drops),
            None => false,
        }
    }

    #[cold]
    #[inline(never)]
    fn take_kept(&mut self, expected: Psn, place: &mut Option<RxPacket>, drops: &Drops) -> bool {
        let Some(packets) = &mut self.packets else {
            return false;
        };
        let taken = packets.queue.take(expected).and_then(HeldSkb::release);
        if packets.queue.is_empty() {
            self.packets = None;
        }
        if let Some(skb) = taken {
            RxPacket::decode_into(place, skb, drops);
        }
        place.is_some()
    }

    /// Returns the PSN of the first kept packet from `start` on. `expected` is the PSN that the
    /// engine expects.
    pub(super) fn first(&mut self, expected: Psn, start: Psn) -> Option<Psn> {
        self.packets.as_mut()?.queue.first(expected, start)
    }

    /// Drops all packets.
    pub(super) fn clear(&mut self) {
        self.packets = None;
    }
}

impl Packets {
    /// Creates the state without packets, with the limits of `inbox`. Doesn't sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn new(inbox: &SkbQueue) -> Result<Self> {
        let places = MOST_AHEAD as usize;
        let table = places.saturating_mul(size_of::<Option<HeldSkb>>());
        let memory = HeldPackets::of(inbox, table).ok_or(ENOMEM)?;
        let mut slots = KVec::with_capacity(places, GFP_ATOMIC | __GFP_NOWARN)?;
        for _ in 0..places {
            slots.push(None, GFP_ATOMIC)?;
        }
        Ok(Self {
            queue: EarlyQueue::new(slots),
            memory,
        })
    }
}
