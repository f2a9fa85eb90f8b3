// SPDX-License-Identifier: GPL-2.0

//! The network side of a soft-RoCE driver: it receives RoCEv2 packets from UDP sockets and sends IP
//! packets.
//!
//! A [`udp::UdpSocket`] receives packets as [`skb::RxSkb`]s. A packet to send is built as
//! [`skb::TxSkb`], completed to [`skb::TxPacket`], and sent along a [`route::Route`]. A
//! [`tap::Tap`] calls an observer for each frame that passes a network device. [`netdev`] and
//! [`netns`] report events of network devices and of network namespaces.
//!
//! All addresses are GIDs. IPv4 addresses are IPv4-mapped IPv6 addresses.

mod flow;
mod in_flight;
pub(crate) mod lower;
mod multicast;
pub mod netdev;
pub mod netns;
mod reception;
pub mod route;
pub(crate) mod segment;
mod sender_socket;
mod senders;
pub mod skb;
pub mod tap;
pub mod tx_cpu;
pub mod tx_limit;
pub mod udp;
