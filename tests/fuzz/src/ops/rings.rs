// SPDX-License-Identifier: GPL-2.0

//! Operations on rings and doorbell pages: WQEs, indices, arm words and doorbell bits, written as a
//! provider library writes them or with random values.

use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

use super::{regions, Done};
use crate::{
    sys,
    thread::Thread,
    uverbs::{cmd, Bytes},
    world::{Kind, Object},
};

const MASK: u64 = 4;
const PRODUCER: u64 = 128;
const CONSUMER: u64 = 256;
const ARM: u64 = 320;
const ELEMENTS: u64 = 384;
/// Number of bytes, from the begin of a ring, to which elements are written. The element size and
/// the index mask in the ring's header may allow more, because attackers change them.
const MAX_OFFSET: u64 = (1 << 20) - 4096;

const WRITE: u32 = 0;
const WRITE_IMM: u32 = 1;
/// Opcode of SEND (`enum ib_uverbs_wr_opcode`).
pub const SEND: u32 = 2;
const SEND_IMM: u32 = 3;
const READ: u32 = 4;
const SWAP: u32 = 5;
const ADD: u32 = 6;
const LOCAL_INV: u32 = 7;
const BIND: u32 = 8;
const SEND_INV: u32 = 9;
const FLUSH: u32 = 14;
const ATOMIC_WRITE: u32 = 15;

/// Returns the element size and the index mask from the header of a ring.
fn geometry(ring: u64) -> (u64, u32) {
    let log2 = sys::word(ring).load(Relaxed).min(12);
    (1 << log2, sys::word(ring + MASK).load(Relaxed))
}

/// Writes an element at the producer index and advances the index.
pub fn push(ring: u64, element: &[u8]) {
    if ring == 0 {
        return;
    }
    let (size, mask) = geometry(ring);
    let tail = sys::word(ring + PRODUCER).load(Relaxed);
    let at = (ELEMENTS + u64::from(tail & mask) * size) % MAX_OFFSET;
    sys::poke(ring + (at & !7), element);
    sys::word(ring + PRODUCER).store(tail.wrapping_add(1) & mask, Release);
}

/// Chooses SGEs in regions of a context. Returns the list, the number of SGEs and the total length.
fn sges(thread: &mut Thread<'_>, context: usize) -> (Bytes, u32, u32) {
    let mut list = Bytes::new();
    let (mut total, mut count) = (0u32, 0);
    for _ in 0..thread.rng.below(4) {
        let region = thread.any_of(Kind::Mr, context);
        let most = if thread.rng.one_in(8) { 200_000 } else { 6000 };
        let length = thread.rng.below(region.length.clamp(1, most)) as u32;
        let offset = thread.rng.below(
            region
                .length
                .clamp(1, 1 << 22)
                .saturating_sub(length.into())
                .max(1),
        );
        list = list
            .quad(&[region.address.wrapping_add(offset)])
            .word(&[length, region.number]);
        total = total.wrapping_add(length);
        count += 1;
    }
    (list, count, total)
}

/// Returns a random send WQE: 208 bytes, and then the SGEs or the inline data.
fn send_wqe(thread: &mut Thread<'_>, qp: Object) -> Vec<u8> {
    let opcodes = [
        WRITE,
        WRITE,
        SEND,
        SEND,
        WRITE_IMM,
        SEND_IMM,
        READ,
        READ,
        SWAP,
        ADD,
        LOCAL_INV,
        BIND,
        SEND_INV,
        FLUSH,
        ATOMIC_WRITE,
    ];
    let opcode = if thread.rng.one_in(32) {
        thread.rng.edge_value() as u32
    } else {
        thread.rng.pick(&opcodes)
    };
    let peer = thread.any(Kind::Mr);
    let window = thread.any(Kind::Mw);
    let key = if thread.rng.one_in(8) {
        window.rkey
    } else {
        peer.rkey
    };
    let target = peer
        .address
        .wrapping_add(thread.rng.below(peer.length.clamp(1, 1 << 22)));
    let (list, count, total) = sges(thread, qp.context);
    let mut flags = thread.rng.below(8) as u32;
    let inline = thread.rng.one_in(8);
    if inline {
        flags |= 8;
    }
    let extra = if matches!(opcode, LOCAL_INV | SEND_INV) {
        key
    } else {
        7
    };
    let srqn = thread.any(Kind::Srq).number;
    let mut wqe = Bytes::new()
        .quad(&[thread.rng.next()])
        .word(&[srqn, opcode, flags, extra]);
    wqe = match opcode {
        SWAP | ADD => wqe.quad(&[target & !7, 1, 2]).word(&[key, 0]),
        FLUSH => wqe
            .quad(&[target])
            .word(&[4096, key])
            .bytes(&[thread.rng.below(4) as u8, thread.rng.below(3) as u8]),
        BIND => {
            let region = thread.any_of(Kind::Mr, qp.context);
            let new = window.rkey.wrapping_add(thread.rng.below(3) as u32);
            wqe.quad(&[region.address, region.length])
                .word(&[region.number, window.rkey, new, 0xf])
        }
        _ if qp.subtype == 4 => {
            let ah = thread.any_of(Kind::Ah, qp.context);
            let number = thread.any(Kind::Qp).number;
            wqe.word(&[number, 0x11, 0, ah.number])
        }
        _ => wqe.quad(&[target]).word(&[key, 0]),
    };
    let mut wqe = wqe.0;
    if qp.subtype == 4 && thread.rng.one_in(4) {
        // The address vector in the WQE itself (struct rxe_av), instead of an address handle.
        let (gid, index) = super::device::path(thread, qp.context);
        wqe.resize(56, 0);
        wqe[36..40].fill(0);
        wqe.extend([1, 1, 0, 0, 0, 0, 0, 0]);
        wqe.extend(gid);
        wqe.extend([0, 0, 0, 0, index, 64, 0, 0]);
    }
    wqe.resize(184, 0);
    let length = if inline {
        thread.rng.below(80) as u32
    } else {
        total
    };
    let fixed = match opcode {
        SWAP | ADD | ATOMIC_WRITE => 8,
        _ => length,
    };
    let wqe = Bytes(wqe).word(&[fixed, fixed, 0, count, 0, 0]);
    let payload = if inline {
        thread.random_bytes(length as usize)
    } else {
        list.0
    };
    wqe.bytes(&payload).0
}

/// Changes a word of a WQE, of one WQE in `mutate_one_in`.
fn mutate_wqe(thread: &mut Thread<'_>, element: &mut [u8]) {
    if thread.rng.one_in(thread.mutate_one_in) {
        let at = thread.rng.index(element.len().saturating_sub(4)) & !3;
        let value = thread.rng.edge_value() as u32;
        element[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
}

/// Posts a send to a QP without ringing the doorbell.
pub fn post_to(thread: &mut Thread<'_>, qp: Object) {
    let mut element = send_wqe(thread, qp);
    mutate_wqe(thread, &mut element);
    push(qp.send, &element);
}

/// Opcodes of RC operations that access the responder's memory and, except FLUSH, the requester's.
pub const TRANSFERS: [u32; 9] = [
    SEND,
    SEND,
    WRITE,
    WRITE_IMM,
    READ,
    SWAP,
    ADD,
    FLUSH,
    ATOMIC_WRITE,
];

/// Posts a receive and an operation of `length` bytes (8 for an atomic one) to a QP that is
/// connected to itself, without ringing the doorbell. `region` is the memory of both sides.
pub fn post_message(qp: Object, region: Object, length: u32, opcode: u32) {
    let count = u32::from(length > 0);
    let list = Bytes::new()
        .quad(&[region.address])
        .word(&[length, region.number]);
    let receive = Bytes::new()
        .quad(&[0])
        .word(&[0, 0, length, length, 0, count, 0, 0]);
    push(qp.ring, &receive.bytes(&list.0).0);
    let (sent, sges) = match opcode {
        SWAP | ADD | ATOMIC_WRITE => (8, count),
        FLUSH => (0, 0),
        _ => (length, count),
    };
    let send = Bytes::new()
        .quad(&[0])
        .word(&[0, opcode, 2, 0])
        .quad(&[region.address]);
    let mut send = match opcode {
        SWAP | ADD => send.quad(&[1, 2]).word(&[region.rkey]),
        FLUSH => send.word(&[length, region.rkey]).bytes(&[1, 0]),
        _ => send.word(&[region.rkey]),
    }
    .0;
    send.resize(184, 0);
    let list = Bytes::new()
        .quad(&[region.address])
        .word(&[sent, region.number]);
    let send = Bytes(send).word(&[sent, sent, 0, sges, 0, 0]);
    push(qp.send, &send.bytes(&list.0).0);
}

/// Posts sends. Then rings the doorbell by a call, by the doorbell page, or not at all.
pub fn post_send(thread: &mut Thread<'_>) -> Done {
    let qp = thread.any(Kind::Qp);
    for _ in 0..=thread.rng.below(3) {
        post_to(thread, qp);
    }
    match thread.rng.below(4) {
        0 => Ok(()),
        1 => {
            ring_doorbell_page(thread, qp);
            Ok(())
        }
        _ => ring_by_call(thread, qp),
    }
}

/// Rings the doorbell of a send queue by the command POST_SEND without work requests.
pub fn ring_by_call(thread: &mut Thread<'_>, qp: Object) -> Done {
    thread
        .command(
            qp.context,
            cmd::POST_SEND,
            Bytes::new().word(&[qp.handle, 0, 0, 128]),
            4,
        )
        .map(|_| ())
}

fn recv_wqe(thread: &mut Thread<'_>, context: usize) -> Vec<u8> {
    let (list, count, total) = sges(thread, context);
    let mut element = Bytes::new()
        .quad(&[thread.rng.next()])
        .word(&[0, 0, total, total, 0, count, 0, 0])
        .bytes(&list.0)
        .0;
    mutate_wqe(thread, &mut element);
    element
}

/// Posts receives to a QP.
pub fn post_recv(thread: &mut Thread<'_>) -> Done {
    let qp = thread.any(Kind::Qp);
    for _ in 0..=thread.rng.below(4) {
        let element = recv_wqe(thread, qp.context);
        push(qp.ring, &element);
    }
    if thread.rng.one_in(2) {
        return Ok(());
    }
    thread
        .command(
            qp.context,
            cmd::POST_RECV,
            Bytes::new().word(&[qp.handle, 0, 0, 32]),
            4,
        )
        .map(|_| ())
}

/// Posts receives to an SRQ.
pub fn post_srq(thread: &mut Thread<'_>) -> Done {
    let srq = thread.any(Kind::Srq);
    for _ in 0..=thread.rng.below(4) {
        let element = recv_wqe(thread, srq.context);
        push(srq.ring, &element);
    }
    if thread.rng.one_in(2) {
        return Ok(());
    }
    thread
        .command(
            srq.context,
            cmd::POST_SRQ_RECV,
            Bytes::new().word(&[srq.handle, 0, 0, 32]),
            4,
        )
        .map(|_| ())
}

/// Makes a POST_SEND command for any QP. Once in eight times the command contains a work request,
/// which stock librxe never does.
pub fn ring_call(thread: &mut Thread<'_>) -> Done {
    let qp = thread.any(Kind::Qp);
    if !thread.rng.one_in(8) {
        return ring_by_call(thread, qp);
    }
    let region = thread.any_of(Kind::Mr, qp.context);
    let ah = thread.any_of(Kind::Ah, qp.context);
    let body = Bytes::new()
        .word(&[qp.handle, 1, 1, 56])
        .quad(&[1])
        .word(&[1, SEND, 2, 0, ah.handle, 16, 0x11, 0])
        .quad(&[0, 0])
        .quad(&[region.address])
        .word(&[64, region.number]);
    thread
        .command(qp.context, cmd::POST_SEND, body, 4)
        .map(|_| ())
}

fn ring_doorbell_page(thread: &mut Thread<'_>, qp: Object) {
    let page = thread.world.page(qp.context);
    if page == 0 {
        return;
    }
    let slot = u64::from(qp.slot) % 32768;
    sys::quad(page + 4096 + slot / 64 * 8).fetch_or(1 << (slot % 64), SeqCst);
    sys::quad(page + 64 + slot / 4096 * 8).fetch_or(1 << (slot / 64 % 64), SeqCst);
}

/// Rings the doorbell of a QP by the doorbell page of its context.
pub fn ring_bell(thread: &mut Thread<'_>) -> Done {
    let qp = thread.any(Kind::Qp);
    ring_doorbell_page(thread, qp);
    Ok(())
}

/// Makes 64 POST_SEND calls in a row, so that the kernel polls the doorbell page. Then posts sends
/// and rings by the doorbell page.
pub fn ring_often(thread: &mut Thread<'_>) -> Done {
    let qp = thread.any(Kind::Qp);
    thread.without_mutation(|thread| (0..64).try_for_each(|_| ring_by_call(thread, qp)))?;
    for _ in 0..thread.rng.below(50) {
        post_to(thread, qp);
        ring_doorbell_page(thread, qp);
    }
    Ok(())
}

/// Consumes all completions of a CQ. Once in two times, arms or disarms it by the arm word in its
/// ring.
pub fn consume(thread: &mut Thread<'_>) -> Done {
    let cq = thread.any(Kind::Cq);
    if cq.ring == 0 {
        return Ok(());
    }
    let producer = sys::word(cq.ring + PRODUCER).load(SeqCst);
    sys::word(cq.ring + CONSUMER).store(producer, SeqCst);
    if thread.rng.one_in(2) {
        sys::word(cq.ring + ARM).store(thread.rng.below(3) as u32, SeqCst);
    }
    Ok(())
}

/// Writes random values to any ring: to its header, indices, arm word or elements.
pub fn scribble(thread: &mut Thread<'_>) -> Done {
    let ring = thread.world.some_ring(&mut thread.rng);
    for _ in 0..=thread.rng.below(4) {
        let offset = match thread.rng.below(6) {
            0 => thread.rng.below(ELEMENTS / 4) * 4,
            1 => PRODUCER,
            2 => CONSUMER,
            3 => ARM,
            _ => ELEMENTS + thread.rng.below(4096) * 4,
        };
        let value = if thread.rng.one_in(2) {
            thread.rng.below(64)
        } else {
            thread.rng.edge_value()
        };
        sys::word(ring + offset).store(value as u32, Relaxed);
    }
    Ok(())
}

/// Writes random values to a doorbell page, and sets all bits of the first summary word.
pub fn scribble_page(thread: &mut Thread<'_>) -> Done {
    let context = thread.context();
    let page = thread.world.page(context);
    if page == 0 {
        return Ok(());
    }
    for _ in 0..=thread.rng.below(32) {
        let offset = thread.rng.below(1024) * 8;
        sys::quad(page + offset).store(thread.rng.edge_value(), Relaxed);
    }
    sys::quad(page + 64).store(u64::MAX, Relaxed);
    Ok(())
}

/// Changes indices, arm words and WQE fields to and fro while the kernel reads them.
pub fn flip(thread: &mut Thread<'_>) -> Done {
    let qp = thread.any(Kind::Qp);
    let cq = thread.any(Kind::Cq);
    let words = [
        (qp.send, PRODUCER),
        (qp.ring, PRODUCER),
        (cq.ring, CONSUMER),
        (cq.ring, ARM),
        (qp.send, ELEMENTS + 12),
        (qp.send, ELEMENTS + 196),
        (qp.send, ELEMENTS + 216),
        (qp.ring, ELEMENTS + 28),
    ];
    for _ in 0..500 {
        let (ring, offset) = thread.rng.pick(&words);
        if ring == 0 {
            continue;
        }
        let word = sys::word(ring + offset);
        let value = match thread.rng.below(4) {
            0 => thread.rng.edge_value() as u32,
            1 => word.load(Relaxed).wrapping_sub(1),
            _ => word.load(Relaxed).wrapping_add(1),
        };
        word.store(value, Relaxed);
    }
    Ok(())
}

/// Switches the consumer index of a long CQ between a full and an empty ring.
pub fn flip_long(thread: &mut Thread<'_>) -> Done {
    let Some(ring) = thread.world.some_long_ring(&mut thread.rng) else {
        return Ok(());
    };
    for _ in 0..thread.rng.below(20_000) {
        let producer = sys::word(ring + PRODUCER).load(Relaxed);
        sys::word(ring + CONSUMER).store(producer.wrapping_add(1), SeqCst);
        for _ in 0..thread.rng.below(64) {
            std::hint::spin_loop();
        }
        sys::word(ring + CONSUMER).store(producer, SeqCst);
        for _ in 0..thread.rng.below(64) {
            std::hint::spin_loop();
        }
    }
    Ok(())
}

/// Unmaps a ring that may be in use.
pub fn unmap_ring(thread: &mut Thread<'_>) -> Done {
    let ring = thread.world.some_ring(&mut thread.rng);
    thread.world.unmap_ring(ring);
    Ok(())
}

/// Maps any offset of the device's file over an area.
pub fn map_anything(thread: &mut Thread<'_>) -> Done {
    let context = thread.context();
    let (_, length) = regions::extent(thread);
    let offset = match thread.rng.below(3) {
        0 => thread.rng.edge_value() & !4095,
        1 => (1 << 43) + thread.rng.below(32) * 0x40000,
        _ => thread.rng.below(256) * 4096,
    };
    let length = length.clamp(1, 1 << 20);
    let address = thread.world.memory(thread.rng.next());
    sys::map(
        address,
        length,
        sys::READ_WRITE,
        sys::SHARED_FIXED,
        thread.world.fd(context),
        offset,
    )
    .map(|_| ())
}
