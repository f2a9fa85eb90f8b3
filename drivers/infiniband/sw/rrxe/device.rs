// SPDX-License-Identifier: GPL-2.0

//! The RDMA device: the state that belongs to one device, and the attributes that it reports of
//! itself and of its port.

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

/// Version of the module, reported as the firmware version.
pub(crate) const VERSION: [u16; 3] = [0, 2, 0];
/// The same version as text.
pub(crate) const VERSION_TEXT: &CStr = c"rrxe 0.2.0";
/// Vendor ID, reported as `vendor_id`. It is that of rdma_rxe (`RXE_VENDOR_ID`).
const VENDOR: u32 = 0xff_ffff;
/// Supported page sizes, a bit each: the powers of two from 4 KiB to 2 GiB.
const PAGE_SIZES: u64 = 0xffff_f000;
/// Size of the P_Key table, reported as the device attribute `max_pkeys`. The value is that of
/// rdma_rxe (`RXE_MAX_PKEYS`), although only one partition exists.
const MAX_PKEYS: u16 = 64;
/// Local CA ACK delay, the longest time that this host takes to acknowledge a packet: 4.096 µs ·
/// 2¹⁵ = 134 ms.
const ACK_DELAY: u8 = 15;

/// An RDMA device.
///
/// ib_core's device has a reference to it until that device is unregistered. PDs, CQs, SRQs, QPs
/// and address handles have one each, too.
#[pin_data]
pub(crate) struct Device {
    /// Connection of the device with its network device and its network namespace.
    pub(crate) link: Arc<Link>,
    /// Memory regions and memory windows of the device.
    #[pin]
    pub(crate) mrs: MrTable,
    /// Multicast groups to which QPs of the device are attached.
    #[pin]
    pub(crate) mcast: Attachments,
    /// Address handles of processes, by number: a process's work request names its address handle
    /// by number.
    #[pin]
    pub(crate) ahs: Table<Ah>,
    /// Shared receive queues of the device, by number.
    #[pin]
    pub(crate) srqs: Table<Srq>,
    /// Quota of protection domains, which XRC domains count for, too.
    pub(crate) pds: Arc<Quota>,
    /// Quota of completion queues.
    pub(crate) cqs: Arc<Quota>,
    /// Quota of queue pairs.
    pub(crate) qps: Arc<Quota>,
    /// Quota of device memory, in bytes.
    pub(crate) dm: Arc<Quota>,
    /// Recent senders of MADs to the device's GSI QP.
    #[pin]
    pub(crate) senders: Senders,
    /// Count of the device's CM messages in ib_cm's queue, and the probes behind them.
    #[pin]
    pub(crate) cm_queue: CmQueue,
    /// Counters of the port, except for those of QPs that are bound to another set.
    pub(crate) counters: Arc<Counters>,
    /// Other sets of counters, by number. `rdma statistic qp` binds QPs to them.
    #[pin]
    counter_sets: Table<Counters>,
    /// Sum of the sets that have been freed.
    retired: Counters,
    /// Work queues of the module, which all devices share. They run QPs and poll doorbells, serve
    /// page faults, and release chunks of on-demand memory, outside of system calls and of packets'
    /// softirqs.
    pub(crate) workqueues: Arc<Workqueues>,
    /// GUID of the system image, in host byte order.
    sys_image_guid: Atomic<u64>,
    /// Capability mask of the port (`enum ib_port_capability_mask_bits`), as set through
    /// `ib_modify_port()`.
    capabilities: Atomic<u32>,
    /// Number of Q_Key violations at the last reset of the port's violation counter.
    qkey_baseline: Atomic<u64>,
}

impl Device {
    /// Returns the description from which ib_core's device is made, with the GUID `guid`. If
    /// `shares_qps` is set, processes may open each other's QPs (`ibv_open_qp()`).
    pub(crate) fn describe(guid: u64, shares_qps: bool) -> Description {
        Description {
            node_guid: guid,
            node_description: c"rrxe",
            shares_qps,
        }
    }

    /// Creates a device on `link`. No user knows it yet. Process context.
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
                qkey_baseline: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the largest path MTU that the network device has room for at present. Any context
    /// but hard interrupts.
    pub(crate) fn active_mtu(&self) -> Mtu {
        self.link.mtu()
    }

    /// Sets the GUID of the system image, in host byte order.
    pub(crate) fn set_sys_image_guid(&self, guid: u64) {
        self.sys_image_guid.store(guid, ordering::Relaxed);
    }

    /// Returns the value of the counter that has the name [`crate::device::stats::NAMES`]`[index]`.
    pub(crate) fn counter(&self, index: usize) -> u64 {
        self.counters.set(Counter::LinkDowned, self.link.downs());
        self.counters.value(index, &self.link.context().drops)
    }

    /// Creates a set of counters with the value 0. Returns the set and its number. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, also if all numbers of [`limits::COUNTER_SETS`] are taken.
    pub(crate) fn alloc_counter_set(&self) -> Result<(u32, Arc<Counters>)> {
        let reservation = self.counter_sets.reserve(limits::COUNTER_SETS)?;
        let set = Arc::new(Counters::new(), GFP_KERNEL_ACCOUNT)?;
        let id = reservation.id();
        reservation.publish(set.clone());
        Ok((id, set))
    }

    /// Frees the number of a set and adds the set's values to `retired`. Process context; sleeps.
    pub(crate) fn dealloc_counter_set(&self, id: u32) {
        if let Some(set) = self.counter_sets.remove(id) {
            self.retired.absorb(&set);
        }
    }

    /// Returns the sum of a counter over the port's own set, all other sets and all freed sets.
    /// Process context.
    fn total(&self, counter: Counter) -> u64 {
        let mut sum = self
            .counters
            .get(counter)
            .wrapping_add(self.retired.get(counter));
        self.counter_sets
            .for_each(|_, set| sum = sum.wrapping_add(set.get(counter)));
        sum
    }

    /// Returns the counters that performance management reports (IBTA PortCounters). Packets in
    /// error are those to the network namespace that have invalid headers or a wrong ICRC. Data is
    /// the bytes of payload, without headers. Process context.
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

    /// Returns the attributes and the limits of the device.
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

    /// Changes the capability mask of the port, and resets the port's count of Q_Key violations, as
    /// `change` says. Process context.
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
            self.qkey_baseline.store(all, ordering::Relaxed);
        }
    }

    /// Returns whether the port takes part in connection management (the bit
    /// [`CONNECTION_MANAGEMENT`] of its capability mask). Any context.
    pub(crate) fn has_connection_management(&self) -> bool {
        self.capabilities.load(ordering::Relaxed) & CONNECTION_MANAGEMENT != 0
    }

    /// Returns the number of Q_Key violations since the last reset of the port's violation counter.
    fn qkey_violations(&self) -> u64 {
        let all = self.total(Counter::DropQkey);
        all.saturating_sub(self.qkey_baseline.load(ordering::Relaxed))
    }

    /// Returns the attributes of the port. Its state is `Disabled` after the network device has
    /// gone away.
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

/// Returns `count`, or `u16::MAX` if `count` is greater.
fn saturate(count: u64) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX)
}

/// Returns the state of a port on `netdev`.
fn state_of(netdev: &Netdev) -> PortState {
    match (netdev.is_up(), netdev.is_active()) {
        (_, true) => PortState::Active,
        (true, false) => PortState::Polling,
        (false, false) => PortState::Disabled,
    }
}

/// Returns the modified EUI-64 of the network device's Ethernet address (RFC 4291, appendix A), or
/// of a random address if the network device has none.
pub(crate) fn guid(netdev: &Netdev) -> u64 {
    let [a, b, c, d, e, f] = netdev.ethernet_address().unwrap_or_else(random_address);
    u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// Returns a random unicast MAC address that is locally administered.
fn random_address() -> [u8; 6] {
    let [a, b, c, d] = rdma::support::random::next_u32().to_ne_bytes();
    [2, 0, a, b, c, d]
}
