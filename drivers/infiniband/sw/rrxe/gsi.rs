// SPDX-License-Identifier: GPL-2.0

//! Which management datagrams GSI QPs take.
//!
//! Anybody can write a datagram to QP1: its Q_Key is public, and nobody looks at the sender. ib_core answers some, and for
//! that it looks up the link-layer address of the sender. If that is not known, it sleeps until the neighbour has answered,
//! a second at most (`ib_init_ah_attr_from_wc()`, verbs.c; `rdma_addr_find_l2_eth_by_grh()`, addr.c). It does so in the work
//! item that takes all MADs of a device, and in the one that connects for all devices of the host, whose queue has no limit
//! (`cm_recv_handler()`, cm.c). A queue of such datagrams would stop all connection management of the host.
//!
//! So datagrams of senders whose address is not known are dropped, but for one in two seconds. A host that sends has mostly
//! just asked for this host's address, and so is known. An address may be forgotten before ib_core comes to the datagram.
//! So a device has a limited number of datagrams *open*: those that ib_core may still have to look up an address for. One is
//! open until its answer is sent, or for [`OPEN`] if its sender is still known then. If it isn't, ib_core may have slept for
//! the datagram, and the places of such ones come back one in two seconds.

use core::sync::atomic::{AtomicI64, Ordering::Relaxed};

use kernel::{
    prelude::*,
    time::{Instant, Monotonic},
};
use rdma::{
    gid::Gid,
    net::{
        neighbour::{Hop, Knowledge},
        netdev::Netdev,
        skb::Ingress,
    },
};
use roce::wire::mad::{MadHeader, MAD_HEADER_LEN};

use crate::{link::Link, rx::RxPacket, stats::Counter};

/// Nanoseconds.
const SECOND: i64 = 1_000_000_000;
/// Between two datagrams that are taken, in the mean: 16,384 a second, which ib_core handles.
const INTERVAL: i64 = SECOND / 16_384;
/// Nanoseconds by which datagrams may be early: 4,096 at once.
const BURST: i64 = 4_096 * INTERVAL;
/// Between two neighbours that are asked for their address, in the mean …
const ASK_INTERVAL: i64 = SECOND / 16;
/// … and by which they may be early: 64 at once.
const ASK_BURST: i64 = 64 * ASK_INTERVAL;
/// Between two datagrams for which ib_core sleeps, at least. It sleeps for half of the time.
const SLEEP_INTERVAL: i64 = 2 * SECOND;

/// How long ib_core sleeps for a datagram at most, in nanoseconds, and so how long one is open that gets no answer.
const OPEN: i64 = SECOND;
/// Open datagrams of a device, most of which have senders that confirmed their addresses lately. No peer makes such an
/// address unknown before ib_core comes to the datagram …
const MOST_OPEN: usize = 512;
/// … unless ib_core sleeps; and an administrator of the network namespace does, who is none of the host in a user namespace.
const FEW_OPEN: usize = 16;
/// Open datagrams whose senders are known, but may be gone.
const MOST_UNCONFIRMED: usize = 4;
/// Open datagrams whose senders are looked up again when another datagram comes.
const LOOK_UPS: u32 = 8;

/// How often something may happen.
struct Rate {
    interval: i64,
    burst: i64,
    /// When the next is due that is not early, in nanoseconds.
    due: i64,
}

impl Rate {
    const fn new(interval: i64, burst: i64) -> Self {
        Self {
            interval,
            burst,
            due: 0,
        }
    }

    /// Whether it may happen once more, at `now`.
    fn admits(&mut self, now: i64) -> bool {
        let due = self.due.max(now);
        let admitted = due.saturating_sub(now) < self.burst;
        if admitted {
            self.due = due.saturating_add(self.interval);
        }
        admitted
    }
}

/// Until when ib_core may sleep for datagrams that it has, of all devices: meanwhile those behind them are not handled.
pub(crate) struct Backlog {
    epoch: Instant<Monotonic>,
    until: AtomicI64,
}

impl Backlog {
    /// There is none.
    pub(crate) fn new() -> Self {
        Self {
            epoch: Instant::now(),
            until: AtomicI64::new(0),
        }
    }

    /// Nanoseconds since the module was loaded. Any context.
    fn now(&self) -> i64 {
        self.epoch.elapsed().as_nanos()
    }

    /// ib_core may sleep for a datagram more, `now` or later.
    fn lengthen(&self, now: i64) {
        let next = |until: i64| Some(until.max(now).saturating_add(OPEN));
        let _ = self.until.fetch_update(Relaxed, Relaxed, next);
    }

    /// Whether ib_core has slept for all such datagrams.
    fn is_over(&self, now: i64) -> bool {
        self.until.load(Relaxed) <= now
    }
}

/// A datagram that ib_core may have to look up an address for.
struct Open {
    /// When it was taken.
    since: i64,
    /// The number of its answer.
    transaction: u64,
    /// The way of an answer.
    hop: Hop,
    /// Its sender has confirmed its address lately.
    confirmed: bool,
    /// Its sender was not known any more when the datagram had been open for [`OPEN`].
    lost: bool,
}

/// What the holder of a GSI QP's turn knows about the datagrams that the QP took.
pub(crate) struct Gsi {
    datagrams: Rate,
    asks: Rate,
    strangers: Rate,
    /// Places of lost datagrams that come back.
    losses: Rate,
    /// Oldest first; with room for all that may be open.
    open: KVVec<Open>,
}

impl Gsi {
    /// No datagram has come. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            datagrams: Rate::new(INTERVAL, BURST),
            asks: Rate::new(ASK_INTERVAL, ASK_BURST),
            strangers: Rate::new(SLEEP_INTERVAL, 1),
            losses: Rate::new(SLEEP_INTERVAL, 1),
            open: KVVec::with_capacity(MOST_OPEN, GFP_KERNEL)?,
        })
    }

    /// Checks whether the QP takes a packet. With the turn; doesn't sleep.
    ///
    /// # Errors
    ///
    /// The counter of the drop.
    pub(crate) fn check(&mut self, link: &Link, packet: &RxPacket) -> Result<(), Counter> {
        // ib_core is about to free what its work items use: see `settle_gsi` in unplug.rs.
        if link.check_stays().is_err() {
            return Err(Counter::DropState);
        }
        let mut bytes = [0; MAD_HEADER_LEN];
        if packet.read_payload(0, &mut bytes).is_err() {
            return Err(Counter::DropState);
        }
        let header = MadHeader::parse(&bytes);
        let backlog = &link.workers().backlog;
        let now = backlog.now();
        if header.is_final() {
            return self.pace(now);
        }
        let netdev = link.netdev().ok_or(Counter::DropState)?;
        let hop = hop_of_answer(link, &netdev, packet).ok_or(Counter::DropNeighbour)?;
        self.forget_handled(now, backlog, |hop| hop.look_up(&netdev, || false));
        let asks = &mut self.asks;
        let knowledge = hop.look_up(&netdev, || asks.admits(now));
        let most = match backlog.is_over(now) && !netdev.is_contained() {
            true => MOST_OPEN,
            false => FEW_OPEN,
        };
        self.open(now, &header, hop, knowledge, most)?;
        if matches!(knowledge, Knowledge::None) {
            backlog.lengthen(now);
        }
        Ok(())
    }

    /// Whether a datagram may be taken `now`, as far as their rate is concerned.
    fn pace(&mut self, now: i64) -> Result<(), Counter> {
        match self.datagrams.admits(now) {
            true => Ok(()),
            false => Err(Counter::DropRate),
        }
    }

    /// Takes a datagram, if there is a place for it: at most `most` are open.
    fn open(
        &mut self,
        now: i64,
        header: &MadHeader,
        hop: Hop,
        knowledge: Knowledge,
        most: usize,
    ) -> Result<(), Counter> {
        let confirmed = matches!(knowledge, Knowledge::Confirmed);
        let unconfirmed = self.open.iter().filter(|open| !open.confirmed).count();
        if !confirmed && unconfirmed >= MOST_UNCONFIRMED {
            return Err(Counter::DropNeighbour);
        }
        if matches!(knowledge, Knowledge::None) && !self.strangers.admits(now) {
            return Err(Counter::DropNeighbour);
        }
        if self.open.len() >= most {
            return Err(Counter::DropRate);
        }
        self.pace(now)?;
        let open = Open {
            since: now,
            transaction: header.transaction,
            hop,
            confirmed,
            lost: false,
        };
        // There is room for as many as may be open.
        self.open
            .push_within_capacity(open)
            .map_err(|_| Counter::DropRate)
    }

    /// Gives places back of datagrams that have been open for so long that ib_core has handled them.
    fn forget_handled(&mut self, now: i64, backlog: &Backlog, look_up: impl Fn(&Hop) -> Knowledge) {
        let is_due = |open: &Open| now.saturating_sub(open.since) >= OPEN;
        if !self.open.first().is_some_and(is_due) {
            return;
        }
        let (mut look_ups, losses) = (LOOK_UPS, &mut self.losses);
        self.open.retain(|open| {
            if look_ups == 0 || !is_due(open) {
                return true;
            }
            look_ups = look_ups.wrapping_sub(1);
            if !open.lost && matches!(look_up(&open.hop), Knowledge::None) {
                open.lost = true;
                backlog.lengthen(now);
            }
            match open.lost {
                true => !losses.admits(now),
                false => !backlog.is_over(now),
            }
        });
    }

    /// The QP sends a datagram that begins with `bytes`: one that it answers is open no more. With the turn.
    pub(crate) fn note_sent(&mut self, bytes: &[u8]) {
        let Some(header) = bytes.first_chunk().map(MadHeader::parse) else {
            return;
        };
        if !header.is_answer() {
            return;
        }
        let is_asked = |open: &Open| open.transaction == header.transaction;
        if let Some(place) = self.open.iter().position(is_asked) {
            // The place was just found.
            let _ = self.open.remove(place);
        }
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
    use rdma::gid::Gid;

    const REQ: u8 = 0x10;
    const REJ: u8 = 0x12;

    /// The header of a message of communication management.
    fn message(attribute: u8, transaction: u8) -> [u8; MAD_HEADER_LEN] {
        let mut bytes = [0; MAD_HEADER_LEN];
        [bytes[1], bytes[3], bytes[15], bytes[17]] = [7, 3, transaction, attribute];
        bytes
    }

    fn hop() -> Hop {
        Hop {
            source: Gid([1; 16]),
            destination: Gid([2; 16]),
            netdev_index: 1,
        }
    }

    fn open(gsi: &mut Gsi, now: i64, transaction: u8, knowledge: Knowledge) -> bool {
        let header = MadHeader::parse(&message(REQ, transaction));
        gsi.open(now, &header, hop(), knowledge, MOST_OPEN).is_ok()
    }

    /// How many of `count` datagrams are taken.
    fn taken(gsi: &mut Gsi, now: i64, count: usize, knowledge: Knowledge) -> usize {
        (0..count).filter(|_| open(gsi, now, 1, knowledge)).count()
    }

    #[test]
    fn a_rate_admits_a_burst_and_then_its_share() -> Result {
        let mut rate = Rate::new(1_000, 4_000);
        let mut admitted = |now: i64| (0..100).filter(|_| rate.admits(now)).count();
        assert_eq!(admitted(1_000_000), 4);
        assert_eq!(admitted(1_000_000), 0);
        assert_eq!(admitted(1_002_000), 2);
        // Time that passes without any is not kept.
        assert_eq!(admitted(9_000_000), 4);
        Ok(())
    }

    #[test]
    fn an_answer_makes_room_for_the_next_datagram() -> Result {
        let mut gsi = Gsi::new()?;
        assert_eq!(
            taken(&mut gsi, SECOND, 10, Knowledge::Unconfirmed),
            MOST_UNCONFIRMED
        );
        gsi.note_sent(&message(REQ, 1));
        gsi.note_sent(&message(REJ, 2));
        assert_eq!(taken(&mut gsi, SECOND, 10, Knowledge::Unconfirmed), 0);
        gsi.note_sent(&message(REJ, 1));
        assert_eq!(taken(&mut gsi, SECOND, 10, Knowledge::Unconfirmed), 1);
        Ok(())
    }

    #[test]
    fn confirmed_senders_have_more_places_than_others() -> Result {
        let mut gsi = Gsi::new()?;
        assert_eq!(taken(&mut gsi, SECOND, 1_000, Knowledge::None), 1);
        assert_eq!(
            taken(&mut gsi, SECOND, 1_000, Knowledge::Unconfirmed),
            MOST_UNCONFIRMED - 1
        );
        assert_eq!(
            taken(&mut gsi, SECOND, 1_000, Knowledge::Confirmed),
            MOST_OPEN - MOST_UNCONFIRMED
        );
        Ok(())
    }

    #[test]
    fn a_sender_that_is_still_known_gets_its_place_back() -> Result {
        let (mut gsi, backlog) = (Gsi::new()?, Backlog::new());
        taken(&mut gsi, SECOND, 4, Knowledge::Unconfirmed);
        gsi.forget_handled(SECOND + OPEN - 1, &backlog, |_| Knowledge::Unconfirmed);
        assert_eq!(gsi.open.len(), 4);
        gsi.forget_handled(SECOND + OPEN, &backlog, |_| Knowledge::Unconfirmed);
        assert_eq!(gsi.open.len(), 0);
        Ok(())
    }

    #[test]
    fn places_of_senders_that_are_gone_come_back_slowly() -> Result {
        let (mut gsi, mut other, backlog) = (Gsi::new()?, Gsi::new()?, Backlog::new());
        taken(&mut gsi, SECOND, 3, Knowledge::Confirmed);
        taken(&mut other, SECOND, 3, Knowledge::Confirmed);
        let (now, gone) = (10 * SECOND, |_: &Hop| Knowledge::None);
        gsi.forget_handled(now, &backlog, gone);
        assert_eq!(gsi.open.len(), 2);
        gsi.forget_handled(now + SLEEP_INTERVAL - 1, &backlog, gone);
        assert_eq!(gsi.open.len(), 2);
        // ib_core may sleep for three seconds, and has not come to those of other devices before.
        other.forget_handled(now + 3 * OPEN - 1, &backlog, |_| Knowledge::Confirmed);
        assert_eq!(other.open.len(), 3);
        other.forget_handled(now + 3 * OPEN, &backlog, |_| Knowledge::Confirmed);
        assert_eq!(other.open.len(), 0);
        Ok(())
    }
}
