// SPDX-License-Identifier: GPL-2.0

//! Fatal NAKs that may be forged, and answers that no request waits for.
//!
//! RoCEv2 authenticates nothing: whoever can send a datagram from the peer's address can send a NAK,
//! and any PSN in flight fits it. But the peer's message sequence number (MSN) is unknown to a sender
//! that does not see the packets. So a fatal NAK is believed at once if its MSN is one that the peer
//! can have reached, and challenged if not, as RFC 5961 §3.2 challenges a TCP reset whose number is not
//! exact: if no packet in flight asks for an acknowledgement, the newest is sent again and asks.
//! Everything else goes on as if the NAK had not come. A lost question is repeated when the
//! acknowledgement timer runs out, and a wait for a receive takes its time.
//!
//! An answer that does not fit its request would end it as a NAK would, and vouch for what is before it. It is treated
//! alike; a middle READ response carries no MSN, so it is always challenged.
//!
//! A peer that acknowledges the PSN has not refused it. A peer that refused it is in the error state and
//! stays silent; then the request fails with the status of the NAK when all retries are spent, which
//! would have ended it anyway.

use super::{Requester, SendWqe};
use crate::host::Host;
use crate::psn::Psn;
use crate::qp::{Context, Outcome, Slots};
use crate::time::Instant;
use crate::wc::WcStatus;

/// MSNs have 24 bits.
const MSN_MASK: u32 = 0xff_ffff;

/// A fatal NAK, or an answer that does not fit its request, that was not believed at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Challenge {
    /// The PSN that it refuses.
    pub(super) psn: Psn,
    /// How the request of that PSN ends.
    pub(super) status: WcStatus,
}

impl<W: Slots<SendWqe>> Requester<W> {
    /// The responder told its MSN, which counts all messages before `psn`.
    ///
    /// One that it can't have reached is forged: whoever had it accepted would know the next one. An older
    /// one is that of an earlier packet, or of a repeated answer.
    pub(super) fn hear(&mut self, psn: Psn, msn: u32) {
        if self.is_plausible(msn) {
            self.msn = msn & MSN_MASK;
            self.counted = psn;
        }
    }

    /// The responder can have reached `msn`: since it told the last one it has completed no more
    /// messages than packets were sent behind those that it counted.
    pub(super) fn is_plausible(&self, msn: u32) -> bool {
        self.advance(msn) <= self.sent.ahead_of(self.counted)
    }

    fn advance(&self, msn: u32) -> u32 {
        msn.wrapping_sub(self.msn) & MSN_MASK
    }

    /// Asks the peer whether it has refused `psn`. One question at a time.
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

    /// Forgets the challenge if the peer has acknowledged its PSN.
    pub(super) fn settle_challenge(&mut self) {
        let acked = self.acked;
        self.challenge = self
            .challenge
            .filter(|challenge| !challenge.psn.before(acked));
    }

    /// All retries are spent: fails the request that the challenged NAK refused. The NAK may be forged
    /// still, so it acknowledges nothing.
    pub(super) fn believe<H: Host>(&mut self, challenge: Challenge, host: &mut H) -> Outcome {
        self.challenge = None;
        self.fail_at(challenge.psn, challenge.status, host)
    }
}
