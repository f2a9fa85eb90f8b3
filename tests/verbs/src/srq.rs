// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues.

use std::{cell::Cell, io, ptr, rc::Rc};

use crate::{
    object::{check, check_ptr, recv_wr, Pd},
    sys::*,
};

/// A shared receive queue.
pub struct Srq {
    pub raw: *mut ibv_srq,
    /// The attributes that were granted on creation.
    pub attr: ibv_srq_attr,
    /// Whether [`Self::destroy`] has destroyed the SRQ, although it should have failed.
    destroyed: Cell<bool>,
    pd: Rc<Pd>,
}

impl Srq {
    /// Creates an SRQ of at least `max_wr` WQEs of at least `max_sge` SGEs.
    pub fn new(pd: &Rc<Pd>, max_wr: u32, max_sge: u32) -> io::Result<Rc<Self>> {
        let mut init = ibv_srq_init_attr {
            attr: ibv_srq_attr {
                max_wr,
                max_sge,
                srq_limit: 0,
            },
            ..Default::default()
        };
        // SAFETY: `init` outlives the call.
        let raw = check_ptr(unsafe { ibv_create_srq(pd.raw, &mut init) })?;
        Ok(Rc::new(Self {
            raw,
            attr: init.attr,
            destroyed: Cell::new(false),
            pd: pd.clone(),
        }))
    }

    /// Posts one receive work request.
    pub fn post_recv(&self, wr_id: u64, sges: &mut [ibv_sge]) -> io::Result<()> {
        let mut wr = recv_wr(wr_id, sges);
        let mut bad = ptr::null_mut();
        // SAFETY: The list outlives the call; the table is that of the open context.
        check(unsafe {
            let post = (*self.pd.context.0)
                .ops
                .post_srq_recv
                .expect("every provider with such queues posts to them");
            post(self.raw, &mut wr, &mut bad)
        })
    }

    /// Resizes the SRQ to at least `max_wr` WQEs.
    pub fn resize(&self, max_wr: u32) -> io::Result<()> {
        self.modify(max_wr, 0, IBV_SRQ_MAX_WR)
    }

    /// Arms the limit.
    pub fn arm(&self, limit: u32) -> io::Result<()> {
        self.modify(0, limit, IBV_SRQ_LIMIT)
    }

    /// `ibv_modify_srq`.
    pub fn modify(&self, max_wr: u32, srq_limit: u32, mask: u32) -> io::Result<()> {
        let mut attr = ibv_srq_attr {
            max_wr,
            max_sge: 0,
            srq_limit,
        };
        // SAFETY: `attr` outlives the call.
        check(unsafe { ibv_modify_srq(self.raw, &mut attr, mask as i32) })
    }

    /// `ibv_query_srq`.
    pub fn query(&self) -> io::Result<ibv_srq_attr> {
        let mut attr = ibv_srq_attr::default();
        // SAFETY: `attr` outlives the call.
        check(unsafe { ibv_query_srq(self.raw, &mut attr) })?;
        Ok(attr)
    }

    /// Tries to destroy the SRQ. The call must fail, because the SRQ is still in use.
    pub fn destroy(&self) -> io::Result<()> {
        // SAFETY: The SRQ was not destroyed yet, because a caller ends its case if this succeeds.
        let result = check(unsafe { ibv_destroy_srq(self.raw) });
        self.destroyed.set(result.is_ok());
        result
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        if !self.destroyed.get() {
            // SAFETY: Created once, destroyed once, after the QPs that use it.
            unsafe { ibv_destroy_srq(self.raw) };
        }
    }
}
