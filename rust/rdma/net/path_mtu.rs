// SPDX-License-Identifier: GPL-2.0

//! Sockets that make the IP layer ignore what ICMP messages say of a path's MTU.
//!
//! Any host can forge such a message: Linux believes one that quotes an echo reply (`icmp_err()` in net/ipv4/icmp.c,
//! `icmpv6_err()` in net/ipv6/icmp.c). A QP can't make its packets shorter, so the message would end it. RoCE
//! adapters ignore the messages.
//!
//! The IP layer takes the MTU of the network device instead for packets of a socket with
//! `IP_PMTUDISC_PROBE` (`ip_skb_dst_mtu()` in include/net/ip.h, `ip6_skb_dst_mtu()` in include/net/ip6_route.h).

use core::ptr::{self, NonNull};

use kernel::{error::to_result, ffi::c_int, prelude::*};

use crate::bindings;

/// Bytes of packets that have the socket of IPv6 at once, about: it counts them by a `refcount_t`.
const MOST: c_int = 1 << 30;

/// A socket for each version of IP. They are bound to no port, receive nothing, and belong to the initial network
/// namespace, which never ends; netfilter takes packets with the socket of another namespace as if they had none
/// (`nft_meta_get_eval_skugid()` in net/netfilter/nft_meta.c).
pub struct ProbeSockets {
    v4: Socket,
    /// `None` on a host without IPv6.
    v6: Option<Socket>,
}

impl ProbeSockets {
    /// Makes them. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new() -> Result<Self> {
        let v4 = Socket::new(bindings::AF_INET)?;
        // SAFETY: The socket is ours, and one of IPv4.
        unsafe {
            bindings::ip_sock_set_mtu_discover(v4.as_ptr(), bindings::IP_PMTUDISC_PROBE as c_int)
        };
        let v6 = match Socket::new(bindings::AF_INET6) {
            Err(EAFNOSUPPORT) => None,
            socket => Some(socket?),
        };
        if let Some(v6) = &v6 {
            // SAFETY: The socket is ours, and one of IPv6.
            unsafe {
                bindings::inet6_set_mtu_discover(v6.as_ptr(), bindings::IPV6_PMTUDISC_PROBE as u8)
            };
        }
        Ok(Self { v4, v6 })
    }

    /// Whether no packet counts at them. Any context.
    pub fn is_unused(&self) -> bool {
        // SAFETY: The socket is valid, by the type invariant of `Socket`.
        let bytes = |v6: &Socket| unsafe { bindings::sk_wmem_alloc_get(v6.as_ptr()) };
        self.v6.as_ref().is_none_or(|v6| bytes(v6) == 0)
    }

    /// The one for IPv4, valid as long as `self`.
    pub(super) fn v4(&self) -> *mut bindings::sock {
        self.v4.as_ptr()
    }

    /// Gives a packet of IPv6 its socket, and counts the packet at it, as the network stack expects:
    /// IPsec counts there what it appends (`esp6_output_head()`, net/ipv6/esp6.c).
    ///
    /// # Errors
    ///
    /// `EAGAIN` if the packets that have the socket are too large together.
    ///
    /// # Safety
    ///
    /// The caller owns `skb`, which has neither socket nor destructor, and has its destructor call
    /// [`Self::uncharge`] while `self` lives.
    pub(super) unsafe fn charge_v6(&self, skb: *mut bindings::sk_buff) -> Result {
        let Some(v6) = &self.v6 else {
            return Ok(());
        };
        // SAFETY: The socket is valid, by the type invariant of `Socket`.
        if unsafe { bindings::sk_wmem_alloc_get(v6.as_ptr()) } > MOST {
            return Err(EAGAIN);
        }
        // SAFETY: The caller owns the buffer; the socket is valid, as above.
        unsafe { bindings::skb_set_owner_w(skb, v6.as_ptr()) };
        Ok(())
    }

    /// Counts `skb` no longer at its socket, if it has one.
    ///
    /// # Safety
    ///
    /// For the destructor of a buffer that only [`Self::charge_v6`] of the same sockets may have given a socket.
    pub(super) unsafe fn uncharge(&self, skb: *mut bindings::sk_buff) {
        // SAFETY: The network stack destroys valid buffers.
        let owner = unsafe { bindings::skb_sk(skb) };
        if self.v6.as_ref().is_some_and(|v6| v6.as_ptr() == owner) {
            // SAFETY: As above; `charge_v6` counted the buffer, as the caller promises, and the
            // network stack changes the count and `truesize` together. The count of the socket's
            // owner, `self`, is left.
            unsafe { bindings::sock_wfree(skb) };
        }
    }
}

/// # Invariants
///
/// Owns a valid UDP socket, which has a `struct sock`.
struct Socket(NonNull<bindings::socket>);

// SAFETY: A socket may be used and released by any thread.
unsafe impl Send for Socket {}
// SAFETY: Through a shared reference, nothing but constant settings are read.
unsafe impl Sync for Socket {}

impl Socket {
    fn new(family: u32) -> Result<Self> {
        let mut socket = ptr::null_mut();
        // SAFETY: The initial namespace is always there; `socket` is valid memory for the result.
        to_result(unsafe {
            bindings::sock_create_kern(
                &raw mut bindings::init_net,
                family as c_int,
                bindings::sock_type_SOCK_DGRAM as c_int,
                bindings::IPPROTO_UDP as c_int,
                &mut socket,
            )
        })?;
        // INVARIANT: The socket was just made.
        Ok(Self(NonNull::new(socket).ok_or(ENOMEM)?))
    }

    fn as_ptr(&self) -> *mut bindings::sock {
        // SAFETY: Valid by the type invariant.
        unsafe { (*self.0.as_ptr()).sk }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // SAFETY: Ours by the type invariant, and not used again.
        unsafe { bindings::sock_release(self.0.as_ptr()) };
    }
}
