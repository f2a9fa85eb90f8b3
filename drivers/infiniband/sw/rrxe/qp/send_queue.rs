// SPDX-License-Identifier: GPL-2.0

//! Send queue of a QP: the mapped ring, and private copies of the WQEs that the engine has taken
//! and not yet retired.
//!
//! When the engine takes a WQE, the fields common to all operations and the SGEs are copied out of
//! the ring, once. This queue keeps the SGEs, indexed by the WQE's slot in the ring. These parts
//! stay in the ring until the WQE is retired:
//!
//! - The arguments of a memory window bind. They are read once, when the engine executes the bind.
//! - The arguments of a fast registration. Only kernel consumers post fast registrations.
//! - Inline payload. No decision depends on it: if the process changes it, the peer gets the
//!   changed bytes.

use core::mem::MaybeUninit;

use kernel::prelude::*;
use rdma::{abi::ring::Ring, memory::fast_mr::Registration};
use roce::{
    host::{Fetch, LocalAccess, ScatterFault},
    qp::QpKind,
    wc::WcStatus,
    wr::{SendExtra, SendOp, SendSlot, SendWr},
};

use crate::{
    limits,
    memory::{mr::MrTable, mw::Bind},
    net::{rx::RxPacket, train, tx::Payload},
    qp::{
        peer::Destination,
        sge::{self, read_sges, OwnMemory},
        wqe::{
            self, destination as destination_of, flush_length, registration, total_length, Owner,
            SendHeader, Sge, SEND_HEADER,
        },
    },
    verbs::pd::PdId,
};

/// Form of the payload of a taken WQE: SGEs or inline payload.
#[derive(Clone, Copy, Default)]
struct WqePayload {
    /// Number of SGEs.
    num_sge: u32,
    /// The payload is in the ring.
    inline: bool,
}

/// Send queue. Protected by the turn lock (`qp/turn.rs`).
///
/// # Invariants
///
/// At most `window` WQEs are taken and not yet retired, and they occupy consecutive slots of the
/// ring. `window` is a power of two that divides the number of slots. So `slot & (window - 1)` is
/// the index of each WQE's private copy, without collision.
pub(crate) struct SendQueue {
    /// Ring that the process or the kernel queue writes.
    ring: Ring,
    /// Next slot to take.
    next: u32,
    /// Slot after the last one to take, once the queue is closed.
    end: Option<u32>,
    /// Maximum number of WQEs that are taken and not yet retired.
    window: u32,
    /// Maximum number of SGEs of a WQE.
    max_sge: u32,
    /// Maximum number of bytes of inline payload.
    max_inline: u32,
    /// Each send work request completes with a CQE (`sq_sig_type` is `IB_SIGNAL_ALL_WR`).
    signal_all: bool,
    /// Process or kernel consumer.
    owner: Owner,
    /// A bind of a memory window was begun since the QP was created or reset.
    binds: bool,
    /// Forms of the payload of `window` WQEs.
    payloads: KVVec<WqePayload>,
    /// SGEs of `window` WQEs, `max_sge` for each.
    sges: KVVec<Sge>,
    /// Destinations of the datagrams of `window` WQEs. Empty for connected QPs.
    destinations: KVVec<Destination>,
}

impl SendQueue {
    /// Returns the bytes of a WQE with `max_sge` SGEs or `max_inline` bytes of inline payload.
    pub(crate) fn element_size(max_sge: u32, max_inline: u32) -> usize {
        SEND_HEADER.saturating_add(sge::bytes(max_sge).max(max_inline as usize))
    }

    /// Creates the send queue on `ring`. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(
        kind: QpKind,
        ring: Ring,
        max_sge: u32,
        max_inline: u32,
        signal_all: bool,
        owner: Owner,
    ) -> Result<Self> {
        let window = ring.slots().min(limits::SEND_WINDOW);
        let rows = (window as usize).saturating_mul(max_sge as usize);
        let destinations = match kind {
            QpKind::Ud | QpKind::Gsi | QpKind::RawPacket => window as usize,
            QpKind::Rc | QpKind::Uc | QpKind::XrcIni | QpKind::XrcTgt => 0,
        };
        Ok(Self {
            next: 0,
            end: None,
            window,
            max_sge,
            max_inline,
            signal_all,
            owner,
            binds: false,
            payloads: KVVec::from_elem(WqePayload::default(), window as usize, GFP_KERNEL_ACCOUNT)?,
            sges: KVVec::from_elem(Sge::default(), rows, GFP_KERNEL_ACCOUNT)?,
            destinations: KVVec::from_elem(
                Destination::default(),
                destinations,
                GFP_KERNEL_ACCOUNT,
            )?,
            ring,
        })
    }

    /// Returns the maximum number of WQEs that are taken and not yet retired.
    pub(crate) fn window(&self) -> u32 {
        self.window
    }

    /// Drops all WQEs that are posted, for a QP that enters RESET.
    pub(crate) fn reset(&mut self) {
        self.binds = false;
        self.next = self.producer();
        self.ring.publish_consumer(self.next);
    }

    /// Returns whether a WQE is posted and not yet taken.
    pub(crate) fn has_posted(&self) -> bool {
        self.producer() != self.next
    }

    /// Closes the queue: only the WQEs that were posted before this call are taken.
    pub(crate) fn close(&mut self) {
        self.end = Some(self.producer());
    }

    /// Returns the slot after the last one to take.
    #[inline]
    fn producer(&self) -> u32 {
        self.end.unwrap_or_else(|| self.ring.producer())
    }

    /// Returns the number of WQEs that are posted and not yet retired. The process writes one of
    /// the two indices, so the number may be wrong.
    pub(crate) fn posted(&self) -> u32 {
        self.ring.claimed()
    }

    /// Takes the next WQE that is posted.
    #[inline]
    pub(crate) fn take(&mut self) -> Fetch<SendWr> {
        if self.has_posted() {
            self.take_posted()
        } else {
            Fetch::Empty
        }
    }

    /// Takes the next WQE. The caller knows that one is posted. Not inlined, because the engine
    /// mostly finds the queue empty.
    #[inline(never)]
    fn take_posted(&mut self) -> Fetch<SendWr> {
        let slot = self.next;
        self.next = self.ring.next(slot);
        let mut place = MaybeUninit::uninit();
        let raw = self.ring.read_array_into(slot, &mut place);
        let header = SendHeader::parse(raw, self.owner, !self.destinations.is_empty());
        let row = self.row(slot);
        if let Some(destination) = self.destinations.get_mut(row) {
            *destination = destination_of(raw);
        }
        let length = self.copy_sges(slot, raw, &header);
        // The engine needs a well-formed work request even for a malformed WQE, which completes
        // with its `wr_id`.
        let op = header.op.unwrap_or(SendOp::Send(SendExtra::Plain));
        let wr = SendWr {
            slot: SendSlot(slot),
            wr_id: header.wr_id,
            op,
            length: length.unwrap_or(0),
            signaled: header.signaled || self.signal_all,
            solicited: header.solicited,
            fence: header.fence,
            srqn: header.srqn,
        };
        match header.op.and(length).and(check_length(&wr)) {
            Ok(()) => Fetch::Wr(wr),
            Err(status) => Fetch::Malformed(wr, status),
        }
    }

    /// Copies the SGEs of a WQE and stores the form of its payload. Returns the length of its
    /// message, in bytes.
    ///
    /// # Errors
    ///
    /// `LocQpOpErr` if the WQE has too many SGEs, `LocLenErr` if its length is not valid, or if a
    /// READ or an atomic is inline.
    fn copy_sges(
        &mut self,
        slot: u32,
        raw: &[u8; SEND_HEADER],
        header: &SendHeader,
    ) -> Result<u32, WcStatus> {
        let index = self.row(slot);
        let max_sge = self.max_sge;
        let Some(payload) = self.payloads.get_mut(index) else {
            return Err(WcStatus::GeneralErr);
        };
        *payload = WqePayload::default();
        if matches!(header.op, Ok(SendOp::Flush(..))) {
            return Ok(flush_length(raw));
        }
        if matches!(header.op, Ok(SendOp::Local(_))) {
            return Ok(0);
        }
        if let Some(length) = header.inline {
            payload.inline = true;
            let takes_inline = !matches!(header.op, Ok(SendOp::Read(_) | SendOp::Atomic(..)));
            return (takes_inline && length <= self.max_inline)
                .then_some(length)
                .ok_or(WcStatus::LocLenErr);
        }
        if header.num_sge > max_sge {
            return Err(WcStatus::LocQpOpErr);
        }
        payload.num_sge = header.num_sge;
        let row = self.sges.get_mut(index.saturating_mul(max_sge as usize)..);
        let sges = row
            .and_then(|row| row.get_mut(..header.num_sge as usize))
            .unwrap_or_default();
        read_sges(&self.ring, slot, SEND_HEADER, sges);
        total_length(sges).ok_or(WcStatus::LocLenErr)
    }

    /// Returns the destination of a WQE's datagram.
    pub(crate) fn destination(&self, slot: SendSlot) -> Destination {
        self.destinations
            .get(self.row(slot.0))
            .copied()
            .unwrap_or_default()
    }

    /// Returns the arguments of a fast registration (REG_MR). Only kernel consumers post these, so
    /// the ring still holds them.
    pub(crate) fn registration(&self, slot: SendSlot) -> Registration {
        registration(&self.ring.read_array(slot.0))
    }

    /// Returns the arguments of the memory window bind in `slot`. They are read here only, and
    /// once.
    pub(crate) fn bind(&mut self, slot: SendSlot) -> Bind {
        self.binds = true;
        wqe::bind(&self.ring.read_array(slot.0))
    }

    /// Returns whether the QP may have bound memory windows.
    pub(crate) fn binds(&self) -> bool {
        self.binds
    }

    /// Frees the WQE's slot of the ring for another WQE.
    pub(crate) fn retire(&mut self, slot: SendSlot) {
        self.ring.publish_consumer(self.ring.next(slot.0));
    }

    /// Checks key, range and permission of each SGE. Inline payload is always permitted.
    ///
    /// # Errors
    ///
    /// The errors of [`sge::check`].
    pub(crate) fn check(
        &self,
        slot: SendSlot,
        access: LocalAccess,
        mrs: &MrTable,
        pd: PdId,
    ) -> Result<(), WcStatus> {
        sge::check(self.sges(slot), access, mrs, pd)
    }

    /// Copies the payload of `packet` to the WQE's SGEs, from `offset` bytes of the message on.
    ///
    /// # Errors
    ///
    /// The errors of [`sge::write`].
    pub(crate) fn scatter(
        &self,
        slot: SendSlot,
        offset: u32,
        packet: &RxPacket,
        own: OwnMemory<'_>,
    ) -> Result<(), ScatterFault> {
        sge::scatter(self.sges(slot), offset, packet, own)
    }

    /// Stores an atomic's original value to the WQE's SGEs, in host byte order.
    ///
    /// # Errors
    ///
    /// The errors of [`sge::write`].
    pub(crate) fn scatter_word(
        &self,
        slot: SendSlot,
        word: u64,
        own: OwnMemory<'_>,
    ) -> Result<(), ScatterFault> {
        sge::scatter_bytes(self.sges(slot), 0, &word.to_ne_bytes(), own)
    }

    /// Appends `length` bytes of the message, from `offset` on, to a packet or frame.
    ///
    /// # Errors
    ///
    /// The errors of [`sge::walk`].
    pub(crate) fn gather(
        &self,
        slot: SendSlot,
        offset: u32,
        length: u32,
        frame: &mut impl Payload,
        own: OwnMemory<'_>,
    ) -> Result<(), ScatterFault> {
        if self.payload(slot).inline {
            return Ok(self.gather_inline(slot, offset, length, frame)?);
        }
        sge::walk(
            self.sges(slot),
            offset,
            length,
            LocalAccess::Read,
            own,
            |span, _| {
                frame.append(span);
                Ok(())
            },
        )
    }

    /// Returns the SGEs of `length` bytes of the message, from `offset` on, for a packet train.
    /// Returns `None` if the payload is inline, or lies in more than [`train::MAX_SGES`] SGEs.
    pub(crate) fn train_sges(
        &self,
        slot: SendSlot,
        offset: u32,
        length: u32,
    ) -> Option<[Sge; train::MAX_SGES]> {
        if self.payload(slot).inline {
            return None;
        }
        let mut parts = [Sge::default(); train::MAX_SGES];
        let mut free = parts.iter_mut();
        let mut left = length;
        for part in sge::parts(self.sges(slot), offset, length) {
            *free.next()? = part;
            left = left.wrapping_sub(part.length);
        }
        (left == 0).then_some(parts)
    }

    /// Appends `length` bytes of inline payload, from `offset` on, to a packet or frame.
    ///
    /// # Errors
    ///
    /// `LocLenErr` if `length` exceeds [`limits::MAX_INLINE`].
    fn gather_inline(
        &self,
        slot: SendSlot,
        offset: u32,
        length: u32,
        frame: &mut impl Payload,
    ) -> Result<(), WcStatus> {
        let mut bytes = [0u8; limits::MAX_INLINE as usize];
        let bytes = bytes
            .get_mut(..length as usize)
            .ok_or(WcStatus::LocLenErr)?;
        let start = SEND_HEADER.saturating_add(offset as usize);
        self.ring.read_bytes(slot.0, start, bytes);
        frame.copy(bytes);
        Ok(())
    }

    /// Returns the index of the private copy of the WQE in `slot`.
    fn row(&self, slot: u32) -> usize {
        (slot & self.window.wrapping_sub(1)) as usize
    }

    /// Returns the form of a WQE's payload.
    fn payload(&self, slot: SendSlot) -> WqePayload {
        self.payloads
            .get(self.row(slot.0))
            .copied()
            .unwrap_or_default()
    }

    /// Returns the SGEs of a WQE that is taken and not yet retired.
    fn sges(&self, slot: SendSlot) -> &[Sge] {
        let used = self.payload(slot).num_sge as usize;
        let first = self.row(slot.0).saturating_mul(self.max_sge as usize);
        self.sges
            .get(first..)
            .and_then(|row| row.get(..used))
            .unwrap_or_default()
    }
}

/// Checks the length of operations whose length is fixed: atomics and ATOMIC WRITE have 8 bytes.
///
/// # Errors
///
/// `LocLenErr`.
fn check_length(wr: &SendWr) -> Result<(), WcStatus> {
    match wr.op {
        SendOp::Atomic(..) | SendOp::AtomicWrite(_) if wr.length != 8 => Err(WcStatus::LocLenErr),
        _ => Ok(()),
    }
}
