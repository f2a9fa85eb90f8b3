// SPDX-License-Identifier: GPL-2.0

//! The retransmission timeout (RTO): the time after which the requester sends the oldest packet in
//! flight again, long before the Local ACK Timeout ends.
//!
//! The RDMA connection manager computes Local ACK Timeouts of half a second. Most losses are
//! reported by a NAK within a round trip. No NAK reports the loss of the last packet in flight.
//! Only a responder that keeps early packets also reports the loss of a packet that is sent again,
//! and repeats a NAK. Otherwise the connection would pause for the Local ACK Timeout without the
//! RTO.
//!
//! The RTO follows the measured round-trip time (RFC 6298). An RTO spends no retry: the Local ACK
//! Timeout and the retry count decide when the requester gives up, as without the RTO.

use crate::psn::Psn;
use crate::time::{Duration, Instant};

/// Minimum difference between the RTO and the smoothed round-trip time, in nanoseconds. The peer's
/// machine may run other work for as long before it responds.
const LEAST_MARGIN: u64 = 1_000_000;
/// RTO before the first measurement, in nanoseconds.
const INITIAL: u64 = 64_000_000;
/// Each measurement lets the shortest round-trip time grow by 2⁻ᵃ of itself. This is a.
const AGING: u32 = 8;
/// Maximum number of times that the RTO is doubled.
const MOST_DOUBLINGS: u32 = 16;

/// The round-trip time of a connection, and the RTO that follows from it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rto {
    /// Smoothed round-trip time and its mean deviation, in nanoseconds. `None` before the first
    /// measurement.
    round_trip: Option<(u64, u64)>,
    /// Shortest round-trip time, in nanoseconds. It grows slowly, in case the path has changed.
    shortest: u64,
    /// The packet whose response is timed, and the time at which the packet was sent.
    timed: Option<(Psn, Instant)>,
    /// End of the RTO. `None` if no response is awaited.
    deadline: Option<Instant>,
    /// Number of RTOs that have ended, and of losses of unknown extent, since the last measurement.
    /// Each doubles the RTO. So the RTO exceeds a round-trip time that has grown, and that time can
    /// be measured. RTOs of READ responses that were asked for again do not count.
    ended: u32,
    /// Number of times since the last progress that READ responses which are asked for again did
    /// not come. Each doubles the RTO, too. These responses are not measured, so a number that
    /// lasted would grow with each loss.
    responses_ended: u32,
    /// Number of times since the last progress that READ responses were late. Each doubles the time
    /// after which they are late again.
    late: u32,
}

impl Rto {
    /// Returns the end of the RTO, if it runs.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Starts the RTO, unless it runs, for a packet that is sent and requests a response. `fresh`
    /// says that the packet was not sent before. Then its response may be timed: the response to a
    /// packet that was sent twice may answer either copy (Karn's algorithm).
    pub(super) fn await_response(&mut self, psn: Psn, fresh: bool, now: Instant) {
        if fresh && self.timed.is_none() {
            self.timed = Some((psn, now));
        }
        if self.deadline.is_none() {
            self.start(now);
        }
    }

    /// Starts the RTO anew.
    fn start(&mut self, now: Instant) {
        self.deadline = Some(now.after(self.duration()));
    }

    /// Stops the RTO.
    pub(super) fn stop(&mut self) {
        self.deadline = None;
    }

    /// Times no response to the packets from `psn` on.
    pub(super) fn forget_timed_from(&mut self, psn: Psn) {
        self.timed = self.timed.filter(|(timed, _)| timed.before(psn));
    }

    /// Stops the RTO, and times no response of a packet that was sent, because packets are sent
    /// again.
    pub(super) fn suspend(&mut self) {
        self.timed = None;
        self.stop();
    }

    /// Records that the RTO has ended without progress, or that packets are sent again because of a
    /// loss of unknown extent.
    pub(super) fn end(&mut self) {
        self.ended = self.ended.saturating_add(1);
        self.suspend();
    }

    /// Records that the RTO of READ responses that are asked for again has ended without progress.
    pub(super) fn end_of_responses(&mut self) {
        self.responses_ended = self.responses_ended.saturating_add(1);
        self.suspend();
    }

    /// Records that READ responses which were asked for again are late, and that they are asked for
    /// once more.
    pub(super) fn note_late(&mut self) {
        self.late = self.late.saturating_add(1);
    }

    /// Records that the peer has finished all packets before `una`. `awaits` says whether a
    /// response to a later packet is awaited.
    pub(super) fn progress(&mut self, una: Psn, awaits: bool, now: Instant) {
        if let Some((_, since)) = self.timed.filter(|(psn, _)| psn.before(una)) {
            self.measure(now.since(since));
            self.timed = None;
            self.ended = 0;
        }
        self.responses_ended = 0;
        self.late = 0;
        match awaits {
            true => self.start(now),
            false => self.stop(),
        }
    }

    /// Adds a measured round-trip time to the average.
    fn measure(&mut self, time: Duration) {
        let Duration(time) = time;
        let aged = self.shortest.saturating_add(self.shortest >> AGING);
        self.shortest = match self.round_trip {
            None => time,
            Some(_) => time.min(aged),
        };
        self.round_trip = Some(match self.round_trip {
            None => (time, time >> 1),
            Some((smoothed, deviation)) => {
                let error = smoothed.abs_diff(time);
                (average(smoothed, time, 3), average(deviation, error, 2))
            }
        });
    }

    /// Returns how many of `in_flight` packets wait in queues of the network: the share of the
    /// round-trip time that exceeds the shortest one. Returns `None` before the first measurement.
    pub(super) fn queued(&self, in_flight: u32) -> Option<u32> {
        let (smoothed, _) = self.round_trip?;
        let waiting = smoothed.saturating_sub(self.shortest);
        let queued = u64::from(in_flight).saturating_mul(waiting);
        u32::try_from(queued.checked_div(smoothed).unwrap_or(0)).ok()
    }

    /// Returns whether more than a round-trip time has passed since `sent`, by twice its deviation.
    /// Each late response since the last progress doubles this time.
    pub(super) fn is_past_round_trip(&self, sent: Instant, now: Instant) -> bool {
        let Duration(passed) = now.since(sent);
        self.round_trip.is_some_and(|(smoothed, deviation)| {
            let usual = smoothed.saturating_add(deviation.saturating_mul(2));
            passed > usual.saturating_mul(factor(self.late))
        })
    }

    /// Returns the duration of an RTO that starts now.
    fn duration(&self) -> Duration {
        let base = match self.round_trip {
            None => INITIAL,
            Some((smoothed, deviation)) => {
                let margin = deviation.saturating_mul(4).max(LEAST_MARGIN);
                smoothed.saturating_add(margin)
            }
        };
        let doublings = self.ended.saturating_add(self.responses_ended);
        Duration(base.saturating_mul(factor(doublings)))
    }
}

/// Returns the factor that so many doublings add up to.
fn factor(doublings: u32) -> u64 {
    1u64.wrapping_shl(doublings.min(MOST_DOUBLINGS))
}

/// Returns the average of `old` and `new`, which has the weight 2⁻ˢ for a `shift` of s.
fn average(old: u64, new: u64, shift: u32) -> u64 {
    let kept = old.saturating_sub(old.wrapping_shr(shift));
    kept.saturating_add(new.wrapping_shr(shift))
}
