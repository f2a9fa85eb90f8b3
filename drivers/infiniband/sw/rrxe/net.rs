// SPDX-License-Identifier: GPL-2.0

//! The path of packets between QPs and the network stack.

pub(crate) mod address_owners;
pub(crate) mod drops;
mod ip_header;
pub(crate) mod local;
pub(crate) mod netns;
pub(crate) mod outgoing;
pub(crate) mod path;
pub(crate) mod rx;
pub(crate) mod train;
pub(crate) mod tx;
