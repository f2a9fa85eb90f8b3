// SPDX-License-Identifier: GPL-2.0

//! Packet filter of a QP. Receivers without the turn lock (`qp/turn.rs`) check a packet with it,
//! before the ICRC is computed and before the packet is queued in the inbox.
//!
//! The filter of a connected QP has a copy of the addresses and the network device that its packets
//! must have, and of the peer's QPN. It refuses packets of another sender, maybe of another QP of
//! this host, and packets that came by a network device that does not lead to their destination.
//! The filter of a QP of a connected type without a peer refuses all packets. The filter of a
//! datagram QP refuses datagrams that came by a network device other than the link's own, if that
//! device does not lead to their destination. The holder of the turn lock checks each packet once
//! more (`qp/peer.rs`), because the peer may have changed meanwhile.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rdma::{
    device::gid::Gid,
    net::skb::{Endpoints, Ingress},
};
use roce::{ids::Qpn, qp::QpKind};

use crate::device::{link::Link, stats::Counter};

/// Addresses, network device and sender of the packets that a connected QP takes.
#[derive(Clone, Copy)]
pub(crate) struct Admission {
    /// Source and destination address.
    pub(crate) endpoints: Endpoints,
    /// Index of the network device that has the destination address.
    pub(crate) netdev_index: u32,
    /// Number of the QP that sends the packets.
    pub(crate) remote: Qpn,
}

impl Admission {
    /// Checks whether a packet matches. `sender` is the number of the sending QP if that is a QP of
    /// this host. Such a packet came by no network device, so the sender is compared instead: any
    /// user may create a QP whose path equals that of another QP's peer.
    ///
    /// # Errors
    ///
    /// The counter of the reason.
    #[inline]
    pub(crate) fn check(
        &self,
        link: &Link,
        endpoints: &Endpoints,
        ingress: Ingress,
        sender: Option<u32>,
    ) -> Result<(), Counter> {
        let is_other = sender.is_some_and(|sender| sender != self.remote.get());
        if is_other || *endpoints != self.endpoints {
            return Err(Counter::DropPeer);
        }
        if ingress.is_none() || ingress.is_by(self.netdev_index) {
            return Ok(());
        }
        link.check_ingress(ingress, self.netdev_index)
    }
}

/// Senders whose packets a QP takes.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum Accepts {
    /// No sender: the QP is not connected.
    NoSender,
    /// The peer.
    Peer,
    /// Any sender: datagram QPs.
    AnySender,
}

/// The packet filter. Any context up to softirq.
///
/// The holder of the turn lock writes it. `version` is odd during a write, as in a seqlock. Readers
/// do not wait for a writer: they admit the packet, and the holder of the turn lock decides.
pub(crate) struct Filter {
    /// Even number that changes with each write; odd during a write.
    version: AtomicU32,
    /// A value of [`Accepts`].
    accepts: AtomicU32,
    /// Value of [`Admission::netdev_index`].
    netdev_index: AtomicU32,
    /// Value of [`Admission::remote`].
    remote: AtomicU32,
    /// Source address of the packets, in two halves.
    source: [AtomicU64; 2],
    /// Destination address of the packets, in two halves.
    destination: [AtomicU64; 2],
}

impl Filter {
    /// Creates the filter of a QP in RESET.
    pub(crate) fn new(kind: QpKind) -> Self {
        let accepts = match kind {
            QpKind::Ud | QpKind::Gsi => Accepts::AnySender,
            _ => Accepts::NoSender,
        };
        Self {
            version: AtomicU32::new(0),
            accepts: AtomicU32::new(accepts as u32),
            netdev_index: AtomicU32::new(0),
            remote: AtomicU32::new(0),
            source: [const { AtomicU64::new(0) }; 2],
            destination: [const { AtomicU64::new(0) }; 2],
        }
    }

    /// Sets the peer whose packets the QP takes from now on, or none. Has no effect on a datagram
    /// QP. The turn lock is held.
    pub(crate) fn set(&self, peer: Option<Admission>) {
        if self.accepts.load(Ordering::Relaxed) == Accepts::AnySender as u32 {
            return;
        }
        let version = self.version.load(Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(1), Ordering::Relaxed);
        let accepts = match peer {
            Some(_) => Accepts::Peer,
            None => Accepts::NoSender,
        };
        // Each store has release semantics: a reader that sees a new value sees the odd version,
        // too.
        if let Some(peer) = peer {
            write(&self.source, peer.endpoints.source);
            write(&self.destination, peer.endpoints.destination);
            self.netdev_index
                .store(peer.netdev_index, Ordering::Release);
            self.remote.store(peer.remote.get(), Ordering::Release);
        }
        self.accepts.store(accepts as u32, Ordering::Release);
        self.version
            .store(version.wrapping_add(2), Ordering::Release);
    }

    /// Returns whether the QP takes packets of one peer, as it does from RTR until RESET. Any
    /// context.
    pub(crate) fn has_peer(&self) -> bool {
        self.accepts.load(Ordering::Relaxed) == Accepts::Peer as u32
    }

    /// Refuses a packet that the QP must not take. `sender` is as for [`Admission::check`]. The
    /// holder of the turn lock may still refuse a packet that is admitted here.
    ///
    /// - A connected QP takes packets of its peer that came by a network device that leads to their
    ///   destination.
    /// - A QP of a connected type without a peer takes no packet, nor does a raw packet QP.
    /// - A datagram QP takes datagrams that came by the link's own network device or from this
    ///   host. Of other datagrams it takes those to an address of the RDMA device that came by a
    ///   network device that leads to this address.
    ///
    /// # Errors
    ///
    /// The counter of the reason.
    #[inline]
    pub(crate) fn check(
        &self,
        link: &Link,
        endpoints: &Endpoints,
        ingress: Ingress,
        sender: Option<u32>,
    ) -> Result<(), Counter> {
        let version = self.version.load(Ordering::Acquire);
        let accepts = self.accepts.load(Ordering::Acquire);
        if accepts == Accepts::AnySender as u32 {
            return check_destination(link, endpoints.destination, ingress);
        }
        let wanted = Admission {
            endpoints: Endpoints {
                source: read(&self.source),
                destination: read(&self.destination),
            },
            netdev_index: self.netdev_index.load(Ordering::Acquire),
            remote: Qpn::new(self.remote.load(Ordering::Acquire)),
        };
        let verdict = match accepts == Accepts::Peer as u32 {
            true => wanted.check(link, endpoints, ingress, sender),
            false => Err(Counter::DropPeer),
        };
        // The loads above have acquire semantics, so this load comes after them.
        if version & 1 != 0 || self.version.load(Ordering::Relaxed) != version {
            return Ok(());
        }
        verdict
    }
}

/// Refuses a datagram that came by a network device other than the link's own, unless that device
/// leads to the datagram's destination, an address of the RDMA device.
///
/// Most datagrams came by the link's own network device, or from this host. They are admitted here.
/// The holder of the turn lock checks their destination, and takes no other lock as long as the
/// destination, the network device and the namespace's addresses stay the same.
///
/// # Errors
///
/// The counter of the reason.
#[inline]
fn check_destination(link: &Link, to: Gid, ingress: Ingress) -> Result<(), Counter> {
    if ingress.is_none() || ingress.is_by(link.netdev_index()) {
        return Ok(());
    }
    link.check_destination(to, ingress)
}

/// Stores a GID in two halves, with release semantics.
fn write(words: &[AtomicU64; 2], gid: Gid) {
    let value = u128::from_ne_bytes(gid.0);
    let [low, high] = words;
    low.store(value as u64, Ordering::Release);
    high.store((value >> 64) as u64, Ordering::Release);
}

/// Loads a GID from two halves, with acquire semantics.
#[inline]
fn read(words: &[AtomicU64; 2]) -> Gid {
    let [low, high] = words;
    let low = u128::from(low.load(Ordering::Acquire));
    let high = u128::from(high.load(Ordering::Acquire));
    Gid((high << 64 | low).to_ne_bytes())
}
