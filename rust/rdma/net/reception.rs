// SPDX-License-Identifier: GPL-2.0

//! Packets that this host sends to itself, while it receives them.
//!
//! Over veth, a bridge or a macvlan a packet reaches another network namespace of this host, and stays the same buffer.
//! There `ip_rcv_core()` (net/ipv4/ip_input.c) and `ip6_rcv_core()` (net/ipv6/ip6_input.c) call its destructor, before
//! netfilter and the UDP socket see it. Until the socket has it, a packet that another CPU sends may overtake it.
//!
//! The network stack holds the RCU read lock from before the destructor until the socket's `encap_rcv` has returned
//! (`process_backlog()`, `netif_receive_skb_internal()` and `netif_receive_skb_list_internal()`, net/core/dev.c). So a
//! grace period that begins after the destructor ends after `encap_rcv`.
//!
//! Code with bottom halves off on the CPU that received the packets needs no grace period: it does not interrupt their
//! handler, so the handler has returned.
//!
//! A packet that waits in one more queue after its destructor is not covered: behind a tunnel, on a bridge with
//! `bridge-nf-call-iptables`, and on a host that forwards it.

use kernel::{
    cpu::CpuId,
    ffi::c_ulong,
    sync::atomic::{ordering, Atomic},
};

use crate::bindings;

/// The reception of a sender's packets by this host.
pub(super) struct Reception {
    /// When this grace period has ended, all have been handled: a cookie of RCU, or [`UNKNOWN`].
    period: Atomic<c_ulong>,
    /// The CPU that has received packets since all were known to be handled, [`NONE`] or [`SEVERAL`].
    cpu: Atomic<u32>,
    /// The sender has asked in vain.
    awaited: Atomic<bool>,
}

/// Not a cookie: the two lowest bits of a cookie are clear (`rcu_seq_snap()`, kernel/rcu/rcu.h).
const UNKNOWN: c_ulong = 3;

/// No CPU.
const NONE: u32 = u32::MAX;
/// More than one CPU.
const SEVERAL: u32 = u32::MAX - 1;

impl Reception {
    /// Of a sender none of whose packets was received yet. Any context.
    pub(super) fn new() -> Self {
        Self {
            period: Atomic::new(UNKNOWN),
            cpu: Atomic::new(NONE),
            awaited: Atomic::new(false),
        }
    }

    /// This CPU is about to handle a packet. `is_last` of those in flight; if not, another call follows.
    ///
    /// # Context
    ///
    /// The RCU read-side section in which the packet is handled. The packet still counts as one in flight.
    #[inline]
    pub(super) fn begins(&self, is_last: bool) {
        let here = CpuId::current().as_u32();
        let before = self.cpu.load(ordering::Relaxed);
        if before != here && self.cpu.cmpxchg(NONE, here, ordering::Relaxed).is_err() {
            self.cpu.store(SEVERAL, ordering::Relaxed);
        }
        let period = if is_last { self.next() } else { UNKNOWN };
        self.period.store(period, ordering::Relaxed);
    }

    /// The next grace period. If the sender has asked in vain, this makes it begin; else it may never begin on an idle
    /// machine, and costs two memory barriers.
    fn next(&self) -> c_ulong {
        if self.awaited.load(ordering::Relaxed) {
            self.awaited.store(false, ordering::Relaxed);
            return begin();
        }
        // SAFETY: No requirements.
        unsafe { bindings::get_state_synchronize_rcu() }
    }

    /// Whether all packets have been handled. If not, the answer changes within some grace periods, also if a
    /// packet is sent meanwhile.
    ///
    /// # Context
    ///
    /// Bottom halves off, and not in the handler of one of the packets. No packet is in flight, and none is sent during
    /// the call.
    pub(super) fn is_over(&self) -> bool {
        let by = self.cpu.load(ordering::Relaxed);
        let period = self.period.load(ordering::Relaxed);
        if by == NONE || by == CpuId::current().as_u32() || has_ended(period) {
            self.cpu.store(NONE, ordering::Relaxed);
            return true;
        }
        let begun = begin();
        if period == UNKNOWN {
            // Nobody else writes it while no packet is in flight.
            self.period.store(begun, ordering::Relaxed);
        }
        self.awaited.store(true, ordering::Relaxed);
        false
    }
}

/// Whether a grace period is known and has ended. Any context.
fn has_ended(period: c_ulong) -> bool {
    // SAFETY: The argument is a cookie of RCU.
    period != UNKNOWN && unsafe { bindings::poll_state_synchronize_rcu(period) }
}

/// Makes the next grace period begin. Any context but NMIs.
fn begin() -> c_ulong {
    // SAFETY: No requirements but the context.
    unsafe { bindings::start_poll_synchronize_rcu() }
}
