// SPDX-License-Identifier: GPL-2.0

//! Multicast of UD QPs: which QPs get a copy of a datagram to a group, and which attachments are
//! refused.

use std::io::{self, Read};

use rrxe_verbs::{
    object::{Ah, Context, Cq, Depth, Pd, Qp},
    sys::*,
};

use crate::{
    datagram::{check, text, Datagram, Node, QKEY, TARGET},
    pair::{ensure, expect_no_completion, next_completion, Ends, Outcome},
    tap::Tap,
};

/// The destination QPN of a packet to a group.
const MULTICAST: u32 = 0xff_ffff;
const EBUSY: i32 = 16;
const ENOMEM: i32 = 12;
const EINVAL: i32 = 22;
/// Maximum number of QPs of one user in a group (`MAX_MCAST_QP_OF_ONE`, limits.rs).
const MAX_QPS_OF_USER: usize = 56;

/// Runs the cases whose groups have QPs of device B only.
pub fn run(tap: &mut Tap, ends: &Ends) {
    tap.result("group: every attached QP gets a copy", copies(ends));
    tap.result("group: a detached QP gets nothing", detached(ends));
    tap.result(
        "group: a datagram with a wrong Q_Key is dropped",
        wrong_qkey(ends),
    );
    tap.result(
        "group: a datagram to a unicast QPN is dropped",
        wrong_qpn(ends),
    );
    tap.result("group: destroy_qp of an attached QP: EBUSY", busy(ends));
    tap.result("group: too many QPs: ENOMEM", limit(ends));
    tap.result(
        "group: attach of an RC QP or a unicast GID: EINVAL",
        refused(ends),
    );
}

/// Runs the case in which the sending QP is attached to the group that it sends to.
pub fn run_sender(tap: &mut Tap, ends: &Ends) {
    tap.result("group: the sending QP gets a copy, too", sender(ends));
}

/// The GID of group `n`: ff0e::77NN or 239.77.1.N.
fn address(v6: bool, n: u8) -> [u8; 16] {
    let mut group = [0; 16];
    if v6 {
        group[..2].copy_from_slice(&[0xff, 0x0e]);
        group[14..].copy_from_slice(&[0x77, n]);
    } else {
        group[10..].copy_from_slice(&[0xff, 0xff, 239, 77, 1, n]);
    }
    group
}

fn attach(qp: &Qp, group: [u8; 16]) -> i32 {
    // SAFETY: The address outlives the call.
    unsafe { ibv_attach_mcast(qp.raw, &ibv_gid { raw: group }, 0) }
}

fn detach(qp: &Qp, group: [u8; 16]) -> i32 {
    // SAFETY: The address outlives the call.
    unsafe { ibv_detach_mcast(qp.raw, &ibv_gid { raw: group }, 0) }
}

fn expect_errno(errno: i32, expected: i32) -> Outcome {
    ensure(errno == expected, || {
        format!("errno {errno}, expected {expected}")
    })
}

fn ah_to(from: &Node, group: [u8; 16]) -> Result<Ah, String> {
    Ah::new(&from.pd, from.gid_index, group).map_err(text)
}

/// A datagram of `size` bytes to the group of `ah`.
fn to_group<'a>(id: u64, from: &Node, ah: &'a Ah, size: usize) -> Datagram<'a> {
    Datagram {
        qpn: MULTICAST,
        ..Datagram::new(id, from, ah, from, size)
    }
}

/// Waits for a datagram of `size` bytes of the pattern of `seed` from `from`, and checks that its
/// GRH has the destination `group`.
fn expect_datagram(from: &Node, to: &Node, group: [u8; 16], size: usize, seed: u64) -> Outcome {
    let wc = to.expect(seed, IBV_WC_SUCCESS)?;
    check(&wc, from, to, size, seed)?;
    let grh = to.grh(TARGET);
    let matches = match group[0] {
        0xff => grh[24..] == group,
        _ => grh[36..] == group[12..],
    };
    ensure(matches, || format!("the header is {grh:02x?}"))
}

pub fn copies(ends: &Ends) -> Outcome {
    let mut a = Node::new(ends.a, ends.v6)?;
    let group: Result<Vec<Node>, _> = (0..5).map(|_| Node::new(ends.b, ends.v6)).collect();
    let group = group?;
    let (attached, others) = group.split_at(3);
    let (address, other) = (address(ends.v6, 1), address(ends.v6, 2));
    for node in attached {
        expect_errno(attach(&node.qp, address), 0)?;
    }
    expect_errno(attach(&others[0].qp, other), 0)?;
    let ah = ah_to(&a, address)?;
    for (seed, size) in [0, 100, 900].into_iter().enumerate() {
        let seed = seed as u64 + 30;
        a.mr.buffer.fill(0, size, seed);
        for node in &group {
            node.recv(seed, TARGET, size)?;
        }
        a.send(&to_group(1, &a, &ah, size))?;
        a.expect(1, IBV_WC_SUCCESS)?;
        for node in attached {
            expect_datagram(&a, node, address, size, seed)?;
        }
    }
    for node in others {
        expect_no_completion(&node.cq)?;
    }
    for node in attached {
        expect_no_completion(&node.cq)?;
        expect_errno(detach(&node.qp, address), 0)?;
    }
    expect_errno(detach(&others[0].qp, other), 0)
}

fn sender(ends: &Ends) -> Outcome {
    let (mut a, b) = (Node::new(ends.a, ends.v6)?, Node::new(ends.b, ends.v6)?);
    let third = Node::new(ends.a, ends.v6)?;
    let address = address(ends.v6, 3);
    for node in [&a, &b, &third] {
        expect_errno(attach(&node.qp, address), 0)?;
        node.recv(7, TARGET, 500)?;
    }
    let ah = ah_to(&a, address)?;
    a.mr.buffer.fill(0, 500, 7);
    a.send(&to_group(7, &a, &ah, 500))?;
    // The completions of its SEND and of its receive come in either order.
    let mut opcodes = [0; 2];
    for opcode in &mut opcodes {
        *opcode = a.expect(7, IBV_WC_SUCCESS)?.opcode;
    }
    opcodes.sort_unstable();
    ensure(opcodes == [IBV_WC_SEND, IBV_WC_RECV], || {
        format!("opcodes {opcodes:?}")
    })?;
    expect_datagram(&a, &b, address, 500, 7)?;
    expect_datagram(&a, &third, address, 500, 7)?;
    for node in [&a, &b, &third] {
        expect_no_completion(&node.cq)?;
        expect_errno(detach(&node.qp, address), 0)?;
    }
    Ok(())
}

/// Sends a datagram to B's group from A and checks that B gets no completion. `prepare` acts on the
/// attached B, and `change` on the datagram.
fn expect_dropped(
    ends: &Ends,
    prepare: fn(&Node, [u8; 16]) -> Outcome,
    change: fn(&mut Datagram<'_>),
) -> Outcome {
    let (a, b) = (Node::new(ends.a, ends.v6)?, Node::new(ends.b, ends.v6)?);
    let address = address(ends.v6, 4);
    expect_errno(attach(&b.qp, address), 0)?;
    prepare(&b, address)?;
    b.recv(1, TARGET, 100)?;
    let ah = ah_to(&a, address)?;
    let mut datagram = to_group(2, &a, &ah, 100);
    change(&mut datagram);
    a.send(&datagram)?;
    a.expect(2, IBV_WC_SUCCESS)?;
    expect_no_completion(&b.cq)?;
    detach(&b.qp, address);
    Ok(())
}

fn detached(ends: &Ends) -> Outcome {
    let detach_b = |b: &Node, address| expect_errno(detach(&b.qp, address), 0);
    expect_dropped(ends, detach_b, |_| ())
}

fn wrong_qkey(ends: &Ends) -> Outcome {
    expect_dropped(ends, |_, _| Ok(()), |datagram| datagram.qkey = QKEY ^ 1)
}

fn wrong_qpn(ends: &Ends) -> Outcome {
    let (a, b) = (Node::new(ends.a, ends.v6)?, Node::new(ends.b, ends.v6)?);
    let address = address(ends.v6, 5);
    expect_errno(attach(&b.qp, address), 0)?;
    b.recv(1, TARGET, 100)?;
    let ah = ah_to(&a, address)?;
    a.send(&Datagram::new(2, &a, &ah, &b, 100))?;
    a.expect(2, IBV_WC_SUCCESS)?;
    expect_no_completion(&b.cq)?;
    expect_errno(detach(&b.qp, address), 0)
}

fn busy(ends: &Ends) -> Outcome {
    let b = Node::new(ends.b, ends.v6)?;
    let address = address(ends.v6, 6);
    for _ in 0..2 {
        expect_errno(attach(&b.qp, address), 0)?;
    }
    // SAFETY: The kernel refuses to destroy an attached QP, so that the QP stays valid.
    expect_errno(unsafe { ibv_destroy_qp(b.qp.raw) }, EBUSY)?;
    expect_errno(detach(&b.qp, address), 0)?;
    expect_errno(detach(&b.qp, address), EINVAL)
}

fn limit(ends: &Ends) -> Outcome {
    let context = Context::open(ends.b).map_err(text)?;
    let pd = Pd::new(&context).map_err(text)?;
    let cq = Cq::new(&context, 16).map_err(text)?;
    let depth = Depth {
        send: 1,
        recv: 1,
        ..Depth::default()
    };
    let make = |_| Qp::of_type(IBV_QPT_UD, &pd, &cq, depth).map_err(text);
    let qps: Result<Vec<Qp>, _> = (0..=MAX_QPS_OF_USER).map(make).collect();
    let qps = qps?;
    let address = address(ends.v6, 7);
    for (index, qp) in qps.iter().enumerate() {
        let expected = if index < MAX_QPS_OF_USER { 0 } else { ENOMEM };
        expect_errno(attach(qp, address), expected)?;
    }
    expect_errno(detach(&qps[3], address), 0)?;
    expect_errno(attach(&qps[MAX_QPS_OF_USER], address), 0)?;
    for (index, qp) in qps.iter().enumerate() {
        expect_errno(detach(qp, address), if index == 3 { EINVAL } else { 0 })?;
    }
    Ok(())
}

fn refused(ends: &Ends) -> Outcome {
    let b = Node::new(ends.b, ends.v6)?;
    let connected = Qp::new(&b.pd, &b.cq, Depth::default()).map_err(text)?;
    expect_errno(attach(&connected, address(ends.v6, 8)), EINVAL)?;
    let mut unicast = address(ends.v6, 8);
    unicast[if ends.v6 { 0 } else { 12 }] = 0x20;
    expect_errno(attach(&b.qp, unicast), EINVAL)
}

/// Attaches a QP of device B to a group, posts receives, and waits until the standard input ends.
/// The QP must not have received a datagram until then. Afterwards it must still work.
pub fn hold(ends: &Ends) -> Outcome {
    let mut b = Node::new(ends.b, ends.v6)?;
    let address = address(ends.v6, 9);
    expect_errno(attach(&b.qp, address), 0)?;
    for id in 0..8 {
        b.recv(id, TARGET, 1000)?;
    }
    println!("attached {:x}", b.qp.number());
    io::stdin().read_to_end(&mut Vec::new()).map_err(text)?;
    expect_no_completion(&b.cq)?;
    let touched = (0..1 << 16).find(|&at| b.mr.buffer.get(at) != 0);
    ensure(touched.is_none(), || {
        format!("byte {touched:?} was written")
    })?;
    b.mr.buffer.fill(0, 1000, 9);
    let ah = b.ah_to(&b)?;
    b.send(&Datagram::new(9, &b, &ah, &b, 1000))?;
    // The completions of the SEND and of the receive come in either order.
    for _ in 0..2 {
        let wc = next_completion(&b.cq)?;
        match wc.opcode {
            IBV_WC_RECV => check(&wc, &b, &b, 1000, 9)?,
            _ => ensure(wc.status == IBV_WC_SUCCESS, || {
                format!("status {}", wc.status)
            })?,
        }
    }
    expect_errno(detach(&b.qp, address), 0)
}
