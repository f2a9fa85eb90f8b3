// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Doorbells: how the library tells the kernel that it posted sends, by the doorbell page or by a
//! system call.

use core::ffi::c_int;

use rrxe_rings::doorbell::{RingResult, Slot};

use crate::{bindings::*, context::Context, system};

/// Argument of the doorbell call: a `write()` of the command `IB_USER_VERBS_CMD_POST_SEND` without
/// work requests. It makes the kernel look at the send queue.
#[repr(C)]
struct PostSend {
    header: ib_uverbs_cmd_hdr,
    core: Core,
}

/// `struct ib_uverbs_post_send`, up to its work requests.
#[repr(C)]
struct Core {
    response: u64,
    qp_handle: u32,
    wr_count: u32,
    sge_count: u32,
    wqe_size: u32,
}

/// Tells the kernel that requests were published in the send queue of `qp`.
///
/// # Errors
///
/// errno of the doorbell call.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe fn ring(qp: *mut ibv_qp, slot: Option<Slot>) -> Result<(), c_int> {
    let context = (*qp).context;
    let page = Context::granted(context).doorbells.as_ref();
    match page.zip(slot).map(|(page, slot)| page.ring(slot)) {
        Some(RingResult::Done) => Ok(()),
        Some(RingResult::NeedsCall) | None => call((*context).cmd_fd, (*qp).handle),
    }
}

/// Makes the doorbell call for the QP with the handle `handle`.
///
/// # Errors
///
/// errno.
fn call(fd: c_int, handle: u32) -> Result<(), c_int> {
    let mut response = ib_uverbs_post_send_resp::default();
    let request = PostSend {
        header: ib_uverbs_cmd_hdr {
            command: IB_USER_VERBS_CMD_POST_SEND,
            in_words: (size_of::<PostSend>() / 4) as u16,
            out_words: (size_of_val(&response) / 4) as u16,
        },
        core: Core {
            response: (&raw mut response) as u64,
            qp_handle: handle,
            wr_count: 0,
            sge_count: 0,
            wqe_size: size_of::<ib_uverbs_send_wr>() as u32,
        },
    };
    // SAFETY: The command points to `response` only, which outlives the call.
    unsafe { system::command(fd, &request) }
}
