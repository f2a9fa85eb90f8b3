// SPDX-License-Identifier: GPL-2.0

//! A received packet.

use core::{mem::ManuallyDrop, ptr::NonNull, slice};

use kernel::prelude::*;

use roce::wire::DropReason;

use super::{
    crc32,
    ingress::{Arrival, Ingress},
    linear,
};
use crate::{
    bindings,
    device::gid::Gid,
    memory::copy::copy_bytes,
    verbs::mr::{Span, SpanFault},
};

pub(super) const IPV4_LEN: usize = 20;
pub(super) const IPV6_LEN: usize = 40;
pub(super) const UDP_LEN: usize = 8;

/// A received packet, from its BTH to its ICRC.
///
/// Dropping it says that it was made use of; see [`Self::discard`] for the other end.
///
/// # Invariants
///
/// The buffer is valid, owned by `self` alone and has no `frag_list`; its bytes, which others may share,
/// are only read. `data` is right behind a UDP header, which is linear, and so is the network header, which is set
/// and lies 20 (IPv4) or 40 (IPv6) bytes in front of that. `cb` holds a [`Control`].
pub struct RxSkb(NonNull<bindings::sk_buff>);

// SAFETY: A socket buffer belongs to its owner, not to a thread.
unsafe impl Send for RxSkb {}

/// What is noted in the buffer's control block while it is ours.
#[repr(C)]
struct Control {
    trusted: bool,
    arrival: Arrival,
    /// The QPN of the sender, of a packet that came without a network.
    sender: Option<u32>,
}

/// The control block of a buffer: 48 bytes, aligned as a double word (`struct sk_buff`, linux/skbuff.h).
const _: () = assert!(size_of::<Control>() <= 48 && align_of::<Control>() <= 8);

/// Where a packet says it comes from and goes to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Endpoints {
    /// Source address.
    pub source: Gid,
    /// Destination address.
    pub destination: Gid,
}

/// The header in front of the UDP header.
pub enum IpHeader<'a> {
    /// IPv4, without options.
    V4(&'a [u8; IPV4_LEN]),
    /// IPv6, without extension headers.
    V6(&'a [u8; IPV6_LEN]),
}

/// Why a packet is thrown away; shown by the kernel's drop monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discard {
    /// IP options, extension headers, fragments, bytes behind the datagram, or addresses that no packet has.
    IpHeader,
    /// It is no RoCE packet, for this reason.
    Malformed(DropReason),
    /// The ICRC is wrong.
    Checksum,
    /// There is no such QP, or it talks to somebody else.
    NoQueuePair,
    /// It is as of [`RxSkb::is_from_this_host`]. QPs of one host need no IP layer between them.
    Looped,
    /// The QP, its user, memory cgroup or namespace has too much waiting.
    Overflow,
}

impl Discard {
    /// How many there are.
    pub const COUNT: usize = 5 + DropReason::ALL.len();

    /// Its number among them.
    pub const fn index(self) -> usize {
        match self {
            Self::IpHeader => 0,
            Self::Checksum => 1,
            Self::NoQueuePair => 2,
            Self::Overflow => 3,
            Self::Looped => 4,
            Self::Malformed(reason) => 5 + reason as usize,
        }
    }

    fn reason(self) -> bindings::skb_drop_reason {
        match self {
            Self::IpHeader => bindings::skb_drop_reason_SKB_DROP_REASON_IP_INHDR,
            Self::Malformed(_) => bindings::skb_drop_reason_SKB_DROP_REASON_PKT_TOO_SMALL,
            Self::Checksum => bindings::skb_drop_reason_SKB_DROP_REASON_UDP_CSUM,
            Self::NoQueuePair => bindings::skb_drop_reason_SKB_DROP_REASON_NO_SOCKET,
            Self::Looped => bindings::skb_drop_reason_SKB_DROP_REASON_IP_LOCAL_SOURCE,
            Self::Overflow => bindings::skb_drop_reason_SKB_DROP_REASON_SOCKET_RCVBUFF,
        }
    }
}

/// Frees a buffer whose packet came to nothing.
///
/// # Safety
///
/// The caller owns `skb`, and gives it up.
unsafe fn discard(skb: NonNull<bindings::sk_buff>, why: Discard) {
    // SAFETY: The caller owns `skb`.
    unsafe { bindings::sk_skb_reason_drop(core::ptr::null(), skb.as_ptr(), why.reason()) };
}

impl RxSkb {
    /// Takes over what an encapsulation socket received; `data` is at the UDP header.
    ///
    /// # Errors
    ///
    /// [`Discard::IpHeader`]; the buffer is freed.
    ///
    /// # Safety
    ///
    /// `skb` must come from an `encap_rcv` callback, which gives it up.
    pub(crate) unsafe fn from_encap(skb: NonNull<bindings::sk_buff>) -> Result<Self, Discard> {
        // SAFETY: The caller gives up `skb`, which is valid.
        let Some(arrival) = (unsafe { strip(skb) }) else {
            // SAFETY: As above.
            unsafe { discard(skb, Discard::IpHeader) };
            return Err(Discard::IpHeader);
        };
        // SAFETY: As above, and the headers are stripped.
        let skb = unsafe { Self::new(skb, false, arrival, None) };
        if !skb.has_addresses() {
            skb.discard(Discard::IpHeader);
            return Err(Discard::IpHeader);
        }
        Ok(skb)
    }

    /// Whether the addresses are those of hosts and of the IP header's own version. The IPv6 layer also hands over packets
    /// of no source, and those with an IPv4-mapped one (`ip6_rcv_core()`, net/ipv6/ip6_input.c).
    fn has_addresses(&self) -> bool {
        match self.ip_header() {
            IpHeader::V4(_) => true,
            IpHeader::V6(_) => {
                let Endpoints {
                    source,
                    destination,
                } = self.endpoints();
                let is_v6 = source.ipv4().is_none() && destination.ipv4().is_none();
                is_v6 && source != Gid::default()
            }
        }
    }

    /// Takes over a buffer from a QP of this host that fulfils the invariants but for its control block.
    ///
    /// # Safety
    ///
    /// It must do so, and be given up by the caller.
    pub(super) unsafe fn from_local(skb: NonNull<bindings::sk_buff>, sender: u32) -> Self {
        // SAFETY: The caller's promise.
        unsafe { Self::new(skb, true, Arrival::default(), Some(sender)) }
    }

    /// Takes over a buffer that fulfils the invariants but for its control block.
    ///
    /// # Safety
    ///
    /// It must do so, and be given up by the caller.
    unsafe fn new(
        skb: NonNull<bindings::sk_buff>,
        trusted: bool,
        arrival: Arrival,
        sender: Option<u32>,
    ) -> Self {
        // INVARIANT: By the safety requirements; the control block follows.
        let skb = Self(skb);
        let control = Control {
            trusted,
            arrival,
            sender,
        };
        // SAFETY: The control block is the buffer owner's to use, and has the size and alignment of a `Control`.
        unsafe { skb.control().write(control) };
        skb
    }

    /// The place of the [`Control`]. A reference to it may exist only after [`Self::new`] has written it.
    fn control(&self) -> *mut Control {
        // SAFETY: The buffer is valid by the type invariant.
        unsafe { (&raw mut (*self.0.as_ptr()).cb).cast() }
    }

    /// Gives up ownership.
    pub(super) fn into_raw(self) -> NonNull<bindings::sk_buff> {
        ManuallyDrop::new(self).0
    }

    /// Takes back what [`Self::into_raw`] gave up.
    ///
    /// # Safety
    ///
    /// `skb` must come from there, once.
    pub(super) unsafe fn from_raw(skb: NonNull<bindings::sk_buff>) -> Self {
        // INVARIANT: They held when the buffer was given up.
        Self(skb)
    }

    /// Bytes from the BTH to the end of the ICRC.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        // SAFETY: Valid by the type invariant.
        unsafe { (*self.0.as_ptr()).len as usize }
    }

    /// The first `count` bytes, or all there are if they are fewer. `None` for want of memory.
    pub fn header(&mut self, count: usize) -> Option<&[u8]> {
        let count = count.min(self.len());
        let skb = self.0.as_ptr();
        // SAFETY: Valid and ours by the type invariant.
        if count > self.linear().len() && !unsafe { bindings::pskb_may_pull(skb, count as u32) } {
            return None;
        }
        // SAFETY: `pskb_may_pull` made `count` bytes linear; nobody writes linear data while we
        // own the buffer, and moving it takes `&mut self`.
        Some(unsafe { slice::from_raw_parts((*skb).data, count) })
    }

    /// As many bytes from the first on as lie in one piece.
    pub fn linear(&self) -> &[u8] {
        // SAFETY: Valid by the type invariant.
        unsafe { linear(self.0) }
    }

    /// The IP header.
    pub fn ip_header(&self) -> IpHeader<'_> {
        // SAFETY: Valid by the type invariant.
        let network = unsafe { bindings::skb_network_header(self.0.as_ptr()) };
        let transport = self.udp_header().as_ptr();
        if (transport as usize).wrapping_sub(network as usize) == IPV6_LEN {
            // SAFETY: The header is linear and of this length by the type invariant.
            IpHeader::V6(unsafe { &*network.cast() })
        } else {
            // SAFETY: Likewise.
            IpHeader::V4(unsafe { &*network.cast() })
        }
    }

    /// The UDP header.
    pub fn udp_header(&self) -> &[u8; UDP_LEN] {
        // SAFETY: Valid by the type invariant.
        let data = unsafe { (*self.0.as_ptr()).data };
        // SAFETY: `data` is behind the header by the type invariant, which is linear.
        unsafe { &*data.sub(UDP_LEN).cast() }
    }

    /// By which network devices it came in.
    pub fn ingress(&self) -> Ingress {
        self.arrival().ingress
    }

    /// The QPN of its sender, if a QP of this host sent it without a network.
    pub fn sender(&self) -> Option<u32> {
        // SAFETY: The control block holds a `Control` by the type invariant.
        unsafe { (*self.control()).sender }
    }

    /// Whether this host's IP layer sent it: it came by the loopback device, by a VRF itself, by the IP layer's own loop of
    /// multicast packets, or over IPv6 with a source address of this host. Another host may have sent the last of these: one
    /// that it made, or this host's own packet, also with other content. `false` if [`Self::sender`] is known.
    pub fn is_from_this_host(&self) -> bool {
        self.arrival().from_this_host
    }

    fn arrival(&self) -> Arrival {
        // SAFETY: The control block holds a `Control` by the type invariant.
        unsafe { (*self.control()).arrival }
    }

    /// Another buffer with the same packet, whose bytes they share. `None` for want of memory. Any
    /// context; doesn't sleep.
    pub fn try_clone(&self) -> Option<Self> {
        // SAFETY: Valid by the type invariant.
        let copy = unsafe { bindings::skb_clone(self.0.as_ptr(), bindings::GFP_ATOMIC) };
        // INVARIANT: The copy is ours alone, and has the headers and the control block of this one.
        NonNull::new(copy).map(Self)
    }

    /// Source and destination address.
    pub fn endpoints(&self) -> Endpoints {
        match self.ip_header() {
            IpHeader::V4(&[.., s0, s1, s2, s3, d0, d1, d2, d3]) => Endpoints {
                source: Gid::from_ipv4([s0, s1, s2, s3]),
                destination: Gid::from_ipv4([d0, d1, d2, d3]),
            },
            IpHeader::V6([_, _, _, _, _, _, _, _, addresses @ ..]) => {
                let (mut source, mut destination) = ([0; 16], [0; 16]);
                let (first, second) = addresses.split_at(source.len());
                source.copy_from_slice(first);
                destination.copy_from_slice(second);
                Endpoints {
                    source: Gid(source),
                    destination: Gid(destination),
                }
            }
        }
    }

    /// Goes on with a CRC-32 over `len` bytes from `offset` on, without inverting anything.
    ///
    /// `None` if they aren't all there or can't be read.
    pub fn crc32(&self, register: u32, offset: usize, len: usize) -> Option<u32> {
        // SAFETY: Valid, ours and without `frag_list` by the type invariant.
        unsafe { crc32(self.0, register, offset, len) }
    }

    /// Copies from `offset` on.
    ///
    /// # Errors
    ///
    /// `EFAULT` if there aren't as many bytes.
    pub fn copy_to_slice(&self, offset: usize, to: &mut [u8]) -> Result {
        // SAFETY: A slice is valid for writes of its length.
        unsafe { self.copy_to_raw(offset, to.as_mut_ptr(), to.len()) }
    }

    /// Copies from `offset` on until `span` is full.
    ///
    /// # Errors
    ///
    /// [`SpanFault::Range`] if there aren't as many bytes, [`SpanFault::ReadOnly`].
    pub fn copy_to_span(&self, offset: usize, span: &Span<'_>) -> Result<(), SpanFault> {
        let mut from = offset;
        span.for_each_writable_piece(|to, len| {
            // SAFETY: The piece is valid for writes of its length, and never referred to.
            unsafe { self.copy_to_raw(from, to.as_ptr(), len) }.map_err(|_| SpanFault::Range)?;
            from = from.saturating_add(len);
            Ok(())
        })
    }

    /// Copies `len` bytes from `offset` on to memory that may be shared with a process.
    ///
    /// # Errors
    ///
    /// `EFAULT` if there aren't as many bytes.
    ///
    /// # Safety
    ///
    /// `to` must be valid for writes of `len` bytes, and no reference to them may exist.
    pub(crate) unsafe fn copy_to_raw(&self, offset: usize, to: *mut u8, len: usize) -> Result {
        let mut to = to;
        let copy = |from: *const u8, count: usize| {
            // SAFETY: The run is valid for reads; the caller promises that the runs' target, which
            // add up to `len`, is valid for writes.
            unsafe { copy_bytes(to, from, count) };
            to = to.wrapping_add(count);
        };
        // SAFETY: By the type invariant the buffer is valid and has no `frag_list`.
        unsafe { super::for_each_run(self.0, offset, len, copy) }.ok_or(EFAULT)
    }

    /// Whether the ICRC needs no (further) check.
    pub fn is_trusted(&self) -> bool {
        // SAFETY: The control block holds a `Control` by the type invariant.
        unsafe { (*self.control()).trusted }
    }

    /// Notes that the ICRC was checked and is right.
    pub fn trust(&mut self) {
        // SAFETY: The control block holds a `Control` by the type invariant; `&mut self` excludes other users.
        unsafe { (*self.control()).trusted = true };
    }

    /// Frees the packet because it can't be used.
    pub fn discard(self, why: Discard) {
        // SAFETY: `into_raw` gave up the buffer.
        unsafe { discard(self.into_raw(), why) };
    }
}

impl Drop for RxSkb {
    fn drop(&mut self) {
        // SAFETY: Ours by the type invariant, and not used again.
        unsafe { bindings::consume_skb(self.0.as_ptr()) };
    }
}

/// Checks the IP header and takes the UDP header off; `None` if the packet is unfit, otherwise how it arrived.
///
/// # Safety
///
/// `skb` must come from an `encap_rcv` callback and be owned by the caller.
unsafe fn strip(buffer: NonNull<bindings::sk_buff>) -> Option<Arrival> {
    let skb = buffer.as_ptr();
    // SAFETY: `skb` is valid, and the IP and UDP layers have set and pulled both headers.
    let network = unsafe { bindings::skb_network_header(skb) };
    // SAFETY: Likewise; `data` is at the UDP header.
    let transport = unsafe { (*skb).data };
    // SAFETY: Likewise.
    let version = unsafe { *network } >> 4;
    let (expected, fragmented) = if version == 6 {
        // SAFETY: The control block still holds what the IPv6 layer wrote.
        let flags = unsafe { (*bindings::IP6CB(skb)).flags };
        (IPV6_LEN, flags & bindings::IP6SKB_FRAGMENTED as u16 != 0)
    } else {
        // SAFETY: The control block still holds what the IPv4 layer wrote.
        let largest_fragment = unsafe { (*bindings::IPCB(skb)).frag_max_size };
        (IPV4_LEN, largest_fragment != 0)
    };
    let ip_len = (transport as usize).wrapping_sub(network as usize);
    // RoCEv2 packets are not fragmented (IBTA annex A17), but the IP layer may fragment what IPsec protects.
    // SAFETY: `skb` is valid.
    let is_protected = || unsafe { bindings::secpath_exists(skb) } != 0;
    if ip_len != expected || (fragmented && !is_protected()) {
        return None;
    }
    // SAFETY: The IP header is linear and has `ip_len` bytes.
    let ip_claims = unsafe { claimed_payload(network, version) };
    // SAFETY: The UDP header is linear, for the UDP layer has pulled it.
    let udp_claims = unsafe { be16(transport.add(4)) };
    if ip_claims != Some(udp_claims) {
        return None;
    }
    // SAFETY: `skb` comes from such a callback; the IP header is linear and has `ip_len` bytes.
    let arrival = unsafe { Arrival::of(buffer, network, ip_len) };
    // A packet may wait for its QP for long. Its route may count for a network device, which could not go until then.
    // UDP drops the route only after this callback (`udp_queue_rcv_one_skb()`, net/ipv4/udp.c).
    // SAFETY: `skb` is valid and ours.
    unsafe { bindings::skb_dst_drop(skb) };
    // Its extensions count for states of IPsec.
    // SAFETY: As above.
    unsafe { bindings::skb_ext_reset(skb) };
    // SAFETY: `skb` is valid and ours; `data` is at the UDP header.
    if unsafe { bindings::skb_pull(skb, UDP_LEN as u32) }.is_null() {
        return None;
    }
    // SAFETY: `skb` is valid, so it has a shared info; without bytes beyond the linear ones there is no list.
    let chained =
        unsafe { (*skb).data_len != 0 && !(*bindings::skb_shinfo(skb)).frag_list.is_null() };
    // SAFETY: `skb` is valid and ours.
    if chained && unsafe { bindings::skb_linearize(skb) } != 0 {
        return None;
    }
    Some(arrival)
}

/// Bytes behind the IP header according to it.
///
/// # Safety
///
/// `network` must point to a whole IP header of this version.
unsafe fn claimed_payload(network: *const u8, version: u8) -> Option<u16> {
    if version == 6 {
        // SAFETY: The payload length is at 4.
        return Some(unsafe { be16(network.add(4)) });
    }
    // SAFETY: The total length is at 2.
    unsafe { be16(network.add(2)) }.checked_sub(IPV4_LEN as u16)
}

/// Reads a big-endian word.
///
/// # Safety
///
/// Two bytes must be readable at `at`.
unsafe fn be16(at: *const u8) -> u16 {
    // SAFETY: The caller promises so.
    u16::from_be_bytes(unsafe { at.cast::<[u8; 2]>().read() })
}
