// SPDX-License-Identifier: GPL-2.0

//! Packets that a run of a QP's engine takes in.

use rdma::net::skb::SkbQueue;

use crate::net::{drops::Drops, rx::RxPacket};

/// The packets of a QP's inbox, followed by a packet that has just come and was not queued (the
/// packet at hand).
///
/// The packets of the inbox are taken with the turn lock (`qp/turn.rs`) held.
pub(crate) struct Arrivals<'a> {
    inbox: &'a SkbQueue,
    /// The packet at hand, until it is taken. A reference keeps the packet out of this stack frame:
    /// the network stack needs the rest of the kernel's stack.
    latest: Option<&'a mut Option<RxPacket>>,
}

impl<'a> Arrivals<'a> {
    /// Creates the arrivals: the packets of `inbox`.
    pub(super) fn of(inbox: &'a SkbQueue) -> Self {
        let latest = None;
        Self { inbox, latest }
    }

    /// Creates the arrivals: the packets of `inbox`, then the packet of `latest`, if there is one.
    pub(super) fn with(inbox: &'a SkbQueue, latest: &'a mut Option<RxPacket>) -> Self {
        let latest = Some(latest);
        Self { inbox, latest }
    }

    /// Returns the place of the oldest packet, from which the caller takes it: `place` for a packet
    /// of the inbox, which is decoded again, because the inbox keeps buffers only. A packet that
    /// cannot be decoded is dropped and counted in `drops`.
    #[inline]
    pub(crate) fn next<'b>(
        &'b mut self,
        place: &'b mut Option<RxPacket>,
        drops: &Drops,
    ) -> &'b mut Option<RxPacket> {
        while let Some(skb) = self.inbox.pop() {
            RxPacket::decode_into(place, skb, drops);
            if place.is_some() {
                return place;
            }
        }
        match &mut self.latest {
            Some(latest) => latest,
            None => place,
        }
    }

    /// Puts a packet, a train or a burst back to the front of the inbox.
    pub(crate) fn put_back(&self, packet: RxPacket) {
        self.inbox.put_back(packet.skb);
    }

    /// Returns whether no packet is left.
    pub(crate) fn is_empty(&self) -> bool {
        !self.has_latest() && self.inbox.is_empty()
    }

    /// Returns whether the packet at hand is left.
    pub(super) fn has_latest(&self) -> bool {
        matches!(self.latest, Some(Some(_)))
    }

    /// Returns the place of the packet at hand, if it is left.
    pub(super) fn latest(&mut self) -> Option<&mut Option<RxPacket>> {
        self.latest.as_deref_mut().filter(|latest| latest.is_some())
    }
}
