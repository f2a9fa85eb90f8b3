// SPDX-License-Identifier: GPL-2.0

//! Completion queue entries (CQEs): in the layout that a process reads from its ring (`struct
//! ib_uverbs_wc`), and in the longer layout that the kernel polls.

use core::{
    mem::{self, size_of},
    ptr, slice,
};

use kernel::prelude::*;
use pin_init::zeroed;
use roce::wc::{RecvExtra, RecvWc, SendWc};

use crate::{
    bindings::{self, ib_uverbs_wc, ib_wc},
    device::gid::Network,
    verbs::upcall::IbQpHandle,
};

/// Flags of `enum ibv_wc_flags` (libibverbs). librxe passes them on unchanged. They differ from the
/// flags of the kernel's `enum ib_wc_flags`.
const WC_GRH: u32 = 1 << 0;
const WC_WITH_IMM: u32 = 1 << 1;
const WC_WITH_INV: u32 = 1 << 3;

/// Number of a device's only port.
const PORT: u8 = 1;

/// Completion queue entry. Its first field is the `struct ib_uverbs_wc` that a process polls.
/// In-kernel consumers get the whole entry as a `struct ib_wc`.
#[repr(C)]
pub struct Cqe {
    /// Part that a process sees.
    user: ib_uverbs_wc,
    /// QP of the completion. This field and the following ones are for in-kernel consumers only.
    qp: IbQpHandle,
    /// VLAN of the local address to which a datagram came, or [`NO_VLAN`].
    vlan: u16,
    /// IP version of a received datagram (`enum rdma_network_type`), or [`NO_NETWORK`].
    network: u8,
    /// Service level (SL) of a received datagram.
    sl: u8,
    reserved: u32,
}

/// Properties of a received datagram that in-kernel consumers get in `struct ib_wc`, besides the
/// datagram's GRH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// VLAN of the local address to which the datagram came.
    pub vlan: Option<u16>,
    /// IP version of the datagram.
    pub network: Network,
    /// Service level (SL).
    pub sl: u8,
}

/// The structure has no padding: `struct ib_uverbs_wc` is 48 bytes, and the fields behind it are
/// 16.
const _: () = assert!(size_of::<ib_uverbs_wc>() == 48 && size_of::<Cqe>() == 64);

/// Value of `ib_wc.vlan_id` that means "no VLAN" to ib_core.
const NO_VLAN: u16 = 0xffff;

/// Value of [`Cqe::network`] for a completion without a datagram.
const NO_NETWORK: u8 = 0xff;

/// Layout of an entry in the ring of its CQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CqeLayout {
    /// Layout for a CQ that a process polls: `struct ib_uverbs_wc`.
    User,
    /// Layout for a CQ that the kernel polls: the whole [`Cqe`].
    Kernel,
}

impl CqeLayout {
    /// Returns the size of an entry in bytes.
    pub const fn size(self) -> usize {
        match self {
            Self::User => size_of::<ib_uverbs_wc>(),
            Self::Kernel => size_of::<Cqe>(),
        }
    }
}

impl Cqe {
    /// Returns the entry for the completion of a send by QP `qpn`, which in-kernel consumers know
    /// as `qp`.
    pub fn send(wc: &SendWc, qpn: u32, qp: IbQpHandle) -> Self {
        let user = ib_uverbs_wc {
            wr_id: wc.wr_id,
            status: wc.status as u32,
            opcode: wc.opcode as u32,
            byte_len: wc.byte_len,
            qp_num: qpn,
            port_num: PORT,
            ..zeroed()
        };
        Self::of(user, qp, None)
    }

    /// Creates the entry from its user part, its QP and the properties of a received datagram.
    fn of(user: ib_uverbs_wc, qp: IbQpHandle, arrival: Option<Arrival>) -> Self {
        let network = |arrival: Arrival| match arrival.network {
            Network::V4 => bindings::rdma_network_type_RDMA_NETWORK_IPV4 as u8,
            Network::V6 => bindings::rdma_network_type_RDMA_NETWORK_IPV6 as u8,
        };
        Self {
            user,
            qp,
            vlan: arrival.and_then(|arrival| arrival.vlan).unwrap_or(NO_VLAN),
            network: arrival.map_or(NO_NETWORK, network),
            sl: arrival.map_or(0, |arrival| arrival.sl),
            reserved: 0,
        }
    }

    /// Returns the entry for the completion of a receive by QP `qpn`, which in-kernel consumers
    /// know as `qp`. `arrival` describes a received datagram; it is `None` for connected QPs.
    pub fn recv(wc: &RecvWc, qpn: u32, qp: IbQpHandle, arrival: Option<Arrival>) -> Self {
        let mut user = ib_uverbs_wc {
            wr_id: wc.wr_id,
            status: wc.status as u32,
            opcode: wc.opcode as u32,
            byte_len: wc.byte_len,
            qp_num: qpn,
            src_qp: wc.src_qp.get(),
            wc_flags: if wc.grh { WC_GRH } else { 0 },
            port_num: PORT,
            ..zeroed()
        };
        match wc.extra {
            RecvExtra::None => {}
            RecvExtra::Imm(imm) => {
                user.wc_flags |= WC_WITH_IMM;
                user.ex.imm_data = imm.0.to_be();
            }
            RecvExtra::Invalidated(rkey) => {
                user.wc_flags |= WC_WITH_INV;
                user.ex.invalidate_rkey = rkey.0;
            }
        }
        Self::of(user, qp, arrival)
    }

    /// Returns the bytes of the entry as a ring of this layout holds them.
    pub fn as_bytes(&self, layout: CqeLayout) -> &[u8] {
        // SAFETY: The structure is 64 bytes of initialised integers without padding. A layout is as
        // long as the structure, or ends after its first field.
        unsafe { slice::from_raw_parts(ptr::from_ref(self).cast(), layout.size()) }
    }

    /// Creates an entry from its bytes in a ring of the layout [`CqeLayout::Kernel`].
    pub fn from_bytes(bytes: &[u8; CqeLayout::Kernel.size()]) -> Self {
        // SAFETY: The structure has the size of `bytes` and consists of integers, for which all
        // bytes are valid.
        unsafe { mem::transmute_copy(bytes) }
    }

    /// Returns the QP whose completion this is.
    pub fn qp(&self) -> IbQpHandle {
        self.qp
    }

    /// Returns this entry without its QP, for a QP that is destroyed. Such an entry is not passed
    /// to a consumer.
    pub fn without_qp(self) -> Self {
        Self {
            qp: IbQpHandle::NONE,
            ..self
        }
    }

    /// Returns this entry with the status `IB_WC_WR_FLUSH_ERR` if it is the completion of a
    /// receive. Returns the completion of a send unchanged.
    pub fn flushed_recv(mut self) -> Self {
        if self.user.opcode & bindings::ib_wc_opcode_IB_WC_RECV != 0 {
            self.user.status = bindings::ib_wc_status_IB_WC_WR_FLUSH_ERR;
        }
        self
    }

    /// Writes the completion to `wc`, as in-kernel consumers get it from `ib_poll_cq()`. Writes the
    /// whole structure.
    pub(crate) fn write(&self, wc: &mut ib_wc) {
        let user = &self.user;
        *wc = zeroed();
        wc.__bindgen_anon_1.wr_id = user.wr_id;
        wc.status = user.status;
        wc.opcode = user.opcode;
        wc.byte_len = user.byte_len;
        wc.qp = self.qp.as_ptr();
        wc.src_qp = user.src_qp;
        wc.port_num = user.port_num.into();
        let flag = |theirs: u32, ours: u32| match user.wc_flags & theirs {
            0 => 0,
            _ => ours as i32,
        };
        wc.wc_flags = flag(WC_GRH, bindings::ib_wc_flags_IB_WC_GRH)
            | flag(WC_WITH_IMM, bindings::ib_wc_flags_IB_WC_WITH_IMM)
            | flag(WC_WITH_INV, bindings::ib_wc_flags_IB_WC_WITH_INVALIDATE);
        wc.vlan_id = self.vlan;
        if self.vlan != NO_VLAN {
            wc.wc_flags |= bindings::ib_wc_flags_IB_WC_WITH_VLAN as i32;
        }
        wc.sl = self.sl;
        if self.network != NO_NETWORK {
            wc.network_hdr_type = self.network;
            wc.wc_flags |= bindings::ib_wc_flags_IB_WC_WITH_NETWORK_HDR_TYPE as i32;
        }
        // SAFETY: Both union members are 32 bits of integer. `wc_flags` says which one is meant.
        wc.ex.invalidate_rkey = unsafe { user.ex.invalidate_rkey };
    }
}

#[kunit_tests(rrxe_cqe)]
mod tests {
    use super::*;
    use roce::{
        ids::{Imm, Qpn, Rkey},
        wc::{WcOpcode, WcStatus},
    };

    fn word(cqe: &Cqe, at: usize) -> Option<u32> {
        let bytes = cqe.as_bytes(CqeLayout::User).get(at..)?.first_chunk()?;
        Some(u32::from_ne_bytes(*bytes))
    }

    fn received(extra: RecvExtra, grh: bool) -> Cqe {
        let wc = RecvWc {
            wr_id: 0x1122_3344_5566_7788,
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            byte_len: 1000,
            extra,
            src_qp: Qpn::new(0x99),
            solicited: true,
            grh,
        };
        Cqe::recv(&wc, 0x17, IbQpHandle::NONE, None)
    }

    #[test]
    fn a_send_has_the_layout_of_ibv_wc() {
        let wc = SendWc {
            wr_id: 0x1122_3344_5566_7788,
            status: WcStatus::RetryExcErr,
            opcode: WcOpcode::RdmaRead,
            byte_len: 5,
        };
        let cqe = Cqe::send(&wc, 0x1234, IbQpHandle::NONE);
        assert_eq!(cqe.as_bytes(CqeLayout::User).len(), 48);
        let id = cqe
            .as_bytes(CqeLayout::User)
            .first_chunk()
            .map(|id| u64::from_ne_bytes(*id));
        assert_eq!(id, Some(wc.wr_id));
        assert_eq!(word(&cqe, 8), Some(12));
        assert_eq!(word(&cqe, 12), Some(2));
        assert_eq!(word(&cqe, 20), Some(5));
        assert_eq!(word(&cqe, 28), Some(0x1234));
        assert_eq!(word(&cqe, 36), Some(0));
    }

    #[test]
    fn a_receive_has_its_flags_and_extra_data() {
        let plain = received(RecvExtra::None, false);
        assert_eq!(word(&plain, 12), Some(128));
        assert_eq!(word(&plain, 28), Some(0x17));
        assert_eq!(word(&plain, 32), Some(0x99));
        assert_eq!(word(&plain, 36), Some(0));
        let imm = received(RecvExtra::Imm(Imm(0x0102_0304)), true);
        assert_eq!(
            imm.as_bytes(CqeLayout::User).get(24..28),
            Some(&[1u8, 2, 3, 4][..])
        );
        assert_eq!(word(&imm, 36), Some(WC_GRH | WC_WITH_IMM));
        let invalidated = received(RecvExtra::Invalidated(Rkey(0xabcd)), false);
        assert_eq!(word(&invalidated, 24), Some(0xabcd));
        assert_eq!(word(&invalidated, 36), Some(8));
    }

    #[test]
    fn kernel_completions_describe_the_arrival() {
        let wc = SendWc {
            wr_id: 1,
            status: WcStatus::Success,
            opcode: WcOpcode::Send,
            byte_len: 0,
        };
        let plain = Cqe::send(&wc, 1, IbQpHandle::NONE);
        let datagram = |vlan, network| {
            Some(Arrival {
                vlan,
                network,
                sl: 16,
            })
        };
        for (arrival, flags, network, sl) in [
            (None, 0, 0, 0),
            (datagram(None, Network::V4), 0x40, 2, 16),
            (datagram(Some(5), Network::V6), 0x60, 3, 16),
        ] {
            let mut wc = zeroed();
            Cqe::of(plain.user, IbQpHandle::NONE, arrival).write(&mut wc);
            assert_eq!((wc.wc_flags, wc.network_hdr_type), (flags, network));
            assert_eq!(wc.sl, sl);
        }
    }

    #[test]
    fn the_kernel_polls_pushed_entries() {
        for (extra, flags) in [
            (RecvExtra::None, 0),
            (RecvExtra::Imm(Imm(0x0102_0304)), 2),
            (RecvExtra::Invalidated(Rkey(0xabcd)), 4),
        ] {
            let pushed = received(extra, false);
            let bytes = pushed.as_bytes(CqeLayout::Kernel).first_chunk();
            let Some(bytes) = bytes else { continue };
            let mut wc = zeroed();
            Cqe::from_bytes(bytes).write(&mut wc);
            assert_eq!(wc.opcode, bindings::ib_wc_opcode_IB_WC_RECV);
            assert_eq!(wc.byte_len, 1000);
            assert_eq!(wc.src_qp, 0x99);
            assert_eq!(wc.wc_flags, flags);
            assert!(wc.qp.is_null());
        }
    }
}
