// SPDX-License-Identifier: GPL-2.0

//! What a process shares with the driver: rings, doorbells, and their layout.

pub(crate) mod cqe;
pub mod doorbell;
pub mod mmap;
pub mod post;
pub mod ring;
pub mod uabi;
