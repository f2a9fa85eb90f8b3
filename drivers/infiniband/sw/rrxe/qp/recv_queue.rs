// SPDX-License-Identifier: GPL-2.0

//! Receive queue of a QP: a ring of its own, a shared receive queue, or the shared receive queues
//! of an XRC domain.

use kernel::{prelude::*, sync::Arc};
use rdma::net::skb::RxFrame;
use roce::{
    host::{AccessFault, Fetch, QueueFault, ScatterFault},
    ids::Srqn,
    wc::WcStatus,
    wire::packet::Service,
    wr::RecvWr,
};

use crate::{
    gsi::SanitizedMad,
    limits,
    net::rx::RxPacket,
    qp::{
        effects::RunEffects,
        recv_ring::{HeldSges, RecvRing},
        sge::{self, OwnMemory},
    },
    verbs::{pd::PdId, srq::Srq, xrcd::Xrcd},
};

/// Receive queue of a QP. Protected by the turn lock (`qp/turn.rs`).
pub(crate) struct RecvQueue {
    source: Source,
    /// Receive WQE that the QP fills (the held WQE).
    held: HeldSges,
}

/// Origin of a QP's receive WQEs.
enum Source {
    /// Ring of the QP's own.
    Own(RecvRing),
    /// Shared receive queue.
    Shared(Arc<Srq>),
    /// No receives: an XRC initiator.
    Nothing,
    /// The shared receive queues of an XRC domain. Each request to an XRC target names one of them.
    Domain {
        /// The XRC domain.
        xrcd: Arc<Xrcd>,
        /// Shared receive queue of the held WQE.
        current: Option<Arc<Srq>>,
    },
}

impl RecvQueue {
    /// Creates a receive queue on a ring of the QP's own, whose WQEs have up to `max_sge` SGEs.
    /// Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn own(ring: RecvRing, max_sge: u32) -> Result<Self> {
        Ok(Self {
            source: Source::Own(ring),
            held: HeldSges::new(max_sge)?,
        })
    }

    /// Creates a receive queue that takes WQEs from `srq`. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn shared(srq: Arc<Srq>) -> Result<Self> {
        Ok(Self {
            held: HeldSges::new(srq.max_sge())?,
            source: Source::Shared(srq),
        })
    }

    /// Creates the receive queue of a QP that receives nothing. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn nothing() -> Result<Self> {
        Ok(Self {
            held: HeldSges::new(1)?,
            source: Source::Nothing,
        })
    }

    /// Creates a receive queue that takes WQEs from the shared receive queues of an XRC domain.
    /// Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn of_domain(xrcd: Arc<Xrcd>) -> Result<Self> {
        Ok(Self {
            held: HeldSges::new(limits::MAX_SRQ_SGE)?,
            source: Source::Domain {
                xrcd,
                current: None,
            },
        })
    }

    /// Returns the slot of the next WQE in the QP's own ring. Returns `None` if the QP has no ring
    /// of its own.
    pub(crate) fn position(&self) -> Option<u32> {
        match &self.source {
            Source::Own(ring) => Some(ring.position()),
            Source::Shared(_) | Source::Nothing | Source::Domain { .. } => None,
        }
    }

    /// Closes the QP's own ring: only the WQEs that were posted before this call are taken. Has no
    /// effect on shared queues.
    pub(crate) fn close(&mut self) {
        if let Source::Own(ring) = &mut self.source {
            ring.close();
        }
    }

    /// Gives up the held WQE and drops all WQEs posted to the QP's own ring, for a QP that enters
    /// RESET.
    pub(crate) fn reset(&mut self) {
        self.held.release();
        match &mut self.source {
            Source::Own(ring) => ring.forget(),
            Source::Domain { current, .. } => *current = None,
            Source::Shared(_) | Source::Nothing => {}
        }
    }

    /// Returns the number of WQEs that are posted to the QP's own ring and not yet taken. Returns 0
    /// if the queue is shared, and while the producer index in the ring is invalid.
    pub(crate) fn posted(&self) -> u32 {
        match &self.source {
            Source::Own(ring) => ring.posted().unwrap_or(0),
            Source::Nothing | Source::Shared(_) | Source::Domain { .. } => 0,
        }
    }

    /// Takes the next WQE that is posted.
    ///
    /// # Errors
    ///
    /// [`QueueFault::Broken`] if a shared queue is in the error state.
    pub(crate) fn take(&mut self, effects: &mut RunEffects) -> Result<Fetch<RecvWr>, QueueFault> {
        match &mut self.source {
            Source::Own(ring) => Ok(ring.take(&mut self.held)),
            Source::Shared(srq) => {
                let taken = srq.take(&mut self.held);
                effects.notify_srq |= taken.notify;
                match taken.broken {
                    true => Err(QueueFault::Broken),
                    false => Ok(taken.wr),
                }
            }
            Source::Nothing | Source::Domain { .. } => Ok(Fetch::Empty),
        }
    }

    /// Takes the next WQE that is posted to the shared receive queue `srqn` of the XRC domain.
    ///
    /// # Errors
    ///
    /// [`QueueFault::Unknown`] if the domain has no such queue, [`QueueFault::Broken`] if the queue
    /// is in the error state.
    pub(crate) fn take_named(
        &mut self,
        srqn: Srqn,
        effects: &mut RunEffects,
    ) -> Result<Fetch<RecvWr>, QueueFault> {
        let Source::Domain { xrcd, current } = &mut self.source else {
            return Err(QueueFault::Unknown);
        };
        let srq = xrcd.queue(srqn).ok_or(QueueFault::Unknown)?;
        let taken = srq.take(&mut self.held);
        if taken.notify {
            effects.xrc_srq = Some(srq.clone());
        }
        if taken.broken {
            return Err(QueueFault::Broken);
        }
        *current = Some(srq);
        Ok(taken.wr)
    }

    /// Takes the shared receive queue from which [`Self::take_named`] took the last WQE. Returns
    /// `None` if the queue is destroyed, or was taken before.
    pub(crate) fn take_current(&mut self) -> Option<Arc<Srq>> {
        match &mut self.source {
            Source::Domain { current, .. } => current.take().filter(|srq| srq.is_in_service()),
            Source::Own(_) | Source::Shared(_) | Source::Nothing => None,
        }
    }

    /// Returns whether the shared receive queue from which [`Self::take_named`] took the last WQE
    /// still exists. Returns `true` if the QP holds no such queue.
    pub(crate) fn has_current(&self) -> bool {
        match &self.source {
            Source::Domain {
                current: Some(srq), ..
            } => srq.is_in_service(),
            _ => true,
        }
    }

    /// Returns the protection domain whose memory a request of the peer accesses. That is the QP's
    /// domain `pd`, or the domain of the shared receive queue that a request to an XRC target
    /// names.
    ///
    /// # Errors
    ///
    /// [`AccessFault::NoQueue`] if a request to an XRC target names no queue of its XRC domain.
    #[inline]
    pub(crate) fn remote_pd(&self, pd: PdId, srqn: Option<Srqn>) -> Result<PdId, AccessFault> {
        match &self.source {
            Source::Domain { xrcd, .. } => srqn
                .and_then(|srqn| xrcd.queue(srqn))
                .map(|srq| srq.pd())
                .ok_or(AccessFault::NoQueue),
            Source::Own(_) | Source::Shared(_) | Source::Nothing => Ok(pd),
        }
    }

    /// Gives up the held WQE. The QP copies nothing more to it.
    pub(crate) fn release(&mut self) {
        self.held.release();
    }

    /// Returns the protection domain of the held WQE. `own` is the QP's domain.
    ///
    /// # Errors
    ///
    /// `LocProtErr` if the WQE was taken from a queue of an XRC domain and the queue is destroyed:
    /// its owner may use the memory for something else.
    #[inline]
    fn pd(&self, own: PdId) -> Result<PdId, WcStatus> {
        match &self.source {
            Source::Own(_) | Source::Nothing => Ok(own),
            Source::Shared(srq) => Ok(srq.pd()),
            Source::Domain { current, .. } => current
                .as_ref()
                .filter(|srq| srq.is_in_service())
                .map(|srq| srq.pd())
                .ok_or(WcStatus::LocProtErr),
        }
    }

    /// Copies a whole frame to the held WQE. `own` is as for [`Self::scatter`].
    ///
    /// # Errors
    ///
    /// The errors of [`sge::write`].
    pub(crate) fn scatter_frame(
        &self,
        frame: &RxFrame,
        own: OwnMemory<'_>,
    ) -> Result<(), ScatterFault> {
        let pd = self.pd(own.pd)?;
        let own = OwnMemory { pd, ..own };
        sge::write(self.held.sges(), 0, frame.len(), own, |span, at| {
            frame
                .copy_to_span(at as usize, span)
                .map_err(|_| AccessFault::Denied)
        })
    }

    /// Copies the payload of `packet` to the held WQE, from `offset` bytes on. For a datagram it
    /// also copies the global route header to the beginning of the WQE. For a MAD, the parts that
    /// `sanitized` has replace the addresses in this header and the whole payload.
    ///
    /// `own` is the memory of the QP's owner. The WQE of a shared receive queue belongs to the
    /// protection domain of that queue (IBTA 1.x §10.2.9).
    ///
    /// # Errors
    ///
    /// The errors of [`sge::write`].
    pub(crate) fn scatter(
        &self,
        offset: u32,
        packet: &RxPacket,
        sanitized: Option<&SanitizedMad>,
        own: OwnMemory<'_>,
    ) -> Result<(), ScatterFault> {
        let pd = self.pd(own.pd)?;
        let mut own = OwnMemory { pd, ..own };
        let sges = self.held.sges();
        if !matches!(packet.packet.service, Service::Ud(_)) {
            return sge::scatter(sges, offset, packet, own);
        }
        let grh = match sanitized.and_then(|sanitized| sanitized.stand_in) {
            Some(stand_in) => stand_in.replace_in(packet.grh()),
            None => packet.grh(),
        };
        sge::scatter_bytes(sges, 0, &grh, own.reborrow())?;
        match sanitized.and_then(|sanitized| sanitized.mad.as_ref()) {
            Some(mad) => sge::scatter_bytes(sges, offset, mad, own),
            None => sge::scatter(sges, offset, packet, own),
        }
    }
}
