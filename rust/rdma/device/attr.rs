// SPDX-License-Identifier: GPL-2.0

//! Attributes of devices and ports (`struct ib_device_attr`, `struct ib_port_attr`).

use core::ops::BitOr;

use roce::mtu::Mtu;

use crate::{
    bindings,
    memory::{dm::DeviceMemory, odp::OnDemand},
};

/// A set of device capabilities (`enum ib_device_cap_flags`, `enum ib_uverbs_device_cap_flags`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCaps(u64);

impl DeviceCaps {
    /// The device counts packets with a bad P_Key.
    pub const BAD_PKEY_COUNTER: Self =
        Self(bindings::ib_device_cap_flags_IB_DEVICE_BAD_PKEY_CNTR as u64);
    /// The device counts packets with a bad Q_Key.
    pub const BAD_QKEY_COUNTER: Self =
        Self(bindings::ib_device_cap_flags_IB_DEVICE_BAD_QKEY_CNTR as u64);
    /// `modify_qp` may change the port of a QP.
    pub const CHANGE_PORT: Self =
        Self(bindings::ib_device_cap_flags_IB_DEVICE_CHANGE_PHY_PORT as u64);
    /// The device checks that the port in a datagram's address vector is the port of the QP.
    pub const UD_AV_PORT_ENFORCE: Self =
        Self(bindings::ib_device_cap_flags_IB_DEVICE_UD_AV_PORT_ENFORCE as u64);
    /// The device raises an event when the port becomes active.
    pub const PORT_ACTIVE_EVENT: Self =
        Self(bindings::ib_device_cap_flags_IB_DEVICE_PORT_ACTIVE_EVENT as u64);
    /// The GUID of the system image can be set.
    pub const SYS_IMAGE_GUID: Self =
        Self(bindings::ib_device_cap_flags_IB_DEVICE_SYS_IMAGE_GUID as u64);
    /// `modify_srq` may change the capacity.
    pub const SRQ_RESIZE: Self = Self(bindings::ib_device_cap_flags_IB_DEVICE_SRQ_RESIZE as u64);
    /// The device supports extended reliable connections (XRC).
    pub const XRC: Self = Self(bindings::ib_device_cap_flags_IB_DEVICE_XRC as u64);
    /// The device sends RNR NAKs.
    pub const RC_RNR_NAK: Self =
        Self(bindings::ib_device_cap_flags_IB_DEVICE_RC_RNR_NAK_GEN as u64);
    /// The device supports fast registration, local invalidation, and SEND with invalidation.
    pub const MEM_MGT_EXTENSIONS: Self =
        Self(bindings::ib_device_cap_flags_IB_DEVICE_MEM_MGT_EXTENSIONS as u64);
    /// The device supports memory windows of type 1.
    pub const MEM_WINDOW: Self = Self(bindings::ib_device_cap_flags_IB_DEVICE_MEM_WINDOW as u64);
    /// The device supports memory windows of type 2B.
    pub const MEM_WINDOW_2B: Self =
        Self(bindings::ib_device_cap_flags_IB_DEVICE_MEM_WINDOW_TYPE_2B as u64);
    /// The device supports FLUSH that makes data globally visible.
    pub const FLUSH_GLOBAL: Self =
        Self(bindings::ib_uverbs_device_cap_flags_IB_UVERBS_DEVICE_FLUSH_GLOBAL as u64);
    /// Raw packet QPs receive frames by flow steering rules.
    pub const MANAGED_FLOW_STEERING: Self =
        Self(bindings::ib_device_cap_flags_IB_DEVICE_MANAGED_FLOW_STEERING as u64);
    /// The device supports ATOMIC WRITE.
    pub const ATOMIC_WRITE: Self =
        Self(bindings::ib_uverbs_device_cap_flags_IB_UVERBS_DEVICE_ATOMIC_WRITE as u64);

    /// Returns the union of both sets.
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

/// Attributes of a device. Each field corresponds to one of `struct ib_device_attr`. `write` fills
/// in further fields of that struct. All others are zero.
#[derive(Clone, Copy, Debug)]
pub struct DeviceAttributes {
    /// Version of the firmware, which is the module's own: major, minor and patch.
    pub firmware: [u16; 3],
    /// GUID of the system image, in host byte order.
    pub sys_image_guid: u64,
    /// Capabilities.
    pub caps: DeviceCaps,
    /// Vendor ID.
    pub vendor_id: u32,
    /// Supported page sizes, as a bit set.
    pub page_sizes: u64,
    /// Maximum size of a region in bytes.
    pub max_mr_size: u64,
    /// Maximum number of QPs.
    pub max_qp: u32,
    /// Maximum number of WQEs in one queue of a QP.
    pub max_qp_wr: u32,
    /// Maximum number of SGEs of a send.
    pub max_send_sge: u32,
    /// Maximum number of SGEs of a receive.
    pub max_recv_sge: u32,
    /// Maximum number of SGEs of an RDMA READ.
    pub max_sge_rd: u32,
    /// Maximum number of CQs.
    pub max_cq: u32,
    /// Maximum number of entries of a CQ.
    pub max_cqe: u32,
    /// Maximum number of shared receive queues.
    pub max_srq: u32,
    /// Maximum number of WQEs in a shared receive queue.
    pub max_srq_wr: u32,
    /// Maximum number of SGEs of a WQE in a shared receive queue.
    pub max_srq_sge: u32,
    /// Maximum number of memory regions.
    pub max_mr: u32,
    /// Maximum number of memory windows.
    pub max_mw: u32,
    /// Maximum number of protection domains.
    pub max_pd: u32,
    /// Maximum number of RDMA READs and atomics in flight with a QP as responder.
    pub max_qp_rd_atom: u32,
    /// Maximum number of RDMA READs and atomics in flight with the device as responder.
    pub max_res_rd_atom: u32,
    /// Maximum number of RDMA READs and atomics in flight with a QP as requester.
    pub max_qp_init_rd_atom: u32,
    /// Maximum number of multicast groups.
    pub max_mcast_groups: u32,
    /// Maximum number of QPs of one user in a multicast group.
    pub max_mcast_qps: u32,
    /// Maximum number of address handles.
    pub max_ah: u32,
    /// Maximum number of pages of a fast registration.
    pub max_fast_reg_pages: u32,
    /// Number of partitions.
    pub max_pkeys: u16,
    /// Exponent n of the maximum delay of an acknowledgment, 4.096 µs · 2ⁿ.
    pub local_ca_ack_delay: u8,
}

impl DeviceAttributes {
    /// Fills in `raw`, which must be zeroed. The size of device memory is filled in only if
    /// `shows_memory` is set, since only then the process that queries the device can use device
    /// memory.
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
        // The maxima of the fields' types.
        raw.cq_caps.max_cq_moderation_count = u16::MAX;
        raw.cq_caps.max_cq_moderation_period = u16::MAX;
        if shows_memory {
            raw.max_dm_size = DeviceMemory::MAX;
        }
        raw.max_pkeys = self.max_pkeys;
        raw.local_ca_ack_delay = self.local_ca_ack_delay;
    }
}

/// Returns the operations that are supported on on-demand regions: all operations that are
/// supported on other regions.
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

/// Limits `value` to the maximum of `int`, the type of the fields of libibverbs (`struct
/// ibv_device_attr`).
fn clamp(value: u32) -> u32 {
    value.min(i32::MAX as u32)
}

/// Changes of a device by `ib_modify_device()`.
#[derive(Clone, Copy, Debug)]
pub struct DeviceChange {
    /// New GUID of the system image, in host byte order.
    pub sys_image_guid: Option<u64>,
}

/// Port capability that says that connection management (ib_cm) uses the port: ib_core keeps a MAD
/// agent for connection management as long as the port has the capability (`cm_add_one()`,
/// `cm_remove_one()`, cm.c).
pub const CONNECTION_MANAGEMENT: u32 = bindings::ib_port_capability_mask_bits_IB_PORT_CM_SUP;

/// Changes of a port by `ib_modify_port()`.
#[derive(Clone, Copy, Debug)]
pub struct PortChange {
    /// Capabilities to set (`enum ib_port_capability_mask_bits`).
    pub set_capabilities: u32,
    /// Capabilities to clear. A capability that is in both sets is cleared.
    pub clear_capabilities: u32,
    /// Whether the count of Q_Key violations is reset to zero.
    pub reset_qkey_violations: bool,
}

/// State of a port and of its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// The network device is up and has a carrier.
    Active,
    /// The network device is up and has no carrier.
    Polling,
    /// The network device is down.
    Disabled,
}

/// Attributes of a port. Each field corresponds to one of `struct ib_port_attr`.
#[derive(Clone, Copy, Debug)]
pub struct PortAttributes {
    /// State of port and link.
    pub state: PortState,
    /// The largest MTU (payload of a packet) that the network device currently allows.
    pub active_mtu: Mtu,
    /// Length of the GID table.
    pub gid_table_len: u16,
    /// Length of the P_Key table.
    pub pkey_table_len: u16,
    /// Maximum size of a message in bytes.
    pub max_message: u32,
    /// Capabilities that in-kernel consumers have declared for the port
    /// (`PortInfo:CapabilityMask`).
    pub capabilities: u32,
    /// Number of packets with a P_Key of another partition. The count stays at its maximum (IBTA
    /// 1.x §14.2.5.6).
    pub pkey_violations: u16,
    /// Number of packets with a wrong Q_Key since the last reset.
    pub qkey_violations: u16,
}

impl PortAttributes {
    /// Fills in `raw`, which must be zeroed. The caller fills in speed and width by
    /// `ib_get_eth_speed()`.
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
