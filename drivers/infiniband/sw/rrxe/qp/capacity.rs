// SPDX-License-Identifier: GPL-2.0

//! Capacities of a QP, and the rings and kernel queues (`qp/kernel_queue.rs`) that are created for
//! them.

use kernel::{prelude::*, sync::Arc};
use rdma::{
    abi::{mmap::MmapEntries, post::WqeRoom, ring::Ring},
    verbs::qp::QpCap,
};

use crate::{
    limits,
    qp::{
        kernel_queue::{KernelQueue, KernelRecvQueue},
        sge,
        wqe::SGE_SIZE,
    },
};

/// Returns the capacities that a QP is granted for those that are `asked`. SGEs and inline payload
/// share the room of a WQE, so each of the two capacities is raised to the amount that fits in this
/// room, up to its limit.
///
/// # Errors
///
/// `EINVAL` for capacities beyond the limits.
pub(crate) fn grant(asked: &QpCap) -> Result<QpCap> {
    if asked.max_send_wr > limits::MAX_QP_WR
        || asked.max_recv_wr > limits::MAX_QP_WR
        || asked.max_send_sge > limits::MAX_SGE
        || asked.max_recv_sge > limits::MAX_SGE
        || asked.max_inline > limits::MAX_INLINE
    {
        return Err(EINVAL);
    }
    let payload = sge::bytes(asked.max_send_sge).max(asked.max_inline as usize);
    let sges = u32::try_from(payload / SGE_SIZE).unwrap_or(0);
    Ok(QpCap {
        max_send_sge: sges.clamp(asked.max_send_sge, limits::MAX_SGE),
        max_inline: u32::try_from(payload)
            .unwrap_or(limits::MAX_INLINE)
            .min(limits::MAX_INLINE),
        ..*asked
    })
}

/// Creates a ring for at least `capacity` WQEs, and for at least one. A process maps the ring by
/// `mmap_entries`. A kernel consumer's ring is not mapped. `size` is the number of bytes of a WQE.
/// Process context.
///
/// # Errors
///
/// `ENOMEM`; `EIO` if the process's context is going away; `EINVAL` for a size or capacity that no
/// ring may have.
pub(crate) fn new_ring(
    mmap_entries: Option<&Arc<MmapEntries>>,
    size: usize,
    capacity: u32,
) -> Result<Ring> {
    match mmap_entries {
        Some(mmap_entries) => Ring::new(mmap_entries, size, capacity.max(1)),
        None => Ring::unmapped(size, capacity.max(1)),
    }
}

/// Creates the kernel queue on the rings of a kernel consumer's QP. Process context.
///
/// # Errors
///
/// `ENOMEM`.
pub(crate) fn new_kernel_queue(
    send: &Ring,
    recv: Option<&Ring>,
    cap: &QpCap,
) -> Result<Pin<KBox<KernelQueue>>> {
    let room = WqeRoom {
        max_sge: cap.max_send_sge,
        max_inline: cap.max_inline,
    };
    let recv = match recv {
        Some(ring) => Some(KernelRecvQueue::new(ring, cap.max_recv_sge)?),
        None => None,
    };
    KernelQueue::new(send, room, recv)
}
