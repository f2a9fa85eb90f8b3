// SPDX-License-Identifier: GPL-2.0

//! Which management datagrams from the network GSI QPs take.
//!
//! Anybody can write a datagram to QP1: its Q_Key is public, and nobody looks at the sender. ib_core answers some, and for
//! that it resolves the sender's address; it sleeps until the neighbour has answered, a second at most
//! (`ib_init_ah_attr_from_wc()`, verbs.c; `rdma_addr_find_l2_eth_by_grh()`, addr.c). It does so in the work item that
//! takes all MADs of a device, and in one that connects for all devices of the host, whose queue has no limit
//! (`cm_recv_handler()`, cm.c). So datagrams of senders whose neighbour isn't known are dropped, but for one in two seconds:
//! who sends to this host has just asked for its address, and so is known. The consumer sends again, and the neighbour is
//! asked meanwhile.

use core::sync::atomic::{AtomicI64, Ordering::Relaxed};

use kernel::{
    prelude::*,
    time::{Instant, Monotonic},
};
use rdma::net::{neighbour, route::Flow};
use roce::wire::UDP_PORT;

use crate::{link::Link, rx::RxPacket, stats::Counter};

/// Nanoseconds between two datagrams that are taken, in the mean: 16,384 a second, which ib_core handles.
const INTERVAL: i64 = 1_000_000_000 / 16_384;
/// Nanoseconds by which datagrams may be early: 4,096 at once.
const BURST: i64 = 4_096 * INTERVAL;
/// Nanoseconds between two unknown neighbours that are asked, in the mean …
const ASK_INTERVAL: i64 = 1_000_000_000 / 16;
/// … and by which they may be early: 64 at once.
const ASK_BURST: i64 = 64 * ASK_INTERVAL;

/// Nanoseconds between two datagrams of unknown neighbours that are taken nevertheless. ib_core sleeps for half of them.
const STRANGER_INTERVAL: i64 = 2_000_000_000;

/// How often something may happen.
struct Rate {
    interval: i64,
    burst: i64,
    /// When the next is due that is not early, in nanoseconds.
    due: AtomicI64,
}

impl Rate {
    const fn new(interval: i64, burst: i64) -> Self {
        Self {
            interval,
            burst,
            due: AtomicI64::new(0),
        }
    }

    /// Whether it may happen once more, at `now`. Any context.
    fn admits(&self, now: i64) -> bool {
        let next = |due: i64| {
            let due = due.max(now);
            (due.saturating_sub(now) < self.burst).then(|| due.saturating_add(self.interval))
        };
        self.due.fetch_update(Relaxed, Relaxed, next).is_ok()
    }
}

/// The limits on the management datagrams of a device.
pub(crate) struct GsiLimits {
    epoch: Instant<Monotonic>,
    datagrams: Rate,
    asks: Rate,
    strangers: Rate,
}

impl GsiLimits {
    /// Nothing has come yet.
    pub(crate) fn new() -> Self {
        Self {
            epoch: Instant::now(),
            datagrams: Rate::new(INTERVAL, BURST),
            asks: Rate::new(ASK_INTERVAL, ASK_BURST),
            strangers: Rate::new(STRANGER_INTERVAL, 1),
        }
    }

    /// Checks whether the GSI QP of `link` takes a packet from the network. Softirq.
    ///
    /// # Errors
    ///
    /// The counter of the drop.
    pub(crate) fn check(&self, link: &Link, packet: &RxPacket) -> Result<(), Counter> {
        // ib_core is about to free what its work items use: see `Link::settle_gsi`.
        if link.check_stays().is_err() {
            return Err(Counter::DropState);
        }
        let now = self.epoch.elapsed().as_nanos();
        if !self.can_be_answered(link, packet, now) && !self.strangers.admits(now) {
            return Err(Counter::DropNeighbour);
        }
        match self.datagrams.admits(now) {
            true => Ok(()),
            false => Err(Counter::DropRate),
        }
    }

    /// Whether ib_core can answer without a pause.
    fn can_be_answered(&self, link: &Link, packet: &RxPacket, now: i64) -> bool {
        let (own, ingress) = (packet.endpoints.destination, packet.skb.ingress());
        let Some(netdev) = link.netdev() else {
            return false;
        };
        let homes = &link.context().homes;
        let Some(netdev_index) = homes.netdev_at(own, ingress, link.id()) else {
            return false;
        };
        let flow = Flow {
            source: own,
            destination: packet.endpoints.source,
            netdev_index,
            traffic_class: 0,
            flow_label: 0,
            source_port: UDP_PORT,
            destination_port: UDP_PORT,
        };
        neighbour::is_known(&netdev, &flow, || self.asks.admits(now))
    }
}

#[kunit_tests(rrxe_gsi)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_admits_a_burst_and_then_its_share() -> Result {
        let rate = Rate::new(1_000, 4_000);
        let admitted = |now: i64| (0..100).filter(|_| rate.admits(now)).count();
        assert_eq!(admitted(1_000_000), 4);
        assert_eq!(admitted(1_000_000), 0);
        assert_eq!(admitted(1_002_000), 2);
        // Time that passes without any is not kept.
        assert_eq!(admitted(9_000_000), 4);
        Ok(())
    }
}
