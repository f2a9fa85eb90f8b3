// SPDX-License-Identifier: GPL-2.0

//! Whether bursts (`qp/burst.rs`) arrive at the peer of a QP.
//!
//! A path may lose all bursts, for example because a rule of an administrator drops long packets.
//! The network stack doesn't say so. So a QP sends one burst as a probe, and further packets one by
//! one until it knows that the probe arrived. If the probe is lost, the packets behind it reveal
//! that to the peer within a round trip.

use kernel::prelude::*;
use roce::psn::Psn;

/// Number of packets that a QP sends one by one after its first loss of a probe.
const FIRST_PAUSE: u32 = 1 << 8;
/// Maximum number of packets that a QP sends one by one after a loss of a probe.
const LONGEST_PAUSE: u32 = 1 << 20;
/// Number of packets that a QP sends one by one if its network device takes no bursts. The device
/// may take bursts later.
const UNFIT_PAUSE: u32 = 1 << 10;
/// Number of packets that a QP sends one by one after a probe of READ responses, which nobody
/// acknowledges. If the probe is lost, the peer repeats its request before it has received them.
const PROVING_PACKETS: u32 = 1 << 9;
/// Number of packets in bursts without a loss, in relation to the last pause, after which the pause
/// is halved.
const PROVING_PAUSES: u32 = 1 << 2;

/// Knowledge about the path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Knowledge {
    /// It isn't known whether bursts arrive. The next burst is a probe.
    #[default]
    None,
    /// A probe was sent. It ends before this PSN, if it consists of requests, and has arrived when
    /// the peer acknowledges them.
    ProbedBefore(Psn),
    /// A probe of READ responses was sent. It has arrived when more than this many packets were
    /// sent after it, and the peer has repeated no request meanwhile.
    ProbedByResponses(u32),
    /// A probe has arrived, and no packet was lost since. This many packets must be sent in bursts
    /// before the pause is halved.
    BurstsArrive(u32),
}

/// State of the path from a QP to its peer.
#[derive(Default)]
pub(super) struct BurstPath {
    knowledge: Knowledge,
    /// Number of packets that are still to be sent one by one.
    singles: u32,
    /// Number of packets that were sent one by one after the last loss, halved after each proof
    /// that bursts arrive.
    pause: u32,
}

impl BurstPath {
    /// Returns whether the next packets may be sent as a burst. `has_acknowledged` tells whether
    /// the peer has acknowledged all requests before a PSN.
    #[inline]
    pub(super) fn admits(&mut self, has_acknowledged: impl FnOnce(Psn) -> bool) -> bool {
        if self.singles != 0 {
            return false;
        }
        match self.knowledge {
            Knowledge::None | Knowledge::BurstsArrive(_) => true,
            Knowledge::ProbedBefore(past) if has_acknowledged(past) => {
                self.learn_that_bursts_arrive();
                true
            }
            Knowledge::ProbedBefore(_) | Knowledge::ProbedByResponses(_) => false,
        }
    }

    fn learn_that_bursts_arrive(&mut self) {
        self.knowledge = Knowledge::BurstsArrive(self.pause.saturating_mul(PROVING_PAUSES));
    }

    /// Returns whether the next burst may contain the end of a message. If no packet follows the
    /// end, nothing reveals a loss of the burst before a timeout. So neither a probe contains the
    /// end, nor a burst soon after a loss.
    #[inline]
    pub(super) fn admits_end(&self) -> bool {
        self.pause == 0 && self.knowledge != Knowledge::None
    }

    /// Records that a burst of `count` packets was passed to the network stack: requests before the
    /// PSN `past`, or READ responses if that is `None`.
    #[inline]
    pub(super) fn note_burst(&mut self, count: u32, past: Option<Psn>) {
        match self.knowledge {
            Knowledge::None => {
                self.knowledge = match past {
                    Some(past) => Knowledge::ProbedBefore(past),
                    None => Knowledge::ProbedByResponses(PROVING_PACKETS),
                };
            }
            Knowledge::BurstsArrive(0) => {}
            Knowledge::BurstsArrive(left) if count < left => {
                self.knowledge = Knowledge::BurstsArrive(left.wrapping_sub(count));
            }
            Knowledge::BurstsArrive(_) => {
                // Less than the first pause is forgotten.
                let half = self.pause / 2;
                self.pause = if half < FIRST_PAUSE { 0 } else { half };
                self.learn_that_bursts_arrive();
            }
            Knowledge::ProbedBefore(_) | Knowledge::ProbedByResponses(_) => {}
        }
    }

    /// Records that a packet was sent alone.
    #[inline]
    pub(super) fn note_single(&mut self) {
        self.singles = self.singles.saturating_sub(1);
        if let Knowledge::ProbedByResponses(left) = self.knowledge {
            match left.checked_sub(1) {
                Some(left) => self.knowledge = Knowledge::ProbedByResponses(left),
                None => self.learn_that_bursts_arrive(),
            }
        }
    }

    /// Records that packets were lost in the network. Each loss doubles the pause: the path may
    /// lose long bursts and let a short probe pass.
    #[cold]
    pub(super) fn note_loss(&mut self) {
        if self.knowledge != Knowledge::None {
            self.note_refusal();
        }
    }

    /// Records that the peer repeated a READ, because responses were lost. This says nothing about
    /// a probe of requests.
    #[cold]
    pub(super) fn note_lost_responses(&mut self) {
        if !matches!(self.knowledge, Knowledge::ProbedBefore(_)) {
            self.note_loss();
        }
    }

    /// Records that this host has dropped a burst.
    #[cold]
    pub(super) fn note_refusal(&mut self) {
        let twice = self.pause.saturating_mul(2);
        self.pause = twice.clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.knowledge = Knowledge::None;
        self.singles = self.pause;
    }

    /// Records that the network device takes no bursts now.
    #[cold]
    pub(super) fn note_unfit(&mut self) {
        self.singles = UNFIT_PAUSE;
    }

    /// Has `count` packets sent one by one, which can't be sent as a burst.
    pub(super) fn send_singly(&mut self, count: u32) {
        self.singles = self.singles.max(count);
    }
}

#[kunit_tests(rrxe_burst_path)]
mod tests {
    use super::*;

    fn psn(number: u32) -> Psn {
        Psn::new(number)
    }

    /// Sends packets one by one until a burst may be sent. Returns their number.
    fn singles(path: &mut BurstPath) -> u32 {
        let mut sent = 0u32;
        while !path.admits(|_| false) {
            path.note_single();
            sent = sent.wrapping_add(1);
        }
        sent
    }

    #[test]
    fn an_acknowledged_probe_admits_bursts() {
        let mut path = BurstPath::default();
        assert!(path.admits(|_| false) && !path.admits_end());
        path.note_burst(15, Some(psn(15)));
        assert!(!path.admits(|past| past != psn(15)));
        assert!(path.admits(|past| past == psn(15)) && path.admits_end());
        path.note_burst(15, Some(psn(30)));
        assert!(path.admits(|_| false));
    }

    #[test]
    fn lost_probes_double_the_pause() {
        let mut path = BurstPath::default();
        for round in 0..14 {
            path.note_burst(15, Some(psn(15)));
            path.note_loss();
            let pause = LONGEST_PAUSE.min(FIRST_PAUSE << round);
            assert_eq!(singles(&mut path), pause);
        }
    }

    #[test]
    fn losses_behind_short_probes_double_the_pause() {
        let mut path = BurstPath::default();
        for round in 0..8 {
            path.note_burst(2, Some(psn(2)));
            assert!(path.admits(|_| true));
            assert_eq!(path.admits_end(), round == 0);
            path.note_burst(15, Some(psn(17)));
            path.note_loss();
            assert_eq!(singles(&mut path), FIRST_PAUSE << round);
        }
    }

    #[test]
    fn packets_that_arrive_in_bursts_halve_the_pause() {
        let mut path = BurstPath::default();
        for _ in 0..3 {
            path.note_burst(15, Some(psn(15)));
            path.note_loss();
        }
        assert_eq!(singles(&mut path), FIRST_PAUSE << 2);
        path.note_burst(15, Some(psn(15)));
        assert!(path.admits(|_| true));
        // The pause is halved once, and the loss doubles it.
        for _ in 0..(FIRST_PAUSE << 2) * PROVING_PAUSES / 16 {
            path.note_burst(16, Some(psn(31)));
        }
        path.note_loss();
        assert_eq!(singles(&mut path), FIRST_PAUSE << 2);
    }

    #[test]
    fn packets_after_a_probe_of_responses_prove_its_arrival() {
        let mut path = BurstPath::default();
        path.note_burst(15, None);
        assert!(singles(&mut path) > PROVING_PACKETS);
        assert!(path.admits_end());
        path.note_loss();
        assert_eq!(singles(&mut path), FIRST_PAUSE);
        path.note_burst(15, None);
        path.note_loss();
        assert_eq!(singles(&mut path), FIRST_PAUSE * 2);
    }

    #[test]
    fn lost_responses_fail_no_probe_of_requests() {
        let mut path = BurstPath::default();
        path.note_burst(15, Some(psn(15)));
        path.note_lost_responses();
        assert!(path.admits(|_| true) && path.admits_end());
        path.note_lost_responses();
        assert_eq!(singles(&mut path), FIRST_PAUSE);
        path.note_burst(15, None);
        path.note_lost_responses();
        assert_eq!(singles(&mut path), FIRST_PAUSE * 2);
    }

    #[test]
    fn a_burst_that_the_host_drops_is_a_lost_probe() {
        let mut path = BurstPath::default();
        for round in 0..3 {
            path.note_refusal();
            assert_eq!(singles(&mut path), FIRST_PAUSE << round);
        }
        path.note_loss();
        assert!(path.admits(|_| false));
    }
}
