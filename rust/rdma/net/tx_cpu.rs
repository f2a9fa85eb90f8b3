// SPDX-License-Identifier: GPL-2.0

//! The tx CPU of a sender, such as a QP: the CPU that sends the sender's packets, so that they stay
//! in order.
//!
//! Packets wait in queues of the CPU that sent them: its backlog, and the transmit queue that a
//! network device uses for that CPU. Packets of one CPU stay in order. Packets of two CPUs may
//! overtake one another. So the tx CPU changes only while none of the sender's packets is in
//! flight, or if it has gone offline. TCP changes transmit queues in the same way (`ooo_okay`;
//! Documentation/networking/scaling.rst).
//!
//! A packet from this host to this host is in flight until its receiver has handled it
//! ([`super::tx_limit::TxCount::reception_is_over`]).

use kernel::{cpu::CpuId, prelude::*};

use crate::support::cpu::is_online;

/// Number of consecutive refusals after which another CPU becomes the tx CPU.
///
/// A change costs one more work item. If two CPUs post alternately, there is at most one change for
/// this number of posts.
const MAX_REFUSALS: u8 = 4;

/// The tx CPU of a sender.
pub struct TxCpu {
    /// The tx CPU.
    cpu: CpuId,
    /// The CPU that was refused last.
    refused: CpuId,
    /// Number of consecutive refusals of `refused`.
    refusals: u8,
}

impl TxCpu {
    /// Creates the state of a sender without packets in flight. Its tx CPU is this CPU. Callable in
    /// any context.
    pub fn new() -> Self {
        let here = CpuId::current();
        Self {
            cpu: here,
            refused: here,
            refusals: 0,
        }
    }

    /// Returns the tx CPU.
    pub fn cpu(&self) -> CpuId {
        self.cpu
    }

    /// Returns whether this CPU, `here`, may send a packet now, behind all earlier packets of the
    /// sender. If so, this CPU is the tx CPU from now on.
    ///
    /// Otherwise the caller has [`Self::cpu`], which is online, send the packet, or sends it later.
    ///
    /// `arrived` returns whether none of the sender's packets is in flight in this host. The tx CPU
    /// may know that when other CPUs do not. So the tx CPU is refused, too, if `arrived` returns
    /// `true` after another CPU was refused [`MAX_REFUSALS`] times. That CPU then becomes the tx
    /// CPU.
    ///
    /// # Context
    ///
    /// Bottom halves disabled until the packet is sent.
    #[inline]
    pub fn admits(&mut self, here: CpuId, arrived: impl FnOnce() -> bool) -> bool {
        (self.cpu == here && self.refusals < MAX_REFUSALS) || self.changes(here, arrived)
    }

    /// Implements [`Self::admits`] if the tx CPU may have to change.
    #[cold]
    fn changes(&mut self, here: CpuId, arrived: impl FnOnce() -> bool) -> bool {
        if self.cpu == here {
            self.refusals = 0;
            let hands_over = is_online(self.refused) && arrived();
            if hands_over {
                self.cpu = self.refused;
            }
            return !hands_over;
        }
        // If the tx CPU went offline, the kernel has moved its queues to other CPUs, in no
        // particular order.
        let free = !is_online(self.cpu) || arrived();
        if free {
            self.cpu = here;
            self.refusals = 0;
        } else if self.refused == here {
            self.refusals = self.refusals.saturating_add(1);
        } else {
            (self.refused, self.refusals) = (here, 1);
        }
        free
    }
}

impl Default for TxCpu {
    fn default() -> Self {
        Self::new()
    }
}

#[kunit_tests(rrxe_tx_cpu)]
mod tests {
    use super::*;
    use crate::support::sync::bottom_halves_off;

    #[test]
    fn keeps_to_its_cpu_while_packets_are_in_flight() -> Result {
        let _off = bottom_halves_off();
        let first = CpuId::current();
        // A machine with one CPU has no other one.
        let other = CpuId::from_u32(u32::from(first.as_u32() == 0));
        let Some(other) = other.filter(|cpu| is_online(*cpu)) else {
            return Ok(());
        };
        let mut tx_cpu = TxCpu::new();
        assert!(tx_cpu.admits(first, || false));
        assert!(!tx_cpu.admits(other, || false));
        assert_eq!(tx_cpu.cpu(), first);
        assert!(tx_cpu.admits(other, || true));
        assert_eq!(tx_cpu.cpu(), other);
        assert!(tx_cpu.admits(other, || false));
        assert!(!tx_cpu.admits(first, || false));
        Ok(())
    }

    #[test]
    fn goes_to_a_cpu_that_was_refused_often() -> Result {
        let _off = bottom_halves_off();
        let first = CpuId::current();
        let other = CpuId::from_u32(u32::from(first.as_u32() == 0));
        let Some(other) = other.filter(|cpu| is_online(*cpu)) else {
            return Ok(());
        };
        let mut tx_cpu = TxCpu::new();
        for _ in 1..MAX_REFUSALS {
            assert!(!tx_cpu.admits(other, || false));
            assert!(tx_cpu.admits(first, || true));
        }
        assert!(!tx_cpu.admits(other, || false));
        // A packet is in flight, so the count of refusals begins anew.
        assert!(tx_cpu.admits(first, || false));
        for _ in 0..MAX_REFUSALS {
            assert!(tx_cpu.admits(first, || true));
            assert!(!tx_cpu.admits(other, || false));
        }
        assert!(!tx_cpu.admits(first, || true));
        assert_eq!(tx_cpu.cpu(), other);
        assert!(tx_cpu.admits(other, || false));
        Ok(())
    }
}
