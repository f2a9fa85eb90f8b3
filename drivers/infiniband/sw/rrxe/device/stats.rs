// SPDX-License-Identifier: GPL-2.0

//! Counters of a device: those of rdma_rxe, under the same names, those of sent trains and bursts
//! of packets, and counters of dropped packets by reason.

use kernel::{
    prelude::*,
    sync::atomic::{ordering, Atomic},
};
use rdma::{device::stats::CounterName, net::skb::Discard};
use roce::host::{Count, QpDropReason};

use crate::net::drops::Drops;

/// A counter of a device, which `rdma statistic` and sysfs show under the name in [`NAMES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Counter {
    /// Packets sent by QPs.
    SentPackets,
    /// Packets received by QPs.
    ReceivedPackets,
    /// Requests that came again after they had been carried out.
    DuplicateRequest,
    /// Requests with a PSN ahead of the expected one; on a UC QP, with any but the expected one.
    OutOfSeqRequest,
    /// Requests with a PSN ahead of the expected one that are kept until the missing ones arrive.
    EarlyRequest,
    /// READ responses and atomic acknowledgments that are kept until earlier ones arrive.
    EarlyResponse,
    /// RNR NAKs received, except those that arrive while the requester waits for an earlier one.
    ReceivedRnrNak,
    /// RNR NAKs sent.
    SentRnrNak,
    /// NAKs received with the code for a PSN sequence error.
    ReceivedSeqNak,
    /// Acknowledgments not sent because a later one acknowledges their packets, too.
    AckDeferred,
    /// Requests that failed because the transport retries were exceeded.
    RetryExceeded,
    /// Requests that failed because the RNR retries were exceeded.
    RnrRetryExceeded,
    /// Times that a requester went back to its oldest unacknowledged PSN after a loss. A return
    /// after an RNR NAK isn't counted here.
    RequesterRetry,
    /// Times that a requester sent its oldest unacknowledged packet again, because its
    /// retransmission timeout had ended.
    RequesterRto,
    /// Packets that could not be sent.
    SendError,
    /// Times that the port ceased to be active. [`Link`](crate::device::link::Link) keeps the
    /// value.
    LinkDowned,
    /// SEND messages that completed at the requester.
    RdmaSends,
    /// Messages that completed a receive WQE.
    RdmaReceives,
    /// Bytes of payload sent.
    SentBytes,
    /// Bytes of payload received.
    ReceivedBytes,
    /// Trains of packets sent to QPs of the device.
    SentTrains,
    /// Bursts of packets passed to the network stack as one buffer.
    SentBursts,
    /// Packets for a connected QP whose addresses are not those of the QP's path, or that a QP of
    /// this host other than its peer sent. Packets for a connected QP without a peer. Datagrams
    /// to an address that isn't the device's.
    DropPeer,
    /// Packets for a QP that came in through a network device on which their destination address
    /// isn't reachable.
    DropInterface,
    /// Packets dropped by the engine for [`QpDropReason::Service`]. The following eight counters
    /// are for the engine's other reasons.
    DropService,
    DropState,
    DropPkey,
    DropQkey,
    DropNoReceive,
    DropTooLong,
    DropInvalid,
    DropAccess,
    DropUnsolicited,
    /// Management datagrams beyond the limits on the work of ib_core (`gsi.rs`), or without memory
    /// for the probe that must follow them.
    DropRate,
    /// Connection requests (CM REQ) that were not sent: they named a QP that has a connection.
    DropConnected,
}

/// Number of counters.
const LEN: usize = Counter::DropConnected as usize + 1;

/// Names of the counters, in the order of [`Counter`]. They are followed by the names of the
/// namespace's drop counters, in the order of [`Discard::index`]. Those have the same value at each
/// device of the namespace.
pub(crate) static NAMES: [CounterName; LEN + Discard::COUNT] = [
    CounterName::new(c"sent_pkts"),
    CounterName::new(c"rcvd_pkts"),
    CounterName::new(c"duplicate_request"),
    CounterName::new(c"out_of_seq_request"),
    CounterName::new(c"early_request"),
    CounterName::new(c"early_response"),
    CounterName::new(c"rcvd_rnr_err"),
    CounterName::new(c"send_rnr_err"),
    CounterName::new(c"rcvd_seq_err"),
    CounterName::new(c"ack_deferred"),
    CounterName::new(c"retry_exceeded_err"),
    CounterName::new(c"retry_rnr_exceeded_err"),
    CounterName::new(c"completer_retry_err"),
    CounterName::new(c"rto_resends"),
    CounterName::new(c"send_err"),
    CounterName::new(c"link_downed"),
    CounterName::new(c"rdma_sends"),
    CounterName::new(c"rdma_recvs"),
    CounterName::new(c"sent_bytes"),
    CounterName::new(c"rcvd_bytes"),
    CounterName::new(c"sent_trains"),
    CounterName::new(c"sent_bursts"),
    CounterName::new(c"drop_peer"),
    CounterName::new(c"drop_interface"),
    CounterName::new(c"drop_service"),
    CounterName::new(c"drop_state"),
    CounterName::new(c"drop_pkey"),
    CounterName::new(c"drop_qkey"),
    CounterName::new(c"drop_no_receive"),
    CounterName::new(c"drop_too_long"),
    CounterName::new(c"drop_invalid"),
    CounterName::new(c"drop_access"),
    CounterName::new(c"drop_unasked"),
    CounterName::new(c"drop_rate"),
    CounterName::new(c"drop_claim"),
    CounterName::new(c"drop_ip_header"),
    CounterName::new(c"drop_icrc"),
    CounterName::new(c"drop_no_qp"),
    CounterName::new(c"drop_overflow"),
    CounterName::new(c"drop_local"),
    CounterName::new(c"drop_short"),
    CounterName::new(c"drop_version"),
    CounterName::new(c"drop_opcode"),
    CounterName::new(c"drop_pad"),
    CounterName::new(c"drop_length"),
    CounterName::new(c"drop_syndrome"),
];

/// One set of a device's counters. Any context.
pub(crate) struct Counters([Atomic<u64>; LEN]);

impl Counters {
    /// Creates a set with the value 0 for each counter.
    pub(crate) fn new() -> Self {
        Self([const { Atomic::new(0) }; LEN])
    }

    /// Adds `amount` to a counter.
    #[inline]
    pub(crate) fn add(&self, counter: Counter, amount: u64) {
        if let Some(value) = self.0.get(counter as usize) {
            value.add(amount, ordering::Relaxed);
        }
    }

    /// Counts `count` sent packets with `length` bytes of payload in all.
    #[inline]
    pub(crate) fn add_sent(&self, count: u32, length: u32) {
        self.add(Counter::SentPackets, u64::from(count));
        self.add(Counter::SentBytes, u64::from(length));
    }

    /// Counts an event that an engine reports, and returns its counter.
    pub(crate) fn count(&self, what: Count) -> Counter {
        let counter = match what {
            Count::DuplicateRequest => Counter::DuplicateRequest,
            Count::OutOfSeqRequest => Counter::OutOfSeqRequest,
            Count::EarlyRequest => Counter::EarlyRequest,
            Count::EarlyResponse => Counter::EarlyResponse,
            Count::RcvdRnrErr => Counter::ReceivedRnrNak,
            Count::SendRnrErr => Counter::SentRnrNak,
            Count::RcvdSeqErr => Counter::ReceivedSeqNak,
            Count::AckDeferred => Counter::AckDeferred,
            Count::RetryExceeded => Counter::RetryExceeded,
            Count::RnrRetryExceeded => Counter::RnrRetryExceeded,
            Count::CompleterRetry => Counter::RequesterRetry,
            Count::Rto => Counter::RequesterRto,
            Count::SendErr => Counter::SendError,
            Count::RdmaSends => Counter::RdmaSends,
            Count::RdmaRecvs => Counter::RdmaReceives,
            Count::Dropped(reason) => drop_counter(reason),
        };
        self.add(counter, 1);
        counter
    }

    /// Returns the value of a counter.
    pub(crate) fn get(&self, counter: Counter) -> u64 {
        self.own_value(counter as usize)
    }

    /// Adds the values of `other` to this set.
    pub(crate) fn absorb(&self, other: &Self) {
        for (sum, value) in self.0.iter().zip(&other.0) {
            sum.add(value.load(ordering::Relaxed), ordering::Relaxed);
        }
    }

    /// Sets the value of a counter that is kept elsewhere.
    pub(crate) fn set(&self, counter: Counter, value: u64) {
        if let Some(place) = self.0.get(counter as usize) {
            place.store(value, ordering::Relaxed);
        }
    }

    /// Returns the value of the counter of this index in the set; zero for the indexes of the
    /// namespace's drop counters.
    pub(crate) fn own_value(&self, index: usize) -> u64 {
        self.0
            .get(index)
            .map_or(0, |value| value.load(ordering::Relaxed))
    }

    /// Returns the value of the counter with the name [`NAMES`]`[index]`. `drops` are the drop
    /// counters of the device's network namespace.
    pub(crate) fn value(&self, index: usize, drops: &Drops) -> u64 {
        match index.checked_sub(LEN) {
            None => self.own_value(index),
            Some(reason) => drops.value(reason),
        }
    }
}

/// Returns the name of a counter.
pub(crate) fn name(counter: Counter) -> &'static CStr {
    NAMES.get(counter as usize).map_or(c"", CounterName::text)
}

/// Returns the name of the namespace's drop counter for this reason.
pub(crate) fn discard_name(why: Discard) -> &'static CStr {
    let index = LEN.saturating_add(why.index());
    NAMES.get(index).map_or(c"", CounterName::text)
}

/// Returns the counter of packets that an engine dropped for this reason.
pub(crate) fn drop_counter(reason: QpDropReason) -> Counter {
    match reason {
        QpDropReason::Service => Counter::DropService,
        QpDropReason::State => Counter::DropState,
        QpDropReason::Pkey => Counter::DropPkey,
        QpDropReason::Qkey => Counter::DropQkey,
        QpDropReason::NoReceive => Counter::DropNoReceive,
        QpDropReason::TooLong => Counter::DropTooLong,
        QpDropReason::Invalid => Counter::DropInvalid,
        QpDropReason::Access => Counter::DropAccess,
        QpDropReason::Unsolicited => Counter::DropUnsolicited,
    }
}
