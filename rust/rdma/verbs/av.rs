// SPDX-License-Identifier: GPL-2.0

//! Address vectors: where packets go, and with which IP header fields.

use kernel::{error::from_err_ptr, prelude::*, sync::rcu};
use pin_init::Zeroable;

use crate::{
    bindings,
    device::{
        gid::{Gid, Network},
        IbDevice,
    },
    net::netdev,
};

/// The address vector of a connected QP or of an AH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Av {
    /// Destination address.
    pub dgid: Gid,
    /// Source address: one of the device's.
    pub sgid: Gid,
    /// Index of `sgid` in the port's table, which has 256 entries at most.
    pub sgid_index: u8,
    /// Index of the network device that has `sgid`, in the namespace that it is in: the port's or one on top of it, as a
    /// VLAN. Zero if the address is gone.
    pub netdev_index: u32,
    /// The network of both addresses.
    pub network: Network,
    /// Traffic class: the TOS or traffic class field.
    pub traffic_class: u8,
    /// Hop limit: the TTL or hop limit field.
    pub hop_limit: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// The next hop's MAC address as ib_core resolved it.
    pub dmac: [u8; 6],
    /// Service level.
    pub sl: u8,
    /// Static rate (`enum ib_rate`), without effect.
    pub static_rate: u8,
    /// Port number.
    pub port: u8,
}

const FLOW_LABEL_MASK: u32 = 0xf_ffff;
/// The only port of a device.
const PORT: u8 = 1;

impl Av {
    /// Converts what ib_core has validated and resolved.
    ///
    /// # Errors
    ///
    /// `EINVAL`: not RoCE, no global route, no such port, no such source address, another network than the source's.
    ///
    /// # Safety
    ///
    /// `attr` must be what ib_core passes to an operation, during its call.
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
        let source = unsafe { attr.grh.sgid_attr.as_ref() }.ok_or(EINVAL)?;
        if source.gid_type != bindings::ib_gid_type_IB_GID_TYPE_ROCE_UDP_ENCAP {
            return Err(EINVAL);
        }
        let sgid = Gid::from_raw(&source.gid);
        let dgid = Gid::from_raw(&attr.grh.dgid);
        if sgid.network() != dgid.network() {
            return Err(EINVAL);
        }
        Ok(Self {
            dgid,
            sgid,
            sgid_index: attr.grh.sgid_index,
            netdev_index: netdev_index(source),
            network: sgid.network(),
            traffic_class: attr.grh.traffic_class,
            hop_limit: attr.grh.hop_limit,
            flow_label: attr.grh.flow_label & FLOW_LABEL_MASK,
            // SAFETY: The type was checked above.
            dmac: unsafe { attr.__bindgen_anon_1.roce.dmac },
            sl: attr.sl,
            static_rate: attr.static_rate,
            port: PORT,
        })
    }

    /// The priority of its packets in this host: the service level, which queueing disciplines and the
    /// `egress-qos-map` of a VLAN go by. No more than a socket may choose without privileges (`SO_PRIORITY`): 7 is for
    /// what controls the network.
    pub fn priority(&self) -> u32 {
        const HIGHEST: u8 = 6;
        self.sl.min(HIGHEST).into()
    }

    /// Converts back, for queries. The source is given by its index only.
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

/// An address vector as a work request carries it: nothing of it was looked at by ib_core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PostedAv {
    /// Destination address.
    pub dgid: Gid,
    /// Index of the source address in the port's table.
    pub sgid_index: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit; zero is taken for one.
    pub hop_limit: u8,
    /// Flow label; the low 20 bits count.
    pub flow_label: u32,
    /// Port number.
    pub port: u8,
}

impl PostedAv {
    /// The address vector, with the source address that `device` has under its index now.
    ///
    /// # Context
    ///
    /// Any but hard interrupts; doesn't sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such port, no such source address, another network than the source's.
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
            netdev_index: netdev_index(source.as_raw()),
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

/// The index of the network device that a source address belongs to.
fn netdev_index(source: &bindings::ib_gid_attr) -> u32 {
    let _readers = rcu::read_lock();
    // SAFETY: The entry is valid as the reference shows.
    let netdev = from_err_ptr(unsafe { bindings::rdma_read_gid_attr_ndev_rcu(source) });
    netdev.map_or(0, |netdev| {
        // SAFETY: Without an error it is a valid device, which RCU keeps.
        unsafe { netdev::index(netdev) }
    })
}
