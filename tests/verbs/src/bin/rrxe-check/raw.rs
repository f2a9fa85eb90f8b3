// SPDX-License-Identifier: GPL-2.0

//! Raw packet QPs: SENDs of whole Ethernet frames, which the network device of device A transmits
//! unchanged.

use std::rc::Rc;

use rrxe_verbs::{
    object::{Context, Cq, Depth, Mr, Pd, Qp, ALL_ACCESS},
    sys::*,
};

use crate::{
    datagram::text,
    pair::{ensure, expect_no_completion, next_completion, Ends, Outcome},
    tap::Tap,
};

/// Bytes of an Ethernet header.
const HEADER: usize = 14;
/// Bytes of a VLAN tag.
const TAG: usize = 4;
/// MTU of the test's network device, in bytes.
const MTU: usize = 1500;
const EPERM: i32 = 1;

/// Runs all cases. Prints the frames that are sent, so that a script (raw.sh) can compare them with
/// the frames that arrive.
pub fn run(tap: &mut Tap, ends: &Ends) {
    tap.result("raw: modify_qp to ERR, RESET and INIT", states(ends));
    tap.result("raw: frames of 60 to 1,514 bytes are sent", frames(ends));
    tap.result(
        "raw: invalid length: LOC_LEN_ERR, SQE, and back to RTS",
        lengths(ends),
    );
    tap.result("raw: wrong lkey: LOC_PROT_ERR", wrong_lkey(ends));
    tap.result("raw: RDMA WRITE: LOC_QP_OP_ERR or EINVAL", refused(ends));
}

/// Runs the case of a process without CAP_NET_RAW, which may not create raw packet QPs.
pub fn run_denied(tap: &mut Tap, ends: &Ends) {
    let denied = || {
        let context = Context::open(ends.a).map_err(text)?;
        let pd = Pd::new(&context).map_err(text)?;
        let cq = Cq::new(&context, 16).map_err(text)?;
        let made = Qp::of_type(IBV_QPT_RAW_PACKET, &pd, &cq, Depth::default());
        let errno = made.err().and_then(|error| error.raw_os_error());
        ensure(errno == Some(EPERM), || format!("errno {errno:?}"))
    };
    tap.result("raw: create_qp without CAP_NET_RAW: EPERM", denied());
}

struct Port {
    qp: Qp,
    cq: Rc<Cq>,
    mr: Mr,
}

impl Port {
    fn new(ends: &Ends) -> Result<Self, String> {
        let context = Context::open(ends.a).map_err(text)?;
        let pd = Pd::new(&context).map_err(text)?;
        let cq = Cq::new(&context, 64).map_err(text)?;
        let qp = Qp::of_type(IBV_QPT_RAW_PACKET, &pd, &cq, Depth::default());
        let port = Self {
            qp: qp.map_err(|e| format!("create_qp: {e}"))?,
            mr: Mr::new(&pd, 1 << 16, ALL_ACCESS).map_err(text)?,
            cq,
        };
        port.to(IBV_QPS_INIT, IBV_QP_PORT)?;
        port.to(IBV_QPS_RTR, 0)?;
        port.to(IBV_QPS_RTS, 0)?;
        Ok(port)
    }

    fn to(&self, qp_state: ibv_qp_state, mask: u32) -> Outcome {
        let attr = ibv_qp_attr {
            qp_state,
            port_num: 1,
            ..Default::default()
        };
        self.qp
            .modify(&attr, mask | IBV_QP_STATE)
            .map_err(|e| format!("to state {qp_state}: {e}"))
    }

    fn state(&self) -> Result<ibv_qp_state, String> {
        let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        // SAFETY: Both structures outlive the call.
        let errno = unsafe { ibv_query_qp(self.qp.raw, &mut attr, IBV_QP_STATE as i32, &mut init) };
        ensure(errno == 0 && init.qp_type == IBV_QPT_RAW_PACKET, || {
            format!("query_qp: errno {errno}, type {}", init.qp_type)
        })?;
        Ok(attr.qp_state)
    }

    fn send(&self, id: u64, opcode: ibv_wr_opcode, flags: u32, sges: &mut [ibv_sge]) -> Outcome {
        let mut wr = ibv_send_wr {
            wr_id: id,
            opcode,
            send_flags: flags | IBV_SEND_SIGNALED,
            ..Default::default()
        };
        self.qp
            .post_send(&mut wr, sges)
            .map_err(|e| format!("post_send: {e}"))
    }

    fn expect(&self, id: u64, status: ibv_wc_status) -> Outcome {
        let wc = next_completion(&self.cq)?;
        ensure(wc.wr_id == id && wc.status == status, || {
            format!("completion {} with status {}", wc.wr_id, wc.status)
        })
    }

    /// Writes a broadcast frame of `size` bytes, of the local experimental EtherType 0x88b5, at
    /// offset `at`, and prints it.
    fn write_frame(&mut self, at: usize, size: usize, seed: u64) {
        self.mr.buffer.fill(at, size, seed);
        let header = [
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x88, 0xb5,
        ];
        for (index, byte) in header.into_iter().enumerate() {
            self.mr.buffer.set(at + index, byte);
        }
        let bytes = (0..size).map(|i| format!("{:02x}", self.mr.buffer.get(at + i)));
        println!("# frame {}", bytes.collect::<String>());
    }
}

fn states(ends: &Ends) -> Outcome {
    let port = Port::new(ends)?;
    for (state, mask) in [
        (IBV_QPS_ERR, 0),
        (IBV_QPS_RESET, 0),
        (IBV_QPS_INIT, IBV_QP_PORT),
    ] {
        port.to(state, mask)?;
        let current = port.state()?;
        ensure(current == state, || format!("in state {current}"))?;
    }
    Ok(())
}

fn frames(ends: &Ends) -> Outcome {
    let mut port = Port::new(ends)?;
    for (id, size) in [HEADER + 46, 100, 333, HEADER + MTU]
        .into_iter()
        .enumerate()
    {
        let id = id as u64;
        port.write_frame(4000, size, id);
        let mut sges = [port.mr.sge(4000, 20), port.mr.sge(4020, size - 20)];
        port.send(id, IBV_WR_SEND, 0, &mut sges)?;
        port.expect(id, IBV_WC_SUCCESS)?;
    }
    port.write_frame(0, 64, 9);
    let mut sges = [port.mr.sge(0, 64)];
    port.send(9, IBV_WR_SEND, IBV_SEND_INLINE, &mut sges)?;
    port.expect(9, IBV_WC_SUCCESS)?;
    expect_no_completion(&port.cq)
}

fn lengths(ends: &Ends) -> Outcome {
    let port = Port::new(ends)?;
    for size in [0, 1, HEADER - 1, HEADER + MTU + TAG + 1, 60_000] {
        port.send(1, IBV_WR_SEND, 0, &mut [port.mr.sge(0, size)])?;
        port.expect(1, IBV_WC_LOC_LEN_ERR)
            .map_err(|e| format!("{size} bytes: {e}"))?;
        let state = port.state()?;
        ensure(state == IBV_QPS_SQE, || format!("in state {state}"))?;
        port.to(IBV_QPS_RTS, 0)?;
    }
    Ok(())
}

fn wrong_lkey(ends: &Ends) -> Outcome {
    let port = Port::new(ends)?;
    let mut sges = [port.mr.sge(0, 100)];
    sges[0].lkey ^= 0x4321_0000;
    port.send(1, IBV_WR_SEND, 0, &mut sges)?;
    port.expect(1, IBV_WC_LOC_PROT_ERR)
}

fn refused(ends: &Ends) -> Outcome {
    let port = Port::new(ends)?;
    match port.send(1, IBV_WR_RDMA_WRITE, 0, &mut [port.mr.sge(0, 100)]) {
        Ok(()) => port.expect(1, IBV_WC_LOC_QP_OP_ERR),
        Err(why) if why.contains("os error 22") => Ok(()),
        Err(why) => Err(why),
    }
}
