// SPDX-License-Identifier: GPL-2.0

//! Counters of the packets of one network namespace that are dropped before a QP handles them.

use kernel::sync::atomic::{ordering, Atomic};
use rdma::{
    net::skb::{Discard, RxSkb},
    trace,
};
use roce::wire::DropReason;

use crate::device::stats;

/// Numbers of dropped packets, by reason.
pub(crate) struct Drops([Atomic<u64>; Discard::COUNT]);

impl Drops {
    /// Creates counters with the value 0.
    pub(crate) fn new() -> Self {
        Self([const { Atomic::new(0) }; Discard::COUNT])
    }

    /// Returns the count of the reason with this [`Discard::index`].
    pub(crate) fn value(&self, index: usize) -> u64 {
        self.0
            .get(index)
            .map_or(0, |counter| counter.load(ordering::Relaxed))
    }

    /// Returns the number of packets in error: those with invalid headers or a wrong ICRC.
    pub(crate) fn errors(&self) -> u64 {
        let count = |why: Discard| self.value(why.index());
        DropReason::ALL
            .iter()
            .map(|reason| count(Discard::Malformed(*reason)))
            .fold(count(Discard::IpHeader), u64::wrapping_add)
            .wrapping_add(count(Discard::Checksum))
    }

    /// Frees a packet, and counts it as dropped. Any context but hard interrupts.
    pub(crate) fn discard(&self, skb: RxSkb, why: Discard) {
        self.count(why);
        skb.discard(why);
    }

    /// Counts a dropped packet. Any context.
    pub(crate) fn count(&self, why: Discard) {
        trace::drop_before_qp(stats::discard_name(why));
        if let Some(counter) = self.0.get(why.index()) {
            counter.fetch_add(1, ordering::Relaxed);
        }
    }
}
