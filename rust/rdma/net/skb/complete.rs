// SPDX-License-Identifier: GPL-2.0

//! Packets and frames that are complete, and can be sent.

use core::{
    mem::ManuallyDrop,
    ptr::{self, NonNull},
};

use kernel::{
    error::to_result,
    ffi::c_int,
    prelude::*,
    sync::{rcu, Arc},
};

use super::{
    linear,
    rx::{RxSkb, IPV4_LEN, IPV6_LEN, UDP_LEN},
};
use crate::{
    bindings,
    device::gid::Network,
    net::{netdev::Netdev, route::Route, tx_limit::TxCount},
};

const NET_XMIT_DROP: c_int = bindings::NET_XMIT_DROP as c_int;

/// A buffer whose bytes were all written, and are not written again.
///
/// # Invariants
///
/// The buffer is valid, owned by `self` alone, made by `alloc_skb_fclone()`, and has neither clone nor `frag_list`. All its
/// bytes were written, and nobody writes them while they are shared.
pub(super) struct Written(NonNull<bindings::sk_buff>);

impl Written {
    /// # Safety
    ///
    /// The buffer must be as the type's invariants say, and given up by the caller.
    pub(super) unsafe fn new(skb: NonNull<bindings::sk_buff>) -> Self {
        // INVARIANT: As the caller promises.
        Self(skb)
    }

    /// Gives the buffer up, to be sent: it holds a credit until it is destroyed.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if the credit is used up.
    fn charge(self, credit: &Arc<TxCount>) -> Result<*mut bindings::sk_buff> {
        // SAFETY: By the type invariant. The buffer was built without a destructor and a socket, and never cloned.
        let sent = unsafe { credit.charge(self.0.as_ptr()) }?;
        // It is what is sent, or the slot of that has it.
        let _ = self.into_raw();
        Ok(sent)
    }

    fn into_raw(self) -> NonNull<bindings::sk_buff> {
        ManuallyDrop::new(self).0
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        // SAFETY: Ours by the type invariant, and not used again.
        unsafe { bindings::consume_skb(self.0.as_ptr()) };
    }
}

/// A packet with IP and UDP header.
///
/// # Invariants
///
/// The network header is set, at `data`: the first 20 (IPv4) or 40 (IPv6) bytes. It has the version of `network` and, of
/// IPv4, no options. It and the 8 bytes behind it are linear.
pub struct TxPacket {
    skb: Written,
    network: Network,
}

impl TxPacket {
    /// # Safety
    ///
    /// The buffer must be as the type's invariants say.
    pub(super) unsafe fn new(skb: Written, network: Network) -> Self {
        // INVARIANT: As the caller promises.
        Self { skb, network }
    }

    /// Sends the packet along `route`; the credit comes back when it is out. It may be as long as the network device's
    /// MTU, whatever ICMP messages say of the path; [`Route::attach`] names exceptions.
    ///
    /// # Context
    ///
    /// Bottom halves disabled.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the route is of another version of IP; `EMSGSIZE` if the packet is longer than the MTU of the network
    /// device; `EAGAIN` if the credit is used up; `ENETUNREACH` if the route no longer stands; `ENOMEM`; otherwise the IP layer's. The packet is gone all the same.
    pub fn send(self, route: &Route, credit: &Arc<TxCount>) -> Result {
        if self.network != route.network() {
            return Err(EINVAL);
        }
        let skb = self.skb.0.as_ptr();
        // SAFETY: Valid by the type invariant.
        let len = unsafe { (*skb).len as usize };
        let skb = self.skb.charge(credit)?;
        let readers = rcu::read_lock();
        // SAFETY: The buffer is ours, has no entry yet, and is sent or freed while `readers` lives.
        let attached = unsafe { route.attach(skb, len, &readers) };
        // SAFETY: As above.
        let net = attached.inspect_err(|_| unsafe { bindings::consume_skb(skb) })?;
        // Some of IPsec takes it that a packet has the socket that the caller of the IP layer names (`iptfs_is_too_big()`,
        // net/xfrm/xfrm_iptfs.c, calls `xfrm_local_error()`, net/xfrm/xfrm_output.c, which dereferences the packet's).
        let socket = match route.is_protected() {
            true => ptr::null_mut(),
            false => credit.socket(route.network()),
        };
        let code = match route.network() {
            // SAFETY: The buffer is complete, ours, and has a route; `net` is that route's. The credit keeps the socket, if any.
            Network::V4 => unsafe { bindings::ip_local_out(net, socket, skb) },
            // SAFETY: As for IPv4.
            Network::V6 => unsafe { bindings::ip6_local_out(net, socket, skb) },
        };
        sent(code)
    }

    /// Turns the packet into one that QP `sender` of this host sent to this host.
    ///
    /// # Errors
    ///
    /// None that occur: both headers are there by the type invariant.
    pub fn into_rx(self, sender: u32) -> Result<RxSkb> {
        let ip_len = match self.network {
            Network::V4 => IPV4_LEN,
            Network::V6 => IPV6_LEN,
        };
        let headers = ip_len.wrapping_add(UDP_LEN) as u32;
        // SAFETY: Valid and ours by the type invariant.
        if unsafe { bindings::skb_pull(self.skb.0.as_ptr(), headers) }.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: By the type invariant both headers are linear and of these lengths; they are pulled now.
        Ok(unsafe { RxSkb::from_local(self.skb.into_raw(), sender) })
    }
}

/// A whole frame of the link layer.
///
/// # Invariants
///
/// `data` is at the start of the frame.
pub struct TxFrame(Written);

impl TxFrame {
    /// The frame that begins at `data` of `skb`.
    pub(super) fn new(skb: Written) -> Self {
        // INVARIANT: The frame is what begins there.
        Self(skb)
    }

    /// As many bytes from the first on as lie in one piece.
    pub fn linear(&self) -> &[u8] {
        // SAFETY: Valid by the type invariant; nobody writes it any more.
        unsafe { linear(self.0 .0) }
    }

    /// The buffer for C.
    pub(super) fn as_ptr(&self) -> *mut bindings::sk_buff {
        self.0 .0.as_ptr()
    }

    /// Sends the frame by `netdev`; the credit comes back when it is out.
    ///
    /// # Context
    ///
    /// Bottom halves disabled.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the link-layer header is not there or not in one piece; `EAGAIN` if the credit is used up; those of the
    /// queueing discipline or the device. The frame is gone all the same.
    pub fn send(self, netdev: &Netdev, credit: &Arc<TxCount>) -> Result {
        let header = netdev.header_len();
        if self.linear().len() < header as usize {
            return Err(EINVAL);
        }
        let skb = self.0.charge(credit)?;
        // SAFETY: The buffer is ours until it is sent; the device is held until after that.
        unsafe { bindings::skb_set_dev(skb, netdev.as_ptr()) };
        // SAFETY: The buffer is ours and starts with the link-layer header.
        unsafe { bindings::skb_reset_mac_header(skb) };
        // SAFETY: As above; so many bytes are linear, as was just checked.
        unsafe { bindings::skb_set_network_header(skb, header as c_int) };
        // SAFETY: As above; device and header are set.
        unsafe { bindings::skb_parse_protocol(skb) };
        // SAFETY: The buffer is complete and given up.
        sent(unsafe { bindings::dev_queue_xmit(skb) })
    }
}

/// The result of a transmission, by the network stack's return value.
fn sent(code: c_int) -> Result {
    match code {
        NET_XMIT_DROP => Err(EAGAIN),
        code if code > 0 => Ok(()),
        code => to_result(code),
    }
}
