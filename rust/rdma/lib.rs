// SPDX-License-Identifier: GPL-2.0

//! Kernel abstractions for a soft-RoCE (RDMA) driver. This crate holds all unsafe code of the
//! driver.
//!
//! A driver implements the trait [`provider::Provider`]. It creates its devices by
//! [`device::Unregistered`]. [`device::link::LinkRegistration`] lets administrators create a device
//! with `rdma link add`. ib_core calls the driver through the `struct ib_device_ops` that the
//! module `ops` builds. Each function in that table converts its C arguments, calls safe Rust code
//! and converts the result.
//!
//! An object of ib_core (for example a `struct ib_qp`) holds a counted reference to the driver's
//! object (see `verbs::object`). A QP, CQ or shared receive queue of the driver reaches ib_core's
//! object only through a [`verbs::upcall::Upcall`], which can be revoked.
//!
//! The ABI that provider libraries of processes rely on is in [`abi`], and the tracepoints are in
//! [`trace`]. Only these two modules are specific to one driver.
//!
//! The data path of a driver uses these modules:
//!
//! - [`abi::ring`]: rings that a process and the driver share. [`abi::mmap`] maps them into the
//!   process.
//! - [`memory`]: the memory of regions, pinned or on demand.
//! - [`support::table`]: tables that are read without locks.
//! - [`support::sync`]: locks for softirq context.
//! - [`net`]: sockets, packets, routes and network devices.

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
