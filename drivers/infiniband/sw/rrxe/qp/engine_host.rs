// SPDX-License-Identifier: GPL-2.0

//! Host interface of the protocol engine: its access to a QP's queues, memory and completion queues
//! while it runs.
//!
//! Nothing in this file calls ib_core. Completion events and asynchronous events are stored in
//! [`RunEffects`]. The caller of the engine reports them after it has dropped the turn lock
//! (`qp/turn.rs`).

use kernel::prelude::*;
use rdma::{
    support::{random::next_u32, table::LastLookup},
    verbs::{cq::Arrival, mr::Span},
};
use roce::{
    early::{Direction, Kept},
    host::{
        AccessFault, Completions, Count, EarlyPackets, Event, Fetch, LocalAccess, Memory,
        QueueFault, RemoteAccess, ScatterFault,
    },
    ids::{Rkey, Srqn},
    psn::Psn,
    wc::{RecvWc, SendWc, WcStatus},
    wire::packet::Service,
    wr::{AtomicOp, FlushKind, LocalOp, RecvSlot, RecvWr, SendSlot, SendWr},
};

use crate::{
    device::stats::Counters,
    gsi::{SanitizedMad, StandIn},
    memory::{
        mr::Mr,
        mw::{NotBound, RemoteContext},
        remote::RemoteRange,
    },
    net::rx::RxPacket,
    qp::{
        early::KeptPackets, effects::RunEffects, recv_queue::RecvQueue, send_queue::SendQueue,
        sge::OwnMemory, Qp,
    },
    verbs::cq::Pushed,
};

/// Value of FLUSH's selectivity field that selects the whole region; the range is ignored (annex
/// A19).
const FLUSH_REGION: u8 = 1;

/// Host interface for one call of the engine. The turn lock is held.
pub(crate) struct EngineHost<'a> {
    /// Send queue.
    pub(crate) sq: &'a mut SendQueue,
    /// Receive queue.
    pub(crate) rq: &'a mut RecvQueue,
    /// Access to the memory of the QP's owner.
    pub(crate) own: OwnMemory<'a>,
    /// Memory region that the peer accessed last.
    pub(crate) peer_region: &'a mut LastLookup<Mr>,
    /// The QP.
    pub(crate) qp: &'a Qp,
    /// Counters of the QP.
    pub(crate) counters: &'a Counters,
    /// Packets that arrived before a missing one.
    pub(crate) early: &'a mut KeptPackets,
    /// Packet that the engine handles, if it handles one.
    pub(crate) packet: Option<&'a RxPacket>,
    /// The packet as ib_core gets it, if the QP is a GSI QP.
    pub(crate) sanitized: Option<&'a SanitizedMad>,
    /// Effects of the run so far.
    pub(crate) effects: &'a mut RunEffects,
}

impl roce::host::SendQueue for EngineHost<'_> {
    #[inline]
    fn take_send(&mut self) -> Fetch<SendWr> {
        self.sq.take()
    }

    fn retire_send(&mut self, slot: SendSlot) {
        self.sq.retire(slot);
    }

    fn check_send(&mut self, slot: SendSlot, access: LocalAccess) -> Result<(), WcStatus> {
        self.sq.check(slot, access, self.own.mrs, self.own.pd)
    }

    fn scatter_send(&mut self, slot: SendSlot, offset: u32) -> Result<(), ScatterFault> {
        match self.packet {
            Some(packet) => self.sq.scatter(slot, offset, packet, self.own.reborrow()),
            None => Err(WcStatus::GeneralErr.into()),
        }
    }

    fn scatter_atomic(&mut self, slot: SendSlot, original: u64) -> Result<(), ScatterFault> {
        self.sq.scatter_word(slot, original, self.own.reborrow())
    }

    fn execute_local(&mut self, slot: SendSlot, op: LocalOp) -> Result<(), WcStatus> {
        match op {
            LocalOp::Invalidate(lkey) => self
                .own
                .mrs
                .invalidate(self.context(), Rkey(lkey.0))
                .map_err(|_| WcStatus::LocProtErr),
            LocalOp::BindMw => {
                let bind = self.sq.bind(slot);
                let bound = self
                    .own
                    .mrs
                    .windows
                    .bind(self.context(), &bind, self.own.mrs);
                bound.map_err(|NotBound| WcStatus::MwBindErr)
            }
            LocalOp::RegMr => self
                .own
                .mrs
                .register_fast(self.own.pd, self.sq.registration(slot))
                .map_err(|_| WcStatus::LocQpOpErr),
        }
    }
}

impl roce::host::RecvQueue for EngineHost<'_> {
    fn take_recv(&mut self) -> Result<Fetch<RecvWr>, QueueFault> {
        self.rq.take(self.effects)
    }

    fn take_xrc_recv(&mut self, srqn: Srqn) -> Result<Fetch<RecvWr>, QueueFault> {
        self.rq.take_named(srqn, self.effects)
    }

    fn has_named_queue(&self) -> bool {
        self.rq.has_current()
    }

    fn release_recv(&mut self, _slot: RecvSlot) {
        self.rq.release();
    }

    fn scatter_recv(&mut self, _slot: RecvSlot, offset: u32) -> Result<(), ScatterFault> {
        match self.packet {
            Some(packet) => self
                .rq
                .scatter(offset, packet, self.sanitized, self.own.reborrow()),
            None => Err(WcStatus::GeneralErr.into()),
        }
    }
}

impl Memory for EngineHost<'_> {
    fn check_remote(
        &mut self,
        rkey: Rkey,
        va: u64,
        length: u32,
        access: RemoteAccess,
    ) -> Result<(), AccessFault> {
        if matches!(access, RemoteAccess::Flush(kind) if kind.selectivity == FLUSH_REGION) {
            return self
                .own
                .mrs
                .check_region(self.remote_context()?, rkey, access);
        }
        let range = self.range(rkey, va, length, access)?;
        let checked = self.own.mrs.check_remote(self.peer_region, &range);
        self.own.parked.remote(checked, &range)
    }

    fn write_remote(&mut self, rkey: Rkey, va: u64) -> Result<(), AccessFault> {
        let packet = self.packet.ok_or(AccessFault::Failed)?;
        let range = self.range(rkey, va, packet.packet.payload_len, RemoteAccess::Write)?;
        let mrs = self.own.mrs;
        let copy = |span: Span<'_>| packet.copy_payload(0, &span, mrs);
        let copied = match packet.count {
            1 => self.with_remote(&range, copy)?,
            // A train is written as one to memory that is always resident, else packet by packet.
            _ => mrs.with_resident_range(&range, copy)?,
        };
        copied.map_err(|fault| match fault {
            AccessFault::Retry => fault,
            _ => AccessFault::Failed,
        })
    }

    fn atomic_remote(&mut self, rkey: Rkey, va: u64, op: AtomicOp) -> Result<u64, AccessFault> {
        let range = self.range(rkey, va, 8, RemoteAccess::Atomic)?;
        self.with_remote(&range, |span| span.atomic(op))?
            .map_err(|_| AccessFault::Invalid)
    }

    fn atomic_write_remote(&mut self, rkey: Rkey, va: u64) -> Result<(), AccessFault> {
        let packet = self.packet.ok_or(AccessFault::Failed)?;
        let mut word = [0u8; 8];
        packet
            .read_payload(0, &mut word)
            .map_err(|_| AccessFault::Failed)?;
        let range = self.range(rkey, va, 8, RemoteAccess::Write)?;
        let value = u64::from_ne_bytes(word);
        self.with_remote(&range, |span| span.atomic_store(value))?
            .map_err(|_| AccessFault::Invalid)
    }

    fn flush_remote(
        &mut self,
        rkey: Rkey,
        va: u64,
        length: u32,
        kind: FlushKind,
    ) -> Result<(), AccessFault> {
        // Stores to memory of this host are visible as soon as they are done. The engine has done
        // the stores of all requests before the FLUSH. A FLUSH for persistence is refused
        // (`Access::allows_remote`).
        self.check_remote(rkey, va, length, RemoteAccess::Flush(kind))
    }

    fn invalidate_remote(&mut self, rkey: Rkey) -> Result<(), AccessFault> {
        self.own.mrs.invalidate(self.remote_context()?, rkey)
    }
}

impl EngineHost<'_> {
    /// Describes an access of the peer.
    ///
    /// # Errors
    ///
    /// [`AccessFault::NoQueue`] as for [`RecvQueue::remote_pd`].
    fn range(
        &self,
        rkey: Rkey,
        va: u64,
        length: u32,
        access: RemoteAccess,
    ) -> Result<RemoteRange, AccessFault> {
        Ok(RemoteRange {
            context: self.remote_context()?,
            rkey,
            va,
            length,
            access,
        })
    }

    /// Calls `f` with the memory of an access of the peer. If the memory is absent, the QP is
    /// parked until the memory is resident.
    ///
    /// # Errors
    ///
    /// The reason why the access is refused, or [`AccessFault::Retry`] if the memory is absent.
    fn with_remote<R>(
        &mut self,
        range: &RemoteRange,
        f: impl FnOnce(Span<'_>) -> R,
    ) -> Result<R, AccessFault> {
        let done = self.own.mrs.with_remote(self.peer_region, range, f);
        self.own.parked.remote(done, range)
    }

    /// Returns the QP's own protection domain and number.
    fn context(&self) -> RemoteContext {
        RemoteContext {
            pd: self.own.pd,
            qpn: self.qp.qpn.get(),
        }
    }

    /// Returns the protection domain and QP number by which the packet that the engine handles
    /// accesses memory. An XRC packet uses the protection domain of the shared receive queue that
    /// it names.
    ///
    /// # Errors
    ///
    /// [`AccessFault::NoQueue`] as for [`RecvQueue::remote_pd`].
    #[inline]
    fn remote_context(&self) -> Result<RemoteContext, AccessFault> {
        let srqn = match self.packet.map(|packet| packet.packet.service) {
            Some(Service::Xrc(srqn)) => srqn,
            _ => None,
        };
        Ok(RemoteContext {
            pd: self.rq.remote_pd(self.own.pd, srqn)?,
            qpn: self.qp.qpn.get(),
        })
    }

    /// Returns the address that ib_core gets in place of the sender of the MAD that the engine
    /// handles.
    fn stand_in(&self) -> Option<StandIn> {
        self.sanitized.and_then(|sanitized| sanitized.stand_in)
    }

    /// Returns the fields of a datagram's completion that only kernel consumers get (`struct
    /// ib_wc`: VLAN, network type, SL).
    fn arrival(&self, packet: &RxPacket) -> Arrival {
        let (to, ingress) = (packet.endpoints.destination, packet.skb.ingress());
        Arrival {
            vlan: self.qp.device.link.vlan_of(to, ingress),
            network: to.network(),
            sl: self.stand_in().map_or(0, StandIn::service_level),
        }
    }

    /// Stores the result of a push to a CQ: whether its consumer is to be notified, and whether the
    /// completion was lost.
    fn pushed(pushed: Pushed, notify: &mut bool, fatal: &mut bool) {
        match pushed {
            Pushed::Quiet => {}
            Pushed::Notify => *notify = true,
            Pushed::Overflow => {
                *notify = true;
                *fatal = true;
            }
        }
    }
}

impl EarlyPackets for EngineHost<'_> {
    fn keep_early(&mut self, direction: Direction, expected: Psn, _psn: Psn) -> Kept {
        // A train is not kept.
        let packet = self.packet.filter(|packet| !packet.is_train());
        let kept = packet.map_or(Kept::Refused, |packet| {
            self.early
                .check(&self.qp.inbox, direction, expected, packet)
        });
        self.effects.keeps = (kept == Kept::Kept).then_some(direction);
        kept
    }

    fn first_early(&mut self, direction: Direction, expected: Psn, start: Psn) -> Option<Psn> {
        self.early.first(direction, expected, start)
    }

    fn random(&mut self) -> u32 {
        next_u32()
    }

    fn drop_early(&mut self, direction: Direction) {
        self.early.clear(direction);
    }
}

impl Completions for EngineHost<'_> {
    fn complete_send(&mut self, wc: SendWc) {
        if wc.status != WcStatus::Success {
            self.qp.train_source.end_session();
        }
        let Some(cq) = &self.qp.send_cq else {
            return;
        };
        let pushed = cq.push_send(&wc, self.qp.qpn.get(), self.qp.handle());
        Self::pushed(
            pushed,
            &mut self.effects.notify_send,
            &mut self.effects.fatal,
        );
    }

    fn complete_recv(&mut self, wc: RecvWc) {
        if wc.status != WcStatus::Success {
            self.qp.train_source.end_session();
        }
        if let Some(cq) = &self.qp.recv_cq {
            // Kernel consumers derive the address of a response from the completion's fields.
            let arrival = match self.packet {
                Some(packet) if wc.grh && cq.is_kernels() => Some(self.arrival(packet)),
                _ => None,
            };
            let pushed = cq.push_recv(&wc, self.qp.qpn.get(), self.qp.handle(), arrival);
            Self::pushed(
                pushed,
                &mut self.effects.notify_recv,
                &mut self.effects.fatal,
            );
            return;
        }
        let Some(srq) = self.rq.take_current() else {
            return;
        };
        let mut notify = false;
        if let Some(cq) = srq.cq() {
            let pushed = cq.push_recv(&wc, self.qp.qpn.get(), self.qp.handle(), None);
            Self::pushed(pushed, &mut notify, &mut self.effects.fatal);
        }
        if notify {
            self.effects.xrc_srq = Some(srq);
        }
    }

    fn raise(&mut self, event: Event) {
        match event {
            Event::CommEst | Event::SqDrained => {}
            // By the event the owner learns of the error state. It may then use the memory for
            // something else, so receivers must not read trains there any more.
            Event::QpFatal | Event::QpReqErr | Event::QpAccessErr | Event::LastWqeReached => {
                self.qp.train_source.end_session();
            }
        }
        self.effects.events.insert(event);
    }

    fn count(&mut self, what: Count) {
        let counter = self.counters.count(what);
        if what == Count::CompleterRetry {
            self.effects.lost = true;
        }
        if let (Count::Dropped(_), Some(packet)) = (what, self.packet) {
            self.qp.trace_drop(packet.packet.bth.psn, counter);
        }
    }
}
