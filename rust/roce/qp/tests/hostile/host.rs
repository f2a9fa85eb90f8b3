// SPDX-License-Identifier: GPL-2.0

//! A host that keeps early packets, and that fails the test when the engine breaks a rule of the
//! host's traits.

use std::collections::{BTreeSet, VecDeque};
use std::vec;
use std::vec::Vec;

use crate::early::{Direction, EarlyQueue, Kept, MOST_AHEAD};
use crate::host::{
    AccessFault, Completions, Count, EarlyPackets, Event, Fetch, LocalAccess, Memory, QueueFault,
    RecvQueue, RemoteAccess, ScatterFault, SendQueue,
};
use crate::ids::Rkey;
use crate::psn::Psn;
use crate::testing::{MockHost, TestQp};
use crate::time::Instant;
use crate::transmit::{Source, Transmit};
use crate::wc::{RecvWc, SendWc, WcStatus};
use crate::wire::packet::Packet;
use crate::wr::{AtomicOp, FlushKind, LocalOp, RecvSlot, RecvWr, SendOp, SendSlot, SendWr};

/// The cookie of the QP's responder: the host's random number.
pub(super) const QP_COOKIE: u16 = 0x2bc;
/// Most calls of the host in one call of the engine: 64 steps of each queue, five calls in a step.
const MOST_CALLS: u32 = 2 * 64 * 5;
/// Most packets that the QP handles when one arrives: that one, and all that the host keeps.
const MOST_HANDLED: u32 = 2 * MOST_AHEAD;

/// Numbers of the events that the test must cause.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    /// Packets that the host kept, by [`Direction`].
    pub(super) kept: [u64; 2],
    /// Kept packets that the host passed to the QP, by [`Direction`].
    pub(super) taken: [u64; 2],
    /// Send requests that completed with success.
    pub(super) sends: u64,
    /// Receive requests that completed with success.
    pub(super) recvs: u64,
}

impl Tally {
    /// Returns each number with its name.
    pub(super) fn figures(&self) -> [(&'static str, u64); 6] {
        [
            ("kept requests", self.kept[Direction::Request as usize]),
            ("kept responses", self.kept[Direction::Response as usize]),
            ("taken requests", self.taken[Direction::Request as usize]),
            ("taken responses", self.taken[Direction::Response as usize]),
            ("successful sends", self.sends),
            ("successful receives", self.recvs),
        ]
    }

    /// Adds the numbers of `other`.
    pub(super) fn add(&mut self, other: &Self) {
        for direction in [Direction::Request as usize, Direction::Response as usize] {
            self.kept[direction] += other.kept[direction];
            self.taken[direction] += other.taken[direction];
        }
        self.sends += other.sends;
        self.recvs += other.recvs;
    }
}

/// A packet with its payload.
type Held = (Packet, Vec<u8>);

/// A mock host with early packets and checks.
pub(super) struct CheckingHost {
    pub(super) mock: MockHost,
    pub(super) tally: Tally,
    /// The early packets, by [`Direction`].
    early: [EarlyQueue<Held, Vec<Option<Held>>>; 2],
    /// The PSNs of the packets kept since `drop_early` was last called, by [`Direction`].
    kept: [BTreeSet<u32>; 2],
    /// A packet is being handled.
    handles: bool,
    /// The direction of the packet being handled, if the engine asked the host to keep it.
    keeps: Option<Direction>,
    /// The send requests that the engine has taken and not yet retired, in order.
    sends: VecDeque<SendWr>,
    /// The receive slot that the engine has taken and not yet released.
    recv: Option<RecvSlot>,
    /// The signaled send requests that the engine has taken and not yet completed.
    awaited: BTreeSet<u64>,
    /// The send and receive requests that have completed.
    completed: [BTreeSet<u64>; 2],
    /// Number of calls of the host since the engine was called.
    calls: u32,
}

impl CheckingHost {
    pub(super) fn new() -> Self {
        let queue = || EarlyQueue::new(vec![None; MOST_AHEAD as usize]);
        Self {
            mock: MockHost::new(),
            tally: Tally::default(),
            early: [queue(), queue()],
            kept: [BTreeSet::new(), BTreeSet::new()],
            handles: false,
            keeps: None,
            sends: VecDeque::new(),
            recv: None,
            awaited: BTreeSet::new(),
            completed: [BTreeSet::new(), BTreeSet::new()],
            calls: 0,
        }
    }

    /// Begins a call of the engine.
    pub(super) fn begin_call(&mut self) -> &mut Self {
        self.calls = 0;
        self
    }

    /// Returns the mock host for a call from the engine.
    fn called(&mut self) -> &mut MockHost {
        self.calls += 1;
        assert!(self.calls <= MOST_CALLS, "the engine calls without a bound");
        &mut self.mock
    }

    /// Passes a packet to the QP, and then each kept packet that the QP expects.
    pub(super) fn deliver(&mut self, qp: &mut TestQp, now: Instant, packet: Packet) {
        let payload = vec![packet.bth.psn.get() as u8; packet.payload_len as usize];
        let mut next = Some((packet, payload));
        let mut handled = 0;
        while let Some((packet, payload)) = next.take() {
            handled += 1;
            assert!(handled <= MOST_HANDLED, "packets are handled for ever");
            self.mock.payload = payload;
            self.handles = true;
            qp.handle_packet(now, &packet, self.begin_call());
            self.handles = false;
            if let Some(direction) = self.keeps.take() {
                let payload = core::mem::take(&mut self.mock.payload);
                self.early[direction as usize].insert(packet.bth.psn, (packet, payload));
                self.kept[direction as usize].insert(packet.bth.psn.get());
                self.tally.kept[direction as usize] += 1;
            }
            let expected = [
                (Direction::Request, qp.expected_psn()),
                (Direction::Response, qp.oldest_unfinished()),
            ];
            next = expected.into_iter().find_map(|at| self.take_early(at));
        }
    }

    /// Takes the kept packet that the engine expects.
    fn take_early(&mut self, (direction, expected): (Direction, Psn)) -> Option<Held> {
        let held = self.early[direction as usize].take(expected)?;
        assert_eq!(held.0.bth.psn, expected);
        self.tally.taken[direction as usize] += 1;
        Some(held)
    }

    /// Returns whether the host keeps no packet.
    pub(super) fn keeps_none(&self) -> bool {
        self.early.iter().all(EarlyQueue::is_empty)
    }

    /// Checks that the payload of a train to send lies in the buffer of a taken slot.
    pub(super) fn check_source(&self, transmit: &Transmit) {
        if let Source::Send { slot, offset } = transmit.source {
            self.op_of(slot);
            let end = offset as usize + transmit.packet.payload_len as usize;
            let length = self.mock.send_buffers[slot.0 as usize].len();
            assert!(end <= length, "sends {end} of {length} bytes of {slot:?}");
        }
    }

    /// Returns the operation of a slot that the engine uses, which must not be retired.
    fn op_of(&self, slot: SendSlot) -> SendOp {
        let wr = self.sends.iter().find(|wr| wr.slot == slot);
        wr.unwrap_or_else(|| panic!("uses retired {slot:?}")).op
    }

    /// Checks a QP in the error state that has come to rest: all work requests have completed.
    pub(super) fn check_flushed(&self) {
        assert!(self.mock.sends.is_empty() && self.mock.recvs.is_empty());
        assert_eq!(self.awaited, BTreeSet::new());
        self.check_returned();
    }

    /// Checks that the engine has given all slots back.
    fn check_returned(&self) {
        assert_eq!((self.sends.len(), self.recv), (0, None), "kept slots");
    }

    /// Checks a QP in RESET, and drops the work requests that it has not taken.
    pub(super) fn end_connection(&mut self) {
        self.check_returned();
        self.mock.sends.clear();
        self.mock.recvs.clear();
        self.awaited.clear();
    }

    /// Records a completion: each request has one at most.
    fn complete(&mut self, side: usize, id: u64) {
        assert!(self.completed[side].insert(id), "{id} completes again");
    }
}

/// Checks that the payload fit its buffer.
fn check_fit(result: Result<(), ScatterFault>) -> Result<(), ScatterFault> {
    let beyond = Err(ScatterFault::Failed(WcStatus::LocLenErr));
    assert_ne!(result, beyond, "payload beyond the buffer");
    result
}

impl SendQueue for CheckingHost {
    fn take_send(&mut self) -> Fetch<SendWr> {
        let fetched = self.called().take_send();
        if let Fetch::Wr(wr) | Fetch::Malformed(wr, _) = fetched {
            self.sends.push_back(wr);
            if wr.signaled {
                self.awaited.insert(wr.wr_id);
            }
        }
        fetched
    }

    fn retire_send(&mut self, slot: SendSlot) {
        self.called();
        let oldest = self.sends.pop_front().map(|wr| wr.slot);
        assert_eq!(oldest, Some(slot), "retired out of turn");
    }

    fn check_send(&mut self, slot: SendSlot, access: LocalAccess) -> Result<(), WcStatus> {
        self.op_of(slot);
        self.called().check_send(slot, access)
    }

    fn scatter_send(&mut self, slot: SendSlot, offset: u32) -> Result<(), ScatterFault> {
        assert!(matches!(self.op_of(slot), SendOp::Read(_)));
        check_fit(self.called().scatter_send(slot, offset))
    }

    fn scatter_atomic(&mut self, slot: SendSlot, original: u64) -> Result<(), ScatterFault> {
        assert!(matches!(self.op_of(slot), SendOp::Atomic(..)));
        check_fit(self.called().scatter_atomic(slot, original))
    }

    fn execute_local(&mut self, slot: SendSlot, op: LocalOp) -> Result<(), WcStatus> {
        assert_eq!(self.op_of(slot), SendOp::Local(op));
        self.called().execute_local(slot, op)
    }
}

impl RecvQueue for CheckingHost {
    fn take_recv(&mut self) -> Result<Fetch<RecvWr>, QueueFault> {
        let fetched = self.called().take_recv();
        if let Ok(Fetch::Wr(wr) | Fetch::Malformed(wr, _)) = fetched {
            assert_eq!(self.recv.replace(wr.slot), None, "takes two receives");
        }
        fetched
    }

    fn release_recv(&mut self, slot: RecvSlot) {
        self.called();
        assert_eq!(self.recv.take(), Some(slot), "released, but not taken");
    }

    fn scatter_recv(&mut self, slot: RecvSlot, offset: u32) -> Result<(), ScatterFault> {
        assert_eq!(self.recv, Some(slot), "scatters to a released slot");
        check_fit(self.called().scatter_recv(slot, offset))
    }
}

impl Memory for CheckingHost {
    fn check_remote(
        &mut self,
        rkey: Rkey,
        va: u64,
        length: u32,
        access: RemoteAccess,
    ) -> Result<(), AccessFault> {
        self.called().check_remote(rkey, va, length, access)
    }

    fn write_remote(&mut self, rkey: Rkey, va: u64) -> Result<(), AccessFault> {
        self.called().write_remote(rkey, va)
    }

    fn atomic_remote(&mut self, rkey: Rkey, va: u64, op: AtomicOp) -> Result<u64, AccessFault> {
        self.called().atomic_remote(rkey, va, op)
    }

    fn atomic_write_remote(&mut self, rkey: Rkey, va: u64) -> Result<(), AccessFault> {
        self.called().atomic_write_remote(rkey, va)
    }

    fn flush_remote(
        &mut self,
        rkey: Rkey,
        va: u64,
        length: u32,
        kind: FlushKind,
    ) -> Result<(), AccessFault> {
        self.called().flush_remote(rkey, va, length, kind)
    }

    fn invalidate_remote(&mut self, rkey: Rkey) -> Result<(), AccessFault> {
        self.called().invalidate_remote(rkey)
    }
}

impl EarlyPackets for CheckingHost {
    fn keep_early(&mut self, direction: Direction, expected: Psn, psn: Psn) -> Kept {
        self.called();
        assert!(self.handles, "keeps a packet, but handles none");
        let kept = self.early[direction as usize].check(expected, psn);
        self.keeps = (kept == Kept::Kept).then_some(direction);
        kept
    }

    fn first_early(&mut self, direction: Direction, expected: Psn, start: Psn) -> Option<Psn> {
        self.called();
        let first = self.early[direction as usize].first(expected, start)?;
        let is_known = self.kept[direction as usize].contains(&first.get());
        assert!(is_known, "{first:?} was not kept");
        Some(first)
    }

    fn random(&mut self) -> u32 {
        self.called();
        u32::from(QP_COOKIE)
    }

    fn drop_early(&mut self, direction: Direction) {
        self.called();
        self.early[direction as usize].clear();
        self.kept[direction as usize].clear();
    }
}

impl Completions for CheckingHost {
    fn complete_send(&mut self, wc: SendWc) {
        self.called();
        let is_returned = self.sends.iter().all(|wr| wr.wr_id != wc.wr_id);
        assert!(
            is_returned,
            "{} completes before its slot is free",
            wc.wr_id
        );
        self.complete(0, wc.wr_id);
        self.awaited.remove(&wc.wr_id);
        self.tally.sends += u64::from(wc.status == WcStatus::Success);
    }

    fn complete_recv(&mut self, wc: RecvWc) {
        self.called();
        assert_eq!(self.recv, None, "completes before its slot is free");
        self.complete(1, wc.wr_id);
        self.tally.recvs += u64::from(wc.status == WcStatus::Success);
    }

    fn raise(&mut self, event: Event) {
        self.called().raise(event);
    }

    fn count(&mut self, what: Count) {
        self.called().count(what);
    }
}
