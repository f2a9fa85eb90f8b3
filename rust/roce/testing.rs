// SPDX-License-Identifier: GPL-2.0

//! A mock host and QPs for unit tests of the requester and of whole QPs. Queues, memory and
//! completions are vectors. Tests can inject faults.

use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

use crate::early::{Direction, Kept};
use crate::host::{
    AccessFault, Completions, Count, EarlyPackets, Event, Fetch, LocalAccess, Memory, QueueFault,
    RecvQueue, RemoteAccess, ScatterFault, SendQueue,
};
use crate::ids::{Qpn, Rkey, Srqn};
use crate::mtu::Mtu;
use crate::psn::Psn;
use crate::qp::{Attrs, Config, Qp, QpKind, QpState, RemoteRights, Replay, SendWqe};
use crate::time::Instant;
use crate::transmit::Transmit;
use crate::wc::{RecvWc, SendWc, WcStatus};
use crate::wr::{AtomicOp, FlushKind, LocalOp, RecvSlot, RecvWr, SendOp, SendSlot, SendWr};

/// The key of [`MockHost::memory`].
pub(crate) const RKEY: Rkey = Rkey(0x1234);
/// The only working shared receive queue of the XRC domain: its WQEs are [`MockHost::recvs`].
pub(crate) const SRQN: Srqn = Srqn::new(0x5);
/// A shared receive queue of the XRC domain that is in error.
pub(crate) const BROKEN_SRQN: Srqn = Srqn::new(0xbad);
/// Virtual address of the first byte of [`MockHost::memory`].
pub(crate) const BASE: u64 = 0x10_0000;
/// Length of [`MockHost::memory`] in bytes.
pub(crate) const MEMORY_LEN: usize = 1 << 16;

/// The host of one QP.
#[derive(Debug, PartialEq)]
pub(crate) struct MockHost {
    /// The WQEs that `take_send` returns.
    pub sends: VecDeque<Fetch<SendWr>>,
    /// The slots that were given back, in order.
    pub retired: Vec<SendSlot>,
    /// The payload of each send slot, which is also the destination of responses.
    pub send_buffers: Vec<Vec<u8>>,
    /// Status with which `check_send`, `scatter_send`, `scatter_atomic` and `execute_local` fail.
    pub send_fault: Option<WcStatus>,
    /// The local operations that were carried out.
    pub executed: Vec<LocalOp>,
    /// The WQEs that `take_recv` returns.
    pub recvs: VecDeque<Fetch<RecvWr>>,
    /// Whether the shared receive queue is in error: then `take_recv` fails, and `has_named_queue`
    /// returns `false`.
    pub srq_broken: bool,
    /// The receive slots that were released, in order.
    pub released: Vec<RecvSlot>,
    /// The buffer of each receive slot.
    pub recv_buffers: Vec<Vec<u8>>,
    /// Status with which `scatter_recv` fails.
    pub recv_fault: Option<WcStatus>,
    /// Whether the send and receive buffers are not resident: then scattering to them must be
    /// retried.
    pub absent: bool,
    /// The payload of the current packet.
    pub payload: Vec<u8>,
    /// Memory that peers can access, from [`BASE`] with [`RKEY`].
    pub memory: Vec<u8>,
    /// Fault with which every access of a peer fails.
    pub access_fault: Option<AccessFault>,
    /// The keys that peers invalidated.
    pub invalidated: Vec<Rkey>,
    /// The ranges that peers flushed.
    pub flushed: Vec<(u64, u32, FlushKind)>,
    /// Number of calls of `check_remote`.
    pub checks: u32,
    /// The send CQ.
    pub send_wcs: Vec<SendWc>,
    /// The receive CQ.
    pub recv_wcs: Vec<RecvWc>,
    /// The events that were raised.
    pub events: Vec<Event>,
    /// The counters that were incremented.
    pub counts: Vec<Count>,
    /// Whether the host keeps early responses, and the PSNs of those that it keeps.
    pub keeps_early: bool,
    pub kept: Vec<Psn>,
}

impl MockHost {
    pub(crate) fn new() -> Self {
        Self {
            sends: VecDeque::new(),
            retired: Vec::new(),
            send_buffers: Vec::new(),
            send_fault: None,
            executed: Vec::new(),
            recvs: VecDeque::new(),
            srq_broken: false,
            released: Vec::new(),
            recv_buffers: Vec::new(),
            recv_fault: None,
            absent: false,
            payload: Vec::new(),
            memory: vec![0; MEMORY_LEN],
            access_fault: None,
            invalidated: Vec::new(),
            flushed: Vec::new(),
            checks: 0,
            send_wcs: Vec::new(),
            recv_wcs: Vec::new(),
            events: Vec::new(),
            counts: Vec::new(),
            keeps_early: false,
            kept: Vec::new(),
        }
    }

    /// Posts a signaled send request. The slot and the `wr_id` are its number, from 0.
    pub(crate) fn post_send(&mut self, op: SendOp, payload: Vec<u8>) -> SendSlot {
        self.post_send_with(op, payload, |_| ())
    }

    /// Posts the request of [`Self::post_send`] after `change` has modified it.
    pub(crate) fn post_send_with(
        &mut self,
        op: SendOp,
        payload: Vec<u8>,
        change: impl FnOnce(&mut SendWr),
    ) -> SendSlot {
        let number = self.send_buffers.len() as u32;
        let mut wr = SendWr {
            slot: SendSlot(number),
            wr_id: u64::from(number),
            op,
            length: payload.len() as u32,
            signaled: true,
            solicited: false,
            fence: false,
            srqn: SRQN,
        };
        change(&mut wr);
        self.send_buffers.push(payload);
        self.sends.push_back(Fetch::Wr(wr));
        wr.slot
    }

    /// Posts a receive buffer. The slot and the `wr_id` are its number, from 0.
    pub(crate) fn post_recv(&mut self, length: u32) -> RecvSlot {
        let number = self.recv_buffers.len() as u32;
        self.recv_buffers.push(vec![0; length as usize]);
        self.recvs.push_back(Fetch::Wr(RecvWr {
            slot: RecvSlot(number),
            wr_id: u64::from(number),
            length,
        }));
        RecvSlot(number)
    }

    /// Returns the send completions so far: `wr_id` and status.
    pub(crate) fn sent(&self) -> Vec<(u64, WcStatus)> {
        let pair = |wc: &SendWc| (wc.wr_id, wc.status);
        self.send_wcs.iter().map(pair).collect()
    }

    /// Returns how often `what` was counted.
    pub(crate) fn count_of(&self, what: Count) -> usize {
        self.counts.iter().filter(|count| **count == what).count()
    }

    /// Checks that the send and receive buffers are resident.
    fn check_resident(&self) -> Result<(), ScatterFault> {
        (!self.absent).then_some(()).ok_or(ScatterFault::Retry)
    }

    /// Returns a range of the memory that peers can access.
    fn remote(&mut self, rkey: Rkey, va: u64, length: usize) -> Result<&mut [u8], AccessFault> {
        if let Some(fault) = self.access_fault {
            return Err(fault);
        }
        let start = va.checked_sub(BASE).ok_or(AccessFault::Denied)? as usize;
        let end = start.checked_add(length).ok_or(AccessFault::Denied)?;
        match self.memory.get_mut(start..end) {
            Some(range) if rkey == RKEY => Ok(range),
            _ => Err(AccessFault::Denied),
        }
    }
}

fn scatter(buffer: &mut [u8], offset: usize, payload: &[u8]) -> Result<(), ScatterFault> {
    let range = buffer.get_mut(offset..offset + payload.len());
    range.ok_or(WcStatus::LocLenErr)?.copy_from_slice(payload);
    Ok(())
}

impl SendQueue for MockHost {
    fn take_send(&mut self) -> Fetch<SendWr> {
        self.sends.pop_front().unwrap_or(Fetch::Empty)
    }

    fn retire_send(&mut self, slot: SendSlot) {
        self.retired.push(slot);
    }

    fn check_send(&mut self, _slot: SendSlot, _access: LocalAccess) -> Result<(), WcStatus> {
        self.send_fault.map_or(Ok(()), Err)
    }

    fn scatter_send(&mut self, slot: SendSlot, offset: u32) -> Result<(), ScatterFault> {
        self.check_resident()?;
        self.send_fault.map_or(Ok(()), Err)?;
        let buffer = &mut self.send_buffers[slot.0 as usize];
        scatter(buffer, offset as usize, &self.payload)
    }

    fn scatter_atomic(&mut self, slot: SendSlot, original: u64) -> Result<(), ScatterFault> {
        self.check_resident()?;
        self.send_fault.map_or(Ok(()), Err)?;
        let buffer = &mut self.send_buffers[slot.0 as usize];
        scatter(buffer, 0, &original.to_ne_bytes())
    }

    fn execute_local(&mut self, _slot: SendSlot, op: LocalOp) -> Result<(), WcStatus> {
        self.send_fault.map_or(Ok(()), Err)?;
        self.executed.push(op);
        Ok(())
    }
}

impl RecvQueue for MockHost {
    fn take_recv(&mut self) -> Result<Fetch<RecvWr>, QueueFault> {
        match self.srq_broken {
            true => Err(QueueFault::Broken),
            false => Ok(self.recvs.pop_front().unwrap_or(Fetch::Empty)),
        }
    }

    fn take_xrc_recv(&mut self, srqn: Srqn) -> Result<Fetch<RecvWr>, QueueFault> {
        match srqn {
            SRQN => self.take_recv(),
            BROKEN_SRQN => Err(QueueFault::Broken),
            _ => Err(QueueFault::Unknown),
        }
    }

    fn has_named_queue(&self) -> bool {
        !self.srq_broken
    }

    fn release_recv(&mut self, slot: RecvSlot) {
        self.released.push(slot);
    }

    fn scatter_recv(&mut self, slot: RecvSlot, offset: u32) -> Result<(), ScatterFault> {
        self.check_resident()?;
        self.recv_fault.map_or(Ok(()), Err)?;
        let buffer = &mut self.recv_buffers[slot.0 as usize];
        scatter(buffer, offset as usize, &self.payload)
    }
}

impl Memory for MockHost {
    fn check_remote(
        &mut self,
        rkey: Rkey,
        va: u64,
        length: u32,
        _access: RemoteAccess,
    ) -> Result<(), AccessFault> {
        self.checks += 1;
        self.remote(rkey, va, length as usize).map(|_| ())
    }

    fn write_remote(&mut self, rkey: Rkey, va: u64) -> Result<(), AccessFault> {
        let payload = self.payload.clone();
        self.remote(rkey, va, payload.len())?
            .copy_from_slice(&payload);
        Ok(())
    }

    fn atomic_remote(&mut self, rkey: Rkey, va: u64, op: AtomicOp) -> Result<u64, AccessFault> {
        let word = self.remote(rkey, va, 8)?;
        let old = u64::from_ne_bytes((&*word).try_into().unwrap());
        let new = match op {
            AtomicOp::CompareSwap { compare, swap } if old == compare => swap,
            AtomicOp::CompareSwap { .. } => old,
            AtomicOp::FetchAdd { add } => old.wrapping_add(add),
        };
        word.copy_from_slice(&new.to_ne_bytes());
        Ok(old)
    }

    fn atomic_write_remote(&mut self, rkey: Rkey, va: u64) -> Result<(), AccessFault> {
        self.write_remote(rkey, va)
    }

    fn flush_remote(
        &mut self,
        rkey: Rkey,
        va: u64,
        length: u32,
        kind: FlushKind,
    ) -> Result<(), AccessFault> {
        self.remote(rkey, va, length as usize)?;
        self.flushed.push((va, length, kind));
        Ok(())
    }

    fn invalidate_remote(&mut self, rkey: Rkey) -> Result<(), AccessFault> {
        self.access_fault.map_or(Ok(()), Err)?;
        self.invalidated.push(rkey);
        Ok(())
    }
}

impl EarlyPackets for MockHost {
    fn keep_early(&mut self, direction: Direction, _expected: Psn, psn: Psn) -> Kept {
        if !self.keeps_early || direction != Direction::Response {
            return Kept::Refused;
        }
        if self.kept.contains(&psn) {
            return Kept::Already;
        }
        self.kept.push(psn);
        Kept::Kept
    }

    fn first_early(&mut self, _direction: Direction, expected: Psn, start: Psn) -> Option<Psn> {
        let later = self.kept.iter().filter(|psn| !psn.before(start));
        later.copied().min_by_key(|psn| psn.ahead_of(expected))
    }

    fn drop_early(&mut self, direction: Direction) {
        if direction == Direction::Response {
            self.kept.clear();
        }
    }
}

impl Completions for MockHost {
    fn complete_send(&mut self, wc: SendWc) {
        self.send_wcs.push(wc);
    }

    fn complete_recv(&mut self, wc: RecvWc) {
        self.recv_wcs.push(wc);
    }

    fn raise(&mut self, event: Event) {
        self.events.push(event);
    }

    fn count(&mut self, what: Count) {
        self.counts.push(what);
    }
}

/// The type of QP that the tests use.
pub(crate) type TestQp = Qp<Vec<SendWqe>, Vec<Replay>>;

/// Creates a QP in RESET. Its requester processes up to `window` WQEs at a time, and its responder
/// remembers up to 16 answers.
pub(crate) fn qp(kind: QpKind, window: usize) -> TestQp {
    let config = Config {
        kind,
        qpn: Qpn::new(0x11),
        has_srq: false,
        port_mtu: Mtu::Bytes1024,
        fills_gaps: true,
    };
    Qp::new(
        config,
        vec![SendWqe::default(); window],
        vec![Replay::default(); 16],
    )
}

fn is_connected(kind: QpKind) -> bool {
    kind.is_reliable() || kind == QpKind::Uc
}

/// Returns the attributes that bring a QP of `kind` to INIT.
pub(crate) fn to_init(kind: QpKind) -> Attrs {
    let connected = is_connected(kind);
    Attrs {
        state: Some(QpState::Init),
        pkey_index: (kind != QpKind::RawPacket).then_some(0),
        port: (kind != QpKind::Gsi).then_some(1),
        access: connected.then_some(RemoteRights {
            write: true,
            read: true,
            atomic: true,
            flush_global: true,
            flush_persistent: true,
        }),
        qkey: matches!(kind, QpKind::Ud | QpKind::Gsi).then_some(crate::ids::Qkey(0x1111)),
        ..Attrs::default()
    }
}

/// Returns the attributes that bring a QP of `kind` from INIT to RTR: path MTU 1,024, 4 remembered
/// answers.
pub(crate) fn to_rtr(kind: QpKind, rq_psn: Psn) -> Attrs {
    let connected = is_connected(kind);
    let serves = matches!(kind, QpKind::Rc | QpKind::XrcTgt);
    Attrs {
        state: Some(QpState::Rtr),
        av: connected,
        path_mtu: connected.then_some(Mtu::Bytes1024),
        dest_qpn: connected.then_some(Qpn::new(0x22)),
        rq_psn: connected.then_some(rq_psn),
        max_dest_rd_atomic: serves.then_some(4),
        min_rnr_timer: serves.then_some(12),
        ..Attrs::default()
    }
}

/// Returns the attributes that bring a QP of `kind` from RTR to RTS: timeout 14 (67 ms), 3 retries,
/// 2 RNR retries, 4 READs and atomics.
pub(crate) fn to_rts(kind: QpKind, sq_psn: Psn) -> Attrs {
    let reliable = matches!(kind, QpKind::Rc | QpKind::XrcIni);
    Attrs {
        state: Some(QpState::Rts),
        timeout: kind.is_reliable().then_some(14),
        retry_cnt: reliable.then_some(3),
        rnr_retry: reliable.then_some(2),
        sq_psn: (kind != QpKind::RawPacket).then_some(sq_psn),
        max_rd_atomic: reliable.then_some(4),
        ..Attrs::default()
    }
}

/// Creates a QP in RTS with these initial PSNs.
pub(crate) fn connected(kind: QpKind, rq_psn: Psn, sq_psn: Psn, host: &mut MockHost) -> TestQp {
    let mut qp = qp(kind, 8);
    for attrs in [to_init(kind), to_rtr(kind, rq_psn), to_rts(kind, sq_psn)] {
        qp.modify(Instant(0), &attrs, host).unwrap();
    }
    qp
}

/// Returns all packets that `qp` sends at `now`.
pub(crate) fn drain(qp: &mut TestQp, now: Instant, host: &mut MockHost) -> Vec<Transmit> {
    std::iter::from_fn(|| qp.poll_transmit(now, host)).collect()
}
