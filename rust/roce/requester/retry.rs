// SPDX-License-Identifier: GPL-2.0

//! Timers, retry counts and the limit of packets in flight.

use crate::psn::Psn;
use crate::qp::Settings;
use crate::time::{Duration, Instant};
use crate::wire::aeth::rnr_delay;

/// Upper bound of the limit of packets in flight with payload.
const MOST_IN_FLIGHT: u32 = 512;
/// Lower bound of that limit, on however lossy a path.
const LEAST_IN_FLIGHT: u32 = 4;
/// Number of arrived packets for which the limit grows by one after a loss.
const GROWTH: u32 = 16;
/// Maximum number of packets from one acknowledgment request to the next.
pub(super) const ASK_EVERY: u32 = 60;
/// Minimum duration of the acknowledgment timer in nanoseconds, if four times the Local ACK Timeout
/// is as long. It is the timeout of exponent 10.
const LEAST_TIMEOUT: u64 = 4_096 << 10;
/// The RNR retry count that means "without limit" (IBTA 1.x §9.7.5.2.8).
const RNR_FOREVER: u8 = 7;
/// Number of RNR NAKs with an implausible MSN that the requester accepts without progress. Further
/// ones count as the peer's own, and the request fails. A forger would have to hit a PSN in flight
/// each time, before the peer's own response arrives.
const MOST_UNPROVEN: u8 = 64;

/// The timer of a requester, which has one of two purposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timer {
    Off,
    /// Packets are in flight. They count as lost if no response arrives until this instant.
    Ack(Instant),
    /// The peer had no receive buffer for this packet. Nothing is sent until this instant.
    Rnr(Instant, Psn),
}

/// The retry state of a requester.
#[derive(Debug)]
pub(super) struct Retry {
    timer: Timer,
    /// Transport retries since the last progress or RNR NAK.
    spent: u8,
    /// RNR retries since the last progress.
    rnr_spent: u8,
    /// RNR NAKs since the last progress that may be forged.
    unproven: u8,
    /// Limit of packets in flight. Halved by each loss and each RNR wait, increased by progress.
    limit: u32,
    /// Number of packets that arrived since the limit last grew, below [`GROWTH`].
    arrived: u32,
}

/// Action that an expired timer requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    /// Resend: the packets in flight are lost.
    Lost,
    /// Send again: the wait that the peer requested is over.
    Resume,
}

impl Retry {
    pub(super) fn new() -> Self {
        Self {
            timer: Timer::Off,
            spent: 0,
            rnr_spent: 0,
            unproven: 0,
            limit: MOST_IN_FLIGHT,
            arrived: 0,
        }
    }

    /// Returns the limit of packets with payload in flight.
    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns the maximum number of packets from one acknowledgment request to the next. It is a
    /// quarter of the limit at most, so that a lost acknowledgment is noticed soon.
    pub(super) fn ask_every(&self) -> u32 {
        (self.limit >> 2).min(ASK_EVERY)
    }

    /// Returns the end of the timer, or `None` if it is off.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.timer {
            Timer::Off => None,
            Timer::Ack(at) | Timer::Rnr(at, _) => Some(at),
        }
    }

    /// Returns the action that the timer requires at `now`.
    pub(super) fn due(&self, now: Instant) -> Due {
        match self.timer {
            Timer::Ack(at) if now >= at => Due::Lost,
            Timer::Rnr(at, _) if now >= at => Due::Resume,
            _ => Due::Nothing,
        }
    }

    /// Returns whether the requester waits because of an RNR NAK.
    pub(super) fn waits(&self) -> bool {
        matches!(self.timer, Timer::Rnr(..))
    }

    /// Starts the acknowledgment timer for a packet that is sent, unless a timer runs.
    pub(super) fn sent(&mut self, now: Instant, settings: &Settings) {
        if self.timer == Timer::Off {
            self.restart(now, settings);
        }
    }

    /// Restarts the acknowledgment timer.
    pub(super) fn restart(&mut self, now: Instant, settings: &Settings) {
        self.timer = match settings.timeout {
            0 => Timer::Off,
            exponent => Timer::Ack(now.after(ack_timeout(exponent))),
        };
    }

    /// Stops the timer, because no packet is in flight any more.
    pub(super) fn stop(&mut self) {
        self.timer = Timer::Off;
    }

    /// Records that the peer has finished `packets` more packets, up to `una`.
    ///
    /// All retries are available again, and the timer restarts for the packets that remain in
    /// flight. A wait after an RNR NAK continues, unless the refused packet is finished.
    pub(super) fn progress(&mut self, una: Psn, packets: u32, now: Instant, settings: &Settings) {
        self.spent = 0;
        self.rnr_spent = 0;
        self.unproven = 0;
        if self.limit < MOST_IN_FLIGHT {
            self.raise_limit(packets);
        }
        if !matches!(self.timer, Timer::Rnr(_, psn) if !psn.before(una)) {
            self.restart(now, settings);
        }
    }

    /// Raises the limit of packets in flight by one per [`GROWTH`] arrived packets.
    fn raise_limit(&mut self, packets: u32) {
        let arrived = self.arrived.saturating_add(packets);
        self.limit = self
            .limit
            .saturating_add(arrived / GROWTH)
            .min(MOST_IN_FLIGHT);
        self.arrived = arrived % GROWTH;
    }

    /// Takes a transport retry. Returns `false` if none is left.
    pub(super) fn spend(&mut self, settings: &Settings) -> bool {
        if self.spent >= settings.retry_cnt {
            return false;
        }
        self.spent = self.spent.saturating_add(1);
        self.lower_limit();
        true
    }

    /// Halves the limit of packets in flight.
    fn lower_limit(&mut self) {
        self.limit = (self.limit >> 1).max(LEAST_IN_FLIGHT);
    }

    /// Takes an RNR retry. Returns `false` if none is left. An RNR NAK that isn't `proven` may be
    /// forged, and takes one of [`MOST_UNPROVEN`] instead.
    pub(super) fn spend_rnr(&mut self, proven: bool, settings: &Settings) -> bool {
        if settings.rnr_retry == RNR_FOREVER {
            return true;
        }
        let (spent, most) = match proven {
            true => (&mut self.rnr_spent, settings.rnr_retry),
            false => (&mut self.unproven, MOST_UNPROVEN),
        };
        if *spent >= most {
            return false;
        }
        *spent = spent.saturating_add(1);
        true
    }

    /// Starts the wait that the peer requested, because it has no receive buffer for `psn`.
    ///
    /// An RNR NAK is a response, so all transport retries are available again: `ibv_modify_qp(3)`
    /// counts those for a peer that doesn't respond. The peer drops all packets after `psn`, so
    /// fewer packets are allowed in flight.
    pub(super) fn wait(&mut self, psn: Psn, encoded: u8, now: Instant) {
        self.spent = 0;
        self.lower_limit();
        self.timer = Timer::Rnr(now.after(rnr_delay(encoded)), psn);
    }
}

/// Returns the time after which an acknowledgment counts as lost. The Local ACK Timeout is T
/// = 4.096 µs · 2ᵗ. The requester detects the loss after no less than T and no more than 4 T
/// (IBTA 1.x §9.7.6.1.3).
///
/// Short timeouts use that freedom up to [`LEAST_TIMEOUT`]: the peer's machine may not schedule it
/// for some milliseconds, and all retries of a shorter timeout would be spent meanwhile.
pub(super) fn ack_timeout(exponent: u8) -> Duration {
    let least = 4_096u64.wrapping_shl(u32::from(exponent & 31));
    let most = least.saturating_mul(4);
    Duration(least.max(most.min(LEAST_TIMEOUT)))
}
