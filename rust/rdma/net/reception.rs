// SPDX-License-Identifier: GPL-2.0

//! Tracking of packets that this host sends to itself, until their receiver has handled them.
//!
//! Over veth, a bridge or a macvlan, a packet reaches another network namespace of this host in the
//! buffer in which it was sent. There `ip_rcv_core()` (net/ipv4/ip_input.c) and `ip6_rcv_core()`
//! (net/ipv6/ip6_input.c) call the buffer's destructor, before netfilter and the UDP socket handle
//! the packet. Until the socket has it, a later packet that another CPU sends may overtake it.
//!
//! The network stack holds the RCU read lock from before the destructor until the socket's
//! `encap_rcv` has returned (`process_backlog()`, `netif_receive_skb_internal()` and
//! `netif_receive_skb_list_internal()`, net/core/dev.c). So a grace period that begins after the
//! destructor ends after `encap_rcv`.
//!
//! Code with bottom halves disabled on the CPU that received the packets needs no grace period. It
//! does not interrupt the softirq that handles them, so `encap_rcv` has returned.
//!
//! A packet that waits in another queue after its destructor was called is not covered. There are
//! such queues behind a tunnel, on a bridge with `bridge-nf-call-iptables`, and on a host that
//! forwards the packet.

use kernel::{
    cpu::CpuId,
    ffi::c_ulong,
    sync::atomic::{ordering, Atomic},
};

use crate::bindings;

/// The state of reception of one sender's packets by this host.
pub(super) struct Reception {
    /// Cookie of an RCU grace period after which all packets have been handled, or [`UNKNOWN`].
    period: Atomic<c_ulong>,
    /// The CPU that has received packets since all packets were last known to be handled, or
    /// [`NONE`] or [`SEVERAL`].
    cpu: Atomic<u32>,
    /// Whether [`Self::is_over`] has returned `false` since [`Self::record_packet`] last started a
    /// grace period.
    awaited: Atomic<bool>,
}

/// Value that is no cookie: the two lowest bits of a cookie are clear (`rcu_seq_snap()`,
/// kernel/rcu/rcu.h).
const UNKNOWN: c_ulong = 3;

/// Value for no CPU.
const NONE: u32 = u32::MAX;
/// Value for more than one CPU.
const SEVERAL: u32 = u32::MAX - 1;

impl Reception {
    /// Creates the state of a sender none of whose packets was received. Callable in any context.
    pub(super) fn new() -> Self {
        Self {
            period: Atomic::new(UNKNOWN),
            cpu: Atomic::new(NONE),
            awaited: Atomic::new(false),
        }
    }

    /// Records that this CPU is about to handle a packet.
    ///
    /// `is_last` tells whether no other packet of the sender is in flight. Otherwise another call
    /// follows.
    ///
    /// # Context
    ///
    /// The RCU read-side section in which the packet is handled. The packet is still counted as in
    /// flight.
    #[inline]
    pub(super) fn record_packet(&self, is_last: bool) {
        let here = CpuId::current().as_u32();
        let before = self.cpu.load(ordering::Relaxed);
        if before != here && self.cpu.cmpxchg(NONE, here, ordering::Relaxed).is_err() {
            self.cpu.store(SEVERAL, ordering::Relaxed);
        }
        let period = if is_last { self.next_period() } else { UNKNOWN };
        self.period.store(period, ordering::Relaxed);
    }

    /// Returns the cookie of the next grace period.
    ///
    /// If [`Self::is_over`] has returned `false` meanwhile, this function starts the grace period.
    /// Otherwise the function only costs two memory barriers, and the grace period may never begin
    /// on an idle machine.
    fn next_period(&self) -> c_ulong {
        if self.awaited.load(ordering::Relaxed) {
            self.awaited.store(false, ordering::Relaxed);
            return start_grace_period();
        }
        // SAFETY: The function has no requirements.
        unsafe { bindings::get_state_synchronize_rcu() }
    }

    /// Returns whether all packets have been handled.
    ///
    /// If not, this function starts a grace period, and a call after its end returns `true`. If
    /// packets are sent meanwhile, a grace period that begins after the last of them must end.
    ///
    /// # Context
    ///
    /// Bottom halves disabled, and not in the handler of one of the packets. No packet of the
    /// sender may be in flight, and none may be sent during the call.
    pub(super) fn is_over(&self) -> bool {
        let by = self.cpu.load(ordering::Relaxed);
        let period = self.period.load(ordering::Relaxed);
        if by == NONE || by == CpuId::current().as_u32() || has_ended(period) {
            self.cpu.store(NONE, ordering::Relaxed);
            return true;
        }
        let started = start_grace_period();
        if period == UNKNOWN {
            // No other code writes the field while no packet is in flight.
            self.period.store(started, ordering::Relaxed);
        }
        self.awaited.store(true, ordering::Relaxed);
        false
    }
}

/// Returns whether `period` is known and has ended. Callable in any context.
fn has_ended(period: c_ulong) -> bool {
    // SAFETY: `period` is not `UNKNOWN`, so it is a cookie of RCU.
    period != UNKNOWN && unsafe { bindings::poll_state_synchronize_rcu(period) }
}

/// Starts the next grace period, and returns its cookie. Callable in any context but NMIs.
fn start_grace_period() -> c_ulong {
    // SAFETY: The function requires a context other than an NMI, as this function's documentation
    // does.
    unsafe { bindings::start_poll_synchronize_rcu() }
}
