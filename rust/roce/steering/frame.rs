// SPDX-License-Identifier: GPL-2.0

//! The fields of a frame that steering rules match.
//!
//! The sender of a frame isn't trusted: a header that is truncated or invalid is ignored, and so
//! are the headers after it. The receiver checks checksums and lengths.

use super::pattern::{
    ETHERNET_LEN, IPV4_LEN, IPV6_LEN, IP_DONT_FRAGMENT, IP_MORE_FRAGMENTS, PORTS_LEN,
};

/// Number of bytes of a frame that steering looks at: Ethernet, two VLAN tags, IPv6, and some
/// extension headers.
pub const HEADERS_MAX: usize = 128;

const TYPE_IPV4: u16 = 0x0800;
const TYPE_IPV6: u16 = 0x86dd;
/// Ethertypes of VLAN tags: IEEE 802.1Q and 802.1ad.
const TAG_TYPES: [u16; 2] = [0x8100, 0x88a8];

const PROTOCOL_HOP_BY_HOP: u8 = 0;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
const PROTOCOL_ROUTING: u8 = 43;
const PROTOCOL_FRAGMENT: u8 = 44;
const PROTOCOL_DESTINATION: u8 = 60;

/// The parsed headers of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Destination, source, ethertype after all tags, and first VLAN tag.
    pub(super) ethernet: [u8; ETHERNET_LEN],
    /// The frame has a VLAN tag.
    pub(super) tagged: bool,
    /// The fields of the IP header.
    pub(super) network: Network,
    /// The ports of the transport header.
    pub(super) transport: Transport,
}

/// The fields of the network header that rules can match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Network {
    Other,
    V4([u8; IPV4_LEN]),
    V6([u8; IPV6_LEN]),
}

/// The ports of the transport header that rules can match: destination, source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Other,
    Tcp([u8; PORTS_LEN]),
    Udp([u8; PORTS_LEN]),
}

impl Frame {
    /// Parses the first bytes of a frame, [`HEADERS_MAX`] of them or the whole frame.
    ///
    /// `tag` is the VLAN tag that was removed from its place after the addresses, if any. Returns
    /// `None` if the bytes aren't an Ethernet frame.
    pub fn parse(bytes: &[u8], tag: Option<u16>) -> Option<Self> {
        let (addresses, rest) = bytes.split_first_chunk::<12>()?;
        let (ether_type, inner, payload) = skip_tags(rest)?;
        let tag = tag.or(inner);
        let mut ethernet = [0; ETHERNET_LEN];
        fill(
            &mut ethernet,
            &[
                addresses,
                &ether_type.to_be_bytes(),
                &tag.unwrap_or(0).to_be_bytes(),
            ],
        );
        let (network, transport) = match ether_type {
            TYPE_IPV4 => ipv4(payload),
            TYPE_IPV6 => ipv6(payload),
            _ => None,
        }
        .unwrap_or((Network::Other, Transport::Other));
        Some(Self {
            ethernet,
            tagged: tag.is_some(),
            network,
            transport,
        })
    }

    /// Returns whether the destination is a multicast or the broadcast address.
    pub fn is_multicast(&self) -> bool {
        let [first, ..] = self.ethernet;
        first & 1 != 0
    }
}

/// Returns the ethertype after all VLAN tags, the first tag, and the bytes after the ethertype.
fn skip_tags(mut rest: &[u8]) -> Option<(u16, Option<u16>, &[u8])> {
    let mut first = None;
    loop {
        let (ether_type, payload) = rest.split_first_chunk()?;
        let ether_type = u16::from_be_bytes(*ether_type);
        if !TAG_TYPES.contains(&ether_type) {
            return Some((ether_type, first, payload));
        }
        let (tag, behind) = payload.split_first_chunk()?;
        first.get_or_insert(u16::from_be_bytes(*tag));
        rest = behind;
    }
}

/// Copies `parts` into `to`, one after the other.
fn fill(mut to: &mut [u8], parts: &[&[u8]]) {
    for part in parts {
        let Some((place, rest)) = to.split_at_mut_checked(part.len()) else {
            return;
        };
        place.copy_from_slice(part);
        to = rest;
    }
}

/// Parses an IPv4 header, and the transport header unless the packet is a fragment that lacks it.
fn ipv4(bytes: &[u8]) -> Option<(Network, Transport)> {
    let (header, _) = bytes.split_first_chunk::<20>()?;
    let [version, tos, _, _, _, _, fragment, offset, ttl, protocol, _, _, addresses @ ..] = header;
    let length = usize::from(version & 0xf).saturating_mul(4);
    if version >> 4 != 4 || length < header.len() {
        return None;
    }
    let payload = bytes.get(length..)?;
    let mut flags = 0;
    if fragment & 0x40 != 0 {
        flags |= IP_DONT_FRAGMENT;
    }
    if fragment & 0x20 != 0 {
        flags |= IP_MORE_FRAGMENTS;
    }
    let mut fields = [0; IPV4_LEN];
    fill(&mut fields, &[addresses, &[*protocol, *tos, *ttl, flags]]);
    let first = (fragment & 0x1f, *offset) == (0, 0);
    let transport = match first {
        true => transport(*protocol, payload),
        false => Transport::Other,
    };
    Some((Network::V4(fields), transport))
}

/// Parses an IPv6 header, and the transport header after its extension headers.
fn ipv6(bytes: &[u8]) -> Option<(Network, Transport)> {
    let (header, payload) = bytes.split_first_chunk::<40>()?;
    let [b0, b1, b2, b3, _, _, next, hop_limit, addresses @ ..] = header;
    if b0 >> 4 != 6 {
        return None;
    }
    let class = b0 << 4 | b1 >> 4;
    let label = [0, b1 & 0xf, *b2, *b3];
    let mut fields = [0; IPV6_LEN];
    fill(
        &mut fields,
        &[addresses, &label, &[*next, class, *hop_limit]],
    );
    let transport = after_extensions(*next, payload).unwrap_or(Transport::Other);
    Some((Network::V6(fields), transport))
}

/// Returns the transport header after the IPv6 extension headers. `next` is the type of the first
/// header in `bytes`.
fn after_extensions(mut next: u8, mut bytes: &[u8]) -> Option<Transport> {
    loop {
        let extra = match next {
            PROTOCOL_HOP_BY_HOP | PROTOCOL_ROUTING | PROTOCOL_DESTINATION => *bytes.get(1)?,
            PROTOCOL_FRAGMENT => {
                let [_, _, high, low, ..] = bytes.first_chunk::<8>()?;
                if (*high, *low & 0xf8) != (0, 0) {
                    return None;
                }
                0
            }
            _ => return Some(transport(next, bytes)),
        };
        next = *bytes.first()?;
        let length = usize::from(extra).saturating_add(1).saturating_mul(8);
        bytes = bytes.get(length..)?;
    }
}

/// Parses the ports of a TCP or UDP header.
fn transport(protocol: u8, bytes: &[u8]) -> Transport {
    let Some([s0, s1, d0, d1]) = bytes.first_chunk::<4>() else {
        return Transport::Other;
    };
    let ports = [*d0, *d1, *s0, *s1];
    match protocol {
        PROTOCOL_TCP => Transport::Tcp(ports),
        PROTOCOL_UDP => Transport::Udp(ports),
        _ => Transport::Other,
    }
}
