// SPDX-License-Identifier: GPL-2.0

//! Abstractions of the kernel that know nothing of RDMA.

pub(crate) mod claim;
pub(crate) mod cpu;
pub mod crc32;
pub mod error;
pub mod module;
pub mod outcome;
pub mod principal;
pub mod quota;
pub mod random;
pub mod section;
pub mod sync;
pub mod table;
pub(crate) mod user_thread;
pub mod workqueue;
