// SPDX-License-Identifier: GPL-2.0

//! Structures that the driver shares with the provider library of a process (librxe or librrxe):
//! rings, doorbell pages, completion queue entries, and their layouts.

pub(crate) mod cqe;
pub mod doorbell;
pub mod mmap;
pub mod post;
pub mod ring;
pub mod uabi;
