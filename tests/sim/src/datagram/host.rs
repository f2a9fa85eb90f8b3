// SPDX-License-Identifier: GPL-2.0

//! The host of a datagram QP. Calls that datagrams never need count as failures.

use roce::host::{
    AccessFault, Completions, Count, EarlyPackets, Event, Fetch, LocalAccess,
    Memory as RemoteMemory, QueueFault, RecvQueue, RemoteAccess, ScatterFault, SendQueue,
};
use roce::ids::Rkey;
use roce::wc::{RecvWc, SendWc, WcStatus};
use roce::wire::grh::GRH_LEN;
use roce::wr::{AtomicOp, FlushKind, LocalOp, RecvSlot, RecvWr, SendSlot, SendWr};

use super::{oracle, Side};
use crate::memory::Memory;
use crate::message;
use crate::recv::{RecvFault, RecvRing};
use crate::side::Effect;

/// The content of the global route header in all receive buffers.
pub(super) const GRH: [u8; GRH_LEN as usize] = [0x60; GRH_LEN as usize];

/// The host of one QP for the duration of one call.
pub(super) struct DatagramHost<'a> {
    pub(super) side: &'a mut Side,
    pub(super) ring: &'a mut RecvRing,
    pub(super) memory: &'a mut Memory,
    pub(super) payload: &'a [u8],
}

impl DatagramHost<'_> {
    fn stray(&mut self, what: &str) {
        self.side.fail(format!("a datagram QP {what}"));
    }
}

impl SendQueue for DatagramHost<'_> {
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

    fn check_send(&mut self, _: SendSlot, _: LocalAccess) -> Result<(), WcStatus> {
        self.stray("checked memory in advance");
        Ok(())
    }

    fn scatter_send(&mut self, _: SendSlot, _: u32) -> Result<(), ScatterFault> {
        self.stray("scattered a response");
        Ok(())
    }

    fn scatter_atomic(&mut self, _: SendSlot, _: u64) -> Result<(), ScatterFault> {
        self.stray("scattered an atomic");
        Ok(())
    }

    fn execute_local(&mut self, _: SendSlot, _: LocalOp) -> Result<(), WcStatus> {
        self.stray("executed a local operation");
        Ok(())
    }
}

impl RecvQueue for DatagramHost<'_> {
    fn take_recv(&mut self) -> Result<Fetch<RecvWr>, QueueFault> {
        let Some(receive) = self.ring.posted.pop_front() else {
            return Ok(Fetch::Empty);
        };
        let (wr, fault) = (receive.wr(), receive.fault);
        self.side.effects.push(Effect::TakeRecv(receive.wr_id));
        self.side.held.push(receive);
        Ok(match fault {
            RecvFault::Malformed(status) => Fetch::Malformed(wr, status),
            _ => Fetch::Wr(wr),
        })
    }

    fn release_recv(&mut self, slot: RecvSlot) {
        let held = &mut self.side.held;
        match held.iter().position(|receive| receive.slot == slot.0) {
            Some(index) => self.ring.free.push(held.remove(index).slot),
            None => self
                .side
                .fail(format!("released {slot:?}, which isn't taken")),
        }
    }

    fn scatter_recv(&mut self, slot: RecvSlot, offset: u32) -> Result<(), ScatterFault> {
        let held = self.side.held.iter().find(|held| held.slot == slot.0);
        let Some(receive) = held.cloned() else {
            self.stray("scattered to a receive that isn't taken");
            return Err(WcStatus::GeneralErr.into());
        };
        let len = self.payload.len();
        if offset != GRH_LEN || offset as usize + len > receive.length as usize {
            self.stray("placed its payload elsewhere");
            return Err(WcStatus::LocLenErr.into());
        }
        if receive.fault == RecvFault::Unreachable {
            return Err(WcStatus::LocProtErr.into());
        }
        let (at, bytes) = (receive.at, &mut self.memory.bytes);
        Memory::store(bytes, at, &GRH);
        Memory::store(bytes, at + GRH.len(), self.payload);
        let len = GRH.len() + len;
        self.side.effects.push(Effect::ScatterRecv { at, len });
        Ok(())
    }
}

impl RemoteMemory for DatagramHost<'_> {
    fn check_remote(
        &mut self,
        _: Rkey,
        _: u64,
        _: u32,
        _: RemoteAccess,
    ) -> Result<(), AccessFault> {
        self.stray("reached for memory");
        Ok(())
    }

    fn write_remote(&mut self, _: Rkey, _: u64) -> Result<(), AccessFault> {
        self.stray("wrote memory");
        Ok(())
    }

    fn atomic_remote(&mut self, _: Rkey, _: u64, _: AtomicOp) -> Result<u64, AccessFault> {
        self.stray("did an atomic");
        Ok(0)
    }

    fn atomic_write_remote(&mut self, _: Rkey, _: u64) -> Result<(), AccessFault> {
        self.stray("did an atomic write");
        Ok(())
    }

    fn flush_remote(&mut self, _: Rkey, _: u64, _: u32, _: FlushKind) -> Result<(), AccessFault> {
        self.stray("flushed memory");
        Ok(())
    }

    fn invalidate_remote(&mut self, _: Rkey) -> Result<(), AccessFault> {
        self.stray("invalidated a key");
        Ok(())
    }
}

impl EarlyPackets for DatagramHost<'_> {}

impl Completions for DatagramHost<'_> {
    fn complete_send(&mut self, wc: SendWc) {
        if let Err(why) = oracle::completion(self.side, &wc) {
            self.side.fail(format!("{why} ({wc:?})"));
        }
    }

    fn complete_recv(&mut self, wc: RecvWc) {
        self.side.effects.push(Effect::RecvDone(wc));
    }

    fn raise(&mut self, event: Event) {
        self.side.events.push(event);
    }

    fn count(&mut self, _: Count) {}
}
