// SPDX-License-Identifier: GPL-2.0

//! Received RoCEv2 packets.

use core::{mem::ManuallyDrop, ptr::NonNull, slice};

use kernel::prelude::*;

use roce::wire::DropReason;

use super::{
    burst::burst_count,
    crc32,
    headers::Headers,
    ingress::{Ingress, Origin},
    linear, recycle,
};
use crate::{
    bindings,
    device::gid::{Gid, Network},
    memory::copy::copy_bytes,
    verbs::mr::{Span, SpanError},
};

/// Length of an IPv4 header without options, in bytes.
pub(super) const IPV4_LEN: usize = 20;
/// Length of an IPv6 header, in bytes.
pub(super) const IPV6_LEN: usize = 40;
/// Length of a UDP header, in bytes.
pub(super) const UDP_LEN: usize = 8;

/// Returns the length of an IP header without options or extension headers, in bytes.
pub(super) fn ip_len(network: Network) -> usize {
    match network {
        Network::V4 => IPV4_LEN,
        Network::V6 => IPV6_LEN,
    }
}

/// A received packet, from its BTH to its ICRC. If its headers are decoded ([`Headers`]), only its
/// payload.
///
/// Dropping it frees the buffer as consumed (`consume_skb()`). [`Self::discard`] frees the buffer
/// as dropped.
///
/// # Invariants
///
/// The buffer is valid, `self` alone owns it, and it has no `frag_list`. Its bytes may be shared
/// with other buffers, and are only read. `cb` holds a [`Control`]. If that says that the headers
/// are decoded, [`Headers`] lie right in front of `data`. Else `data` is right behind a UDP header.
/// The network header is set then, and lies 20 bytes (IPv4) or 40 bytes (IPv6) before the UDP
/// header. Both headers are linear.
pub struct RxSkb(NonNull<bindings::sk_buff>);

// SAFETY: A socket buffer is not bound to a thread.
unsafe impl Send for RxSkb {}

/// The contents of the buffer's control block (`sk_buff.cb`) while an [`RxSkb`] owns the buffer.
#[repr(C)]
struct Control {
    /// Whether the ICRC needs no check.
    trusted: bool,
    /// Whether the headers are decoded.
    decoded: bool,
    /// The way by which the packet reached the socket. Empty if a QP of this host sent it without a
    /// network.
    origin: Origin,
    /// QPN of the sender, if a QP of this host sent the packet without a network.
    sender: Option<u32>,
    /// Contents of the buffer.
    contents: Contents,
    /// Number of packets of the train or burst that the QP has already received.
    received: u32,
}

/// Contents of a packet's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// A packet.
    Packet,
    /// A train of a QP of this host. The buffer has a description of the payload in place of the
    /// payload.
    Train,
    /// A burst of this number of packets.
    Burst(u16),
}

/// The control block of a buffer has 48 bytes, and the alignment of a double word
/// (`struct sk_buff`, include/linux/skbuff.h).
const _: () = assert!(size_of::<Control>() <= 48 && align_of::<Control>() <= 8);

/// Source and destination address in a packet's IP header.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Endpoints {
    /// Source address.
    pub source: Gid,
    /// Destination address.
    pub destination: Gid,
}

/// The IP header in front of the UDP header.
pub enum IpHeader<'a> {
    /// IPv4 header without options.
    V4(&'a [u8; IPV4_LEN]),
    /// IPv6 header without extension headers.
    V6(&'a [u8; IPV6_LEN]),
}

/// Reason for which a packet is dropped. The kernel's drop monitor shows the `SKB_DROP_REASON_*`
/// that is nearest to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discard {
    /// The packet has IP options, extension headers, a wrong length, no source address, or an IPv6
    /// header with IPv4-mapped addresses; it was fragmented without IPsec; or memory is short.
    IpHeader,
    /// The packet is not a valid RoCE packet, for this reason.
    Malformed(DropReason),
    /// The ICRC is wrong.
    Checksum,
    /// The destination QP does not exist, or has another peer.
    NoQueuePair,
    /// This host sent the packet through its IP layer ([`RxSkb::is_from_this_host`]). QPs of one
    /// network namespace need no IP layer between them.
    Looped,
    /// The packets that wait for the QP, or for all QPs of its user, of its memory cgroup or of its
    /// network namespace, have reached a limit.
    Overflow,
}

impl Discard {
    /// Number of reasons.
    pub const COUNT: usize = 5 + DropReason::ALL.len();

    /// Returns the number of the reason, less than [`Self::COUNT`].
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

    /// Returns the kernel's reason (`SKB_DROP_REASON_*`) that is nearest to this one.
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

/// Frees the buffer of a packet that is dropped (`sk_skb_reason_drop()`).
///
/// # Safety
///
/// The caller must own `skb`, which it gives up.
unsafe fn discard(skb: NonNull<bindings::sk_buff>, why: Discard) {
    // SAFETY: The caller guarantees that it owns `skb`, and gives it up (see `# Safety`).
    unsafe { bindings::sk_skb_reason_drop(core::ptr::null(), skb.as_ptr(), why.reason()) };
}

impl RxSkb {
    /// Takes over the buffer that an encapsulation socket received. Its `data` is at the UDP
    /// header.
    ///
    /// # Errors
    ///
    /// Returns [`Discard::IpHeader`] if the IP header of a packet is not acceptable, or if there is
    /// no memory. The buffer is freed then.
    ///
    /// # Safety
    ///
    /// `skb` must come from an `encap_rcv` callback, which gives it up.
    pub(crate) unsafe fn from_encap(skb: NonNull<bindings::sk_buff>) -> Result<Self, Discard> {
        // SAFETY: The caller guarantees that `skb` comes from an `encap_rcv` callback, and gives it
        // up (see `# Safety`).
        let Some((origin, contents)) = (unsafe { strip(skb) }) else {
            // SAFETY: The caller gives the buffer up (see `# Safety`), and it is not used again.
            unsafe { discard(skb, Discard::IpHeader) };
            return Err(Discard::IpHeader);
        };
        // SAFETY: The caller gives the buffer up (see `# Safety`). `strip` established the
        // invariants except the control block.
        let skb = unsafe { Self::new(skb, false, false, origin, None, contents) };
        if !skb.has_addresses() {
            skb.discard(Discard::IpHeader);
            return Err(Discard::IpHeader);
        }
        Ok(skb)
    }

    /// Returns `false` if the header has no source address (0.0.0.0/8 or `::`), or if an IPv6
    /// header has an IPv4-mapped address.
    ///
    /// The IPv4 layer passes packets without a source address to 224.0.0.0/24
    /// (`ip_mc_validate_source()`, net/ipv4/route.c). The IPv6 layer also passes packets without a
    /// source address, and packets with an IPv4-mapped one (`ip6_rcv_core()`,
    /// net/ipv6/ip6_input.c).
    fn has_addresses(&self) -> bool {
        match self.ip_header() {
            Some(IpHeader::V4(&[.., source, _, _, _, _, _, _, _])) => source != 0,
            _ => {
                let Endpoints {
                    source,
                    destination,
                } = self.endpoints();
                let is_v6 = source.ipv4().is_none() && destination.ipv4().is_none();
                is_v6 && source != Gid::default()
            }
        }
    }

    /// Takes over the buffer of a packet from QP `sender` of this host. `decoded` says whether the
    /// headers are decoded.
    ///
    /// # Safety
    ///
    /// The buffer must be as the type's invariants say, except its control block. The caller gives
    /// it up.
    pub(super) unsafe fn from_local(
        skb: NonNull<bindings::sk_buff>,
        sender: u32,
        decoded: bool,
    ) -> Self {
        let (origin, contents) = (Origin::default(), Contents::Packet);
        // SAFETY: The caller guarantees that the buffer is as the invariants say, and gives it up
        // (see `# Safety`).
        unsafe { Self::new(skb, true, decoded, origin, Some(sender), contents) }
    }

    /// Takes over a buffer and initialises its control block.
    ///
    /// # Safety
    ///
    /// The buffer must be as the type's invariants say, except its control block. The caller gives
    /// it up.
    unsafe fn new(
        skb: NonNull<bindings::sk_buff>,
        trusted: bool,
        decoded: bool,
        origin: Origin,
        sender: Option<u32>,
        contents: Contents,
    ) -> Self {
        // INVARIANT: The caller guarantees the invariants except that of the control block (see
        // `# Safety`), which is written below.
        let skb = Self(skb);
        let control = Control {
            trusted,
            decoded,
            origin,
            sender,
            contents,
            received: 0,
        };
        // SAFETY: The owner of a buffer may use its control block, which has the size and alignment
        // of a `Control`.
        unsafe { skb.control().write(control) };
        skb
    }

    /// Returns the address of the [`Control`]. A reference to it may exist only after [`Self::new`]
    /// has written it.
    fn control(&self) -> *mut Control {
        // SAFETY: The buffer is valid by the type invariant.
        unsafe { (&raw mut (*self.0.as_ptr()).cb).cast() }
    }

    /// Gives up the ownership of the buffer.
    pub(super) fn into_raw(self) -> NonNull<bindings::sk_buff> {
        ManuallyDrop::new(self).0
    }

    /// Takes over the buffer of a packet.
    ///
    /// # Safety
    ///
    /// `skb` must come from [`Self::into_raw`], or be a linear copy of a packet's buffer with its
    /// headers and its control block. The caller owns it, and gives it up.
    pub(super) unsafe fn from_raw(skb: NonNull<bindings::sk_buff>) -> Self {
        // INVARIANT: The invariants held when `into_raw` gave the buffer up. They hold for a copy,
        // too, which has no `frag_list`.
        Self(skb)
    }

    /// Returns the headers, if they are decoded.
    #[inline]
    pub fn decoded(&self) -> Option<Headers> {
        // SAFETY: If the headers are decoded, they lie in front of the data by the type invariant.
        self.is_decoded().then(|| unsafe { Headers::read(self.0) })
    }

    /// Returns whether the headers are decoded.
    #[inline]
    fn is_decoded(&self) -> bool {
        // SAFETY: The control block holds a `Control` by the type invariant.
        unsafe { (*self.control()).decoded }
    }

    /// Returns the number of bytes from the BTH to the end of the ICRC. If the headers are decoded,
    /// returns the number of bytes of payload.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        // SAFETY: The buffer is valid by the type invariant.
        unsafe { (*self.0.as_ptr()).len as usize }
    }

    /// Returns the first `count` bytes, or all bytes if there are fewer. Makes them linear first if
    /// they are not; returns `None` if there is no memory for that.
    #[inline]
    pub fn header(&mut self, count: usize) -> Option<&[u8]> {
        let count = count.min(self.len());
        let skb = self.0.as_ptr();
        // SAFETY: By the type invariant `self` owns the valid buffer.
        if count > self.linear().len() && !unsafe { bindings::pskb_may_pull(skb, count as u32) } {
            return None;
        }
        // SAFETY: `count` bytes from `data` on are linear. No code writes linear data while `self`
        // owns the buffer, and moving it takes `&mut self`.
        Some(unsafe { slice::from_raw_parts((*skb).data, count) })
    }

    /// Returns the linear part of the packet, which begins with its first byte.
    #[inline]
    pub fn linear(&self) -> &[u8] {
        // SAFETY: The buffer is valid by the type invariant. Its linear part is only read, and
        // moving it takes `&mut self`.
        unsafe { linear(self.0) }
    }

    /// Returns the IP header, unless the headers are decoded.
    #[inline]
    pub fn ip_header(&self) -> Option<IpHeader<'_>> {
        let transport = self.udp_header()?.as_ptr();
        // SAFETY: The buffer is valid by the type invariant.
        let network = unsafe { bindings::skb_network_header(self.0.as_ptr()) };
        if (transport as usize).wrapping_sub(network as usize) == IPV6_LEN {
            // SAFETY: By the type invariant the header is linear, and has 40 bytes.
            Some(IpHeader::V6(unsafe { &*network.cast() }))
        } else {
            // SAFETY: By the type invariant the header is linear. It has 20 bytes if it does not
            // have 40.
            Some(IpHeader::V4(unsafe { &*network.cast() }))
        }
    }

    /// Returns the UDP header, unless the headers are decoded.
    #[inline]
    pub fn udp_header(&self) -> Option<&[u8; UDP_LEN]> {
        if self.is_decoded() {
            return None;
        }
        // SAFETY: The buffer is valid by the type invariant.
        let data = unsafe { (*self.0.as_ptr()).data };
        // SAFETY: By the type invariant `data` is right behind the UDP header, which is linear.
        Some(unsafe { &*data.sub(UDP_LEN).cast() })
    }

    /// Returns the network devices by which the packet came in.
    pub fn ingress(&self) -> Ingress {
        self.origin().ingress
    }

    /// Returns the QPN of the sender if a QP of this host sent the packet without a network.
    pub fn sender(&self) -> Option<u32> {
        // SAFETY: The control block holds a `Control` by the type invariant.
        unsafe { (*self.control()).sender }
    }

    /// Returns the contents of the buffer.
    pub fn contents(&self) -> Contents {
        // SAFETY: The control block holds a `Control` by the type invariant.
        unsafe { (*self.control()).contents }
    }

    /// Marks the buffer of a packet as one that holds a train.
    pub fn set_train(&mut self) {
        // SAFETY: The control block holds a `Control` by the type invariant. `self` owns the
        // buffer.
        unsafe { (*self.control()).contents = Contents::Train };
    }

    /// Returns how many packets of the train or burst the QP has already received.
    pub fn received(&self) -> u32 {
        // SAFETY: The control block holds a `Control` by the type invariant.
        unsafe { (*self.control()).received }
    }

    /// Records how many packets of the train or burst the QP has received.
    pub fn set_received(&mut self, count: u32) {
        // SAFETY: The control block holds a `Control` by the type invariant. `self` owns the
        // buffer.
        unsafe { (*self.control()).received = count };
    }

    /// Returns whether this host's IP layer sent the packet.
    ///
    /// This is so if the packet came by the loopback device, by a VRF itself, by the IP layer's
    /// loop of multicast and broadcast packets, or over IPv6 with a source address of this host. In
    /// the last case another host may have sent it: a packet of its own, or one of this host,
    /// possibly with other contents. Returns `false` if [`Self::sender`] returns a QPN.
    pub fn is_from_this_host(&self) -> bool {
        self.origin().from_this_host
    }

    /// Returns how the packet arrived.
    fn origin(&self) -> Origin {
        // SAFETY: The control block holds a `Control` by the type invariant.
        unsafe { (*self.control()).origin }
    }

    /// Clones the buffer: the clone shares the packet's bytes. Returns `None` if there is no
    /// memory. Callable in any context; does not sleep.
    pub fn try_clone(&self) -> Option<Self> {
        // SAFETY: The buffer is valid by the type invariant.
        let copy = unsafe { bindings::skb_clone(self.0.as_ptr(), bindings::GFP_ATOMIC) };
        // INVARIANT: The result alone owns the clone, which has the headers and the control block
        // of this buffer.
        NonNull::new(copy).map(Self)
    }

    /// Returns the source and the destination address.
    pub fn endpoints(&self) -> Endpoints {
        match self.ip_header() {
            Some(IpHeader::V4(&[.., s0, s1, s2, s3, d0, d1, d2, d3])) => Endpoints {
                source: Gid::from_ipv4([s0, s1, s2, s3]),
                destination: Gid::from_ipv4([d0, d1, d2, d3]),
            },
            Some(IpHeader::V6([_, _, _, _, _, _, _, _, addresses @ ..])) => {
                let (mut source, mut destination) = ([0; 16], [0; 16]);
                let (first, second) = addresses.split_at(source.len());
                source.copy_from_slice(first);
                destination.copy_from_slice(second);
                Endpoints {
                    source: Gid(source),
                    destination: Gid(destination),
                }
            }
            // SAFETY: There is no IP header, so the headers are decoded. They lie in front of the
            // data then, by the type invariant.
            None => unsafe { Headers::read(self.0) }.endpoints,
        }
    }

    /// Continues a CRC-32 over `len` bytes from `offset` on. Neither `register` nor the result is
    /// inverted.
    ///
    /// Returns `None` if the packet has fewer bytes, or if the CPU cannot read them.
    #[inline]
    pub fn crc32(&self, register: u32, offset: usize, len: usize) -> Option<u32> {
        // SAFETY: By the type invariant `self` owns the valid buffer, which has no `frag_list`.
        unsafe { crc32(self.0, register, offset, len) }
    }

    /// Copies bytes from `offset` on to `to`.
    ///
    /// # Errors
    ///
    /// Returns `EFAULT` if the packet has fewer bytes.
    pub fn copy_to_slice(&self, offset: usize, to: &mut [u8]) -> Result {
        // SAFETY: The slice is valid for writes of its length, and exclusively borrowed.
        unsafe { self.copy_to_raw(offset, to.as_mut_ptr(), to.len()) }
    }

    /// Copies bytes from `offset` on into `span` until that is full.
    ///
    /// # Errors
    ///
    /// Returns [`SpanError::Range`] if the packet has fewer bytes; [`SpanError::ReadOnly`] if the
    /// span is not writable.
    pub fn copy_to_span(&self, offset: usize, span: &Span<'_>) -> Result<(), SpanError> {
        let mut from = offset;
        span.for_each_writable_piece(|to, len| {
            // SAFETY: The piece is valid for writes of its length, and no reference to it exists.
            unsafe { self.copy_to_raw(from, to.as_ptr(), len) }.map_err(|_| SpanError::Range)?;
            from = from.saturating_add(len);
            Ok(())
        })
    }

    /// Copies `len` bytes from `offset` on to memory that a process may access concurrently.
    ///
    /// # Errors
    ///
    /// Returns `EFAULT` if the packet has fewer bytes.
    ///
    /// # Safety
    ///
    /// `to` must be valid for writes of `len` bytes. No reference to them may exist.
    pub(crate) unsafe fn copy_to_raw(&self, offset: usize, to: *mut u8, len: usize) -> Result {
        let mut to = to;
        let copy = |from: *const u8, count: usize| {
            // SAFETY: The run is valid for reads. The runs add up to `len` bytes, and the caller
            // guarantees that `to` is valid for writes of as many (see `# Safety`).
            unsafe { copy_bytes(to, from, count) };
            to = to.wrapping_add(count);
        };
        // SAFETY: By the type invariant `self` owns the valid buffer, which has no `frag_list`.
        unsafe { super::for_each_run(self.0, offset, len, copy) }.ok_or(EFAULT)
    }

    /// Returns whether the ICRC needs no check: it was checked, or a QP of this host sent the
    /// packet without a network.
    pub fn is_trusted(&self) -> bool {
        // SAFETY: The control block holds a `Control` by the type invariant.
        unsafe { (*self.control()).trusted }
    }

    /// Records that the ICRC needs no check any more.
    pub fn trust(&mut self) {
        // SAFETY: The control block holds a `Control` by the type invariant. `&mut self` excludes
        // other users.
        unsafe { (*self.control()).trusted = true };
    }

    /// Frees the buffer as dropped, for the reason `why`.
    pub fn discard(self, why: Discard) {
        // SAFETY: `into_raw` gave the buffer up to this function.
        unsafe { discard(self.into_raw(), why) };
    }
}

impl Drop for RxSkb {
    fn drop(&mut self) {
        if self.sender().is_some() {
            // SAFETY: By the type invariant `self` owns the buffer, which is not used again. It
            // has a sender, so it comes from `from_local`, or is a clone or a copy of such a
            // buffer. None of them was passed to the IP layer.
            return unsafe { recycle::free(self.0) };
        }
        // SAFETY: By the type invariant `self` owns the buffer, which is not used again.
        unsafe { bindings::consume_skb(self.0.as_ptr()) };
    }
}

/// Checks the IP header and pulls the UDP header. Returns how the packet arrived, and the contents
/// of the buffer. Returns `None` if the packet is not acceptable or there is no memory.
///
/// # Safety
///
/// `buffer` must come from an `encap_rcv` callback that has not returned, and the caller must own
/// it.
unsafe fn strip(buffer: NonNull<bindings::sk_buff>) -> Option<(Origin, Contents)> {
    let skb = buffer.as_ptr();
    // SAFETY: The caller guarantees that `skb` comes from an `encap_rcv` callback (see `# Safety`),
    // and the IP and UDP layers have set both headers and made them linear.
    let network = unsafe { bindings::skb_network_header(skb) };
    // SAFETY: The caller guarantees that `skb` is valid (see `# Safety`). `data` is at the UDP
    // header.
    let transport = unsafe { (*skb).data };
    // SAFETY: `network` points to the IP header, which is linear.
    let version = unsafe { *network } >> 4;
    let (expected, fragmented) = if version == 6 {
        // SAFETY: The control block still has the contents that the IPv6 layer wrote.
        let flags = unsafe { (*bindings::IP6CB(skb)).flags };
        (IPV6_LEN, flags & bindings::IP6SKB_FRAGMENTED as u16 != 0)
    } else {
        // SAFETY: The control block still has the contents that the IPv4 layer wrote.
        let largest_fragment = unsafe { (*bindings::IPCB(skb)).frag_max_size };
        (IPV4_LEN, largest_fragment != 0)
    };
    let ip_len = (transport as usize).wrapping_sub(network as usize);
    // RoCEv2 packets are not fragmented (IBTA annex A17). But the IP layer may fragment packets
    // that IPsec protects.
    // SAFETY: The caller guarantees that `skb` is valid (see `# Safety`).
    let is_protected = || unsafe { bindings::secpath_exists(skb) } != 0;
    if ip_len != expected || (fragmented && !is_protected()) {
        return None;
    }
    // SAFETY: The IP header is linear and has `ip_len` bytes, as its version demands.
    let ip_claims = unsafe { claimed_payload(network, version) };
    // SAFETY: The UDP layer has made its header linear.
    let udp_claims = unsafe { be16(transport.add(4)) };
    if ip_claims != Some(udp_claims) {
        return None;
    }
    // SAFETY: The caller guarantees that `skb` comes from a running `encap_rcv` callback (see
    // `# Safety`). The IP header is linear and has `ip_len` bytes.
    let origin = unsafe { Origin::of(buffer, network, ip_len) };
    // A packet may wait for its QP for long. Its route may hold a reference to a network device,
    // which could not be unregistered until then. UDP drops the route only after this callback
    // (`udp_queue_rcv_one_skb()`, net/ipv4/udp.c).
    // SAFETY: The caller guarantees that it owns the valid `skb` (see `# Safety`).
    unsafe { bindings::skb_dst_drop(skb) };
    // The buffer's extensions hold references to states of IPsec.
    // SAFETY: The caller guarantees that it owns the valid `skb` (see `# Safety`).
    unsafe { bindings::skb_ext_reset(skb) };
    // SAFETY: The caller guarantees that it owns the valid `skb` (see `# Safety`), whose `data` is
    // at the UDP header.
    if unsafe { bindings::skb_pull(skb, UDP_LEN as u32) }.is_null() {
        return None;
    }
    // SAFETY: The caller guarantees that it owns the valid `skb` (see `# Safety`).
    if let Some(count) = unsafe { burst_count(buffer) } {
        return Some((origin, Contents::Burst(count)));
    }
    // SAFETY: `skb` is valid, so it has a shared info. A buffer without bytes beyond the linear
    // ones has no `frag_list`.
    let chained =
        unsafe { (*skb).data_len != 0 && !(*bindings::skb_shinfo(skb)).frag_list.is_null() };
    // SAFETY: The caller guarantees that it owns the valid `skb` (see `# Safety`).
    if chained && unsafe { bindings::skb_linearize(skb) } != 0 {
        return None;
    }
    Some((origin, Contents::Packet))
}

/// Returns the number of bytes behind the IP header, as that header says.
///
/// # Safety
///
/// `network` must point to a whole IP header of `version`.
unsafe fn claimed_payload(network: *const u8, version: u8) -> Option<u16> {
    if version == 6 {
        // SAFETY: The caller guarantees a whole IPv6 header (see `# Safety`), whose payload length
        // is at 4.
        return Some(unsafe { be16(network.add(4)) });
    }
    // SAFETY: The caller guarantees a whole IPv4 header (see `# Safety`), whose total length is at
    // 2.
    unsafe { be16(network.add(2)) }.checked_sub(IPV4_LEN as u16)
}

/// Reads a big-endian number of 16 bits.
///
/// # Safety
///
/// `at` must be valid for reads of two bytes.
unsafe fn be16(at: *const u8) -> u16 {
    // SAFETY: The caller guarantees that `at` is valid for reads of two bytes (see `# Safety`).
    u16::from_be_bytes(unsafe { at.cast::<[u8; 2]>().read() })
}
