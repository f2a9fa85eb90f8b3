// SPDX-License-Identifier: GPL-2.0

//! Where a QP takes its receives from: a ring of its own, or a shared receive queue.

use kernel::{prelude::*, sync::Arc};
use roce::{host::Fetch, wc::WcStatus, wire::packet::Service, wr::RecvWr};

use crate::{
    engine_host::Upshot,
    mr::MrTable,
    pd::PdId,
    recv_ring::{Held, RecvRing},
    rx::RxPacket,
    sge,
    srq::Srq,
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

    /// Whether others take from it too.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.source, Source::Shared(_))
    }

    /// Forgets all that was posted for this QP: RESET.
    pub(crate) fn reset(&mut self) {
        self.held.release();
        if let Source::Own(ring) = &mut self.source {
            ring.forget();
        }
    }

    /// Takes the next posted WQE.
    pub(crate) fn take(&mut self, upshot: &mut Upshot) -> Fetch<RecvWr> {
        match &mut self.source {
            Source::Own(ring) => ring.take(&mut self.held),
            Source::Shared(srq) => {
                let taken = srq.take(&mut self.held);
                upshot.notify_srq |= taken.notify;
                upshot.fatal |= taken.broken;
                taken.wr
            }
        }
    }

    /// The WQE held is done with.
    pub(crate) fn release(&mut self) {
        self.held.release();
    }

    /// Copies the payload of `packet` to `offset` bytes into the WQE held, and the global route
    /// header of a datagram in front of it. `pd` is the QP's: what was posted to a shared queue belongs
    /// to the queue's (IBTA 1.x §10.2.9).
    pub(crate) fn scatter(
        &self,
        offset: u32,
        packet: &RxPacket,
        mrs: &MrTable,
        pd: PdId,
    ) -> Result<(), WcStatus> {
        let pd = match &self.source {
            Source::Own(_) => pd,
            Source::Shared(srq) => srq.pd(),
        };
        let sges = self.held.sges();
        if matches!(packet.packet.service, Service::Ud(_)) {
            sge::scatter_bytes(sges, &packet.grh(), mrs, pd)?;
        }
        sge::scatter(sges, offset, packet, mrs, pd)
    }
}
