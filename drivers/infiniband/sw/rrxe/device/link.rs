// SPDX-License-Identifier: GPL-2.0

//! Devices and the network devices under them: how devices come and go.
//!
//! # Locks
//!
//! The list of links is looked at under RTNL (by the notifier), so nothing that takes RTNL may be
//! called with it held; registering and unregistering devices does.

use core::sync::atomic::{AtomicBool, Ordering};

use kernel::{
    impl_has_work, new_mutex, new_work,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{ordering, Atomic},
        Arc, Mutex,
    },
    workqueue::Work,
};
use rdma::{
    device::{
        client::{AnyDevice, ClientRegistration},
        gid::{Gid, GidPlace},
        link::{LinkHandler, LinkRegistration},
        IbDevice, Unregistered,
    },
    net::{
        netdev::{self, Kind, Netdev, NetdevSlot, Notifier},
        netns::{self, Net, NetId, PerNet},
        skb::Ingress,
    },
    support::sync::smp_mb,
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
};

/// Bytes around the payload of the longest packet that has one: IPv6, UDP, BTH, XRCETH, RETH,
/// immediate data, ICRC.
const OVERHEAD: u32 = 40 + 8 + 12 + 4 + 16 + 4 + 4;

/// What ties a device to its network device and namespace.
#[pin_data]
pub(crate) struct Link {
    #[pin]
    netdev: NetdevSlot,
    netdev_index: u32,
    /// By what its addresses are known in the namespace.
    id: LinkId,
    /// By what rules frames of the network device go to QPs.
    pub(crate) flows: Arc<Flows>,
    context: Arc<NetContext>,
    device: ARef<IbDevice>,
    links: Arc<Links>,
    /// Until when its QPs may flush, if it goes away together with other devices.
    #[pin]
    deadline: Mutex<Option<Deadline>>,
    /// Counts as a user of `context`.
    open: Atomic<bool>,
    /// ib_core is taking the device away from its users.
    leaving: Atomic<bool>,
    /// The QPs of processes have flushed, or had their time for it. One of `core`'s atomics: it is read
    /// every turn, and the kernel's are calls of C.
    flushed: AtomicBool,
    active: Atomic<bool>,
    downs: Atomic<u64>,
    /// Megabits a second when last looked at; zero if the network device doesn't say.
    speed: Atomic<u32>,
    /// Looks at the speed (`speed.rs`).
    #[pin]
    look: Work<Self>,
}

impl_has_work! { impl HasWork<Self> for Link { self.look } }

impl Link {
    /// What it shares with the other devices of its namespace.
    pub(crate) fn context(&self) -> &Arc<NetContext> {
        &self.context
    }

    /// The network device; `None` once that goes away. Any context.
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

    /// Whether the administrators of its namespace are those of the host.
    pub(crate) fn is_of_host(&self) -> bool {
        self.context.is_of_host
    }

    /// Where packets in error are counted.
    pub(crate) fn drops(&self) -> &Drops {
        &self.context.drops
    }

    /// Its index, which another may have once it is gone.
    pub(crate) fn netdev_index(&self) -> u32 {
        self.netdev_index
    }

    /// The device as ib_core sees it.
    pub(crate) fn device(&self) -> &IbDevice {
        &self.device
    }

    /// The largest path MTU that the network device's MTU has room for, 256 at least.
    pub(crate) fn mtu(&self) -> Mtu {
        let bytes = self.netdev().map_or(0, |netdev| netdev.mtu());
        Mtu::fitting(bytes.saturating_sub(OVERHEAD)).unwrap_or(Mtu::Bytes256)
    }

    /// By what its addresses are known in the namespace.
    pub(crate) fn id(&self) -> LinkId {
        self.id
    }

    /// Takes note of an address of the device. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EADDRNOTAVAIL` for an address in another namespace. There network devices have other indexes, which the
    /// namespace's administrator chooses. ib_core keeps no address that is refused, and raises no event for it
    /// (`__ib_cache_gid_add()`, drivers/infiniband/core/cache.c): so that administrator can't fill the table, nor the
    /// memory with events that other processes don't read.
    pub(crate) fn add_gid(&self, gid: Gid, place: GidPlace<'_>) -> Result {
        if place.net() != self.context.net() {
            return Err(EADDRNOTAVAIL);
        }
        self.context.address_owners.add(gid, place, self.id)
    }

    /// Undoes one [`Self::add_gid`]. Any context but hard interrupts.
    pub(crate) fn remove_gid(&self, gid: Gid, netdev_index: u32) {
        self.context
            .address_owners
            .remove(gid, netdev_index, self.id);
    }

    /// Whether `gid` is an address of the device on the network device of this index, in the namespace of the link. Any
    /// context but hard interrupts.
    pub(crate) fn has_gid_on(&self, gid: Gid, netdev_index: u32) -> bool {
        self.context
            .address_owners
            .has_on(gid, netdev_index, self.id)
    }

    /// The index of the network device that has the source address of `av`; that of the link's own if the address is gone.
    pub(crate) fn index_of_source(&self, av: &Av) -> u32 {
        match av.netdev_index {
            0 => self.netdev_index,
            index => index,
        }
    }

    /// Whether the source address of `av` is an address of the link. Any context but hard interrupts.
    pub(crate) fn has_source(&self, av: &Av) -> bool {
        self.has_gid_on(av.sgid, self.index_of_source(av))
    }

    /// Whether `gid` is an address of the device. Any context but hard interrupts.
    pub(crate) fn has_gid(&self, gid: Gid) -> bool {
        self.context.address_owners.has(gid, self.id)
    }

    /// Refuses a packet to an address of the device, on the network device of index `home`, that came by one that doesn't
    /// lead there. Any context but hard interrupts.
    ///
    /// # Errors
    ///
    /// What to count.
    #[cold]
    pub(crate) fn check_ingress(&self, ingress: Ingress, home: u32) -> Result<(), Counter> {
        match self.context.address_owners.leads(ingress, home, self.id) {
            true => Ok(()),
            false => Err(Counter::DropInterface),
        }
    }

    /// As [`AddressOwners::changes`].
    #[inline]
    pub(crate) fn home_changes(&self) -> u64 {
        self.context.address_owners.changes()
    }

    /// Refuses packets to addresses that aren't the device's, or are and came by a network device that doesn't lead
    /// there. Any context but hard interrupts.
    ///
    /// # Errors
    ///
    /// What to count.
    pub(crate) fn check_home(&self, to: Gid, ingress: Ingress) -> Result<(), Counter> {
        match self.context.address_owners.is_at(to, ingress, self.id) {
            true => Ok(()),
            false if self.has_gid(to) => Err(Counter::DropInterface),
            false => Err(Counter::DropPeer),
        }
    }

    /// The VLAN of the network device with address `gid` that a packet is for, if it is one's. Any context but hard
    /// interrupts.
    pub(crate) fn vlan_of(&self, gid: Gid, ingress: Ingress) -> Option<u16> {
        let netdev_index = self
            .context
            .address_owners
            .netdev_at(gid, ingress, self.id)?;
        self.device.vlan_of(gid, &self.netdev()?, netdev_index)
    }

    /// The address vector that a work request carries, with the device's address as its source. Any
    /// context but hard interrupts.
    ///
    /// # Errors
    ///
    /// Those of [`PostedAv::resolve`]; `EINVAL` if the source is in another namespace.
    pub(crate) fn source(&self, posted: &PostedAv) -> Result<Av> {
        let av = posted.resolve(&self.device)?;
        self.has_source(&av).then_some(av).ok_or(EINVAL)
    }

    /// Where QPs run when nobody else runs them.
    pub(crate) fn workqueues(&self) -> &Arc<Workqueues> {
        &self.links.workqueues
    }

    /// Processes share XRC domains by a file. Any context.
    pub(crate) fn shares_xrcds(&self) -> bool {
        self.links.shares_xrcds
    }

    /// The device is gone, or never came about: lets go of everything. Process context; sleeps.
    pub(crate) fn close(&self) {
        self.netdev.clear();
        self.context.cm_budget.forget(self.id);
        if self.open.xchg(false, ordering::Relaxed) {
            self.links.contexts.release(&self.context);
        }
    }

    /// ib_core is about to give the device to users. Process context.
    pub(crate) fn enable(&self) {
        self.leaving.store(false, ordering::Relaxed);
        self.flushed.store(false, Ordering::Relaxed);
        // ib_core lets nobody count a device that it moves to another namespace, so `netdev_event` may not have unregistered
        // it. The count is visible before this looks for the network device.
        smp_mb();
        if self.netdev().is_none() {
            self.unregister_later();
        }
    }

    /// Has ib_core unregister the device, if it is registered. Process context, under any lock.
    fn unregister_later(&self) {
        if let Some(device) = self.device.try_get() {
            device.unregister_later();
        }
    }

    /// Notes that ib_core is taking the device away from its users.
    pub(crate) fn note_leaving(&self) {
        self.leaving.store(true, ordering::Relaxed);
    }

    /// Notes that the QPs of processes have flushed, or had their time for it: they take no more turns.
    pub(crate) fn note_flushed(&self) {
        self.flushed.store(true, Ordering::Relaxed);
    }

    /// Whether the QPs of processes take no more turns, because ib_core is about to destroy them. Any
    /// context.
    #[inline]
    pub(crate) fn has_flushed(&self) -> bool {
        self.flushed.load(Ordering::Relaxed)
    }

    /// Says whether a process's call may go on: unregistration waits for it. Any context.
    ///
    /// # Errors
    ///
    /// `EIO`, as of later calls, when the device is being taken away.
    pub(crate) fn check_stays(&self) -> Result {
        match self.leaving.load(ordering::Relaxed) {
            true => Err(EIO),
            false => Ok(()),
        }
    }

    /// Notes whether the port is active, and how often it ceased to be.
    fn cache_state(&self, active: bool) {
        if self.active.xchg(active, ordering::Relaxed) && !active {
            self.downs.add(1, ordering::Relaxed);
        }
    }

    /// Notes the speed, and returns whether it is another. What isn't known is no other.
    pub(crate) fn note_speed(&self, speed: Option<u32>) -> bool {
        match speed {
            Some(speed) => self.speed.xchg(speed, ordering::Relaxed) != speed,
            None => false,
        }
    }

    /// How often the port ceased to be active.
    pub(crate) fn downs(&self) -> u64 {
        self.downs.load(ordering::Relaxed)
    }

    /// Until when its QPs may flush, if it goes away together with other devices. Process context.
    pub(crate) fn deadline(&self) -> Option<Deadline> {
        *self.deadline.lock()
    }

    /// Whether `device` is what this ties.
    pub(crate) fn is_of(&self, device: &AnyDevice) -> bool {
        device.is(&self.device)
    }

    fn is_on(&self, netdev: &Netdev) -> bool {
        self.netdev().is_some_and(|own| own == *netdev)
    }
}

/// All links of the module.
#[pin_data]
pub(crate) struct Links {
    #[pin]
    entries: Mutex<KVec<Arc<Link>>>,
    #[pin]
    contexts: NetContexts,
    workqueues: Arc<Workqueues>,
    /// Processes share XRC domains and QPs.
    shares_xrcds: bool,
}

impl Links {
    fn new(workqueues: Arc<Workqueues>, shares_xrcds: bool) -> Result<Arc<Self>> {
        Arc::pin_init(
            try_pin_init!(Self {
                entries <- new_mutex!(KVec::new(), "rrxe_links"),
                contexts <- NetContexts::new(),
                workqueues,
                shares_xrcds,
            }),
            GFP_KERNEL,
        )
    }

    /// The first link that is `wanted`.
    pub(crate) fn find(&self, wanted: impl Fn(&Link) -> bool) -> Option<Arc<Link>> {
        let entries = self.entries.lock();
        entries.iter().find(|link| wanted(link)).cloned()
    }

    /// Enters a link.
    ///
    /// # Errors
    ///
    /// `EEXIST` if there is one on the same network device, `ENOMEM`.
    fn enter(&self, link: &Arc<Link>, netdev: &Netdev) -> Result {
        let mut entries = self.entries.lock();
        if entries.iter().any(|other| other.is_on(netdev)) {
            return Err(EEXIST);
        }
        entries.push(link.clone(), GFP_KERNEL)?;
        Ok(())
    }

    /// Strikes a link off the list.
    fn forget(&self, link: &Link) {
        let mut entries = self.entries.lock();
        entries.retain(|other| !core::ptr::eq(&**other, link));
    }

    /// Unregisters all devices whose link is `wanted`, and waits for it. Their QPs flush until one
    /// deadline.
    ///
    /// A link stays in the list until somebody has waited so, even if its device is gone: whoever
    /// unregistered that may still be on the way out of this module's code.
    fn unregister(&self, wanted: impl Fn(&Link) -> bool) {
        let deadline = Deadline::new();
        for link in self.entries.lock().iter().filter(|link| wanted(link)) {
            *link.deadline.lock() = Some(deadline);
        }
        while let Some(link) = self.find(&wanted) {
            link.device.unregister();
            // The last operation on the device has done so.
            link.close();
            self.forget(&link);
        }
    }

    /// Says what makes `netdev` unfit for a device.
    ///
    /// # Errors
    ///
    /// `EPERM` if it is a VLAN, `EINVAL` if it is of a wrong kind, `EEXIST` if it has a device.
    fn check(&self, netdev: &Netdev) -> Result {
        let name = netdev.name();
        let name = name.as_c_str();
        if netdev.is_vlan() {
            pr_err!("{name}: is a VLAN; add a link to the device under it\n");
            return Err(EPERM);
        }
        if netdev.kind() == Kind::Other {
            pr_err!("{name}: is neither Ethernet nor IP only\n");
            return Err(EINVAL);
        }
        if self.find(|link| link.is_on(netdev)).is_some() {
            pr_err!("{name}: has a link already\n");
            return Err(EEXIST);
        }
        Ok(())
    }

    /// Makes a device on `netdev` in namespace `net`, whose context has been acquired for it.
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
        let description = Device::describe(guid, self.shares_xrcds);
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
                look <- new_work!("Link::look"),
            });
            let link = Arc::pin_init(init, GFP_KERNEL)?;
            self.enter(&link, netdev)?;
            entered = Some(link.clone());
            Device::new(link, guid)
        });
        let registered = made.and_then(|device| device.register(name));
        match (registered, entered) {
            (Ok(()), Some(link)) => Ok(link),
            (Err(error), Some(link)) => {
                let parent = netdev.name();
                pr_err!("{}: no device {name}: {error:?}\n", parent.as_c_str());
                link.close();
                self.forget(&link);
                Err(error)
            }
            (result, None) => {
                self.contexts.release(context);
                result.and(Err(EINVAL))
            }
        }
    }
}

/// What `rdma link add` calls.
struct LinkType(Arc<Links>);

impl LinkHandler for LinkType {
    fn new_link(&self, name: &CStr, netdev: Netdev) -> Result {
        let links = &self.0;
        links.unregister(|link| !link.open.load(ordering::Relaxed));
        links.check(&netdev)?;
        // The namespace ends only after this, so `net_exit` finds the link.
        let net = netdev.hold_net().ok_or(ENODEV)?;
        let context = links.contexts.acquire(&net)?;
        let link = links.add(name, &netdev, &net, &context)?;
        // It may have gone, or to another namespace, before the notifier could find the link.
        let moved = !netdev.is_registered() || netdev.net_id() != net.id();
        // Or it went and came back, which its link has noticed, if it had found the link before.
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
                speed::look_later(&link);
                if let Some(device) = link.device.try_get() {
                    device.port_state(netdev);
                }
            }
            netdev::Event::Unregister => {
                link.netdev.clear();
                link.flows.close();
                // Either the device is counted below, or `Link::enable` finds no network device.
                smp_mb();
                link.unregister_later();
            }
        }
    }
}

impl netns::Observer for Links {
    fn net_exit(&self, net: NetId) {
        self.unregister(|link| link.context.net() == net);
    }
}

/// What the module has registered with the kernel. Dropping it takes all devices away.
pub(crate) struct Service {
    links: Arc<Links>,
    namespaces: Option<PerNet<Links>>,
    notifier: Option<Notifier<Links>>,
    client: Option<ClientRegistration<Links>>,
    link_type: Option<LinkRegistration<LinkType>>,
}

impl Service {
    /// Lets users make devices, whose QPs `workqueues` run when nobody else does. Processes share XRC domains and QPs of
    /// them if `shares_xrcds` is set.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn start(
        link_type: &'static CStr,
        workqueues: Arc<Workqueues>,
        shares_xrcds: bool,
    ) -> Result<Self> {
        let links = Links::new(workqueues, shares_xrcds)?;
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
        // No new devices, then no devices, then nothing that could call this module. The end of the notifier looks like that of all
        // network devices (`unregister_netdevice_notifier()`, net/core/dev.c), and QPs leave groups and tell their peers of their
        // end by these.
        self.link_type = None;
        self.links.unregister(|_| true);
        self.notifier = None;
        self.client = None;
        self.namespaces = None;
        self.links.contexts.drain();
    }
}
