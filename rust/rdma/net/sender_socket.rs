// SPDX-License-Identifier: GPL-2.0

//! Sockets that are passed to the IP layer for packets to send (`ip_local_out()`,
//! `ip6_local_out()`).
//!
//! The IP layer reads two settings of the socket. The packets themselves have no socket
//! (`sk_buff.sk`). For packets that IPsec protects, no socket is passed.
//!
//! * The IPv4 layer uses the MTU of the network device instead of the path's MTU if the socket has
//!   `IP_PMTUDISC_PROBE` (`ip_skb_dst_mtu()`, include/net/ip.h). ICMP messages change the MTU of a
//!   path, and any host can forge such a message: Linux accepts one that quotes an echo reply
//!   (`icmp_err()`, net/ipv4/icmp.c; `icmpv6_err()`, net/ipv6/icmp.c). A QP cannot shorten its
//!   packets, so the message would end the QP. RoCE adapters ignore these messages. For IPv6 see
//!   [`Route::attach`](super::route::Route).
//! * Both layers loop packets to multicast groups back unless the socket forbids it
//!   (`sk_mc_loop()`, net/core/sock.c). QPs of one network namespace exchange packets without the
//!   IP layer.

use core::ptr::{self, NonNull};

use kernel::{error::to_result, ffi::c_int, prelude::*, sync::SetOnce};

use crate::{bindings, device::gid::Network};

/// One socket for each IP version.
pub(super) struct SenderSockets {
    v4: SenderSocket,
    /// The IPv6 socket. Empty before [`Self::complete`], and if the kernel runs without IPv6.
    v6: SetOnce<SenderSocket>,
}

impl SenderSockets {
    /// Creates the IPv4 socket. Must be called in process context; sleeps.
    ///
    /// # Errors
    ///
    /// Returns `ENOMEM` or `ENFILE` if there is no memory.
    pub(super) fn new() -> Result<Self> {
        let v4 = SenderSocket::new(bindings::AF_INET)?;
        // SAFETY: The socket is valid, and an IPv4 socket.
        unsafe {
            bindings::ip_sock_set_mtu_discover(v4.as_ptr(), bindings::IP_PMTUDISC_PROBE as c_int)
        };
        let v6 = SetOnce::new();
        Ok(Self { v4, v6 })
    }

    /// Creates the IPv6 socket unless it exists. Must be called in process context; sleeps.
    ///
    /// # Errors
    ///
    /// Returns `ENOBUFS` or `ENFILE` if there is no memory.
    pub(super) fn complete(&self) -> Result {
        // SAFETY: The function has no requirements.
        if self.v6.as_ref().is_none() && unsafe { bindings::ipv6_mod_enabled() } {
            // If another call has stored its socket first, this one is dropped.
            self.v6.populate(SenderSocket::new(bindings::AF_INET6)?);
        }
        Ok(())
    }

    /// Returns the socket for C functions, valid as long as `self`. Returns null for IPv6 before
    /// [`Self::complete`], or if the kernel runs without IPv6.
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

/// A UDP socket that does not loop multicast packets back.
///
/// The socket is bound to no port and receives nothing. It belongs to the initial network
/// namespace, which never ends. Netfilter treats packets with a socket of another namespace as
/// packets without a socket (`nft_meta_get_eval_skugid()`, net/netfilter/nft_meta.c).
///
/// # Invariants
///
/// The value owns a valid socket, which has a `struct sock`.
struct SenderSocket(NonNull<bindings::socket>);

// SAFETY: Any thread may use and release a socket.
unsafe impl Send for SenderSocket {}
// SAFETY: Only constant settings are read through a shared reference.
unsafe impl Sync for SenderSocket {}

impl SenderSocket {
    /// Creates a socket of `family` (`AF_*`). Must be called in process context; sleeps.
    ///
    /// # Errors
    ///
    /// Returns `ENOMEM` (IPv4), `ENOBUFS` (IPv6) or `ENFILE` if there is no memory.
    fn new(family: u32) -> Result<Self> {
        let mut socket = ptr::null_mut();
        // SAFETY: The initial namespace always exists. `socket` is valid for the write of the
        // result.
        to_result(unsafe {
            bindings::sock_create_kern(
                &raw mut bindings::init_net,
                family as c_int,
                bindings::sock_type_SOCK_DGRAM as c_int,
                bindings::IPPROTO_UDP as c_int,
                &mut socket,
            )
        })?;
        // INVARIANT: The call has just created the socket.
        let made = Self(NonNull::new(socket).ok_or(ENOMEM)?);
        // SAFETY: `made` owns the socket, which is an IP socket.
        unsafe { bindings::inet_clear_mc_loop(made.as_ptr()) };
        // SAFETY: `made` owns the socket, which is an IP socket.
        unsafe { bindings::inet6_clear_mc6_loop(made.as_ptr()) };
        Ok(made)
    }

    /// Returns the `struct sock`, valid as long as `self`.
    fn as_ptr(&self) -> *mut bindings::sock {
        // SAFETY: The socket is valid by the type invariant.
        unsafe { (*self.0.as_ptr()).sk }
    }
}

impl Drop for SenderSocket {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the value owns the socket, which is not used again.
        unsafe { bindings::sock_release(self.0.as_ptr()) };
    }
}
