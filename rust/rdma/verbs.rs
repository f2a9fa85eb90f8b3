// SPDX-License-Identifier: GPL-2.0

//! The objects of the verbs: their types, and the operations on them that ib_core calls.

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
