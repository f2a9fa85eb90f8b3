// SPDX-License-Identifier: GPL-2.0

//! The defence against forged fatal NAKs, and against forged responses that no request waits for.
//!
//! RoCEv2 has no authentication. A host that can send datagrams from the peer's address can forge a
//! NAK, and the requester accepts a NAK for any PSN in flight. But a forger that doesn't see the
//! packets doesn't know the peer's message sequence number (MSN). So a fatal NAK takes effect at
//! once only if the peer can have reached the NAK's MSN. Otherwise the requester challenges the
//! NAK, as RFC 5961 §3.2 challenges a TCP reset whose number is not exact. The challenge is a
//! packet that requests an acknowledgment. If no packet in flight requests one, the requester sends
//! the newest packet in flight again, with the request. Everything else proceeds as if the NAK had
//! not come. If the challenge is lost, the acknowledgment timer repeats it. A challenge doesn't
//! shorten a wait after an RNR NAK.
//!
//! A response that doesn't fit its request would end the request as a NAK would, and acknowledge
//! the requests before it. It is treated in the same way. A middle READ response carries no MSN, so
//! one that doesn't fit is always challenged.
//!
//! A peer that acknowledges the challenged PSN has not refused it, so the challenge ends. A peer
//! that has refused the PSN is in the error state and stays silent. Then the request fails when all
//! retries are spent, as it would have anyway, with the status of the NAK.

use super::{Requester, SendWqe};
use crate::host::Host;
use crate::psn::Psn;
use crate::qp::{Context, Outcome, Slots};
use crate::time::Instant;
use crate::wc::WcStatus;

/// Mask of the 24 bits of an MSN.
const MSN_MASK: u32 = 0xff_ffff;

/// A fatal NAK, or a response that doesn't fit its request, that didn't take effect at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Challenge {
    /// PSN that the NAK or response names.
    pub(super) psn: Psn,
    /// Status with which the request of that PSN ends if the challenge stays unanswered.
    pub(super) status: WcStatus,
}

impl<W: Slots<SendWqe>> Requester<W> {
    /// Records the MSN of a response, which counts all messages before `psn`.
    ///
    /// This ignores an MSN that the responder can't have reached. Such an MSN is forged. If the
    /// requester accepted it, the forger would know which MSN passes [`Self::is_plausible`] next.
    /// This also ignores an older MSN, which stems from an earlier packet or a repeated response.
    pub(super) fn record_msn(&mut self, psn: Psn, msn: u32) {
        if self.is_plausible(msn) {
            self.msn = msn & MSN_MASK;
            self.counted = psn;
        }
    }

    /// Returns whether the responder can have reached `msn`. Since the last accepted MSN the
    /// responder can have completed at most one message per PSN from `counted` up to `sent`.
    pub(super) fn is_plausible(&self, msn: u32) -> bool {
        self.advance(msn) <= self.sent.ahead_of(self.counted)
    }

    /// Returns how far `msn` is ahead of the last accepted MSN, modulo 2²⁴.
    fn advance(&self, msn: u32) -> u32 {
        msn.wrapping_sub(self.msn) & MSN_MASK
    }

    /// Starts a challenge of a NAK or response for `psn`. Only one challenge exists at a time.
    pub(super) fn challenge(
        &mut self,
        psn: Psn,
        status: WcStatus,
        now: Instant,
        context: &Context,
    ) {
        if self.challenge.is_some() {
            return;
        }
        self.challenge = Some(Challenge { psn, status });
        let _ = self.ask_again(now, context);
    }

    /// Ends the challenge if the peer has acknowledged its PSN.
    pub(super) fn clear_answered_challenge(&mut self) {
        let acked = self.acked;
        self.challenge = self
            .challenge
            .filter(|challenge| !challenge.psn.before(acked));
    }

    /// Fails the challenged request, because all retries are spent. The NAK may still be forged, so
    /// it acknowledges no earlier request.
    pub(super) fn fail_challenged<H: Host>(
        &mut self,
        challenge: Challenge,
        host: &mut H,
    ) -> Outcome {
        self.challenge = None;
        self.fail_at(challenge.psn, challenge.status, host)
    }
}
