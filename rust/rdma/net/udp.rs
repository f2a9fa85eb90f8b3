// SPDX-License-Identifier: GPL-2.0

//! UDP encapsulation sockets, which receive RoCEv2 packets. Wraps `setup_udp_tunnel_sock()`
//! (include/net/udp_tunnel.h).

use core::ptr::{self, NonNull};

use kernel::{
    bindings::{EADDRINUSE, EAFNOSUPPORT},
    error::{to_result, Error},
    ffi::{c_int, c_void},
    prelude::*,
    sync::{Arc, ArcBorrow},
    types::ForeignOwnable,
};

use super::{
    netns::Net,
    skb::{Discard, RxSkb},
};
use crate::{bindings, device::gid::Network, support::sync::wait_for_readers};

/// Receiver of the packets of a socket.
pub trait Receiver: Send + Sync + 'static {
    /// Handles a packet or a burst.
    ///
    /// # Context
    ///
    /// Softirq, with the RCU read lock held. Must not sleep.
    fn receive(this: ArcBorrow<'_, Self>, skb: RxSkb);

    /// Handles the report of a packet that was unusable and has been freed. The context is that of
    /// [`Self::receive`].
    fn refuse(this: ArcBorrow<'_, Self>, why: Discard);
}

/// Reasons for which a socket cannot be opened.
#[derive(Clone, Copy, Debug)]
pub enum OpenError {
    /// This host does not support the IP version.
    NoNetwork,
    /// Another socket is bound to the port.
    PortBusy,
    /// Another error, such as `ENOMEM`.
    Other(Error),
}

impl OpenError {
    /// Returns the error code for users.
    pub fn to_error(self) -> Error {
        match self {
            Self::NoNetwork => Error::from_errno(-(EAFNOSUPPORT as c_int)),
            Self::PortBusy => Error::from_errno(-(EADDRINUSE as c_int)),
            Self::Other(error) => error,
        }
    }
}

impl From<Error> for OpenError {
    fn from(error: Error) -> Self {
        match error.to_errno().unsigned_abs() {
            EAFNOSUPPORT => Self::NoNetwork,
            EADDRINUSE => Self::PortBusy,
            _ => Self::Other(error),
        }
    }
}

/// A kernel socket that is bound to a UDP port on all IPv4 or all IPv6 addresses of a network
/// namespace.
///
/// The socket holds no reference to the namespace, so the value must be dropped before the
/// namespace is freed.
///
/// # Invariants
///
/// `sock` is a valid tunnel socket, which the value owns. Its `sk_user_data` is `receiver`, which
/// comes from `Arc::<T>::into_foreign`. The value owns that reference.
pub struct UdpSocket<T: Receiver> {
    sock: NonNull<bindings::sock>,
    receiver: NonNull<c_void>,
    _receiver: core::marker::PhantomData<Arc<T>>,
}

// SAFETY: Any thread may use and release a socket.
unsafe impl<T: Receiver> Send for UdpSocket<T> {}
// SAFETY: A shared reference has no methods.
unsafe impl<T: Receiver> Sync for UdpSocket<T> {}

impl<T: Receiver> UdpSocket<T> {
    /// Opens a socket in namespace `net`. Packets to `port` go to `receiver` from now on.
    ///
    /// # Context
    ///
    /// Process context; sleeps.
    ///
    /// # Errors
    ///
    /// Returns an [`OpenError`].
    pub fn open(
        net: &Net,
        network: Network,
        port: u16,
        receiver: Arc<T>,
    ) -> Result<Self, OpenError> {
        let socket = bind(net, network, port)?;
        // SAFETY: `bind` returned a valid socket, which has a `struct sock`.
        let sock = NonNull::new(unsafe { (*socket).sk }).ok_or(EINVAL)?;
        let receiver = receiver.into_foreign();
        let mut config = bindings::udp_tunnel_sock_cfg {
            sk_user_data: receiver,
            encap_type: 1,
            encap_rcv: Some(encap_rcv::<T>),
            ..Default::default()
        };
        // SAFETY: `net` holds the namespace, and this function owns the socket. `sk_user_data`
        // stays valid until `drop`.
        unsafe { bindings::setup_udp_tunnel_sock(net.as_ptr(), sock.as_ptr(), &mut config) };
        // The socket gets bursts in one piece.
        // SAFETY: This function owns the valid socket.
        unsafe { bindings::udp_allow_gso(sock.as_ptr()) };
        // INVARIANT: The call above set `sk_user_data` to `receiver`, which comes from
        // `into_foreign`.
        Ok(Self {
            sock,
            receiver: NonNull::new(receiver).ok_or(EINVAL)?,
            _receiver: core::marker::PhantomData,
        })
    }
}

impl<T: Receiver> Drop for UdpSocket<T> {
    fn drop(&mut self) {
        // A packet may hold the `struct sock` for as long as netfilter queues the packet, even
        // after this module was removed. Early demultiplexing sets the socket of multicast packets
        // of IPv4, and `__nf_queue()` (net/netfilter/nf_queue.c) takes a reference to it.
        // SAFETY: By the type invariant the value owns the valid `sock`.
        unsafe { bindings::udp_clear_encap_rcv(self.sock.as_ptr()) };
        // SAFETY: By the type invariant the value owns the valid `sock`, which is not used again.
        unsafe { bindings::udp_tunnel_sock_release(self.sock.as_ptr()) };
        // Packets may be in `encap_rcv`, which the UDP layer reads and calls under RCU.
        wait_for_readers();
        // SAFETY: By the type invariant the value owns the reference. No code can find it any more.
        drop(unsafe { Arc::<T>::from_foreign(self.receiver.as_ptr()) });
    }
}

/// Creates a UDP socket that is bound to `port` on all addresses of `net` of the IP version
/// `network`.
fn bind(net: &Net, network: Network, port: u16) -> Result<*mut bindings::socket> {
    let net = net.as_ptr();
    let mut config = bindings::udp_port_cfg {
        local_udp_port: port.to_be(),
        ..Default::default()
    };
    let mut socket = ptr::null_mut();
    let code = match network {
        Network::V4 => {
            config.family = bindings::AF_INET as u8;
            // SAFETY: Both pointers are valid, and `net` holds the namespace.
            unsafe { bindings::udp_sock_create4(net, &mut config, &mut socket) }
        }
        Network::V6 => {
            config.family = bindings::AF_INET6 as u8;
            config.set_ipv6_v6only(1);
            // SAFETY: Both pointers are valid, and `net` holds the namespace.
            unsafe { bindings::udp_sock_create6(net, &mut config, &mut socket) }
        }
    };
    to_result(code)?;
    Ok(socket)
}

/// Passes a packet of the socket to its receiver (`udp_tunnel_sock_cfg.encap_rcv`). The packet
/// never goes to the socket's own queue, since the result is always 0.
///
/// # Safety
///
/// `sock` must be that of an [`UdpSocket<T>`]. `skb` must be a packet that the caller owns and
/// gives up.
unsafe extern "C" fn encap_rcv<T: Receiver>(
    sock: *mut bindings::sock,
    skb: *mut bindings::sk_buff,
) -> c_int {
    // SAFETY: UDP calls this with a valid socket, in an RCU read-side section.
    let receiver = unsafe { bindings::rcu_dereference_sk_user_data(sock) };
    let Some(skb) = NonNull::new(skb) else {
        return 0;
    };
    // SAFETY: The caller guarantees that the packet is valid, and gives it up (see `# Safety`).
    let received = unsafe { RxSkb::from_encap(skb) };
    if receiver.is_null() {
        return 0;
    }
    // SAFETY: `sk_user_data` comes from `into_foreign`. `UdpSocket::drop` gives the reference up
    // only after it has waited for all RCU readers that may have read it.
    let receiver = unsafe { Arc::<T>::borrow(receiver) };
    match received {
        Ok(skb) => T::receive(receiver, skb),
        Err(why) => T::refuse(receiver, why),
    }
    0
}
