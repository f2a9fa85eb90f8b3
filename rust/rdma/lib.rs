// SPDX-License-Identifier: GPL-2.0

//! Kernel abstractions for a soft-RoCE provider; all of its unsafe code lives here.
//!
//! A driver implements [`provider::Provider`], makes devices of it with [`device::Unregistered`] and
//! lets users ask for them with [`device::link::LinkRegistration`]. ib_core then calls the table that `ops`
//! builds: each thunk converts its arguments, makes one safe call and converts the result. The
//! driver's objects lie by counted reference behind ib_core's (`verbs::object`); their only way back is a
//! revocable [`verbs::upcall::Upcall`].
//!
//! For its data path the driver finds here: [rings](abi::ring) shared with a process and their [mapping](abi::mmap), pinned
//! memory ([`memory`]), [tables](support::table) read without locks, locks for softirq context ([`support::sync`]), and the network
//! ([`net`]).

#![deny(missing_docs)]

pub(crate) use rdma_bindings as bindings;

pub mod abi;
pub mod device;
pub mod memory;
pub mod net;
mod ops;
pub mod provider;
pub mod support;
pub mod trace;
pub mod verbs;
