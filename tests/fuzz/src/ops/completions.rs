// SPDX-License-Identifier: GPL-2.0

//! Operations on completion queues and completion channels.

use std::sync::atomic::Ordering::SeqCst;

use super::{
    queues::{connect_to, make_deep_qp, make_qp, set_state, RC},
    Done,
};
use crate::{
    sys,
    thread::Thread,
    uverbs::{cmd, quad_at, word_at, Bytes, Value},
    world::{Kind, Object},
};

/// Creates a completion channel.
pub fn create_channel(thread: &mut Thread<'_>) -> Done {
    let context = thread.context();
    let response = thread.command(context, cmd::CREATE_COMP_CHANNEL, Bytes::new(), 4)?;
    let fd = word_at(&response, 0);
    sys::nonblocking(fd as i32);
    let channel = Object {
        context,
        handle: fd,
        ..Object::default()
    };
    if let Some(old) = thread.world.add(Kind::Channel, channel, &mut thread.rng) {
        let _ = sys::close(old.handle as i32);
    }
    Ok(())
}

/// Chooses a number of entries for a queue, mostly a small one.
pub fn entries(thread: &mut Thread<'_>) -> u32 {
    match thread.rng.below(16) {
        0 => thread.rng.edge_value() as u32,
        1..=2 => 1 + thread.rng.below(4000) as u32,
        _ => 1 + thread.rng.below(60) as u32,
    }
}

fn channel_of(thread: &mut Thread<'_>, context: usize) -> u32 {
    if thread.rng.one_in(4) {
        return u32::MAX;
    }
    thread
        .world
        .any_of(Kind::Channel, context, &mut thread.rng)
        .map_or(u32::MAX, |channel| channel.handle)
}

/// Creates a CQ, with or without a channel.
pub fn create_cq(thread: &mut Thread<'_>) -> Done {
    let (context, count) = (thread.context(), entries(thread));
    make_cq(thread, context, count).map(|_| ())
}

/// Creates a CQ of `count` entries in a context.
pub fn make_cq(thread: &mut Thread<'_>, context: usize, count: u32) -> Result<Object, i32> {
    let channel = channel_of(thread, context);
    let body = Bytes::new().quad(&[0]).word(&[count, 0, channel, 0]);
    let response = thread.command(context, cmd::CREATE_CQ, body, 24)?;
    let ring = thread
        .world
        .map_ring(context, quad_at(&response, 8), word_at(&response, 16));
    let cq = Object {
        context,
        handle: word_at(&response, 0),
        ring,
        length: count.into(),
        ..Object::default()
    };
    add_cq(thread, cq);
    Ok(cq)
}

fn add_cq(thread: &mut Thread<'_>, cq: Object) {
    if let Some(old) = thread.world.add(Kind::Cq, cq, &mut thread.rng) {
        let _ = thread.command_destroy(cmd::DESTROY_CQ, old);
    }
}

/// Creates a CQ by the extended command, with flags.
pub fn create_cq_ex(thread: &mut Thread<'_>) -> Done {
    let (context, count) = (thread.context(), entries(thread));
    let channel = channel_of(thread, context);
    let flags = thread.rng.below(4) as u32;
    let body = Bytes::new()
        .quad(&[0])
        .word(&[count, 0, channel, 0, flags, 0]);
    thread.provider_out = 2;
    let response = thread.extended(context, cmd::CREATE_CQ, body, 16);
    thread.provider_out = 0;
    let response = response?;
    let ring = thread
        .world
        .map_ring(context, quad_at(&response, 16), word_at(&response, 24));
    add_cq(
        thread,
        Object {
            context,
            handle: word_at(&response, 0),
            ring,
            ..Object::default()
        },
    );
    Ok(())
}

/// Resizes a CQ that may be in use.
pub fn resize_cq(thread: &mut Thread<'_>) -> Done {
    let (cq, count) = (thread.any(Kind::Cq), entries(thread));
    resize(thread, cq, count)
}

fn resize(thread: &mut Thread<'_>, mut cq: Object, count: u32) -> Done {
    let response = thread.command(
        cq.context,
        cmd::RESIZE_CQ,
        Bytes::new().word(&[cq.handle, count]),
        24,
    )?;
    cq.ring = thread
        .world
        .map_ring(cq.context, quad_at(&response, 8), word_at(&response, 16));
    thread.world.update(Kind::Cq, cq);
    Ok(())
}

/// Number of entries of long CQs, and of the receive queues whose flushed receives fill them.
const LONG: u32 = (1 << 14) - 2;

/// Resizes a long CQ, which may be full. At times flushes the receives of a random QP instead. If
/// no long CQ is found, creates one and fills it with flushed receives.
pub fn resize_long_cq(thread: &mut Thread<'_>) -> Done {
    let context = thread.context();
    let mut any = || thread.world.any_of(Kind::Cq, context, &mut thread.rng);
    let found = (0..40).find_map(|_| any().filter(|cq| cq.length == u64::from(LONG)));
    let Some(cq) = found else {
        let cq = make_cq(thread, context, LONG)?;
        let pd = thread.any_of(Kind::Pd, context);
        let qp = make_deep_qp(thread, pd, cq, LONG)?;
        return fill(thread, qp, cq);
    };
    if thread.rng.one_in(8) {
        let qp = thread.any_of(Kind::Qp, context);
        return fill(thread, qp, cq);
    }
    resize(thread, cq, LONG)
}

/// Fills the receive queue of a QP and takes the QP to ERR, which flushes each receive. Waits until
/// most are flushed.
fn fill(thread: &mut Thread<'_>, qp: Object, cq: Object) -> Done {
    if qp.ring == 0 || cq.ring == 0 {
        return Ok(());
    }
    set_state(thread, qp, 0)?;
    set_state(thread, qp, 1)?;
    let (consumer, mask) = (
        sys::word(qp.ring + 256).load(SeqCst),
        sys::word(qp.ring + 4).load(SeqCst),
    );
    sys::word(qp.ring + 128).store(consumer.wrapping_sub(1) & mask, SeqCst);
    set_state(thread, qp, 6)?;
    for _ in 0..400 {
        let left = sys::word(qp.ring + 128)
            .load(SeqCst)
            .wrapping_sub(sys::word(qp.ring + 256).load(SeqCst))
            & mask;
        if left < 1024 {
            break;
        }
        super::noise::pause(10_000);
    }
    Ok(())
}

/// Destroys a CQ. The kernel refuses it while QPs use the CQ.
pub fn destroy_cq(thread: &mut Thread<'_>) -> Done {
    let cq = if thread.rng.one_in(2) {
        thread.any(Kind::Cq)
    } else {
        thread.any_to_destroy(Kind::Cq)
    };
    if thread.rng.one_in(4) {
        let attributes = [(0, Value::Inline(cq.handle.into(), 0)), (1, Value::Out(8))];
        return thread.ioctl(cq.context, 3, 1, &attributes).map(|_| ());
    }
    thread.command_destroy(cmd::DESTROY_CQ, cq).map(|_| ())
}

/// Polls a CQ by the command POLL_CQ, which stock librxe never uses.
pub fn poll_cq(thread: &mut Thread<'_>) -> Done {
    let cq = thread.any(Kind::Cq);
    thread
        .command(
            cq.context,
            cmd::POLL_CQ,
            Bytes::new().word(&[cq.handle, 8]),
            8 + 8 * 48,
        )
        .map(|_| ())
}

/// Arms a CQ by the command REQ_NOTIFY_CQ.
pub fn notify_cq(thread: &mut Thread<'_>) -> Done {
    let cq = thread.any(Kind::Cq);
    let solicited = thread.rng.below(2) as u32;
    thread
        .command_without_response(
            cq.context,
            cmd::REQ_NOTIFY_CQ,
            Bytes::new().word(&[cq.handle, solicited]),
        )
        .map(|_| ())
}

/// Changes the moderation of a CQ.
pub fn modify_cq(thread: &mut Thread<'_>) -> Done {
    let cq = thread.any(Kind::Cq);
    let (count, period) = match thread.rng.below(4) {
        0 => (0, 0),
        1 => (
            thread.rng.edge_value() as u16,
            thread.rng.edge_value() as u16,
        ),
        _ => (
            1 + thread.rng.below(8) as u16,
            1 + thread.rng.below(2000) as u16,
        ),
    };
    moderate(thread, cq, count, period)
}

fn moderate(thread: &mut Thread<'_>, cq: Object, count: u16, period: u16) -> Done {
    let body = Bytes::new()
        .word(&[cq.handle, 1])
        .half(&[count, period])
        .word(&[0]);
    thread
        .extended(cq.context, cmd::MODIFY_CQ, body, 0)
        .map(|_| ())
}

/// Creates a CQ, moderated or not, and a QP that is connected to itself. Destroys both while
/// messages complete and notifications are raised.
pub fn brief_cq(thread: &mut Thread<'_>) -> Done {
    let context = thread.context();
    let cq = make_cq(thread, context, 250)?;
    if thread.rng.one_in(2) {
        let period = 1 + thread.rng.below(3000) as u16;
        let count = 1 + thread.rng.below(64) as u16;
        moderate(thread, cq, count, period)?;
    }
    let qp = make_qp(thread, context, RC, cq, cq, None)?;
    connect_to(thread, qp, qp)?;
    let region = thread.any_of(Kind::Mr, context);
    let length = thread.rng.pick(&[0, 0, 1000, 30_000]);
    // A work queue's thread serves long queues. Interrupts may delay it between a completion and
    // its notification.
    for _ in 0..1 + thread.rng.below(120) {
        super::rings::post_message(qp, region, length, super::rings::SEND);
    }
    super::rings::ring_by_call(thread, qp)?;
    for _ in 0..thread.rng.below(100) {
        // Arms the CQ again and again, so that many notifications are raised.
        sys::word(cq.ring + 320).store(2, SeqCst);
        super::noise::pause(20);
    }
    thread.command_destroy(cmd::DESTROY_QP, qp)?;
    thread.command_destroy(cmd::DESTROY_CQ, cq).map(|_| ())
}
