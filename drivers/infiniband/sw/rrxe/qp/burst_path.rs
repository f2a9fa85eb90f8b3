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
/// Number of READ responses after a probe of READ responses, which nobody acknowledges. The peer
/// would have repeated its request before it has received them.
const PROVING_RESPONSES: u32 = 1 << 9;

/// Knowledge about the path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Knowledge {
    /// It isn't known whether bursts arrive. The next burst is a probe.
    #[default]
    None,
    /// A probe was sent. It ends before this PSN, if it consists of requests, and has arrived when
    /// the peer acknowledges them.
    ProbedBefore(Psn),
    /// A probe of READ responses was sent. It has arrived when this many responses were sent after
    /// it, and the peer has repeated no request meanwhile.
    ProbedByResponses(u32),
    /// A probe has arrived, and no packet was lost since.
    BurstsArrive,
}

/// State of the path from a QP to its peer.
#[derive(Default)]
pub(super) struct BurstPath {
    knowledge: Knowledge,
    /// Number of packets that are still to be sent one by one.
    singles: u32,
    /// Number of packets that were sent one by one after the last loss.
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
            Knowledge::None | Knowledge::BurstsArrive => true,
            Knowledge::ProbedBefore(past) if has_acknowledged(past) => {
                self.learn_that_bursts_arrive();
                true
            }
            Knowledge::ProbedBefore(_) | Knowledge::ProbedByResponses(_) => false,
        }
    }

    fn learn_that_bursts_arrive(&mut self) {
        self.knowledge = Knowledge::BurstsArrive;
        self.pause = 0;
    }

    /// Returns whether the next burst is a probe. It must not contain the end of a message, after
    /// which no packet may follow that reveals the loss.
    #[inline]
    pub(super) fn is_next_a_probe(&self) -> bool {
        self.knowledge == Knowledge::None
    }

    /// Records that a burst was passed to the network stack: requests before the PSN `past`, or
    /// READ responses if that is `None`.
    #[inline]
    pub(super) fn note_burst(&mut self, past: Option<Psn>) {
        if self.knowledge == Knowledge::None {
            self.knowledge = match past {
                Some(past) => Knowledge::ProbedBefore(past),
                None => Knowledge::ProbedByResponses(PROVING_RESPONSES),
            };
        }
    }

    /// Records that a packet was sent alone, which is a READ response if `is_response` is set.
    #[inline]
    pub(super) fn note_single(&mut self, is_response: bool) {
        self.singles = self.singles.saturating_sub(1);
        if let (Knowledge::ProbedByResponses(left), true) = (self.knowledge, is_response) {
            match left.checked_sub(1) {
                Some(left) => self.knowledge = Knowledge::ProbedByResponses(left),
                None => self.learn_that_bursts_arrive(),
            }
        }
    }

    /// Records that packets were lost in the network. Each loss of a probe doubles the pause.
    #[cold]
    pub(super) fn note_loss(&mut self) {
        match self.knowledge {
            Knowledge::None => {}
            Knowledge::ProbedBefore(_) | Knowledge::ProbedByResponses(_) => self.note_refusal(),
            Knowledge::BurstsArrive => self.pause_for(FIRST_PAUSE),
        }
    }

    /// Records that this host has dropped a burst.
    #[cold]
    pub(super) fn note_refusal(&mut self) {
        let twice = self.pause.saturating_mul(2);
        self.pause_for(twice.clamp(FIRST_PAUSE, LONGEST_PAUSE));
    }

    fn pause_for(&mut self, pause: u32) {
        self.knowledge = Knowledge::None;
        self.pause = pause;
        self.singles = pause;
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
    fn singles(path: &mut BurstPath, is_response: bool) -> u32 {
        let mut sent = 0u32;
        while !path.admits(|_| false) {
            path.note_single(is_response);
            sent = sent.wrapping_add(1);
        }
        sent
    }

    #[test]
    fn an_acknowledged_probe_admits_bursts() {
        let mut path = BurstPath::default();
        assert!(path.admits(|_| false) && path.is_next_a_probe());
        path.note_burst(Some(psn(15)));
        assert!(!path.admits(|past| past != psn(15)));
        assert!(path.admits(|past| past == psn(15)) && !path.is_next_a_probe());
        path.note_burst(Some(psn(30)));
        assert!(path.admits(|_| false));
    }

    #[test]
    fn lost_probes_double_the_pause() {
        let mut path = BurstPath::default();
        for round in 0..14 {
            path.note_burst(Some(psn(15)));
            path.note_loss();
            let pause = LONGEST_PAUSE.min(FIRST_PAUSE << round);
            assert_eq!(singles(&mut path, false), pause);
        }
        path.note_burst(Some(psn(15)));
        assert!(path.admits(|_| true));
        path.note_loss();
        assert_eq!(singles(&mut path, false), FIRST_PAUSE);
    }

    #[test]
    fn responses_after_a_probe_prove_its_arrival() {
        let mut path = BurstPath::default();
        path.note_burst(None);
        assert!(singles(&mut path, true) > PROVING_RESPONSES);
        assert!(!path.is_next_a_probe());
        path.note_loss();
        assert_eq!(singles(&mut path, true), FIRST_PAUSE);
        path.note_burst(None);
        path.note_loss();
        assert_eq!(singles(&mut path, true), FIRST_PAUSE * 2);
    }

    #[test]
    fn a_burst_that_the_host_drops_is_a_lost_probe() {
        let mut path = BurstPath::default();
        for round in 0..3 {
            path.note_refusal();
            assert_eq!(singles(&mut path, true), FIRST_PAUSE << round);
        }
        path.note_loss();
        assert!(path.admits(|_| false));
    }
}
