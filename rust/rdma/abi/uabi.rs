// SPDX-License-Identifier: GPL-2.0

//! The layout of what provider libraries and the driver share, taken from the headers that both
//! compile: `rdma_user_rxe.h` and, for our own library, `include/uapi/rdma/rrxe-abi.h`. Offsets and
//! sizes are in bytes.

use core::mem::{offset_of, size_of};

use kernel::prelude::*;

use crate::bindings;

/// The ring in front of its elements: `struct rxe_queue_buf`.
pub mod ring {
    use super::{bindings::rxe_queue_buf, offset_of};

    /// log₂ of the element size; written by the kernel.
    pub const LOG2_ELEMENT_SIZE: usize = offset_of!(rxe_queue_buf, log2_elem_size);
    /// Slots less one; written by the kernel.
    pub const INDEX_MASK: usize = offset_of!(rxe_queue_buf, index_mask);
    /// The producer's index.
    pub const PRODUCER: usize = offset_of!(rxe_queue_buf, producer_index);
    /// The consumer's index.
    pub const CONSUMER: usize = offset_of!(rxe_queue_buf, consumer_index);
    /// The first element.
    pub const ELEMENTS: usize = offset_of!(rxe_queue_buf, data);
}

/// A send WQE: `struct rxe_send_wqe`.
pub mod send_wqe {
    use super::{
        bindings::{rxe_dma_info, rxe_send_wqe},
        offset_of,
    };

    const DMA: usize = offset_of!(rxe_send_wqe, dma);

    /// Cookie, 64 bits.
    pub const WR_ID: usize = offset_of!(rxe_send_wqe, wr.wr_id);
    /// `enum ib_uverbs_wr_opcode`.
    pub const OPCODE: usize = offset_of!(rxe_send_wqe, wr.opcode);
    /// The peer's shared receive queue, of an XRC initiator.
    pub const SRQN: usize = offset_of!(rxe_send_wqe, wr.reserved);
    /// `IB_SEND_*`.
    pub const FLAGS: usize = offset_of!(rxe_send_wqe, wr.send_flags);
    /// Immediate data (big endian) or the key to invalidate.
    pub const EX: usize = offset_of!(rxe_send_wqe, wr.ex);
    /// Peer's address of a WRITE, READ or ATOMIC WRITE, 64 bits.
    pub const RDMA_ADDR: usize = offset_of!(rxe_send_wqe, wr.wr.rdma.remote_addr);
    /// Its key.
    pub const RDMA_RKEY: usize = offset_of!(rxe_send_wqe, wr.wr.rdma.rkey);
    /// Peer's address of an atomic, 64 bits.
    pub const ATOMIC_ADDR: usize = offset_of!(rxe_send_wqe, wr.wr.atomic.remote_addr);
    /// Operand to compare with or to add, 64 bits.
    pub const ATOMIC_COMPARE_ADD: usize = offset_of!(rxe_send_wqe, wr.wr.atomic.compare_add);
    /// Operand to swap in, 64 bits.
    pub const ATOMIC_SWAP: usize = offset_of!(rxe_send_wqe, wr.wr.atomic.swap);
    /// Its key.
    pub const ATOMIC_RKEY: usize = offset_of!(rxe_send_wqe, wr.wr.atomic.rkey);
    /// Peer's address of a FLUSH, 64 bits.
    pub const FLUSH_ADDR: usize = offset_of!(rxe_send_wqe, wr.wr.flush.remote_addr);
    /// Its key.
    pub const FLUSH_RKEY: usize = offset_of!(rxe_send_wqe, wr.wr.flush.rkey);
    /// Placement type, 8 bits.
    pub const FLUSH_TYPE: usize = offset_of!(rxe_send_wqe, wr.wr.flush.type_);
    /// Selectivity level, 8 bits.
    pub const FLUSH_LEVEL: usize = offset_of!(rxe_send_wqe, wr.wr.flush.level);
    /// Destination QP of a datagram.
    pub const UD_QPN: usize = offset_of!(rxe_send_wqe, wr.wr.ud.remote_qpn);
    /// Its queue key.
    pub const UD_QKEY: usize = offset_of!(rxe_send_wqe, wr.wr.ud.remote_qkey);
    /// The number of its address handle; zero if the address follows.
    pub const UD_AH: usize = offset_of!(rxe_send_wqe, wr.wr.ud.ah_num);
    /// Its address: `struct rxe_av`.
    pub const UD_AV: usize = offset_of!(rxe_send_wqe, wr.wr.ud.av);
    /// Address that a fast registration gives to the region's first byte, 64 bits; the kernel only.
    pub const REG_IOVA: usize = offset_of!(rxe_send_wqe, wr.wr.reg);
    /// Its key.
    pub const REG_KEY: usize = offset_of!(rxe_send_wqe, wr.wr.reg.key);
    /// What it allows, `IB_ACCESS_*`.
    pub const REG_ACCESS: usize = offset_of!(rxe_send_wqe, wr.wr.reg.access);
    /// First byte that a window is bound to, 64 bits.
    pub const MW_ADDR: usize = offset_of!(rxe_send_wqe, wr.wr.mw.addr);
    /// Bytes from there on, 64 bits.
    pub const MW_LENGTH: usize = offset_of!(rxe_send_wqe, wr.wr.mw.length);
    /// Key of the region.
    pub const MW_REGION: usize = offset_of!(rxe_send_wqe, wr.wr.mw.mr_lkey);
    /// Present key of the window.
    pub const MW_WINDOW: usize = offset_of!(rxe_send_wqe, wr.wr.mw.mw_rkey);
    /// Its new key.
    pub const MW_RKEY: usize = offset_of!(rxe_send_wqe, wr.wr.mw.rkey);
    /// What it grants.
    pub const MW_ACCESS: usize = offset_of!(rxe_send_wqe, wr.wr.mw.access);
    /// Bytes of the message, as the library counts them.
    pub const LENGTH: usize = DMA + offset_of!(rxe_dma_info, length);
    /// The same; some operations set only this or only the other.
    pub const RESIDUE: usize = DMA + offset_of!(rxe_dma_info, resid);
    /// SGEs.
    pub const NUM_SGE: usize = DMA + offset_of!(rxe_dma_info, num_sge);
    /// The first SGE, or inline payload.
    pub const PAYLOAD: usize = DMA + offset_of!(rxe_dma_info, __bindgen_anon_1);
}

/// An address vector in a send WQE: `struct rxe_av`. Its other fields follow from these.
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

/// What a send WQE's opcode says: `enum ib_uverbs_wr_opcode`.
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

/// What a send WQE's opcode says besides in a queue of the kernel: `enum ib_wr_opcode`.
pub mod kernel_opcode {
    /// Fast registration.
    pub const REG_MR: u32 = crate::bindings::ib_wr_opcode_IB_WR_REG_MR;
}

/// What a send WQE's flags say: `enum ib_send_flags`.
#[allow(missing_docs)]
pub mod send_flag {
    use crate::bindings::*;

    pub const FENCE: u32 = ib_send_flags_IB_SEND_FENCE as u32;
    pub const SIGNALED: u32 = ib_send_flags_IB_SEND_SIGNALED as u32;
    pub const SOLICITED: u32 = ib_send_flags_IB_SEND_SOLICITED as u32;
    pub const INLINE: u32 = ib_send_flags_IB_SEND_INLINE as u32;
}

/// A receive WQE: `struct rxe_recv_wqe`.
pub mod recv_wqe {
    use super::{
        bindings::{rxe_dma_info, rxe_recv_wqe},
        offset_of,
    };

    const DMA: usize = offset_of!(rxe_recv_wqe, dma);

    /// Cookie, 64 bits.
    pub const WR_ID: usize = offset_of!(rxe_recv_wqe, wr_id);
    /// SGEs.
    pub const NUM_SGE: usize = DMA + offset_of!(rxe_dma_info, num_sge);
    /// The first SGE.
    pub const PAYLOAD: usize = DMA + offset_of!(rxe_dma_info, __bindgen_anon_1);
}

/// A scatter/gather element: `struct rxe_sge`.
pub mod sge {
    use super::{bindings::rxe_sge, offset_of, size_of};

    /// Address, 64 bits.
    pub const ADDR: usize = offset_of!(rxe_sge, addr);
    /// Bytes.
    pub const LENGTH: usize = offset_of!(rxe_sge, length);
    /// Key.
    pub const LKEY: usize = offset_of!(rxe_sge, lkey);
    /// Size of an element.
    pub const SIZE: usize = size_of::<rxe_sge>();
}

/// A page of doorbells: `struct rrxe_doorbell`.
pub mod doorbell {
    use super::{
        bindings::{rrxe_doorbell, RRXE_DOORBELL_SLOTS, RRXE_DOORBELL_SUMMARY},
        offset_of, size_of,
    };

    /// Whether the process has to call, `enum rrxe_poller_state`; written by the kernel.
    pub const STATE: usize = offset_of!(rrxe_doorbell, state);
    /// A bit for each word of `DIRTY`, 64-bit words.
    pub const SUMMARY: usize = offset_of!(rrxe_doorbell, summary);
    /// How many words those are.
    pub const SUMMARY_WORDS: usize = RRXE_DOORBELL_SUMMARY as usize;
    /// A bit for each slot, 64-bit words.
    pub const DIRTY: usize = offset_of!(rrxe_doorbell, dirty);
    /// How many slots there are.
    pub const SLOTS: u32 = RRXE_DOORBELL_SLOTS;
    /// All of it.
    pub const SIZE: usize = size_of::<rrxe_doorbell>();
}

/// The word that arms a CQ without a call, in its ring: `RRXE_CQ_ARM`.
pub mod cq_arm {
    use crate::bindings::*;

    /// Where it is: behind the indices, in a cache line of its own.
    pub const OFFSET: usize = RRXE_CQ_ARM as usize;
    /// Not armed.
    pub const NONE: u32 = rrxe_cq_arm_RRXE_CQ_ARM_NONE;
    /// A solicited completion or one in error notifies.
    pub const SOLICITED: u32 = rrxe_cq_arm_RRXE_CQ_ARM_SOLICITED;
    /// Any completion does.
    pub const NEXT: u32 = rrxe_cq_arm_RRXE_CQ_ARM_NEXT;
}

/// The word that tells which completions no notification has told of, in the ring of their CQ: `RRXE_CQ_NEWS`.
pub mod cq_news {
    use crate::bindings::*;

    /// Where it is: in the cache line of the producer's index.
    pub const OFFSET: usize = RRXE_CQ_NEWS as usize;
    /// None.
    pub const NONE: u32 = rrxe_cq_news_RRXE_CQ_NEWS_NONE;
    /// Some, none of which is solicited or in error.
    pub const ANY: u32 = rrxe_cq_news_RRXE_CQ_NEWS_ANY;
    /// Some, one of which is solicited or in error.
    pub const SOLICITED: u32 = rrxe_cq_news_RRXE_CQ_NEWS_SOLICITED;
}

#[kunit_tests(rrxe_uabi)]
mod tests {
    use super::*;

    /// What every released librxe has compiled in: it must never change, whatever a header says.
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
