// SPDX-License-Identifier: GPL-2.0

//! What the device can hold. No less than rdma_rxe, whose users must find room here too.

pub(crate) mod accounts;
pub(crate) mod semaphore;
pub(crate) mod softirq_time;
pub(crate) mod thread_permit;

use core::ops::RangeInclusive;

use roce::steering::MAX_RULES;

/// The numbers of QPs: 24 bits without the special ones and the multicast QPN.
pub(crate) const QPN_RANGE: RangeInclusive<u32> = 16..=0xff_fffe;
/// How far the numbers of QPs and SRQs are scattered, so that one that is gone isn't soon another's.
pub(crate) const QPN_SCATTER: u32 = 1 << 12;
/// How far keys are scattered: over all places that regions or windows have. With the 8 random bits of its
/// variant a peer has 31 to guess. A failed guess breaks an RC connection, but no UC connection: there a
/// peer that sends a million packets a second finds one key of 26 bits in a minute, of 31 in 36 minutes.
pub(crate) const KEY_SCATTER: u32 = 1 << 23;
/// QPs of a device.
pub(crate) const MAX_QP: u32 = (1 << 20) - 16;
/// WQEs of one queue.
pub(crate) const MAX_QP_WR: u32 = 1 << 20;
/// SGEs of a WQE.
pub(crate) const MAX_SGE: u32 = 32;
/// Bytes of inline payload: the room that [`MAX_SGE`] SGEs take.
pub(crate) const MAX_INLINE: u32 = 512;
/// Entries of a CQ; its ring is its owner's memory.
pub(crate) const MAX_CQE: u32 = (1 << 22) - 1;
/// CQs of a device.
pub(crate) const MAX_CQ: u32 = 1 << 20;
/// Shared receive queues of a device.
pub(crate) const MAX_SRQ: u32 = 1 << 20;
/// Their numbers: 24 bits without zero.
pub(crate) const SRQN_RANGE: RangeInclusive<u32> = 1..=0xff_ffff;
/// WQEs of a shared receive queue.
pub(crate) const MAX_SRQ_WR: u32 = 1 << 20;
/// SGEs of such a WQE.
pub(crate) const MAX_SRQ_SGE: u32 = MAX_SGE;
/// Memory regions of a device.
pub(crate) const MAX_MR: u32 = (1 << 20) - 1;
/// Pages of a fast registration.
pub(crate) const MAX_FAST_REG_PAGES: u32 = 512;
/// Bytes of device memory, in pieces that each process knows the limit of.
pub(crate) const DEVICE_MEMORY: u32 = 16 << 20;
/// Memory windows of a device.
pub(crate) const MAX_MW: u32 = 1 << 20;
/// Protection domains of a device.
pub(crate) const MAX_PD: u32 = 1 << 20;
/// READs and atomics in flight in one direction of a QP.
pub(crate) const MAX_RD_ATOMIC: u32 = 128;
/// READs and atomics that all QPs of a device may serve: as many as they can ask for.
pub(crate) const MAX_RES_RD_ATOMIC: u32 = MAX_QP * MAX_RD_ATOMIC;
/// Address handles of a device.
pub(crate) const MAX_AH: u32 = 1 << 20;
/// Multicast groups of a device.
pub(crate) const MAX_MCAST_GROUPS: u32 = 8192;
/// QPs in a multicast group.
pub(crate) const MAX_MCAST_QP: usize = 72;
/// Of these, QPs of one user or memory cgroup, which `query_device` names. The rest is for others.
pub(crate) const MAX_MCAST_QP_OF_ONE: usize = 56;
/// Rules of flow steering of a device. Each frame may meet all of them.
pub(crate) const MAX_FLOWS: u32 = MAX_RULES;
/// Entries of the GID table. The index in an address vector has eight bits (`rdma_ah_set_grh()`, ib_verbs.h; `struct
/// ib_uverbs_global_route`): nothing can be sent from others.
pub(crate) const GID_TABLE_LEN: u16 = 256;
/// Entries of the P_Key table: the default partition.
pub(crate) const PKEY_TABLE_LEN: u16 = 1;

/// Send WQEs of a QP that the engine has in hand at a time.
pub(crate) const SEND_WINDOW: u32 = 128;
/// Packets of a QP that may be on their way through this host.
pub(crate) const PACKETS_IN_FLIGHT: u32 = 64;
/// Packets of a GSI QP that are counted. It sends further ones without waiting.
pub(crate) const GSI_PACKETS_IN_FLIGHT: u32 = 256;
/// A UD or raw packet QP sends on while half of its packets have been on their way for so many milliseconds.
pub(crate) const DATAGRAM_PATIENCE_MS: u32 = 100;
/// Threads that release what ended of regions on demand at a time: as many as a work queue may have.
pub(crate) const SLEEPERS: u32 = 2048;
/// Packets that wait for a QP's turn.
pub(crate) const INBOX: u32 = 1024;
/// Frames that wait for a raw packet QP.
pub(crate) const FRAMES: u32 = 1024;
/// The numbers of counter sets that QPs are bound to.
pub(crate) const COUNTER_SETS: RangeInclusive<u32> = 1..=0xffff;

/// What one user or one memory cgroup has at most, on all devices.
pub(crate) struct Allowance {
    /// Protection and XRC domains, address handles, CQs, SRQs, QPs, memory regions and windows, all together. A device has
    /// room for twice as many of each kind, but for some QPs and a memory region.
    pub(crate) objects: u32,
    /// Threads that release what ended of its regions on demand at a time, and as many pieces of advice that are followed or
    /// wait.
    pub(crate) sleepers: u32,
    /// Attachments of QPs to multicast groups.
    pub(crate) attachments: u32,
    /// Rules of flow steering.
    pub(crate) flows: u32,
    /// CQs with more than one unread completion event. Events are charged to nobody.
    pub(crate) cqs_with_events: u32,
    /// QPs, SRQs and CQs with more than two unread asynchronous events.
    pub(crate) objects_with_events: u32,
    /// Bytes of device memory.
    pub(crate) device_memory: u32,
}

/// That of a user, who so can't take all groups, rules or memory of a device.
pub(crate) const OF_USER: Allowance = Allowance {
    objects: 1 << 19,
    sleepers: SLEEPERS / 16,
    attachments: MAX_MCAST_GROUPS / 8,
    flows: MAX_FLOWS / 2,
    cqs_with_events: 4096,
    objects_with_events: 4096,
    device_memory: DEVICE_MEMORY / 2,
};
/// That of a memory cgroup, which leaves a part of its user's to others of this user: root is one user in many containers.
pub(crate) const OF_CGROUP: Allowance = Allowance {
    objects: OF_USER.objects / 2,
    sleepers: OF_USER.sleepers / 8,
    attachments: OF_USER.attachments / 2,
    flows: OF_USER.flows / 2,
    cqs_with_events: OF_USER.cqs_with_events / 2,
    objects_with_events: OF_USER.objects_with_events / 2,
    device_memory: OF_USER.device_memory / 2,
};
