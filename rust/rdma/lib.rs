// SPDX-License-Identifier: GPL-2.0

//! Kernel abstractions for a soft-RoCE provider; all of its unsafe code lives here.
//!
//! A driver implements [`provider::Provider`], makes devices of it with [`device::Unregistered`] and
//! lets users ask for them with [`link::LinkRegistration`]. ib_core then calls the table that `ops`
//! builds: each thunk converts its arguments, makes one safe call and converts the result. The
//! driver's objects lie by counted reference behind ib_core's (`object`); their only way back is a
//! revocable [`upcall::Upcall`].
//!
//! For its data path the driver finds here: [`ring`]s shared with a process and their [`mmap`], pinned
//! memory ([`umem`], [`mr`]), [`table`]s read without locks, locks for softirq context ([`sync`]), and the network
//! ([`net`]).

#![deny(missing_docs)]

pub(crate) use rdma_bindings as bindings;

pub mod attr;
pub mod av;
mod claim;
pub mod client;
mod copy;
mod cpu;
pub mod cq;
pub mod crc32;
pub mod device;
mod direct_map;
pub mod dm;
mod dma_buf;
pub mod doorbell;
pub mod error;
mod extent;
pub mod fast_mr;
mod flow;
pub mod gid;
pub mod link;
pub mod mad;
pub mod memory;
pub mod mmap;
pub mod module;
pub mod mr;
pub mod mw;
pub mod net;
pub mod odp;
pub mod outcome;
pub mod post;
pub mod principal;
pub mod provider;
pub mod qp;
pub mod quota;
pub mod random;
pub mod restrack;
pub mod ring;
pub mod section;
pub mod srq;
pub mod stats;
pub mod sync;
pub mod table;
pub mod trace;
pub mod uabi;
pub mod ucontext;
pub mod udata;
pub mod umem;
pub mod unread;
pub mod upcall;
mod user_thread;
pub mod workqueue;
mod xrcd;

mod cqe;
mod gid_table;
mod object;
mod ops;
mod span;
mod sysfs;
