// SPDX-License-Identifier: GPL-2.0

//! The IP headers of packets to send.

use rdma::{net::route::Route, verbs::av::Av};
use roce::wire::icrc::{IPV4_LEN, IPV6_LEN};

/// IP protocol number of UDP.
const PROTOCOL_UDP: u8 = 17;

/// Flags word of an IPv4 header with the flag "don't fragment".
const DONT_FRAGMENT: u16 = 0x4000;

/// IP header of a packet to send.
#[derive(Clone, Copy)]
pub(crate) enum IpHeader {
    /// IPv4 header without options.
    V4([u8; IPV4_LEN]),
    /// IPv6 header without extension headers.
    V6([u8; IPV6_LEN]),
}

impl IpHeader {
    /// Creates the header of a packet with the addresses and the traffic class of `av`. The length
    /// is still zero.
    pub(crate) fn new(av: &Av) -> Self {
        match (av.sgid.ipv4(), av.dgid.ipv4()) {
            (Some(source), Some(destination)) => Self::v4(av, source, destination),
            _ => Self::v6(av),
        }
    }

    /// Creates an IPv4 header. The IP layer adds the checksum. The identification is zero, since
    /// the packet is never fragmented (RFC 6864 §4.1). IPsec needs [`Self::fragmentable`].
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

    /// Creates an IPv6 header.
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

    /// Returns this header for a packet that leaves in fragments if IPsec makes it too long.
    ///
    /// The IP layer clears the flag "don't fragment" in fragments. The ICRC covers the flag and the
    /// identification, so both must have their last values before the ICRC is computed. So this
    /// clears the flag, and sets an identification by which the receiver can tell the fragments of
    /// two packets apart. An IPv6 header has neither field.
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

    /// Returns this header for a packet with `length` bytes behind the IP header.
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
