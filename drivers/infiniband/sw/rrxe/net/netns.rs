// SPDX-License-Identifier: GPL-2.0

//! What the devices of one network namespace share: the UDP port, and the numbers of QPs.
//!
//! RoCEv2 has one UDP port, which one socket of a namespace can have. So packets of all devices in
//! it come in together, and a QP's number is unique among them.

use kernel::{
    new_mutex,
    prelude::*,
    sync::{Arc, ArcBorrow, Mutex},
};
use rdma::{
    device::gid::{Gid, Network},
    net::{
        netns::{Net, NetId},
        skb::{Backlog, Discard, Ingress, RxSkb},
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

/// A network namespace with at least one device.
///
/// It may outlive the namespace, but its sockets don't.
#[pin_data]
pub(crate) struct NetContext {
    net: NetId,
    /// Whether its administrators are those of the host.
    pub(crate) is_of_host: bool,
    /// All QPs of the namespace's devices.
    #[pin]
    qps: Table<Qp>,
    /// The GSI QPs of the devices, which all have number 1: a packet's address tells which it is for.
    #[pin]
    gsis: Table<Qp>,
    /// The multicast groups that they are in.
    #[pin]
    pub(crate) groups: Groups,
    /// Their addresses.
    #[pin]
    pub(crate) address_owners: AddressOwners,
    /// Who looks at these tables, and at those of the devices.
    pub(crate) readers: Arc<ReadSections>,
    /// Packets and frames that wait for its QPs.
    pub(crate) backlog: Arc<Backlog>,
    /// Packets that no QP could be blamed for.
    pub(crate) drops: Drops,
    /// Its questions to ib_core's connection management, if its administrators are not those of the host.
    #[pin]
    pub(crate) cm_budget: CmBudget,
    /// Those of its QPs are among these.
    pub(crate) credits: Arc<TxLimits>,
    /// Open while there are devices.
    #[pin]
    sockets: Mutex<Option<Sockets>>,
}

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
    /// Opens the UDP port in namespace `net`.
    fn open(net: &Net, credits: Arc<TxLimits>) -> Result<Arc<Self>> {
        credits.complete()?;
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
                credits,
                sockets <- new_mutex!(None, "rrxe_sockets"),
            }),
            GFP_KERNEL,
        )?;
        let sockets = Sockets {
            _v4: open_socket(net, Network::V4, &context).map_err(refusal)?,
            _v6: match open_socket(net, Network::V6, &context) {
                Err(OpenError::NoNetwork) => None,
                socket => Some(socket.map_err(refusal)?),
            },
        };
        *context.sockets.lock() = Some(sockets);
        Ok(context)
    }

    /// Closes the UDP port. When this returns no packet is on its way to a QP.
    fn close(&self) {
        let sockets = self.sockets.lock().take();
        drop(sockets);
    }

    /// Where QPs with this number, or kind of number, have their places. The place of all but GSI QPs is
    /// their number.
    pub(crate) fn qps(&self, qpn: Qpn) -> &Table<Qp> {
        if qpn == Qpn::GSI {
            &self.gsis
        } else {
            &self.qps
        }
    }

    /// Runs `f` on the QP that a packet to number `qpn` at address `to` is for, given by which network device it came.
    /// `f` must not sleep. Any context but hard interrupts.
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
        // As many as there are devices.
        self.gsis.for_each_while(|_, qp| {
            if qp.device.link.id() == link {
                result = f.take().map(|f| f(qp));
            }
            f.is_some()
        });
        result
    }

    /// As [`Self::with_qp`], for a QP of this host whose packets all go to the same QP.
    pub(crate) fn with_recent_qp<R>(
        &self,
        recent: &mut LastLookup<Qp>,
        qpn: Qpn,
        to: Gid,
        f: impl FnOnce(ArcBorrow<'_, Qp>) -> R,
    ) -> Option<R> {
        if qpn == Qpn::GSI {
            return self.with_qp(qpn, to, Ingress::default(), f);
        }
        self.qps.with_recent(recent, qpn.get(), f)
    }

    /// Which namespace it is.
    pub(crate) fn net(&self) -> NetId {
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

/// Tells the administrator what users can't see from the error.
fn refusal(error: OpenError) -> Error {
    if matches!(error, OpenError::PortBusy) {
        pr_err!("UDP port {UDP_PORT} of this network namespace is taken, perhaps by rdma_rxe\n");
    }
    error.to_error()
}

/// The namespaces that have devices.
#[pin_data]
pub(crate) struct NetContexts {
    #[pin]
    users: Mutex<KVec<User>>,
    credits: Arc<TxLimits>,
}

struct User {
    context: Arc<NetContext>,
    /// Devices in it.
    devices: usize,
}

impl NetContexts {
    /// None yet.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            users <- new_mutex!(KVec::new(), "rrxe_contexts"),
            credits: TxLimits::new()?,
        })
    }

    /// Takes back packets in flight, and waits for the end of code that packets call. There is no device any more. Process
    /// context; sleeps.
    pub(crate) fn drain(&self) {
        self.credits.drain();
    }

    /// The context of namespace `net`, for one more device. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE` when somebody has the UDP port, `ENOMEM`.
    pub(crate) fn acquire(&self, net: &Net) -> Result<Arc<NetContext>> {
        let mut users = self.users.lock();
        if let Some(user) = users.iter_mut().find(|user| user.context.net == net.id()) {
            user.devices = user.devices.saturating_add(1);
            return Ok(user.context.clone());
        }
        users.reserve(1, GFP_KERNEL)?;
        let context = NetContext::open(net, self.credits.clone())?;
        let user = User {
            context: context.clone(),
            devices: 1,
        };
        users.push(user, GFP_KERNEL)?;
        Ok(context)
    }

    /// One device less in `context`. Closes the UDP port behind the last one. Process context;
    /// sleeps.
    pub(crate) fn release(&self, context: &Arc<NetContext>) {
        let mut users = self.users.lock();
        let Some(index) = users
            .iter()
            .position(|user| Arc::ptr_eq(&user.context, context))
        else {
            return;
        };
        let Some(user) = users.get_mut(index) else {
            return;
        };
        user.devices = user.devices.saturating_sub(1);
        if user.devices == 0 {
            // Under the lock, so that nobody who comes now finds the port still in use.
            context.close();
            let _ = users.remove(index);
        }
    }
}
