// SPDX-License-Identifier: GPL-2.0

//! Objects of verbs (`struct ib_pd`, `struct ib_qp`, `struct ib_mr`, …): the types that a
//! [`crate::provider::Provider`] exchanges with ib_core, and the operations of
//! `struct ib_device_ops` that ib_core calls on the objects.

pub(crate) mod ah;
pub mod av;
pub mod cq;
pub(crate) mod flow;
pub(crate) mod mcast;
pub mod mr;
pub mod mw;
pub(crate) mod object;
pub(crate) mod pd;
pub mod qp;
pub mod srq;
pub mod ucontext;
pub mod udata;
pub mod unread;
pub mod upcall;
pub(crate) mod xrcd;
