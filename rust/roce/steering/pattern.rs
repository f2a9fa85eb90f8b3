// SPDX-License-Identifier: GPL-2.0

//! The pattern of a rule: the header fields that a frame must have (`struct ibv_flow_spec_*`).

use super::frame::{Frame, Network, Transport};
use super::RuleFault;

/// Number of bytes of the Ethernet fields: destination, source, ethertype after all tags, first
/// tag.
pub const ETHERNET_LEN: usize = 6 + 6 + 2 + 2;
/// Number of bytes of the IPv4 fields: source, destination, protocol, TOS, TTL, flags.
pub const IPV4_LEN: usize = 4 + 4 + 1 + 1 + 1 + 1;
/// Number of bytes of the IPv6 fields: source, destination, flow label, next header, traffic class,
/// hop limit.
pub const IPV6_LEN: usize = 16 + 16 + 4 + 1 + 1 + 1;
/// Number of bytes of the TCP and UDP fields: destination port, source port.
pub const PORTS_LEN: usize = 2 + 2;

/// The "don't fragment" flag of IPv4, as rules encode it (`IB_IPV4_DONT_FRAG`).
pub const IP_DONT_FRAGMENT: u8 = 2;
/// The "more fragments" flag of IPv4, as rules encode it (`IB_IPV4_MORE_FRAG`).
pub const IP_MORE_FRAGMENTS: u8 = 4;

/// Offset of the VLAN tag in the [`ETHERNET_LEN`] bytes.
const TAG: usize = 14;
/// Offset of the flags in the [`IPV4_LEN`] bytes.
const FLAGS: usize = 11;

/// Values and mask for some header fields, in network byte order and without gaps.
///
/// # Invariants
///
/// Each bit that is set in `value` is also set in `mask`, so that equal patterns compare as equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match<const LEN: usize> {
    value: [u8; LEN],
    mask: [u8; LEN],
}

impl<const LEN: usize> Match<LEN> {
    /// Creates a match: the bits of `mask` must have the values in `value`.
    pub fn new(mut value: [u8; LEN], mask: [u8; LEN]) -> Self {
        for (byte, bits) in value.iter_mut().zip(mask) {
            *byte &= bits;
        }
        Self { value, mask }
    }

    /// Returns whether the fields have the required values.
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

    /// Returns the mask of the byte at offset `at`.
    fn mask_at(&self, at: usize) -> u8 {
        self.mask.get(at).copied().unwrap_or(0)
    }
}

/// The condition for one header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spec {
    /// The Ethernet header has these fields.
    Ethernet(Match<ETHERNET_LEN>),
    /// The frame is IPv4 and has these fields.
    Ipv4(Match<IPV4_LEN>),
    /// The frame is IPv6 and has these fields.
    Ipv6(Match<IPV6_LEN>),
    /// The frame is TCP and has these ports.
    Tcp(Match<PORTS_LEN>),
    /// The frame is UDP and has these ports.
    Udp(Match<PORTS_LEN>),
}

/// The conditions for all headers. A header without a condition matches always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pattern {
    ethernet: Option<Match<ETHERNET_LEN>>,
    network: Option<NetworkMatch>,
    transport: Option<TransportMatch>,
}

/// The condition for the network header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NetworkMatch {
    V4(Match<IPV4_LEN>),
    V6(Match<IPV6_LEN>),
}

/// The condition for the transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TransportMatch {
    Tcp(Match<PORTS_LEN>),
    Udp(Match<PORTS_LEN>),
}

impl Pattern {
    /// Adds the condition for one header.
    ///
    /// # Errors
    ///
    /// Returns [`RuleFault::Invalid`] if there is a condition for that layer already. Returns
    /// [`RuleFault::Unsupported`] for IPv4 flags other than [`IP_DONT_FRAGMENT`] and
    /// [`IP_MORE_FRAGMENTS`].
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

    /// Returns whether `frame` fulfils all conditions.
    pub(super) fn admits(&self, frame: &Frame) -> bool {
        self.ethernet.is_none_or(|fields| {
            // A condition on the tag implies that the frame is tagged.
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

/// Stores `fields` in `place`, also if `place` has a value already.
///
/// # Errors
///
/// Returns [`RuleFault::Invalid`] if `place` had a value.
fn put<T>(place: &mut Option<T>, fields: T) -> Result<(), RuleFault> {
    match place.replace(fields) {
        None => Ok(()),
        Some(_) => Err(RuleFault::Invalid),
    }
}
