// SPDX-License-Identifier: GPL-2.0

//! The state that all RDMA devices of one network namespace share: the UDP port and the QP numbers.
//!
//! RoCEv2 has one UDP port, which one socket of a namespace can bind. So the packets of all devices
//! in a namespace come in through the same socket, and a QP's number is unique among these devices.

use kernel::{
    new_mutex,
    prelude::*,
    sync::{Arc, ArcBorrow, Mutex},
};
use rdma::{
    device::gid::{Gid, Network},
    net::{
        netns::{Net, NetnsId},
        skb::{Backlog, Discard, Ingress, RxSkb, TxPages},
        tx_limit::TxLimits,
        udp::{OpenError, Receiver, UdpSocket},
    },
    support::{
        read_section::ReadSections,
        table::{LastLookup, Table},
    },
};

use roce::{ids::Qpn, wire::UDP_PORT};

use crate::{
    gsi::CmBudget,
    net::{address_owners::AddressOwners, drops::Drops, rx},
    qp::Qp,
    verbs::mcast::Groups,
};

/// Shared state of the devices of a network namespace that has at least one device.
///
/// It may outlive the namespace, but its sockets don't.
#[pin_data]
pub(crate) struct NetContext {
    /// Identifier of the namespace.
    net: NetnsId,
    /// Whether the namespace's administrators are those of the host.
    pub(crate) is_of_host: bool,
    /// QPs of the namespace's devices, except GSI QPs, by number.
    #[pin]
    qps: Table<Qp>,
    /// GSI QPs of the devices. All have the number 1, so a packet's destination address selects the
    /// QP.
    #[pin]
    gsis: Table<Qp>,
    /// Multicast groups to which the QPs are attached.
    #[pin]
    pub(crate) groups: Groups,
    /// Addresses of the devices.
    #[pin]
    pub(crate) address_owners: AddressOwners,
    /// Read-side critical sections of these tables, and of the tables of the devices.
    pub(crate) readers: Arc<ReadSections>,
    /// Limit of the packets and frames that wait for the QPs.
    pub(crate) backlog: Arc<Backlog>,
    /// Counters of packets that were dropped before a QP received them.
    pub(crate) drops: Drops,
    /// Budget of requests to ib_cm, used if the namespace's administrators are not those of the
    /// host.
    #[pin]
    pub(crate) cm_budget: CmBudget,
    /// Tx limits (limits of packets in flight) of all QPs of the module, including those of this
    /// namespace.
    pub(crate) tx_limits: Arc<TxLimits>,
    /// Memory of the payload of the bursts of all QPs of the module.
    pub(crate) tx_pages: Arc<TxPages>,
    /// Whether the ICRC of a burst covers the payload.
    pub(crate) burst_icrcs: bool,
    /// Sockets of the UDP port, open while the namespace has devices.
    #[pin]
    sockets: Mutex<Option<Sockets>>,
}

/// Sockets that receive RoCEv2 packets. There is none for IPv6 if the kernel runs without IPv6.
struct Sockets {
    _v4: UdpSocket<NetContext>,
    _v6: Option<UdpSocket<NetContext>>,
}

impl Receiver for NetContext {
    fn receive(this: ArcBorrow<'_, Self>, skb: RxSkb) {
        rx::receive(&this, skb);
    }

    fn refuse(this: ArcBorrow<'_, Self>, why: Discard) {
        this.drops.count(why);
    }
}

impl NetContext {
    /// Opens the UDP port in the namespace `net`.
    fn open(net: &Net, all: &NetContexts) -> Result<Arc<Self>> {
        all.tx_limits.complete()?;
        let readers = Arc::new(ReadSections::new()?, GFP_KERNEL)?;
        let context = Arc::pin_init(
            try_pin_init!(Self {
                is_of_host: net.is_of_host(),
                net: net.id(),
                qps <- Table::new(u32::MAX, &readers),
                gsis <- Table::new(u32::MAX, &readers),
                groups <- Groups::new(),
                address_owners <- AddressOwners::new(),
                readers,
                backlog: Backlog::new()?,
                drops: Drops::new(),
                cm_budget <- CmBudget::new()?,
                tx_limits: all.tx_limits.clone(),
                tx_pages: all.tx_pages.clone(),
                burst_icrcs: all.burst_icrcs,
                sockets <- new_mutex!(None, "rrxe_sockets"),
            }),
            GFP_KERNEL,
        )?;
        let sockets = Sockets {
            _v4: open_socket(net, Network::V4, &context).map_err(log_port_busy)?,
            _v6: match open_socket(net, Network::V6, &context) {
                Err(OpenError::NoNetwork) => None,
                socket => Some(socket.map_err(log_port_busy)?),
            },
        };
        *context.sockets.lock() = Some(sockets);
        Ok(context)
    }

    /// Closes the UDP port. When this returns, the sockets deliver no more packets to QPs. Process
    /// context; sleeps.
    fn close(&self) {
        let sockets = self.sockets.lock().take();
        drop(sockets);
    }

    /// Returns the table of QPs with this number. The index of a QP in its table is its number,
    /// except for GSI QPs.
    pub(crate) fn qps(&self, qpn: Qpn) -> &Table<Qp> {
        if qpn == Qpn::GSI {
            &self.gsis
        } else {
            &self.qps
        }
    }

    /// Runs `f` on the QP that a packet to the QP number `qpn` and the address `to` is for.
    /// `ingress` is the network device through which the packet came in. `f` must not sleep. Any
    /// context but hard interrupts.
    pub(crate) fn with_qp<R>(
        &self,
        qpn: Qpn,
        to: Gid,
        ingress: Ingress,
        f: impl FnOnce(ArcBorrow<'_, Qp>) -> R,
    ) -> Option<R> {
        if qpn != Qpn::GSI {
            return self.qps.with(qpn.get(), f);
        }
        let link = self.address_owners.link_at(to, ingress)?;
        let (mut f, mut result) = (Some(f), None);
        // Visits at most as many QPs as there are devices.
        self.gsis.for_each_while(|_, qp| {
            if qp.device.link.id() == link {
                result = f.take().map(|f| f(qp));
            }
            f.is_some()
        });
        result
    }

    /// Does the same as [`Self::with_qp`] for a packet that a QP of this host sends. `recent`
    /// caches the look-up.
    pub(crate) fn with_cached_qp<R>(
        &self,
        recent: &mut LastLookup<Qp>,
        qpn: Qpn,
        to: Gid,
        f: impl FnOnce(ArcBorrow<'_, Qp>) -> R,
    ) -> Option<R> {
        if qpn == Qpn::GSI {
            return self.with_qp(qpn, to, Ingress::default(), f);
        }
        self.qps.with_cached(recent, qpn.get(), f)
    }

    /// Returns the identifier of the namespace.
    pub(crate) fn net(&self) -> NetnsId {
        self.net
    }
}

fn open_socket(
    net: &Net,
    network: Network,
    context: &Arc<NetContext>,
) -> Result<UdpSocket<NetContext>, OpenError> {
    UdpSocket::open(net, network, UDP_PORT, context.clone())
}

/// Logs the reason if the UDP port is in use, which the error code alone does not tell the user.
/// Returns the error code.
fn log_port_busy(error: OpenError) -> Error {
    if matches!(error, OpenError::PortBusy) {
        pr_err!("UDP port {UDP_PORT} of this network namespace is in use, possibly by rdma_rxe\n");
    }
    error.to_error()
}

/// The network namespaces that have devices.
#[pin_data]
pub(crate) struct NetContexts {
    /// Namespaces with their numbers of devices.
    #[pin]
    entries: Mutex<KVec<Entry>>,
    tx_limits: Arc<TxLimits>,
    tx_pages: Arc<TxPages>,
    burst_icrcs: bool,
}

/// A namespace with devices.
struct Entry {
    context: Arc<NetContext>,
    /// Number of the namespace's devices.
    devices: usize,
}

impl NetContexts {
    /// Initialises the list, without namespaces. The ICRC of a burst covers the payload if
    /// `burst_icrcs` is set.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(burst_icrcs: bool) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            entries <- new_mutex!(KVec::new(), "rrxe_contexts"),
            tx_limits: TxLimits::new()?,
            tx_pages: TxPages::new()?,
            burst_icrcs,
        })
    }

    /// Replaces the destructors of packets in flight, so that these packets hold no reference to an
    /// object of this module, and waits for the end of destructors that are code of this module. No
    /// device may exist any more. Process context; sleeps.
    pub(crate) fn drain(&self) {
        self.tx_limits.drain();
    }

    /// Returns the context of the namespace `net`, and counts one more device in it. Process
    /// context; sleeps.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE` if another socket has the UDP port; `ENOMEM`; other errors of the creation and
    /// the bind of a socket.
    pub(crate) fn acquire(&self, net: &Net) -> Result<Arc<NetContext>> {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries
            .iter_mut()
            .find(|entry| entry.context.net == net.id())
        {
            entry.devices = entry.devices.saturating_add(1);
            return Ok(entry.context.clone());
        }
        entries.reserve(1, GFP_KERNEL)?;
        let context = NetContext::open(net, self)?;
        let entry = Entry {
            context: context.clone(),
            devices: 1,
        };
        entries.push(entry, GFP_KERNEL)?;
        Ok(context)
    }

    /// Counts one device less in `context`. Closes the UDP port after the last device. Process
    /// context; sleeps.
    pub(crate) fn release(&self, context: &Arc<NetContext>) {
        let mut entries = self.entries.lock();
        let Some(index) = entries
            .iter()
            .position(|entry| Arc::ptr_eq(&entry.context, context))
        else {
            return;
        };
        let Some(entry) = entries.get_mut(index) else {
            return;
        };
        entry.devices = entry.devices.saturating_sub(1);
        if entry.devices == 0 {
            // Closed under the lock, so that a concurrent `acquire` doesn't find the port still in
            // use.
            context.close();
            let _ = entries.remove(index);
        }
    }
}
