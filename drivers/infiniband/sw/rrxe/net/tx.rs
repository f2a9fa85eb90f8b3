// SPDX-License-Identifier: GPL-2.0

//! The send path: packets are built in socket buffers.

use kernel::prelude::*;
use rdma::{
    net::{
        netdev::Netdev,
        route::Route,
        skb::{self, Endpoints, Headers, RxSkb, TxBurst, TxPacket, TxPages, TxSkb},
    },
    support::crc32::crc32_le,
    verbs::mr::Span,
};
use roce::{
    ids::Qpn,
    mtu::Mtu,
    wire::{
        self,
        icrc::{self, IPV6_LEN, UDP_LEN},
        packet::{Packet, Service},
        Header, BTH_LEN, ICRC_LEN, UDP_PORT,
    },
};

use crate::net::{ip_header::IpHeader, path::Address, rx::burst_icrc};

/// Maximum number of bytes of pad and ICRC.
const TRAILER_MAX: usize = 3 + ICRC_LEN;

/// A packet to which payload is appended, in order.
pub(crate) trait Payload {
    /// Appends a copy of payload from registered memory.
    fn append(&mut self, span: &Span<'_>);

    /// Appends a copy of `bytes` as payload.
    fn copy(&mut self, bytes: &[u8]);
}

/// A packet under construction: first the headers, then the payload in order, then the trailer.
///
/// A packet is lost if its payload is shorter or longer than `payload_len` of the decoded headers
/// says. The protocol handles that as a loss in the network.
pub(crate) struct PacketBuilder<'a> {
    /// Header fields of the path.
    address: &'a Address,
    /// Route of the packet.
    route: &'a Route,
    /// Socket buffer with the transport headers and the payload so far.
    skb: TxSkb,
    /// Base transport header, for the ICRC.
    bth: [u8; BTH_LEN],
    /// Number of payload bytes that are still missing.
    missing: usize,
    /// Number of pad bytes behind the payload.
    pad: usize,
    /// The headers, if they stay decoded. The socket buffer has only payload then.
    decoded: Option<&'a Packet>,
}

impl<'a> PacketBuilder<'a> {
    /// Begins a packet. The headers of a packet to a connected QP of this host stay decoded, unless
    /// a sniffer looks at the packets of all network devices. Returns `None` if memory is short, or
    /// if the network device needs more headroom than a packet may have.
    ///
    /// # Context
    ///
    /// Bottom halves disabled.
    #[inline(always)]
    pub(crate) fn new(address: &'a Address, route: &'a Route, packet: &'a Packet) -> Option<Self> {
        let length = packet.payload_len as usize;
        let is_datagram = matches!(packet.service, Service::Ud(_));
        if route.is_local() && !is_datagram && !route.is_namespace_sniffed() {
            return Some(Self {
                address,
                route,
                skb: TxSkb::new_decoded(length)?,
                bth: [0; BTH_LEN],
                missing: length,
                pad: 0,
                decoded: Some(packet),
            });
        }
        let header = packet.encode();
        let room = header.len().saturating_add(length);
        let room = room.saturating_add(TRAILER_MAX);
        Self::with(address, route, packet, &header, room)
    }

    /// Begins a burst that `packet` describes, as [`Self::new`] begins a packet. The payload goes
    /// to memory of `pages`.
    pub(crate) fn new_burst(
        address: &'a Address,
        route: &'a Route,
        packet: &Packet,
        pages: &TxPages,
    ) -> Option<Self> {
        let header = packet.encode();
        let mut this = Self::with(address, route, packet, &header, header.len())?;
        let paged = this.missing.saturating_add(this.pad);
        let paged = paged.saturating_add(ICRC_LEN);
        this.skb.add_pages(paged, pages).ok()?;
        Some(this)
    }

    /// Begins a packet with `room` linear bytes.
    #[inline(always)]
    fn with(
        address: &'a Address,
        route: &'a Route,
        packet: &Packet,
        header: &Header,
        room: usize,
    ) -> Option<Self> {
        Some(Self {
            address,
            route,
            skb: allocate(route, header, room)?,
            bth: *header.first_chunk()?,
            missing: packet.payload_len as usize,
            pad: wire::pad(packet.payload_len) as usize,
            decoded: None,
        })
    }

    /// Returns the source and the destination address.
    pub(crate) fn endpoints(&self) -> Endpoints {
        Endpoints {
            source: self.address.source,
            destination: self.address.destination,
        }
    }

    /// Returns whether the destination is on this host. Such a packet is completed by
    /// [`Self::into_local`].
    pub(crate) fn is_local(&self) -> bool {
        self.route.is_local()
    }

    /// Returns the index of the network device through which the packet leaves.
    pub(crate) fn exit(&self) -> u32 {
        self.route.exit()
    }

    /// Returns a copy of the packet as far as it is built. Returns `None` if memory is short.
    pub(crate) fn try_copy(&self) -> Option<Self> {
        Some(Self {
            skb: self.skb.try_copy()?,
            ..*self
        })
    }

    /// Returns the payload. The caller has appended `length` bytes of it.
    pub(crate) fn payload(&self, length: u32) -> &[u8] {
        let bytes = self.skb.bytes();
        let from = bytes.len().saturating_sub(length as usize);
        bytes.get(from..).unwrap_or_default()
    }

    /// Counts `len` appended bytes of payload, or marks the packet as lost.
    fn account(&mut self, appended: Result, len: usize) {
        self.missing = match appended {
            Ok(()) => self.missing.wrapping_sub(len),
            // The packet can never become complete.
            Err(_) => usize::MAX,
        };
    }

    /// Completes a packet that passes through the network stack.
    ///
    /// # Errors
    ///
    /// Any error means that the packet is lost.
    #[inline(never)]
    pub(crate) fn into_packet(mut self) -> Result<TxPacket> {
        self.skb.set_priority(self.address.priority);
        self.finish(Self::icrc)
    }

    /// Works as [`Self::into_packet`] for a burst of `count` packets with `mtu` bytes of payload.
    /// The ICRC covers the payload if `covers_payload` is set.
    pub(crate) fn into_burst(
        mut self,
        count: u16,
        mtu: Mtu,
        covers_payload: bool,
    ) -> Result<TxBurst> {
        let longest = UDP_LEN
            .saturating_add(self.skb.bytes().len())
            .saturating_add(mtu.bytes() as usize)
            .saturating_add(ICRC_LEN);
        self.skb.set_priority(self.address.priority);
        let packet = self.finish(|this, ip, udp| {
            let headers = this.skb.bytes();
            burst_icrc(this.start_icrc(ip, udp)?, count, covers_payload, |icrc| {
                let icrc = this.skb.crc32(icrc, headers.len())?;
                Some(crc32_le(icrc, [0; 3].get(..this.pad)?))
            })
        })?;
        let longest = u16::try_from(longest).map_err(|_| EINVAL)?;
        Ok(TxBurst::new(packet, count, longest))
    }

    /// Returns whether sniffers of all network devices are to see the packet
    /// ([`Self::into_shown`]), which goes to a QP of this host.
    pub(crate) fn is_sniffed(&self) -> bool {
        self.decoded.is_none() && self.route.is_namespace_sniffed()
    }

    /// Works as [`Self::into_local`], and shows the packet with its ICRC to sniffers, as one that
    /// `netdev` sends. The headers must not be decoded.
    pub(crate) fn into_shown(self, sender: Qpn, netdev: &Netdev) -> Option<RxSkb> {
        let packet = self.finish(Self::icrc).ok()?;
        packet.show_to_sniffers(netdev);
        packet.into_rx(sender.get()).ok()
    }

    /// Turns the packet into one that was received from the QP `sender` of this host. The bytes of
    /// its ICRC are zero. Returns `None` if the packet is lost.
    pub(crate) fn into_local(self, sender: Qpn) -> Option<RxSkb> {
        if let Some(packet) = self.decoded {
            let headers = Headers {
                packet: *packet,
                endpoints: self.endpoints(),
            };
            return match self.missing {
                0 => self.skb.into_decoded(&headers, sender.get()).ok(),
                _ => None,
            };
        }
        let packet = self.finish(|_, _, _| Some([0; ICRC_LEN])).ok()?;
        packet.into_rx(sender.get()).ok()
    }

    /// Works as [`Self::into_local`] for a train, whose payload's description is the payload of the
    /// buffer.
    pub(crate) fn into_train(self, sender: Qpn) -> Option<RxSkb> {
        let mut skb = self.into_local(sender)?;
        skb.set_train();
        Some(skb)
    }

    /// Adds IP header, UDP header, pad and ICRC.
    fn finish(
        mut self,
        icrc: impl FnOnce(&Self, &IpHeader, &[u8; UDP_LEN]) -> Option<Icrc>,
    ) -> Result<TxPacket> {
        if self.missing != 0 {
            return Err(ENOMEM);
        }
        let tail = self.pad.saturating_add(ICRC_LEN);
        let length = self.skb.len().saturating_add(tail).saturating_add(UDP_LEN);
        let length = u16::try_from(length).map_err(|_| EINVAL)?;
        let udp = self.address.udp_header(length);
        let mut ip = self.address.header.with_length(length);
        if self.route.is_protected() {
            ip = ip.fragmentable(self.route);
        }

        let mut trailer = [0; TRAILER_MAX];
        let icrc = icrc(&self, &ip, &udp).ok_or(EFAULT)?;
        let place = trailer.get_mut(self.pad..).ok_or(EINVAL)?;
        *place.first_chunk_mut().ok_or(EINVAL)? = icrc;
        self.skb.put(trailer.get(..tail).ok_or(EINVAL)?)?;
        let ip = match &ip {
            IpHeader::V4(ip) => skb::IpHeader::V4(ip),
            IpHeader::V6(ip) => skb::IpHeader::V6(ip),
        };
        self.skb.into_packet(ip, &udp)
    }

    /// Returns the ICRC of the packet, which still lacks its trailer. The ICRC covers the pad.
    fn icrc(&self, ip: &IpHeader, udp: &[u8; UDP_LEN]) -> Option<Icrc> {
        let mut icrc = self.start_icrc(ip, udp)?;
        icrc.update(crc32_le, [0; 3].get(..self.pad)?);
        Some(icrc.finish())
    }

    /// Starts the ICRC of the packet with all linear bytes.
    #[inline(always)]
    fn start_icrc(&self, ip: &IpHeader, udp: &[u8; UDP_LEN]) -> Option<icrc::Icrc> {
        let next = self.skb.bytes().get(BTH_LEN..)?;
        Some(match ip {
            IpHeader::V4(ip) => icrc::Icrc::start_v4(crc32_le, ip, udp, &self.bth, next),
            IpHeader::V6(ip) => icrc::Icrc::start_v6(crc32_le, ip, udp, &self.bth, next),
        })
    }
}

/// Allocates a buffer with `room` linear bytes, and puts the transport headers into it.
fn allocate(route: &Route, header: &Header, room: usize) -> Option<TxSkb> {
    let headroom = route
        .link_headroom()?
        .saturating_add(IPV6_LEN)
        .saturating_add(UDP_LEN);
    let mut skb = match route.is_local() {
        true => TxSkb::new_local(headroom, room)?,
        false => TxSkb::new(headroom, room)?,
    };
    skb.put(header).ok()?;
    Some(skb)
}

impl Payload for PacketBuilder<'_> {
    fn append(&mut self, span: &Span<'_>) {
        let appended = self.skb.put_span(span);
        self.account(appended, span.len());
    }

    fn copy(&mut self, bytes: &[u8]) {
        let appended = self.skb.put(bytes);
        self.account(appended, bytes.len());
    }
}

/// Bytes of an ICRC.
type Icrc = [u8; ICRC_LEN];

impl Address {
    /// Returns the header of a datagram of `length` bytes, which include the UDP header. The UDP
    /// checksum is zero, since RoCEv2 has the ICRC.
    fn udp_header(&self, length: u16) -> [u8; UDP_LEN] {
        let [s0, s1] = self.source_port.to_be_bytes();
        let [d0, d1] = UDP_PORT.to_be_bytes();
        let [l0, l1] = length.to_be_bytes();
        [s0, s1, d0, d1, l0, l1, 0, 0]
    }
}
