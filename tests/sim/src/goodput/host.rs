// SPDX-License-Identifier: GPL-2.0

//! The host of one QP: an application that always has the same number of work requests posted, and
//! memory that peers may access. It keeps no bytes, it measures.

use std::fmt::{self, Display, Formatter};

use roce::early::{Direction, EarlyQueue, Kept, MOST_AHEAD};
use roce::host::{
    AccessFault, Completions, Count, EarlyPackets, Event, Fetch, LocalAccess, Memory, QueueFault,
    RecvQueue, RemoteAccess, ScatterFault, SendQueue,
};
use roce::ids::{Rkey, Srqn};
use roce::psn::Psn;
use roce::wc::{RecvWc, SendWc, WcStatus};
use roce::wire::packet::Packet;
use roce::wr::{
    AtomicOp, FlushKind, LocalOp, RecvSlot, RecvWr, RemoteAddr, SendOp, SendSlot, SendWr,
};

/// Length of each message in bytes.
pub(super) const MESSAGE: u32 = 1 << 20;
/// Number of work requests that are posted at any time.
pub(super) const DEPTH: u32 = 16;

/// The memory of the peer that all messages access.
const REMOTE: RemoteAddr = RemoteAddr {
    va: 0x10_0000,
    rkey: Rkey(0x1234),
};

/// The operation of all messages of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Write,
    Read,
}

/// The host of one QP.
#[derive(Debug)]
pub(super) struct AppHost {
    /// The operation of the messages that the application posts. `None` if it posts none.
    op: Option<Op>,
    /// Number of work requests that the engine has taken, and of those that it has given back.
    taken: u32,
    retired: u32,
    /// Number of messages that ended with success.
    pub(super) done: u64,
    /// The first failure: an unexpected completion or event.
    pub(super) failure: Option<String>,
    /// Time of the current call.
    pub(super) now: u64,
    /// Payload length of the packet that is being handled.
    pub(super) payload_len: u32,
    /// The early requests and the early responses.
    pub(super) early: [EarlyQueue<Packet, Vec<Option<Packet>>>; 2],
    /// The host keeps no early packet.
    refuses_early: bool,
    /// The packet that is being handled is to be kept in this queue of `early`.
    pub(super) keeps: Option<(Direction, Psn)>,
    /// Time at which payload was last stored, and the longest time without that, in nanoseconds.
    pub(super) stored: Option<u64>,
    pub(super) stall: u64,
    /// Number of RTOs, of transport retries, and of received NAKs "PSN sequence error".
    pub(super) rtos: u64,
    pub(super) retries: u64,
    pub(super) naks: u64,
}

/// Whether packets that arrive early are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Early {
    /// Both hosts keep them.
    Kept,
    /// The engines ask their hosts to keep them, and the hosts have no memory for them.
    Refused,
    /// The engines don't recover single packets (`fill_gaps=0`).
    Off,
}

impl Display for Early {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kept => "kept",
            Self::Refused => "refused",
            Self::Off => "off",
        })
    }
}

impl AppHost {
    pub(super) fn new(op: Option<Op>, refuses_early: bool) -> Self {
        Self {
            op,
            refuses_early,
            taken: 0,
            retired: 0,
            done: 0,
            failure: None,
            now: 0,
            payload_len: 0,
            early: [(), ()].map(|()| EarlyQueue::new(vec![None; MOST_AHEAD as usize])),
            keeps: None,
            stored: None,
            stall: 0,
            rtos: 0,
            retries: 0,
            naks: 0,
        }
    }

    fn fail(&mut self, why: String) {
        self.failure.get_or_insert(why);
    }

    /// Records that payload arrived.
    fn store(&mut self) {
        if self.payload_len > 0 {
            self.note_stall(self.now);
            self.stored = Some(self.now);
        }
    }

    /// Takes the time since payload was last stored into account.
    pub(super) fn note_stall(&mut self, now: u64) {
        self.stall = self.stall.max(now - self.stored.unwrap_or(0));
    }
}

impl SendQueue for AppHost {
    fn take_send(&mut self) -> Fetch<SendWr> {
        let op = match self.op {
            Some(Op::Write) => SendOp::Write(REMOTE, None),
            Some(Op::Read) => SendOp::Read(REMOTE),
            None => return Fetch::Empty,
        };
        if self.taken.wrapping_sub(self.retired) >= DEPTH {
            return Fetch::Empty;
        }
        let number = self.taken;
        self.taken = self.taken.wrapping_add(1);
        Fetch::Wr(SendWr {
            slot: SendSlot(number % DEPTH),
            wr_id: u64::from(number),
            op,
            length: MESSAGE,
            signaled: true,
            solicited: false,
            fence: false,
            srqn: Srqn::new(0),
        })
    }

    fn retire_send(&mut self, _slot: SendSlot) {
        self.retired = self.retired.wrapping_add(1);
    }

    fn check_send(&mut self, _slot: SendSlot, _access: LocalAccess) -> Result<(), WcStatus> {
        Ok(())
    }

    fn scatter_send(&mut self, _slot: SendSlot, offset: u32) -> Result<(), ScatterFault> {
        if u64::from(offset) + u64::from(self.payload_len) > u64::from(MESSAGE) {
            return Err(WcStatus::LocLenErr.into());
        }
        self.store();
        Ok(())
    }

    fn scatter_atomic(&mut self, _slot: SendSlot, _original: u64) -> Result<(), ScatterFault> {
        Err(WcStatus::GeneralErr.into())
    }

    fn execute_local(&mut self, _slot: SendSlot, _op: LocalOp) -> Result<(), WcStatus> {
        Err(WcStatus::GeneralErr)
    }
}

impl RecvQueue for AppHost {
    fn take_recv(&mut self) -> Result<Fetch<RecvWr>, QueueFault> {
        Ok(Fetch::Empty)
    }

    fn release_recv(&mut self, _slot: RecvSlot) {}

    fn scatter_recv(&mut self, _slot: RecvSlot, _offset: u32) -> Result<(), ScatterFault> {
        Err(WcStatus::GeneralErr.into())
    }
}

impl Memory for AppHost {
    fn check_remote(
        &mut self,
        rkey: Rkey,
        va: u64,
        length: u32,
        _access: RemoteAccess,
    ) -> Result<(), AccessFault> {
        let fits = |offset| u64::from(length) + offset <= u64::from(MESSAGE);
        let granted = rkey == REMOTE.rkey && va.checked_sub(REMOTE.va).is_some_and(fits);
        granted.then_some(()).ok_or(AccessFault::Denied)
    }

    fn write_remote(&mut self, rkey: Rkey, va: u64) -> Result<(), AccessFault> {
        self.check_remote(rkey, va, self.payload_len, RemoteAccess::Write)?;
        self.store();
        Ok(())
    }

    fn atomic_remote(&mut self, _: Rkey, _: u64, _: AtomicOp) -> Result<u64, AccessFault> {
        Err(AccessFault::Denied)
    }

    fn atomic_write_remote(&mut self, _: Rkey, _: u64) -> Result<(), AccessFault> {
        Err(AccessFault::Denied)
    }

    fn flush_remote(&mut self, _: Rkey, _: u64, _: u32, _: FlushKind) -> Result<(), AccessFault> {
        Err(AccessFault::Denied)
    }

    fn invalidate_remote(&mut self, _: Rkey) -> Result<(), AccessFault> {
        Err(AccessFault::Denied)
    }
}

impl EarlyPackets for AppHost {
    fn keep_early(&mut self, direction: Direction, expected: Psn, psn: Psn) -> Kept {
        if self.refuses_early {
            return Kept::Refused;
        }
        let kept = self.early[direction as usize].check(expected, psn);
        self.keeps = (kept == Kept::Kept).then_some((direction, psn));
        kept
    }

    fn first_early(&mut self, direction: Direction, expected: Psn, start: Psn) -> Option<Psn> {
        self.early[direction as usize].first(expected, start)
    }

    fn random(&mut self) -> u32 {
        1
    }

    fn drop_early(&mut self, direction: Direction) {
        self.early[direction as usize].clear();
    }
}

impl Completions for AppHost {
    fn complete_send(&mut self, wc: SendWc) {
        if wc.status != WcStatus::Success || wc.byte_len != MESSAGE {
            return self.fail(format!("message {} ended with {:?}", wc.wr_id, wc.status));
        }
        if wc.wr_id != self.done {
            self.fail(format!(
                "message {} ended as number {}",
                wc.wr_id, self.done
            ));
        }
        self.done += 1;
    }

    fn complete_recv(&mut self, wc: RecvWc) {
        self.fail(format!("receive {} ended", wc.wr_id));
    }

    fn raise(&mut self, event: Event) {
        if event != Event::CommEst {
            self.fail(format!("event {event:?}"));
        }
    }

    fn count(&mut self, what: Count) {
        match what {
            Count::Rto => self.rtos += 1,
            Count::CompleterRetry => self.retries += 1,
            Count::RcvdSeqErr => self.naks += 1,
            _ => {}
        }
    }
}
