// SPDX-License-Identifier: GPL-2.0

//! An RC QP that is connected to itself: its messages arrive in the memory of the same process.

use std::{io, rc::Rc};

use rrxe_verbs::{
    link::{self, Endpoint, Settings},
    object::{Context, Cq, Depth, Mr, Pd, Qp, ALL_ACCESS},
    sys::*,
};

use crate::Fallible;

/// Bytes of a message. The first half of the memory is the source, the second half the target.
pub const SIZE: usize = 64;

/// A QP connected to itself, with its CQ and memory.
pub struct SelfConnected {
    pub qp: Qp,
    pub cq: Rc<Cq>,
    pub mr: Mr,
    end: Endpoint,
}

impl SelfConnected {
    /// Creates and connects a QP on `device` with `send` send WQEs and `recv` receive WQEs.
    pub fn connect(device: &str, send: u32, recv: u32) -> Fallible<Self> {
        let context = Context::open(device)?;
        let pd = Pd::new(&context)?;
        let cq = Cq::new(&context, 1024)?;
        let mr = Mr::new(&pd, 2 * SIZE, ALL_ACCESS)?;
        let depth = Depth {
            send,
            recv,
            sge: 1,
            inline: 0,
        };
        let qp = Qp::new(&pd, &cq, depth)?;
        link::to_init(&qp, ALL_ACCESS)?;
        let end = Endpoint::with_memory(&context, &qp, &mr, false)?;
        let settings = Settings {
            mtu: context.active_mtu()?,
            ..Settings::default()
        };
        link::to_rtr(&qp, &end, &end, &settings)?;
        link::to_rts(&qp, &end, &settings)?;
        Ok(Self { qp, cq, mr, end })
    }

    /// Posts a signaled SEND or WRITE.
    pub fn send(&self, opcode: ibv_wr_opcode, flags: u32) -> io::Result<()> {
        let mut wr = ibv_send_wr {
            opcode,
            send_flags: IBV_SEND_SIGNALED | flags,
            ..Default::default()
        };
        wr.wr.rdma.remote_addr = self.end.addr + SIZE as u64;
        wr.wr.rdma.rkey = self.end.rkey;
        self.qp.post_send(&mut wr, &mut [self.mr.sge(0, SIZE)])
    }

    /// Posts a receive.
    pub fn receive(&self) -> io::Result<()> {
        self.qp.post_recv(0, &mut [self.mr.sge(SIZE, SIZE)])
    }

    /// Polls one successful completion. The error is `WouldBlock` if there is none.
    pub fn take(&self) -> io::Result<()> {
        let mut wc = [ibv_wc::default()];
        match (self.cq.poll(&mut wc), wc[0].status) {
            (1, IBV_WC_SUCCESS) => Ok(()),
            (0, _) => Err(io::ErrorKind::WouldBlock.into()),
            (_, status) => Err(io::Error::other(format!(
                "a completion has status {status}"
            ))),
        }
    }

    /// Polls until there is a completion. Calls `meanwhile` after each poll that found none.
    pub fn wait_for_completion(&self, meanwhile: fn()) -> io::Result<()> {
        loop {
            match self.take() {
                Err(empty) if empty.kind() == io::ErrorKind::WouldBlock => meanwhile(),
                taken => return taken,
            }
        }
    }
}
