// SPDX-License-Identifier: GPL-2.0

//! The device: what is its own, and what it tells about itself and its port.

pub(crate) mod disassociate;
pub(crate) mod link;
pub(crate) mod speed;
pub(crate) mod stats;
pub(crate) mod workqueues;

use kernel::{
    prelude::*,
    sync::{
        atomic::{ordering, Atomic},
        Arc,
    },
};
use rdma::{
    device::{
        attr::{
            DeviceAttributes, DeviceCaps, PortAttributes, PortChange, PortState,
            CONNECTION_MANAGEMENT,
        },
        mad::PortCounters,
        Description,
    },
    net::netdev::Netdev,
    support::{quota::Quota, table::Table},
};
use roce::{mtu::Mtu, wire::MAX_MESSAGE};

use crate::{
    device::{
        link::Link,
        stats::{Counter, Counters},
        workqueues::Workqueues,
    },
    gsi::{CmQueue, Senders},
    limits,
    memory::mr::MrTable,
    verbs::{ah::Ah, mcast::Attachments, srq::Srq},
};

/// The module's version.
pub(crate) const VERSION: [u16; 3] = [0, 1, 0];
/// The same for humans.
pub(crate) const VERSION_TEXT: &CStr = c"rrxe 0.1.0";
/// The vendor of software devices.
const VENDOR: u32 = 0xff_ffff;
/// Every page size from 4 KiB up.
const PAGE_SIZES: u64 = 0xffff_f000;
/// What rdma_rxe reports; only one partition exists, but tools ask for these.
const MAX_PKEYS: u16 = 64;
/// 4.096 µs · 2¹⁵ = 134 ms: how late this host may acknowledge.
const ACK_DELAY: u8 = 15;

/// A device.
///
/// Held by ib_core's device until that is unregistered, and by all objects on the device.
#[pin_data]
pub(crate) struct Device {
    /// What ties it to its network device and namespace.
    pub(crate) link: Arc<Link>,
    /// Its memory regions.
    #[pin]
    pub(crate) mrs: MrTable,
    /// The multicast groups that it is in.
    #[pin]
    pub(crate) mcast: Attachments,
    /// The address handles that processes name.
    #[pin]
    pub(crate) ahs: Table<Ah>,
    /// Its shared receive queues.
    #[pin]
    pub(crate) srqs: Table<Srq>,
    /// How many more protection domains,
    pub(crate) pds: Arc<Quota>,
    /// CQs
    pub(crate) cqs: Arc<Quota>,
    /// QPs
    pub(crate) qps: Arc<Quota>,
    /// and bytes of device memory it may have.
    pub(crate) dm: Arc<Quota>,
    /// The senders of questions to its GSI QP.
    #[pin]
    pub(crate) senders: Senders,
    /// The datagrams of its GSI QP that wait for connection management.
    #[pin]
    pub(crate) cm_queue: CmQueue,
    /// Its port's counters.
    pub(crate) counters: Arc<Counters>,
    /// Other sets of counters, which QPs are bound to, …
    #[pin]
    counter_sets: Table<Counters>,
    /// … and the sum of those that are gone.
    retired: Counters,
    /// Where QPs run when nobody else runs them.
    pub(crate) workqueues: Arc<Workqueues>,
    sys_image_guid: Atomic<u64>,
    /// Capabilities that its port's users have declared.
    capabilities: Atomic<u32>,
    /// Q_Key violations that the port no longer shows.
    forgiven: Atomic<u64>,
}

impl Device {
    /// The identity of a device with this GUID. Its processes share QPs if `shares_qps` is set.
    pub(crate) fn describe(guid: u64, shares_qps: bool) -> Description {
        Description {
            node_guid: guid,
            node_description: c"rrxe",
            shares_qps,
        }
    }

    /// A device on `link`, still unknown to users. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(link: Arc<Link>, guid: u64) -> Result<Arc<Self>> {
        let readers = link.context().readers.clone();
        Arc::pin_init(
            try_pin_init!(Self {
                mrs <- MrTable::new(&readers),
                workqueues: link.workqueues().clone(),
                link,
                mcast <- Attachments::new(),
                ahs <- Table::new(limits::MAX_AH, &readers),
                srqs <- Table::new(limits::MAX_SRQ, &readers),
                pds: Quota::new(limits::MAX_PD)?,
                cqs: Quota::new(limits::MAX_CQ)?,
                qps: Quota::new(limits::MAX_QP)?,
                dm: Quota::new(limits::DEVICE_MEMORY)?,
                senders <- Senders::new()?,
                cm_queue <- CmQueue::new(),
                counters: Arc::new(Counters::new(), GFP_KERNEL)?,
                counter_sets <- Table::new(limits::MAX_QP, &readers),
                retired: Counters::new(),
                sys_image_guid: Atomic::new(guid),
                capabilities: Atomic::new(0),
                forgiven: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }

    /// The largest path MTU at present. Any context.
    pub(crate) fn active_mtu(&self) -> Mtu {
        self.link.mtu()
    }

    /// Sets the GUID of the system image.
    pub(crate) fn set_sys_image_guid(&self, guid: u64) {
        self.sys_image_guid.store(guid, ordering::Relaxed);
    }

    /// The value of the counter with the name [`crate::device::stats::NAMES`]`[index]`.
    pub(crate) fn counter(&self, index: usize) -> u64 {
        self.counters.set(Counter::LinkDowned, self.link.downs());
        self.counters.value(index, &self.link.context().drops)
    }

    /// Makes a set of counters, all zero, and its number. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, also when there are too many.
    pub(crate) fn alloc_counter_set(&self) -> Result<(u32, Arc<Counters>)> {
        let place = self.counter_sets.reserve(limits::COUNTER_SETS)?;
        let set = Arc::new(Counters::new(), GFP_KERNEL_ACCOUNT)?;
        let id = place.id();
        place.publish(set.clone());
        Ok((id, set))
    }

    /// Frees the number of a set. Process context; sleeps.
    pub(crate) fn dealloc_counter_set(&self, id: u32) {
        if let Some(set) = self.counter_sets.remove(id) {
            self.retired.absorb(&set);
        }
    }

    /// The value of a counter with those of all sets. Process context.
    fn total(&self, counter: Counter) -> u64 {
        let mut sum = self
            .counters
            .get(counter)
            .wrapping_add(self.retired.get(counter));
        self.counter_sets
            .for_each(|_, set| sum = sum.wrapping_add(set.get(counter)));
        sum
    }

    /// What performance management counts: as packets in error what isn't a packet, and all payload,
    /// but not headers, as data. Process context.
    pub(crate) fn port_counters(&self) -> PortCounters {
        PortCounters {
            link_downed: self.link.downs(),
            received_errors: self.link.context().drops.errors(),
            sent_discards: self.total(Counter::SendError),
            sent_bytes: self.total(Counter::SentBytes),
            received_bytes: self.total(Counter::ReceivedBytes),
            sent_packets: self.total(Counter::SentPackets),
            received_packets: self.total(Counter::ReceivedPackets),
        }
    }

    /// What it can do.
    pub(crate) fn attributes(&self) -> DeviceAttributes {
        DeviceAttributes {
            firmware: VERSION,
            sys_image_guid: self.sys_image_guid.load(ordering::Relaxed),
            caps: DeviceCaps::BAD_PKEY_COUNTER
                | DeviceCaps::BAD_QKEY_COUNTER
                | DeviceCaps::CHANGE_PORT
                | DeviceCaps::UD_AV_PORT_ENFORCE
                | DeviceCaps::PORT_ACTIVE_EVENT
                | DeviceCaps::SYS_IMAGE_GUID
                | DeviceCaps::RC_RNR_NAK
                | DeviceCaps::XRC
                | DeviceCaps::MEM_MGT_EXTENSIONS
                | DeviceCaps::MANAGED_FLOW_STEERING
                | DeviceCaps::SRQ_RESIZE
                | DeviceCaps::MEM_WINDOW
                | DeviceCaps::MEM_WINDOW_2B
                | DeviceCaps::FLUSH_GLOBAL
                | DeviceCaps::FLUSH_PERSISTENT
                | DeviceCaps::ATOMIC_WRITE,
            vendor_id: VENDOR,
            page_sizes: PAGE_SIZES,
            max_mr_size: u64::MAX,
            max_qp: limits::MAX_QP,
            max_qp_wr: limits::MAX_QP_WR,
            max_send_sge: limits::MAX_SGE,
            max_recv_sge: limits::MAX_SGE,
            max_sge_rd: limits::MAX_SGE,
            max_cq: limits::MAX_CQ,
            max_cqe: limits::MAX_CQE,
            max_srq: limits::MAX_SRQ,
            max_srq_wr: limits::MAX_SRQ_WR,
            max_srq_sge: limits::MAX_SRQ_SGE,
            max_mr: limits::MAX_MR,
            max_mw: limits::MAX_MW,
            max_pd: limits::MAX_PD,
            max_qp_rd_atom: limits::MAX_RD_ATOMIC,
            max_res_rd_atom: limits::MAX_RES_RD_ATOMIC,
            max_qp_init_rd_atom: limits::MAX_RD_ATOMIC,
            max_mcast_groups: limits::MAX_MCAST_GROUPS,
            max_mcast_qps: limits::MAX_MCAST_QP_OF_ONE as u32,
            max_ah: limits::MAX_AH,
            max_fast_reg_pages: limits::MAX_FAST_REG_PAGES,
            max_pkeys: MAX_PKEYS,
            local_ca_ack_delay: ACK_DELAY,
        }
    }

    /// Changes the port. Process context.
    pub(crate) fn modify_port(&self, change: PortChange) {
        let mut old = self.capabilities.load(ordering::Relaxed);
        loop {
            let new = (old | change.set_capabilities) & !change.clear_capabilities;
            match self.capabilities.cmpxchg(old, new, ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => old = now,
            }
        }
        if change.reset_qkey_violations {
            let all = self.total(Counter::DropQkey);
            self.forgiven.store(all, ordering::Relaxed);
        }
    }

    /// Whether it takes part in connection management. Any context.
    pub(crate) fn has_connection_management(&self) -> bool {
        self.capabilities.load(ordering::Relaxed) & CONNECTION_MANAGEMENT != 0
    }

    fn qkey_violations(&self) -> u64 {
        let all = self.total(Counter::DropQkey);
        all.saturating_sub(self.forgiven.load(ordering::Relaxed))
    }

    /// The state of its port, which is disabled when the network device is gone.
    pub(crate) fn port(&self) -> PortAttributes {
        let netdev = self.link.netdev();
        PortAttributes {
            state: netdev.map_or(PortState::Disabled, |netdev| state_of(&netdev)),
            active_mtu: self.active_mtu(),
            gid_table_len: limits::GID_TABLE_LEN,
            pkey_table_len: limits::PKEY_TABLE_LEN,
            max_message: MAX_MESSAGE,
            capabilities: self.capabilities.load(ordering::Relaxed),
            pkey_violations: saturate(self.total(Counter::DropPkey)),
            qkey_violations: saturate(self.qkey_violations()),
        }
    }
}

fn saturate(count: u64) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX)
}

fn state_of(netdev: &Netdev) -> PortState {
    match (netdev.is_up(), netdev.is_active()) {
        (_, true) => PortState::Active,
        (true, false) => PortState::Polling,
        (false, false) => PortState::Disabled,
    }
}

/// The modified EUI-64 of the network device's address (RFC 4291, appendix A); of a random one where
/// it has none.
pub(crate) fn guid(netdev: &Netdev) -> u64 {
    let [a, b, c, d, e, f] = netdev.ethernet_address().unwrap_or_else(random_address);
    u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// A locally administered unicast address.
fn random_address() -> [u8; 6] {
    let [a, b, c, d] = rdma::support::random::next_u32().to_ne_bytes();
    [2, 0, a, b, c, d]
}
