// SPDX-License-Identifier: GPL-2.0

//! Calls of libibverbs' extended operation table (`struct verbs_context`): QPs whose work requests
//! are built by calls (`ibv_qp_ex`), and the moderation of CQs (`ibv_modify_cq`).
//!
//! In stock librxe, an ATOMIC_WRITE can be posted by `ibv_qp_ex` only. Stock librxe lacks
//! `ibv_modify_cq`.

use std::{io, mem::offset_of, rc::Rc};

use crate::{
    object::{check, check_ptr, Context, Cq, Depth, Pd, Qp},
    sys::*,
};

impl Context {
    /// The extended operation table of the context.
    fn table(&self) -> io::Result<&verbs_context> {
        let context = self.0;
        // SAFETY: The context is open. An `abi_compat` of all ones is libibverbs' mark for a
        // context that lies in a `verbs_context`, which lives as long as the context.
        unsafe {
            if (*context).abi_compat as usize != usize::MAX {
                return Err(io::ErrorKind::Unsupported.into());
            }
            Ok(&*context.byte_sub(offset_of!(verbs_context, context)).cast())
        }
    }
}

impl Cq {
    /// Sets the CQ's moderation (`ibv_modify_cq`): an event may be delayed until there are `count`
    /// completions, but for at most `period` microseconds.
    pub fn moderate(&self, count: u16, period: u16, mask: u32) -> io::Result<()> {
        let modify = self.context.table()?.modify_cq;
        let modify = modify.ok_or(io::ErrorKind::Unsupported)?;
        let mut attr = ibv_modify_cq_attr {
            attr_mask: mask,
            moderate: ibv_moderate_cq {
                cq_count: count,
                cq_period: period,
            },
        };
        // SAFETY: The queue is alive, and `attr` outlives the call.
        check(unsafe { modify(self.raw, &mut attr) })
    }
}

impl Qp {
    /// Creates an RC QP of which the `operations` (`IBV_QP_EX_WITH_…`) can be posted by calls.
    pub fn extended(pd: &Rc<Pd>, cq: &Rc<Cq>, depth: Depth, operations: u32) -> io::Result<Self> {
        let mut init = ibv_qp_init_attr_ex {
            send_cq: cq.raw,
            recv_cq: cq.raw,
            qp_type: IBV_QPT_RC,
            cap: depth.cap(),
            comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            pd: pd.raw,
            send_ops_flags: operations.into(),
            ..Default::default()
        };
        let create = pd.context.table()?.create_qp_ex;
        let create = create.ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: `init` outlives the call.
        let raw = check_ptr(unsafe { create(pd.context.0, &mut init) })?;
        Ok(Self::from_raw(raw, pd, cq))
    }

    /// Posts a signaled ATOMIC_WRITE of eight bytes to `remote`: address and R_Key. The QP must
    /// have been created by [`Self::extended`].
    pub fn atomic_write(&self, id: u64, remote: (u64, u32), bytes: [u8; 8]) -> io::Result<()> {
        // SAFETY: The QP is extended, so the calls for its requested operations exist. The call
        // copies the bytes.
        let errno = unsafe {
            let qp = ibv_qp_to_qp_ex(self.raw);
            let (Some(start), Some(write), Some(complete)) =
                ((*qp).wr_start, (*qp).wr_atomic_write, (*qp).wr_complete)
            else {
                return Err(io::ErrorKind::Unsupported.into());
            };
            start(qp);
            (*qp).wr_id = id;
            (*qp).wr_flags = IBV_SEND_SIGNALED;
            write(qp, remote.1, remote.0, bytes.as_ptr().cast());
            complete(qp)
        };
        check(errno)
    }
}
