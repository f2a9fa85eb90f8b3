// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! librrxe: the provider library that libibverbs loads for devices of rrxe.
//!
//! libibverbs' own commands create the objects ([`context`], [`pd`], [`mr`], [`cq`], [`srq`],
//! [`qp`]). Posting and polling use rings that the kernel shares with the process, through the safe
//! code of the crate `rrxe_rings`. With the features that rrxe grants ([`context`]), most posts and
//! most arming of CQs take no system call.
//!
//! The functions that libibverbs calls are thin: they convert their arguments, make one call, and
//! convert the result to the conventions of verbs.
//!
//! # Safety
//!
//! Most functions of this crate are `unsafe` for one reason: the program must keep the rules of the
//! verbs API, as with any provider. That is:
//!
//! - Pointers are valid.
//! - An object is alive from the call that creates it to the call that destroys it.
//! - An object that was created for one thread is used by one thread at a time.
//!
//! The bodies of these functions rely on these rules. So they contain `unsafe` blocks with a
//! `SAFETY` comment only where there is a further reason.

#![deny(missing_docs)]

mod ah;
mod bindings;
mod context;
mod cq;
mod cq_ex;
mod device;
mod dm;
mod doorbell;
mod flow;
mod guarded;
mod layout;
mod memory;
mod mr;
mod mw;
mod object;
mod pd;
mod post_recv;
mod post_send;
mod qp;
mod qp_attr;
mod resizable;
mod srq;
mod system;
mod wr;
mod xrcd;
