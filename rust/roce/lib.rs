// SPDX-License-Identifier: GPL-2.0

//! A sans-IO RoCEv2 protocol engine: wire format, requester, responder and queue pair states.
//!
//! The engine has no clock, no allocator, no locks and no kernel types. Its host passes the time as
//! a [`time::Instant`], implements the traits of [`host`], and fetches the packets to send with
//! [`qp::Qp::poll_transmit`]. The host is the driver, or a test.
//!
//! The host feeds the engine with any number of calls of [`qp::Qp::handle_packet`],
//! [`qp::Qp::handle_timeout`] and [`qp::Qp::modify`]. After these calls, and after it posted work,
//! it calls [`qp::Qp::poll_transmit`] until that returns `None`. Then it calls
//! [`qp::Qp::poll_timeout`], which returns the time by which the host must call
//! [`qp::Qp::handle_timeout`] and [`qp::Qp::poll_transmit`]. A host that stops polling before the
//! `None` calls [`qp::Qp::begin_run`] before it polls again.

#![no_std]
#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::arithmetic_side_effects
    )
)]

#[cfg(test)]
extern crate std;

pub mod early;
pub mod host;
pub mod ids;
pub mod mtu;
pub mod psn;
pub mod qp;
pub mod requester;
pub mod responder;
pub mod steering;
#[cfg(test)]
mod testing;
pub mod time;
pub mod train;
pub mod transmit;
pub mod wc;
pub mod wire;
pub mod wr;
