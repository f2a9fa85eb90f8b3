// SPDX-License-Identifier: GPL-2.0

//! What providers have in libibverbs' second table: QPs whose work requests are built by
//! calls (`ibv_qp_ex`), for stock librxe has ATOMIC_WRITE there only; the moderation of CQs,
//! which it lacks.

use std::{io, mem::offset_of, rc::Rc};

use crate::{
    object::{check, check_ptr, Context, Cq, Depth, Pd, Qp},
    sys::*,
};

impl Context {
    /// The second table.
    fn table(&self) -> io::Result<&verbs_context> {
        let context = self.0;
        // SAFETY: The context is open; libibverbs marks those that lie in a `verbs_context`
        // in this way, which lives as long.
        unsafe {
            if (*context).abi_compat as usize != usize::MAX {
                return Err(io::ErrorKind::Unsupported.into());
            }
            Ok(&*context.byte_sub(offset_of!(verbs_context, context)).cast())
        }
    }
}

impl Cq {
    /// `ibv_modify_cq`: at most `count` completions are held back, for at most `period`
    /// microseconds.
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
    /// A reliably connected QP that takes `operations` (`IBV_QP_EX_WITH_…`) by calls.
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
        Ok(Self::adopt(raw, pd, cq))
    }

    /// Posts a signaled ATOMIC_WRITE of eight bytes to remote address and key. The QP must be
    /// extended.
    pub fn atomic_write(&self, id: u64, remote: (u64, u32), bytes: [u8; 8]) -> io::Result<()> {
        // SAFETY: The QP is extended, so all calls of the table that it asked for are there;
        // the bytes are copied by the call.
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
