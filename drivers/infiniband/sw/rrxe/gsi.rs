// SPDX-License-Identifier: GPL-2.0

//! Which management datagrams GSI QPs take.
//!
//! Anybody can write a datagram to QP1: its Q_Key is public, and nobody looks at the sender. ib_core answers some, and for
//! that it looks up the link-layer address of the sender. If that is not known, it sleeps until the neighbour has answered,
//! a second at most (`ib_init_ah_attr_from_wc()`, verbs.c; `rdma_addr_find_l2_eth_by_grh()`, addr.c). It does so in the work
//! item that takes all MADs of a device, and in the one that connects for all devices of the host, whose queue has no limit
//! (`cm_recv_handler()`, cm.c). A queue of such datagrams would stop all connection management of the host.
//!
//! So a datagram is dropped unless its sender's address is known, and stays known for some seconds whatever the sender does
//! ([`Knowledge`]). A host that sends has mostly just asked for this host's address, and so is known; another one is asked
//! while it waits to send again. ib_core handles a datagram within these seconds because few come at a time
//! ([`QUESTIONS`]): when answers leave, as many come again, and without answers, some a second.
//!
//! An administrator of the network namespace can make an address unknown at any time. So addresses are looked up once more
//! after a second, when ib_core has handled the datagram or sleeps for it. While senders are lost the device takes none,
//! until they are known again, which wakes ib_core, or for two seconds each, twice as long as ib_core sleeps.

use kernel::prelude::*;
use rdma::{
    gid::Gid,
    net::{
        neighbour::{Hop, Knowledge},
        netdev::Netdev,
        skb::Ingress,
    },
};
use roce::{
    time::Instant,
    wire::mad::{MadHeader, MAD_HEADER_LEN},
};

use crate::{link::Link, rx::RxPacket, stats::Counter};

/// Nanoseconds.
const SECOND: i64 = 1_000_000_000;

/// How often something may happen.
struct Pace {
    /// How often at once.
    burst: i64,
    /// Nanoseconds until it may happen once more.
    interval: i64,
}

impl Pace {
    const fn new(burst: i64, a_second: i64) -> Self {
        Self {
            burst,
            interval: SECOND / a_second,
        }
    }
}

/// Datagrams for which ib_core looks up no address.
const FINALS: Pace = Pace::new(4_096, 16_384);
/// Datagrams that may have an answer. A slow host handles so many in less than the time for which an address stays known.
const QUESTIONS: Pace = Pace::new(256, 128);
/// Those where administrators of the network are none of the host.
const CONTAINED_QUESTIONS: Pace = Pace::new(16, 16);
/// Neighbours that are asked for their address.
const ASKS: Pace = Pace::new(64, 16);

/// After so many nanoseconds the sender of a datagram is looked up once more; ib_core sleeps for as long. Lost senders are
/// looked up as often.
const REVIEW: i64 = SECOND;
/// A look-up that is later by more nanoseconds says nothing about ib_core.
const LATE: i64 = SECOND;
/// Lost senders that are forgotten.
const LOSSES: Pace = Pace {
    burst: 1,
    interval: 2 * SECOND,
};
/// Datagrams whose senders are to be looked up once more at most …
const MOST_TAKEN: usize = 512;
/// … and of these, those in one turn.
const REVIEWS: u32 = 32;

/// When something may happen again.
struct Rate {
    pace: Pace,
    /// When the next is due that is not early, in nanoseconds.
    due: i64,
}

impl Rate {
    const fn new(pace: Pace) -> Self {
        Self { pace, due: 0 }
    }

    /// Whether it may happen once more, at `now`.
    fn admits(&mut self, now: i64) -> bool {
        let due = self.due.max(now);
        let early = due.saturating_sub(now);
        let admitted = early < self.pace.burst.saturating_mul(self.pace.interval);
        if admitted {
            self.due = due.saturating_add(self.pace.interval);
        }
        admitted
    }

    /// It may happen once more at once.
    fn give_back(&mut self) {
        self.due = self.due.saturating_sub(self.pace.interval);
    }
}

/// A datagram that may have an answer.
struct Taken {
    /// When it was taken, or its sender was looked up last, in nanoseconds.
    at: i64,
    /// The way of an answer.
    hop: Hop,
    /// Its sender was not known any more.
    lost: bool,
}

/// What the holder of a GSI QP's turn knows about the datagrams that the QP took.
pub(crate) struct Gsi {
    finals: Rate,
    questions: Rate,
    asks: Rate,
    losses: Rate,
    /// Those whose senders are to be looked up once more; with room for [`MOST_TAKEN`].
    taken: KVVec<Taken>,
}

impl Gsi {
    /// No datagram has come; administrators of the network are none of the host if `contained` is set. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(contained: bool) -> Result<Self> {
        let questions = match contained {
            true => CONTAINED_QUESTIONS,
            false => QUESTIONS,
        };
        Ok(Self {
            finals: Rate::new(FINALS),
            questions: Rate::new(questions),
            asks: Rate::new(ASKS),
            losses: Rate::new(LOSSES),
            taken: KVVec::with_capacity(MOST_TAKEN, GFP_KERNEL)?,
        })
    }

    /// Checks whether the QP takes a packet. With the turn; doesn't sleep.
    ///
    /// # Errors
    ///
    /// The counter of the drop.
    pub(crate) fn check(
        &mut self,
        now: Instant,
        link: &Link,
        packet: &RxPacket,
    ) -> Result<(), Counter> {
        // ib_core is about to free what its work items use: see `settle_gsi` in unplug.rs.
        if link.check_stays().is_err() {
            return Err(Counter::DropState);
        }
        let mut bytes = [0; MAD_HEADER_LEN];
        if packet.read_payload(0, &mut bytes).is_err() {
            return Err(Counter::DropState);
        }
        let now = nanos(now);
        if MadHeader::parse(&bytes).is_final() {
            return admitted(self.finals.admits(now));
        }
        let netdev = link.netdev().ok_or(Counter::DropState)?;
        let hop = hop_of_answer(link, &netdev, packet).ok_or(Counter::DropNeighbour)?;
        let asks = &mut self.asks;
        let knowledge = hop.look_up(&netdev, || asks.admits(now));
        self.take(now, hop, knowledge)
    }

    /// Takes a datagram that may have an answer, if what is known of its sender allows it.
    fn take(&mut self, now: i64, hop: Hop, knowledge: Knowledge) -> Result<(), Counter> {
        if !matches!(knowledge, Knowledge::Lasting) {
            return Err(Counter::DropNeighbour);
        }
        let is_silent = self.taken.iter().any(|taken| taken.lost);
        let has_room = !is_silent && self.taken.len() < MOST_TAKEN;
        admitted(has_room && self.questions.admits(now))?;
        let taken = self.taken.push_within_capacity(Taken {
            at: now,
            hop,
            lost: false,
        });
        taken.map_err(|_| Counter::DropRate)
    }

    /// When senders are to be looked up once more.
    pub(crate) fn next_review(&self) -> Option<Instant> {
        let due = |taken: &Taken| taken.at.saturating_add(REVIEW);
        let next = self.taken.iter().map(due).min()?;
        u64::try_from(next).ok().map(Instant)
    }

    /// Looks the senders up once more of datagrams that were taken [`REVIEW`] ago. With the turn; doesn't sleep.
    pub(crate) fn review(&mut self, now: Instant, link: &Link) {
        if self.next_review().is_none_or(|due| due > now) {
            return;
        }
        match link.netdev() {
            Some(netdev) => self.review_by(nanos(now), |hop| hop.look_up(&netdev, || false)),
            None => self.taken.clear(),
        }
    }

    fn review_by(&mut self, now: i64, look_up: impl Fn(&Hop) -> Knowledge) {
        let (mut reviews, losses) = (REVIEWS, &mut self.losses);
        self.taken.retain(|taken| {
            let age = now.saturating_sub(taken.at);
            if reviews == 0 || age < REVIEW {
                return true;
            }
            reviews = reviews.wrapping_sub(1);
            if !taken.lost && age > REVIEW.saturating_add(LATE) {
                return false;
            }
            let was_lost = core::mem::replace(&mut taken.lost, true);
            taken.at = now;
            let is_lost = matches!(look_up(&taken.hop), Knowledge::None);
            is_lost && !(was_lost && losses.admits(now))
        });
    }

    /// The QP sends a datagram that begins with `bytes`: if it is an answer, ib_core has handled a question. With the turn.
    pub(crate) fn note_sent(&mut self, bytes: &[u8]) {
        let header = bytes.first_chunk().map(MadHeader::parse);
        if header.is_some_and(|header| header.is_answer()) {
            self.questions.give_back();
        }
    }
}

/// Nanoseconds.
fn nanos(now: Instant) -> i64 {
    i64::try_from(now.0).unwrap_or(i64::MAX)
}

/// A datagram is dropped for the rate of such ones unless it is admitted.
fn admitted(admitted: bool) -> Result<(), Counter> {
    match admitted {
        true => Ok(()),
        false => Err(Counter::DropRate),
    }
}

/// The way of ib_core's answer to a packet. `None` if it has no address that it would answer from.
fn hop_of_answer(link: &Link, netdev: &Netdev, packet: &RxPacket) -> Option<Hop> {
    let source = packet.endpoints.destination;
    Some(Hop {
        source,
        destination: packet.endpoints.source,
        netdev_index: answering_netdev(link, netdev, source, packet.skb.ingress())?,
    })
}

/// The index of the network device from whose entry in the table of GIDs ib_core answers what came to `gid`: the first one
/// with this address and the VLAN that the completion names (`get_sgid_attr_from_eth()`, verbs.c).
fn answering_netdev(link: &Link, netdev: &Netdev, gid: Gid, ingress: Ingress) -> Option<u32> {
    let homes = &link.context().homes;
    let entry_on = |index: u32| link.device().find_gid(gid, netdev, index);
    let vlan = link.vlan_of(gid, ingress);
    let (mut above, mut first) = (0, None);
    while let Some(index) = homes.next_netdev(gid, link.id(), above) {
        above = index;
        let Some(entry) = entry_on(index).filter(|entry| entry.vlan == vlan) else {
            continue;
        };
        if first.is_none_or(|(least, _)| entry.index < least) {
            first = Some((entry.index, index));
        }
    }
    first.map(|(_, index)| index)
}

#[kunit_tests(rrxe_gsi)]
mod tests {
    use super::*;

    /// The header of a message of communication management.
    fn message(attribute: u8) -> [u8; MAD_HEADER_LEN] {
        let mut bytes = [0; MAD_HEADER_LEN];
        [bytes[1], bytes[3], bytes[17]] = [7, 3, attribute];
        bytes
    }

    /// How many of a thousand datagrams are taken of senders of whom so much is known.
    fn taken(gsi: &mut Gsi, now: i64, knowledge: Knowledge) -> usize {
        let hop = Hop {
            source: Gid([1; 16]),
            destination: Gid([2; 16]),
            netdev_index: 1,
        };
        (0..1_000)
            .filter(|_| gsi.take(now, hop, knowledge).is_ok())
            .count()
    }

    #[test]
    fn a_rate_admits_a_burst_and_then_its_share() -> Result {
        let mut rate = Rate::new(Pace::new(4, 1_000_000));
        let mut admitted = |now: i64| (0..100).filter(|_| rate.admits(now)).count();
        assert_eq!(admitted(1_000_000), 4);
        assert_eq!(admitted(1_000_000), 0);
        assert_eq!(admitted(1_002_000), 2);
        // Time that passes without any is not kept.
        assert_eq!(admitted(9_000_000), 4);
        Ok(())
    }

    #[test]
    fn only_senders_that_stay_known_are_heard() -> Result {
        let mut gsi = Gsi::new(false)?;
        assert_eq!(taken(&mut gsi, SECOND, Knowledge::None), 0);
        assert_eq!(taken(&mut gsi, SECOND, Knowledge::Fleeting), 0);
        assert_eq!(taken(&mut gsi, SECOND, Knowledge::Lasting), 256);
        Ok(())
    }

    #[test]
    fn a_question_may_follow_an_answer_at_once() -> Result {
        let mut gsi = Gsi::new(true)?;
        assert_eq!(taken(&mut gsi, SECOND, Knowledge::Lasting), 16);
        let (req, rej) = (message(0x10), message(0x12));
        gsi.note_sent(&req);
        assert_eq!(taken(&mut gsi, SECOND, Knowledge::Lasting), 0);
        for _ in 0..3 {
            gsi.note_sent(&rej);
        }
        assert_eq!(taken(&mut gsi, SECOND, Knowledge::Lasting), 3);
        Ok(())
    }

    #[test]
    fn answers_alone_raise_no_limit() -> Result {
        let mut gsi = Gsi::new(true)?;
        for _ in 0..1_000 {
            gsi.note_sent(&message(0x12));
        }
        assert_eq!(taken(&mut gsi, SECOND, Knowledge::Lasting), 16);
        Ok(())
    }

    #[test]
    fn a_device_is_silent_while_senders_are_lost() -> Result {
        let mut gsi = Gsi::new(true)?;
        assert_eq!(taken(&mut gsi, SECOND, Knowledge::Lasting), 16);
        let mut now = SECOND + REVIEW;
        assert_eq!(gsi.next_review(), Some(Instant(now as u64)));
        gsi.review_by(now - 1, |_| Knowledge::None);
        assert!(!gsi.taken.iter().any(|taken| taken.lost));
        gsi.review_by(now, |_| Knowledge::None);
        let mut silent = 0;
        while taken(&mut gsi, now, Knowledge::Lasting) == 0 {
            now += SECOND;
            silent += 1;
            gsi.review_by(now, |_| Knowledge::None);
        }
        assert_eq!(silent, 2 * (16 - 1));
        Ok(())
    }

    #[test]
    fn a_device_is_silent_no_more_when_senders_are_known_again() -> Result {
        let mut gsi = Gsi::new(true)?;
        taken(&mut gsi, SECOND, Knowledge::Lasting);
        let now = SECOND + REVIEW;
        gsi.review_by(now, |_| Knowledge::None);
        assert_eq!(taken(&mut gsi, now, Knowledge::Lasting), 0);
        gsi.review_by(now + REVIEW, |_| Knowledge::Fleeting);
        assert_eq!(taken(&mut gsi, now + REVIEW, Knowledge::Lasting), 16);
        Ok(())
    }

    #[test]
    fn a_late_look_up_says_nothing() -> Result {
        let mut gsi = Gsi::new(true)?;
        taken(&mut gsi, SECOND, Knowledge::Lasting);
        let later = 100 * SECOND;
        gsi.review_by(later, |_| Knowledge::None);
        assert_eq!(taken(&mut gsi, later, Knowledge::Lasting), 16);
        Ok(())
    }
}
