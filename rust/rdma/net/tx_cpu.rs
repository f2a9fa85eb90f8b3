// SPDX-License-Identifier: GPL-2.0

//! From which CPU a sender's packets leave.
//!
//! Packets wait in queues of the CPU that sent them: its backlog, the transmit queue that a network device has for
//! it. Those that one CPU sent stay in order; those of two may overtake one another. So a sender goes to another
//! CPU only while none of its packets is on the way, as TCP does with transmit queues (`ooo_okay`;
//! Documentation/networking/scaling.rst). A packet from this host to this host is on the way until its receiver has it
//! ([`super::tx_limit::TxCount::reception_is_over`]).

use kernel::{cpu::CpuId, prelude::*};

use crate::support::cpu::is_online;

/// So many times in a row a CPU asks in vain before the sender is passed on to it. Each passing costs one more work item,
/// so two CPUs that post in turn pay one for this many posts at least.
const ASKS: u8 = 4;

/// The CPU from which a sender's packets leave.
pub struct TxCpu {
    cpu: CpuId,
    /// The CPU that asked last, in vain.
    asker: CpuId,
    /// How often it did in a row.
    asks: u8,
}

impl TxCpu {
    /// Of a sender without packets on the way. Any context.
    pub fn new() -> Self {
        let here = CpuId::current();
        Self {
            cpu: here,
            asker: here,
            asks: 0,
        }
    }

    /// The CPU from which the next packets are to leave.
    pub fn cpu(&self) -> CpuId {
        self.cpu
    }

    /// Whether a packet that is sent now, on this CPU, which is `here`, stays behind those before it; then the next
    /// leave from here, too. If not, it is to be sent from [`Self::cpu`], which is online, or later. `arrived` tells
    /// whether none is on the way through this host; this CPU may know when others don't, so a sender is also passed on
    /// from here to a CPU that has asked [`ASKS`] times.
    ///
    /// # Context
    ///
    /// Bottom halves off, until the packet is sent.
    #[inline]
    pub fn admits(&mut self, here: CpuId, arrived: impl FnOnce() -> bool) -> bool {
        (self.cpu == here && self.asks < ASKS) || self.moves(here, arrived)
    }

    #[cold]
    fn moves(&mut self, here: CpuId, arrived: impl FnOnce() -> bool) -> bool {
        if self.cpu == here {
            self.asks = 0;
            let passes = is_online(self.asker) && arrived();
            if passes {
                self.cpu = self.asker;
            }
            return !passes;
        }
        // The queues of a CPU that went offline were given to others, in whatever order.
        let free = !is_online(self.cpu) || arrived();
        if free {
            self.cpu = here;
            self.asks = 0;
        } else if self.asker == here {
            self.asks = self.asks.saturating_add(1);
        } else {
            (self.asker, self.asks) = (here, 1);
        }
        free
    }
}

impl Default for TxCpu {
    fn default() -> Self {
        Self::new()
    }
}

#[kunit_tests(rrxe_lane)]
mod tests {
    use super::*;
    use crate::support::sync::bottom_halves_off;

    #[test]
    fn keeps_to_its_cpu_while_packets_are_in_flight() -> Result {
        let _off = bottom_halves_off();
        let first = CpuId::current();
        // With one CPU there is none.
        let other = CpuId::from_u32(u32::from(first.as_u32() == 0));
        let Some(other) = other.filter(|cpu| is_online(*cpu)) else {
            return Ok(());
        };
        let mut lane = TxCpu::new();
        assert!(lane.admits(first, || false));
        assert!(!lane.admits(other, || false));
        assert_eq!(lane.cpu(), first);
        assert!(lane.admits(other, || true));
        assert_eq!(lane.cpu(), other);
        assert!(lane.admits(other, || false));
        assert!(!lane.admits(first, || false));
        Ok(())
    }

    #[test]
    fn is_passed_on_to_who_asks_often() -> Result {
        let _off = bottom_halves_off();
        let first = CpuId::current();
        let other = CpuId::from_u32(u32::from(first.as_u32() == 0));
        let Some(other) = other.filter(|cpu| is_online(*cpu)) else {
            return Ok(());
        };
        let mut lane = TxCpu::new();
        for _ in 1..ASKS {
            assert!(!lane.admits(other, || false));
            assert!(lane.admits(first, || true));
        }
        assert!(!lane.admits(other, || false));
        // Something is on the way: the count begins anew.
        assert!(lane.admits(first, || false));
        for _ in 0..ASKS {
            assert!(lane.admits(first, || true));
            assert!(!lane.admits(other, || false));
        }
        assert!(!lane.admits(first, || true));
        assert_eq!(lane.cpu(), other);
        assert!(lane.admits(other, || false));
        Ok(())
    }
}
