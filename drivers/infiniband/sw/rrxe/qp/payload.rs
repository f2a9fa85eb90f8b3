// SPDX-License-Identifier: GPL-2.0

//! The payload of packets to send: copies from registered memory into socket buffers, with the turn
//! lock (`qp/turn.rs`) held.

use rdma::support::table::LastLookup;
use roce::{host::RemoteAccess, qp::TransmitFault, transmit::Source};

use super::{
    parked::{gather_error, Parked},
    recv_queue::RecvQueue,
    send_queue::SendQueue,
    sge::OwnMemory,
    Qp,
};
use crate::{
    memory::{mr::Mr, mw::RemoteContext, remote::RemoteRange},
    net::tx::{PacketBuilder, Payload as _},
    verbs::pd::PdId,
};

/// The parts of a QP that the copying of payload needs.
pub(super) struct PayloadReader<'a> {
    /// The sending QP.
    pub(super) qp: &'a Qp,
    /// Its protection domain.
    pub(super) pd: PdId,
    pub(super) sq: &'a SendQueue,
    pub(super) rq: &'a RecvQueue,
    pub(super) own_region: &'a mut LastLookup<Mr>,
    pub(super) peer_region: &'a mut LastLookup<Mr>,
    pub(super) parked: &'a mut Parked,
}

impl PayloadReader<'_> {
    /// Appends a copy of the `length` bytes at `source` to a packet.
    ///
    /// # Errors
    ///
    /// The reason why the memory can't be read. If it is absent, the QP is parked until the memory
    /// is resident.
    #[inline]
    pub(super) fn append(
        &mut self,
        source: Source,
        length: u32,
        packet: &mut PacketBuilder<'_>,
    ) -> Result<(), TransmitFault> {
        let mrs = &self.qp.device.mrs;
        match source {
            Source::None => Ok(()),
            Source::Send { slot, offset } => {
                let own = OwnMemory {
                    mrs,
                    pd: self.pd,
                    recent: self.own_region,
                    parked: self.parked,
                };
                self.sq
                    .gather(slot, offset, length, packet, own)
                    .map_err(gather_error)
            }
            Source::Remote { rkey, va, srqn } => {
                let pd = self.rq.remote_pd(self.pd, srqn);
                let pd = pd.map_err(TransmitFault::Remote)?;
                let qpn = self.qp.qpn.get();
                let range = RemoteRange {
                    context: RemoteContext { pd, qpn },
                    rkey,
                    va,
                    length,
                    access: RemoteAccess::Read,
                };
                let read = mrs.with_remote(self.peer_region, &range, |span| packet.append(&span));
                self.parked
                    .remote(read, &range)
                    .map_err(TransmitFault::Remote)
            }
        }
    }
}
