// SPDX-License-Identifier: GPL-2.0

//! Attributes of devices and ports.

use core::ops::BitOr;

use roce::mtu::Mtu;

use crate::{
    bindings,
    memory::{dm::DeviceMemory, odp::OnDemand},
};

/// A set of device capabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCaps(u64);

impl DeviceCaps {
    /// Counts packets with a bad P_Key.
    pub const BAD_PKEY_COUNTER: Self =
        Self(bindings::ib_device_cap_flags_IB_DEVICE_BAD_PKEY_CNTR as u64);
    /// Counts packets with a bad Q_Key.
    pub const BAD_QKEY_COUNTER: Self =
        Self(bindings::ib_device_cap_flags_IB_DEVICE_BAD_QKEY_CNTR as u64);
    /// `modify_qp` may change the port.
    pub const CHANGE_PORT: Self =
        Self(bindings::ib_device_cap_flags_IB_DEVICE_CHANGE_PHY_PORT as u64);
    /// The port of a datagram's address vector is that of its QP.
    pub const UD_AV_PORT_ENFORCE: Self =
        Self(bindings::ib_device_cap_flags_IB_DEVICE_UD_AV_PORT_ENFORCE as u64);
    /// Raises an event when the port becomes active.
    pub const PORT_ACTIVE_EVENT: Self =
        Self(bindings::ib_device_cap_flags_IB_DEVICE_PORT_ACTIVE_EVENT as u64);
    /// The GUID of the system image can be set.
    pub const SYS_IMAGE_GUID: Self =
        Self(bindings::ib_device_cap_flags_IB_DEVICE_SYS_IMAGE_GUID as u64);
    /// `modify_srq` may change the capacity.
    pub const SRQ_RESIZE: Self = Self(bindings::ib_device_cap_flags_IB_DEVICE_SRQ_RESIZE as u64);
    /// Serves extended reliable connections.
    pub const XRC: Self = Self(bindings::ib_device_cap_flags_IB_DEVICE_XRC as u64);
    /// Sends RNR NAKs.
    pub const RC_RNR_NAK: Self =
        Self(bindings::ib_device_cap_flags_IB_DEVICE_RC_RNR_NAK_GEN as u64);
    /// Fast registration, local invalidation, SEND with invalidation.
    pub const MEM_MGT_EXTENSIONS: Self =
        Self(bindings::ib_device_cap_flags_IB_DEVICE_MEM_MGT_EXTENSIONS as u64);
    /// Memory windows of type 1.
    pub const MEM_WINDOW: Self = Self(bindings::ib_device_cap_flags_IB_DEVICE_MEM_WINDOW as u64);
    /// Memory windows of type 2B.
    pub const MEM_WINDOW_2B: Self =
        Self(bindings::ib_device_cap_flags_IB_DEVICE_MEM_WINDOW_TYPE_2B as u64);
    /// FLUSH makes data visible to all.
    pub const FLUSH_GLOBAL: Self =
        Self(bindings::ib_uverbs_device_cap_flags_IB_UVERBS_DEVICE_FLUSH_GLOBAL as u64);
    /// FLUSH makes data durable.
    pub const FLUSH_PERSISTENT: Self =
        Self(bindings::ib_uverbs_device_cap_flags_IB_UVERBS_DEVICE_FLUSH_PERSISTENT as u64);
    /// Raw packet QPs receive by rules.
    pub const MANAGED_FLOW_STEERING: Self =
        Self(bindings::ib_device_cap_flags_IB_DEVICE_MANAGED_FLOW_STEERING as u64);
    /// ATOMIC WRITE.
    pub const ATOMIC_WRITE: Self =
        Self(bindings::ib_uverbs_device_cap_flags_IB_UVERBS_DEVICE_ATOMIC_WRITE as u64);

    /// Both.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOr for DeviceCaps {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.with(other)
    }
}

/// What a device can do; each field is that of `struct ib_device_attr`. Absent ones are zero.
#[derive(Clone, Copy, Debug)]
pub struct DeviceAttributes {
    /// Version of the firmware, the module's own: major, minor and patch.
    pub firmware: [u16; 3],
    /// GUID of the system image, in host order.
    pub sys_image_guid: u64,
    /// Capabilities.
    pub caps: DeviceCaps,
    /// Vendor.
    pub vendor_id: u32,
    /// Page sizes, as a bit set.
    pub page_sizes: u64,
    /// Bytes of the largest region.
    pub max_mr_size: u64,
    /// QPs.
    pub max_qp: u32,
    /// WQEs of one queue of a QP.
    pub max_qp_wr: u32,
    /// SGEs of a send.
    pub max_send_sge: u32,
    /// SGEs of a receive.
    pub max_recv_sge: u32,
    /// SGEs of a READ.
    pub max_sge_rd: u32,
    /// CQs.
    pub max_cq: u32,
    /// Entries of a CQ.
    pub max_cqe: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// WQEs of one of them.
    pub max_srq_wr: u32,
    /// SGEs of such a WQE.
    pub max_srq_sge: u32,
    /// Regions.
    pub max_mr: u32,
    /// Windows.
    pub max_mw: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// READs and atomics in flight towards a QP.
    pub max_qp_rd_atom: u32,
    /// READs and atomics in flight towards the device.
    pub max_res_rd_atom: u32,
    /// READs and atomics in flight from a QP.
    pub max_qp_init_rd_atom: u32,
    /// Multicast groups.
    pub max_mcast_groups: u32,
    /// QPs of one user in a multicast group.
    pub max_mcast_qps: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Pages of a fast registration.
    pub max_fast_reg_pages: u32,
    /// Partitions.
    pub max_pkeys: u16,
    /// How late an acknowledgement may be: 4.096 µs · 2ⁿ.
    pub local_ca_ack_delay: u8,
}

impl DeviceAttributes {
    /// Fills `raw`, which is zeroed; with device memory for who can use it.
    pub(crate) fn write(&self, raw: &mut bindings::ib_device_attr, shows_memory: bool) {
        let [major, minor, patch] = self.firmware.map(u64::from);
        raw.fw_ver = major << 32 | minor << 16 | patch;
        raw.sys_image_guid = self.sys_image_guid.to_be();
        raw.max_mr_size = self.max_mr_size;
        raw.page_size_cap = self.page_sizes;
        raw.vendor_id = self.vendor_id;
        raw.max_qp = clamp(self.max_qp);
        raw.max_qp_wr = clamp(self.max_qp_wr);
        raw.device_cap_flags = self.caps.0;
        raw.kernel_cap_flags = u64::from(
            bindings::ib_kernel_cap_flags_IBK_ALLOW_USER_UNREG
                | bindings::ib_kernel_cap_flags_IBK_BLOCK_MULTICAST_LOOPBACK
                | bindings::ib_kernel_cap_flags_IBK_SG_GAPS_REG
                | bindings::ib_kernel_cap_flags_IBK_LOCAL_DMA_LKEY,
        );
        if OnDemand::IS_SUPPORTED {
            raw.kernel_cap_flags |= u64::from(bindings::ib_kernel_cap_flags_IBK_ON_DEMAND_PAGING);
            raw.odp_caps = on_demand_paging();
        }
        raw.max_send_sge = clamp(self.max_send_sge);
        raw.max_recv_sge = clamp(self.max_recv_sge);
        raw.max_sge_rd = clamp(self.max_sge_rd);
        raw.max_cq = clamp(self.max_cq);
        raw.max_cqe = clamp(self.max_cqe);
        raw.max_srq = clamp(self.max_srq);
        raw.max_srq_wr = clamp(self.max_srq_wr);
        raw.max_srq_sge = clamp(self.max_srq_sge);
        raw.max_mr = clamp(self.max_mr);
        raw.max_mw = clamp(self.max_mw);
        raw.max_pd = clamp(self.max_pd);
        raw.max_qp_rd_atom = clamp(self.max_qp_rd_atom);
        raw.max_res_rd_atom = clamp(self.max_res_rd_atom);
        raw.max_qp_init_rd_atom = clamp(self.max_qp_init_rd_atom);
        raw.atomic_cap = bindings::ib_atomic_cap_IB_ATOMIC_HCA;
        raw.max_mcast_grp = clamp(self.max_mcast_groups);
        raw.max_mcast_qp_attach = clamp(self.max_mcast_qps);
        let attachments = self.max_mcast_groups.saturating_mul(self.max_mcast_qps);
        raw.max_total_mcast_qp_attach = clamp(attachments);
        raw.max_ah = clamp(self.max_ah);
        raw.max_fast_reg_page_list_len = self.max_fast_reg_pages;
        // All that the fields can say.
        raw.cq_caps.max_cq_moderation_count = u16::MAX;
        raw.cq_caps.max_cq_moderation_period = u16::MAX;
        if shows_memory {
            raw.max_dm_size = DeviceMemory::MAX;
        }
        raw.max_pkeys = self.max_pkeys;
        raw.local_ca_ack_delay = self.local_ca_ack_delay;
    }
}

/// What may be done with on-demand regions: all that can be done with others.
fn on_demand_paging() -> bindings::ib_odp_caps {
    use bindings::*;
    let datagrams = ib_odp_transport_cap_bits_IB_ODP_SUPPORT_SEND
        | ib_odp_transport_cap_bits_IB_ODP_SUPPORT_RECV
        | ib_odp_transport_cap_bits_IB_ODP_SUPPORT_SRQ_RECV;
    let writes = datagrams | ib_odp_transport_cap_bits_IB_ODP_SUPPORT_WRITE;
    let mut caps: ib_odp_caps = pin_init::zeroed();
    caps.general_caps = u64::from(
        ib_odp_general_cap_bits_IB_ODP_SUPPORT | ib_odp_general_cap_bits_IB_ODP_SUPPORT_IMPLICIT,
    );
    caps.per_transport_caps.ud_odp_caps = datagrams;
    caps.per_transport_caps.uc_odp_caps = writes;
    let reliable = writes
        | ib_odp_transport_cap_bits_IB_ODP_SUPPORT_READ
        | ib_odp_transport_cap_bits_IB_ODP_SUPPORT_ATOMIC
        | ib_odp_transport_cap_bits_IB_ODP_SUPPORT_FLUSH
        | ib_odp_transport_cap_bits_IB_ODP_SUPPORT_ATOMIC_WRITE;
    caps.per_transport_caps.rc_odp_caps = reliable;
    caps.per_transport_caps.xrc_odp_caps = reliable;
    caps
}

/// `value` in the type of ib_core's field: `int` up to Linux 7.2, `u32` since.
fn clamp<T: TryFrom<u32> + Default>(value: u32) -> T {
    // Fits either.
    let value = value.min(i32::MAX as u32);
    T::try_from(value).unwrap_or_default()
}

/// What a subnet manager changes about a device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceChange {
    /// GUID of the system image, in host order.
    pub sys_image_guid: Option<u64>,
}

/// The capability of a port whose device takes part in connection management: ib_core keeps an agent for its messages as
/// long as the port has it (`cm_add_one()`, `cm_remove_one()`, cm.c).
pub const CONNECTION_MANAGEMENT: u32 = bindings::ib_port_capability_mask_bits_IB_PORT_CM_SUP;

/// What managers change about a port.
#[derive(Clone, Copy, Debug)]
pub struct PortChange {
    /// Capabilities that it has from now on (`enum ib_port_capability_mask_bits`), …
    pub set_capabilities: u32,
    /// … and those that it has no longer, even if they are in both.
    pub clear_capabilities: u32,
    /// Q_Key violations are counted from zero.
    pub reset_qkey_violations: bool,
}

/// The state of a port and of its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// Packets flow.
    Active,
    /// The network device is up, but without carrier.
    Polling,
    /// The network device is down.
    Disabled,
}

/// A port; each field is that of `struct ib_port_attr`.
#[derive(Clone, Copy, Debug)]
pub struct PortAttributes {
    /// State of port and link.
    pub state: PortState,
    /// The largest payload of a packet that the network device lets through now.
    pub active_mtu: Mtu,
    /// Length of the GID table.
    pub gid_table_len: u16,
    /// Length of the P_Key table.
    pub pkey_table_len: u16,
    /// Bytes of the largest message.
    pub max_message: u32,
    /// What users of the kernel have declared that they do there (`PortInfo:CapabilityMask`).
    pub capabilities: u32,
    /// Packets of another partition (IBTA 1.x §14.2.5.6: it stays at the largest value).
    pub pkey_violations: u16,
    /// Packets with a wrong Q_Key, since the count was last reset.
    pub qkey_violations: u16,
}

impl PortAttributes {
    /// Fills `raw`, which is zeroed. Speed and width are ib_core's to find.
    pub(crate) fn write(&self, raw: &mut bindings::ib_port_attr) {
        (raw.state, raw.phys_state) = match self.state {
            PortState::Active => (
                bindings::ib_port_state_IB_PORT_ACTIVE,
                bindings::ib_port_phys_state_IB_PORT_PHYS_STATE_LINK_UP as u8,
            ),
            PortState::Polling => (
                bindings::ib_port_state_IB_PORT_DOWN,
                bindings::ib_port_phys_state_IB_PORT_PHYS_STATE_POLLING as u8,
            ),
            PortState::Disabled => (
                bindings::ib_port_state_IB_PORT_DOWN,
                bindings::ib_port_phys_state_IB_PORT_PHYS_STATE_DISABLED as u8,
            ),
        };
        raw.max_mtu = bindings::ib_mtu_IB_MTU_4096;
        raw.active_mtu = self.active_mtu as bindings::ib_mtu;
        raw.gid_tbl_len = self.gid_table_len.into();
        raw.set_ip_gids(1);
        raw.port_cap_flags = self.capabilities;
        raw.max_msg_sz = self.max_message;
        raw.pkey_tbl_len = self.pkey_table_len;
        raw.max_vl_num = 1;
        raw.bad_pkey_cntr = self.pkey_violations.into();
        raw.qkey_viol_cntr = self.qkey_violations.into();
    }
}
