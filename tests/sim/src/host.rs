// SPDX-License-Identifier: GPL-2.0

//! The engine's host: simulates the kernel side and records the engine's calls.

use roce::early::{Direction, EarlyQueue, Kept};
use roce::host::{
    AccessFault, Completions, Count, EarlyPackets, Event, Fetch, LocalAccess,
    Memory as RemoteMemory, QueueFault, RecvQueue, RemoteAccess, ScatterFault, SendQueue,
};
use roce::ids::{Rkey, Srqn};
use roce::psn::Psn;
use roce::qp::QpKind;
use roce::wc::{RecvWc, SendWc, WcStatus};
use roce::wire::packet::Packet;
use roce::wr::{AtomicOp, FlushKind, LocalOp, RecvSlot, RecvWr, SendSlot, SendWr};

use crate::memory::Memory;
use crate::message::{self, LocalFault};
use crate::recv::{self, RecvFault, RecvRing};
use crate::requester;
use crate::side::{Effect, Side};

/// The host of one QP for the duration of one call.
pub(crate) struct SimHost<'a> {
    pub(crate) now: u64,
    pub(crate) side: &'a mut Side,
    pub(crate) memory: &'a mut Memory,
    pub(crate) rings: &'a mut [RecvRing],
    /// The payload of the packet being handled.
    pub(crate) payload: &'a [u8],
    /// The shared receive queue that this packet names.
    pub(crate) srqn: Option<Srqn>,
    /// The early packets that the host keeps.
    pub(crate) early: &'a mut Early,
    /// The direction and PSN of the packet being handled, if the engine asked the host to keep it.
    pub(crate) keep: Option<(Direction, Psn)>,
}

/// A node's early requests and early responses of one QP, with their payload.
pub(crate) type Early = [EarlyQueue<(Packet, Vec<u8>), Vec<Option<(Packet, Vec<u8>)>>>; 2];

impl EarlyPackets for SimHost<'_> {
    fn keep_early(&mut self, direction: Direction, expected: Psn, psn: Psn) -> Kept {
        let kept = self.early[direction as usize].check(expected, psn);
        if kept == Kept::Kept {
            self.keep = Some((direction, psn));
        }
        kept
    }

    fn first_early(&mut self, direction: Direction, expected: Psn, start: Psn) -> Option<Psn> {
        self.early[direction as usize].first(expected, start)
    }

    fn drop_early(&mut self, direction: Direction) {
        self.early[direction as usize].clear();
        if direction == Direction::Request {
            self.side.rx.early.clear();
            self.side.rx.past_seen = None;
            self.side.rx.peer_goes_back = false;
        }
    }
}

impl SendQueue for SimHost<'_> {
    fn take_send(&mut self) -> Fetch<SendWr> {
        message::take(&self.side.messages, &mut self.side.taken)
    }

    fn retire_send(&mut self, slot: SendSlot) {
        let side = &mut *self.side;
        let taken = &side.messages[..side.taken];
        if let Err(why) = message::retire(taken, &mut side.retired, slot) {
            side.fail(why);
        }
    }

    fn check_send(&mut self, slot: SendSlot, _access: LocalAccess) -> Result<(), WcStatus> {
        let Some(index) = self.side.message_in(slot.0) else {
            self.side
                .fail(format!("checked {slot:?}, which isn't taken"));
            return Err(WcStatus::GeneralErr);
        };
        match self.side.messages[index].fault {
            LocalFault::Missing => Err(WcStatus::LocProtErr),
            _ => Ok(()),
        }
    }

    fn scatter_send(&mut self, slot: SendSlot, offset: u32) -> Result<(), ScatterFault> {
        let len = self.payload.len() as u32;
        if len == 0 {
            return Ok(());
        }
        let index = self.expect(slot, offset, len)?;
        let at = self.side.messages[index].local + offset as usize;
        Memory::store(&mut self.memory.bytes, at, self.payload);
        Ok(())
    }

    fn scatter_atomic(&mut self, slot: SendSlot, original: u64) -> Result<(), ScatterFault> {
        let index = self.expect(slot, 0, 8)?;
        let at = self.side.messages[index].local;
        Memory::store(&mut self.memory.bytes, at, &original.to_le_bytes());
        Ok(())
    }

    fn execute_local(&mut self, slot: SendSlot, op: LocalOp) -> Result<(), WcStatus> {
        let Some(index) = self.side.message_in(slot.0) else {
            self.side
                .fail(format!("executed {slot:?}, which isn't taken"));
            return Err(WcStatus::GeneralErr);
        };
        // A request in flight may be sent again, and then reads its memory again. So an
        // invalidation waits for it. Other operations need not wait.
        let waits = matches!(op, LocalOp::Invalidate(_));
        let early = (self.side.completed..index).find(|&i| waits && !self.side.finished(i));
        if let Some(early) = early {
            self.side.fail(format!(
                "local operation {index} before message {early} was finished"
            ));
        }
        let message = &mut self.side.messages[index];
        if message.executed {
            self.side
                .fail(format!("local operation {index} executed twice"));
            return Err(WcStatus::GeneralErr);
        }
        if let LocalFault::Refused(status) = message.fault {
            return Err(status);
        }
        message.executed = true;
        for region in &mut self.memory.regions {
            match op {
                LocalOp::Invalidate(lkey) => region.live &= region.key != lkey.0,
                LocalOp::RegMr | LocalOp::BindMw => {
                    region.live |= message.opens == Some(region.key)
                }
            }
        }
        Ok(())
    }
}

impl SimHost<'_> {
    /// Returns the index of the first byte of a range if a peer may access the range. A shared
    /// receive queue that the packet names must exist.
    fn grant(
        &self,
        rkey: Rkey,
        va: u64,
        len: u32,
        access: RemoteAccess,
    ) -> Result<usize, AccessFault> {
        if self
            .srqn
            .is_some_and(|srqn| recv::named_ring(srqn).is_none())
        {
            return Err(AccessFault::NoQueue);
        }
        self.memory.grant(rkey, va, len, access)
    }

    fn take_from(&mut self, ring: usize) -> Fetch<RecvWr> {
        let Some(receive) = self.rings[ring].posted.pop_front() else {
            return Fetch::Empty;
        };
        let wr = receive.wr();
        self.side.effects.push(Effect::TakeRecv(receive.wr_id));
        let fault = receive.fault;
        self.side.held.push(receive);
        match fault {
            RecvFault::Malformed(status) => Fetch::Malformed(wr, status),
            _ => Fetch::Wr(wr),
        }
    }

    /// Checks a store of response bytes against the oracle's expectation for this packet.
    fn expect(&mut self, slot: SendSlot, offset: u32, len: u32) -> Result<usize, WcStatus> {
        let Some(index) = self.side.message_in(slot.0) else {
            self.side
                .fail(format!("scattered to {slot:?}, which isn't taken"));
            return Err(WcStatus::GeneralErr);
        };
        match self.side.tx.expected.take() {
            Some(want) if (want.message, want.offset, want.len) == (index, offset, len) => {}
            want => {
                self.side.fail(format!(
                    "stored {len} response bytes at {offset} of message {index}, expected {want:?}"
                ));
                return Err(WcStatus::GeneralErr);
            }
        }
        match self.side.messages[index].fault {
            LocalFault::None => Ok(index),
            _ => Err(WcStatus::LocProtErr),
        }
    }
}

impl RecvQueue for SimHost<'_> {
    fn take_recv(&mut self) -> Result<Fetch<RecvWr>, QueueFault> {
        if self.side.is_xrc() {
            self.side.fail("took a receive of no queue".into());
        }
        Ok(self.take_from(self.side.ring))
    }

    fn take_xrc_recv(&mut self, srqn: Srqn) -> Result<Fetch<RecvWr>, QueueFault> {
        if self.side.kind != QpKind::XrcTgt {
            self.side.fail(format!("took a receive of {srqn:?}"));
        }
        let ring = recv::named_ring(srqn).ok_or(QueueFault::Unknown)?;
        Ok(self.take_from(ring))
    }

    fn release_recv(&mut self, slot: RecvSlot) {
        let held = &mut self.side.held;
        match held.iter().position(|receive| receive.slot == slot.0) {
            Some(index) => {
                let receive = held.remove(index);
                self.rings[receive.ring].free.push(receive.slot);
            }
            None => self
                .side
                .fail(format!("released {slot:?}, which isn't taken")),
        }
    }

    fn scatter_recv(&mut self, slot: RecvSlot, offset: u32) -> Result<(), ScatterFault> {
        if self.payload.is_empty() {
            return Ok(());
        }
        let Some(receive) = self.side.held.iter().find(|held| held.slot == slot.0) else {
            self.side
                .fail(format!("scattered to {slot:?}, which isn't taken"));
            return Err(WcStatus::GeneralErr.into());
        };
        let len = self.payload.len();
        if offset as usize + len > receive.length as usize {
            return Err(WcStatus::LocLenErr.into());
        }
        if receive.fault == RecvFault::Unreachable {
            return Err(WcStatus::LocProtErr.into());
        }
        let at = receive.at + offset as usize;
        Memory::store(&mut self.memory.bytes, at, self.payload);
        self.side.effects.push(Effect::ScatterRecv { at, len });
        Ok(())
    }
}

impl RemoteMemory for SimHost<'_> {
    fn check_remote(
        &mut self,
        rkey: Rkey,
        va: u64,
        length: u32,
        access: RemoteAccess,
    ) -> Result<(), AccessFault> {
        self.grant(rkey, va, length, access).map(|_| ())
    }

    fn write_remote(&mut self, rkey: Rkey, va: u64) -> Result<(), AccessFault> {
        let len = self.payload.len();
        if len == 0 {
            return Ok(());
        }
        let at = self.grant(rkey, va, len as u32, RemoteAccess::Write)?;
        Memory::store(&mut self.memory.bytes, at, self.payload);
        self.side.effects.push(Effect::Write { at, len });
        Ok(())
    }

    fn atomic_remote(&mut self, rkey: Rkey, va: u64, op: AtomicOp) -> Result<u64, AccessFault> {
        if va % 8 != 0 {
            return Err(AccessFault::Invalid);
        }
        let at = self.grant(rkey, va, 8, RemoteAccess::Atomic)?;
        let original = apply_atomic(&mut self.memory.bytes, at, op);
        self.side.effects.push(Effect::Atomic { at, original });
        Ok(original)
    }

    fn atomic_write_remote(&mut self, rkey: Rkey, va: u64) -> Result<(), AccessFault> {
        if va % 8 != 0 {
            return Err(AccessFault::Invalid);
        }
        let at = self.grant(rkey, va, 8, RemoteAccess::Write)?;
        Memory::store(&mut self.memory.bytes, at, self.payload);
        self.side.effects.push(Effect::AtomicWrite { at });
        Ok(())
    }

    fn flush_remote(
        &mut self,
        rkey: Rkey,
        va: u64,
        len: u32,
        kind: FlushKind,
    ) -> Result<(), AccessFault> {
        let at = self.grant(rkey, va, len, RemoteAccess::Flush(kind))?;
        self.side.effects.push(Effect::Flush { at, len });
        Ok(())
    }

    fn invalidate_remote(&mut self, rkey: Rkey) -> Result<(), AccessFault> {
        let found = self
            .memory
            .regions
            .iter_mut()
            .find(|region| region.live && region.key == rkey.0);
        found.ok_or(AccessFault::Denied)?.live = false;
        self.side.effects.push(Effect::Invalidate(rkey));
        Ok(())
    }
}

/// Carries out an atomic on the word at `at` and returns the original value.
pub(crate) fn apply_atomic(bytes: &mut [u8], at: usize, op: AtomicOp) -> u64 {
    let original = Memory::word(bytes, at);
    let value = match op {
        AtomicOp::CompareSwap { compare, swap } if original == compare => swap,
        AtomicOp::CompareSwap { .. } => original,
        AtomicOp::FetchAdd { add } => original.wrapping_add(add),
    };
    Memory::store(bytes, at, &value.to_le_bytes());
    original
}

impl Completions for SimHost<'_> {
    fn complete_send(&mut self, wc: SendWc) {
        self.side.overflow |= self.side.cq_full;
        if let Err(why) = requester::completion(self.side, &wc) {
            self.side
                .fail(format!("{why} (at {} ns, {wc:?})", self.now));
        }
    }

    fn complete_recv(&mut self, wc: RecvWc) {
        self.side.overflow |= self.side.cq_full;
        self.side.effects.push(Effect::RecvDone(wc));
    }

    fn raise(&mut self, event: Event) {
        self.side.events.push(event);
    }

    fn count(&mut self, _what: Count) {}
}
