// SPDX-License-Identifier: GPL-2.0

//! Fatal NAKs that may be forged.
//!
//! RoCEv2 authenticates nothing: whoever can send a datagram from the peer's address can send a NAK,
//! and any PSN in flight fits it. But the peer's message sequence number (MSN) is unknown to a sender
//! that does not see the packets. So a fatal NAK is believed at once if its MSN is one that the peer
//! can have reached, and challenged if not, as RFC 5961 §3.2 challenges a TCP reset whose number is not
//! exact: the newest packet in flight is sent again and asks for an acknowledgement. A peer that
//! acknowledges the PSN has not refused it. A peer that refused it is in the error state and stays
//! silent; then the request fails with the status of the NAK after one acknowledgement timeout.

use super::retry::ack_timeout;
use super::{Requester, SendWqe};
use crate::host::Host;
use crate::psn::Psn;
use crate::qp::{Context, Outcome, Slots};
use crate::time::Instant;
use crate::wc::WcStatus;

/// The exponent of the longest time that a challenge waits, and of that where no timeout is set: 537 ms.
const LONGEST_WAIT: u8 = 17;
/// MSNs have 24 bits.
const MSN_MASK: u32 = 0xff_ffff;

/// A fatal NAK that was not believed at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Challenge {
    /// The PSN that it refuses.
    pub(super) psn: Psn,
    /// How the request of that PSN ends.
    pub(super) status: WcStatus,
    /// When it is believed if the peer has not acknowledged the PSN.
    pub(super) until: Instant,
}

impl<W: Slots<SendWqe>> Requester<W> {
    /// The responder told its MSN. An older one is that of an earlier packet, or of a repeated answer.
    pub(super) fn hear(&mut self, msn: u32) {
        if self.advance(msn) <= MSN_MASK >> 1 {
            self.msn = msn & MSN_MASK;
        }
    }

    /// The responder can have reached `msn`: since it told the last one it has completed no more
    /// messages than there are packets in flight.
    pub(super) fn is_plausible(&self, msn: u32) -> bool {
        self.advance(msn) <= self.sent.ahead_of(self.una)
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
        let exponent = match context.settings.timeout {
            0 => LONGEST_WAIT,
            exponent => exponent.min(LONGEST_WAIT),
        };
        self.challenge = Some(Challenge {
            psn,
            status,
            until: now.after(ack_timeout(exponent)),
        });
        // Where the cursor is elsewhere, or the newest packet wants an answer of its own, answers
        // come without a question.
        if let Some((newest, _)) = self.newest().filter(|_| !self.retry.waits()) {
            self.cursor = newest;
            self.probes = true;
        }
    }

    /// Forgets the challenge if the peer has acknowledged its PSN.
    pub(super) fn settle_challenge(&mut self) {
        let acked = self.acked;
        self.challenge = self
            .challenge
            .filter(|challenge| !challenge.psn.before(acked));
    }

    /// Fails the request that the challenged NAK refused. The peer has carried out the requests before it.
    pub(super) fn believe<H: Host>(
        &mut self,
        challenge: Challenge,
        now: Instant,
        context: &Context,
        host: &mut H,
    ) -> Outcome {
        self.challenge = None;
        self.vouch(challenge.psn, now, context, host);
        self.fail_at(challenge.psn, challenge.status, host)
    }
}
