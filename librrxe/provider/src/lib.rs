// SPDX-License-Identifier: GPL-2.0

//! librrxe: the provider for rrxe's devices that libibverbs loads.
//!
//! Objects are made by libibverbs' own commands ([`context`], [`pd`], [`mr`], [`cq`], [`srq`], [`qp`]); what is
//! posted and polled goes through rings that the kernel maps, by the safe code of `rrxe_rings`. Where the
//! kernel grants it, neither posting nor arming takes a system call.
//!
//! The functions that libibverbs calls are thin: they convert what they are given, make one call, and
//! convert the result to what verbs want. Each of them is `unsafe` for one reason, which its `# Safety`
//! names *verbs*: the program must keep to the rules of the verbs interface, as for any provider. Objects
//! are alive from the call that makes them to the one that destroys them, pointers are valid, and an
//! object made for one thread is used by one. What their bodies do rests on that, so blocks within them are
//! marked only where there is more to say.

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
mod memory;
mod mr;
mod mw;
mod object;
mod pd;
mod post_recv;
mod post_send;
mod qp;
mod qp_attr;
mod srq;
mod system;
mod wr;
mod xrcd;
