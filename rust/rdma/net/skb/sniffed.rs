// SPDX-License-Identifier: GPL-2.0

//! Packets between QPs of one host, which bypass the network stack, for programs that look at
//! packets (sniffers), such as tcpdump.

use kernel::{ffi::c_int, sync::rcu};

use super::complete::TxPacket;
use crate::{bindings, device::gid::Network, net::netdev::Netdev};

impl TxPacket {
    /// Passes a copy of the packet to the programs that look at the packets of `netdev`, as if
    /// `netdev` sent the packet. They miss the packet if there is no memory for a copy.
    ///
    /// If `netdev` is the loopback device, programs that use libpcap don't see the packet: libpcap
    /// ignores packets that the device sends, because the device receives them afterwards.
    ///
    /// # Context
    ///
    /// Bottom halves disabled.
    #[cold]
    pub fn show_to_sniffers(&self, netdev: &Netdev) {
        let Some(headroom) = netdev.headroom() else {
            return;
        };
        let (skb, gfp) = (self.as_ptr(), bindings::GFP_ATOMIC);
        // SAFETY: `self` owns the valid buffer.
        let copy = unsafe { bindings::skb_copy_expand(skb, headroom as c_int, 0, gfp) };
        if copy.is_null() {
            return;
        }
        let protocol = match self.network() {
            Network::V4 => bindings::ETH_P_IP,
            Network::V6 => bindings::ETH_P_IPV6,
        };
        // The link-layer header may be that of a lower device, which RCU keeps.
        let _readers = rcu::read_lock();
        // SAFETY: This function owns the copy, whose network header is linear and at `data`. An
        // IPv4 header has no options. The device has said how much headroom its link-layer header
        // takes, and as much is free in front of `data`. The caller has disabled bottom halves,
        // which handlers of packets require (`packet_rcv()`, net/packet/af_packet.c).
        unsafe {
            if protocol == bindings::ETH_P_IP {
                bindings::ip_send_check(bindings::skb_network_header(copy).cast());
            }
            bindings::skb_set_dev(copy, netdev.as_ptr());
            bindings::skb_set_protocol(copy, (protocol as u16).to_be());
            if bindings::skb_push_link_header(copy, netdev.as_ptr()) >= 0 {
                bindings::dev_queue_xmit_nit(copy, netdev.as_ptr());
            }
            bindings::consume_skb(copy);
        }
    }
}
