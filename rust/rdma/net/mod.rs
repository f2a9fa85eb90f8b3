// SPDX-License-Identifier: GPL-2.0

//! The network side of a soft-RoCE provider: UDP sockets in, IP packets out.
//!
//! Packets come in through [`udp::UdpSocket`] as [`skb::RxSkb`]s, are built as [`skb::TxSkb`]s, become [`skb::TxPacket`]s and
//! leave along a [`route::Route`]. A [`tap::Tap`] shows the frames that pass a network device. [`netdev`] and [`netns`] tell what becomes of the network devices
//! and namespaces meanwhile.
//!
//! Addresses are GIDs throughout, those of IPv4 mapped into IPv6.

mod in_flight;
pub(crate) mod lower;
mod multicast;
pub mod netdev;
pub mod netns;
mod reception;
pub mod route;
pub(crate) mod segment;
mod sender_socket;
pub mod skb;
pub mod tap;
pub mod tx_cpu;
pub mod tx_limit;
pub mod udp;
