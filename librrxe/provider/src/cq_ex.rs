// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Polling a completion queue entry by entry: the functions of `struct ibv_cq_ex`.
//!
//! A thread holds the queue's lock from `start_poll` to `end_poll`.

use core::ffi::c_int;

use rrxe_rings::completion::{Completion, CompletionQueue};

use crate::{
    bindings::*,
    cq::Cq,
    guarded::Guarded,
    memory::Mapping,
    resizable::Resizable,
    system::{set_errno, EINVAL, ENOENT},
};

/// Fields of a completion that programs can read (`IBV_WC_EX_WITH_*`).
pub(crate) const FIELDS: u64 = (IBV_WC_EX_WITH_BYTE_LEN
    | IBV_WC_EX_WITH_IMM
    | IBV_WC_EX_WITH_QP_NUM
    | IBV_WC_EX_WITH_SRC_QP
    | IBV_WC_EX_WITH_SLID
    | IBV_WC_EX_WITH_SL
    | IBV_WC_EX_WITH_DLID_PATH_BITS) as u64;

/// Sets the functions of `cq`. `fields` is the set of fields that the program will read.
pub(crate) fn set_functions(cq: &mut ibv_cq_ex, fields: u64) {
    let wanted = |field: ibv_create_cq_wc_flags| fields & u64::from(field) != 0;
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_wc_flags = Some(read_wc_flags);
    if wanted(IBV_WC_EX_WITH_BYTE_LEN) {
        cq.read_byte_len = Some(read_byte_len);
    }
    if wanted(IBV_WC_EX_WITH_IMM) {
        cq.read_imm_data = Some(read_imm_data);
    }
    if wanted(IBV_WC_EX_WITH_QP_NUM) {
        cq.read_qp_num = Some(read_qp_num);
    }
    if wanted(IBV_WC_EX_WITH_SRC_QP) {
        cq.read_src_qp = Some(read_src_qp);
    }
    if wanted(IBV_WC_EX_WITH_SLID) {
        cq.read_slid = Some(read_slid);
    }
    if wanted(IBV_WC_EX_WITH_SL) {
        cq.read_sl = Some(read_sl);
    }
    if wanted(IBV_WC_EX_WITH_DLID_PATH_BITS) {
        cq.read_dlid_path_bits = Some(read_dlid_path_bits);
    }
}

type Queue = Guarded<Resizable<CompletionQueue<Mapping>>>;

/// Returns the queue of `cq`. It is `None` only during the creation.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
unsafe fn queue<'a>(cq: *mut ibv_cq_ex) -> Option<&'a Queue> {
    (*cq.cast::<Cq>()).queue.as_ref()
}

/// Returns the current completion.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation). Polling must have been started by `start_poll` and not ended.
unsafe fn current(cq: *mut ibv_cq_ex) -> Completion {
    // SAFETY: This thread holds the lock since `start_poll`. The reference does not outlive this
    // call.
    unsafe {
        queue(cq).map_or_else(Completion::default, |queue| {
            *queue.held().mapped().current()
        })
    }
}

/// Copies status and `wr_id` of the current completion to `cq`, where programs read them.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation). Polling must have been started by `start_poll` and not ended.
unsafe fn show(cq: *mut ibv_cq_ex) {
    let completion = current(cq);
    (*cq).status = completion.status();
    (*cq).wr_id = completion.wr_id();
}

/// Implements `start_poll` of `struct ibv_cq_ex`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    let Some(queue) = queue(cq) else {
        return set_errno(EINVAL);
    };
    if (*attr).comp_mask != 0 {
        return set_errno(EINVAL);
    }
    queue.hold();
    // SAFETY: `hold` just took the lock.
    let started = unsafe { queue.held() }.queue().map(|queue| queue.start());
    let code = match started {
        Ok(true) => {
            show(cq);
            return 0;
        }
        Ok(false) => ENOENT,
        Err(code) => code,
    };
    queue.release();
    set_errno(code)
}

/// Implements `next_poll` of `struct ibv_cq_ex`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation). Polling must have been started by `start_poll` and not ended.
unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: This thread holds the lock since `start_poll`.
    let more = unsafe { queue(cq).is_some_and(|queue| queue.held().mapped().advance()) };
    if !more {
        return set_errno(ENOENT);
    }
    show(cq);
    0
}

/// Implements `end_poll` of `struct ibv_cq_ex`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation). Polling must have been started by `start_poll` and not ended.
unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    if let Some(queue) = queue(cq) {
        // SAFETY: This thread holds the lock since `start_poll`.
        unsafe { queue.held() }.mapped().end();
        queue.release();
    }
}

macro_rules! readers {
    ($($name:ident: $field:ident as $kind:ty),* $(,)?) => {
        $(
            /// Returns a field of the current completion.
            ///
            /// # Safety
            ///
            /// The program must keep the rules of the verbs API: pointers are valid, objects are
            /// alive (see the crate's documentation). Polling must have been started by
            /// `start_poll` and not ended.
            unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $kind {
                current(cq).$field().into()
            }
        )*
    };
}

readers! {
    read_opcode: opcode as ibv_wc_opcode,
    read_vendor_err: vendor_err as u32,
    read_wc_flags: flags as u32,
    read_byte_len: byte_len as u32,
    read_imm_data: ex as u32,
    read_qp_num: qp_num as u32,
    read_src_qp: src_qp as u32,
    read_slid: slid as u32,
    read_sl: sl as u8,
    read_dlid_path_bits: dlid_path_bits as u8,
}
