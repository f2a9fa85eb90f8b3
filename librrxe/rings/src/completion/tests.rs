// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

use super::*;
use crate::{
    memory::{pair, testing::Heap},
    ring::testing::both,
};
use std::sync::Arc;

type Queue = CompletionQueue<Arc<Heap>>;
type Kernel = Ring<Arc<Heap>>;

fn queue() -> (Queue, Kernel) {
    let (ours, theirs) = both(6, 4);
    (CompletionQueue::new(ours), theirs)
}

/// Adds a completion as the kernel does.
fn push(kernel: &Kernel, wr_id: u64) {
    let index = kernel.producer();
    assert_ne!(kernel.after(index), kernel.consumer(), "no room");
    let entry = kernel.element(index);
    entry[0].store(wr_id, Ordering::Relaxed);
    // The number of the QP is the tens digit of `wr_id`.
    entry[3].store(pair(0, wr_id as u32 / 10), Ordering::Relaxed);
    kernel.publish_producer(kernel.after(index));
}

fn poll(queue: &mut Queue, room: usize) -> Vec<u64> {
    let mut got = Vec::new();
    let count = queue.poll(room, |at, completion| {
        assert_eq!(at, got.len());
        got.push(completion.wr_id());
    });
    assert_eq!(count, got.len());
    got
}

#[test]
fn polls_in_order_and_frees_slots() {
    let (mut queue, kernel) = queue();
    assert_eq!(poll(&mut queue, 4), []);
    for round in 0..5 {
        for n in 0..3 {
            push(&kernel, round * 10 + n);
        }
        assert_eq!(poll(&mut queue, 2), [round * 10, round * 10 + 1]);
        assert_eq!(poll(&mut queue, 2), [round * 10 + 2]);
        assert_eq!(poll(&mut queue, 2), []);
    }
    push(&kernel, 1);
    assert_eq!(poll(&mut queue, 0), []);
    assert_eq!(poll(&mut queue, 1), [1]);
}

#[test]
fn reads_one_at_a_time() {
    let (mut queue, kernel) = queue();
    assert!(!queue.start());
    push(&kernel, 1);
    push(&kernel, 2);
    assert!(queue.start());
    assert_eq!(queue.current().wr_id(), 1);
    assert_eq!(kernel.consumer(), 0);
    assert!(queue.advance());
    assert_eq!(queue.current().wr_id(), 2);
    assert_eq!(kernel.consumer(), 1);
    assert!(!queue.advance());
    assert_eq!(queue.current().wr_id(), 2);
    push(&kernel, 3);
    assert!(queue.advance());
    queue.end();
    assert_eq!(kernel.consumer(), 3);
    assert!(!queue.start());
    push(&kernel, 4);
    assert_eq!(poll(&mut queue, 3), [4]);
}

#[test]
fn decodes_the_layout_of_the_abi() {
    let completion = Completion([
        1,
        pair(2, 3),
        pair(4, 5),
        pair(6, 7),
        pair(8, 9),
        u64::from_ne_bytes([1, 0, 2, 3, 4, 5, 6, 7]),
    ]);
    assert_eq!(completion.wr_id(), 1);
    assert_eq!((completion.status(), completion.opcode()), (2, 3));
    assert_eq!((completion.vendor_err(), completion.byte_len()), (4, 5));
    assert_eq!((completion.ex(), completion.qp_num()), (6, 7));
    assert_eq!((completion.src_qp(), completion.flags()), (8, 9));
    assert_eq!(completion.slid(), u16::from_ne_bytes([2, 3]));
    assert_eq!((completion.sl(), completion.dlid_path_bits()), (4, 5));
}

#[test]
fn arming_for_any_completion_stays_until_one_arrives() {
    let (queue, kernel) = queue();
    let word = kernel.word(layout::ARM).expect("the header has this word");
    let arm = |solicited_only| {
        assert_eq!(queue.arm(solicited_only), Armed::Done);
        word.load(Ordering::Relaxed)
    };
    assert_eq!(arm(true), arm::SOLICITED);
    arm(false);
    assert_eq!(arm(true), arm::NEXT);
    word.store(0, Ordering::Relaxed);
    assert_eq!(arm(true), arm::SOLICITED);
}

#[test]
fn unannounced_completions_require_a_call() {
    let (mut queue, kernel) = queue();
    let word = kernel.word(layout::NEWS).expect("the header has this word");
    let table = [
        (news::NONE, Armed::Done, Armed::Done),
        (news::ANY, Armed::NeedsCall, Armed::Done),
        (news::SOLICITED, Armed::NeedsCall, Armed::NeedsCall),
    ];
    for (value, any, solicited) in table {
        word.store(value, Ordering::Relaxed);
        assert_eq!(queue.arm(false), Armed::Done, "of an empty queue");
        push(&kernel, 7);
        assert_eq!(queue.arm(false), any);
        assert_eq!(queue.arm(true), solicited);
        assert_eq!(poll(&mut queue, 1), [7]);
        assert_eq!(queue.arm(false), Armed::Done, "of what is polled");
    }
}

#[test]
fn removes_the_completions_of_one_qp() {
    for (before, after) in [
        (vec![], vec![]),
        (vec![10], vec![]),
        (vec![20], vec![20]),
        (vec![10, 20, 11], vec![20]),
        (vec![20, 10, 21], vec![20, 21]),
        (vec![10, 11, 20], vec![20]),
        (vec![20, 21, 10], vec![20, 21]),
        (vec![20, 30, 21], vec![20, 30, 21]),
    ] {
        // The entries may begin at any slot of the ring.
        for start in 0..4 {
            let (mut queue, kernel) = queue();
            for _ in 0..start {
                push(&kernel, 1);
                assert_eq!(poll(&mut queue, 1), [1]);
            }
            for wr_id in &before {
                push(&kernel, *wr_id);
            }
            queue.forget(1);
            assert_eq!(poll(&mut queue, 4), after, "{before:?} at {start}");
            push(&kernel, 40);
            assert_eq!(poll(&mut queue, 4), [40]);
        }
    }
}
