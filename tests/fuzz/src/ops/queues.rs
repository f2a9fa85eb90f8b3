// SPDX-License-Identifier: GPL-2.0

//! Operations on queue pairs and shared receive queues.

use super::{
    completions::{create_channel, entries, make_cq},
    device, regions, Done,
};
use crate::{
    sys,
    thread::Thread,
    uverbs::{cmd, quad_at, word_at, Bytes, Value},
    world::{Kind, Object},
};

/// QP types (`enum ib_uverbs_qp_type`).
pub const RC: u8 = 2;
const UC: u8 = 3;
const UD: u8 = 4;
const RAW: u8 = 8;
const XRC_INI: u8 = 9;
const XRC_TGT: u8 = 10;

/// Creates all objects that messages need: a PD, pinned, on-demand and implicit regions, a window,
/// an address handle, an XRC domain, a CQ, an SRQ, connected RC QPs, a UD QP and a QP of any type.
/// If `thread.only` names a context, all are in it.
pub fn setup(thread: &mut Thread<'_>) -> Done {
    thread.without_mutation(set_up)
}

fn set_up(thread: &mut Thread<'_>) -> Done {
    let context = thread.context();
    if thread.world.fd(context) < 0 {
        device::open(thread)?;
    }
    device::alloc_pd(thread)?;
    for access in [0x1f, 0x5f, 1] {
        let memory = thread.world.memory(thread.rng.next());
        regions::reg_at(thread, context, memory, 1 << 16, access)?;
    }
    regions::reg_implicit(thread, context)?;
    let _ = regions::alloc_mw(thread);
    let _ = device::create_ah(thread);
    let _ = device::open_xrcd(thread);
    create_channel(thread)?;
    let cq = make_cq(thread, context, 60)?;
    let _ = create_srq(thread);
    for subtype in [RC, RC, UD] {
        let qp = make_qp(thread, context, subtype, cq, cq, None)?;
        connect_to(thread, qp, qp)?;
    }
    create_qp(thread)
}

/// Creates an SRQ, an ordinary one or one of an XRC domain.
pub fn create_srq(thread: &mut Thread<'_>) -> Done {
    let context = thread.context();
    let pd = thread.any_of(Kind::Pd, context);
    let (count, limit) = (entries(thread), thread.rng.below(8) as u32);
    let sges = 1 + thread.rng.below(4) as u32;
    let subtype = thread.rng.below(2) as u8;
    let response = if subtype == 0 {
        let body = Bytes::new()
            .quad(&[0])
            .word(&[pd.handle, count, sges, limit]);
        thread.command(context, cmd::CREATE_SRQ, body, 40)?
    } else {
        let xrcd = thread.any_of(Kind::Xrcd, context);
        let cq = thread.any_of(Kind::Cq, context);
        let body = Bytes::new().quad(&[0]).word(&[
            1,
            pd.handle,
            count,
            sges,
            limit,
            0,
            xrcd.handle,
            cq.handle,
        ]);
        thread.command(context, cmd::CREATE_XSRQ, body, 40)?
    };
    let ring = thread
        .world
        .map_ring(context, quad_at(&response, 16), word_at(&response, 24));
    let srq = Object {
        context,
        handle: word_at(&response, 0),
        number: word_at(&response, 12),
        ring,
        subtype,
        ..Object::default()
    };
    if let Some(old) = thread.world.add(Kind::Srq, srq, &mut thread.rng) {
        let _ = thread.command_destroy(cmd::DESTROY_SRQ, old);
    }
    Ok(())
}

/// Changes the size or the limit of an SRQ.
pub fn modify_srq(thread: &mut Thread<'_>) -> Done {
    let mut srq = thread.any(Kind::Srq);
    let (count, limit) = (entries(thread), thread.rng.below(16) as u32);
    let mask = 1 + thread.rng.below(3) as u32;
    let place = thread.scratch + 0x2000;
    let body = Bytes::new()
        .word(&[srq.handle, mask, count, limit])
        .quad(&[place]);
    thread.command_without_response(srq.context, cmd::MODIFY_SRQ, body)?;
    if mask & 1 != 0 {
        let info = sys::peek(place, 16);
        srq.ring = thread
            .world
            .map_ring(srq.context, quad_at(&info, 0), word_at(&info, 8));
        thread.world.update(Kind::Srq, srq);
    }
    Ok(())
}

/// Queries the attributes of an SRQ.
pub fn query_srq(thread: &mut Thread<'_>) -> Done {
    let srq = thread.any(Kind::Srq);
    thread
        .command(
            srq.context,
            cmd::QUERY_SRQ,
            Bytes::new().word(&[srq.handle, 0]),
            16,
        )
        .map(|_| ())
}

/// Destroys an SRQ. The kernel refuses it while QPs use the SRQ.
pub fn destroy_srq(thread: &mut Thread<'_>) -> Done {
    let srq = thread.any_to_destroy(Kind::Srq);
    thread.command_destroy(cmd::DESTROY_SRQ, srq).map(|_| ())
}

/// Creates a QP of any type.
pub fn create_qp(thread: &mut Thread<'_>) -> Done {
    let context = thread.context();
    let subtype = match thread.rng.below(24) {
        0..=12 => RC,
        13..=14 => UC,
        15..=17 => UD,
        18 => RAW,
        19..=20 => XRC_INI,
        21..=22 => XRC_TGT,
        _ => thread.rng.word() as u8,
    };
    let (send, recv) = (
        thread.any_of(Kind::Cq, context),
        thread.any_of(Kind::Cq, context),
    );
    let srq = thread
        .rng
        .one_in(4)
        .then(|| thread.any_of(Kind::Srq, context));
    make_qp(thread, context, subtype, send, recv, srq).map(|_| ())
}

/// Creates a QP of type `subtype` in a context.
pub fn make_qp(
    thread: &mut Thread<'_>,
    context: usize,
    subtype: u8,
    send: Object,
    recv: Object,
    srq: Option<Object>,
) -> Result<Object, i32> {
    let kind = if subtype == XRC_TGT {
        Kind::Xrcd
    } else {
        Kind::Pd
    };
    let owner = thread.any_of(kind, context);
    let edge_depths = thread.rng.one_in(16);
    let mut depth = || {
        if edge_depths {
            thread.rng.edge_value() as u32
        } else {
            1 + thread.rng.below(120) as u32
        }
    };
    let (sends, recvs) = (depth(), depth());
    let sges = 1 + thread.rng.below(4) as u32;
    let inline = thread.rng.pick(&[0, 0, 16, 64, 512]);
    let all = u8::from(thread.rng.one_in(4));
    let shared = srq.unwrap_or_default().handle;
    let body = Bytes::new()
        .quad(&[0])
        .word(&[
            owner.handle,
            send.handle,
            recv.handle,
            shared,
            sends,
            recvs,
            sges,
            sges,
            inline,
        ])
        .bytes(&[all, subtype, u8::from(srq.is_some()), 0]);
    let response = thread.command(context, cmd::CREATE_QP, body, 72)?;
    let map = |at: usize| match word_at(&response, at + 8) {
        0 => 0,
        length => thread
            .world
            .map_ring(context, quad_at(&response, at), length),
    };
    let (ring, send) = (map(32), map(48));
    let (handle, number, slot) = (
        word_at(&response, 0),
        word_at(&response, 4),
        word_at(&response, 64),
    );
    let qp = Object {
        context,
        handle,
        number,
        ring,
        send,
        subtype,
        slot,
        ..Object::default()
    };
    if let Some(old) = thread.world.add(Kind::Qp, qp, &mut thread.rng) {
        let _ = thread.command_destroy(cmd::DESTROY_QP, old);
    }
    Ok(qp)
}

/// Creates an RC QP with room for `receives` receives.
pub fn make_deep_qp(
    thread: &mut Thread<'_>,
    pd: Object,
    cq: Object,
    receives: u32,
) -> Result<Object, i32> {
    let body = Bytes::new()
        .quad(&[0])
        .word(&[pd.handle, cq.handle, cq.handle, 0, 1, receives, 1, 1, 0])
        .bytes(&[0, RC, 0, 0]);
    let response = thread.command(cq.context, cmd::CREATE_QP, body, 72)?;
    let ring = thread
        .world
        .map_ring(cq.context, quad_at(&response, 32), word_at(&response, 40));
    let (handle, number) = (word_at(&response, 0), word_at(&response, 4));
    let qp = Object {
        context: cq.context,
        handle,
        number,
        ring,
        subtype: RC,
        ..Object::default()
    };
    thread.world.add(Kind::Qp, qp, &mut thread.rng);
    Ok(qp)
}

/// Opens an existing XRC target QP, which gives it another handle.
pub fn open_qp(thread: &mut Thread<'_>) -> Done {
    let other = thread.any(Kind::Qp);
    let xrcd = thread.any_of(Kind::Xrcd, other.context);
    let body = Bytes::new()
        .quad(&[0])
        .word(&[xrcd.handle, other.number])
        .bytes(&[XRC_TGT, 0, 0, 0, 0, 0, 0, 0]);
    let response = thread.command(other.context, cmd::OPEN_QP, body, 32)?;
    let qp = Object {
        handle: word_at(&response, 0),
        number: word_at(&response, 4),
        ..other
    };
    thread.world.add(Kind::Qp, qp, &mut thread.rng);
    Ok(())
}

/// The attributes of a MODIFY_QP command.
struct Change {
    mask: u32,
    state: u8,
    gid: [u8; 16],
    index: u8,
    peer: u32,
    timer: u8,
    retries: u8,
}

fn change(thread: &mut Thread<'_>, qp: Object, change: &Change) -> Done {
    let body = Bytes::new()
        .bytes(&change.gid)
        .word(&[0])
        .half(&[0, 0])
        .bytes(&[change.index, 64, 0, 0, 0, 0, 1, 1])
        .bytes(&[0; 32])
        .word(&[qp.handle, change.mask, 0x11, 0, 0, change.peer, 0x30f])
        .half(&[0, 0])
        .bytes(&[
            change.state,
            0,
            3,
            0,
            0,
            4,
            4,
            1,
            1,
            change.timer,
            change.retries,
            change.retries,
            0,
            0,
            0,
            0,
        ]);
    thread
        .command_without_response(qp.context, cmd::MODIFY_QP, body)
        .map(|_| ())
}

/// Takes an RC QP to a state for which no path is needed: RESET (0), INIT (1) or ERR (6).
pub fn set_state(thread: &mut Thread<'_>, qp: Object, state: u8) -> Done {
    let mask = if state == 1 { masks(RC)[0] } else { 1 };
    let (gid, index) = ([0; 16], 0);
    let step = Change {
        mask,
        state,
        gid,
        index,
        peer: 0,
        timer: 0,
        retries: 0,
    };
    change(thread, qp, &step)
}

/// The masks of the attributes that a QP of type `subtype` needs for INIT, RTR and RTS.
fn masks(subtype: u8) -> [u32; 3] {
    const STATE: u32 = 1;
    const PKEY_PORT: u32 = 1 << 4 | 1 << 5;
    const PATH: u32 = 1 << 7 | 1 << 8 | 1 << 12 | 1 << 20;
    const RESPONDER: u32 = 1 << 15 | 1 << 17;
    const RETRIES: u32 = 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16;
    match subtype {
        UC => [STATE | PKEY_PORT | 1 << 3, STATE | PATH, STATE | 1 << 16],
        UD | 1 => [STATE | PKEY_PORT | 1 << 6, STATE, STATE | 1 << 16],
        RAW => [STATE | 1 << 5, STATE, STATE],
        XRC_INI => [STATE | PKEY_PORT | 1 << 3, STATE | PATH, STATE | RETRIES],
        XRC_TGT => [
            STATE | PKEY_PORT | 1 << 3,
            STATE | PATH | RESPONDER,
            STATE | 1 << 9 | 1 << 16,
        ],
        _ => [
            STATE | PKEY_PORT | 1 << 3,
            STATE | PATH | RESPONDER,
            STATE | RETRIES,
        ],
    }
}

/// Connects two QPs of the same type to each other, an XRC initiator to a target, or a QP to
/// itself.
pub fn connect_qp(thread: &mut Thread<'_>) -> Done {
    let one = thread.any(Kind::Qp);
    let mut other = thread.any(Kind::Qp);
    if thread.rng.one_in(2) || other.subtype != one.subtype {
        other = one;
    }
    if one.subtype == XRC_INI {
        other = (0..6)
            .map(|_| thread.any(Kind::Qp))
            .find(|qp| qp.subtype == XRC_TGT)
            .unwrap_or(one);
    }
    connect_to(thread, one, other)?;
    if other.handle != one.handle {
        connect_to(thread, other, one)?;
    }
    Ok(())
}

/// Connects a QP to a peer, with random timers.
pub fn connect_to(thread: &mut Thread<'_>, qp: Object, peer: Object) -> Done {
    let own = thread.world.device(qp.context).ok_or(19)?.gids;
    let theirs = thread.world.device(peer.context).ok_or(19)?.gids;
    if own.is_empty() || theirs.is_empty() {
        return Err(19);
    }
    let place = thread.rng.index(own.len());
    let path = (own[place].0, theirs[place % theirs.len()].1);
    let timers = thread
        .rng
        .pick(&[(8, 1), (8, 1), (10, 7), (14, 7), (0, 7), (6, 0)]);
    let reset = !thread.rng.one_in(8);
    connect_over(thread, qp, peer, path, timers, reset)
}

/// Connects a QP from any state, over IPv4, with timers that are long enough for busy CPUs.
pub fn connect_with_long_timers(thread: &mut Thread<'_>, qp: Object, peer: Object) -> Done {
    let own = thread.world.device(qp.context).ok_or(19)?.gids;
    let theirs = thread.world.device(peer.context).ok_or(19)?.gids;
    let mapped = |gid: &&(u8, [u8; 16])| gid.1[10..12] == [0xff, 0xff];
    let (from, to) = (
        own.iter().find(mapped).ok_or(19)?,
        theirs.iter().find(mapped).ok_or(19)?,
    );
    connect_over(thread, qp, peer, (from.0, to.1), (17, 7), true)
}

fn connect_over(
    thread: &mut Thread<'_>,
    qp: Object,
    peer: Object,
    (index, gid): (u8, [u8; 16]),
    (timer, retries): (u8, u8),
    reset: bool,
) -> Done {
    let mut step = Change {
        mask: 1,
        state: 0,
        gid,
        index,
        peer: peer.number,
        timer,
        retries,
    };
    if reset {
        change(thread, qp, &step)?;
    }
    for (state, mask) in (1..).zip(masks(qp.subtype)) {
        (step.state, step.mask) = (state, mask);
        change(thread, qp, &step)?;
    }
    Ok(())
}

/// Modifies a QP to a random state, with the right attributes for a transition or with random ones.
pub fn modify_qp(thread: &mut Thread<'_>) -> Done {
    let qp = thread.any(Kind::Qp);
    let (gid, index) = device::path(thread, qp.context);
    let state = thread.rng.below(7) as u8;
    let mask = match thread.rng.below(4) {
        0 => thread.rng.edge_value() as u32,
        1 => 1 | 1 << thread.rng.below(26),
        2 => masks(qp.subtype)[thread.rng.index(3)],
        _ => 1,
    };
    let peer = thread.any(Kind::Qp).number;
    let (timer, retries) = (thread.rng.below(16) as u8, thread.rng.below(8) as u8);
    change(
        thread,
        qp,
        &Change {
            mask,
            state,
            gid,
            index,
            peer,
            timer,
            retries,
        },
    )
}

/// Queries the attributes of a QP.
pub fn query_qp(thread: &mut Thread<'_>) -> Done {
    let qp = thread.any(Kind::Qp);
    thread
        .command(
            qp.context,
            cmd::QUERY_QP,
            Bytes::new().word(&[qp.handle, 0x1f_ffff]),
            128,
        )
        .map(|_| ())
}

/// Destroys a QP, which other threads may be using.
pub fn destroy_qp(thread: &mut Thread<'_>) -> Done {
    let qp = thread.any_to_destroy(Kind::Qp);
    if thread.rng.one_in(4) {
        let attributes = [(0, Value::Inline(qp.handle.into(), 0)), (1, Value::Out(4))];
        return thread.ioctl(qp.context, 4, 1, &attributes).map(|_| ());
    }
    thread.command_destroy(cmd::DESTROY_QP, qp).map(|_| ())
}

/// Attaches a QP to a multicast group or detaches it.
pub fn mcast(thread: &mut Thread<'_>) -> Done {
    let qp = thread.any(Kind::Qp);
    let mut gid = [0; 16];
    gid[10..].copy_from_slice(&[0xff, 0xff, 239, 77, 1, thread.rng.below(6) as u8]);
    if thread.rng.one_in(4) {
        gid = [
            0xff,
            0x0e,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0x77,
            thread.rng.below(6) as u8,
        ];
    }
    let body = Bytes::new().bytes(&gid).word(&[qp.handle]).half(&[0, 0]);
    let number = if thread.rng.one_in(2) {
        cmd::DETACH_MCAST
    } else {
        cmd::ATTACH_MCAST
    };
    thread
        .command_without_response(qp.context, number, body)
        .map(|_| ())
}
