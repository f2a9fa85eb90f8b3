// SPDX-License-Identifier: GPL-2.0

//! Structures that the driver shares with the provider library of a process (librxe or librrxe):
//! rings, doorbell pages, completion queue entries, and their layouts. Also the conversion of the
//! work requests of in-kernel consumers to these layouts ([`post`]).

pub(crate) mod cqe;
pub mod doorbell;
pub mod features;
pub mod mmap;
pub mod post;
pub mod replies;
pub mod ring;
pub mod uabi;

use crate::bindings;

/// Driver ID of the devices, by which libibverbs finds their provider library: that of C rxe.
pub(crate) const DRIVER_ID: bindings::rdma_driver_id = bindings::rdma_driver_id_RDMA_DRIVER_RXE;

/// Version of the ABI between the driver and provider libraries
/// (`include/uapi/rdma/rdma_user_rxe.h`).
pub(crate) const VERSION: u32 = 2;
