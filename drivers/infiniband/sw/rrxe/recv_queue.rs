// SPDX-License-Identifier: GPL-2.0

//! The receive queue of a QP: the mapped ring, and a private copy of the WQE that the responder
//! holds.
//!
//! A responder holds at most one receive WQE at a time: messages of one QP never interleave. Its
//! ring slot is free for the poster as soon as it is copied.

use kernel::prelude::*;
use rdma::ring::Ring;
use roce::{
    host::Fetch,
    wc::WcStatus,
    wire::packet::Service,
    wr::{RecvSlot, RecvWr},
};

use crate::{
    mr::MrTable,
    pd::PdId,
    rx::RxPacket,
    send_queue::read_sges,
    sge,
    wqe::{total_length, RecvHeader, Sge, RECV_HEADER},
};

/// The receive queue.
pub(crate) struct RecvQueue {
    ring: Ring,
    /// The next slot to take.
    next: u32,
    /// Room for `max_sge` SGEs.
    sges: KVVec<Sge>,
    /// How many of them the WQE held has.
    held: usize,
}

impl RecvQueue {
    /// Bytes of a WQE with `max_sge` SGEs.
    pub(crate) const fn element_size(max_sge: u32) -> usize {
        RECV_HEADER.saturating_add(sge::bytes(max_sge))
    }

    /// The queue on `ring`. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(ring: Ring, max_sge: u32) -> Result<Self> {
        Ok(Self {
            ring,
            next: 0,
            sges: KVVec::from_elem(Sge::default(), max_sge as usize, GFP_KERNEL_ACCOUNT)?,
            held: 0,
        })
    }

    /// Forgets all that was posted: RESET.
    pub(crate) fn reset(&mut self) {
        self.next = self.ring.producer();
        self.ring.publish_consumer(self.next);
        self.held = 0;
    }

    /// Something is posted and not yet taken.
    pub(crate) fn has_posted(&self) -> bool {
        self.ring.producer() != self.next
    }

    /// Takes the next posted WQE.
    pub(crate) fn take(&mut self) -> Fetch<RecvWr> {
        if !self.has_posted() {
            return Fetch::Empty;
        }
        let slot = self.next;
        let raw: [u8; RECV_HEADER] = self.ring.read_array(slot);
        let header = RecvHeader::parse(&raw);
        let length = self.keep_sges(slot, header.num_sge);
        self.next = self.ring.next(slot);
        self.ring.publish_consumer(self.next);
        let wr = RecvWr {
            slot: RecvSlot(slot),
            wr_id: header.wr_id,
            length: length.unwrap_or(0),
        };
        match length {
            Ok(_) => Fetch::Wr(wr),
            Err(status) => Fetch::Malformed(wr, status),
        }
    }

    fn keep_sges(&mut self, slot: u32, num_sge: u32) -> Result<u32, WcStatus> {
        self.held = 0;
        let sges = self
            .sges
            .get_mut(..num_sge as usize)
            .ok_or(WcStatus::LocQpOpErr)?;
        read_sges(&self.ring, slot, RECV_HEADER, sges);
        let length = total_length(sges).ok_or(WcStatus::LocLenErr)?;
        self.held = sges.len();
        Ok(length)
    }

    /// The WQE held is done with.
    pub(crate) fn release(&mut self) {
        self.held = 0;
    }

    /// Copies the payload of `packet` to `offset` bytes into the WQE held, and the global route
    /// header of a datagram in front of it.
    pub(crate) fn scatter(
        &self,
        offset: u32,
        packet: &RxPacket,
        mrs: &MrTable,
        pd: PdId,
    ) -> Result<(), WcStatus> {
        let sges = self.sges.get(..self.held).unwrap_or_default();
        if matches!(packet.packet.service, Service::Ud(_)) {
            sge::scatter_bytes(sges, &packet.grh(), mrs, pd)?;
        }
        sge::scatter(sges, offset, packet, mrs, pd)
    }
}
