// SPDX-License-Identifier: GPL-2.0

//! The records of READs, atomics, ATOMIC WRITEs and FLUSHes: the data to answer them, and to answer
//! them again (IBTA 1.x §9.7.5.1.5).
//!
//! The records form a ring, oldest first and in the order of their PSNs. If there are already
//! `max_dest_rd_atomic` records, a new one replaces the oldest one. The peer must have seen the
//! answer to that one, or it would not have sent another request.
//!
//! A record may be older than half of all PSNs, where a comparison of PSNs is ambiguous. So a
//! record also has a position, a count of PSNs that doesn't wrap.

use crate::ids::Srqn;
use crate::psn::Psn;
use crate::qp::Slots;
use crate::wire::packet::{AtomicEth, NakCode, Reth};
use crate::wr::FlushKind;

/// A request that can be answered again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recorded {
    /// An RDMA READ.
    Read(Reth),
    /// An atomic, and the original value of the word.
    Atomic(AtomicEth, u64),
    /// An ATOMIC WRITE.
    AtomicWrite(Reth),
    /// A FLUSH.
    Flush(FlushKind, Reth),
}

/// The part of an answer that is still to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pending {
    /// Nothing is to be sent.
    Nothing,
    /// The whole answer, of one packet.
    Whole,
    /// A series of READ responses.
    Stream(Stream),
    /// A NAK: the packet of the answer with this PSN can't be sent again.
    Refused(Psn, NakCode),
}

/// READ responses that are still to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stream {
    /// Index of the next packet, counted from the PSN of the original request.
    pub(super) next: u32,
    /// End of the response, in bytes from the address of the original request.
    pub(super) end: u32,
    /// The FIRST packet of this response was sent.
    pub(super) begun: bool,
    /// The peer requested the data before.
    pub(super) again: bool,
    /// Index of the packet from which the response goes on after lost packets were sent again. 0 if
    /// no other packets are due.
    pub(super) rest: u32,
    /// The peer requested the data of the rest before.
    pub(super) rest_again: bool,
}

impl Stream {
    /// Returns the packets of a READ of `length` bytes that are due after lost ones.
    pub(super) fn after_lost(&self, length: u32) -> Option<Self> {
        (self.rest != 0).then_some(Self {
            next: self.rest,
            end: length,
            begun: true,
            again: self.rest_again,
            rest: 0,
            rest_again: false,
        })
    }
}

/// Number of times that an answer was sent in full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    Never,
    Once,
    Again,
}

/// A record: a request that was carried out, and the state of its answer.
#[derive(Clone, Copy, Debug)]
pub struct Replay {
    /// The request, with the values that its answer needs.
    pub(super) request: Recorded,
    /// PSN of the request, and of the first packet of the answer.
    pub(super) psn: Psn,
    /// Position of that PSN: the number of PSNs that requests had taken before.
    pub(super) position: u64,
    /// Number of PSNs that the answer takes.
    pub(super) psns: u32,
    /// Message sequence number of the answer.
    pub(super) msn: u32,
    /// The part of the answer that is due.
    pub(super) pending: Pending,
    /// Number of times that the answer was sent.
    pub(super) sent: Sent,
    /// The shared receive queue that an XRC request named.
    pub(super) srqn: Option<Srqn>,
}

impl Default for Replay {
    fn default() -> Self {
        Self {
            request: Recorded::Read(Reth {
                va: 0,
                rkey: crate::ids::Rkey(0),
                length: 0,
            }),
            psn: Psn::default(),
            position: 0,
            psns: 0,
            msn: 0,
            pending: Pending::Nothing,
            sent: Sent::Never,
            srqn: None,
        }
    }
}

impl Replay {
    /// Creates the record of a request that was just carried out. Its answer is due.
    pub(super) fn new(request: Recorded, psn: Psn, position: u64, psns: u32, msn: u32) -> Self {
        let pending = match request {
            Recorded::Read(reth) => Pending::Stream(Stream {
                next: 0,
                end: reth.length,
                begun: false,
                again: false,
                rest: 0,
                rest_again: false,
            }),
            _ => Pending::Whole,
        };
        Self {
            request,
            psn,
            position,
            psns,
            msn,
            pending,
            sent: Sent::Never,
            srqn: None,
        }
    }

    /// Returns the PSN of the last packet of the answer.
    pub(super) fn last_psn(&self) -> Psn {
        self.psn.plus(self.psns).minus(1)
    }

    /// Returns the position after the last packet of the answer.
    pub(super) fn end(&self) -> u64 {
        self.position.saturating_add(u64::from(self.psns))
    }

    /// Returns the index of the packet of the answer at `position`, or `None` if the answer has no
    /// such packet.
    pub(super) fn packet_at(&self, position: u64) -> Option<u32> {
        let packet = position.checked_sub(self.position)?;
        u32::try_from(packet)
            .ok()
            .filter(|packet| *packet < self.psns)
    }

    /// Notes that the last packet of the answer was sent.
    pub(super) fn finish(&mut self) {
        self.pending = Pending::Nothing;
        self.sent = match self.sent {
            Sent::Never => Sent::Once,
            Sent::Once | Sent::Again => Sent::Again,
        };
    }
}

/// The records of one QP.
///
/// Records are numbered in the order of their creation. Record `n` is at index `n mod capacity` of
/// the storage.
///
/// # Invariants
///
/// `oldest ≤ cursor ≤ next`, `next − oldest ≤ capacity`, and no record before `cursor` is
/// pending.
#[derive(Debug)]
pub(super) struct Ring<R> {
    slots: R,
    oldest: u64,
    /// Number of the first record that may be pending.
    cursor: u64,
    next: u64,
}

/// The number of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number(u64);

impl<R: Slots<Replay>> Ring<R> {
    /// Creates an empty ring over the host's storage.
    pub(super) fn new(slots: R) -> Self {
        Self {
            slots,
            oldest: 0,
            cursor: 0,
            next: 0,
        }
    }

    /// Returns the number of records that fit the storage.
    pub(super) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Moves all records to `slots`, if that is longer. Returns the storage that isn't used.
    pub(super) fn enlarge(&mut self, mut slots: R) -> R {
        if slots.len() <= self.capacity() {
            return slots;
        }
        for number in self.oldest..self.next {
            let slot = number
                .checked_rem(slots.len() as u64)
                .and_then(|index| slots.get_mut(index as usize));
            if let (Some(slot), Some(replay)) = (slot, self.get(Number(number))) {
                *slot = *replay;
            }
        }
        core::mem::replace(&mut self.slots, slots)
    }

    /// Deletes all records.
    pub(super) fn clear(&mut self) {
        self.oldest = self.next;
        self.cursor = self.next;
    }

    /// Checks that the peer may send one more request whose answer is remembered. `limit` is the
    /// number of answers to remember.
    ///
    /// # Errors
    ///
    /// Returns `InvalidRequest` if no answer can be remembered, or if the answer to delete hasn't
    /// been sent yet (§9.7.4.1.7).
    pub(super) fn check_room(&self, limit: u8) -> Result<(), NakCode> {
        let limit = self.bound(limit);
        if limit == 0 {
            return Err(NakCode::InvalidRequest);
        }
        let last_forgotten = self.next.checked_sub(limit);
        let unsent = last_forgotten
            .filter(|number| *number >= self.oldest)
            .and_then(|number| self.get(Number(number)))
            .is_some_and(|replay| replay.sent == Sent::Never);
        if unsent {
            return Err(NakCode::InvalidRequest);
        }
        Ok(())
    }

    /// Adds a record and deletes the oldest ones, so that at most `limit` remain. The caller has
    /// called [`Self::check_room`] with this limit before.
    pub(super) fn push(&mut self, replay: Replay, limit: u8) {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        if let Some(index) = self.index(number) {
            if let Some(slot) = self.slots.get_mut(index) {
                *slot = replay;
            }
        }
        self.oldest = self.oldest.max(self.next.saturating_sub(self.bound(limit)));
        self.cursor = self.cursor.max(self.oldest);
    }

    /// Returns the number of the record whose answer has a packet at `position`.
    pub(super) fn find(&self, position: u64) -> Option<Number> {
        (self.oldest..self.next).rev().map(Number).find(|number| {
            self.get(*number)
                .is_some_and(|replay| replay.packet_at(position).is_some())
        })
    }

    /// Returns the newest record.
    pub(super) fn newest(&self) -> Option<&Replay> {
        self.next
            .checked_sub(1)
            .filter(|number| *number >= self.oldest)
            .and_then(|number| self.get(Number(number)))
    }

    /// Returns the record with this number, or `None` if it was deleted.
    pub(super) fn get(&self, number: Number) -> Option<&Replay> {
        self.slots.get(self.find_index(number)?)
    }

    /// Returns the record with this number for writing, or `None` if it was deleted.
    pub(super) fn get_mut(&mut self, number: Number) -> Option<&mut Replay> {
        let index = self.find_index(number)?;
        self.slots.get_mut(index)
    }

    /// Returns the index of a record, or `None` if it was deleted.
    fn find_index(&self, number: Number) -> Option<usize> {
        let is_known = (self.oldest..self.next).contains(&number.0);
        is_known.then(|| self.index(number.0))?
    }

    /// Sets the part of a record's answer that is to be sent.
    pub(super) fn demand(&mut self, number: Number, pending: Pending) {
        if let Some(replay) = self.get_mut(number) {
            replay.pending = pending;
            self.cursor = self.cursor.min(number.0);
        }
    }

    /// Calls `send` with the oldest pending record. `send` takes the next packet from that record.
    /// Returns the number of the record and the result. Returns `None` if no record is pending.
    pub(super) fn send_next<T>(
        &mut self,
        send: impl FnOnce(&mut Replay) -> T,
    ) -> Option<(Number, T)> {
        let found = self.first_pending();
        self.cursor = found.map_or(self.next, |number| number.0);
        let number = found?;
        let replay = self.get_mut(number)?;
        let sent = send(replay);
        if replay.pending == Pending::Nothing {
            self.cursor = self.cursor.wrapping_add(1);
        }
        Some((number, sent))
    }

    /// Returns the number of the oldest pending record.
    fn first_pending(&self) -> Option<Number> {
        (self.cursor..self.next).map(Number).find(|number| {
            self.get(*number)
                .is_some_and(|replay| replay.pending != Pending::Nothing)
        })
    }

    /// Returns whether no record is pending.
    pub(super) fn rests(&self) -> bool {
        self.first_pending().is_none()
    }

    /// Cancels all pending answers.
    pub(super) fn cancel(&mut self) {
        let cancel = |replay: &mut Replay| replay.pending = Pending::Nothing;
        while self.send_next(cancel).is_some() {}
    }

    /// Limits the number of records to the capacity.
    fn bound(&self, limit: u8) -> u64 {
        u64::from(limit).min(self.capacity() as u64)
    }

    /// Returns the index of the record with this number.
    fn index(&self, number: u64) -> Option<usize> {
        let index = number.checked_rem(self.capacity() as u64)?;
        usize::try_from(index).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    /// PSN at position 0.
    const START: Psn = Psn::new(0xff_fff0);

    fn find(ring: &Ring<Vec<Replay>>, psn: u32) -> Option<Number> {
        ring.find(u64::from(Psn::new(psn).ahead_of(START)))
    }

    fn ring(capacity: usize) -> Ring<Vec<Replay>> {
        Ring::new(vec![Replay::default(); capacity])
    }

    fn read(psn: u32, psns: u32) -> Replay {
        let reth = Reth {
            va: 0,
            rkey: crate::ids::Rkey(1),
            length: psns * 256,
        };
        let position = u64::from(Psn::new(psn).ahead_of(START));
        Replay::new(Recorded::Read(reth), Psn::new(psn), position, psns, 0)
    }

    fn send_all(ring: &mut Ring<Vec<Replay>>) -> Vec<u32> {
        let mut sent = Vec::new();
        let mut send = |replay: &mut Replay| {
            sent.push(replay.psn.get());
            replay.finish();
        };
        while ring.send_next(&mut send).is_some() {}
        sent
    }

    #[test]
    fn no_room_without_slots_or_limit() {
        assert!(ring(0).check_room(1).is_err());
        assert!(ring(4).check_room(0).is_err());
        assert!(ring(4).check_room(1).is_ok());
    }

    #[test]
    fn unsent_answers_are_not_forgotten() {
        let mut ring = ring(8);
        ring.push(read(10, 1), 2);
        ring.push(read(11, 1), 2);
        assert!(ring.check_room(2).is_err());
        ring.send_next(Replay::finish).unwrap();
        assert!(ring.check_room(2).is_ok());
        ring.push(read(12, 1), 2);
        assert_eq!(find(&ring, 10), None);
        assert_eq!(send_all(&mut ring), [11, 12]);
    }

    #[test]
    fn a_shrunken_limit_forgets_all_beyond_it() {
        let mut ring = ring(8);
        for psn in 0..6 {
            ring.push(read(psn, 1), 8);
        }
        assert!(ring.check_room(2).is_err());
        assert_eq!(send_all(&mut ring), [0, 1, 2, 3, 4, 5]);
        ring.push(read(6, 1), 2);
        assert_eq!(find(&ring, 4), None);
        assert!(find(&ring, 5).is_some());
        assert!(find(&ring, 6).is_some());
    }

    #[test]
    fn answers_leave_in_order_of_psn() {
        let mut ring = ring(4);
        for (psn, psns) in [(0xff_fffe, 4), (2, 1), (3, 2)] {
            ring.push(read(psn, psns), 4);
        }
        assert_eq!(send_all(&mut ring), [0xff_fffe, 2, 3]);
        let last = find(&ring, 4).unwrap();
        let first = find(&ring, 1).unwrap();
        ring.demand(last, Pending::Whole);
        ring.demand(first, Pending::Whole);
        assert_eq!(send_all(&mut ring), [0xff_fffe, 3]);
        assert_eq!(ring.first_pending(), None);
    }

    #[test]
    fn forgetting_a_pending_replay_cancels_it() {
        let mut ring = ring(1);
        ring.push(read(0, 1), 1);
        assert_eq!(send_all(&mut ring), [0]);
        let number = find(&ring, 0).unwrap();
        ring.demand(number, Pending::Whole);
        ring.push(read(1, 1), 1);
        assert_eq!(send_all(&mut ring), [1]);
    }

    #[test]
    fn more_slots_keep_all_records() {
        let mut ring = ring(3);
        for psn in 0..5 {
            ring.push(read(psn, 1), 3);
            if psn < 4 {
                send_all(&mut ring);
            }
        }
        assert_eq!(ring.enlarge(vec![Replay::default(); 2]).len(), 2);
        assert_eq!(ring.enlarge(vec![Replay::default(); 7]).len(), 3);
        assert_eq!(ring.capacity(), 7);
        assert_eq!(find(&ring, 1), None);
        for psn in 2..5 {
            let number = find(&ring, psn).unwrap();
            assert_eq!(ring.get(number).unwrap().psn, Psn::new(psn));
        }
        assert_eq!(send_all(&mut ring), [4]);
        for psn in 5..20 {
            ring.push(read(psn, 1), 7);
        }
        assert_eq!(find(&ring, 12), None);
        assert!(find(&ring, 13).is_some());
    }

    #[test]
    fn packets_are_found_across_the_wrap() {
        let replay = read(0xff_ffff, 3);
        let at = |psn| u64::from(Psn::new(psn).ahead_of(START));
        let packets = [0xff_fffe, 0xff_ffff, 0, 1, 2].map(|psn| replay.packet_at(at(psn)));
        assert_eq!(packets, [None, Some(0), Some(1), Some(2), None]);
        assert_eq!(replay.last_psn().get(), 1);
    }
}
