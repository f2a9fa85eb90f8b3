// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Work requests, and their layout in a send WQE.

use crate::{
    layout::send_wqe,
    memory::{pair, split},
    sync::{AtomicU64, Ordering},
};

/// Flag of a request whose payload is in the WQE: `IBV_SEND_INLINE`.
pub const INLINE: u32 = 1 << 3;

/// Type of a QP, as far as its send queue is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Reliable connection (RC).
    Rc,
    /// Unreliable connection (UC).
    Uc,
    /// Unreliable datagram (UD).
    Ud,
    /// Initiator of an extended reliable connection (XRC).
    XrcSend,
    /// Raw Ethernet frames.
    RawPacket,
}

/// Address in the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Address of the first byte.
    pub addr: u64,
    /// Remote key of the region or memory window.
    pub rkey: u32,
}

/// Parameters of a bind of a memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub length: u64,
    /// Local key of the memory region.
    pub region: u32,
    /// Present key of the memory window.
    pub window: u32,
    /// New key of the memory window.
    pub rkey: u32,
    /// Access rights that the window grants (`IBV_ACCESS_*`).
    pub access: u32,
}

/// Operation of a work request. Immediate data is big endian, as in verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// SEND.
    Send,
    /// SEND with immediate data.
    SendImm(u32),
    /// SEND that invalidates a key of the peer.
    SendInvalidate(u32),
    /// RDMA WRITE.
    Write(Remote),
    /// RDMA WRITE with immediate data.
    WriteImm(Remote, u32),
    /// RDMA READ.
    Read(Remote),
    /// Atomic compare and swap.
    CompareSwap {
        /// Address, aligned to 8 bytes.
        remote: Remote,
        /// Expected value.
        compare: u64,
        /// Value to store if the expected value was found.
        swap: u64,
    },
    /// Atomic fetch and add.
    FetchAdd {
        /// Address, aligned to 8 bytes.
        remote: Remote,
        /// Value to add.
        add: u64,
    },
    /// ATOMIC WRITE of 8 bytes, which are inline payload.
    AtomicWrite(Remote),
    /// FLUSH of data that earlier requests wrote.
    Flush {
        /// Address of the first byte.
        remote: Remote,
        /// Length in bytes.
        length: u32,
        /// Placement type (`IBV_FLUSH_GLOBAL`, `IBV_FLUSH_PERSISTENT`).
        placement: u8,
        /// Selectivity level (`IBV_FLUSH_RANGE`, `IBV_FLUSH_MR`).
        selectivity: u8,
    },
    /// Invalidation of a local key.
    LocalInvalidate(u32),
    /// Bind of a memory window.
    BindWindow(Bind),
}

impl Operation {
    /// Returns whether a QP of type `transport` supports the operation.
    pub fn fits(&self, transport: Transport) -> bool {
        match (self, transport) {
            (_, Transport::Rc | Transport::XrcSend) => true,
            (
                Self::Send
                | Self::SendImm(_)
                | Self::Write(_)
                | Self::WriteImm(..)
                | Self::BindWindow(_),
                Transport::Uc,
            ) => true,
            (Self::Send | Self::SendImm(_), Transport::Ud) => true,
            (Self::Send, Transport::RawPacket) => true,
            (_, Transport::Uc | Transport::Ud | Transport::RawPacket) => false,
        }
    }

    /// Returns whether the operation has SGEs or inline payload.
    pub fn takes_payload(&self) -> bool {
        match self {
            Self::Send
            | Self::SendImm(_)
            | Self::SendInvalidate(_)
            | Self::Write(_)
            | Self::WriteImm(..)
            | Self::Read(_)
            | Self::CompareSwap { .. }
            | Self::FetchAdd { .. }
            | Self::AtomicWrite(_) => true,
            Self::Flush { .. } | Self::LocalInvalidate(_) | Self::BindWindow(_) => false,
        }
    }

    /// Returns the opcode (`enum ib_uverbs_wr_opcode`).
    pub const fn opcode(&self) -> u32 {
        match self {
            Self::Write(_) => 0,
            Self::WriteImm(..) => 1,
            Self::Send => 2,
            Self::SendImm(_) => 3,
            Self::Read(_) => 4,
            Self::CompareSwap { .. } => 5,
            Self::FetchAdd { .. } => 6,
            Self::LocalInvalidate(_) => 7,
            Self::BindWindow(_) => 8,
            Self::SendInvalidate(_) => 9,
            Self::Flush { .. } => 14,
            Self::AtomicWrite(_) => 15,
        }
    }

    /// Returns the immediate data or the key to invalidate, or 0.
    fn ex(&self) -> u32 {
        match *self {
            Self::SendImm(imm) | Self::WriteImm(_, imm) => imm,
            Self::SendInvalidate(key) | Self::LocalInvalidate(key) => key,
            _ => 0,
        }
    }
}

/// Send WQE that is being written.
#[derive(Clone, Copy)]
pub(crate) struct Wqe<'a>(pub(crate) &'a [AtomicU64]);

impl Wqe<'_> {
    /// Writes all fields except the destination and the payload. The payload stays empty until it
    /// is written.
    pub(crate) fn begin(self, wr_id: u64, flags: u32, operation: &Operation) {
        self.put(send_wqe::WR_ID, wr_id);
        self.put(send_wqe::SRQN_OPCODE, pair(0, operation.opcode()));
        self.put(send_wqe::FLAGS_EX, pair(flags & !INLINE, operation.ex()));
        self.operation(operation);
        let length = match operation {
            Operation::Flush { length, .. } => *length,
            _ => 0,
        };
        self.lengths(length, 0);
    }

    /// Writes the fields that depend on the operation.
    fn operation(self, operation: &Operation) {
        let at = send_wqe::OPERATION;
        match *operation {
            Operation::Write(remote)
            | Operation::WriteImm(remote, _)
            | Operation::Read(remote)
            | Operation::AtomicWrite(remote) => {
                self.put(at, remote.addr);
                self.put(at + 8, pair(remote.rkey, 0));
            }
            Operation::CompareSwap {
                remote,
                compare,
                swap,
            } => self.atomic(remote, compare, swap),
            Operation::FetchAdd { remote, add } => self.atomic(remote, add, 0),
            Operation::Flush {
                remote,
                length,
                placement,
                selectivity,
            } => {
                self.put(at, remote.addr);
                self.put(at + 8, pair(length, remote.rkey));
                let kind = u64::from_ne_bytes([placement, selectivity, 0, 0, 0, 0, 0, 0]);
                self.put(at + 16, kind);
            }
            Operation::BindWindow(bind) => {
                self.put(at, bind.addr);
                self.put(at + 8, bind.length);
                self.put(at + 16, pair(bind.region, bind.window));
                self.put(at + 24, pair(bind.rkey, bind.access));
            }
            Operation::Send
            | Operation::SendImm(_)
            | Operation::SendInvalidate(_)
            | Operation::LocalInvalidate(_) => {}
        }
    }

    /// Writes the fields of an atomic operation.
    fn atomic(self, remote: Remote, compare_add: u64, swap: u64) {
        let at = send_wqe::OPERATION;
        self.put(at, remote.addr);
        self.put(at + 8, compare_add);
        self.put(at + 16, swap);
        self.put(at + 24, pair(remote.rkey, 0));
    }

    /// Writes the destination of a datagram.
    pub(crate) fn datagram(self, qpn: u32, qkey: u32, ah: u32) {
        self.put(send_wqe::OPERATION, pair(qpn, qkey));
        self.put(send_wqe::OPERATION + 8, pair(0, ah));
    }

    /// Writes the number of the peer's shared receive queue.
    pub(crate) fn srqn(self, srqn: u32) {
        let (_, opcode) = split(self.get(send_wqe::SRQN_OPCODE));
        self.put(send_wqe::SRQN_OPCODE, pair(srqn, opcode));
    }

    /// Writes the SGEs. They replace an earlier payload.
    pub(crate) fn sges(self, sges: impl Iterator<Item = crate::Sge>) {
        let (flags, ex) = split(self.get(send_wqe::FLAGS_EX));
        self.put(send_wqe::FLAGS_EX, pair(flags & !INLINE, ex));
        let (length, count) = put_sges(self.0, send_wqe::PAYLOAD, sges);
        self.lengths(length, count);
    }

    /// Writes inline payload: the concatenated `buffers`. It replaces an earlier payload.
    pub(crate) fn inline<'b>(self, buffers: impl Iterator<Item = &'b [u8]>) {
        let (flags, ex) = split(self.get(send_wqe::FLAGS_EX));
        self.put(send_wqe::FLAGS_EX, pair(flags | INLINE, ex));
        let length = self.bytes(buffers);
        self.lengths(length, 0);
    }

    /// Writes the concatenated `buffers` at the place of the payload. Returns their length in
    /// bytes.
    fn bytes<'b>(self, buffers: impl Iterator<Item = &'b [u8]>) -> u32 {
        let mut place = send_wqe::PAYLOAD;
        // The word that is being filled, and the number of its bytes that are filled.
        let (mut word, mut filled) = ([0; 8], 0usize);
        let mut length = 0u32;
        for mut buffer in buffers {
            length = length.saturating_add(u32::try_from(buffer.len()).unwrap_or(u32::MAX));
            while !buffer.is_empty() {
                if filled == 0 {
                    if let Some((long, rest)) = buffer.split_first_chunk() {
                        self.put(place, u64::from_ne_bytes(*long));
                        (place, buffer) = (place + 8, rest);
                        continue;
                    }
                }
                let (head, rest) = buffer.split_at(buffer.len().min(8 - filled));
                for (to, from) in word.iter_mut().skip(filled).zip(head) {
                    *to = *from;
                }
                (filled, buffer) = (filled + head.len(), rest);
                if filled == 8 {
                    self.put(place, u64::from_ne_bytes(word));
                    (place, filled) = (place + 8, 0);
                }
            }
        }
        if filled > 0 {
            self.put(place, u64::from_ne_bytes(word));
        }
        length
    }

    /// Writes the length of the message and the number of SGEs.
    fn lengths(self, length: u32, num_sge: u32) {
        self.put(send_wqe::LENGTH, pair(length, length));
        self.put(send_wqe::CUR_SGE_NUM_SGE, pair(0, num_sge));
    }

    /// Writes the 64-bit word at `offset`.
    fn put(self, offset: usize, value: u64) {
        put(self.0, offset, value);
    }

    /// Returns the 64-bit word at `offset`.
    fn get(self, offset: usize) -> u64 {
        let word = self.0.get(offset / 8);
        word.map_or(0, |word| word.load(Ordering::Relaxed))
    }
}

/// Writes a 64-bit word of an element. Does nothing if `offset` is beyond its end.
pub(crate) fn put(element: &[AtomicU64], offset: usize, value: u64) {
    if let Some(word) = element.get(offset / 8) {
        word.store(value, Ordering::Relaxed);
    }
}

/// Writes SGEs from `offset` on. Returns the sum of their lengths and their number.
pub(crate) fn put_sges(
    element: &[AtomicU64],
    offset: usize,
    sges: impl Iterator<Item = crate::Sge>,
) -> (u32, u32) {
    let (mut total, mut count) = (0u32, 0u32);
    let places = element.get(offset / 8..).unwrap_or_default();
    for (sge, place) in sges.zip(places.chunks_exact(2)) {
        put(place, 0, sge.addr);
        put(place, 8, pair(sge.length, sge.lkey));
        total = total.wrapping_add(sge.length);
        count += 1;
    }
    (total, count)
}
