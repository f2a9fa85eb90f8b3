// SPDX-License-Identifier: GPL-2.0

//! The sockets on whose behalf packets are sent.
//!
//! The IP layer asks the socket that its caller names for two settings. The packets do not get the socket. Packets that IPsec
//! protects are sent on behalf of none.
//!
//! * The IPv4 layer takes the MTU of the network device instead of that of the path if the socket has `IP_PMTUDISC_PROBE`
//!   (`ip_skb_dst_mtu()`, include/net/ip.h). ICMP messages change the MTU of a path, and any host can forge one: Linux
//!   believes a message that quotes an echo reply (`icmp_err()`, net/ipv4/icmp.c; `icmpv6_err()`, net/ipv6/icmp.c). A QP
//!   can't make its packets shorter, so the message would end it. RoCE adapters ignore the messages. For IPv6 see
//!   [`Route::attach`](super::route::Route).
//! * Both layers loop packets to multicast groups unless the socket says no (`sk_mc_loop()`, net/core/sock.c). QPs of one
//!   host exchange packets without the IP layer.

use core::ptr::{self, NonNull};

use kernel::{error::to_result, ffi::c_int, prelude::*, sync::SetOnce};

use crate::{bindings, device::gid::Network};

/// The socket for each version of IP.
pub(super) struct SenderSockets {
    v4: SenderSocket,
    /// Empty if the kernel runs without IPv6.
    v6: SetOnce<SenderSocket>,
}

impl SenderSockets {
    /// Makes that of IPv4. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new() -> Result<Self> {
        let v4 = SenderSocket::new(bindings::AF_INET)?;
        // SAFETY: The socket is one of IPv4.
        unsafe {
            bindings::ip_sock_set_mtu_discover(v4.as_ptr(), bindings::IP_PMTUDISC_PROBE as c_int)
        };
        let v6 = SetOnce::new();
        Ok(Self { v4, v6 })
    }

    /// Makes that of IPv6, unless it is there. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn complete(&self) -> Result {
        // SAFETY: No requirements.
        if self.v6.as_ref().is_none() && unsafe { bindings::ipv6_mod_enabled() } {
            // Somebody else's may come first.
            self.v6.populate(SenderSocket::new(bindings::AF_INET6)?);
        }
        Ok(())
    }

    /// The socket for C, valid as long as `self`. Null for IPv6 before [`Self::complete`], or if the kernel runs without.
    pub(super) fn of(&self, network: Network) -> *mut bindings::sock {
        match network {
            Network::V4 => self.v4.as_ptr(),
            Network::V6 => self
                .v6
                .as_ref()
                .map_or(ptr::null_mut(), SenderSocket::as_ptr),
        }
    }
}

/// A UDP socket without a multicast loop. It is bound to no port, receives nothing, and belongs to the initial network
/// namespace, which never ends; netfilter takes packets with the socket of another namespace as if they had none
/// (`nft_meta_get_eval_skugid()`, net/netfilter/nft_meta.c).
///
/// # Invariants
///
/// Owns a valid socket, which has a `struct sock`.
struct SenderSocket(NonNull<bindings::socket>);

// SAFETY: A socket may be used and released by any thread.
unsafe impl Send for SenderSocket {}
// SAFETY: Through a shared reference, nothing but constant settings are read.
unsafe impl Sync for SenderSocket {}

impl SenderSocket {
    /// Makes it. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
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
        let made = Self(NonNull::new(socket).ok_or(ENOMEM)?);
        // SAFETY: The socket is ours, and one of IP.
        unsafe { bindings::inet_clear_mc_loop(made.as_ptr()) };
        // SAFETY: As above.
        unsafe { bindings::inet6_clear_mc6_loop(made.as_ptr()) };
        Ok(made)
    }

    fn as_ptr(&self) -> *mut bindings::sock {
        // SAFETY: Valid by the type invariant.
        unsafe { (*self.0.as_ptr()).sk }
    }
}

impl Drop for SenderSocket {
    fn drop(&mut self) {
        // SAFETY: Ours by the type invariant, and not used again.
        unsafe { bindings::sock_release(self.0.as_ptr()) };
    }
}
