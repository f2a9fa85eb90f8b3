// SPDX-License-Identifier: GPL-2.0

//! Where a QP takes its receives from: a ring of its own, or a shared receive queue.

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
        recv_ring::{Held, RecvRing},
        sge::{self, OwnMemory},
    },
    verbs::{pd::PdId, srq::Srq, xrcd::Xrcd},
};

/// The receive queue.
pub(crate) struct RecvQueue {
    source: Source,
    /// The WQE that is being filled.
    held: Held,
}

enum Source {
    Own(RecvRing),
    Shared(Arc<Srq>),
    /// An XRC initiator receives nothing.
    Nothing,
    /// An XRC target takes from whichever queue of its domain a request names.
    Domain {
        xrcd: Arc<Xrcd>,
        /// The queue of the WQE that is being filled.
        current: Option<Arc<Srq>>,
    },
}

impl RecvQueue {
    /// A queue of the QP's own, on `ring`. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn own(ring: RecvRing, max_sge: u32) -> Result<Self> {
        Ok(Self {
            source: Source::Own(ring),
            held: Held::new(max_sge)?,
        })
    }

    /// One that takes from `srq`. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn shared(srq: Arc<Srq>) -> Result<Self> {
        Ok(Self {
            held: Held::new(srq.max_sge())?,
            source: Source::Shared(srq),
        })
    }

    /// No queue at all. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn nothing() -> Result<Self> {
        Ok(Self {
            held: Held::new(1)?,
            source: Source::Nothing,
        })
    }

    /// The queues of an XRC domain. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn of_domain(xrcd: Arc<Xrcd>) -> Result<Self> {
        Ok(Self {
            held: Held::new(limits::MAX_SRQ_SGE)?,
            source: Source::Domain {
                xrcd,
                current: None,
            },
        })
    }

    /// The slot of the next WQE, if nobody else takes from the queue.
    pub(crate) fn position(&self) -> Option<u32> {
        match &self.source {
            Source::Own(ring) => Some(ring.position()),
            Source::Shared(_) | Source::Nothing | Source::Domain { .. } => None,
        }
    }

    /// From now on takes no more than the WQEs posted for this QP before this call.
    pub(crate) fn close(&mut self) {
        if let Source::Own(ring) = &mut self.source {
            ring.close();
        }
    }

    /// Forgets all that was posted for this QP: RESET.
    pub(crate) fn reset(&mut self) {
        self.held.release();
        match &mut self.source {
            Source::Own(ring) => ring.forget(),
            Source::Domain { current, .. } => *current = None,
            Source::Shared(_) | Source::Nothing => {}
        }
    }

    /// WQEs posted for this QP and not yet taken. 0 of a shared queue, and while the producer index is none.
    pub(crate) fn posted(&self) -> u32 {
        match &self.source {
            Source::Own(ring) => ring.posted().unwrap_or(0),
            Source::Nothing | Source::Shared(_) | Source::Domain { .. } => 0,
        }
    }

    /// Takes the next posted WQE.
    ///
    /// # Errors
    ///
    /// [`QueueFault::Broken`] if a shared queue is in error.
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

    /// Takes the next WQE posted to the queue `srqn` of the XRC domain.
    ///
    /// # Errors
    ///
    /// [`QueueFault::Unknown`] if the domain has no such queue, [`QueueFault::Broken`] if the queue is in error.
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
            effects.named = Some(srq.clone());
        }
        if taken.broken {
            return Err(QueueFault::Broken);
        }
        *current = Some(srq);
        Ok(taken.wr)
    }

    /// The queue of an XRC domain from which [`Self::take_named`] took last, unless it is destroyed; `None` when asked again.
    pub(crate) fn take_current(&mut self) -> Option<Arc<Srq>> {
        match &mut self.source {
            Source::Domain { current, .. } => current.take().filter(|srq| srq.is_in_service()),
            Source::Own(_) | Source::Shared(_) | Source::Nothing => None,
        }
    }

    /// Whether the queue of an XRC domain from which [`Self::take_named`] took last isn't destroyed.
    pub(crate) fn has_current(&self) -> bool {
        match &self.source {
            Source::Domain {
                current: Some(srq), ..
            } => srq.is_in_service(),
            _ => true,
        }
    }

    /// The protection domain whose memory a request reaches, of a QP in `pd`: of an XRC target that of
    /// the queue which the request names.
    ///
    /// # Errors
    ///
    /// [`AccessFault::NoQueue`] if a request to an XRC target names no queue of its domain.
    #[inline]
    pub(crate) fn reached(&self, pd: PdId, named: Option<Srqn>) -> Result<PdId, AccessFault> {
        match &self.source {
            Source::Domain { xrcd, .. } => named
                .and_then(|srqn| xrcd.queue(srqn))
                .map(|srq| srq.pd())
                .ok_or(AccessFault::NoQueue),
            Source::Own(_) | Source::Shared(_) | Source::Nothing => Ok(pd),
        }
    }

    /// Gives up the WQE that was taken last: all is copied to it that will be.
    pub(crate) fn release(&mut self) {
        self.held.release();
    }

    /// The protection domain of the WQE held, of a QP in `own`.
    ///
    /// # Errors
    ///
    /// `LocProtErr` if the queue of an XRC domain from which the WQE was taken is destroyed: its owner may use the memory for
    /// something else.
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

    /// Copies a whole frame to the WQE held. `own` as for [`Self::scatter`].
    ///
    /// # Errors
    ///
    /// Those of [`sge::write`].
    pub(crate) fn scatter_frame(
        &self,
        frame: &RxFrame,
        own: OwnMemory<'_>,
    ) -> Result<(), ScatterFault> {
        let pd = self.pd(own.pd)?;
        let own = OwnMemory { pd, ..own };
        sge::write(self.held.sges(), 0, frame.len(), own, |span, at| {
            frame.copy_to_span(at as usize, span)
        })
    }

    /// Copies the payload of `packet` to `offset` bytes into the WQE held, and the global route header of a datagram to its
    /// beginning, or what `sanitized` has in place of either. `own` is the QP's: a WQE of a shared queue belongs to the domain of
    /// the queue (IBTA 1.x §10.2.9).
    ///
    /// # Errors
    ///
    /// Those of [`sge::write`].
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
