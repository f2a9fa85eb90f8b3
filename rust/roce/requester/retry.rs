// SPDX-License-Identifier: GPL-2.0

//! Timers, retry counts and the limit of packets in flight.

use core::mem;

use super::rto::Rto;
use super::wqe::READ_SPAN;
use crate::psn::Psn;
use crate::qp::Settings;
use crate::time::{Duration, Instant};
use crate::wire::aeth::rnr_delay;

/// Upper bound of the limit of packets in flight with payload.
const MOST_IN_FLIGHT: u32 = 512;
/// That limit of a new connection. It grows by one per arrived packet until a packet is lost (slow
/// start, RFC 5681).
const FIRST_IN_FLIGHT: u32 = 64;
/// Lower bound of that limit, except after an RTO.
const LEAST_IN_FLIGHT: u32 = 4;
/// Number of packets in queues of the network up to which a loss is no sign of congestion.
const MOST_QUEUED: u32 = 8;
/// Maximum number of packets of one acknowledgment that raise the limit. So an acknowledgment of
/// many packets doesn't cause as many packets to be sent at once (RFC 3465).
const MOST_COUNTED: u32 = 16;
/// Number of packets that may be sent at once after a gap was filled.
const FEW_AT_ONCE: u32 = 16;
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
    /// An end of the acknowledgment timer since the last progress was excused.
    is_excused: bool,
    /// RNR retries since the last progress.
    rnr_spent: u8,
    /// RNR NAKs since the last progress that may be forged.
    unproven: u8,
    /// Limit of packets in flight. Lowered by losses, halved by each RNR wait, one after an RTO,
    /// increased by progress.
    limit: u32,
    /// The limit grows by one per arrived packet below this threshold, else by one per [`GROWTH`].
    threshold: u32,
    /// Number of packets that arrived since the limit last grew, below [`GROWTH`].
    arrived: u32,
    /// A second limit of packets in flight after a gap was filled, so that few packets are sent at
    /// once. It grows by one per arrived packet, and ends when it reaches `limit`.
    burst: Option<u32>,
    /// The flight of packets whose loss last lowered the limit.
    flight: Option<Flight>,
    /// Retransmission timeout.
    rto: Rto,
    /// State before the oldest packet was sent again after an RTO, until it is acknowledged.
    before_rto: Option<BeforeRto>,
}

/// The packets that were in flight when the loss of one of them was found. Their losses are a sign
/// of the same congestion.
#[derive(Clone, Copy, Debug)]
struct Flight {
    /// One past the newest packet.
    sent: Psn,
    /// Limit of packets in flight before.
    limit: u32,
    /// Number of lost packets.
    lost: u32,
    /// One past the newest of them.
    past_lost: Psn,
}

/// State before the oldest packet was sent again after an RTO.
#[derive(Clone, Copy, Debug)]
struct BeforeRto {
    /// The oldest packet.
    oldest: Psn,
    /// One past the newest PSN that was sent.
    sent: Psn,
    /// Limit of packets in flight.
    limit: u32,
    /// No sent packet was to be sent again, and no READ, atomic or similar request was in flight.
    may_skip: bool,
}

/// Result of an RTO, known once the oldest packet is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RtoResult {
    /// Only the packet that was sent again is acknowledged. It was probably lost, and the peer has
    /// dropped the packets after it. A peer that acknowledges packet by packet looks the same.
    Loss,
    /// Later packets are acknowledged, too. So the peer was slow, or its response was lost, or it
    /// has kept the later packets. With `may_skip` no packet need be sent again.
    Spurious { may_skip: bool },
}

/// Extent of a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// Later packets arrived. [`Retry::note_losses`] has lowered the limit of packets in flight.
    Known,
    /// The number is not known.
    Unknown,
}

/// Action that an expired timer requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    /// Resend: the packets in flight are lost.
    Lost,
    /// Resend the oldest packet in flight: the RTO has ended.
    Rto,
    /// Send again: the wait that the peer requested is over.
    Resume,
}

impl Retry {
    pub(super) fn new() -> Self {
        Self {
            timer: Timer::Off,
            spent: 0,
            rnr_spent: 0,
            is_excused: false,
            unproven: 0,
            limit: FIRST_IN_FLIGHT,
            threshold: MOST_IN_FLIGHT,
            arrived: 0,
            burst: None,
            flight: None,
            rto: Rto::default(),
            before_rto: None,
        }
    }

    /// Returns the limit of packets with payload in flight.
    #[inline]
    pub(super) fn limit(&self) -> u32 {
        self.burst.map_or(self.limit, |burst| burst.min(self.limit))
    }

    /// Raises the limit of packets in flight as slow start would.
    #[cfg(test)]
    pub(super) fn end_slow_start(&mut self) {
        self.limit = MOST_IN_FLIGHT;
        self.threshold = LEAST_IN_FLIGHT;
    }

    /// Returns the limit of packets in flight without that of `burst`.
    #[cfg(test)]
    pub(super) fn limit_after_recovery(&self) -> u32 {
        self.limit
    }

    /// Returns the largest number of packets that the requests of a READ ask for if it starts now,
    /// a power of two. It is half of the limit at most, because two READ requests may always be in
    /// flight. During slow start the threshold counts. After an RTO the former limit counts until
    /// the oldest packet is acknowledged.
    #[inline]
    pub(super) fn read_span(&self) -> u32 {
        let limit = self.before_rto.map_or(self.limit, |before| before.limit);
        let most = (limit.max(self.threshold) >> 1).clamp(1, READ_SPAN);
        1u32.wrapping_shl(most.checked_ilog2().unwrap_or(0))
    }

    /// Returns the maximum number of packets from one acknowledgment request to the next. It is a
    /// quarter of the limit at most, so that a lost acknowledgment is noticed soon.
    #[inline]
    pub(super) fn ask_every(&self) -> u32 {
        (self.limit() >> 2).min(ASK_EVERY)
    }

    /// Returns the end of the timer, or `None` if it is off.
    #[inline]
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.timer {
            Timer::Off => None,
            Timer::Ack(at) => Some(self.rto.deadline().map_or(at, |rto| rto.min(at))),
            Timer::Rnr(at, _) => Some(at),
        }
    }

    /// Returns the end of the timer without the RTO.
    #[cfg(test)]
    pub(super) fn end_of_timer(&self) -> Option<Instant> {
        match self.timer {
            Timer::Off => None,
            Timer::Ack(at) | Timer::Rnr(at, _) => Some(at),
        }
    }

    /// Returns the action that the timer requires at `now`.
    pub(super) fn due(&self, now: Instant) -> Due {
        match self.timer {
            Timer::Ack(at) if now >= at => Due::Lost,
            Timer::Ack(_) if self.rto.deadline().is_some_and(|at| now >= at) => Due::Rto,
            Timer::Rnr(at, _) if now >= at => Due::Resume,
            _ => Due::Nothing,
        }
    }

    /// Returns whether the requester waits because of an RNR NAK.
    pub(super) fn waits(&self) -> bool {
        matches!(self.timer, Timer::Rnr(..))
    }

    /// Starts the acknowledgment timer for a packet that is sent, unless a timer runs.
    #[inline]
    pub(super) fn sent(&mut self, now: Instant, settings: &Settings) {
        if self.timer == Timer::Off {
            self.restart(now, settings);
        }
    }

    /// Starts the RTO for a packet that is sent and requests a response, unless it runs. `fresh`
    /// says that the packet was not sent before. The RTO is only used while the acknowledgment
    /// timer runs.
    #[inline]
    pub(super) fn await_response(&mut self, psn: Psn, fresh: bool, now: Instant) {
        if matches!(self.timer, Timer::Ack(_)) {
            self.rto.await_response(psn, fresh, now);
        }
    }

    /// Stops the RTO until the next packet that requests a response is sent.
    pub(super) fn stop_rto(&mut self) {
        self.rto.stop();
    }

    /// Records that the packets from `psn` on were not sent, so that no response to them is timed.
    pub(super) fn forget_timed_from(&mut self, psn: Psn) {
        self.rto.forget_timed_from(psn);
    }

    /// Records that READ responses which were asked for again are late.
    pub(super) fn note_late(&mut self) {
        self.rto.note_late();
    }

    /// Returns whether a response to a packet that was sent at `sent` would have arrived by now.
    pub(super) fn is_past_round_trip(&self, sent: Instant, now: Instant) -> bool {
        self.rto.is_past_round_trip(sent, now)
    }

    /// Ends the RTO: only the packet `oldest` is sent again until it is acknowledged. `sent` is one
    /// past the newest PSN that was sent. `may_skip` is for [`RtoResult::Spurious`]. Of several
    /// RTOs without progress between them, the values of the first one count.
    ///
    /// If the packet was lost, the limit of packets in flight then grows from one packet to half of
    /// its former value, by one per arrived packet (slow start, RFC 5681 §3.1).
    pub(super) fn end_rto(&mut self, oldest: Psn, sent: Psn, may_skip: bool) {
        self.rto.end();
        let limit = self.limit;
        self.before_rto.get_or_insert(BeforeRto {
            oldest,
            sent,
            limit,
            may_skip,
        });
        self.limit = 1;
        self.burst = None;
    }

    /// Ends the RTO of READ responses, which are asked for again.
    pub(super) fn end_rto_of_responses(&mut self) {
        self.rto.end_of_responses();
    }

    /// Takes the only excuse for an end of the acknowledgment timer since the last progress.
    /// Returns `false` if it is taken.
    pub(super) fn excuse(&mut self) -> bool {
        !mem::replace(&mut self.is_excused, true)
    }

    /// Returns whether only the oldest packet may be sent, because an RTO has ended and the packet
    /// is not acknowledged yet.
    pub(super) fn sends_oldest(&self) -> bool {
        self.before_rto.is_some()
    }

    /// Returns the result of the RTO, if one has ended and this is the first progress since, up to
    /// `una`.
    fn end_recovery(&mut self, una: Psn) -> Option<RtoResult> {
        let before = self.before_rto.take()?;
        if una == before.sent || una.ahead_of(before.oldest) > 1 {
            self.limit = before.limit;
            return Some(RtoResult::Spurious {
                may_skip: before.may_skip,
            });
        }
        self.threshold = (before.limit >> 1).max(LEAST_IN_FLIGHT);
        Some(RtoResult::Loss)
    }

    /// Ends the wait after an RNR NAK, whose packet is sent again.
    pub(super) fn resume(&mut self, now: Instant, settings: &Settings) {
        self.rto.stop();
        self.restart(now, settings);
    }

    /// Restarts the acknowledgment timer.
    pub(super) fn restart(&mut self, now: Instant, settings: &Settings) {
        self.timer = match settings.timeout {
            0 => Timer::Off,
            exponent => Timer::Ack(now.after(ack_timeout(exponent))),
        };
    }

    /// Stops the timers, because no packet is in flight any more.
    pub(super) fn stop(&mut self) {
        self.timer = Timer::Off;
        self.rto.stop();
    }

    /// Records that the peer has finished `packets` more packets, up to `una`. `awaits` says
    /// whether a packet in flight has requested a response.
    ///
    /// All retries are available again, and the timers restart for the packets that remain in
    /// flight. A wait after an RNR NAK continues, unless the refused packet is finished.
    ///
    /// Returns the result of the RTO, if one has ended since the last progress.
    #[inline]
    pub(super) fn progress(
        &mut self,
        una: Psn,
        packets: u32,
        awaits: bool,
        now: Instant,
        settings: &Settings,
    ) -> Option<RtoResult> {
        self.spent = 0;
        self.is_excused = false;
        self.rnr_spent = 0;
        self.unproven = 0;
        let result = self.end_recovery(una);
        self.flight = self.flight.filter(|flight| una.before(flight.sent));
        if self.limit < MOST_IN_FLIGHT || self.burst.is_some() {
            self.raise_limits(packets.min(MOST_COUNTED));
        }
        let waits = matches!(self.timer, Timer::Rnr(_, psn) if !psn.before(una));
        if !waits {
            self.restart(now, settings);
        }
        self.rto.progress(una, awaits && !waits, now);
        result
    }

    /// Lets few packets be sent at once after a gap was filled, while `in_flight` packets are in
    /// flight.
    pub(super) fn limit_burst(&mut self, in_flight: u32) {
        self.burst = Some(in_flight.saturating_add(FEW_AT_ONCE));
    }

    /// Raises the limit of packets in flight by one per arrived packet up to the threshold, and by
    /// one per [`GROWTH`] arrived packets beyond it.
    fn raise_limits(&mut self, packets: u32) {
        let burst = self.burst.map(|burst| burst.saturating_add(packets));
        self.burst = burst.filter(|burst| *burst < self.limit);
        let quick = packets.min(self.threshold.saturating_sub(self.limit));
        self.limit = self.limit.saturating_add(quick);
        let arrived = self.arrived.saturating_add(packets.saturating_sub(quick));
        self.limit = self
            .limit
            .saturating_add(arrived / GROWTH)
            .min(MOST_IN_FLIGHT);
        self.arrived = arrived % GROWTH;
    }

    /// Takes a transport retry. Returns `false` if none is left.
    pub(super) fn spend(&mut self, loss: Loss, settings: &Settings) -> bool {
        if self.spent >= settings.retry_cnt {
            return false;
        }
        self.spent = self.spent.saturating_add(1);
        match loss {
            Loss::Known => self.rto.suspend(),
            Loss::Unknown => {
                self.lower_limit();
                self.rto.end();
            }
        }
        true
    }

    /// Lowers the limit of packets in flight after `count` packets from `psn` on were lost. The
    /// packets from `una` up to `sent` are in flight. Packets that were noted before don't count.
    ///
    /// If at most a quarter of a flight is lost, the network has room for as many packets as are in
    /// flight without those that wait in queues, as the round-trip time shows (after TCP Veno, IEEE
    /// JSAC 21.2). If more are lost, the limit falls by a quarter.
    pub(super) fn note_losses(&mut self, psn: Psn, count: u32, una: Psn, sent: Psn) {
        let known = self.flight.filter(|flight| una.before(flight.sent));
        if known.is_some_and(|flight| psn.before(flight.past_lost)) {
            return;
        }
        let mut flight = known.unwrap_or(Flight {
            sent,
            limit: self.limit,
            lost: 0,
            past_lost: psn,
        });
        let quarter = flight.limit >> 2;
        let were_few = known.is_some_and(|flight| flight.lost <= quarter);
        flight.lost = flight.lost.saturating_add(count);
        flight.past_lost = psn.plus(count);
        self.flight = Some(flight);
        let are_few = flight.lost <= quarter;
        let less = match self.rto.queued(flight.limit) {
            Some(queued) if are_few => queued
                .saturating_sub(MOST_QUEUED)
                .saturating_add(flight.limit >> 6)
                .min(quarter),
            _ => quarter,
        };
        if known.is_none() || were_few && !are_few {
            let lowered = flight.limit.saturating_sub(less.max(1));
            self.limit = self.limit.min(lowered.max(LEAST_IN_FLIGHT));
            self.threshold = self.limit;
        }
    }

    /// Halves the limit of packets in flight.
    fn lower_limit(&mut self) {
        let limit = self.before_rto.take().map_or(self.limit, |it| it.limit);
        self.limit = (limit >> 1).max(LEAST_IN_FLIGHT);
        self.threshold = self.limit;
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
        self.rto.suspend();
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
