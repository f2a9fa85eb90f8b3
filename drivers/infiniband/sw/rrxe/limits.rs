// SPDX-License-Identifier: GPL-2.0

//! Capacities of a device and limits of users. No capacity is lower than that of rdma_rxe, apart
//! from the length of the GID table.

pub(crate) mod accounts;
pub(crate) mod semaphore;
pub(crate) mod softirq_time;
pub(crate) mod thread_permit;

use core::ops::RangeInclusive;

use roce::steering::MAX_RULES;

/// Range of QP numbers: 24 bits without the special QPNs and the multicast QPN.
pub(crate) const QPN_RANGE: RangeInclusive<u32> = 16..=0xff_fffe;
/// Number of values over which the random numbers of QPs and SRQs are scattered, so that the number
/// of a destroyed object is not given to a new one soon.
pub(crate) const QPN_SCATTER: u32 = 1 << 12;
/// Number of table indices over which memory keys are scattered: all indices of regions, or of
/// windows.
///
/// With the 8 random bits of the key's variant a peer has to guess 31 bits. A failed guess breaks
/// an RC connection, but not a UC connection. On UC a peer that sends a million packets a second
/// finds a key of 26 random bits in a minute, and a key of 31 random bits in 36 minutes.
pub(crate) const KEY_SCATTER: u32 = 1 << 23;
/// Maximum number of QPs of a device.
pub(crate) const MAX_QP: u32 = (1 << 20) - 16;
/// Maximum number of WQEs of a send queue or a receive queue.
pub(crate) const MAX_QP_WR: u32 = 1 << 20;
/// Maximum number of SGEs of a WQE.
pub(crate) const MAX_SGE: u32 = 32;
/// Maximum number of bytes of inline payload: the space that [`MAX_SGE`] SGEs take in a WQE.
pub(crate) const MAX_INLINE: u32 = 512;
/// Maximum number of CQEs of a CQ. The memory of the CQ's ring is charged to its owner.
pub(crate) const MAX_CQE: u32 = (1 << 22) - 1;
/// Maximum number of CQs of a device.
pub(crate) const MAX_CQ: u32 = 1 << 20;
/// Maximum number of shared receive queues (SRQs) of a device.
pub(crate) const MAX_SRQ: u32 = 1 << 20;
/// Range of SRQ numbers: 24 bits without zero.
pub(crate) const SRQN_RANGE: RangeInclusive<u32> = 1..=0xff_ffff;
/// Maximum number of WQEs of an SRQ.
pub(crate) const MAX_SRQ_WR: u32 = 1 << 20;
/// Maximum number of SGEs of an SRQ's WQE.
pub(crate) const MAX_SRQ_SGE: u32 = MAX_SGE;
/// Maximum number of memory regions of a device.
pub(crate) const MAX_MR: u32 = (1 << 20) - 1;
/// Maximum number of pages of a fast registration.
pub(crate) const MAX_FAST_REG_PAGES: u32 = 512;
/// Number of bytes of device memory of a device, allocated in pieces. `query_device` reports the
/// size of the largest piece (`max_dm_size`).
pub(crate) const DEVICE_MEMORY: u32 = 16 << 20;
/// Maximum number of memory windows of a device.
pub(crate) const MAX_MW: u32 = 1 << 20;
/// Maximum number of protection domains of a device.
pub(crate) const MAX_PD: u32 = 1 << 20;
/// Maximum number of RDMA READs and atomics in flight in one direction of a QP.
pub(crate) const MAX_RD_ATOMIC: u32 = 128;
/// Maximum number of RDMA READs and atomics that all QPs of a device serve at a time: as many as
/// the peers of [`MAX_QP`] QPs can request.
pub(crate) const MAX_RES_RD_ATOMIC: u32 = MAX_QP * MAX_RD_ATOMIC;
/// Maximum number of address handles of a device.
pub(crate) const MAX_AH: u32 = 1 << 20;
/// Maximum number of multicast groups of a device.
pub(crate) const MAX_MCAST_GROUPS: u32 = 8192;
/// Maximum number of QPs in a multicast group.
pub(crate) const MAX_MCAST_QP: usize = 72;
/// Maximum number of QPs of one user or memory cgroup in a multicast group. `query_device` reports
/// this number (`max_mcast_qp_attach`). The remaining places of the group's [`MAX_MCAST_QP`] are
/// for others.
pub(crate) const MAX_MCAST_QP_OF_ONE: usize = 56;
/// Maximum number of flow steering rules of a device. A frame may be matched against all of them.
pub(crate) const MAX_FLOWS: u32 = MAX_RULES;
/// Number of entries of the GID table. The GID index in an address vector has eight bits
/// (`rdma_ah_set_grh()`, ib_verbs.h; `struct ib_uverbs_global_route`), so no packet can be sent
/// from an entry beyond the 256th.
pub(crate) const GID_TABLE_LEN: u16 = 256;
/// Number of entries of the P_Key table: the default partition.
pub(crate) const PKEY_TABLE_LEN: u16 = 1;

/// Maximum number of a QP's send WQEs that the protocol engine processes at a time.
pub(crate) const SEND_WINDOW: u32 = 128;
/// Maximum number of a QP's packets in flight in this host: sent, with buffers that are not freed
/// yet (`rust/rdma/net/tx_limit.rs`).
pub(crate) const PACKETS_IN_FLIGHT: u32 = 64;
/// Maximum number of packets of a GSI QP that are counted as in flight in this host. Beyond it, a
/// GSI QP sends further packets uncounted, without waiting.
pub(crate) const GSI_PACKETS_IN_FLIGHT: u32 = 256;
/// Age in milliseconds from which on a packet in flight counts as old. A UD or raw packet QP sends
/// beyond [`PACKETS_IN_FLIGHT`] while half of its packets in flight are old.
pub(crate) const DATAGRAM_AGE_LIMIT_MS: u32 = 100;
/// Maximum number of threads of the work queue `rrxe_release`, which release ended chunks of
/// on-demand memory: as many as a work queue may have.
pub(crate) const MAX_RELEASE_THREADS: u32 = 2048;
/// Capacity of a QP's inbox: the number of received packets that wait for a run of the QP's engine.
pub(crate) const INBOX: u32 = 1024;
/// Capacity of a raw packet QP's queue of received frames.
pub(crate) const FRAMES: u32 = 1024;
/// Range of the numbers of counter sets to which QPs are bound.
pub(crate) const COUNTER_SETS: RangeInclusive<u32> = 1..=0xffff;

/// Limits of one user or one memory cgroup, summed over all devices.
pub(crate) struct Allowance {
    /// Number of protection domains, XRC domains, address handles, CQs, SRQs, QPs, memory regions
    /// and memory windows together. The capacity of a device for each kind is twice the user's
    /// limit, less 16 QPs and one memory region.
    pub(crate) objects: u32,
    /// Number of threads that release ended chunks of on-demand memory at a time. The same number
    /// limits the calls of `ibv_advise_mr()` whose advice is followed or queued.
    pub(crate) release_threads: u32,
    /// Number of attachments of QPs to multicast groups.
    pub(crate) attachments: u32,
    /// Number of flow steering rules.
    pub(crate) flows: u32,
    /// Number of CQs with more than one unread completion event. The kernel charges events to no
    /// account.
    pub(crate) cqs_with_events: u32,
    /// Number of QPs, SRQs and CQs with more than two unread asynchronous events.
    pub(crate) objects_with_events: u32,
    /// Number of bytes of device memory.
    pub(crate) device_memory: u32,
}

/// Limits of a user. A user cannot take all groups, rules or memory of a device.
pub(crate) const OF_USER: Allowance = Allowance {
    objects: 1 << 19,
    release_threads: MAX_RELEASE_THREADS / 16,
    attachments: MAX_MCAST_GROUPS / 8,
    flows: MAX_FLOWS / 2,
    cqs_with_events: 4096,
    objects_with_events: 4096,
    device_memory: DEVICE_MEMORY / 2,
};
/// Limits of a memory cgroup. They are lower than [`OF_USER`], so that one cgroup leaves a part of
/// the user's limits to the user's other cgroups: the root users of many containers are one user.
pub(crate) const OF_CGROUP: Allowance = Allowance {
    objects: OF_USER.objects / 2,
    release_threads: OF_USER.release_threads / 8,
    attachments: OF_USER.attachments / 2,
    flows: OF_USER.flows / 2,
    cqs_with_events: OF_USER.cqs_with_events / 2,
    objects_with_events: OF_USER.objects_with_events / 2,
    device_memory: OF_USER.device_memory / 2,
};
