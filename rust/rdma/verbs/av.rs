// SPDX-License-Identifier: GPL-2.0

//! Address vectors: destination, source and IP header fields of a QP's or an address handle's
//! packets (`struct rdma_ah_attr`).

use kernel::prelude::*;
use pin_init::Zeroable;

use crate::{
    bindings,
    device::{
        gid::{Gid, Network},
        gid_table::GidEntry,
        IbDevice,
    },
};

/// Address vector of a connected QP, of an address handle or of a work request ([`PostedAv`]),
/// validated and resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Av {
    /// Destination address.
    pub dgid: Gid,
    /// Source address, one of the port's GIDs.
    pub sgid: Gid,
    /// Index of `sgid` in the port's GID table, which has at most 256 entries.
    pub sgid_index: u8,
    /// Index of the network device that has `sgid`, within that device's network namespace. It is
    /// the port's network device, or one on top of it, such as a VLAN. Zero if the address is gone.
    pub netdev_index: u32,
    /// IP version of both addresses.
    pub network: Network,
    /// Traffic class: the IPv4 TOS field or the IPv6 traffic class field.
    pub traffic_class: u8,
    /// Hop limit: the IPv4 TTL field or the IPv6 hop limit field.
    pub hop_limit: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// MAC address of the next hop, as ib_core resolved it. Zeros for a work request.
    pub dmac: [u8; 6],
    /// Service level.
    pub sl: u8,
    /// Static rate (`enum ib_rate`). The driver ignores it.
    pub static_rate: u8,
    /// Port number.
    pub port: u8,
}

const FLOW_LABEL_MASK: u32 = 0xf_ffff;
/// The only port of a device.
const PORT: u8 = 1;

impl Av {
    /// Converts an address vector that ib_core has validated and resolved.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the attributes are not of RoCE or have no global route, if the port or the
    /// source address does not exist, if the source is no RoCEv2 address, or if the IP versions of
    /// source and destination differ.
    ///
    /// # Safety
    ///
    /// `attr` must be the attributes that ib_core passes to an operation, during the call of that
    /// operation.
    pub(crate) unsafe fn from_attr(attr: &bindings::rdma_ah_attr) -> Result<Self> {
        if attr.type_ != bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_ROCE
            || u32::from(attr.ah_flags) & bindings::ib_ah_flags_IB_AH_GRH == 0
        {
            return Err(EINVAL);
        }
        if attr.port_num != u32::from(PORT) {
            return Err(EINVAL);
        }
        // SAFETY: ib_core holds a reference to the source's entry of the GID table during the call.
        let source = unsafe { GidEntry::borrow(attr.grh.sgid_attr) }.ok_or(EINVAL)?;
        if !source.is_routable() {
            return Err(EINVAL);
        }
        let sgid = source.gid();
        let dgid = Gid::from_raw(&attr.grh.dgid);
        if sgid.network() != dgid.network() {
            return Err(EINVAL);
        }
        Ok(Self {
            dgid,
            sgid,
            sgid_index: attr.grh.sgid_index,
            netdev_index: source.netdev_index(),
            network: sgid.network(),
            traffic_class: attr.grh.traffic_class,
            hop_limit: attr.grh.hop_limit,
            flow_label: attr.grh.flow_label & FLOW_LABEL_MASK,
            // SAFETY: `roce` is the valid member of the union, because the type was checked above.
            dmac: unsafe { attr.__bindgen_anon_1.roce.dmac },
            sl: attr.sl,
            static_rate: attr.static_rate,
            port: PORT,
        })
    }

    /// Returns the priority of the packets in this host (`skb->priority`). Queueing disciplines and
    /// the `egress-qos-map` of a VLAN use it. The priority is the service level, but at most 6: the
    /// highest priority that a socket may choose without privileges (`SO_PRIORITY`). 7 is for
    /// network control.
    pub fn priority(&self) -> u32 {
        const HIGHEST: u8 = 6;
        self.sl.min(HIGHEST).into()
    }

    /// Converts the address vector back to C, for queries. The result contains the source by its
    /// index only.
    pub(crate) fn to_attr(self) -> bindings::rdma_ah_attr {
        let mut attr = bindings::rdma_ah_attr::zeroed();
        attr.type_ = bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_ROCE;
        attr.ah_flags = bindings::ib_ah_flags_IB_AH_GRH as u8;
        attr.sl = self.sl;
        attr.static_rate = self.static_rate;
        attr.port_num = self.port.into();
        attr.grh.dgid = self.dgid.to_raw();
        attr.grh.flow_label = self.flow_label;
        attr.grh.sgid_index = self.sgid_index;
        attr.grh.hop_limit = self.hop_limit;
        attr.grh.traffic_class = self.traffic_class;
        attr.__bindgen_anon_1.roce = bindings::roce_ah_attr { dmac: self.dmac };
        attr
    }
}

/// Address vector as a work request contains it. ib_core has validated none of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PostedAv {
    /// Destination address.
    pub dgid: Gid,
    /// Index of the source address in the port's GID table.
    pub sgid_index: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit. Zero is treated as one.
    pub hop_limit: u8,
    /// Flow label. The low 20 bits are used.
    pub flow_label: u32,
    /// Port number.
    pub port: u8,
}

impl PostedAv {
    /// Resolves the address vector. The source is the address that `device` currently has at the
    /// index.
    ///
    /// # Context
    ///
    /// Any but hard interrupts; doesn't sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the port or the source address does not exist, or if the IP versions of source
    /// and destination differ.
    pub fn resolve(&self, device: &IbDevice) -> Result<Av> {
        if self.port != PORT {
            return Err(EINVAL);
        }
        let source = device.gid_at(self.sgid_index).ok_or(EINVAL)?;
        let (sgid, network) = (source.gid(), self.dgid.network());
        if sgid.network() != network {
            return Err(EINVAL);
        }
        Ok(Av {
            dgid: self.dgid,
            sgid,
            sgid_index: self.sgid_index,
            netdev_index: source.netdev_index(),
            network,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit.max(1),
            flow_label: self.flow_label & FLOW_LABEL_MASK,
            dmac: [0; 6],
            sl: 0,
            static_rate: 0,
            port: PORT,
        })
    }
}
