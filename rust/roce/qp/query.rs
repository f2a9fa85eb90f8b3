// SPDX-License-Identifier: GPL-2.0

//! Queries of a QP that its host makes between other calls.

use super::{Qp, Replay, SendWqe, Slots};
use crate::mtu::Mtu;
use crate::psn::Psn;

impl<W: Slots<SendWqe>, R: Slots<Replay>> Qp<W, R> {
    /// Returns the PSN that the responder expects next.
    #[inline]
    pub fn expected_psn(&self) -> Psn {
        self.responder.rq_psn()
    }

    /// Returns the oldest PSN in flight whose request is unfinished.
    #[inline]
    pub fn oldest_unfinished(&self) -> Psn {
        self.requester.una()
    }

    /// Returns the path MTU.
    #[inline]
    pub fn path_mtu(&self) -> Mtu {
        self.context.settings.path_mtu
    }

    /// Returns whether the QP has a timer and retries, so that it sends lost requests again.
    #[inline]
    pub fn retries_losses(&self) -> bool {
        self.context.settings.retries_losses()
    }

    /// Returns whether the peer repeats a READ whose responses are lost, as its last READ request
    /// says ([`Reserved::repeats_reads`](crate::wire::packet::Reserved)).
    #[inline]
    pub fn peer_repeats_reads(&self) -> bool {
        self.responder.peer_repeats_reads()
    }

    /// Returns whether the peer has acknowledged all requests before the PSN `past`.
    pub fn has_acknowledged(&self, past: Psn) -> bool {
        !self.requester.una().before(past)
    }

    /// Returns whether the QP's requests are acknowledged.
    pub fn is_reliable(&self) -> bool {
        self.context.config.kind.is_reliable()
    }

    /// Returns whether a peer may drop a packet if the next packet overtakes an earlier one. It may
    /// return `true` although no packet would be dropped.
    ///
    /// No packet of a reliable QP is dropped if all of its requests are acknowledged and it has
    /// answered no READ, atomic, ATOMIC WRITE or FLUSH. An acknowledgment may arrive after a later
    /// one, which covers it, and before or after any request.
    pub fn needs_order(&self) -> bool {
        !self.is_reliable() || !self.requester.is_drained() || self.responder.remembers_answers()
    }
}
