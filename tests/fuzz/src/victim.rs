// SPDX-License-Identifier: GPL-2.0

//! The victim: a process that transfers data between two QPs while attackers run, and makes no
//! invalid request. Its data must be right, and its transfers must not stop.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::{
    ops::{completions, device, noise, queues, regions},
    profile::Profile,
    rng::Rng,
    stats::{self, Stats},
    sys,
    thread::Thread,
    uverbs::{cmd, quad_at, word_at, Bytes},
    world::{devices, Kind, Object, World},
};

/// Bytes of each side's memory region.
const LENGTH: u64 = 1 << 16;
/// Exit status after data was transferred wrongly.
pub const CORRUPT: i32 = 3;
/// Exit status after the QPs could not be set up or connected.
pub const UNABLE: i32 = 4;

/// One side of the connection.
#[derive(Clone, Copy)]
struct Side {
    qp: Object,
    cq: Object,
    region: Object,
}

/// Transfers data until the end of the run. Returns the exit status.
pub fn run(profile: &Profile, stats: &'static Stats) -> i32 {
    let Ok(world) = World::new(devices(), 1) else {
        return UNABLE;
    };
    let quiet = Profile {
        mutate_one_in: 1 << 40,
        faults: false,
        ..Profile::parse(&[]).unwrap_or_else(|_| unreachable!())
    };
    let rng = Rng::new(profile.seed, &[u64::MAX]);
    let mut thread = Thread::new(&world, stats, &quiet, &[], rng, stats::THREADS - 1, 0);
    match transfer(&mut thread, profile) {
        Ok(status) => status,
        Err(errno) => {
            println!("# victim: errno {errno}");
            UNABLE
        }
    }
}

fn transfer(thread: &mut Thread<'_>, profile: &Profile) -> Result<i32, i32> {
    let mut sides = Vec::new();
    for (context, name) in profile.victims.iter().enumerate() {
        sides.push(set_up_side(thread, context, name)?);
    }
    let [one, other] = sides[..] else {
        return Err(22);
    };
    connect(thread, one, other)?;
    let until = stats::now() + profile.seconds * 1000;
    let mut count = 0u64;
    while stats::now() < until {
        count += 1;
        let (from, to) = if count % 2 == 0 {
            (one, other)
        } else {
            (other, one)
        };
        if !send(thread, from, to, count) {
            // The attackers may have used the CPUs for longer than all retries of the transport
            // last.
            thread.stats.reconnects.fetch_add(1, Relaxed);
            connect(thread, one, other)?;
            continue;
        }
        let (sent, arrived) = (
            sys::peek(from.region.address, 20_000),
            sys::peek(to.region.address, 20_000),
        );
        if sent != arrived {
            let at = sent
                .iter()
                .zip(&arrived)
                .position(|(one, other)| one != other);
            println!("# victim: transfer {count} differs at byte {at:?}");
            return Ok(CORRUPT);
        }
        thread.stats.transfers.fetch_add(1, Relaxed);
        noise::pause(2000);
    }
    Ok(0)
}

fn set_up_side(thread: &mut Thread<'_>, context: usize, name: &str) -> Result<Side, i32> {
    let (which, node) = {
        let devices = thread.world.devices.lock().map_err(|_| 5)?;
        let which = devices
            .iter()
            .position(|device| device.name == name)
            .ok_or(19)?;
        (which, devices[which].node.clone())
    };
    thread.only = Some(context);
    (0..20)
        .find(|_| device::open_device(thread, context, which, &node).is_ok())
        .ok_or(19)?;
    device::alloc_pd(thread)?;
    let memory = thread.world.memory(context as u64);
    regions::reg_at(thread, context, memory, LENGTH, 0xf)?;
    let region = thread.any_of(Kind::Mr, context);
    let cq = completions::make_cq(thread, context, 60)?;
    let pd = thread.any_of(Kind::Pd, context);
    let body = Bytes::new()
        .quad(&[0])
        .word(&[pd.handle, cq.handle, cq.handle, 0, 16, 16, 1, 1, 0])
        .bytes(&[1, 2, 0, 0]);
    let answer = thread.command(context, cmd::CREATE_QP, body, 72)?;
    let send = thread
        .world
        .map_ring(context, quad_at(&answer, 48), word_at(&answer, 56));
    let (handle, number) = (word_at(&answer, 0), word_at(&answer, 4));
    Ok(Side {
        qp: Object {
            context,
            handle,
            number,
            send,
            subtype: 2,
            ..Object::default()
        },
        cq,
        region,
    })
}

fn connect(thread: &mut Thread<'_>, one: Side, other: Side) -> Result<(), i32> {
    for (side, peer) in [(one, other), (other, one)] {
        queues::connect_with_long_timers(thread, side.qp, peer.qp)?;
    }
    for side in [one, other] {
        let producer = sys::word(side.cq.ring + 128).load(Acquire);
        sys::word(side.cq.ring + 256).store(producer, Release);
    }
    Ok(())
}

/// Makes an RDMA WRITE of a new pattern from one side to the other and waits for its completion.
/// Returns whether it succeeded.
fn send(thread: &mut Thread<'_>, from: Side, to: Side, count: u64) -> bool {
    let seed = Rng::new(count, &[]).next().to_ne_bytes();
    let pattern: Vec<u8> = (0..20_000usize)
        .map(|at| seed[at % 8] ^ (at >> 3) as u8)
        .collect();
    sys::poke(from.region.address, &pattern);
    let mut wqe = Bytes::new()
        .quad(&[count])
        .word(&[0, 0, 2, 0])
        .quad(&[to.region.address])
        .word(&[to.region.rkey, 0])
        .0;
    wqe.resize(184, 0);
    let wqe = Bytes(wqe)
        .word(&[20_000, 20_000, 0, 1, 0, 0])
        .quad(&[from.region.address])
        .word(&[20_000, from.region.number]);
    crate::ops::rings::push(from.qp.send, &wqe.0);
    let _ = crate::ops::rings::ring_by_call(thread, from.qp);
    let head = sys::word(from.cq.ring + 256).load(Acquire);
    // If this never ends, the supervisor (main.rs) finds that the number of transfers does not
    // change.
    while sys::word(from.cq.ring + 128).load(Acquire) == head {
        noise::pause(200);
    }
    let entry = from.cq.ring + 384 + u64::from(head) * 64;
    let succeeded =
        sys::quad(entry).load(Relaxed) == count && sys::word(entry + 8).load(Relaxed) == 0;
    let mask = sys::word(from.cq.ring + 4).load(Relaxed);
    sys::word(from.cq.ring + 256).store((head + 1) & mask, Release);
    succeeded
}
