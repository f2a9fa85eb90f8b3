// SPDX-License-Identifier: GPL-2.0

//! UDP encapsulation sockets: where RoCEv2 packets come in.

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

/// Who gets the packets of a socket.
pub trait Receiver: Send + Sync + 'static {
    /// A packet came.
    ///
    /// # Context
    ///
    /// Softirq, under RCU; must not sleep.
    fn receive(this: ArcBorrow<'_, Self>, skb: RxSkb);

    /// A packet came that isn't fit for anything, and was freed. Context as above.
    fn refuse(this: ArcBorrow<'_, Self>, why: Discard);
}

/// Why there is no socket.
#[derive(Clone, Copy, Debug)]
pub enum OpenError {
    /// This host doesn't do this version of IP.
    NoNetwork,
    /// Somebody has the port.
    PortBusy,
    /// Anything else, such as `ENOMEM`.
    Other(Error),
}

impl OpenError {
    /// The error for users.
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

/// A kernel socket bound to a UDP port of one namespace, on all its addresses.
///
/// It holds no count of the namespace: it must be dropped before that is gone.
///
/// # Invariants
///
/// `sock` is a valid tunnel socket of ours; its user pointer is `receiver`, which came from
/// `Arc::<T>::into_foreign` and whose count is owned by `self`.
pub struct UdpSocket<T: Receiver> {
    sock: NonNull<bindings::sock>,
    receiver: NonNull<c_void>,
    _receiver: core::marker::PhantomData<Arc<T>>,
}

// SAFETY: A socket may be used and released by any thread.
unsafe impl<T: Receiver> Send for UdpSocket<T> {}
// SAFETY: Nothing is done through a shared reference.
unsafe impl<T: Receiver> Sync for UdpSocket<T> {}

impl<T: Receiver> UdpSocket<T> {
    /// Opens a socket in namespace `net`; packets to `port` go to `receiver` from now on.
    ///
    /// # Context
    ///
    /// Process; sleeps.
    ///
    /// # Errors
    ///
    /// [`OpenError`].
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
        // SAFETY: The namespace is held; the socket is ours. The user pointer stays valid until `drop`.
        unsafe { bindings::setup_udp_tunnel_sock(net.as_ptr(), sock.as_ptr(), &mut config) };
        // INVARIANT: As set up.
        Ok(Self {
            sock,
            receiver: NonNull::new(receiver).ok_or(EINVAL)?,
            _receiver: core::marker::PhantomData,
        })
    }
}

impl<T: Receiver> Drop for UdpSocket<T> {
    fn drop(&mut self) {
        // A packet may keep the `struct sock` for as long as netfilter queues it, beyond the end of this module: early
        // demultiplexing gives multicast packets of IPv4 their socket, and `__nf_queue()` (net/netfilter/nf_queue.c) counts it.
        // SAFETY: Valid and ours by the type invariant.
        unsafe { bindings::udp_clear_encap_rcv(self.sock.as_ptr()) };
        // SAFETY: As above, and not used again.
        unsafe { bindings::udp_tunnel_sock_release(self.sock.as_ptr()) };
        // Packets may be on their way through `encap_rcv`, which UDP reads and calls under RCU.
        wait_for_readers();
        // SAFETY: The count is owned by the type invariant, and nobody can reach it any more.
        drop(unsafe { Arc::<T>::from_foreign(self.receiver.as_ptr()) });
    }
}

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
            // SAFETY: Both point to valid memory; the caller holds the namespace.
            unsafe { bindings::udp_sock_create4(net, &mut config, &mut socket) }
        }
        Network::V6 => {
            config.family = bindings::AF_INET6 as u8;
            config.set_ipv6_v6only(1);
            // SAFETY: As above.
            unsafe { bindings::udp_sock_create6(net, &mut config, &mut socket) }
        }
    };
    to_result(code)?;
    Ok(socket)
}

/// Takes what the socket receives; it never leaves a packet to the socket's queue.
///
/// # Safety
///
/// `sock` must be that of an [`UdpSocket<T>`], `skb` a packet that the caller gives up.
unsafe extern "C" fn encap_rcv<T: Receiver>(
    sock: *mut bindings::sock,
    skb: *mut bindings::sk_buff,
) -> c_int {
    // SAFETY: UDP calls this with a valid socket, in an RCU read-side section.
    let receiver = unsafe { bindings::rcu_dereference_sk_user_data(sock) };
    let Some(skb) = NonNull::new(skb) else {
        return 0;
    };
    // SAFETY: The packet is valid, and the caller gives it up.
    let received = unsafe { RxSkb::from_encap(skb) };
    if receiver.is_null() {
        return 0;
    }
    // SAFETY: The socket's user pointer came from `into_foreign`; its count is given up only after
    // all readers that may have seen it are through.
    let receiver = unsafe { Arc::<T>::borrow(receiver) };
    match received {
        Ok(skb) => T::receive(receiver, skb),
        Err(why) => T::refuse(receiver, why),
    }
    0
}
