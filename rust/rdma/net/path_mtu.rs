// SPDX-License-Identifier: GPL-2.0

//! A socket that makes the IPv4 layer ignore what ICMP messages say of a path's MTU. For IPv6 see
//! [`Route::attach`](super::route::Route).
//!
//! Any host can forge such a message: Linux believes one that quotes an echo reply (`icmp_err()` in net/ipv4/icmp.c,
//! `icmpv6_err()` in net/ipv6/icmp.c). A QP can't make its packets shorter, so the message would end it. RoCE
//! adapters ignore the messages.
//!
//! The IPv4 layer takes the MTU of the network device instead if its caller names a socket with
//! `IP_PMTUDISC_PROBE` (`ip_skb_dst_mtu()` in include/net/ip.h). The packets do not get the socket.

use core::ptr::{self, NonNull};

use kernel::{error::to_result, ffi::c_int, prelude::*};

use crate::bindings;

/// A UDP socket of IPv4 with `IP_PMTUDISC_PROBE`. It is bound to no port, receives nothing, and belongs to the initial
/// network namespace, which never ends; netfilter takes packets with the socket of another namespace as if they had none
/// (`nft_meta_get_eval_skugid()` in net/netfilter/nft_meta.c).
///
/// # Invariants
///
/// Owns a valid socket, which has a `struct sock`.
pub(super) struct ProbeSocket(NonNull<bindings::socket>);

// SAFETY: A socket may be used and released by any thread.
unsafe impl Send for ProbeSocket {}
// SAFETY: Through a shared reference, nothing but constant settings are read.
unsafe impl Sync for ProbeSocket {}

impl ProbeSocket {
    /// Makes it. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new() -> Result<Self> {
        let mut socket = ptr::null_mut();
        // SAFETY: The initial namespace is always there; `socket` is valid memory for the result.
        to_result(unsafe {
            bindings::sock_create_kern(
                &raw mut bindings::init_net,
                bindings::AF_INET as c_int,
                bindings::sock_type_SOCK_DGRAM as c_int,
                bindings::IPPROTO_UDP as c_int,
                &mut socket,
            )
        })?;
        // INVARIANT: The socket was just made.
        let probe = Self(NonNull::new(socket).ok_or(ENOMEM)?);
        // SAFETY: The socket is ours, and one of IPv4.
        unsafe {
            bindings::ip_sock_set_mtu_discover(probe.as_ptr(), bindings::IP_PMTUDISC_PROBE as c_int)
        };
        Ok(probe)
    }

    /// The socket for C, valid as long as `self`.
    pub(super) fn as_ptr(&self) -> *mut bindings::sock {
        // SAFETY: Valid by the type invariant.
        unsafe { (*self.0.as_ptr()).sk }
    }
}

impl Drop for ProbeSocket {
    fn drop(&mut self) {
        // SAFETY: Ours by the type invariant, and not used again.
        unsafe { bindings::sock_release(self.0.as_ptr()) };
    }
}
