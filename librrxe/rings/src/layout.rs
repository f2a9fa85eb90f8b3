// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Layout of the shared memory: `rdma_user_rxe.h`, `include/uapi/rdma/rrxe-abi.h`, and for
//! completions `ib_user_verbs.h`. All offsets and sizes are in bytes, unless stated otherwise.
//!
//! The provider library (librrxe/provider) checks at compile time that these values agree with the
//! headers, except the offsets in [`wc`].

/// Header of a ring: `struct rxe_queue_buf`. All fields have 32 bits.
pub mod ring {
    /// log₂ of the size of an element in bytes.
    pub const LOG2_ELEMENT_SIZE: usize = 0;
    /// Number of slots minus one.
    pub const INDEX_MASK: usize = 4;
    /// Producer index.
    pub const PRODUCER: usize = 128;
    /// In a completion queue: kind of the completions that no notification has announced
    /// (`enum rrxe_cq_news`).
    pub const NEWS: usize = 132;
    /// Consumer index.
    pub const CONSUMER: usize = 256;
    /// In a completion queue: kind of completions that the queue is armed for (`enum rrxe_cq_arm`).
    pub const ARM: usize = 320;
    /// First element.
    pub const ELEMENTS: usize = 384;
}

/// Send WQE: `struct rxe_send_wqe`.
pub mod send_wqe {
    /// Work request ID (`wr_id`), 64 bits.
    pub const WR_ID: usize = 0;
    /// Number of the peer's shared receive queue (for XRC initiators), 32 bits. The opcode follows,
    /// 32 bits.
    pub const SRQN_OPCODE: usize = 8;
    /// Flags (`IBV_SEND_*`), 32 bits. Immediate data (big endian) or the key to invalidate follows,
    /// 32 bits.
    pub const FLAGS_EX: usize = 16;
    /// Fields that depend on the operation.
    pub const OPERATION: usize = 24;
    /// Length of the message, in two fields of 32 bits with the same value.
    pub const LENGTH: usize = 184;
    /// A field of 32 bits that the kernel uses. The number of SGEs follows, 32 bits.
    pub const CUR_SGE_NUM_SGE: usize = 192;
    /// First SGE, or inline payload.
    pub const PAYLOAD: usize = 208;
}

/// Receive WQE: `struct rxe_recv_wqe`.
pub mod recv_wqe {
    /// Work request ID (`wr_id`), 64 bits.
    pub const WR_ID: usize = 0;
    /// Total length of the buffers, in two fields of 32 bits with the same value.
    pub const LENGTH: usize = 16;
    /// A field of 32 bits that the kernel uses. The number of SGEs follows, 32 bits.
    pub const CUR_SGE_NUM_SGE: usize = 24;
    /// First SGE.
    pub const PAYLOAD: usize = 40;
}

/// Completion: `struct ib_uverbs_wc`. Offsets count 64-bit words.
pub mod wc {
    /// Number of words of an entry.
    pub const LONGS: usize = 6;
    /// Work request ID (`wr_id`).
    pub const WR_ID: usize = 0;
    /// Status, then opcode.
    pub const STATUS_OPCODE: usize = 1;
    /// Vendor error, then length of the message in bytes.
    pub const VENDOR_ERR_BYTE_LEN: usize = 2;
    /// Immediate data or invalidated key, then QP number.
    pub const EX_QP_NUM: usize = 3;
    /// Number of the peer's QP, then flags.
    pub const SRC_QP_FLAGS: usize = 4;
    /// First half: P_Key index, source LID. Second half: service level, path bits.
    pub const ADDRESS: usize = 5;
}

/// Doorbell page of a context: `struct rrxe_doorbell`.
pub mod doorbell {
    /// State of the poller (`enum rrxe_poller_state`).
    pub const STATE: usize = 0;
    /// Array with a bit for each 64-bit word of [`DIRTY`].
    pub const SUMMARY: usize = 64;
    /// Array with a bit for each send queue.
    pub const DIRTY: usize = 4096;
    /// Number of send queues for which the page has bits.
    pub const SLOTS: u32 = 32768;
    /// Size of the structure.
    pub const SIZE: usize = DIRTY + SLOTS as usize / 8;
    /// The kernel does not poll the page: the process must make the doorbell system call.
    pub const NEED_WAKEUP: u32 = 1;
}

/// Values of [`ring::ARM`]: `enum rrxe_cq_arm`.
pub mod arm {
    /// A solicited completion, or one in error, causes a notification.
    pub const SOLICITED: u32 = 1;
    /// Any completion causes a notification.
    pub const NEXT: u32 = 2;
}

/// Values of [`ring::NEWS`]: `enum rrxe_cq_news`.
pub mod news {
    /// No completions.
    pub const NONE: u32 = 0;
    /// Completions, none of which is solicited or in error.
    pub const ANY: u32 = 1;
    /// Completions, at least one of which is solicited or in error.
    pub const SOLICITED: u32 = 2;
}
