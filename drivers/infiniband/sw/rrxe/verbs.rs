// SPDX-License-Identifier: GPL-2.0

//! The verbs objects other than memory regions, memory windows and queue pairs, one module for each
//! kind. [`members`] and [`restrack`] are for several kinds.

pub(crate) mod ah;
pub(crate) mod context;
pub(crate) mod cq;
pub(crate) mod dm;
pub(crate) mod flow;
pub(crate) mod mcast;
pub(crate) mod members;
pub(crate) mod pd;
pub(crate) mod restrack;
pub(crate) mod srq;
pub(crate) mod xrcd;
