// SPDX-License-Identifier: GPL-2.0

//! Packets that arrived before a missing one (`roce::early`). A QP keeps them until the missing
//! packet arrives, so that the peer need not send them again.
//!
//! A packet is kept only if it has the responder's cookie, a random number that acknowledgments
//! tell the peer. A peer can make a QP keep packets, and so can a forger who has found out the
//! cookie. So the packets count in the limits of the QP's payer and network namespace, which leave
//! memory to the inboxes (`has_room_to_keep()`, `rust/rdma/net/skb/backlog.rs`). The engine drops
//! the packets if none of the missing packets arrives for a second.

use kernel::prelude::*;
use rdma::net::skb::{Discard, HeldPackets, HeldSkb, SkbQueue};
use roce::{
    early::{Direction, EarlyQueue, Kept, MOST_AHEAD},
    psn::Psn,
};

use crate::{
    net::{drops::Drops, rx::RxPacket},
    qp::engine::Engine,
};

/// The packets of one direction that a QP keeps, and their memory.
struct Packets {
    queue: EarlyQueue<HeldSkb, KVec<Option<HeldSkb>>>,
    memory: HeldPackets,
}

/// The packets that a QP keeps. The turn lock (`qp/turn.rs`) protects them.
///
/// Memory is allocated only while there are packets.
#[derive(Default)]
pub(crate) struct KeptPackets {
    requests: Option<Packets>,
    responses: Option<Packets>,
}

impl KeptPackets {
    /// Returns the place of the packets of one direction.
    fn place_of(&mut self, direction: Direction) -> &mut Option<Packets> {
        match direction {
            Direction::Request => &mut self.requests,
            Direction::Response => &mut self.responses,
        }
    }

    /// Returns whether a packet with the PSN of `packet` is kept already, or can be kept. If it
    /// can, the caller passes it to [`Self::keep`]. `expected` is the PSN that the engine expects.
    /// Any context up to softirq.
    #[cold]
    pub(super) fn check(
        &mut self,
        inbox: &SkbQueue,
        direction: Direction,
        expected: Psn,
        packet: &RxPacket,
    ) -> Kept {
        let psn = packet.packet.bth.psn;
        if !(1..MOST_AHEAD).contains(&psn.ahead_of(expected)) {
            return Kept::Refused;
        }
        let place = self.place_of(direction);
        if place.is_none() {
            *place = Packets::new(inbox).ok();
        }
        match place {
            Some(packets) if packets.memory.has_room_for(&packet.skb) => {
                packets.queue.check(expected, psn)
            }
            _ => Kept::Refused,
        }
    }

    /// Takes a packet from its place, and keeps it after [`Self::check`] has returned
    /// [`Kept::Kept`]. If there is no memory for a copy, the packet is dropped and counted in
    /// `drops`. The engine asks the peer for the packet again once it has all packets before it.
    #[cold]
    pub(super) fn keep(
        &mut self,
        direction: Direction,
        place: &mut Option<RxPacket>,
        drops: &Drops,
    ) {
        let (Some(packets), Some(packet)) = (self.place_of(direction), place.take()) else {
            return;
        };
        let psn = packet.packet.bth.psn;
        match packets.memory.hold(packet.skb) {
            Ok(held) => packets.queue.insert(psn, held),
            Err(skb) => drops.discard(skb, Discard::Overflow),
        }
    }

    /// Moves a packet that the engine expects now to `place`, if it is kept. Returns whether it is.
    /// Frees the memory after the last packet.
    #[inline]
    pub(super) fn take(
        &mut self,
        engine: &Engine,
        place: &mut Option<RxPacket>,
        drops: &Drops,
    ) -> bool {
        if self.requests.is_none() && self.responses.is_none() {
            return false;
        }
        take_kept(&mut self.requests, engine.expected_psn(), place, drops)
            || take_kept(
                &mut self.responses,
                engine.oldest_unfinished(),
                place,
                drops,
            )
    }

    /// Returns the PSN of the first packet from `start` on while `expected` is expected.
    pub(super) fn first(&mut self, direction: Direction, expected: Psn, start: Psn) -> Option<Psn> {
        let packets = self.place_of(direction).as_mut()?;
        packets.queue.first(expected, start)
    }

    /// Drops all packets of one direction.
    pub(super) fn clear(&mut self, direction: Direction) {
        *self.place_of(direction) = None;
    }

    /// Drops all packets.
    pub(super) fn clear_all(&mut self) {
        *self = Self::default();
    }
}

/// Moves the packet with the PSN `expected` from `kept` to `place`, if it is there. Returns whether
/// it is. Frees the memory after the last packet.
#[cold]
#[inline(never)]
fn take_kept(
    kept: &mut Option<Packets>,
    expected: Psn,
    place: &mut Option<RxPacket>,
    drops: &Drops,
) -> bool {
    let Some(packets) = kept else {
        return false;
    };
    let taken = packets.queue.take(expected).and_then(HeldSkb::release);
    if packets.queue.is_empty() {
        *kept = None;
    }
    if let Some(skb) = taken {
        RxPacket::decode_into(place, skb, drops);
    }
    place.is_some()
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
