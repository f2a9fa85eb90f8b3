// SPDX-License-Identifier: GPL-2.0

//! Responses to the provider library of a process when an object is created or a ring resized
//! (`include/uapi/rdma/rdma_user_rxe.h`, `include/uapi/rdma/rrxe-abi.h`).

use crate::bindings;

/// Size of `struct rxe_create_ah_resp` in bytes: the number of the handle, and a reserved word.
pub(crate) const AH_REPLY: usize = 8;

/// Location of a QP's rings, in the response to its process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpReply {
    /// Ring of the receive queue.
    pub rq: RingReply,
    /// Ring of the send queue.
    pub sq: RingReply,
    /// Slot of the QP in the doorbell page, or `None` if the process must make a system call
    /// (`IB_USER_VERBS_CMD_POST_SEND`) for its sends.
    pub slot: Option<u32>,
}

impl QpReply {
    /// Returns the bytes of `struct rxe_create_qp_resp` (`rdma_user_rxe.h`), followed by
    /// `struct rrxe_create_qp_resp` (`rrxe-abi.h`) and eight zeros. Stock librxe has room for the
    /// first structure only.
    pub(crate) fn to_bytes(self) -> [[u8; RingReply::SIZE]; 3] {
        let mut doorbell = [0; RingReply::SIZE];
        let slot = self.slot.unwrap_or(bindings::RRXE_NO_SLOT);
        for (place, byte) in doorbell.iter_mut().zip(slot.to_ne_bytes()) {
            *place = byte;
        }
        [self.rq.to_bytes(), self.sq.to_bytes(), doorbell]
    }
}

/// Location of a ring, in a response to its process: `struct mminfo` of `rdma_user_rxe.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingReply {
    /// Offset for `mmap()`, in bytes.
    pub offset: u64,
    /// Size in bytes.
    pub size: u32,
}

impl RingReply {
    /// Size of the structure in bytes.
    pub const SIZE: usize = 16;

    /// Returns the bytes of the structure: offset, size, padding.
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        let (offset, rest) = bytes.split_at_mut(8);
        offset.copy_from_slice(&self.offset.to_ne_bytes());
        let (size, _padding) = rest.split_at_mut(4);
        size.copy_from_slice(&self.size.to_ne_bytes());
        bytes
    }
}

/// Response to a process's library about a new shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqReply {
    /// Location of the ring of WQEs.
    pub ring: RingReply,
    /// Number of the queue.
    pub number: u32,
}

impl SrqReply {
    /// Size of the structure in bytes.
    pub(crate) const SIZE: usize = RingReply::SIZE + 8;

    /// Returns the bytes of `struct rxe_create_srq_resp` (`rdma_user_rxe.h`): ring, number,
    /// padding.
    pub(crate) fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        let (ring, rest) = bytes.split_at_mut(RingReply::SIZE);
        ring.copy_from_slice(&self.ring.to_bytes());
        let (number, _padding) = rest.split_at_mut(4);
        number.copy_from_slice(&self.number.to_ne_bytes());
        bytes
    }
}
