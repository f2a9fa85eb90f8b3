// SPDX-License-Identifier: GPL-2.0

//! Bursts: packets of one flow that pass through the network stack as one buffer.
//!
//! The buffer has the headers of one packet, which describe all packets
//! ([`Train`](roce::train::Train)), and the payload of all in pages. The IP layer, netfilter and
//! queueing disciplines see one long packet. A burst arrives whole, or is lost: a part of the
//! network stack that can't send a packet of that length drops the burst.

use core::ptr::NonNull;

use kernel::{prelude::*, sync::Arc};

use super::{complete::TxPacket, rx::ip_len};
use crate::{
    bindings,
    net::{route::Route, tx_limit::TxCount},
};

/// GSO type (`SKB_GSO_*`) of a burst. No other part of the kernel builds a buffer of this type.
///
/// * The type names no transport protocol, so the network stack refuses to take the buffer apart
///   (`udp4_ufo_fragment()`, net/ipv4/udp_offload.c; `udp6_ufo_fragment()`,
///   net/ipv6/udp_offload.c). An administrator of a network namespace can have the bit of TCP added
///   (`xfrm4_beet_gso_segment()`, net/ipv4/esp4_offload.c). `tcp_gso_segment()` then makes packets
///   that are no RoCE packets, as it does of any buffer with page fragments.
///   Within a tunnel (`encapsulation`) the network stack takes the burst for a packet of a UDP
///   tunnel, and refuses it because the inner headers do not follow (`__skb_udp_tunnel_segment()`).
/// * No network card takes `SKB_GSO_TCP_ACCECN` (`NETIF_F_GSO_ACCECN`), so no burst gets to a
///   card's segmentation. The bit has a meaning for TCP only.
/// * An encapsulation socket gets a buffer with `SKB_GSO_UDP_TUNNEL` in one piece
///   (`udp_unexpected_gso()`, include/linux/udp.h).
///
/// A burst has no `frag_list`. `skb_segment_list()` and `skb_segment()` (net/core/skbuff.c) rely on
/// the form that GRO gives such lists, and panic or write beyond buffers if the headers were
/// changed on the way.
const GSO_TYPE: u32 = bindings::SKB_GSO_TCP_ACCECN | bindings::SKB_GSO_UDP_TUNNEL;

/// Features (`NETIF_F_*`) of a device that takes bursts.
pub(in crate::net) const FEATURES: bindings::netdev_features_t = bindings::NETIF_F_GSO
    | bindings::NETIF_F_SG
    | bindings::NETIF_F_GSO_ACCECN
    | bindings::NETIF_F_GSO_UDP_TUNNEL;

/// Packets of one flow, to be sent as one buffer.
pub struct TxBurst {
    packet: TxPacket,
    count: u16,
    longest: u16,
}

impl TxBurst {
    /// Creates a burst of `count` packets, which `packet` describes. The longest one would have
    /// `longest` bytes behind the IP header.
    pub fn new(packet: TxPacket, count: u16, longest: u16) -> Self {
        Self {
            packet,
            count,
            longest,
        }
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
        let (skb, network) = self.packet.into_parts();
        let raw = skb.as_ptr();
        // The IP layer adds the length of the IP header to the GSO size, and compares the sum with
        // the MTU (`skb_gso_validate_network_len()`, net/core/gso.c).
        // SAFETY: `skb` is valid, so it has a shared info. This function alone owns it.
        unsafe {
            let shared = bindings::skb_shinfo(raw);
            (*shared).gso_size = self.longest;
            (*shared).gso_segs = self.count;
            (*shared).gso_type = GSO_TYPE;
        }
        // Without this, segmentation would look for a checksum to compute
        // (`skb_needs_check()`, net/core/gso.c).
        // SAFETY: This function owns the valid buffer.
        unsafe { bindings::skb_set_checksum_unnecessary(raw) };
        let len = ip_len(network).saturating_add(self.longest.into());
        skb.transmit(network, self.count.into(), len, route, tx_count)
    }
}

/// Returns the number of packets of a received buffer, if it is a burst.
///
/// # Safety
///
/// The caller must own the valid `skb`.
pub(super) unsafe fn burst_count(skb: NonNull<bindings::sk_buff>) -> Option<u16> {
    let skb = skb.as_ptr();
    // SAFETY: The caller guarantees that it owns the valid buffer (see `# Safety`), which has a
    // shared info.
    let (is_burst, count) = unsafe {
        let shared = bindings::skb_shinfo(skb);
        let is_burst = (*shared).gso_type == GSO_TYPE
            && (*shared).nr_frags != 0
            && (*shared).frag_list.is_null()
            && !bindings::skb_encapsulation(skb);
        (is_burst, (*shared).gso_segs)
    };
    is_burst.then_some(count)
}
