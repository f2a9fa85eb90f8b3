// SPDX-License-Identifier: GPL-2.0

//! Received bursts ([`super::burst`]): taking the buffers of the packets apart.
//!
//! A burst never left this kernel: a part of the network stack that sends packets elsewhere drops
//! it before. Nor did anybody change the packets behind the first one. The network stack writes to
//! the linear part of the first buffer only, and pulls other bytes into that part before
//! (`skb_ensure_writable()`, net/core/skbuff.c). Then [`take_members`] finds a packet too short, or
//! too few packets. So the ICRCs of these packets need no check. The ICRC of the first packet does.

use core::{ptr::NonNull, slice};

use kernel::prelude::*;

use super::{
    ingress::Origin,
    rx::{RxSkb, IPV6_LEN, UDP_LEN},
};
use crate::bindings;

/// Takes all packets but the first out of a received burst. Returns `None` if a packet isn't of the
/// first one's flow, if the burst was changed on its way, or if there is no memory. `head` has the
/// remaining packets then.
///
/// # Safety
///
/// The caller must own the valid `head`, which must be a burst (`is_burst`). Its `data` must be
/// behind a UDP header, and its network header `ip_len` bytes before that header. Both headers must
/// be linear.
pub(super) unsafe fn take_members(
    head: NonNull<bindings::sk_buff>,
    ip_len: usize,
    origin: Origin,
) -> Option<KVec<RxSkb>> {
    let skb = head.as_ptr();
    // Other buffers may share the list, such as those of packet sockets.
    // SAFETY: The caller guarantees that it owns the valid buffer (see `# Safety`).
    if unsafe { bindings::skb_unclone(skb, bindings::GFP_ATOMIC) } != 0 {
        return None;
    }
    // SAFETY: The buffer is valid, so it has a shared info.
    let shared = unsafe { bindings::skb_shinfo(skb) };
    // SAFETY: The shared info is valid as long as the buffer, of which no other code has a
    // reference.
    let (first, fragments, count) = unsafe {
        let linear = (*skb).len.wrapping_sub((*skb).data_len);
        (linear, (*shared).nr_frags, (*shared).gso_segs)
    };
    if fragments != 0 {
        return None;
    }
    let mut members = KVec::with_capacity(count.into(), GFP_ATOMIC).ok()?;
    // SAFETY: The caller guarantees the headers (see `# Safety`), of which `skb_unclone()` made
    // this buffer the only owner.
    unsafe { set_length(head, ip_len, first) };
    loop {
        // SAFETY: This function alone uses the shared info, and the list owns its buffers.
        let Some(member) = (unsafe { pop(head, shared) }) else {
            break;
        };
        // SAFETY: `pop` gave the valid member up. It is not used again.
        let member = unsafe { unshare(member) }?;
        // SAFETY: This function owns both valid buffers. The caller guarantees the headers of
        // `head` (see `# Safety`).
        if !unsafe { fits(head, member.0, ip_len) } {
            return None;
        }
        // SAFETY: `fits` has checked the invariants except the control block.
        let mut member = unsafe { RxSkb::received(member.into_raw(), origin) };
        member.trust();
        members.push_within_capacity(member).ok()?;
    }
    // The bytes of a packet that was pulled into the first buffer are no packet any more. If a part
    // was pulled, `fits` has refused the rest.
    if members.len().wrapping_add(1) != usize::from(count) {
        return None;
    }
    // SAFETY: The caller owns the valid buffer (see `# Safety`), which is one packet now.
    unsafe { bindings::skb_gso_reset(skb) };
    Some(members)
}

/// A buffer that the value owns.
///
/// # Invariants
///
/// The buffer is valid.
struct Member(NonNull<bindings::sk_buff>);

impl Member {
    /// Gives up the ownership of the buffer.
    fn into_raw(self) -> NonNull<bindings::sk_buff> {
        core::mem::ManuallyDrop::new(self).0
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the value owns the valid buffer, which is not used again.
        unsafe { bindings::consume_skb(self.0.as_ptr()) };
    }
}

/// Takes the first buffer out of the `frag_list` of `head`. Returns `None` if the list is empty.
///
/// # Safety
///
/// The caller must own the valid `head`, whose shared info is `shared`, which no other buffer
/// shares.
unsafe fn pop(
    head: NonNull<bindings::sk_buff>,
    shared: *mut bindings::skb_shared_info,
) -> Option<NonNull<bindings::sk_buff>> {
    let head = head.as_ptr();
    // SAFETY: The caller guarantees that `shared` is valid (see `# Safety`).
    let member = NonNull::new(unsafe { (*shared).frag_list })?;
    let skb = member.as_ptr();
    // SAFETY: The caller guarantees that no other buffer shares the list (see `# Safety`). The
    // length and the size of the head include those of the member.
    unsafe {
        (*shared).frag_list = bindings::skb_next(skb);
        (*head).len = (*head).len.wrapping_sub((*skb).len);
        (*head).data_len = (*head).data_len.wrapping_sub((*skb).len);
        (*head).truesize = (*head).truesize.saturating_sub((*skb).truesize);
    }
    Some(member)
}

/// Returns `member`, or a copy of it if another list has a reference to it. Returns `None` if there
/// is no memory for that.
///
/// # Safety
///
/// `member` must be valid, and the caller gives up a reference to it.
unsafe fn unshare(member: NonNull<bindings::sk_buff>) -> Option<Member> {
    let skb = member.as_ptr();
    // SAFETY: The caller guarantees that the buffer is valid (see `# Safety`).
    if unsafe { bindings::skb_shared(skb) } == 0 {
        // SAFETY: No other code has a reference to the buffer.
        unsafe { bindings::skb_set_next(skb, core::ptr::null_mut()) };
        // INVARIANT: The caller gave the valid buffer up.
        return Some(Member(member));
    }
    // A clone would share the bytes with the other list, whose owner may write them later.
    // SAFETY: The caller guarantees that the buffer is valid (see `# Safety`).
    let copy = unsafe { bindings::skb_copy(skb, bindings::GFP_ATOMIC) };
    // SAFETY: The caller gave up a reference (see `# Safety`).
    unsafe { bindings::consume_skb(skb) };
    // INVARIANT: The copy is valid, and in no list.
    NonNull::new(copy).map(Member)
}

/// Writes the length of the first packet, `len` bytes from the BTH on, to its headers.
///
/// # Safety
///
/// `head` must be as [`take_members`] demands, and its headers must be writable.
unsafe fn set_length(head: NonNull<bindings::sk_buff>, ip_len: usize, len: u32) {
    let udp = (len as u16).wrapping_add(UDP_LEN as u16);
    let (ip, at) = match ip_len {
        IPV6_LEN => (udp, 4),
        _ => (udp.wrapping_add(ip_len as u16), 2),
    };
    // SAFETY: The caller guarantees that both headers lie before `data` and are writable (see
    // `# Safety`).
    unsafe {
        let transport = (*head.as_ptr()).data.sub(UDP_LEN);
        transport.add(4).cast::<[u8; 2]>().write(udp.to_be_bytes());
        let network = transport.sub(ip_len);
        network.add(at).cast::<[u8; 2]>().write(ip.to_be_bytes());
    }
}

/// Returns whether a packet's buffer has its headers in place, the addresses and ports of the first
/// packet, and no list of its own.
///
/// # Safety
///
/// The caller must own both valid buffers. `head` must be as [`take_members`] demands.
unsafe fn fits(
    head: NonNull<bindings::sk_buff>,
    member: NonNull<bindings::sk_buff>,
    ip_len: usize,
) -> bool {
    let skb = member.as_ptr();
    let headers = ip_len.wrapping_add(UDP_LEN);
    // SAFETY: The caller guarantees that the buffer is valid (see `# Safety`), so its header
    // offsets lie within it.
    let (network, transport, data, len) = unsafe {
        let network = bindings::skb_network_header(skb).cast_const();
        let transport = bindings::skb_transport_header(skb).cast_const();
        (network, transport, (*skb).data.cast_const(), (*skb).len)
    };
    let before = |at: *const u8| (data as usize).wrapping_sub(at as usize);
    // SAFETY: The buffer is valid, so it has a shared info.
    let has_list = unsafe { !(*bindings::skb_shinfo(skb)).frag_list.is_null() };
    if has_list || before(network) != headers || before(transport) != UDP_LEN {
        return false;
    }
    // SAFETY: The network header is `headers` bytes before `data`, as was checked above, so these
    // bytes are linear. No code writes them meanwhile.
    let own = unsafe { slice::from_raw_parts(network, headers) };
    // SAFETY: The caller guarantees the headers (see `# Safety`). No code writes them meanwhile.
    let first = unsafe { slice::from_raw_parts((*head.as_ptr()).data.sub(headers), headers) };
    is_of_flow(first, own, len)
}

/// Returns whether a packet has the IP version, protocol, addresses and ports of another one, and
/// `len` bytes behind its UDP header. Both slices hold an IP header and a UDP header.
fn is_of_flow(first: &[u8], own: &[u8], len: u32) -> bool {
    // The ranges of the protocol and the addresses, and the place of the length.
    let (protocol, addresses, length, ip_len) = match first.len().wrapping_sub(UDP_LEN) {
        IPV6_LEN => (6..7, 8..40, 4, IPV6_LEN),
        ip_len => (9..10, 12..20, 2, ip_len),
    };
    let ports = ip_len..ip_len.wrapping_add(4);
    let be16 = |at: usize| {
        let field = own.get(at..).and_then(|bytes| bytes.first_chunk());
        field.map(|field| u32::from(u16::from_be_bytes(*field)))
    };
    let udp = len.wrapping_add(UDP_LEN as u32);
    let ip = match ip_len {
        IPV6_LEN => udp,
        _ => udp.wrapping_add(ip_len as u32),
    };
    let version = |header: &[u8]| header.first().map(|byte| byte >> 4);
    version(own) == version(first)
        && [protocol, addresses, ports]
            .into_iter()
            .all(|range| own.get(range.clone()) == first.get(range))
        && be16(length) == Some(ip)
        && be16(ip_len.wrapping_add(4)) == Some(udp)
}
