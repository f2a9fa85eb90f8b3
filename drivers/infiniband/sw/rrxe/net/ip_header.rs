// SPDX-License-Identifier: GPL-2.0

//! The IP headers of packets to send.

use rdma::{net::route::Route, verbs::av::Av};
use roce::wire::icrc::{IPV4_LEN, IPV6_LEN};

/// The IP protocol number of UDP.
const PROTOCOL_UDP: u8 = 17;

/// The flags word of an IPv4 header: don't fragment.
const DONT_FRAGMENT: u16 = 0x4000;

/// An IP header to send.
#[derive(Clone, Copy)]
pub(crate) enum IpHeader {
    V4([u8; IPV4_LEN]),
    V6([u8; IPV6_LEN]),
}

impl IpHeader {
    /// The header that `av` asks for, but for the length.
    pub(crate) fn new(av: &Av) -> Self {
        match (av.sgid.ipv4(), av.dgid.ipv4()) {
            (Some(source), Some(destination)) => Self::v4(av, source, destination),
            _ => Self::v6(av),
        }
    }

    /// The IP layer adds the checksum. Since the packet is never fragmented, its identification is
    /// zero (RFC 6864 §4.1). IPsec needs [`Self::fragmentable`].
    fn v4(av: &Av, source: [u8; 4], destination: [u8; 4]) -> Self {
        let [f0, f1] = DONT_FRAGMENT.to_be_bytes();
        let [s0, s1, s2, s3] = source;
        let [d0, d1, d2, d3] = destination;
        Self::V4([
            0x45,
            av.traffic_class,
            0,
            0,
            0,
            0,
            f0,
            f1,
            av.hop_limit,
            PROTOCOL_UDP,
            0,
            0,
            s0,
            s1,
            s2,
            s3,
            d0,
            d1,
            d2,
            d3,
        ])
    }

    fn v6(av: &Av) -> Self {
        let word = 6 << 28 | u32::from(av.traffic_class) << 20 | av.flow_label & 0xf_ffff;
        let mut header = [0; IPV6_LEN];
        let (fields, addresses) = header.split_at_mut(8);
        let [w0, w1, w2, w3] = word.to_be_bytes();
        fields.copy_from_slice(&[w0, w1, w2, w3, 0, 0, PROTOCOL_UDP, av.hop_limit]);
        let (source, destination) = addresses.split_at_mut(16);
        source.copy_from_slice(&av.sgid.0);
        destination.copy_from_slice(&av.dgid.0);
        Self::V6(header)
    }

    /// The same for a packet that leaves in fragments if IPsec makes it too long. The IP layer takes the flag from fragments, and the
    /// ICRC covers flag and identification. So the packet has no flag, and an identification. A packet of IPv6 has neither field.
    pub(super) fn fragmentable(self, route: &Route) -> Self {
        let Self::V4(mut header) = self else {
            return self;
        };
        let [_, _, _, _, i0, i1, f0, f1, _, _, _, _, s0, s1, s2, s3, d0, d1, d2, d3] = &mut header;
        let (source, destination) = ([*s0, *s1, *s2, *s3], [*d0, *d1, *d2, *d3]);
        [*i0, *i1] = route.identification(source, destination).to_be_bytes();
        [*f0, *f1] = [0; 2];
        Self::V4(header)
    }

    /// The same for a datagram of `length` bytes behind the header.
    pub(super) fn with_length(self, length: u16) -> Self {
        match self {
            Self::V4(mut header) => {
                let [_, _, l0, l1, ..] = &mut header;
                [*l0, *l1] = length.saturating_add(IPV4_LEN as u16).to_be_bytes();
                Self::V4(header)
            }
            Self::V6(mut header) => {
                let [_, _, _, _, l0, l1, ..] = &mut header;
                [*l0, *l1] = length.to_be_bytes();
                Self::V6(header)
            }
        }
    }
}
