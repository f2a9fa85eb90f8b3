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
    rx::{ip_len, RxSkb, UDP_LEN},
};
use crate::{
    bindings,
    device::gid::Network,
    net::{netdev::Netdev, route::Route, tx_limit::TxCount},
};

const NET_XMIT_DROP: c_int = bindings::NET_XMIT_DROP as c_int;

/// A buffer whose bytes have all been written, and will not be written again.
///
/// # Invariants
///
/// The buffer is valid, and `self` alone owns it. It has no clone and no `frag_list`. All its bytes
/// were written, and no code writes them while they are shared.
pub(super) struct Written(NonNull<bindings::sk_buff>);

impl Written {
    /// Takes over a buffer.
    ///
    /// # Safety
    ///
    /// The buffer must be as the type's invariants say, and the caller gives it up.
    pub(super) unsafe fn new(skb: NonNull<bindings::sk_buff>) -> Self {
        // INVARIANT: The caller guarantees that the buffer is as the invariants say (see
        // `# Safety`).
        Self(skb)
    }

    /// Returns the buffer, which is valid as long as `self`.
    pub(super) fn as_ptr(&self) -> *mut bindings::sk_buff {
        self.0.as_ptr()
    }

    /// Returns the number of bytes from `data` on.
    pub(super) fn len(&self) -> u32 {
        // SAFETY: The buffer is valid by the type invariant.
        unsafe { (*self.0.as_ptr()).len }
    }

    /// Counts the buffer as `count` packets in flight, and returns the buffer to send.
    ///
    /// # Errors
    ///
    /// Returns `EAGAIN` if the sender has as many packets in flight as its tx limit allows
    /// (`net/tx_limit.rs`), and `ENOMEM` if there is no memory.
    fn charge(self, count: u32, tx_count: &Arc<TxCount>) -> Result<*mut bindings::sk_buff> {
        // SAFETY: By the type invariant `self` owns the buffer, which has no clone. It was built
        // without a destructor and a socket.
        let sent = unsafe { tx_count.charge(self.0.as_ptr(), count) }?;
        // Either this buffer is to be sent, or a clone of it is, and `tx_count` keeps this buffer.
        let _ = self.into_raw();
        Ok(sent)
    }

    /// Gives up the ownership of the buffer.
    pub(super) fn into_raw(self) -> NonNull<bindings::sk_buff> {
        ManuallyDrop::new(self).0
    }

    /// Sends `count` packets of the IP version `network`, as [`TxPacket::send`] does. The longest
    /// packet has `len` bytes, IP header included.
    pub(super) fn transmit(
        self,
        network: Network,
        count: u32,
        len: usize,
        route: &Route,
        tx_count: &Arc<TxCount>,
    ) -> Result {
        if network != route.network() {
            return Err(EINVAL);
        }
        let skb = self.charge(count, tx_count)?;
        let readers = rcu::read_lock();
        // SAFETY: This function owns the buffer, which has no `dst_entry` yet, and sends or frees
        // it while `readers` lives.
        let attached = unsafe { route.attach(skb, len, &readers) };
        // SAFETY: This function owns the buffer, which is not used again.
        let net = attached.inspect_err(|_| unsafe { bindings::consume_skb(skb) })?;
        // A part of IPsec expects a packet's own socket to be the one that was passed to the IP
        // layer (`iptfs_is_too_big()`, net/xfrm/xfrm_iptfs.c, calls `xfrm_local_error()`,
        // net/xfrm/xfrm_output.c, which dereferences the packet's socket).
        let socket = match route.is_protected() {
            true => ptr::null_mut(),
            false => tx_count.socket(route.network()),
        };
        let code = match route.network() {
            // SAFETY: This function gives the complete buffer up, which has a route. `net` is the
            // namespace of that route. The socket, if there is one, is valid as long as `tx_count`.
            Network::V4 => unsafe { bindings::ip_local_out(net, socket, skb) },
            // SAFETY: This function gives the complete buffer up, which has a route. `net` is the
            // namespace of that route. The socket, if there is one, is valid as long as `tx_count`.
            Network::V6 => unsafe { bindings::ip6_local_out(net, socket, skb) },
        };
        sent(code)
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        // SAFETY: By the type invariant `self` owns the buffer, which is not used again.
        unsafe { bindings::consume_skb(self.0.as_ptr()) };
    }
}

/// A packet with an IP header and a UDP header.
///
/// # Invariants
///
/// The network header is set, and at `data`: the first 20 bytes (IPv4) or 40 bytes (IPv6). Its IP
/// version is `network`, and an IPv4 header has no options. The network header and the 8 bytes
/// behind it are linear.
pub struct TxPacket {
    skb: Written,
    network: Network,
}

impl TxPacket {
    /// Creates the packet from its buffer.
    ///
    /// # Safety
    ///
    /// The buffer must be as the type's invariants say.
    pub(super) unsafe fn new(skb: Written, network: Network) -> Self {
        // INVARIANT: The caller guarantees that the buffer is as the invariants say (see
        // `# Safety`).
        Self { skb, network }
    }

    /// Sends the packet along `route` (`ip_local_out()`, `ip6_local_out()`), and counts it in
    /// `tx_count` while it is in flight.
    ///
    /// The packet may be as long as the network device's MTU, even if ICMP messages have reduced
    /// the path's MTU. [`Route::attach`] names the exceptions.
    ///
    /// # Context
    ///
    /// Bottom halves disabled.
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` if the route is of another IP version; `EMSGSIZE` if the packet is longer
    /// than the MTU of the network device; `EAGAIN` if the sender has reached its tx limit or the
    /// network stack drops the packet; `ENETUNREACH` if the route is no longer valid; `ENOMEM` if
    /// there is no memory; otherwise the error of [`Route::attach`] or of the IP layer. The packet
    /// is freed then.
    #[inline]
    pub fn send(self, route: &Route, tx_count: &Arc<TxCount>) -> Result {
        let (skb, network) = self.into_parts();
        let len = skb.len() as usize;
        skb.transmit(network, 1, len, route, tx_count)
    }

    /// Returns the buffer, which is valid as long as `self`.
    pub(super) fn as_ptr(&self) -> *mut bindings::sk_buff {
        self.skb.as_ptr()
    }

    /// Returns the IP version.
    pub(super) fn network(&self) -> Network {
        self.network
    }

    /// Gives up the buffer and its IP version.
    pub(super) fn into_parts(self) -> (Written, Network) {
        (self.skb, self.network)
    }

    /// Turns the packet into a received one, which QP `sender` of this host sent to this host.
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` if a header is missing, which the type invariant excludes.
    pub fn into_rx(self, sender: u32) -> Result<RxSkb> {
        let headers = ip_len(self.network).wrapping_add(UDP_LEN) as u32;
        // SAFETY: By the type invariant `self` owns the valid buffer.
        if unsafe { bindings::skb_pull(self.skb.0.as_ptr(), headers) }.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: By the type invariant both headers are linear and have these lengths. They have
        // just been pulled. The buffer is given up.
        Ok(unsafe { RxSkb::from_local(self.skb.into_raw(), sender, false) })
    }
}

/// A complete frame of the link layer.
///
/// # Invariants
///
/// `data` is at the start of the frame.
pub struct TxFrame(Written);

impl TxFrame {
    /// Creates the frame that begins at `data` of `skb`.
    pub(super) fn new(skb: Written) -> Self {
        // INVARIANT: The frame begins at `data` by definition.
        Self(skb)
    }

    /// Returns the linear part of the frame, which begins with its first byte.
    pub fn linear(&self) -> &[u8] {
        // SAFETY: The buffer is valid by the type invariant. No code writes it any more.
        unsafe { linear(self.0 .0) }
    }

    /// Returns the buffer for C functions. It is valid as long as `self`.
    pub(super) fn as_ptr(&self) -> *mut bindings::sk_buff {
        self.0 .0.as_ptr()
    }

    /// Sends the frame by `netdev` (`dev_queue_xmit()`), and counts it in `tx_count` while it is in
    /// flight.
    ///
    /// # Context
    ///
    /// Bottom halves disabled.
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` if the link-layer header is missing or not linear; `EAGAIN` if the sender
    /// has reached its tx limit or the queueing discipline drops the frame; `ENOMEM` if there is no
    /// memory; otherwise the error of the queueing discipline or the device. The frame is freed
    /// then.
    pub fn send(self, netdev: &Netdev, tx_count: &Arc<TxCount>) -> Result {
        let header = netdev.header_len();
        if self.linear().len() < header as usize {
            return Err(EINVAL);
        }
        let skb = self.0.charge(1, tx_count)?;
        // SAFETY: This function owns the buffer until it is sent. The device is held until after
        // that.
        unsafe { bindings::skb_set_dev(skb, netdev.as_ptr()) };
        // SAFETY: This function owns the buffer, which starts with the link-layer header.
        unsafe { bindings::skb_reset_mac_header(skb) };
        // SAFETY: This function owns the buffer, which starts with `header` linear bytes, as was
        // checked above.
        unsafe { bindings::skb_set_network_header(skb, header as c_int) };
        // SAFETY: This function owns the buffer, whose device and headers are set.
        unsafe { bindings::skb_parse_protocol(skb) };
        // SAFETY: This function gives the complete buffer up.
        sent(unsafe { bindings::dev_queue_xmit(skb) })
    }
}

/// Returns the result of a transmission from the network stack's return value.
fn sent(code: c_int) -> Result {
    match code {
        NET_XMIT_DROP => Err(EAGAIN),
        code if code > 0 => Ok(()),
        code => to_result(code),
    }
}
