// SPDX-License-Identifier: GPL-2.0

//! Entries of completion queues, as a process reads them.

use core::{mem::size_of, ptr, slice};

use kernel::prelude::*;
use pin_init::zeroed;
use roce::wc::{RecvExtra, RecvWc, SendWc};

use crate::bindings::ib_uverbs_wc;

/// `enum ibv_wc_flags` of libibverbs, which librxe passes on as they are. Note that they are not
/// those of the kernel's `enum ib_wc_flags`.
const WC_GRH: u32 = 1 << 0;
const WC_WITH_IMM: u32 = 1 << 1;
const WC_WITH_INV: u32 = 1 << 3;

/// The only port.
const PORT: u8 = 1;

/// An entry of a process's CQ.
pub struct Cqe(ib_uverbs_wc);

impl Cqe {
    /// Bytes of an entry.
    pub const LEN: usize = size_of::<ib_uverbs_wc>();

    /// The completion of a send by QP `qpn`.
    pub fn send(wc: &SendWc, qpn: u32) -> Self {
        Self(ib_uverbs_wc {
            wr_id: wc.wr_id,
            status: wc.status as u32,
            opcode: wc.opcode as u32,
            byte_len: wc.byte_len,
            qp_num: qpn,
            port_num: PORT,
            ..zeroed()
        })
    }

    /// The completion of a receive by QP `qpn`.
    pub fn recv(wc: &RecvWc, qpn: u32) -> Self {
        let mut cqe = ib_uverbs_wc {
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
                cqe.wc_flags |= WC_WITH_IMM;
                cqe.ex.imm_data = imm.0.to_be();
            }
            RecvExtra::Invalidated(rkey) => {
                cqe.wc_flags |= WC_WITH_INV;
                cqe.ex.invalidate_rkey = rkey.0;
            }
        }
        Self(cqe)
    }

    /// The entry as it lies in the ring.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: The structure is 48 bytes of integers without padding, all initialised.
        unsafe { slice::from_raw_parts(ptr::from_ref(&self.0).cast(), Self::LEN) }
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
        let bytes = cqe.as_bytes().get(at..)?.first_chunk()?;
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
        Cqe::recv(&wc, 0x17)
    }

    #[test]
    fn a_send_is_where_ibv_wc_has_it() {
        let wc = SendWc {
            wr_id: 0x1122_3344_5566_7788,
            status: WcStatus::RetryExcErr,
            opcode: WcOpcode::RdmaRead,
            byte_len: 5,
        };
        let cqe = Cqe::send(&wc, 0x1234);
        assert_eq!(cqe.as_bytes().len(), 48);
        let id = cqe
            .as_bytes()
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
    fn a_receive_tells_what_came_with_it() {
        let plain = received(RecvExtra::None, false);
        assert_eq!(word(&plain, 12), Some(128));
        assert_eq!(word(&plain, 28), Some(0x17));
        assert_eq!(word(&plain, 32), Some(0x99));
        assert_eq!(word(&plain, 36), Some(0));
        let imm = received(RecvExtra::Imm(Imm(0x0102_0304)), true);
        assert_eq!(imm.as_bytes().get(24..28), Some(&[1u8, 2, 3, 4][..]));
        assert_eq!(word(&imm, 36), Some(WC_GRH | WC_WITH_IMM));
        let invalidated = received(RecvExtra::Invalidated(Rkey(0xabcd)), false);
        assert_eq!(word(&invalidated, 24), Some(0xabcd));
        assert_eq!(word(&invalidated, 36), Some(8));
    }
}
