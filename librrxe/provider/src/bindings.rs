// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! libibverbs' interface to its providers, as bindgen generates it, and compile-time checks that
//! the layouts in `rrxe_rings` are those of the C headers.

#![allow(
    missing_docs,
    dead_code,
    non_camel_case_types,
    non_upper_case_globals,
    non_snake_case,
    clippy::all
)]

include!(concat!(env!("OUT_DIR"), "/verbs.rs"));
include!(concat!(env!("OUT_DIR"), "/register.rs"));

mod layouts {
    use super::*;
    use crate::wr::{BIND, REMOTE};
    use core::mem::{offset_of, size_of};
    use rrxe_rings::{layout, operation::Operation};

    macro_rules! same {
        ($($ours:expr => $theirs:expr),* $(,)?) => {
            $(const _: () = assert!($ours == $theirs as _);)*
        };
    }

    same! {
        layout::ring::LOG2_ELEMENT_SIZE => offset_of!(rxe_queue_buf, log2_elem_size),
        layout::ring::INDEX_MASK => offset_of!(rxe_queue_buf, index_mask),
        layout::ring::PRODUCER => offset_of!(rxe_queue_buf, producer_index),
        layout::ring::CONSUMER => offset_of!(rxe_queue_buf, consumer_index),
        layout::ring::ELEMENTS => offset_of!(rxe_queue_buf, data),
        layout::ring::ARM => RRXE_CQ_ARM,
        layout::ring::NEWS => RRXE_CQ_NEWS,
        layout::news::NONE => RRXE_CQ_NEWS_NONE,
        layout::news::ANY => RRXE_CQ_NEWS_ANY,
        layout::news::SOLICITED => RRXE_CQ_NEWS_SOLICITED,
        layout::arm::SOLICITED => RRXE_CQ_ARM_SOLICITED,
        layout::arm::NEXT => RRXE_CQ_ARM_NEXT,
    }
    same! {
        layout::send_wqe::WR_ID => offset_of!(rxe_send_wqe, wr.wr_id),
        layout::send_wqe::SRQN_OPCODE => offset_of!(rxe_send_wqe, wr.reserved),
        layout::send_wqe::SRQN_OPCODE + 4 => offset_of!(rxe_send_wqe, wr.opcode),
        layout::send_wqe::FLAGS_EX => offset_of!(rxe_send_wqe, wr.send_flags),
        layout::send_wqe::FLAGS_EX + 4 => offset_of!(rxe_send_wqe, wr.ex),
        layout::send_wqe::OPERATION => offset_of!(rxe_send_wqe, wr.wr),
        layout::send_wqe::LENGTH => offset_of!(rxe_send_wqe, dma.length),
        layout::send_wqe::LENGTH + 4 => offset_of!(rxe_send_wqe, dma.resid),
        layout::send_wqe::CUR_SGE_NUM_SGE + 4 => offset_of!(rxe_send_wqe, dma.num_sge),
        layout::send_wqe::PAYLOAD => offset_of!(rxe_send_wqe, dma.__bindgen_anon_1),
        layout::recv_wqe::WR_ID => offset_of!(rxe_recv_wqe, wr_id),
        layout::recv_wqe::LENGTH => offset_of!(rxe_recv_wqe, dma.length),
        layout::recv_wqe::CUR_SGE_NUM_SGE + 4 => offset_of!(rxe_recv_wqe, dma.num_sge),
        layout::recv_wqe::PAYLOAD => offset_of!(rxe_recv_wqe, dma.__bindgen_anon_1),
        16 => size_of::<rxe_sge>(),
        layout::wc::LONGS * 8 => size_of::<ib_uverbs_wc>(),
        layout::wc::LONGS * 8 => size_of::<ibv_wc>(),
    }
    same! {
        layout::doorbell::STATE => offset_of!(rrxe_doorbell, state),
        layout::doorbell::SUMMARY => offset_of!(rrxe_doorbell, summary),
        layout::doorbell::DIRTY => offset_of!(rrxe_doorbell, dirty),
        layout::doorbell::SIZE => size_of::<rrxe_doorbell>(),
        layout::doorbell::SLOTS => RRXE_DOORBELL_SLOTS,
        layout::doorbell::NEED_WAKEUP => RRXE_POLLER_NEED_WAKEUP,
        rrxe_rings::operation::INLINE => IBV_SEND_INLINE,
    }
    same! {
        Operation::Write(REMOTE).opcode() => IB_UVERBS_WR_RDMA_WRITE,
        Operation::WriteImm(REMOTE, 0).opcode() => IB_UVERBS_WR_RDMA_WRITE_WITH_IMM,
        Operation::Send.opcode() => IB_UVERBS_WR_SEND,
        Operation::SendImm(0).opcode() => IB_UVERBS_WR_SEND_WITH_IMM,
        Operation::SendInvalidate(0).opcode() => IB_UVERBS_WR_SEND_WITH_INV,
        Operation::Read(REMOTE).opcode() => IB_UVERBS_WR_RDMA_READ,
        Operation::FetchAdd { remote: REMOTE, add: 0 }.opcode()
            => IB_UVERBS_WR_ATOMIC_FETCH_AND_ADD,
        Operation::CompareSwap { remote: REMOTE, compare: 0, swap: 0 }.opcode()
            => IB_UVERBS_WR_ATOMIC_CMP_AND_SWP,
        Operation::LocalInvalidate(0).opcode() => IB_UVERBS_WR_LOCAL_INV,
        Operation::BindWindow(BIND).opcode() => IB_UVERBS_WR_BIND_MW,
        Operation::AtomicWrite(REMOTE).opcode() => IB_UVERBS_WR_ATOMIC_WRITE,
    }
    #[cfg(has_flush)]
    same! {
        Operation::Flush { remote: REMOTE, length: 0, placement: 0, selectivity: 0 }.opcode()
            => IB_UVERBS_WR_FLUSH,
    }
}
