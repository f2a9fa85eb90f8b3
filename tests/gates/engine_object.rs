// SPDX-License-Identifier: GPL-2.0

//! Instances of the generic code of the protocol engine (rust/roce), for a gate that looks for
//! panics.
//!
//! There is an instance of each public method of `Qp`. The gate fails if one is missing.
//!
//! The gate `no_panic_symbols` (tests/gates/gates.py) compiles this file with the kernel's
//! optimisation level and with overflow checks. The gate fails if the object file refers to a
//! panicking function. The host that the engine calls is opaque: the compiler does not know the
//! values that the host's methods return, so it cannot drop branches of the engine.

#![no_std]

extern crate roce;

use core::hint::black_box;
use roce::early::{Direction, Kept};
use roce::host::{
    AccessFault, Completions, Count, EarlyPackets, Event, Fetch, LocalAccess, Memory, QueueFault,
    RecvQueue, RemoteAccess, ScatterFault, SendQueue,
};
use roce::ids::{Rkey, Srqn};
use roce::mtu::Mtu;
use roce::psn::Psn;
use roce::qp::{
    Attrs, Config, CurrentAttrs, ModifyError, Qp, QpState, Replay, SendWqe, TransmitFault,
};
use roce::time::Instant;
use roce::train::Train;
use roce::transmit::{TrainLimits, Transmit};
use roce::wc::{RecvWc, SendWc, WcStatus};
use roce::wire::packet::Packet;
use roce::wr::{AtomicOp, FlushKind, LocalOp, RecvSlot, RecvWr, SendSlot, SendWr};

/// Implementation of the engine's host traits. A method's result is the value of a field, which
/// `black_box` hides from the optimiser.
#[derive(Debug)]
pub struct Opaque {
    send: Fetch<SendWr>,
    recv: Result<Fetch<RecvWr>, QueueFault>,
    has_queue: bool,
    local: Result<(), WcStatus>,
    scatter: Result<(), ScatterFault>,
    remote: Result<(), AccessFault>,
    original: Result<u64, AccessFault>,
}

impl SendQueue for Opaque {
    fn take_send(&mut self) -> Fetch<SendWr> {
        black_box(self.send)
    }

    fn retire_send(&mut self, slot: SendSlot) {
        black_box(slot);
    }

    fn check_send(&mut self, slot: SendSlot, access: LocalAccess) -> Result<(), WcStatus> {
        black_box((slot, access));
        black_box(self.local)
    }

    fn scatter_send(&mut self, slot: SendSlot, offset: u32) -> Result<(), ScatterFault> {
        black_box((slot, offset));
        black_box(self.scatter)
    }

    fn scatter_atomic(&mut self, slot: SendSlot, original: u64) -> Result<(), ScatterFault> {
        black_box((slot, original));
        black_box(self.scatter)
    }

    fn execute_local(&mut self, slot: SendSlot, op: LocalOp) -> Result<(), WcStatus> {
        black_box((slot, op));
        black_box(self.local)
    }
}

impl RecvQueue for Opaque {
    fn take_recv(&mut self) -> Result<Fetch<RecvWr>, QueueFault> {
        black_box(self.recv)
    }

    fn take_xrc_recv(&mut self, srqn: Srqn) -> Result<Fetch<RecvWr>, QueueFault> {
        black_box(srqn);
        black_box(self.recv)
    }

    fn has_named_queue(&self) -> bool {
        black_box(self.has_queue)
    }

    fn release_recv(&mut self, slot: RecvSlot) {
        black_box(slot);
    }

    fn scatter_recv(&mut self, slot: RecvSlot, offset: u32) -> Result<(), ScatterFault> {
        black_box((slot, offset));
        black_box(self.scatter)
    }
}

impl Memory for Opaque {
    fn check_remote(
        &mut self,
        rkey: Rkey,
        va: u64,
        length: u32,
        access: RemoteAccess,
    ) -> Result<(), AccessFault> {
        black_box((rkey, va, length, access));
        black_box(self.remote)
    }

    fn write_remote(&mut self, rkey: Rkey, va: u64) -> Result<(), AccessFault> {
        black_box((rkey, va));
        black_box(self.remote)
    }

    fn atomic_remote(&mut self, rkey: Rkey, va: u64, op: AtomicOp) -> Result<u64, AccessFault> {
        black_box((rkey, va, op));
        black_box(self.original)
    }

    fn atomic_write_remote(&mut self, rkey: Rkey, va: u64) -> Result<(), AccessFault> {
        black_box((rkey, va));
        black_box(self.remote)
    }

    fn flush_remote(
        &mut self,
        rkey: Rkey,
        va: u64,
        length: u32,
        kind: FlushKind,
    ) -> Result<(), AccessFault> {
        black_box((rkey, va, length, kind));
        black_box(self.remote)
    }

    fn invalidate_remote(&mut self, rkey: Rkey) -> Result<(), AccessFault> {
        black_box(rkey);
        black_box(self.remote)
    }
}

impl EarlyPackets for Opaque {
    fn keep_early(&mut self, direction: Direction, expected: Psn, psn: Psn) -> Kept {
        black_box((direction, expected, psn));
        black_box(Kept::Kept)
    }

    fn first_early(&mut self, direction: Direction, expected: Psn, start: Psn) -> Option<Psn> {
        black_box((direction, expected));
        black_box(Some(start))
    }

    fn drop_early(&mut self, direction: Direction) {
        black_box(direction);
    }
}

impl Completions for Opaque {
    fn complete_send(&mut self, wc: SendWc) {
        black_box(wc);
    }

    fn complete_recv(&mut self, wc: RecvWc) {
        black_box(wc);
    }

    fn raise(&mut self, event: Event) {
        black_box(event);
    }

    fn count(&mut self, what: Count) {
        black_box(what);
    }
}

type OpaqueQp<'a> = Qp<&'a mut [SendWqe], &'a mut [Replay]>;

#[inline(never)]
pub fn new<'a>(
    config: Config,
    window: &'a mut [SendWqe],
    replays: &'a mut [Replay],
) -> OpaqueQp<'a> {
    Qp::new(config, window, replays)
}

#[inline(never)]
pub fn enlarge_replays<'a>(qp: &mut OpaqueQp<'a>, replays: &'a mut [Replay]) -> &'a mut [Replay] {
    qp.enlarge_replays(replays)
}

#[inline(never)]
pub fn state(qp: &OpaqueQp<'_>) -> QpState {
    qp.state()
}

#[inline(never)]
pub fn receives(qp: &OpaqueQp<'_>) -> bool {
    qp.receives()
}

#[inline(never)]
pub fn attrs(qp: &OpaqueQp<'_>) -> CurrentAttrs {
    qp.attrs()
}

#[inline(never)]
pub fn modify(
    qp: &mut OpaqueQp<'_>,
    now: Instant,
    attrs: &Attrs,
    host: &mut Opaque,
) -> Result<(), ModifyError> {
    qp.modify(now, attrs, host)
}

#[inline(never)]
pub fn handle_packet(qp: &mut OpaqueQp<'_>, now: Instant, packet: &Packet, host: &mut Opaque) {
    qp.handle_packet(now, packet, host);
}

#[inline(never)]
pub fn handle_train(qp: &mut OpaqueQp<'_>, now: Instant, train: &Train, host: &mut Opaque) -> bool {
    qp.handle_train(now, train, host)
}

#[inline(never)]
pub fn handle_frame(qp: &mut OpaqueQp<'_>, length: u32, host: &mut Opaque) {
    qp.handle_frame(length, host, |host| black_box(host.scatter));
}

#[inline(never)]
pub fn handle_timeout(qp: &mut OpaqueQp<'_>, now: Instant, host: &mut Opaque) {
    qp.handle_timeout(now, host);
}

#[inline(never)]
pub fn begin_run(qp: &mut OpaqueQp<'_>) {
    qp.begin_run();
}

#[inline(never)]
pub fn poll_transmit(qp: &mut OpaqueQp<'_>, now: Instant, host: &mut Opaque) -> Option<Transmit> {
    qp.poll_transmit(now, host)
}

#[inline(never)]
pub fn poll_train(
    qp: &mut OpaqueQp<'_>,
    now: Instant,
    limits: TrainLimits,
    host: &mut Opaque,
) -> Option<Transmit> {
    qp.poll_train(now, limits, host)
}

#[inline(never)]
pub fn poll_into(
    qp: &mut OpaqueQp<'_>,
    next: &mut Option<Transmit>,
    now: Instant,
    limits: TrainLimits,
    host: &mut Opaque,
) {
    qp.poll_into(next, now, limits, host);
}

#[inline(never)]
pub fn flushes(qp: &OpaqueQp<'_>) -> bool {
    qp.flushes()
}

#[inline(never)]
pub fn flush_posted(qp: &mut OpaqueQp<'_>, host: &mut Opaque) {
    qp.flush_posted(host);
}

#[inline(never)]
pub fn rests(qp: &OpaqueQp<'_>) -> bool {
    qp.rests()
}

#[inline(never)]
pub fn path_mtu(qp: &OpaqueQp<'_>) -> Mtu {
    qp.path_mtu()
}

#[inline(never)]
pub fn retries_losses(qp: &OpaqueQp<'_>) -> bool {
    qp.retries_losses()
}

#[inline(never)]
pub fn peer_repeats_reads(qp: &OpaqueQp<'_>) -> bool {
    qp.peer_repeats_reads()
}

#[inline(never)]
pub fn expected_psn(qp: &OpaqueQp<'_>) -> Psn {
    qp.expected_psn()
}

pub fn oldest_unfinished(qp: &OpaqueQp<'_>) -> Psn {
    qp.oldest_unfinished()
}

#[inline(never)]
pub fn has_acknowledged(qp: &OpaqueQp<'_>, past: Psn) -> bool {
    qp.has_acknowledged(past)
}

#[inline(never)]
pub fn is_reliable(qp: &OpaqueQp<'_>) -> bool {
    qp.is_reliable()
}

#[inline(never)]
pub fn needs_order(qp: &OpaqueQp<'_>) -> bool {
    qp.needs_order()
}

#[inline(never)]
pub fn poll_timeout(qp: &OpaqueQp<'_>) -> Option<Instant> {
    qp.poll_timeout()
}

#[inline(never)]
pub fn deadline(qp: &OpaqueQp<'_>) -> Option<Instant> {
    qp.deadline()
}

#[inline(never)]
pub fn may_send(qp: &OpaqueQp<'_>, transmit: &Transmit) -> bool {
    qp.may_send(transmit)
}

#[inline(never)]
pub fn withdraw(qp: &mut OpaqueQp<'_>, transmit: &Transmit) {
    qp.withdraw(transmit);
}

#[inline(never)]
pub fn transmit_failed(
    qp: &mut OpaqueQp<'_>,
    now: Instant,
    transmit: &Transmit,
    fault: TransmitFault,
    host: &mut Opaque,
) {
    qp.transmit_failed(now, transmit, fault, host);
}

#[inline(never)]
pub fn transmit_dropped(qp: &mut OpaqueQp<'_>, now: Instant, transmit: &Transmit) {
    qp.transmit_dropped(now, transmit);
}
