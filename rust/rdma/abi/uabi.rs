// SPDX-License-Identifier: GPL-2.0

//! Layout of the structures that the provider libraries and the driver share. Both compile the same
//! headers: `rdma_user_rxe.h`, and for librrxe also `include/uapi/rdma/rrxe-abi.h`. Offsets and
//! sizes are in bytes. A field without a stated size has 32 bits.

use core::mem::{offset_of, size_of};

use kernel::prelude::*;

use crate::bindings;

/// Header of a ring: `struct rxe_queue_buf`.
pub mod ring {
    use super::{bindings::rxe_queue_buf, offset_of};

    /// log₂ of the size of an element. Written by the kernel.
    pub const LOG2_ELEMENT_SIZE: usize = offset_of!(rxe_queue_buf, log2_elem_size);
    /// Number of slots minus one. Written by the kernel.
    pub const INDEX_MASK: usize = offset_of!(rxe_queue_buf, index_mask);
    /// Producer index.
    pub const PRODUCER: usize = offset_of!(rxe_queue_buf, producer_index);
    /// Consumer index.
    pub const CONSUMER: usize = offset_of!(rxe_queue_buf, consumer_index);
    /// First element.
    pub const ELEMENTS: usize = offset_of!(rxe_queue_buf, data);
}

/// Send WQE: `struct rxe_send_wqe`.
pub mod send_wqe {
    use super::{
        bindings::{rxe_dma_info, rxe_send_wqe},
        offset_of,
    };

    const DMA: usize = offset_of!(rxe_send_wqe, dma);

    /// Work request ID (`wr_id`), 64 bits.
    pub const WR_ID: usize = offset_of!(rxe_send_wqe, wr.wr_id);
    /// Opcode (`enum ib_uverbs_wr_opcode`).
    pub const OPCODE: usize = offset_of!(rxe_send_wqe, wr.opcode);
    /// Number of the peer's shared receive queue, for XRC initiators.
    pub const SRQN: usize = offset_of!(rxe_send_wqe, wr.reserved);
    /// Flags (`IB_SEND_*`).
    pub const FLAGS: usize = offset_of!(rxe_send_wqe, wr.send_flags);
    /// Immediate data (big endian), or key to invalidate.
    pub const EX: usize = offset_of!(rxe_send_wqe, wr.ex);
    /// Remote address of a WRITE, READ or ATOMIC WRITE, 64 bits.
    pub const RDMA_ADDR: usize = offset_of!(rxe_send_wqe, wr.wr.rdma.remote_addr);
    /// Remote key of a WRITE, READ or ATOMIC WRITE.
    pub const RDMA_RKEY: usize = offset_of!(rxe_send_wqe, wr.wr.rdma.rkey);
    /// Remote address of an atomic, 64 bits.
    pub const ATOMIC_ADDR: usize = offset_of!(rxe_send_wqe, wr.wr.atomic.remote_addr);
    /// Operand of an atomic to compare with or to add, 64 bits.
    pub const ATOMIC_COMPARE_ADD: usize = offset_of!(rxe_send_wqe, wr.wr.atomic.compare_add);
    /// Operand of an atomic to swap in, 64 bits.
    pub const ATOMIC_SWAP: usize = offset_of!(rxe_send_wqe, wr.wr.atomic.swap);
    /// Remote key of an atomic.
    pub const ATOMIC_RKEY: usize = offset_of!(rxe_send_wqe, wr.wr.atomic.rkey);
    /// Remote address of a FLUSH, 64 bits.
    pub const FLUSH_ADDR: usize = offset_of!(rxe_send_wqe, wr.wr.flush.remote_addr);
    /// Remote key of a FLUSH.
    pub const FLUSH_RKEY: usize = offset_of!(rxe_send_wqe, wr.wr.flush.rkey);
    /// Placement type of a FLUSH, 8 bits.
    pub const FLUSH_TYPE: usize = offset_of!(rxe_send_wqe, wr.wr.flush.type_);
    /// Selectivity level of a FLUSH, 8 bits.
    pub const FLUSH_LEVEL: usize = offset_of!(rxe_send_wqe, wr.wr.flush.level);
    /// Destination QP of a datagram.
    pub const UD_QPN: usize = offset_of!(rxe_send_wqe, wr.wr.ud.remote_qpn);
    /// Queue key (Q_Key) of a datagram.
    pub const UD_QKEY: usize = offset_of!(rxe_send_wqe, wr.wr.ud.remote_qkey);
    /// Number of the address handle of a datagram. Zero if the address follows in the WQE.
    pub const UD_AH: usize = offset_of!(rxe_send_wqe, wr.wr.ud.ah_num);
    /// Destination address of a datagram: `struct rxe_av`.
    pub const UD_AV: usize = offset_of!(rxe_send_wqe, wr.wr.ud.av);
    /// Address (IOVA) that a fast registration gives to the first byte of the region, 64 bits. Used
    /// in queues of in-kernel consumers only.
    pub const REG_IOVA: usize = offset_of!(rxe_send_wqe, wr.wr.reg);
    /// Key that a fast registration gives to the region.
    pub const REG_KEY: usize = offset_of!(rxe_send_wqe, wr.wr.reg.key);
    /// Access rights of a fast registration (`IB_ACCESS_*`).
    pub const REG_ACCESS: usize = offset_of!(rxe_send_wqe, wr.wr.reg.access);
    /// Address of the first byte to which a memory window is bound, 64 bits.
    pub const MW_ADDR: usize = offset_of!(rxe_send_wqe, wr.wr.mw.addr);
    /// Length in bytes of the range to which a memory window is bound, 64 bits.
    pub const MW_LENGTH: usize = offset_of!(rxe_send_wqe, wr.wr.mw.length);
    /// Local key of the region to which a memory window is bound.
    pub const MW_REGION: usize = offset_of!(rxe_send_wqe, wr.wr.mw.mr_lkey);
    /// Present key of the memory window.
    pub const MW_WINDOW: usize = offset_of!(rxe_send_wqe, wr.wr.mw.mw_rkey);
    /// New key of the memory window.
    pub const MW_RKEY: usize = offset_of!(rxe_send_wqe, wr.wr.mw.rkey);
    /// Access rights that the memory window grants.
    pub const MW_ACCESS: usize = offset_of!(rxe_send_wqe, wr.wr.mw.access);
    /// Length of the message in bytes, as the library calculates it.
    pub const LENGTH: usize = DMA + offset_of!(rxe_dma_info, length);
    /// Length of the message in bytes, like [`LENGTH`]. For some operations, libraries set only one
    /// of the two fields.
    pub const RESIDUE: usize = DMA + offset_of!(rxe_dma_info, resid);
    /// Number of SGEs.
    pub const NUM_SGE: usize = DMA + offset_of!(rxe_dma_info, num_sge);
    /// First SGE, or inline payload.
    pub const PAYLOAD: usize = DMA + offset_of!(rxe_dma_info, __bindgen_anon_1);
}

/// Address vector in a send WQE: `struct rxe_av`. Its other fields follow from these.
pub mod av {
    use super::{bindings::rxe_av, offset_of};

    /// Port number, 8 bits.
    pub const PORT: usize = offset_of!(rxe_av, port_num);
    /// Destination GID, 16 bytes.
    pub const DGID: usize = offset_of!(rxe_av, grh.dgid);
    /// Flow label.
    pub const FLOW_LABEL: usize = offset_of!(rxe_av, grh.flow_label);
    /// Index of the source GID, 8 bits.
    pub const SGID_INDEX: usize = offset_of!(rxe_av, grh.sgid_index);
    /// Hop limit, 8 bits.
    pub const HOP_LIMIT: usize = offset_of!(rxe_av, grh.hop_limit);
    /// Traffic class, 8 bits.
    pub const TRAFFIC_CLASS: usize = offset_of!(rxe_av, grh.traffic_class);
}

/// Opcodes of send WQEs: `enum ib_uverbs_wr_opcode`.
#[allow(missing_docs)]
pub mod opcode {
    use crate::bindings::*;

    pub const RDMA_WRITE: u32 = ib_uverbs_wr_opcode_IB_UVERBS_WR_RDMA_WRITE;
    pub const RDMA_WRITE_WITH_IMM: u32 = ib_uverbs_wr_opcode_IB_UVERBS_WR_RDMA_WRITE_WITH_IMM;
    pub const SEND: u32 = ib_uverbs_wr_opcode_IB_UVERBS_WR_SEND;
    pub const SEND_WITH_IMM: u32 = ib_uverbs_wr_opcode_IB_UVERBS_WR_SEND_WITH_IMM;
    pub const RDMA_READ: u32 = ib_uverbs_wr_opcode_IB_UVERBS_WR_RDMA_READ;
    pub const COMPARE_SWAP: u32 = ib_uverbs_wr_opcode_IB_UVERBS_WR_ATOMIC_CMP_AND_SWP;
    pub const FETCH_ADD: u32 = ib_uverbs_wr_opcode_IB_UVERBS_WR_ATOMIC_FETCH_AND_ADD;
    pub const LOCAL_INV: u32 = ib_uverbs_wr_opcode_IB_UVERBS_WR_LOCAL_INV;
    pub const BIND_MW: u32 = ib_uverbs_wr_opcode_IB_UVERBS_WR_BIND_MW;
    pub const SEND_WITH_INV: u32 = ib_uverbs_wr_opcode_IB_UVERBS_WR_SEND_WITH_INV;
    pub const FLUSH: u32 = ib_uverbs_wr_opcode_IB_UVERBS_WR_FLUSH;
    pub const ATOMIC_WRITE: u32 = ib_uverbs_wr_opcode_IB_UVERBS_WR_ATOMIC_WRITE;
}

/// Further opcodes of send WQEs in queues of in-kernel consumers: `enum ib_wr_opcode`.
pub mod kernel_opcode {
    /// Fast registration of a memory region.
    pub const REG_MR: u32 = crate::bindings::ib_wr_opcode_IB_WR_REG_MR;
}

/// Flags of send WQEs: `enum ib_send_flags`.
#[allow(missing_docs)]
pub mod send_flag {
    use crate::bindings::*;

    pub const FENCE: u32 = ib_send_flags_IB_SEND_FENCE as u32;
    pub const SIGNALED: u32 = ib_send_flags_IB_SEND_SIGNALED as u32;
    pub const SOLICITED: u32 = ib_send_flags_IB_SEND_SOLICITED as u32;
    pub const INLINE: u32 = ib_send_flags_IB_SEND_INLINE as u32;
}

/// Receive WQE: `struct rxe_recv_wqe`.
pub mod recv_wqe {
    use super::{
        bindings::{rxe_dma_info, rxe_recv_wqe},
        offset_of,
    };

    const DMA: usize = offset_of!(rxe_recv_wqe, dma);

    /// Work request ID (`wr_id`), 64 bits.
    pub const WR_ID: usize = offset_of!(rxe_recv_wqe, wr_id);
    /// Number of SGEs.
    pub const NUM_SGE: usize = DMA + offset_of!(rxe_dma_info, num_sge);
    /// First SGE.
    pub const PAYLOAD: usize = DMA + offset_of!(rxe_dma_info, __bindgen_anon_1);
}

/// Scatter/gather element (SGE): `struct rxe_sge`.
pub mod sge {
    use super::{bindings::rxe_sge, offset_of, size_of};

    /// Address, 64 bits.
    pub const ADDR: usize = offset_of!(rxe_sge, addr);
    /// Length in bytes.
    pub const LENGTH: usize = offset_of!(rxe_sge, length);
    /// Local key.
    pub const LKEY: usize = offset_of!(rxe_sge, lkey);
    /// Size of an SGE.
    pub const SIZE: usize = size_of::<rxe_sge>();
}

/// Doorbell page: `struct rrxe_doorbell`.
pub mod doorbell {
    use super::{
        bindings::{rrxe_doorbell, RRXE_DOORBELL_SLOTS, RRXE_DOORBELL_SUMMARY},
        offset_of, size_of,
    };

    /// State (`enum rrxe_poller_state`): whether the process must make the doorbell call (the
    /// `write()` of `IB_USER_VERBS_CMD_POST_SEND`). Written by the kernel.
    pub const STATE: usize = offset_of!(rrxe_doorbell, state);
    /// Array of 64-bit words with a bit for each word of [`DIRTY`].
    pub const SUMMARY: usize = offset_of!(rrxe_doorbell, summary);
    /// Number of words of [`SUMMARY`].
    pub const SUMMARY_WORDS: usize = RRXE_DOORBELL_SUMMARY as usize;
    /// Array of 64-bit words with a bit for each slot.
    pub const DIRTY: usize = offset_of!(rrxe_doorbell, dirty);
    /// Number of slots.
    pub const SLOTS: u32 = RRXE_DOORBELL_SLOTS;
    /// Size of the structure.
    pub const SIZE: usize = size_of::<rrxe_doorbell>();
}

/// Word in the ring of a CQ by which a process arms the CQ without a system call: `RRXE_CQ_ARM`.
pub mod cq_arm {
    use crate::bindings::*;

    /// Offset of the word in the ring: behind the indices, in a cache line of its own.
    pub const OFFSET: usize = RRXE_CQ_ARM as usize;
    /// The CQ is not armed.
    pub const NONE: u32 = rrxe_cq_arm_RRXE_CQ_ARM_NONE;
    /// A solicited completion, or one in error, causes a notification.
    pub const SOLICITED: u32 = rrxe_cq_arm_RRXE_CQ_ARM_SOLICITED;
    /// Any completion causes a notification.
    pub const NEXT: u32 = rrxe_cq_arm_RRXE_CQ_ARM_NEXT;
}

/// Word in the ring of a CQ that tells which kind of completions the CQ has that no notification
/// has announced: `RRXE_CQ_NEWS`.
pub mod cq_news {
    use crate::bindings::*;

    /// Offset of the word in the ring: in the cache line of the producer index.
    pub const OFFSET: usize = RRXE_CQ_NEWS as usize;
    /// No completions.
    pub const NONE: u32 = rrxe_cq_news_RRXE_CQ_NEWS_NONE;
    /// Completions, none of which is solicited or in error.
    pub const ANY: u32 = rrxe_cq_news_RRXE_CQ_NEWS_ANY;
    /// Completions, at least one of which is solicited or in error.
    pub const SOLICITED: u32 = rrxe_cq_news_RRXE_CQ_NEWS_SOLICITED;
}

#[kunit_tests(rrxe_uabi)]
mod tests {
    use super::*;

    /// Released provider libraries have these values compiled in. The values must never change,
    /// whatever a header says.
    #[test]
    fn is_the_abi_of_released_libraries() {
        for (ours, released) in [
            (ring::LOG2_ELEMENT_SIZE, 0),
            (ring::INDEX_MASK, 4),
            (ring::PRODUCER, 128),
            (ring::CONSUMER, 256),
            (ring::ELEMENTS, 384),
            (send_wqe::WR_ID, 0),
            (send_wqe::OPCODE, 12),
            (send_wqe::FLAGS, 16),
            (send_wqe::EX, 20),
            (send_wqe::RDMA_ADDR, 24),
            (send_wqe::RDMA_RKEY, 32),
            (send_wqe::ATOMIC_ADDR, 24),
            (send_wqe::ATOMIC_COMPARE_ADD, 32),
            (send_wqe::ATOMIC_SWAP, 40),
            (send_wqe::ATOMIC_RKEY, 48),
            (send_wqe::FLUSH_ADDR, 24),
            (send_wqe::FLUSH_RKEY, 36),
            (send_wqe::FLUSH_TYPE, 40),
            (send_wqe::FLUSH_LEVEL, 41),
            (send_wqe::UD_QPN, 24),
            (send_wqe::UD_QKEY, 28),
            (send_wqe::UD_AH, 36),
            (send_wqe::UD_AV, 56),
            (av::PORT, 0),
            (av::DGID, 8),
            (av::FLOW_LABEL, 24),
            (av::SGID_INDEX, 28),
            (av::HOP_LIMIT, 29),
            (av::TRAFFIC_CLASS, 30),
            (send_wqe::MW_ADDR, 24),
            (send_wqe::MW_LENGTH, 32),
            (send_wqe::MW_REGION, 40),
            (send_wqe::MW_WINDOW, 44),
            (send_wqe::MW_RKEY, 48),
            (send_wqe::MW_ACCESS, 52),
            (send_wqe::LENGTH, 184),
            (send_wqe::RESIDUE, 188),
            (send_wqe::NUM_SGE, 196),
            (send_wqe::PAYLOAD, 208),
            (recv_wqe::WR_ID, 0),
            (recv_wqe::NUM_SGE, 28),
            (recv_wqe::PAYLOAD, 40),
            (sge::ADDR, 0),
            (sge::LENGTH, 8),
            (sge::LKEY, 12),
            (sge::SIZE, 16),
            (size_of::<bindings::mminfo>(), 16),
            (size_of::<bindings::rxe_create_cq_resp>(), 16),
            (size_of::<bindings::rxe_create_qp_resp>(), 32),
            (size_of::<bindings::rxe_create_ah_resp>(), 8),
            (size_of::<bindings::rxe_create_srq_resp>(), 24),
            (offset_of!(bindings::rxe_create_srq_resp, srq_num), 16),
            (size_of::<bindings::rxe_modify_srq_cmd>(), 8),
            (size_of::<bindings::rxe_resize_cq_resp>(), 16),
            (size_of::<bindings::ib_uverbs_wc>(), 48),
            (size_of::<bindings::rrxe_alloc_ucontext_req>(), 8),
            (size_of::<bindings::rrxe_alloc_ucontext_resp>(), 24),
            (size_of::<bindings::rrxe_create_qp_resp>(), 8),
            (doorbell::STATE, 0),
            (doorbell::SUMMARY, 64),
            (doorbell::DIRTY, 4096),
            (doorbell::SIZE, 8192),
            (cq_arm::OFFSET, 320),
            (cq_news::OFFSET, 132),
            (bindings::RRXE_DM_OFFSET as usize, 1 << 43),
            (bindings::RRXE_DM_STRIDE as usize, 1 << 18),
        ] {
            assert_eq!(ours, released);
        }
    }
}
