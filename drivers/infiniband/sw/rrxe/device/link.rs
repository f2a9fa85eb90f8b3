// SPDX-License-Identifier: GPL-2.0

//! Links: the connections of RDMA devices with the network devices under them. Links create and
//! destroy the RDMA devices.
//!
//! # Locks
//!
//! The netdev notifier takes the lock of the list of links under RTNL. So no function that takes
//! RTNL may be called with that lock held. Registering and unregistering RDMA devices takes RTNL.

use core::sync::atomic::{AtomicBool, Ordering};

use kernel::{
    impl_has_work, new_mutex, new_work,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{ordering, Atomic},
        barrier::{smp_mb, Full},
        Arc, Mutex,
    },
    workqueue::Work,
};
use rdma::{
    device::{
        client::{AnyDevice, ClientRegistration},
        gid::{Gid, GidNetdev},
        link::{LinkHandler, LinkRegistration},
        IbDevice, Unregistered,
    },
    net::{
        netdev::{self, Kind, Netdev, NetdevSlot, Notifier},
        netns::{self, Net, NetnsId, PerNet},
        skb::Ingress,
    },
    verbs::av::{Av, PostedAv},
};
use roce::mtu::Mtu;

use crate::{
    device::{self, disassociate::Deadline, speed, stats::Counter, workqueues::Workqueues, Device},
    net::{
        address_owners::LinkId,
        drops::Drops,
        netns::{NetContext, NetContexts},
    },
    provider::Rrxe,
    verbs::flow::Flows,
    Options,
};

/// Bytes around the payload of a packet with the longest headers: IPv6, UDP, BTH, XRCETH, RETH,
/// immediate data, ICRC.
const OVERHEAD: u32 = 40 + 8 + 12 + 4 + 16 + 4 + 4;

/// Connection of an RDMA device with its network device and its network namespace.
#[pin_data]
pub(crate) struct Link {
    /// The network device, until it goes away or leaves its namespace.
    #[pin]
    netdev: NetdevSlot,
    /// Index of the network device.
    netdev_index: u32,
    /// Key of the link's addresses in the namespace's
    /// [`AddressOwners`](crate::net::address_owners::AddressOwners).
    id: LinkId,
    /// Flow steering rules by which raw packet QPs receive frames of the network device.
    pub(crate) flows: Arc<Flows>,
    /// State that all devices of the network namespace share.
    context: Arc<NetContext>,
    /// The device of ib_core.
    device: ARef<IbDevice>,
    links: Arc<Links>,
    /// Deadline for the flush of the QPs, if the device goes away together with other devices.
    #[pin]
    deadline: Mutex<Option<Deadline>>,
    /// Whether the link counts as a user of `context`.
    open: Atomic<bool>,
    /// Whether ib_core is disabling the device, to unregister it or to move it between namespaces.
    leaving: Atomic<bool>,
    /// Whether the flush of processes' QPs has ended, completed or not. An atomic of `core`, since
    /// each run of a QP's engine reads it, and the `kernel` crate's atomics call C functions.
    flushed: AtomicBool,
    /// Whether the port was active when the notifier was last called.
    active: Atomic<bool>,
    /// Number of times that the port ceased to be active.
    downs: Atomic<u64>,
    /// Last known speed in megabits a second; zero if the network device has never known it.
    speed: Atomic<u32>,
    /// Work item that queries the speed (`speed.rs`).
    #[pin]
    speed_query: Work<Self>,
}

impl_has_work! { impl HasWork<Self> for Link { self.speed_query } }

impl Link {
    /// Returns the state that the link shares with the other devices of its namespace.
    pub(crate) fn context(&self) -> &Arc<NetContext> {
        &self.context
    }

    /// Returns the network device, `None` after it has gone away. Any context but hard interrupts.
    pub(crate) fn netdev(&self) -> Option<Netdev> {
        self.netdev.get()
    }

    /// Has the network device join a multicast group. Process context; takes the RTNL lock.
    ///
    /// # Errors
    ///
    /// Those of [`NetdevSlot::join`].
    pub(crate) fn join(&self, group: Gid) -> Result {
        self.netdev.join(group)
    }

    /// Undoes one [`Self::join`]. Process context; takes the RTNL lock.
    pub(crate) fn leave(&self, group: Gid) {
        self.netdev.leave(group);
    }

    /// Returns whether the administrators of the link's namespace are those of the host.
    pub(crate) fn is_of_host(&self) -> bool {
        self.context.is_of_host
    }

    /// Returns the namespace's counters of packets that reach no QP.
    pub(crate) fn drops(&self) -> &Drops {
        &self.context.drops
    }

    /// Returns the index of the network device. Another network device may have the same index
    /// after this one is gone.
    pub(crate) fn netdev_index(&self) -> u32 {
        self.netdev_index
    }

    /// Returns the device of ib_core.
    pub(crate) fn device(&self) -> &IbDevice {
        &self.device
    }

    /// Returns the largest path MTU that the network device's MTU has room for, and at least 256.
    pub(crate) fn mtu(&self) -> Mtu {
        let bytes = self.netdev().map_or(0, |netdev| netdev.mtu());
        Mtu::fitting(bytes.saturating_sub(OVERHEAD)).unwrap_or(Mtu::Bytes256)
    }

    /// Returns the key of the link's addresses in the namespace's table of address owners.
    pub(crate) fn id(&self) -> LinkId {
        self.id
    }

    /// Adds an address of the device's GID table to the namespace's table of address owners.
    /// Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EADDRNOTAVAIL` for an address in another namespace: a network device there may
    /// have the same index as another network device in the link's namespace. ib_core keeps no
    /// address that is refused, and raises no event for it (`__ib_cache_gid_add()`,
    /// drivers/infiniband/core/cache.c). So the other namespace's administrator can neither fill
    /// the GID table, nor fill the memory with events that processes of this namespace don't read.
    pub(crate) fn add_gid(&self, gid: Gid, netdev: GidNetdev<'_>) -> Result {
        if netdev.net() != self.context.net() {
            return Err(EADDRNOTAVAIL);
        }
        self.context.address_owners.add(gid, netdev, self.id)
    }

    /// Undoes one [`Self::add_gid`]. Any context but hard interrupts.
    pub(crate) fn remove_gid(&self, gid: Gid, netdev_index: u32) {
        self.context
            .address_owners
            .remove(gid, netdev_index, self.id);
    }

    /// Returns whether `gid` is an address of the device on the network device with index
    /// `netdev_index`, in the namespace of the link. Any context but hard interrupts.
    pub(crate) fn has_gid_on(&self, gid: Gid, netdev_index: u32) -> bool {
        self.context
            .address_owners
            .has_on(gid, netdev_index, self.id)
    }

    /// Returns the index of the network device that has the source address of `av`, or that of the
    /// link's own network device if the address is gone.
    pub(crate) fn index_of_source(&self, av: &Av) -> u32 {
        match av.netdev_index {
            0 => self.netdev_index,
            index => index,
        }
    }

    /// Returns whether the source address of `av` is an address of the link. Any context but hard
    /// interrupts.
    pub(crate) fn has_source(&self, av: &Av) -> bool {
        self.has_gid_on(av.sgid, self.index_of_source(av))
    }

    /// Returns whether `gid` is an address of the device. Any context but hard interrupts.
    pub(crate) fn has_gid(&self, gid: Gid) -> bool {
        self.context.address_owners.has(gid, self.id)
    }

    /// Checks that a packet came in by a network device on which its destination is reachable: an
    /// address of the RDMA device, on the network device with index `owner_index`. Any context but
    /// hard interrupts.
    ///
    /// # Errors
    ///
    /// The counter of the drop.
    #[cold]
    pub(crate) fn check_ingress(&self, ingress: Ingress, owner_index: u32) -> Result<(), Counter> {
        match self
            .context
            .address_owners
            .is_reachable(ingress, owner_index, self.id)
        {
            true => Ok(()),
            false => Err(Counter::DropInterface),
        }
    }

    /// Returns the count of changes of the namespace's address owners, as
    /// [`AddressOwners::changes`](crate::net::address_owners::AddressOwners::changes) does.
    #[inline]
    pub(crate) fn address_changes(&self) -> u64 {
        self.context.address_owners.changes()
    }

    /// Checks that `to`, the destination of a packet, is an address of the device, and that the
    /// packet came in by a network device on which the address is reachable. Any context but hard
    /// interrupts.
    ///
    /// # Errors
    ///
    /// The counter of the drop.
    pub(crate) fn check_destination(&self, to: Gid, ingress: Ingress) -> Result<(), Counter> {
        match self.context.address_owners.is_at(to, ingress, self.id) {
            true => Ok(()),
            false if self.has_gid(to) => Err(Counter::DropInterface),
            false => Err(Counter::DropPeer),
        }
    }

    /// Returns the VLAN of the network device with the address `gid`, the destination of a packet
    /// that came in by `ingress`; `None` if there is none. Any context but hard interrupts.
    pub(crate) fn vlan_of(&self, gid: Gid, ingress: Ingress) -> Option<u16> {
        let netdev_index = self
            .context
            .address_owners
            .netdev_at(gid, ingress, self.id)?;
        self.device.vlan_of(gid, &self.netdev()?, netdev_index)
    }

    /// Resolves the address vector that a work request carries. The source of the result is an
    /// address of the device. Any context but hard interrupts.
    ///
    /// # Errors
    ///
    /// Those of [`PostedAv::resolve`]; `EINVAL` if the source is no address of the device.
    pub(crate) fn resolve_av(&self, posted: &PostedAv) -> Result<Av> {
        let av = posted.resolve(&self.device)?;
        self.has_source(&av).then_some(av).ok_or(EINVAL)
    }

    /// Returns the module's work queues.
    pub(crate) fn workqueues(&self) -> &Arc<Workqueues> {
        &self.links.workqueues
    }

    /// Returns the properties that module parameters set. Any context.
    pub(crate) fn options(&self) -> &Options {
        &self.links.options
    }

    /// Releases the network device and the namespace's state, after the device was unregistered or
    /// if it was never registered. Process context; sleeps.
    pub(crate) fn close(&self) {
        self.netdev.clear();
        self.context.cm_budget.forget(self.id);
        if self.open.xchg(false, ordering::Relaxed) {
            self.links.contexts.release(&self.context);
        }
    }

    /// Resets the link's state when ib_core enables the device. Process context.
    pub(crate) fn enable(&self) {
        self.leaving.store(false, ordering::Relaxed);
        self.flushed.store(false, Ordering::Relaxed);
        // ib_core lets no caller take a reference to a device that it moves to another namespace.
        // So `netdev_event` may have got none, and not unregistered the device. From here on it can
        // get one. The code below reads `netdev` after that.
        smp_mb(Full);
        if self.netdev().is_none() {
            self.unregister_later();
        }
    }

    /// Has a work item of ib_core unregister the device, if it is registered. Process context,
    /// under any lock.
    fn unregister_later(&self) {
        if let Some(device) = self.device.try_get() {
            device.unregister_later();
        }
    }

    /// Notes that ib_core is disabling the device.
    pub(crate) fn note_leaving(&self) {
        self.leaving.store(true, ordering::Relaxed);
    }

    /// Notes that the flush of processes' QPs has ended, completed or not. From now on these QPs
    /// run no more.
    pub(crate) fn note_flushed(&self) {
        self.flushed.store(true, Ordering::Relaxed);
    }

    /// Returns whether processes' QPs run no more, because ib_core is about to destroy them. Any
    /// context.
    #[inline]
    pub(crate) fn has_flushed(&self) -> bool {
        self.flushed.load(Ordering::Relaxed)
    }

    /// Checks whether a process's call, for which an unregistration waits, may go on. Any context.
    ///
    /// # Errors
    ///
    /// `EIO` if ib_core is disabling the device. Later calls of the process fail with `EIO`, too.
    pub(crate) fn check_stays(&self) -> Result {
        match self.leaving.load(ordering::Relaxed) {
            true => Err(EIO),
            false => Ok(()),
        }
    }

    /// Stores whether the port is active, and counts the times that it ceased to be active.
    fn cache_state(&self, active: bool) {
        if self.active.xchg(active, ordering::Relaxed) && !active {
            self.downs.add(1, ordering::Relaxed);
        }
    }

    /// Stores the speed, in megabits a second. Returns whether it differs from the last known one;
    /// `false` if the speed is unknown (`None`).
    pub(crate) fn note_speed(&self, speed: Option<u32>) -> bool {
        match speed {
            Some(speed) => self.speed.xchg(speed, ordering::Relaxed) != speed,
            None => false,
        }
    }

    /// Returns how often the port ceased to be active.
    pub(crate) fn downs(&self) -> u64 {
        self.downs.load(ordering::Relaxed)
    }

    /// Returns the deadline for the flush of the QPs, if the device goes away together with other
    /// devices. Process context.
    pub(crate) fn deadline(&self) -> Option<Deadline> {
        *self.deadline.lock()
    }

    /// Returns whether `device` is the RDMA device of this link.
    pub(crate) fn is_of(&self, device: &AnyDevice) -> bool {
        device.is(&self.device)
    }

    /// Returns whether the network device is `netdev`.
    fn is_on(&self, netdev: &Netdev) -> bool {
        self.netdev().is_some_and(|own| own == *netdev)
    }
}

/// List of all links of the module.
#[pin_data]
pub(crate) struct Links {
    #[pin]
    entries: Mutex<KVec<Arc<Link>>>,
    #[pin]
    contexts: NetContexts,
    workqueues: Arc<Workqueues>,
    options: Options,
}

impl Links {
    fn new(workqueues: Arc<Workqueues>, options: Options) -> Result<Arc<Self>> {
        Arc::pin_init(
            try_pin_init!(Self {
                entries <- new_mutex!(KVec::new(), "rrxe_links"),
                contexts <- NetContexts::new(options.burst_icrcs),
                workqueues,
                options,
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the first link for which `wanted` returns true.
    pub(crate) fn find(&self, wanted: impl Fn(&Link) -> bool) -> Option<Arc<Link>> {
        let entries = self.entries.lock();
        entries.iter().find(|link| wanted(link)).cloned()
    }

    /// Adds a link to the list.
    ///
    /// # Errors
    ///
    /// `EEXIST` if the list has a link on the same network device; `ENOMEM`.
    fn insert(&self, link: &Arc<Link>, netdev: &Netdev) -> Result {
        let mut entries = self.entries.lock();
        if entries.iter().any(|other| other.is_on(netdev)) {
            return Err(EEXIST);
        }
        entries.push(link.clone(), GFP_KERNEL)?;
        Ok(())
    }

    /// Removes a link from the list.
    fn remove(&self, link: &Link) {
        let mut entries = self.entries.lock();
        entries.retain(|other| !core::ptr::eq(&**other, link));
    }

    /// Unregisters all devices for whose links `wanted` returns true, and waits until that is done.
    /// Their QPs have one common deadline for their flush. Process context; sleeps.
    ///
    /// A link stays in the list until a call of this function has waited for its unregistration,
    /// even if the device is already gone. The thread that unregistered that device may still be
    /// executing code of this module.
    fn unregister(&self, wanted: impl Fn(&Link) -> bool) {
        let deadline = Deadline::new();
        for link in self.entries.lock().iter().filter(|link| wanted(link)) {
            *link.deadline.lock() = Some(deadline);
        }
        while let Some(link) = self.find(&wanted) {
            link.device.unregister();
            // This call closes the link of a device that was never registered. `Rrxe::disable`, the
            // last operation on a registered device, has closed the device's link already.
            link.close();
            self.remove(&link);
        }
    }

    /// Checks whether `netdev` is fit for an RDMA device, and logs why not.
    ///
    /// # Errors
    ///
    /// `EPERM` if it is a VLAN, `EINVAL` if it is of an unsupported kind, `EEXIST` if it has an
    /// RDMA device.
    fn check(&self, netdev: &Netdev) -> Result {
        let name = netdev.name();
        let name = name.as_c_str();
        if netdev.is_vlan() {
            pr_err!("{name}: is a VLAN device; add the link to its lower device\n");
            return Err(EPERM);
        }
        if netdev.kind() == Kind::Other {
            pr_err!("{name}: is neither an Ethernet nor a raw IP device\n");
            return Err(EINVAL);
        }
        if self.find(|link| link.is_on(netdev)).is_some() {
            pr_err!("{name}: has a link already\n");
            return Err(EEXIST);
        }
        Ok(())
    }

    /// Creates and registers a device named `name` on `netdev` in the namespace `net`. The caller
    /// has acquired `context` for the device. On failure this function releases it.
    fn add(
        self: &Arc<Self>,
        name: &CStr,
        netdev: &Netdev,
        net: &Net,
        context: &Arc<NetContext>,
    ) -> Result<Arc<Link>> {
        let active = netdev.is_active();
        let speed = netdev.speed().unwrap_or(0);
        let mut entered = None;
        let guid = device::guid(netdev);
        let description = Device::describe(guid, self.options.shares_xrcds);
        let made = Unregistered::<Rrxe>::new(net, &description, |device| {
            let flows = Flows::new(&context.readers)?;
            let init = pin_init!(Link {
                flows,
                netdev_index: netdev.index(),
                id: context.address_owners.new_link(),
                netdev <- NetdevSlot::new(netdev.clone()),
                context: context.clone(),
                device,
                links: self.clone(),
                deadline <- new_mutex!(None, "rrxe_deadline"),
                open: Atomic::new(true),
                leaving: Atomic::new(false),
                flushed: AtomicBool::new(false),
                active: Atomic::new(active),
                downs: Atomic::new(0),
                speed: Atomic::new(speed),
                speed_query <- new_work!("Link::speed_query"),
            });
            let link = Arc::pin_init(init, GFP_KERNEL)?;
            self.insert(&link, netdev)?;
            entered = Some(link.clone());
            Device::new(link, guid)
        });
        let registered = made.and_then(|device| device.register(name));
        match (registered, entered) {
            (Ok(()), Some(link)) => Ok(link),
            (Err(error), Some(link)) => {
                let parent = netdev.name();
                pr_err!(
                    "{}: cannot create device {name}: {error:?}\n",
                    parent.as_c_str()
                );
                link.close();
                self.remove(&link);
                Err(error)
            }
            (result, None) => {
                self.contexts.release(context);
                result.and(Err(EINVAL))
            }
        }
    }
}

/// Handler of the netlink command that `rdma link add` sends.
struct LinkType(Arc<Links>);

impl LinkHandler for LinkType {
    fn new_link(&self, name: &CStr, netdev: Netdev) -> Result {
        let links = &self.0;
        // Removes the links whose devices ib_core has unregistered.
        links.unregister(|link| !link.open.load(ordering::Relaxed));
        links.check(&netdev)?;
        // `net` keeps the namespace from ending before this function returns. So `net_exit` finds
        // the link.
        let net = netdev.hold_net().ok_or(ENODEV)?;
        let context = links.contexts.acquire(&net)?;
        let link = links.add(name, &netdev, &net, &context)?;
        // The network device may have gone away or changed its namespace before the notifier could
        // find the link.
        let moved = !netdev.is_registered() || netdev.net_id() != net.id();
        // The network device may also have left the namespace and come back. If the notifier found
        // the link then, it has cleared the link's slot.
        if moved || link.netdev().is_none() || netdev.index() != link.netdev_index {
            link.device.unregister();
            return Err(ENODEV);
        }
        Ok(())
    }
}

impl netdev::Observer for Links {
    fn netdev_event(&self, netdev: &Netdev, event: netdev::Event) {
        let Some(link) = self.find(|link| link.is_on(netdev)) else {
            return;
        };
        match event {
            netdev::Event::State => {
                link.cache_state(netdev.is_active());
                speed::query_later(&link);
                if let Some(device) = link.device.try_get() {
                    device.port_state(netdev);
                }
            }
            netdev::Event::Unregister => {
                link.netdev.clear();
                link.flows.close();
                // Pairs with the barrier in `Link::enable`: either this call can take a reference
                // to the device, or `enable` finds no network device.
                smp_mb(Full);
                link.unregister_later();
            }
        }
    }
}

impl netns::Observer for Links {
    fn net_exit(&self, net: NetnsId) {
        self.unregister(|link| link.context.net() == net);
    }
}

/// The module's registrations with the kernel. Dropping the value unregisters all devices.
pub(crate) struct Service {
    links: Arc<Links>,
    namespaces: Option<PerNet<Links>>,
    notifier: Option<Notifier<Links>>,
    client: Option<ClientRegistration<Links>>,
    link_type: Option<LinkRegistration<LinkType>>,
}

impl Service {
    /// Registers the link type. The devices that users create use `workqueues` and `options`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn start(
        link_type: &'static CStr,
        workqueues: Arc<Workqueues>,
        options: Options,
    ) -> Result<Self> {
        let links = Links::new(workqueues, options)?;
        let mut service = Self {
            links: links.clone(),
            namespaces: None,
            notifier: None,
            client: None,
            link_type: None,
        };
        service.namespaces = Some(PerNet::new(links.clone())?);
        service.notifier = Some(Notifier::new(links.clone())?);
        service.client = Some(ClientRegistration::new(link_type, links.clone())?);
        let handler = Arc::new(LinkType(links), GFP_KERNEL)?;
        service.link_type = Some(LinkRegistration::new(link_type, handler)?);
        Ok(service)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Users must be unable to add devices before the devices are unregistered. The devices must
        // be unregistered before the notifier: `unregister_netdevice_notifier()` (net/core/dev.c)
        // reports all network devices to the notifier as unregistered, and QPs that end need the
        // network devices, to leave groups and to send to their peers.
        self.link_type = None;
        self.links.unregister(|_| true);
        self.notifier = None;
        self.client = None;
        self.namespaces = None;
        self.links.contexts.drain();
    }
}
