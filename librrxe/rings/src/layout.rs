// SPDX-License-Identifier: GPL-2.0

//! Where things lie in shared memory, in bytes: `rdma_user_rxe.h` and `rrxe-abi.h`.
//!
//! The provider checks at compile time that both headers agree.

/// The ring in front of its elements: `struct rxe_queue_buf`.
pub mod ring {
    /// log₂ of the bytes of an element.
    pub const LOG2_ELEMENT_SIZE: usize = 0;
    /// Slots less one.
    pub const INDEX_MASK: usize = 4;
    /// The producer's index.
    pub const PRODUCER: usize = 128;
    /// In a completion queue: which completions no notification told of, `enum rrxe_cq_news`.
    pub const NEWS: usize = 132;
    /// The consumer's index.
    pub const CONSUMER: usize = 256;
    /// In a completion queue: what arms it, `enum rrxe_cq_arm`.
    pub const ARM: usize = 320;
    /// The first element.
    pub const ELEMENTS: usize = 384;
}

/// A send WQE: `struct rxe_send_wqe`.
pub mod send_wqe {
    /// Cookie, 64 bits.
    pub const WR_ID: usize = 0;
    /// The peer's shared receive queue, of an XRC initiator; the opcode follows.
    pub const SRQN: usize = 8;
    /// `IBV_SEND_*`; immediate data (big endian) or the key to invalidate follow.
    pub const FLAGS: usize = 16;
    /// What belongs to the operation.
    pub const OPERATION: usize = 24;
    /// Bytes of the message, twice.
    pub const LENGTH: usize = 184;
    /// A field of the kernel's, then the number of SGEs.
    pub const NUM_SGE: usize = 192;
    /// The first SGE, or inline payload.
    pub const PAYLOAD: usize = 208;
}

/// A receive WQE: `struct rxe_recv_wqe`.
pub mod recv_wqe {
    /// Cookie, 64 bits.
    pub const WR_ID: usize = 0;
    /// Bytes of the buffers, twice.
    pub const LENGTH: usize = 16;
    /// A field of the kernel's, then the number of SGEs.
    pub const NUM_SGE: usize = 24;
    /// The first SGE.
    pub const PAYLOAD: usize = 40;
}

/// A completion: `struct ib_uverbs_wc`, in 64-bit words.
pub mod wc {
    /// Words of an entry.
    pub const LONGS: usize = 6;
    /// Cookie.
    pub const WR_ID: usize = 0;
    /// Status and opcode.
    pub const STATUS_OPCODE: usize = 1;
    /// Vendor's error and bytes of the message.
    pub const VENDOR_ERR_BYTE_LEN: usize = 2;
    /// Immediate data or invalidated key, and the QP's number.
    pub const EX_QP_NUM: usize = 3;
    /// The peer's QP and flags.
    pub const SRC_QP_FLAGS: usize = 4;
    /// P_Key index and source LID in its first half, service level and path bits in the second.
    pub const ADDRESS: usize = 5;
}

/// The doorbells of a context: `struct rrxe_doorbell`.
pub mod doorbell {
    /// `enum rrxe_poller_state`.
    pub const STATE: usize = 0;
    /// A bit for each word of `DIRTY`.
    pub const SUMMARY: usize = 64;
    /// A bit for each send queue.
    pub const DIRTY: usize = 4096;
    /// Send queues that there is room for.
    pub const SLOTS: u32 = 32768;
    /// Bytes of the whole.
    pub const SIZE: usize = DIRTY + SLOTS as usize / 8;
    /// Nobody watches: the call is needed.
    pub const NEED_WAKEUP: u32 = 1;
}

/// What arms a completion queue: `enum rrxe_cq_arm`.
pub mod arm {
    /// A solicited completion or one in error notifies.
    pub const SOLICITED: u32 = 1;
    /// Any completion does.
    pub const NEXT: u32 = 2;
}

/// Which completions no notification told of: `enum rrxe_cq_news`.
pub mod news {
    /// None.
    pub const NONE: u32 = 0;
    /// Some, none of which is solicited or in error.
    pub const ANY: u32 = 1;
    /// Some, one of which is solicited or in error.
    pub const SOLICITED: u32 = 2;
}
