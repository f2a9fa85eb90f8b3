// SPDX-License-Identifier: GPL-2.0

//! Bursts to send: packets of one flow that pass through the network stack as one buffer.
//!
//! The first packet's buffer has the others in its `frag_list`, as GRO builds such lists
//! (`skb_gro_receive_list()`, net/core/gro.c). The IP layer, netfilter and queueing disciplines see
//! one long packet. A burst arrives whole, or is lost: a part of the network stack that can't take
//! the list drops the burst. For `skb_segment_list()` (net/core/skbuff.c), which takes lists apart,
//! copies the link-layer and tunnel headers of the first buffer in front of each other buffer,
//! whatever room there is. Administrators of a network namespace could lengthen these headers (`tc`
//! actions `vlan` and `mpls`), so the copies would overwrite other memory.

use core::ptr::{self, NonNull};

use kernel::{prelude::*, sync::Arc};

use super::{
    complete::{TxPacket, Written},
    rx::{ip_len, UDP_LEN},
};
use crate::{
    bindings,
    device::gid::Network,
    net::{route::Route, tx_limit::TxCount},
};

/// GSO type (`SKB_GSO_*`) of a burst. No other part of the kernel builds a buffer of this type
/// without encapsulation.
///
/// The type names no transport protocol, so the network stack refuses to take the list apart
/// (`udp4_ufo_fragment()`, net/ipv4/udp_offload.c; `udp6_ufo_fragment()`, net/ipv6/udp_offload.c).
/// IPsec's BEET mode may add the bit of TCP (`xfrm4_beet_gso_segment()`, net/ipv4/esp4_offload.c),
/// and then [`GSO_SIZE`] makes the network stack refuse.
/// An encapsulation socket gets a buffer with `SKB_GSO_UDP_TUNNEL` in one piece
/// (`udp_unexpected_gso()`, include/linux/udp.h).
pub(super) const GSO_TYPE: u32 = bindings::SKB_GSO_FRAGLIST | bindings::SKB_GSO_UDP_TUNNEL;

/// GSO size of a burst (`GSO_BY_FRAGS`). `tcp4_gso_segment()` (net/ipv4/tcp_offload.c) and
/// `__udp_gso_segment()` (net/ipv4/udp_offload.c) call `skb_segment_list()` only if the linear part
/// of the first buffer has as many bytes behind its transport header, which are more than an IP
/// packet may have. Otherwise they refuse a buffer that has no more bytes than the GSO size.
const GSO_SIZE: u16 = bindings::GSO_BY_FRAGS as u16;

/// Features (`NETIF_F_*`) of a device that takes bursts.
pub(in crate::net) const FEATURES: bindings::netdev_features_t = bindings::NETIF_F_GSO
    | bindings::NETIF_F_FRAGLIST
    | bindings::NETIF_F_GSO_FRAGLIST
    | bindings::NETIF_F_GSO_UDP_TUNNEL;

/// Maximum number of bytes of a burst, from the first packet's IP header on. The length fields of
/// the IP and UDP headers have 16 bits.
const MAX_LEN: u32 = u16::MAX as u32;

/// Packets of one flow, to be sent as one buffer.
///
/// # Invariants
///
/// `head` is the buffer of a [`TxPacket`] of the IP version `network`. The buffers of the further
/// packets, `count` with the first one, are in its `frag_list`; `tail` is the last of these or
/// null. In those buffers `data` is behind the UDP header. `len` and `truesize` of `head` include
/// them. No packet is longer than `longest` bytes, IP header included.
pub struct TxBurst {
    head: Written,
    network: Network,
    tail: *mut bindings::sk_buff,
    count: u16,
    longest: u32,
}

impl TxBurst {
    /// Creates a burst of one packet.
    pub fn new(packet: TxPacket) -> Self {
        let (head, network) = packet.into_parts();
        let longest = head.len();
        // INVARIANT: The burst has one packet, which has no `frag_list`.
        Self {
            head,
            network,
            tail: ptr::null_mut(),
            count: 1,
            longest,
        }
    }

    /// Returns whether [`Self::push`] would accept a packet of `len` bytes, IP header included.
    fn has_room(&self, len: u32) -> bool {
        self.head.len().saturating_add(len) <= MAX_LEN
    }

    /// Appends a packet. It must have the addresses and ports of the first packet.
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` if the packet has another IP version; `EMSGSIZE` if the burst would be too
    /// long. The packet is freed then.
    pub fn push(&mut self, packet: TxPacket) -> Result {
        let (member, network) = packet.into_parts();
        if network != self.network {
            return Err(EINVAL);
        }
        let len = member.len();
        if !self.has_room(len) {
            return Err(EMSGSIZE);
        }
        let headers = ip_len(network).wrapping_add(UDP_LEN) as u32;
        let member = member.into_raw().as_ptr();
        // SAFETY: This function owns the valid buffer, whose headers are linear.
        unsafe { bindings::skb_pull(member, headers) };
        let head = self.head.as_ptr();
        if self.tail.is_null() {
            // SAFETY: The head is valid by the type invariant, so it has a shared info.
            unsafe { (*bindings::skb_shinfo(head)).frag_list = member };
        } else {
            // SAFETY: By the type invariant `tail` is a buffer of the list, which `self` owns.
            unsafe { bindings::skb_set_next(self.tail, member) };
        }
        // SAFETY: `self` owns the valid head, and its list owns the valid member.
        unsafe {
            (*head).len = (*head).len.wrapping_add((*member).len);
            (*head).data_len = (*head).data_len.wrapping_add((*member).len);
            (*head).truesize = (*head).truesize.wrapping_add((*member).truesize);
        }
        // INVARIANT: The member is the last buffer of the list now, and is counted.
        self.tail = member;
        self.count = self.count.saturating_add(1);
        self.longest = self.longest.max(len);
        Ok(())
    }

    /// Sends the burst along `route`, as [`TxPacket::send`] does a packet. In `tx_count` it counts
    /// as its number of packets.
    ///
    /// # Context
    ///
    /// Bottom halves disabled.
    ///
    /// # Errors
    ///
    /// Those of [`TxPacket::send`]. The packets are freed then.
    pub fn send(self, route: &Route, tx_count: &Arc<TxCount>) -> Result {
        if self.count > 1 {
            self.mark();
        }
        let (count, longest) = (u32::from(self.count), self.longest as usize);
        self.head
            .transmit(self.network, count, longest, route, tx_count)
    }

    /// Marks the head as a GSO buffer, and writes the length of the burst to its UDP header. The IP
    /// layer writes the length to the IP header.
    fn mark(&self) {
        let head = self.head.as_ptr();
        let ip_len = ip_len(self.network) as u32;
        // SAFETY: `self` owns the valid head.
        let len = unsafe { (*head).len };
        // SAFETY: The head is valid, so it has a shared info.
        unsafe {
            let shared = bindings::skb_shinfo(head);
            (*shared).gso_size = GSO_SIZE;
            (*shared).gso_segs = self.count;
            (*shared).gso_type = GSO_TYPE;
        }
        // Without this, segmentation would look for a checksum to compute
        // (`skb_needs_check()`, net/core/gso.c).
        // SAFETY: `self` owns the valid head.
        unsafe { bindings::skb_set_checksum_unnecessary(head) };
        let length = (len.wrapping_sub(ip_len) as u16).to_be_bytes();
        // SAFETY: The UDP header is behind the IP header, linear, and `self` owns the buffer. Its
        // length field is at 4.
        unsafe {
            let field = (*head).data.add(ip_len as usize).add(4);
            field.cast::<[u8; 2]>().write(length);
        }
    }
}

/// Returns whether a received buffer is a burst.
///
/// # Safety
///
/// The caller must own the valid `skb`.
pub(super) unsafe fn is_burst(skb: NonNull<bindings::sk_buff>) -> bool {
    let skb = skb.as_ptr();
    // SAFETY: The caller guarantees that it owns the valid buffer (see `# Safety`), which has a
    // shared info.
    unsafe {
        let shared = bindings::skb_shinfo(skb);
        (*skb).data_len != 0
            && (*shared).gso_type == GSO_TYPE
            && !(*shared).frag_list.is_null()
            && !bindings::skb_encapsulation(skb)
    }
}
