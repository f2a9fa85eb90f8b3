// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Posting of send requests field by field: the functions of `struct ibv_qp_ex`.
//!
//! A thread holds the lock of the send queue from `ibv_wr_start()` to `ibv_wr_complete()` or
//! `ibv_wr_abort()`.

use core::{
    ffi::{c_int, c_void},
    slice,
};

use rrxe_rings::{
    operation::{Bind, Operation, Remote, Transport},
    send::{Destination, SendQueue},
    PostError, Sge,
};

use crate::{
    ah::Ah,
    bindings::*,
    doorbell,
    guarded::Guarded,
    memory::Mapping,
    mw,
    post_recv::{errno_of, sge},
    post_send::takes_requests,
    qp::Qp,
    system::EINVAL,
};

/// Argument for operations of which only the type matters.
pub(crate) const REMOTE: Remote = Remote { addr: 0, rkey: 0 };
/// Argument for memory window binds of which only the type matters.
pub(crate) const BIND: Bind = Bind {
    addr: 0,
    length: 0,
    region: 0,
    window: 0,
    rkey: 0,
    access: 0,
};
const SWAP: Operation = Operation::CompareSwap {
    remote: REMOTE,
    compare: 0,
    swap: 0,
};
const ADD: Operation = Operation::FetchAdd {
    remote: REMOTE,
    add: 0,
};
#[cfg(has_flush)]
const FLUSH: Operation = Operation::Flush {
    remote: REMOTE,
    length: 0,
    placement: 0,
    selectivity: 0,
};

/// The operations that can be posted this way: the flag and an example of each.
const OPERATIONS: &[(ibv_qp_create_send_ops_flags, Operation)] = &[
    (IBV_QP_EX_WITH_RDMA_WRITE, Operation::Write(REMOTE)),
    (
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
        Operation::WriteImm(REMOTE, 0),
    ),
    (IBV_QP_EX_WITH_SEND, Operation::Send),
    (IBV_QP_EX_WITH_SEND_WITH_IMM, Operation::SendImm(0)),
    (IBV_QP_EX_WITH_SEND_WITH_INV, Operation::SendInvalidate(0)),
    (IBV_QP_EX_WITH_RDMA_READ, Operation::Read(REMOTE)),
    (IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, SWAP),
    (IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, ADD),
    (IBV_QP_EX_WITH_ATOMIC_WRITE, Operation::AtomicWrite(REMOTE)),
    (IBV_QP_EX_WITH_LOCAL_INV, Operation::LocalInvalidate(0)),
    (IBV_QP_EX_WITH_BIND_MW, Operation::BindWindow(BIND)),
    #[cfg(has_flush)]
    (IBV_QP_EX_WITH_FLUSH, FLUSH),
];

/// Returns the operations (`IBV_QP_EX_WITH_*`) that a QP of this type supports.
pub(crate) fn offered(transport: Transport) -> u64 {
    let fitting = OPERATIONS
        .iter()
        .filter(|(_, operation)| operation.fits(transport));
    fitting.fold(0, |flags, (flag, _)| flags | u64::from(*flag))
}

/// Sets the functions of `qp`. `operations` is the set of operations that the program will use.
pub(crate) fn set_functions(qp: &mut ibv_qp_ex, operations: u64) {
    macro_rules! offer {
        ($($flag:ident: $field:ident),* $(,)?) => {
            $(if operations & u64::from($flag) != 0 {
                qp.$field = Some($field);
            })*
        };
    }
    offer! {
        IBV_QP_EX_WITH_RDMA_WRITE: wr_rdma_write,
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM: wr_rdma_write_imm,
        IBV_QP_EX_WITH_SEND: wr_send,
        IBV_QP_EX_WITH_SEND_WITH_IMM: wr_send_imm,
        IBV_QP_EX_WITH_SEND_WITH_INV: wr_send_inv,
        IBV_QP_EX_WITH_RDMA_READ: wr_rdma_read,
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP: wr_atomic_cmp_swp,
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD: wr_atomic_fetch_add,
        IBV_QP_EX_WITH_ATOMIC_WRITE: wr_atomic_write,
        IBV_QP_EX_WITH_LOCAL_INV: wr_local_inv,
        IBV_QP_EX_WITH_BIND_MW: wr_bind_mw,
    }
    #[cfg(has_flush)]
    offer!(IBV_QP_EX_WITH_FLUSH: wr_flush);
    qp.wr_set_ud_addr = Some(wr_set_ud_addr);
    qp.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
}

/// Returns the send queue of `qp`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
unsafe fn queue<'a>(qp: *mut ibv_qp_ex) -> Option<&'a Guarded<SendQueue<Mapping>>> {
    (*qp.cast::<Qp>()).send.as_ref()
}

/// Calls `body` with the send queue, during a batch.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation). A batch must have been started by `ibv_wr_start()` and not ended.
unsafe fn with(qp: *mut ibv_qp_ex, body: impl FnOnce(&mut SendQueue<Mapping>)) {
    if let Some(queue) = queue(qp) {
        // SAFETY: This thread holds the lock since `ibv_wr_start()`. The reference does not outlive
        // this call.
        body(unsafe { queue.held() });
    }
}

/// Adds a request to the batch.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation). A batch must have been started by `ibv_wr_start()` and not ended.
unsafe fn open(qp: *mut ibv_qp_ex, operation: &Operation) {
    let (wr_id, flags) = ((*qp).wr_id, (*qp).wr_flags);
    with(qp, |queue| queue.open(wr_id, flags, operation));
}

/// Implements `ibv_wr_start()`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    let Some(queue) = queue(qp) else {
        return;
    };
    queue.hold();
    // SAFETY: `hold` just took the lock.
    let batch = unsafe { queue.held() };
    batch.start();
    if !takes_requests(Qp::from_raw(qp.cast()).state()) {
        batch.fail(PostError::Invalid);
    }
}

/// Implements `ibv_wr_complete()`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    let Some(queue) = queue(qp) else {
        return EINVAL;
    };
    // SAFETY: This thread holds the lock since `ibv_wr_start()`.
    let result = unsafe { queue.held() }.complete();
    queue.release();
    match result {
        Ok(false) => 0,
        Ok(true) => {
            let slot = Qp::from_raw(qp.cast()).slot;
            doorbell::ring(qp.cast(), slot).map_or_else(|code| code, |()| 0)
        }
        Err(why) => errno_of(why),
    }
}

/// Implements `ibv_wr_abort()`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    if let Some(queue) = queue(qp) {
        // SAFETY: This thread holds the lock since `ibv_wr_start()`.
        unsafe { queue.held() }.abandon();
        queue.release();
    }
}

macro_rules! builders {
    ($($name:ident($($argument:ident: $kind:ty),*) $operation:expr;)*) => {
        $(
            /// Adds a request to the batch.
            ///
            /// # Safety
            ///
            /// The program must keep the rules of the verbs API: pointers are valid, objects are
            /// alive (see the crate's documentation). A batch must have been started by
            /// `ibv_wr_start()` and not ended.
            unsafe extern "C" fn $name(qp: *mut ibv_qp_ex, $($argument: $kind),*) {
                open(qp, &$operation);
            }
        )*
    };
}

builders! {
    wr_rdma_write(rkey: u32, addr: u64) Operation::Write(Remote { addr, rkey });
    wr_rdma_write_imm(rkey: u32, addr: u64, imm: __be32)
        Operation::WriteImm(Remote { addr, rkey }, imm);
    wr_send() Operation::Send;
    wr_send_imm(imm: __be32) Operation::SendImm(imm);
    wr_send_inv(key: u32) Operation::SendInvalidate(key);
    wr_rdma_read(rkey: u32, addr: u64) Operation::Read(Remote { addr, rkey });
    wr_atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64) Operation::CompareSwap {
        remote: Remote { addr, rkey },
        compare,
        swap,
    };
    wr_atomic_fetch_add(rkey: u32, addr: u64, add: u64) Operation::FetchAdd {
        remote: Remote { addr, rkey },
        add,
    };
    wr_local_inv(key: u32) Operation::LocalInvalidate(key);
    wr_bind_mw(mw: *mut ibv_mw, rkey: u32, bound: *const ibv_mw_bind_info)
        mw::binding(mw, rkey, &*bound);
}

/// Adds an ATOMIC WRITE to the batch.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation). A batch must have been started by `ibv_wr_start()` and not ended.
unsafe extern "C" fn wr_atomic_write(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    addr: u64,
    operand: *const c_void,
) {
    open(qp, &Operation::AtomicWrite(Remote { addr, rkey }));
    let operand = operand.cast::<[u8; 8]>().read_unaligned();
    with(qp, |queue| queue.set_operand(&operand));
}

/// Adds a FLUSH to the batch.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation). A batch must have been started by `ibv_wr_start()` and not ended.
#[cfg(has_flush)]
unsafe extern "C" fn wr_flush(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    addr: u64,
    length: usize,
    placement: u8,
    selectivity: u8,
) {
    let Ok(length) = u32::try_from(length) else {
        with(qp, |queue| queue.fail(PostError::Invalid));
        return;
    };
    let operation = Operation::Flush {
        remote: Remote { addr, rkey },
        length,
        placement,
        selectivity,
    };
    open(qp, &operation);
}

/// Sets the destination of a datagram.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation). A batch must have been started by `ibv_wr_start()` and not ended.
unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    let ah = Ah::number(ah);
    let destination = Destination::Datagram { qpn, qkey, ah };
    with(qp, |queue| queue.set_destination(destination));
}

/// Sets the peer's shared receive queue (XRC).
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation). A batch must have been started by `ibv_wr_start()` and not ended.
unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, srqn: u32) {
    with(qp, |queue| {
        queue.set_destination(Destination::SharedQueue(srqn))
    });
}

/// Sets inline payload.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation). A batch must have been started by `ibv_wr_start()` and not ended.
unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let buffer = ibv_data_buf { addr, length };
    wr_set_inline_data_list(qp, 1, &buffer);
}

/// Sets inline payload from several buffers.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation). A batch must have been started by `ibv_wr_start()` and not ended.
unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: The program guarantees that the list has `count` buffers.
    let buffers = match count {
        0 => &[],
        count => slice::from_raw_parts(list, count),
    };
    let pieces = buffers.iter().filter(|buffer| buffer.length != 0);
    // SAFETY: The program guarantees that each buffer is valid for its length.
    let pieces =
        pieces.map(|piece| unsafe { slice::from_raw_parts(piece.addr.cast(), piece.length) });
    with(qp, |queue| queue.set_inline(pieces));
}

/// Sets the payload to one SGE.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation). A batch must have been started by `ibv_wr_start()` and not ended.
unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let sge = Sge { addr, length, lkey };
    with(qp, |queue| queue.set_sges([sge].into_iter()));
}

/// Sets the payload to a list of SGEs.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation). A batch must have been started by `ibv_wr_start()` and not ended.
unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: The program guarantees that the list has `count` elements.
    let sges = match count {
        0 => &[],
        count => slice::from_raw_parts(list, count),
    };
    with(qp, |queue| queue.set_sges(sges.iter().map(sge)));
}
