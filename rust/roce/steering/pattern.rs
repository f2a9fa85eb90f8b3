// SPDX-License-Identifier: GPL-2.0

//! What a rule says of a frame's headers (`struct ibv_flow_spec_*`).

use super::frame::{Frame, Network, Transport};
use super::RuleFault;

/// Bytes of what can be said of the link layer: destination, source, type behind all tags, first tag.
pub const ETHERNET_LEN: usize = 6 + 6 + 2 + 2;
/// Bytes of what can be said of IPv4: source, destination, protocol, TOS, TTL, flags.
pub const IPV4_LEN: usize = 4 + 4 + 1 + 1 + 1 + 1;
/// Bytes of what can be said of IPv6: source, destination, flow label, next header, traffic class, hop
/// limit.
pub const IPV6_LEN: usize = 16 + 16 + 4 + 1 + 1 + 1;
/// Bytes of what can be said of TCP and UDP: destination port, source port.
pub const PORTS_LEN: usize = 2 + 2;

/// The flag of IPv4 that forbids fragments, as rules have it (`IB_IPV4_DONT_FRAG`).
pub const IP_DONT_FRAGMENT: u8 = 2;
/// The flag of IPv4 that says that more fragments follow (`IB_IPV4_MORE_FRAG`).
pub const IP_MORE_FRAGMENTS: u8 = 4;

/// Where the tag lies among [`ETHERNET_LEN`] bytes.
const TAG: usize = 14;
/// Where the flags lie among [`IPV4_LEN`] bytes.
const FLAGS: usize = 11;

/// Some header fields, in network order and without gaps, and which of their bits matter.
///
/// # Invariants
///
/// No bit is set in `value` that isn't in `mask`, so that equal ones mean the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match<const LEN: usize> {
    value: [u8; LEN],
    mask: [u8; LEN],
}

impl<const LEN: usize> Match<LEN> {
    /// The bits of `mask` must be those of `value`.
    pub fn new(mut value: [u8; LEN], mask: [u8; LEN]) -> Self {
        for (byte, bits) in value.iter_mut().zip(mask) {
            *byte &= bits;
        }
        Self { value, mask }
    }

    fn admits(&self, fields: &[u8; LEN]) -> bool {
        let wrong = fields
            .iter()
            .zip(self.value)
            .zip(self.mask)
            .fold(0, |wrong, ((field, value), mask)| {
                wrong | ((field ^ value) & mask)
            });
        wrong == 0
    }

    /// The bits that matter of the byte at `at`.
    fn mask_at(&self, at: usize) -> u8 {
        self.mask.get(at).copied().unwrap_or(0)
    }
}

/// What is said of one header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spec {
    /// The link layer.
    Ethernet(Match<ETHERNET_LEN>),
    /// It is IPv4.
    Ipv4(Match<IPV4_LEN>),
    /// It is IPv6.
    Ipv6(Match<IPV6_LEN>),
    /// It is TCP.
    Tcp(Match<PORTS_LEN>),
    /// It is UDP.
    Udp(Match<PORTS_LEN>),
}

/// What is said of all headers; of those that aren't mentioned, nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pattern {
    ethernet: Option<Match<ETHERNET_LEN>>,
    network: Option<NetworkMatch>,
    transport: Option<TransportMatch>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NetworkMatch {
    V4(Match<IPV4_LEN>),
    V6(Match<IPV6_LEN>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TransportMatch {
    Tcp(Match<PORTS_LEN>),
    Udp(Match<PORTS_LEN>),
}

impl Pattern {
    /// Says something of one more header.
    ///
    /// # Errors
    ///
    /// [`RuleFault::Invalid`] if something was said of that layer; [`RuleFault::Unsupported`] for flags
    /// of IPv4 other than the two.
    pub fn add(&mut self, spec: Spec) -> Result<(), RuleFault> {
        match spec {
            Spec::Ethernet(fields) => put(&mut self.ethernet, fields),
            Spec::Ipv4(fields) => {
                if fields.mask_at(FLAGS) & !(IP_DONT_FRAGMENT | IP_MORE_FRAGMENTS) != 0 {
                    return Err(RuleFault::Unsupported);
                }
                put(&mut self.network, NetworkMatch::V4(fields))
            }
            Spec::Ipv6(fields) => put(&mut self.network, NetworkMatch::V6(fields)),
            Spec::Tcp(fields) => put(&mut self.transport, TransportMatch::Tcp(fields)),
            Spec::Udp(fields) => put(&mut self.transport, TransportMatch::Udp(fields)),
        }
    }

    /// Whether all that is said is so of `frame`.
    pub(super) fn admits(&self, frame: &Frame) -> bool {
        self.ethernet.is_none_or(|fields| {
            // A rule about tags is one about tagged frames.
            let wants_tag = fields.mask_at(TAG) | fields.mask_at(TAG + 1) != 0;
            (frame.tagged || !wants_tag) && fields.admits(&frame.ethernet)
        }) && self
            .network
            .is_none_or(|fields| match (fields, &frame.network) {
                (NetworkMatch::V4(fields), Network::V4(header)) => fields.admits(header),
                (NetworkMatch::V6(fields), Network::V6(header)) => fields.admits(header),
                _ => false,
            })
            && self
                .transport
                .is_none_or(|fields| match (fields, &frame.transport) {
                    (TransportMatch::Tcp(fields), Transport::Tcp(ports)) => fields.admits(ports),
                    (TransportMatch::Udp(fields), Transport::Udp(ports)) => fields.admits(ports),
                    _ => false,
                })
    }
}

/// Fills a place that must be empty.
fn put<T>(place: &mut Option<T>, fields: T) -> Result<(), RuleFault> {
    match place.replace(fields) {
        None => Ok(()),
        Some(_) => Err(RuleFault::Invalid),
    }
}
