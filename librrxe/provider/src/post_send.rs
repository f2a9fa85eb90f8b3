// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Posting of lists of send requests (`ibv_post_send()`).

use core::{ffi::c_int, iter::empty, slice};

use rrxe_rings::{
    operation::{Operation, Remote, Transport, INLINE},
    send::{Destination, Payload, SendQueue},
    PostError, Sge,
};

use crate::{
    ah::Ah,
    bindings::*,
    doorbell,
    memory::Mapping,
    mw,
    post_recv::{errno_of, sge, sges},
    qp::Qp,
    system::EINVAL,
};

/// Returns whether a QP in this state accepts send requests.
pub(crate) fn takes_requests(state: ibv_qp_state) -> bool {
    matches!(state, IBV_QPS_RTS | IBV_QPS_SQD | IBV_QPS_SQE | IBV_QPS_ERR)
}

/// Implements `post_send` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn post(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    let this = Qp::from_raw(qp);
    let Some(send) = this.send.as_ref().filter(|_| takes_requests(this.state())) else {
        *bad_wr = wr;
        return EINVAL;
    };
    let (published, code) = send.with(|queue| post_all(queue, wr, bad_wr));
    if !published {
        return code;
    }
    match doorbell::ring(qp, this.slot) {
        Ok(()) => code,
        Err(gone) => {
            *bad_wr = wr;
            gone
        }
    }
}

/// Posts a list of requests, up to the first one that is refused. Returns whether any request was
/// posted, and 0 or an errno.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
unsafe fn post_all(
    queue: &mut SendQueue<Mapping>,
    mut wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> (bool, c_int) {
    let mut code = 0;
    while let Some(request) = wr.as_ref() {
        if let Err(why) = stage(queue, request) {
            *bad_wr = wr;
            code = errno_of(why);
            break;
        }
        wr = request.next;
    }
    (queue.publish(), code)
}

/// Stages one request of a list.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
unsafe fn stage(queue: &mut SendQueue<Mapping>, wr: &ibv_send_wr) -> Result<(), PostError> {
    let operation = operation(wr).ok_or(PostError::Invalid)?;
    let destination = destination(queue.transport(), wr);
    let sges = sges(wr.sg_list, wr.num_sge, queue.max_sge())?;
    let payload = if wr.send_flags & INLINE != 0 {
        // SAFETY: The program guarantees that inline payload is readable during the call.
        Payload::Inline(sges.iter().map(|sge| unsafe { bytes(sge) }))
    } else {
        Payload::Elements(sges.iter().map(sge))
    };
    queue.stage(wr.wr_id, wr.send_flags, &operation, destination, payload)
}

/// Returns the bytes that an SGE of inline payload describes.
///
/// # Safety
///
/// They must be readable memory of this process.
unsafe fn bytes<'a>(sge: &ibv_sge) -> &'a [u8] {
    match sge.length as usize {
        0 => &[],
        // SAFETY: The caller guarantees that the memory is readable (see `# Safety`).
        length => unsafe { slice::from_raw_parts(sge.addr as *const u8, length) },
    }
}

/// Returns the operation of a request. Returns `None` for operations that this library does not
/// support in `ibv_post_send()`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
unsafe fn operation(wr: &ibv_send_wr) -> Option<Operation> {
    // SAFETY: Each union member is an integer, for which all bytes are valid.
    let (imm, key) = unsafe {
        (
            wr.__bindgen_anon_1.imm_data,
            wr.__bindgen_anon_1.invalidate_rkey,
        )
    };
    // SAFETY: Both union members consist of integers, for which all bytes are valid.
    let (rdma, atomic) = unsafe { (wr.wr.rdma, wr.wr.atomic) };
    let remote = Remote {
        addr: rdma.remote_addr,
        rkey: rdma.rkey,
    };
    let counter = Remote {
        addr: atomic.remote_addr,
        rkey: atomic.rkey,
    };
    Some(match wr.opcode {
        IBV_WR_RDMA_WRITE => Operation::Write(remote),
        IBV_WR_RDMA_WRITE_WITH_IMM => Operation::WriteImm(remote, imm),
        IBV_WR_SEND => Operation::Send,
        IBV_WR_SEND_WITH_IMM => Operation::SendImm(imm),
        IBV_WR_SEND_WITH_INV => Operation::SendInvalidate(key),
        IBV_WR_RDMA_READ => Operation::Read(remote),
        IBV_WR_ATOMIC_CMP_AND_SWP => Operation::CompareSwap {
            remote: counter,
            compare: atomic.compare_add,
            swap: atomic.swap,
        },
        IBV_WR_ATOMIC_FETCH_AND_ADD => Operation::FetchAdd {
            remote: counter,
            add: atomic.compare_add,
        },
        IBV_WR_ATOMIC_WRITE => Operation::AtomicWrite(remote),
        IBV_WR_LOCAL_INV => Operation::LocalInvalidate(key),
        IBV_WR_BIND_MW => {
            // SAFETY: The opcode says that this union member is set.
            let bind = unsafe { &wr.__bindgen_anon_2.bind_mw };
            // SAFETY: The program guarantees that window and region are valid.
            unsafe { mw::binding(bind.mw, bind.rkey, &bind.bind_info) }
        }
        _ => return None,
    })
}

/// Returns the destination of a request.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
unsafe fn destination(transport: Transport, wr: &ibv_send_wr) -> Destination {
    match transport {
        Transport::Rc | Transport::Uc | Transport::RawPacket => Destination::Peer,
        // SAFETY: For this type of QP, this union member is set.
        Transport::XrcSend => Destination::SharedQueue(unsafe { wr.qp_type.xrc.remote_srqn }),
        Transport::Ud => {
            // SAFETY: For this type of QP, this union member is set.
            let ud = unsafe { wr.wr.ud };
            Destination::Datagram {
                qpn: ud.remote_qpn,
                qkey: ud.remote_qkey,
                // SAFETY: The program guarantees that the address handle is valid.
                ah: unsafe { Ah::number(ud.ah) },
            }
        }
    }
}

/// Posts one request without payload.
///
/// # Errors
///
/// errno.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe fn post_local(
    qp: *mut ibv_qp,
    wr_id: u64,
    flags: u32,
    operation: &Operation,
) -> Result<(), c_int> {
    let this = Qp::from_raw(qp);
    let send = this.send.as_ref().filter(|_| takes_requests(this.state()));
    send.ok_or(EINVAL)?
        .with(|queue| {
            let none = Payload::<_, core::iter::Empty<&[u8]>>::Elements(empty::<Sge>());
            let staged = queue.stage(wr_id, flags, operation, Destination::Peer, none);
            queue.publish();
            staged
        })
        .map_err(errno_of)?;
    doorbell::ring(qp, this.slot)
}
