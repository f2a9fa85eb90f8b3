// SPDX-License-Identifier: GPL-2.0

//! Early packets: request packets of a reliable connection that arrive before a missing one.
//!
//! The engine carries out packets in the order of their PSNs. It asks its host to keep an early
//! packet ([`EarlyPackets::keep_early`](crate::host::EarlyPackets)). Once the engine expects the
//! packet's PSN, the host passes the packet again. So the peer need not send the packet again.

use core::marker::PhantomData;

use crate::psn::Psn;
use crate::qp::Slots;
use crate::time::Duration;

/// A kept packet is ahead of the expected one by fewer PSNs than this. A power of two.
pub const MOST_AHEAD: u32 = 1 << 9;
/// Time for which the host keeps early packets while none of the missing packets arrives. The peer
/// sends these again long before, unless it has given up.
pub(crate) const MOST_KEPT: Duration = Duration(1_000_000_000);

/// Direction of a connection's packets. Each has PSNs of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the requester to the responder. The engine expects
    /// [`Qp::expected_psn`](crate::qp::Qp::expected_psn).
    Request,
    /// READ responses and atomic acknowledgments, from the responder to the requester. The engine
    /// expects [`Qp::oldest_unfinished`](crate::qp::Qp::oldest_unfinished).
    Response,
}

/// Result of the host's attempt to keep a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The host keeps the packet.
    Kept,
    /// The host keeps a packet with this PSN already.
    Already,
    /// The host does not keep the packet.
    Refused,
}

/// The early packets of one direction of a connection, by PSN. `P` is the host's packet.
///
/// The storage `slots` has [`MOST_AHEAD`] places. With less storage, no packet is kept.
///
/// # Invariants
///
/// The packet with the PSN `psn` is in place `psn % MOST_AHEAD`. Its PSN is at least `expected` and
/// less than [`MOST_AHEAD`] ahead of it.
#[derive(Debug)]
pub struct EarlyQueue<P, S> {
    slots: S,
    /// PSN that the engine expected at the last call that gave one.
    expected: Psn,
    count: u32,
    packets: PhantomData<P>,
}

impl<P, S: Slots<Option<P>>> EarlyQueue<P, S> {
    /// Creates an empty queue over the host's storage.
    pub fn new(slots: S) -> Self {
        Self {
            slots,
            expected: Psn::default(),
            count: 0,
            packets: PhantomData,
        }
    }

    /// Returns whether there is no packet.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns whether a packet with this PSN is or could be kept while `expected` is expected.
    pub fn check(&mut self, expected: Psn, psn: Psn) -> Kept {
        self.advance(expected);
        match self.slot(psn) {
            _ if !(1..MOST_AHEAD).contains(&psn.ahead_of(expected)) => Kept::Refused,
            Some(None) => Kept::Kept,
            Some(Some(_)) => Kept::Already,
            None => Kept::Refused,
        }
    }

    /// Keeps a packet for which [`Self::check`] has just returned [`Kept::Kept`].
    pub fn insert(&mut self, psn: Psn, packet: P) {
        if let Some(slot) = self.slot(psn) {
            if slot.replace(packet).is_none() {
                self.count = self.count.saturating_add(1);
            }
        }
    }

    /// Takes the packet that the engine expects now, if it is kept. Drops all earlier ones.
    pub fn take(&mut self, expected: Psn) -> Option<P> {
        self.advance(expected);
        let packet = self.slot(expected)?.take()?;
        self.count = self.count.saturating_sub(1);
        Some(packet)
    }

    /// Returns the PSN of the first packet from `start` on while `expected` is expected.
    pub fn first(&mut self, expected: Psn, start: Psn) -> Option<Psn> {
        self.advance(expected);
        if self.count == 0 {
            return None;
        }
        (start.ahead_of(expected)..MOST_AHEAD)
            .map(|ahead| expected.plus(ahead))
            .find(|psn| self.slots.get(index(*psn)).is_some_and(Option::is_some))
    }

    /// Drops all packets.
    pub fn clear(&mut self) {
        if self.count != 0 {
            self.slots.iter_mut().for_each(|slot| *slot = None);
            self.count = 0;
        }
    }

    /// Drops the packets before `expected`. Drops all packets if `expected` has moved forward by
    /// [`MOST_AHEAD`] or more, or has moved back, as in a new connection.
    fn advance(&mut self, expected: Psn) {
        let passed = expected.ahead_of(self.expected);
        if passed >= MOST_AHEAD {
            self.clear();
        }
        let mut psn = self.expected;
        while self.count != 0 && psn != expected {
            if self.slot(psn).is_some_and(|slot| slot.take().is_some()) {
                self.count = self.count.saturating_sub(1);
            }
            psn = psn.next();
        }
        self.expected = expected;
    }

    /// Returns the place of the packet with this PSN.
    fn slot(&mut self, psn: Psn) -> Option<&mut Option<P>> {
        self.slots.get_mut(index(psn))
    }
}

/// Returns the index of the place of the packet with this PSN.
fn index(psn: Psn) -> usize {
    (psn.get() & MOST_AHEAD.wrapping_sub(1)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    fn queue() -> EarlyQueue<u32, Vec<Option<u32>>> {
        EarlyQueue::new(vec![None; MOST_AHEAD as usize])
    }

    fn keep(queue: &mut EarlyQueue<u32, Vec<Option<u32>>>, expected: Psn, psn: Psn) -> Kept {
        let result = queue.check(expected, psn);
        if result == Kept::Kept {
            queue.insert(psn, psn.get());
        }
        result
    }

    #[test]
    fn packets_come_back_when_they_are_expected() {
        let mut queue = queue();
        let start = Psn::new(0xff_fffe);
        let at = |ahead| start.plus(ahead);
        for ahead in [3, 1, 4] {
            assert_eq!(keep(&mut queue, start, at(ahead)), Kept::Kept);
        }
        assert_eq!(keep(&mut queue, start, at(3)), Kept::Already);
        assert_eq!(queue.first(start, start), Some(at(1)));
        assert_eq!(queue.take(start), None);
        assert_eq!(queue.take(at(1)), Some(at(1).get()));
        assert_eq!(queue.first(at(2), at(2)), Some(at(3)));
        assert_eq!(queue.first(at(2), at(4)), Some(at(4)));
        assert_eq!(queue.first(at(2), at(5)), None);
        assert_eq!(queue.take(at(3)), Some(at(3).get()));
        assert_eq!(queue.count, 1);
        // Packet 4 came another way meanwhile.
        assert_eq!(queue.take(at(5)), None);
        assert!(queue.is_empty());
    }

    #[test]
    fn packets_too_far_ahead_are_refused() {
        let mut queue = queue();
        let start = Psn::new(7);
        for (ahead, result) in [
            (MOST_AHEAD - 1, Kept::Kept),
            (MOST_AHEAD, Kept::Refused),
            (0, Kept::Refused),
            (1 << 23, Kept::Refused),
        ] {
            assert_eq!(
                keep(&mut queue, start, start.plus(ahead)),
                result,
                "{ahead}"
            );
        }
        let mut none = EarlyQueue::<u32, Vec<Option<u32>>>::new(vec![]);
        assert_eq!(none.check(start, start.next()), Kept::Refused);
    }

    #[test]
    fn packets_of_another_connection_are_dropped() {
        let mut queue = queue();
        let start = Psn::new(7);
        keep(&mut queue, start, start.plus(5));
        assert_eq!(queue.take(start.plus(5 + MOST_AHEAD)), None);
        assert!(queue.is_empty());
        keep(&mut queue, start, start.plus(5));
        queue.clear();
        assert_eq!(queue.first(start, start), None);
    }
}
