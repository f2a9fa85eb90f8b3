// SPDX-License-Identifier: GPL-2.0

//! When to send again, how often, and how much to have in flight meanwhile.

use crate::psn::Psn;
use crate::qp::Settings;
use crate::time::{Duration, Instant};
use crate::wire::aeth::rnr_delay;

/// The most packets in flight that carry payload.
const MOST_IN_FLIGHT: u32 = 512;
/// The fewest, however lossy the path.
const LEAST_IN_FLIGHT: u32 = 4;
/// After a loss, one more packet may be in flight for each so many that arrive.
const GROWTH: u32 = 16;
/// After how many packets an acknowledgement is asked for at the latest.
pub(super) const ASK_EVERY: u32 = 32;
/// Nanoseconds that a timer runs at least, if its timeout allows it: exponent 10.
const LEAST_TIMEOUT: u64 = 4_096 << 10;
/// This count of RNR retries stands for "for ever" (IBTA 1.x §9.7.5.2.8).
const RNR_FOREVER: u8 = 7;
/// After so many RNR NAKs without progress whose MSN is impossible, it is the peer that sends them: a forger must meet a PSN in
/// flight each time, before the peer's own answer.
const MOST_UNPROVEN: u8 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timer {
    Off,
    /// Packets are in flight: they are lost if nothing was heard by then.
    Ack(Instant),
    /// The peer had no buffer for this packet: nothing is sent until then.
    Rnr(Instant, Psn),
}

/// The retry state of a requester.
#[derive(Debug)]
pub(super) struct Retry {
    timer: Timer,
    /// Transport retries since the last progress, or since the peer last asked to wait.
    spent: u8,
    /// RNR retries since the last progress.
    rnr_spent: u8,
    /// RNR NAKs since the last progress that may be forged.
    unproven: u8,
    /// How many packets may be in flight: halved by each loss and each wait, grown by progress.
    limit: u32,
    /// Packets that arrived since the limit last grew, below [`GROWTH`].
    arrived: u32,
}

/// What a timer asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    /// The packets in flight are lost.
    Lost,
    /// The wait that the peer asked for is over.
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

    /// How many packets with payload may be in flight.
    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// After how many packets an acknowledgement is asked for at the latest: several times for what
    /// may be in flight, so that a lost one isn't missed for long.
    pub(super) fn ask_every(&self) -> u32 {
        (self.limit >> 2).min(ASK_EVERY)
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.timer {
            Timer::Off => None,
            Timer::Ack(at) | Timer::Rnr(at, _) => Some(at),
        }
    }

    pub(super) fn due(&self, now: Instant) -> Due {
        match self.timer {
            Timer::Ack(at) if now >= at => Due::Lost,
            Timer::Rnr(at, _) if now >= at => Due::Resume,
            _ => Due::Nothing,
        }
    }

    /// The peer asked to wait.
    pub(super) fn waits(&self) -> bool {
        matches!(self.timer, Timer::Rnr(..))
    }

    /// A packet goes out: there must be a timer.
    pub(super) fn sent(&mut self, now: Instant, settings: &Settings) {
        if self.timer == Timer::Off {
            self.restart(now, settings);
        }
    }

    /// Starts the acknowledgement timer anew.
    pub(super) fn restart(&mut self, now: Instant, settings: &Settings) {
        self.timer = match settings.timeout {
            0 => Timer::Off,
            exponent => Timer::Ack(now.after(ack_timeout(exponent))),
        };
    }

    /// Nothing is in flight any more.
    pub(super) fn stop(&mut self) {
        self.timer = Timer::Off;
    }

    /// The peer finished `packets` more packets, up to `una`: all retries are allowed again, and
    /// what remains in flight has its time from now. A wait for a buffer goes on.
    pub(super) fn progress(&mut self, una: Psn, packets: u32, now: Instant, settings: &Settings) {
        self.spent = 0;
        self.rnr_spent = 0;
        self.unproven = 0;
        if self.limit < MOST_IN_FLIGHT {
            self.widen(packets);
        }
        if !matches!(self.timer, Timer::Rnr(_, psn) if !psn.before(una)) {
            self.restart(now, settings);
        }
    }

    fn widen(&mut self, packets: u32) {
        let arrived = self.arrived.saturating_add(packets);
        self.limit = self
            .limit
            .saturating_add(arrived / GROWTH)
            .min(MOST_IN_FLIGHT);
        self.arrived = arrived % GROWTH;
    }

    /// Takes a transport retry; `false` if there is none left.
    pub(super) fn spend(&mut self, settings: &Settings) -> bool {
        if self.spent >= settings.retry_cnt {
            return false;
        }
        self.spent = self.spent.saturating_add(1);
        self.narrow();
        true
    }

    fn narrow(&mut self) {
        self.limit = (self.limit >> 1).max(LEAST_IN_FLIGHT);
    }

    /// Takes an RNR retry; `false` if there is none left. An RNR NAK that isn't `proven` may be forged, and takes one of
    /// [`MOST_UNPROVEN`].
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

    /// The peer has no buffer for `psn`: waits as it asked.
    ///
    /// This is an answer, so that transport retries are allowed again: `ibv_modify_qp(3)` counts those for a peer
    /// that doesn't. And the peer drops whatever follows `psn`: the less of it the better.
    pub(super) fn wait(&mut self, psn: Psn, encoded: u8, now: Instant) {
        self.spent = 0;
        self.narrow();
        self.timer = Timer::Rnr(now.after(rnr_delay(encoded)), psn);
    }
}

/// The time after which an acknowledgement counts as lost. The Local ACK Timeout is T = 4.096 µs · 2ᵗ;
/// the requester detects the loss after no less than T and no more than 4 T (IBTA 1.x §9.7.6.1.3).
///
/// Short timeouts use that latitude up to [`LEAST_TIMEOUT`]: the host of a peer may not run it for
/// some milliseconds, and all retries of a shorter one would be spent meanwhile.
pub(super) fn ack_timeout(exponent: u8) -> Duration {
    let least = 4_096u64.wrapping_shl(u32::from(exponent & 31));
    let most = least.saturating_mul(4);
    Duration(least.max(most.min(LEAST_TIMEOUT)))
}
