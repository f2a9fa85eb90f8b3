// SPDX-License-Identifier: GPL-2.0

//! Entries of completion queues, as a process reads them.

use core::{mem::size_of, ptr, slice};

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
