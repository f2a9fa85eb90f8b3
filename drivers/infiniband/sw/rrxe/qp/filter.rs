// SPDX-License-Identifier: GPL-2.0

//! A QP's peer as receivers see it that don't have the turn.
//!
//! The packet of a stranger, who may be another QP of this host, is refused here, before its ICRC is computed and before
//! it takes a place in the inbox. So is a datagram that came by a wrong network device. The holder of the turn compares once
//! more with the path itself, which may have changed meanwhile.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rdma::{
    device::gid::Gid,
    net::skb::{Endpoints, Ingress},
};
use roce::{ids::Qpn, qp::QpKind};

use crate::device::{link::Link, stats::Counter};

/// Source, destination, network device and sender of the packets that a QP takes.
#[derive(Clone, Copy)]
pub(crate) struct Admission {
    pub(crate) endpoints: Endpoints,
    /// Index of the network device that has their destination.
    pub(crate) netdev_index: u32,
    /// The QP that sends them.
    pub(crate) remote: Qpn,
}

impl Admission {
    /// Whether a packet is such a one. One of a QP of this host has no network device, but a known `sender`: any user
    /// may make a QP with the path of another one's peer.
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

/// Whose packets a QP takes.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum Whose {
    /// Nobody's: it isn't connected.
    Nobodys,
    /// Its peer's.
    Peers,
    /// Anybody's: datagrams.
    Anybodys,
}

/// The copy. Any context.
///
/// The holder of the turn writes it. `version` is odd meanwhile, as that of a seqlock; but readers don't wait, they
/// leave the decision to the holder of the turn.
pub(crate) struct Filter {
    version: AtomicU32,
    whose: AtomicU32,
    netdev_index: AtomicU32,
    remote: AtomicU32,
    source: [AtomicU64; 2],
    destination: [AtomicU64; 2],
}

impl Filter {
    /// Of a QP in RESET.
    pub(crate) fn new(kind: QpKind) -> Self {
        let whose = match kind {
            QpKind::Ud | QpKind::Gsi => Whose::Anybodys,
            _ => Whose::Nobodys,
        };
        Self {
            version: AtomicU32::new(0),
            whose: AtomicU32::new(whose as u32),
            netdev_index: AtomicU32::new(0),
            remote: AtomicU32::new(0),
            source: [const { AtomicU64::new(0) }; 2],
            destination: [const { AtomicU64::new(0) }; 2],
        }
    }

    /// From now on the QP takes packets of this peer, or of nobody. Under the turn. Has no effect on one that takes
    /// anybody's.
    pub(crate) fn set(&self, peer: Option<Admission>) {
        if self.whose.load(Ordering::Relaxed) == Whose::Anybodys as u32 {
            return;
        }
        let version = self.version.load(Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(1), Ordering::Relaxed);
        let whose = match peer {
            Some(_) => Whose::Peers,
            None => Whose::Nobodys,
        };
        // Each store releases: who sees a new value sees the odd version, too.
        if let Some(peer) = peer {
            write(&self.source, peer.endpoints.source);
            write(&self.destination, peer.endpoints.destination);
            self.netdev_index
                .store(peer.netdev_index, Ordering::Release);
            self.remote.store(peer.remote.get(), Ordering::Release);
        }
        self.whose.store(whose as u32, Ordering::Release);
        self.version
            .store(version.wrapping_add(2), Ordering::Release);
    }

    /// Whether the QP takes packets of one peer: from RTR on, until RESET. Any context.
    pub(crate) fn has_peer(&self) -> bool {
        self.whose.load(Ordering::Relaxed) == Whose::Peers as u32
    }

    /// Refuses a packet that isn't the peer's; `sender` as for [`Admission::check`]. Who is admitted may still be refused by
    /// the holder of the turn.
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
        let whose = self.whose.load(Ordering::Acquire);
        if whose == Whose::Anybodys as u32 {
            return check_home(link, endpoints.destination, ingress);
        }
        let wanted = Admission {
            endpoints: Endpoints {
                source: read(&self.source),
                destination: read(&self.destination),
            },
            netdev_index: self.netdev_index.load(Ordering::Acquire),
            remote: Qpn::new(self.remote.load(Ordering::Acquire)),
        };
        let verdict = match whose == Whose::Peers as u32 {
            true => wanted.check(link, endpoints, ingress, sender),
            false => Err(Counter::DropPeer),
        };
        // The loads above acquire, so this one comes after them.
        if version & 1 != 0 || self.version.load(Ordering::Relaxed) != version {
            return Ok(());
        }
        verdict
    }
}

/// Refuses a datagram that came by a network device that doesn't lead to its destination. Most come
/// by the link's own, or by none: of these the holder of the turn compares the destination, which
/// takes no lock while that stays the same.
///
/// # Errors
///
/// The counter of the reason.
#[inline]
fn check_home(link: &Link, to: Gid, ingress: Ingress) -> Result<(), Counter> {
    if ingress.is_none() || ingress.is_by(link.netdev_index()) {
        return Ok(());
    }
    link.check_home(to, ingress)
}

fn write(words: &[AtomicU64; 2], gid: Gid) {
    let value = u128::from_ne_bytes(gid.0);
    let [low, high] = words;
    low.store(value as u64, Ordering::Release);
    high.store((value >> 64) as u64, Ordering::Release);
}

#[inline]
fn read(words: &[AtomicU64; 2]) -> Gid {
    let [low, high] = words;
    let low = u128::from(low.load(Ordering::Acquire));
    let high = u128::from(high.load(Ordering::Acquire));
    Gid((high << 64 | low).to_ne_bytes())
}
