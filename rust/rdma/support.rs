// SPDX-License-Identifier: GPL-2.0

//! General facilities that are independent of RDMA, such as locks, tables, quotas, work queues,
//! threads and random numbers. Most of them are safe wrappers for facilities of the kernel.

pub(crate) mod callback;
pub(crate) mod cpu;
pub mod crc32;
pub mod error;
pub mod identity;
pub mod module;
pub mod outcome;
pub mod quota;
pub mod random;
pub mod read_section;
pub mod sync;
pub mod table;
pub(crate) mod user_thread;
pub mod workqueue;
