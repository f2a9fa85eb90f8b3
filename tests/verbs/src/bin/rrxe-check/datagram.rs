// SPDX-License-Identifier: GPL-2.0

//! UD QPs: the data of datagrams, the GRH in front of the payload, the checks of queue key, length
//! and address handle, and the states of the QP after errors.

use std::{io, rc::Rc};

use rrxe_verbs::{
    link,
    object::{Ah, Context, Cq, Depth, Mr, Pd, Qp, ALL_ACCESS},
    sys::*,
};

use crate::{
    pair::{ensure, expect_no_completion, is_stock, next_completion, Ends, Outcome},
    tap::Tap,
};

/// Bytes of the GRH, which a UD receive has in front of the payload.
pub const GRH: usize = 40;
/// The queue key of all QPs of this module.
pub const QKEY: u32 = 0x1122_3344;
/// Offset of a receive in the region. The offset is odd, and the receive crosses pages.
pub const TARGET: usize = 8191;
const IMM: u32 = 0x0bad_cafe;
/// The highest bit of a work request's queue key selects the QP's own queue key.
const OWN_QKEY: u32 = 1 << 31;

/// Runs the cases that every provider should pass.
pub fn run(tap: &mut Tap, ends: &Ends) {
    tap.result("UD: SEND of all sizes", sizes(ends));
    tap.result(
        "UD: SEND with immediate, with and without inline data",
        immediate(ends),
    );
    tap.result(
        "UD: the GRH has the addresses of both hosts",
        grh_header(ends),
    );
    tap.result(
        "UD: a reply by an AH from the GRH reaches the sender",
        reply(ends),
    );
    tap.result(
        "UD: a datagram with a wrong Q_Key is dropped",
        wrong_qkey(ends),
    );
    tap.result(
        "UD: a datagram longer than its receive is dropped",
        short_receive(ends),
    );
    tap.result("UD: one QP sends to many QPs and to itself", many_qps(ends));
    tap.result(
        "UD: one QP sends to ten destinations in turn",
        many_destinations(ends),
    );
}

/// Runs the cases of errors, of a Q_Key with the highest bit set, and of address vectors in work
/// requests.
pub fn run_errors(tap: &mut Tap, ends: &Ends) {
    tap.result("UD: a SEND beyond the MTU is not sent", beyond_mtu(ends));
    tap.result(
        "UD: the highest bit of a Q_Key selects the QP's Q_Key",
        own_qkey(ends),
    );
    tap.result(
        "UD: wrong lkey: LOC_PROT_ERR, SQE, and back to RTS",
        wrong_lkey(ends),
    );
    tap.result("UD: RDMA WRITE: LOC_QP_OP_ERR", rdma_write(ends));
    tap.result(
        "UD: address handle of another PD: LOC_QP_OP_ERR",
        other_pd(ends),
    );
    let cases: [(&str, fn(&Ends) -> Outcome); 2] = [
        (
            "UD: SEND with the address vector in the work request",
            address_in_request,
        ),
        (
            "UD: address vector without a valid source: LOC_QP_OP_ERR",
            invalid_source_gid,
        ),
    ];
    for (name, case) in cases {
        if is_stock() {
            tap.result(name, case(ends));
        } else {
            tap.skip(
                name,
                "librrxe puts only the number of an AH in the work request",
            );
        }
    }
    tap.result("UD: ERR flushes both queues", flush(ends));
}

/// A UD QP with a CQ and memory of its own.
pub struct Node {
    pub qp: Qp,
    pub cq: Rc<Cq>,
    pub mr: Mr,
    pub pd: Rc<Pd>,
    gid: [u8; 16],
    pub gid_index: u8,
    mtu: usize,
}

/// Returns the text of an error.
pub fn text(e: io::Error) -> String {
    e.to_string()
}

impl Node {
    /// Creates a QP on a device, with a protection domain of its own.
    pub fn new(device: &str, v6: bool) -> Result<Self, String> {
        let context = Context::open(device).map_err(text)?;
        let pd = Pd::new(&context).map_err(text)?;
        Self::in_pd(&context, &pd, v6).map_err(|e| format!("set-up: {e}"))
    }

    fn in_pd(context: &Rc<Context>, pd: &Rc<Pd>, v6: bool) -> io::Result<Self> {
        let (gid_index, gid) = context.gid(v6)?;
        let cq = Cq::new(context, 256)?;
        let qp = Qp::of_type(IBV_QPT_UD, pd, &cq, Depth::default())?;
        link::to_datagram(&qp, QKEY)?;
        Ok(Self {
            qp,
            mr: Mr::new(pd, 1 << 16, ALL_ACCESS)?,
            cq,
            pd: pd.clone(),
            gid,
            gid_index,
            mtu: 128 << context.active_mtu()?,
        })
    }

    pub fn ah_to(&self, other: &Node) -> Result<Ah, String> {
        Ah::new(&self.pd, self.gid_index, other.gid).map_err(|e| format!("create_ah: {e}"))
    }

    /// Posts a receive with room for the GRH and `payload` bytes.
    pub fn recv(&self, id: u64, at: usize, payload: usize) -> Outcome {
        let mut sges = [self.mr.sge(at, GRH + payload)];
        self.qp
            .post_recv(id, &mut sges)
            .map_err(|e| format!("post_recv: {e}"))
    }

    /// Posts a send work request.
    pub fn send(&self, datagram: &Datagram) -> Outcome {
        let mut wr = ibv_send_wr {
            wr_id: datagram.id,
            opcode: datagram.opcode,
            send_flags: datagram.flags,
            ..Default::default()
        };
        wr.__bindgen_anon_1.imm_data = IMM.to_be();
        wr.wr.ud.ah = datagram.ah.raw;
        wr.wr.ud.remote_qpn = datagram.qpn;
        wr.wr.ud.remote_qkey = datagram.qkey;
        let mut sges = datagram.sges.clone();
        self.qp
            .post_send(&mut wr, &mut sges)
            .map_err(|e| format!("post_send: {e}"))
    }

    /// Waits for the next completion, which must have the `wr_id` `id` and the status `status`.
    pub fn expect(&self, id: u64, status: ibv_wc_status) -> Result<ibv_wc, String> {
        let wc = next_completion(&self.cq)?;
        if wc.wr_id == id && wc.status == status {
            return Ok(wc);
        }
        Err(format!(
            "completion {} with status {}, expected {id} with {status}",
            wc.wr_id, wc.status
        ))
    }

    /// The GRH of the receive at offset `at`.
    pub fn grh(&self, at: usize) -> [u8; GRH] {
        std::array::from_fn(|i| self.mr.buffer.get(at + i))
    }

    fn state(&self) -> Result<ibv_qp_state, String> {
        let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        // SAFETY: Both structures outlive the call.
        let errno = unsafe { ibv_query_qp(self.qp.raw, &mut attr, IBV_QP_STATE as i32, &mut init) };
        ensure(errno == 0, || format!("query_qp: errno {errno}"))?;
        Ok(attr.qp_state)
    }
}

/// A send work request.
#[derive(Clone)]
pub struct Datagram<'a> {
    pub id: u64,
    pub opcode: ibv_wr_opcode,
    pub flags: u32,
    pub ah: &'a Ah,
    pub qpn: u32,
    pub qkey: u32,
    pub sges: Vec<ibv_sge>,
}

impl<'a> Datagram<'a> {
    /// A signaled SEND of the first `size` bytes of `from`'s region to `to`.
    pub fn new(id: u64, from: &Node, ah: &'a Ah, to: &Node, size: usize) -> Self {
        Self {
            id,
            opcode: IBV_WR_SEND,
            flags: IBV_SEND_SIGNALED,
            ah,
            qpn: to.qp.number(),
            qkey: QKEY,
            sges: vec![from.mr.sge(0, size)],
        }
    }
}

fn nodes(ends: &Ends) -> Result<(Node, Node), String> {
    Ok((Node::new(ends.a, ends.v6)?, Node::new(ends.b, ends.v6)?))
}

/// Checks the completion and the memory of a receive at [`TARGET`]: `size` bytes of the pattern of
/// `seed`, and no byte written beside them.
pub fn check(wc: &ibv_wc, from: &Node, to: &Node, size: usize, seed: u64) -> Outcome {
    ensure(wc.byte_len as usize == GRH + size, || {
        format!("byte_len {}", wc.byte_len)
    })?;
    ensure(wc.opcode == IBV_WC_RECV, || format!("opcode {}", wc.opcode))?;
    ensure(wc.qp_num == to.qp.number(), || "wrong qp_num".into())?;
    ensure(wc.src_qp == from.qp.number(), || {
        format!("source QP {:#x}", wc.src_qp)
    })?;
    ensure(wc.wc_flags & IBV_WC_GRH != 0, || {
        format!("flags {:#x}", wc.wc_flags)
    })?;
    let memory = &to.mr.buffer;
    if let Some(at) = memory.mismatch(TARGET + GRH, size, seed) {
        return Err(format!("byte {at} is wrong"));
    }
    let neighbours = memory.get(TARGET - 1) | memory.get(TARGET + GRH + size);
    ensure(neighbours == 0, || {
        "a byte beside the receive was written".into()
    })
}

/// Sends a datagram of `size` bytes from `a` to `b` and checks that it arrives unchanged.
fn transfer(a: &mut Node, b: &mut Node, ah: &Ah, size: usize, seed: u64) -> Outcome {
    a.mr.buffer.fill(0, size, seed);
    for at in TARGET - 1..=TARGET + GRH + size {
        b.mr.buffer.set(at, 0);
    }
    b.recv(seed, TARGET, size)?;
    a.send(&Datagram::new(1, a, ah, b, size))?;
    let wc = a.expect(1, IBV_WC_SUCCESS)?;
    ensure(wc.opcode == IBV_WC_SEND, || format!("opcode {}", wc.opcode))?;
    let wc = b.expect(seed, IBV_WC_SUCCESS)?;
    check(&wc, a, b, size, seed)
}

pub fn sizes(ends: &Ends) -> Outcome {
    let (mut a, mut b) = nodes(ends)?;
    let ah = a.ah_to(&b)?;
    for (seed, size) in [0, 1, 3, 4, 64, 255, 513, 1000, a.mtu - 1, a.mtu]
        .into_iter()
        .enumerate()
    {
        transfer(&mut a, &mut b, &ah, size, 70 + seed as u64)
            .map_err(|e| format!("{size} bytes: {e}"))?;
    }
    Ok(())
}

pub fn immediate(ends: &Ends) -> Outcome {
    let (mut a, b) = nodes(ends)?;
    let ah = a.ah_to(&b)?;
    for (size, inline) in [
        (0, 0),
        (700, 0),
        (0, IBV_SEND_INLINE),
        (61, IBV_SEND_INLINE),
    ] {
        a.mr.buffer.fill(0, size, 5);
        b.recv(2, TARGET, size)?;
        let mut datagram = Datagram::new(1, &a, &ah, &b, size);
        datagram.opcode = IBV_WR_SEND_WITH_IMM;
        datagram.flags |= inline;
        a.send(&datagram)?;
        a.expect(1, IBV_WC_SUCCESS)?;
        let wc = b.expect(2, IBV_WC_SUCCESS)?;
        // SAFETY: Every bit pattern is valid immediate data.
        let imm = u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data });
        ensure(wc.wc_flags == IBV_WC_GRH | IBV_WC_WITH_IMM, || {
            format!("flags {:#x}", wc.wc_flags)
        })?;
        ensure(imm == IMM, || format!("immediate {imm:#x}"))?;
        let wrong = b.mr.buffer.mismatch(TARGET + GRH, size, 5);
        ensure(wrong.is_none(), || format!("byte {wrong:?} is wrong"))?;
    }
    Ok(())
}

/// Computes the Internet checksum over a header. It is zero if the header's own checksum is right.
fn checksum(header: &[u8]) -> u32 {
    let words = header.chunks(2);
    let sum: u32 = words
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
        .sum();
    !((sum & 0xffff) + (sum >> 16)) & 0xffff
}

fn grh_header(ends: &Ends) -> Outcome {
    let (mut a, mut b) = nodes(ends)?;
    let ah = a.ah_to(&b)?;
    let size = 33;
    transfer(&mut a, &mut b, &ah, size, 9)?;
    let grh = b.grh(TARGET);
    // UDP header, BTH, DETH, payload with pad, ICRC.
    let length = (8 + 12 + 8 + size.next_multiple_of(4) + 4) as u16;
    if ends.v6 {
        ensure(grh[0] >> 4 == 6 && grh[6] == 17, || {
            format!("no IPv6 header: {grh:02x?}")
        })?;
        ensure(grh[4..6] == length.to_be_bytes(), || {
            format!("length {:02x?}", &grh[4..6])
        })?;
        return ensure(grh[8..24] == a.gid && grh[24..] == b.gid, || {
            format!("addresses {grh:02x?}")
        });
    }
    ensure(grh[..20] == [0; 20], || {
        "the 20 bytes before the IPv4 header are not zero".into()
    })?;
    ensure(grh[20] == 0x45 && grh[29] == 17, || {
        format!("no IPv4 header: {grh:02x?}")
    })?;
    ensure(grh[22..24] == (length + 20).to_be_bytes(), || {
        format!("length {:02x?}", &grh[22..24])
    })?;
    ensure(checksum(&grh[20..]) == 0, || {
        format!("wrong checksum: {grh:02x?}")
    })?;
    ensure(
        grh[32..36] == a.gid[12..] && grh[36..] == b.gid[12..],
        || format!("addresses {grh:02x?}"),
    )
}

fn reply(ends: &Ends) -> Outcome {
    let (mut a, mut b) = nodes(ends)?;
    let ah = a.ah_to(&b)?;
    b.recv(1, TARGET, 100)?;
    a.send(&Datagram::new(2, &a, &ah, &b, 100))?;
    a.expect(2, IBV_WC_SUCCESS)?;
    let wc = b.expect(1, IBV_WC_SUCCESS)?;
    let back = Ah::from_wc(&b.pd, &wc, &b.grh(TARGET)).map_err(text)?;
    transfer(&mut b, &mut a, &back, 500, 8)
}

fn beyond_mtu(ends: &Ends) -> Outcome {
    let (mut a, mut b) = nodes(ends)?;
    let ah = a.ah_to(&b)?;
    b.recv(1, TARGET, a.mtu + 100)?;
    a.send(&Datagram::new(2, &a, &ah, &b, a.mtu + 1))?;
    // Some providers complete the SEND with an error, some with success, as if the network had lost
    // the datagram.
    let wc = next_completion(&a.cq)?;
    ensure(wc.wr_id == 2, || format!("completion {}", wc.wr_id))?;
    expect_no_completion(&b.cq)?;
    if wc.status == IBV_WC_SUCCESS {
        b.qp.modify(
            &ibv_qp_attr {
                qp_state: IBV_QPS_RESET,
                ..Default::default()
            },
            IBV_QP_STATE,
        )
        .map_err(text)?;
        link::to_datagram(&b.qp, QKEY).map_err(text)?;
        transfer(&mut a, &mut b, &ah, 100, 7)?;
    }
    Ok(())
}

fn wrong_qkey(ends: &Ends) -> Outcome {
    let (mut a, b) = nodes(ends)?;
    let ah = a.ah_to(&b)?;
    a.mr.buffer.fill(0, 100, 6);
    b.recv(1, TARGET, 100)?;
    let mut datagram = Datagram::new(2, &a, &ah, &b, 100);
    datagram.qkey ^= 1;
    a.send(&datagram)?;
    a.expect(2, IBV_WC_SUCCESS)?;
    expect_no_completion(&b.cq)?;
    a.send(&Datagram::new(3, &a, &ah, &b, 100))?;
    a.expect(3, IBV_WC_SUCCESS)?;
    let wc = b.expect(1, IBV_WC_SUCCESS)?;
    check(&wc, &a, &b, 100, 6)
}

fn own_qkey(ends: &Ends) -> Outcome {
    let (mut a, b) = nodes(ends)?;
    let ah = a.ah_to(&b)?;
    a.mr.buffer.fill(0, 100, 6);
    b.recv(1, TARGET, 100)?;
    let mut datagram = Datagram::new(2, &a, &ah, &b, 100);
    datagram.qkey = OWN_QKEY | 0x77;
    a.send(&datagram)?;
    a.expect(2, IBV_WC_SUCCESS)?;
    let wc = b.expect(1, IBV_WC_SUCCESS)?;
    check(&wc, &a, &b, 100, 6)
}

fn short_receive(ends: &Ends) -> Outcome {
    let (mut a, b) = nodes(ends)?;
    let ah = a.ah_to(&b)?;
    a.mr.buffer.fill(0, 100, 6);
    b.recv(1, TARGET, 100)?;
    a.send(&Datagram::new(2, &a, &ah, &b, 101))?;
    a.expect(2, IBV_WC_SUCCESS)?;
    expect_no_completion(&b.cq)?;
    a.send(&Datagram::new(3, &a, &ah, &b, 100))?;
    a.expect(3, IBV_WC_SUCCESS)?;
    let wc = b.expect(1, IBV_WC_SUCCESS)?;
    check(&wc, &a, &b, 100, 6)
}

/// Six QPs of one protection domain on device B. The first sends to all of them, itself included.
fn many_qps(ends: &Ends) -> Outcome {
    let context = Context::open(ends.b).map_err(text)?;
    let pd = Pd::new(&context).map_err(text)?;
    let group: Result<Vec<Node>, _> = (0..6)
        .map(|_| Node::in_pd(&context, &pd, ends.v6))
        .collect();
    let mut group = group.map_err(text)?;
    let ah = group[0].ah_to(&group[1])?;
    group[0].mr.buffer.fill(0, 777, 12);
    for node in &group {
        node.recv(100, TARGET, 777)?;
    }
    for to in &group {
        let mut datagram = Datagram::new(1, &group[0], &ah, to, 777);
        datagram.flags = 0;
        group[0].send(&datagram)?;
    }
    for to in &group {
        let wc = to.expect(100, IBV_WC_SUCCESS)?;
        check(&wc, &group[0], to, 777, 12)?;
    }
    expect_no_completion(&group[0].cq)
}

/// Sends to ten destinations in turn, each with an address handle of its own.
fn many_destinations(ends: &Ends) -> Outcome {
    let a = Node::new(ends.a, ends.v6)?;
    let group: Result<Vec<Node>, _> = (0..10).map(|_| Node::new(ends.b, ends.v6)).collect();
    let group = group?;
    let handles: Result<Vec<Ah>, _> = group.iter().map(|to| a.ah_to(to)).collect();
    let handles = handles?;
    for round in 0..20u64 {
        for (to, ah) in group.iter().zip(&handles) {
            to.recv(round, TARGET, 4)?;
            a.send(&Datagram::new(round, &a, ah, to, 4))?;
        }
        for to in &group {
            a.expect(round, IBV_WC_SUCCESS)?;
            to.expect(round, IBV_WC_SUCCESS)?;
        }
    }
    Ok(())
}

fn expect_sqe(a: &Node) -> Outcome {
    let state = a.state()?;
    ensure(state == IBV_QPS_SQE, || {
        format!("the sender is in state {state}")
    })
}

fn wrong_lkey(ends: &Ends) -> Outcome {
    let (mut a, mut b) = nodes(ends)?;
    let ah = a.ah_to(&b)?;
    let back = b.ah_to(&a)?;
    let mut datagram = Datagram::new(2, &a, &ah, &b, 100);
    datagram.sges[0].lkey ^= 0x4321_0000;
    a.send(&datagram)?;
    a.expect(2, IBV_WC_LOC_PROT_ERR)?;
    expect_sqe(&a)?;
    a.send(&Datagram::new(3, &a, &ah, &b, 100))?;
    a.expect(3, IBV_WC_WR_FLUSH_ERR)?;
    // The receive queue still works.
    transfer(&mut b, &mut a, &back, 100, 4)?;
    let attr = ibv_qp_attr {
        qp_state: IBV_QPS_RTS,
        ..Default::default()
    };
    a.qp.modify(&attr, IBV_QP_STATE)
        .map_err(|e| format!("SQE to RTS: {e}"))?;
    transfer(&mut a, &mut b, &ah, 100, 7)
}

/// An RDMA WRITE, which UD QPs do not support. The provider may refuse it with EINVAL when it is
/// posted.
fn rdma_write(ends: &Ends) -> Outcome {
    let (a, b) = nodes(ends)?;
    let ah = a.ah_to(&b)?;
    let mut datagram = Datagram::new(2, &a, &ah, &b, 100);
    datagram.opcode = IBV_WR_RDMA_WRITE;
    match a.send(&datagram) {
        Ok(()) => a.expect(2, IBV_WC_LOC_QP_OP_ERR).map(|_| ()),
        Err(why) if why.contains("os error 22") => Ok(()),
        Err(why) => Err(why),
    }
}

fn other_pd(ends: &Ends) -> Outcome {
    let (a, b) = nodes(ends)?;
    let other = Node::new(ends.a, ends.v6)?;
    let ah = other.ah_to(&b)?;
    b.recv(1, TARGET, 100)?;
    a.send(&Datagram::new(2, &a, &ah, &b, 100))?;
    a.expect(2, IBV_WC_LOC_QP_OP_ERR)?;
    expect_sqe(&a)?;
    expect_no_completion(&b.cq)
}

/// Offset in librxe's `struct rxe_ah` of the address vector (`struct rxe_av`, `rdma_user_rxe.h`).
const RXE_AV: usize = 24;
/// Offset of the address handle's number, which follows the address vector of 88 bytes.
const RXE_AH_NUMBER: usize = RXE_AV + 88;

/// Changes `ah` as if the kernel had returned no number for it, as old kernels do. Then librxe
/// copies the address vector to each work request. The address vector's destination is the GID of
/// `to`, and its source is the local GID `sgid_index`.
fn without_number(ah: &Ah, to: &Node, sgid_index: u8) -> Outcome {
    let start = ah.raw.cast::<u8>();
    // SAFETY: librxe's structure has this length. The values read are checked before the first
    // write.
    let (av, number) = unsafe {
        let av = start.add(RXE_AV).cast::<[u8; 88]>();
        (av, start.add(RXE_AH_NUMBER).cast::<u32>())
    };
    // SAFETY: As above.
    let (unused, current) = unsafe { (av.read() == [0; 88], number.read()) };
    ensure(unused && (1..1 << 15).contains(&current), || {
        "librxe has another structure than expected".into()
    })?;
    let mut address = [0; 88];
    address[0] = 1;
    address[8..24].copy_from_slice(&to.gid);
    address[28] = sgid_index;
    address[29] = 64;
    // SAFETY: As above.
    unsafe {
        av.write(address);
        number.write(0);
    }
    Ok(())
}

fn address_in_request(ends: &Ends) -> Outcome {
    let (mut a, mut b) = nodes(ends)?;
    let ah = a.ah_to(&b)?;
    without_number(&ah, &b, a.gid_index)?;
    for (seed, size) in [0, 100, a.mtu].into_iter().enumerate() {
        transfer(&mut a, &mut b, &ah, size, seed as u64)?;
    }
    Ok(())
}

fn invalid_source_gid(ends: &Ends) -> Outcome {
    let (a, b) = nodes(ends)?;
    let ah = a.ah_to(&b)?;
    without_number(&ah, &b, 200)?;
    b.recv(1, TARGET, 100)?;
    a.send(&Datagram::new(2, &a, &ah, &b, 100))?;
    a.expect(2, IBV_WC_LOC_QP_OP_ERR)?;
    expect_sqe(&a)?;
    expect_no_completion(&b.cq)
}

fn flush(ends: &Ends) -> Outcome {
    let (a, b) = nodes(ends)?;
    let ah = a.ah_to(&b)?;
    for id in 0..5 {
        a.recv(id, TARGET, 100)?;
    }
    let attr = ibv_qp_attr {
        qp_state: IBV_QPS_ERR,
        ..Default::default()
    };
    a.qp.modify(&attr, IBV_QP_STATE)
        .map_err(|e| format!("to ERR: {e}"))?;
    for id in 0..5 {
        a.expect(id, IBV_WC_WR_FLUSH_ERR)?;
    }
    a.send(&Datagram::new(9, &a, &ah, &b, 100))?;
    a.expect(9, IBV_WC_WR_FLUSH_ERR)?;
    expect_no_completion(&a.cq)
}
