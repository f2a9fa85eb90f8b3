// SPDX-License-Identifier: GPL-2.0

//! A sans-IO RoCEv2 engine: wire format, requester, responder and queue pair states.
//!
//! The engine has no clock, no allocator, no locks and no kernel types. Time comes in as an
//! [`time::Instant`]; what it needs of its surroundings it asks through the traits of [`host`];
//! packets to send are fetched with [`qp::Qp::poll_transmit`].
//!
//! The order of calls is: any number of [`qp::Qp::handle_packet`], [`qp::Qp::handle_timeout`],
//! [`qp::Qp::modify`]; after each of them, and after work was posted, call
//! [`qp::Qp::poll_transmit`] until it returns `None`, then [`qp::Qp::poll_timeout`] to learn when
//! to call next at the latest. A host that stops before the `None` calls [`qp::Qp::begin_turn`] before it
//! goes on.

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
pub mod transmit;
pub mod wc;
pub mod wire;
pub mod wr;
