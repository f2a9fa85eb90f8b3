// SPDX-License-Identifier: GPL-2.0

//! Counters of a device: those of rdma_rxe, under the same names, and what became of other packets.

use kernel::{
    prelude::*,
    sync::atomic::{ordering, Atomic},
};
use rdma::{device::stats::CounterName, net::skb::Discard};
use roce::host::{Count, QpDropReason};

use crate::net::drops::Drops;

/// What is counted for users to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Counter {
    SentPackets,
    ReceivedPackets,
    DuplicateRequest,
    OutOfSeqRequest,
    ReceivedRnrNak,
    SentRnrNak,
    ReceivedSeqNak,
    AckDeferred,
    RetryExceeded,
    RnrRetryExceeded,
    RequesterRetry,
    SendError,
    LinkDowned,
    RdmaSends,
    RdmaReceives,
    SentBytes,
    ReceivedBytes,
    /// Packets for a QP that come from, or go to, an address that isn't its path's.
    DropPeer,
    /// Packets for a QP by a network device that doesn't lead to their address.
    DropInterface,
    /// Packets that an engine dropped; the others are for its other reasons.
    DropService,
    DropState,
    DropPkey,
    DropQkey,
    DropNoReceive,
    DropTooLong,
    DropInvalid,
    DropAccess,
    DropUnasked,
    /// More management datagrams than ib_core handles.
    DropRate,
    /// Requests for connections that name a QP which has one.
    DropClaim,
}

/// How many there are.
const LEN: usize = Counter::DropClaim as usize + 1;

/// Their names, in the order of [`Counter`]; then those of the drops that no device can be blamed
/// for, in the order of [`Discard::index`].
pub(crate) static NAMES: [CounterName; LEN + Discard::COUNT] = [
    CounterName::new(c"sent_pkts"),
    CounterName::new(c"rcvd_pkts"),
    CounterName::new(c"duplicate_request"),
    CounterName::new(c"out_of_seq_request"),
    CounterName::new(c"rcvd_rnr_err"),
    CounterName::new(c"send_rnr_err"),
    CounterName::new(c"rcvd_seq_err"),
    CounterName::new(c"ack_deferred"),
    CounterName::new(c"retry_exceeded_err"),
    CounterName::new(c"retry_rnr_exceeded_err"),
    CounterName::new(c"completer_retry_err"),
    CounterName::new(c"send_err"),
    CounterName::new(c"link_downed"),
    CounterName::new(c"rdma_sends"),
    CounterName::new(c"rdma_recvs"),
    CounterName::new(c"sent_bytes"),
    CounterName::new(c"rcvd_bytes"),
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

/// The counters of one device. Any context.
pub(crate) struct Counters([Atomic<u64>; LEN]);

impl Counters {
    /// All zero.
    pub(crate) fn new() -> Self {
        Self([const { Atomic::new(0) }; LEN])
    }

    /// Adds `amount`.
    #[inline]
    pub(crate) fn add(&self, counter: Counter, amount: u64) {
        if let Some(value) = self.0.get(counter as usize) {
            value.add(amount, ordering::Relaxed);
        }
    }

    /// Counts a packet that was sent, of so many bytes of payload.
    #[inline]
    pub(crate) fn add_sent(&self, length: u32) {
        self.add(Counter::SentPackets, 1);
        self.add(Counter::SentBytes, u64::from(length));
    }

    /// Counts what an engine counts, and says where.
    pub(crate) fn count(&self, what: Count) -> Counter {
        let counter = match what {
            Count::DuplicateRequest => Counter::DuplicateRequest,
            Count::OutOfSeqRequest => Counter::OutOfSeqRequest,
            Count::RcvdRnrErr => Counter::ReceivedRnrNak,
            Count::SendRnrErr => Counter::SentRnrNak,
            Count::RcvdSeqErr => Counter::ReceivedSeqNak,
            Count::AckDeferred => Counter::AckDeferred,
            Count::RetryExceeded => Counter::RetryExceeded,
            Count::RnrRetryExceeded => Counter::RnrRetryExceeded,
            Count::CompleterRetry => Counter::RequesterRetry,
            Count::SendErr => Counter::SendError,
            Count::RdmaSends => Counter::RdmaSends,
            Count::RdmaRecvs => Counter::RdmaReceives,
            Count::Dropped(reason) => drop_counter(reason),
        };
        self.add(counter, 1);
        counter
    }

    /// The value of a counter.
    pub(crate) fn get(&self, counter: Counter) -> u64 {
        self.own_value(counter as usize)
    }

    /// Adds what `other` counted.
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

    /// The value of a counter that is kept here; zero for those of the namespace.
    pub(crate) fn own_value(&self, index: usize) -> u64 {
        self.0
            .get(index)
            .map_or(0, |value| value.load(ordering::Relaxed))
    }

    /// The value of the counter with the name [`NAMES`]`[index]`, given the drops of the device's
    /// namespace.
    pub(crate) fn value(&self, index: usize, drops: &Drops) -> u64 {
        match index.checked_sub(LEN) {
            None => self.own_value(index),
            Some(reason) => drops.value(reason),
        }
    }
}

/// The name of a counter.
pub(crate) fn name(counter: Counter) -> &'static CStr {
    NAMES.get(counter as usize).map_or(c"", CounterName::text)
}

/// The name of the counter of drops of this kind.
pub(crate) fn discard_name(why: Discard) -> &'static CStr {
    let index = LEN.saturating_add(why.index());
    NAMES.get(index).map_or(c"", CounterName::text)
}

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
        QpDropReason::Unasked => Counter::DropUnasked,
    }
}
