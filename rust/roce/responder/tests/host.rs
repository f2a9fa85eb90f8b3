// SPDX-License-Identifier: GPL-2.0

//! A host that keeps a log, so that tests see the order of the responder's actions.

use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

use crate::early::{Direction, Kept};
use crate::host::{
    AccessFault, Completions, Count, EarlyPackets, Event, Fetch, LocalAccess, Memory, QpDropReason,
    QueueFault, RecvQueue, RemoteAccess, ScatterFault, SendQueue,
};
use crate::ids::Rkey;
use crate::psn::Psn;
use crate::wc::{RecvWc, SendWc, WcStatus};
use crate::wire::packet::Packet;
use crate::wr::{AtomicOp, FlushKind, LocalOp, RecvSlot, RecvWr, SendSlot, SendWr};

/// The key of the host's memory.
pub(super) const RKEY: Rkey = Rkey(0x1234_5678);

/// The virtual address of the first byte of that memory.
pub(super) const BASE: u64 = 0xffff_0000_0000_1000;

/// An action of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Release(RecvSlot),
    ScatterRecv(RecvSlot, u32),
    Check(u64, u32, RemoteAccess),
    Write(u64),
    Atomic(u64, AtomicOp),
    AtomicWrite(u64),
    Flush(u64, u32, FlushKind),
    Invalidate(Rkey),
    RecvWc(RecvWc),
    Raise(Event),
}

/// The host of a QP under test.
#[derive(Debug)]
pub(super) struct TestHost {
    /// Payload of the next packet that is passed to the responder.
    pub(super) payload: Vec<u8>,
    /// Posted receive WQEs that were not taken.
    pub(super) recvs: VecDeque<Fetch<RecvWr>>,
    /// Memory that peers can access, from [`BASE`] with [`RKEY`].
    pub(super) memory: Vec<u8>,
    /// Result of every check of or access to `memory`, if set.
    pub(super) fault: Option<AccessFault>,
    /// Result of every use of a local buffer, if set.
    pub(super) local_fault: Option<WcStatus>,
    /// No local buffer is resident at the moment.
    pub(super) absent: bool,
    /// Whether the host keeps early packets, and those that it keeps. The test stores a packet in
    /// the place that is `None`.
    pub(super) keeps_early: bool,
    pub(super) early: Vec<Option<Packet>>,
    /// Actions of the engine, in order.
    pub(super) log: Vec<Act>,
    /// Counters that the engine incremented, in order.
    pub(super) counts: Vec<Count>,
}

impl TestHost {
    pub(super) fn new() -> Self {
        Self {
            payload: Vec::new(),
            recvs: VecDeque::new(),
            memory: vec![0; 0x1_0000],
            fault: None,
            local_fault: None,
            absent: false,
            keeps_early: false,
            early: Vec::new(),
            log: Vec::new(),
            counts: Vec::new(),
        }
    }

    /// Posts a receive WQE of `length` bytes. Slot and `wr_id` are `name`.
    pub(super) fn post_recv(&mut self, name: u32, length: u32) {
        self.recvs.push_back(Fetch::Wr(recv_wr(name, length)));
    }

    /// Returns the log and clears it.
    pub(super) fn take_log(&mut self) -> Vec<Act> {
        core::mem::take(&mut self.log)
    }

    /// Returns how often `what` was counted.
    pub(super) fn counted(&self, what: Count) -> usize {
        self.counts.iter().filter(|count| **count == what).count()
    }

    /// Returns the reasons for which packets were dropped, in order.
    pub(super) fn dropped(&self) -> Vec<QpDropReason> {
        let dropped = self.counts.iter().filter_map(|count| match count {
            Count::Dropped(reason) => Some(*reason),
            _ => None,
        });
        dropped.collect()
    }

    fn range(
        &self,
        rkey: Rkey,
        va: u64,
        length: usize,
    ) -> Result<core::ops::Range<usize>, AccessFault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let start = usize::try_from(va.wrapping_sub(BASE)).unwrap();
        let end = start.checked_add(length).ok_or(AccessFault::Denied)?;
        if rkey != RKEY || end > self.memory.len() {
            return Err(AccessFault::Denied);
        }
        Ok(start..end)
    }

    fn local(&self) -> Result<(), WcStatus> {
        self.local_fault.map_or(Ok(()), Err)
    }
}

/// Creates a receive WQE. Slot and `wr_id` are `name`.
pub(super) fn recv_wr(name: u32, length: u32) -> RecvWr {
    RecvWr {
        slot: RecvSlot(name),
        wr_id: u64::from(name),
        length,
    }
}

/// The responder doesn't use the send queue.
impl SendQueue for TestHost {
    fn take_send(&mut self) -> Fetch<SendWr> {
        Fetch::Empty
    }

    fn retire_send(&mut self, slot: SendSlot) {
        panic!("{slot:?} wasn't taken");
    }

    fn check_send(&mut self, slot: SendSlot, _access: LocalAccess) -> Result<(), WcStatus> {
        panic!("{slot:?} wasn't taken");
    }

    fn scatter_send(&mut self, slot: SendSlot, _offset: u32) -> Result<(), ScatterFault> {
        panic!("{slot:?} wasn't taken");
    }

    fn scatter_atomic(&mut self, slot: SendSlot, _original: u64) -> Result<(), ScatterFault> {
        panic!("{slot:?} wasn't taken");
    }

    fn execute_local(&mut self, slot: SendSlot, _op: LocalOp) -> Result<(), WcStatus> {
        panic!("{slot:?} wasn't taken");
    }
}

impl RecvQueue for TestHost {
    fn take_recv(&mut self) -> Result<Fetch<RecvWr>, QueueFault> {
        Ok(self.recvs.pop_front().unwrap_or(Fetch::Empty))
    }

    fn release_recv(&mut self, slot: RecvSlot) {
        self.log.push(Act::Release(slot));
    }

    fn scatter_recv(&mut self, slot: RecvSlot, offset: u32) -> Result<(), ScatterFault> {
        if self.absent {
            return Err(ScatterFault::Retry);
        }
        self.local()?;
        self.log.push(Act::ScatterRecv(slot, offset));
        Ok(())
    }
}

impl Memory for TestHost {
    fn check_remote(
        &mut self,
        rkey: Rkey,
        va: u64,
        length: u32,
        access: RemoteAccess,
    ) -> Result<(), AccessFault> {
        assert_ne!(length, 0, "an empty range needs no check");
        self.range(rkey, va, usize::try_from(length).unwrap())?;
        self.log.push(Act::Check(va, length, access));
        Ok(())
    }

    fn write_remote(&mut self, rkey: Rkey, va: u64) -> Result<(), AccessFault> {
        let range = self.range(rkey, va, self.payload.len())?;
        self.memory[range].copy_from_slice(&self.payload);
        self.log.push(Act::Write(va));
        Ok(())
    }

    fn atomic_remote(&mut self, rkey: Rkey, va: u64, op: AtomicOp) -> Result<u64, AccessFault> {
        let range = self.range(rkey, va, 8)?;
        let word = &mut self.memory[range];
        let original = u64::from_ne_bytes(word.try_into().unwrap());
        let new = match op {
            AtomicOp::CompareSwap { compare, swap } if compare == original => swap,
            AtomicOp::CompareSwap { .. } => original,
            AtomicOp::FetchAdd { add } => original.wrapping_add(add),
        };
        word.copy_from_slice(&new.to_ne_bytes());
        self.log.push(Act::Atomic(va, op));
        Ok(original)
    }

    fn atomic_write_remote(&mut self, rkey: Rkey, va: u64) -> Result<(), AccessFault> {
        let range = self.range(rkey, va, 8)?;
        self.memory[range].copy_from_slice(&self.payload);
        self.log.push(Act::AtomicWrite(va));
        Ok(())
    }

    fn flush_remote(
        &mut self,
        rkey: Rkey,
        va: u64,
        length: u32,
        kind: FlushKind,
    ) -> Result<(), AccessFault> {
        self.range(rkey, va, usize::try_from(length).unwrap())?;
        self.log.push(Act::Flush(va, length, kind));
        Ok(())
    }

    fn invalidate_remote(&mut self, rkey: Rkey) -> Result<(), AccessFault> {
        self.range(rkey, BASE, 0)?;
        self.log.push(Act::Invalidate(rkey));
        Ok(())
    }
}

impl EarlyPackets for TestHost {
    fn keep_early(&mut self, _direction: Direction, _expected: Psn, psn: Psn) -> Kept {
        let is_kept = |kept: &Option<Packet>| kept.is_some_and(|kept| kept.bth.psn == psn);
        if !self.keeps_early {
            return Kept::Refused;
        }
        if self.early.iter().any(is_kept) {
            return Kept::Already;
        }
        self.early.push(None);
        Kept::Kept
    }

    fn first_early(&mut self, _direction: Direction, expected: Psn, start: Psn) -> Option<Psn> {
        let psns = self.early.iter().flatten().map(|kept| kept.bth.psn);
        psns.filter(|psn| !psn.before(start))
            .min_by_key(|psn| psn.ahead_of(expected))
    }

    fn drop_early(&mut self, _direction: Direction) {
        self.early.clear();
    }
}

impl Completions for TestHost {
    fn complete_send(&mut self, wc: SendWc) {
        panic!("no send was posted: {wc:?}");
    }

    fn complete_recv(&mut self, wc: RecvWc) {
        self.log.push(Act::RecvWc(wc));
    }

    fn raise(&mut self, event: Event) {
        self.log.push(Act::Raise(event));
    }

    fn count(&mut self, what: Count) {
        self.counts.push(what);
    }
}
