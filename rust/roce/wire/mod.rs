// SPDX-License-Identifier: GPL-2.0

//! The RoCEv2 wire format: everything between the UDP header and the end of the datagram.

pub mod packet;
