// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

use super::*;
use crate::{
    memory::{split, testing::Heap},
    operation::{Bind, Remote, INLINE},
    ring::testing::both,
    sync::Ordering,
};
use std::sync::Arc;

type Queue = SendQueue<Arc<Heap>>;
type Kernel = Ring<Arc<Heap>>;
type NoSge = std::iter::Empty<Sge>;
type NoBuffer = std::iter::Empty<&'static [u8]>;

const REMOTE: Remote = Remote {
    addr: 0x1122_3344_5566_7788,
    rkey: 0x99aa_bbcc,
};

fn queue(transport: Transport, slots: u32) -> (Queue, Kernel) {
    let (ours, theirs) = both(9, slots);
    (SendQueue::new(ours, transport, 4, 200), theirs)
}

fn sges(count: u32) -> impl ExactSizeIterator<Item = Sge> {
    (0..count as u16).map(|n| Sge {
        addr: u64::from(n) << 40,
        length: 10,
        lkey: n.into(),
    })
}

fn elements(count: u32) -> Payload<impl ExactSizeIterator<Item = Sge>, NoBuffer> {
    Payload::Elements(sges(count))
}

fn inline<'a>(
    pieces: &'a [&'a [u8]],
) -> Payload<NoSge, impl ExactSizeIterator<Item = &'a [u8]> + Clone> {
    Payload::Inline(pieces.iter().copied())
}

fn long(kernel: &Kernel, index: u32, offset: usize) -> u64 {
    kernel.element(index)[offset / 8].load(Ordering::Relaxed)
}

fn word(kernel: &Kernel, index: u32, offset: usize) -> u32 {
    let (first, second) = split(long(kernel, index, offset));
    if offset % 8 == 0 {
        first
    } else {
        second
    }
}

fn bytes(kernel: &Kernel, index: u32, count: usize) -> Vec<u8> {
    let words = kernel.element(index).iter().skip(send_wqe::PAYLOAD / 8);
    let all = words.flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
    all.take(count).collect()
}

/// Posts one request by both ways (as a list, and field by field) and checks that the WQEs are
/// equal.
fn one(transport: Transport, operation: Operation, destination: Destination) -> Kernel {
    let (mut queue, kernel) = self::queue(transport, 4);
    let payload = elements(if operation.takes_payload() { 2 } else { 0 });
    let staged = match operation {
        Operation::AtomicWrite(_) => {
            let payload = inline(&[b"operand!"]);
            queue.stage(42, 2, &operation, destination, payload)
        }
        _ => queue.stage(42, 2, &operation, destination, payload),
    };
    assert_eq!(staged, Ok(()));
    assert!(queue.publish());

    let (mut queue, built) = self::queue(transport, 4);
    queue.start();
    queue.open(42, 2, &operation);
    queue.set_destination(destination);
    match operation {
        Operation::AtomicWrite(_) => queue.set_operand(b"operand!"),
        _ if operation.takes_payload() => queue.set_sges(sges(2)),
        _ => {}
    }
    assert_eq!(queue.complete(), Ok(true));

    for offset in (0..512).step_by(8) {
        assert_eq!(
            long(&kernel, 0, offset),
            long(&built, 0, offset),
            "{offset}"
        );
    }
    assert_eq!(kernel.producer(), 1);
    assert_eq!(built.producer(), 1);
    assert_eq!(long(&kernel, 0, 0), 42);
    kernel
}

#[test]
fn writes_the_layout_of_the_abi() {
    let rc = |operation| one(Transport::Rc, operation, Destination::Peer);
    let kernel = rc(Operation::SendImm(0x0102_0304));
    assert_eq!(word(&kernel, 0, 12), 3);
    assert_eq!(word(&kernel, 0, 16), 2);
    assert_eq!(word(&kernel, 0, 20), 0x0102_0304);
    assert_eq!((word(&kernel, 0, 184), word(&kernel, 0, 188)), (20, 20));
    assert_eq!(word(&kernel, 0, 196), 2);
    assert_eq!(long(&kernel, 0, 224), 1 << 40);
    assert_eq!((word(&kernel, 0, 232), word(&kernel, 0, 236)), (10, 1));

    for (operation, opcode) in [
        (Operation::Write(REMOTE), 0),
        (Operation::WriteImm(REMOTE, 9), 1),
        (Operation::Read(REMOTE), 4),
        (Operation::AtomicWrite(REMOTE), 15),
    ] {
        let kernel = rc(operation);
        assert_eq!(word(&kernel, 0, 12), opcode);
        assert_eq!(long(&kernel, 0, 24), REMOTE.addr);
        assert_eq!(word(&kernel, 0, 32), REMOTE.rkey);
    }
    assert_eq!(
        bytes(&rc(Operation::AtomicWrite(REMOTE)), 0, 8),
        b"operand!"
    );
}

#[test]
fn writes_atomics_flushes_and_binds() {
    let rc = |operation| one(Transport::Rc, operation, Destination::Peer);
    let kernel = rc(Operation::CompareSwap {
        remote: REMOTE,
        compare: 5,
        swap: 6,
    });
    assert_eq!(word(&kernel, 0, 12), 5);
    assert_eq!(
        (long(&kernel, 0, 24), long(&kernel, 0, 32)),
        (REMOTE.addr, 5)
    );
    assert_eq!(
        (long(&kernel, 0, 40), word(&kernel, 0, 48)),
        (6, REMOTE.rkey)
    );
    let kernel = rc(Operation::FetchAdd {
        remote: REMOTE,
        add: 7,
    });
    assert_eq!((word(&kernel, 0, 12), long(&kernel, 0, 32)), (6, 7));

    let kernel = rc(Operation::Flush {
        remote: REMOTE,
        length: 4096,
        placement: 3,
        selectivity: 1,
    });
    assert_eq!(
        (word(&kernel, 0, 12), long(&kernel, 0, 24)),
        (14, REMOTE.addr)
    );
    assert_eq!(
        (word(&kernel, 0, 36), word(&kernel, 0, 184)),
        (REMOTE.rkey, 4096)
    );
    assert_eq!(long(&kernel, 0, 40).to_ne_bytes()[..2], [3, 1]);

    let kernel = rc(Operation::BindWindow(Bind {
        addr: 1,
        length: 2,
        region: 3,
        window: 4,
        rkey: 5,
        access: 6,
    }));
    assert_eq!((long(&kernel, 0, 24), long(&kernel, 0, 32)), (1, 2));
    let words = [40, 44, 48, 52].map(|offset| word(&kernel, 0, offset));
    assert_eq!(words, [3, 4, 5, 6]);

    for (operation, opcode) in [
        (Operation::LocalInvalidate(77), 7),
        (Operation::SendInvalidate(77), 9),
    ] {
        let kernel = rc(operation);
        assert_eq!((word(&kernel, 0, 12), word(&kernel, 0, 20)), (opcode, 77));
    }
}

#[test]
fn writes_destinations() {
    let datagram = Destination::Datagram {
        qpn: 11,
        qkey: 12,
        ah: 13,
    };
    let kernel = one(Transport::Ud, Operation::Send, datagram);
    let words = [24, 28, 36].map(|offset| word(&kernel, 0, offset));
    assert_eq!(words, [11, 12, 13]);
    let kernel = one(
        Transport::XrcSend,
        Operation::Send,
        Destination::SharedQueue(9),
    );
    assert_eq!((word(&kernel, 0, 8), word(&kernel, 0, 12)), (9, 2));
}

#[test]
fn a_request_overwrites_the_old_slot() {
    let (mut queue, kernel) = queue(Transport::Rc, 2);
    queue.start();
    queue.open(1, 0, &Operation::Send);
    queue.set_inline([[7u8; 100].as_slice()].into_iter());
    assert_eq!(queue.complete(), Ok(true));
    kernel.publish_consumer(1);
    for _ in 0..2 {
        queue.start();
        queue.open(2, INLINE, &Operation::Send);
        assert_eq!(queue.complete(), Ok(true));
        kernel.publish_consumer(kernel.producer());
    }
    assert_eq!(word(&kernel, 0, 16), 0);
    assert_eq!((word(&kernel, 0, 184), word(&kernel, 0, 196)), (0, 0));
}

#[test]
fn inline_payload_is_copied_from_any_pieces() {
    let text: Vec<u8> = (0..100).collect();
    for (first, second) in [(0, 100), (1, 2), (3, 16), (8, 8), (15, 64), (99, 99)] {
        let pieces = [&text[..first], &text[first..second], &text[second..]];
        let (mut queue, kernel) = queue(Transport::Rc, 4);
        queue.start();
        queue.open(1, 0, &Operation::Send);
        queue.set_inline(pieces.into_iter());
        assert_eq!(queue.complete(), Ok(true));
        assert_eq!(bytes(&kernel, 0, 100), text, "{first} {second}");
        assert_eq!(word(&kernel, 0, 16), INLINE);
        assert_eq!((word(&kernel, 0, 184), word(&kernel, 0, 188)), (100, 100));
    }
}

#[test]
fn a_full_queue_takes_nothing_more() {
    let (mut queue, kernel) = queue(Transport::Rc, 4);
    let post = |queue: &mut Queue| {
        let payload = elements(1);
        queue.stage(1, 0, &Operation::Send, Destination::Peer, payload)
    };
    for _ in 0..3 {
        assert_eq!(post(&mut queue), Ok(()));
    }
    assert_eq!(post(&mut queue), Err(PostError::Full));
    assert!(queue.publish());
    assert!(!queue.publish());
    assert_eq!(kernel.producer(), 3);
    kernel.publish_consumer(1);
    assert_eq!(post(&mut queue), Ok(()));
    assert_eq!(post(&mut queue), Err(PostError::Full));
}

#[test]
fn a_batch_is_all_or_nothing() {
    let (mut queue, kernel) = queue(Transport::Rc, 4);
    queue.start();
    for _ in 0..4 {
        queue.open(1, 0, &Operation::Send);
        queue.set_sges(sges(1));
    }
    assert_eq!(queue.complete(), Err(PostError::Full));
    assert_eq!(kernel.producer(), 0);
    queue.start();
    queue.open(1, 0, &Operation::Send);
    queue.abandon();
    assert_eq!(queue.complete(), Ok(false));
    queue.start();
    for _ in 0..3 {
        queue.open(1, 0, &Operation::Send);
    }
    assert_eq!(queue.complete(), Ok(true));
    assert_eq!(kernel.producer(), 3);
}

#[test]
fn a_batch_fails_with_its_first_error() {
    let broken: [fn(&mut Queue); 5] = [
        |queue| queue.set_sges(sges(1)),
        |queue| {
            queue.open(1, 0, &Operation::Send);
            queue.set_sges(sges(5));
        },
        |queue| {
            queue.open(1, 0, &Operation::Send);
            queue.set_inline([[0; 201].as_slice()].into_iter());
        },
        |queue| queue.open(1, 0, &Operation::Read(REMOTE)),
        |queue| queue.set_destination(Destination::SharedQueue(1)),
    ];
    for fault in broken {
        let (mut queue, kernel) = queue(Transport::Uc, 4);
        queue.start();
        fault(&mut queue);
        for _ in 0..5 {
            queue.open(1, 0, &Operation::Send);
        }
        assert_eq!(queue.complete(), Err(PostError::Invalid));
        assert_eq!(kernel.producer(), 0);
        queue.start();
        queue.open(1, 0, &Operation::Send);
        assert_eq!(queue.complete(), Ok(true));
    }
}

#[test]
fn inconsistent_requests_are_refused() {
    let (mut queue, _) = queue(Transport::Rc, 4);
    let long = [0; 201];
    for (operation, payload) in [
        (Operation::Read(REMOTE), b"abc".as_slice()),
        (Operation::Send, &long),
        (Operation::AtomicWrite(REMOTE), b"1234567"),
        (Operation::AtomicWrite(REMOTE), b"123456789"),
        (Operation::LocalInvalidate(1), b"x"),
    ] {
        let payload = [payload];
        let refused = queue.stage(1, 0, &operation, Destination::Peer, inline(&payload));
        assert_eq!(refused, Err(PostError::Invalid), "{operation:?}");
    }
    let operation = Operation::AtomicWrite(REMOTE);
    let refused = queue.stage(1, 0, &operation, Destination::Peer, elements(0));
    assert_eq!(refused, Err(PostError::Invalid));
    for count in [0, 4] {
        let payload = elements(count);
        assert_eq!(
            queue.stage(1, 0, &Operation::Send, Destination::Peer, payload),
            Ok(())
        );
    }
    let payload = elements(5);
    assert_eq!(
        queue.stage(1, 0, &Operation::Send, Destination::Peer, payload),
        Err(PostError::Invalid)
    );
}

#[test]
fn each_transport_supports_its_operations() {
    let all = [
        Operation::Send,
        Operation::SendImm(0),
        Operation::SendInvalidate(0),
        Operation::Write(REMOTE),
        Operation::WriteImm(REMOTE, 0),
        Operation::Read(REMOTE),
        Operation::LocalInvalidate(0),
    ];
    let fitting = |transport| all.map(|operation| u8::from(operation.fits(transport)));
    assert_eq!(fitting(Transport::Rc), [1; 7]);
    assert_eq!(fitting(Transport::XrcSend), [1; 7]);
    assert_eq!(fitting(Transport::Uc), [1, 1, 0, 1, 1, 0, 0]);
    assert_eq!(fitting(Transport::Ud), [1, 1, 0, 0, 0, 0, 0]);
    assert_eq!(fitting(Transport::RawPacket), [1, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn a_reset_queue_is_empty() {
    let (mut queue, kernel) = queue(Transport::Rc, 4);
    queue.start();
    queue.open(1, 0, &Operation::Send);
    assert_eq!(queue.complete(), Ok(true));
    kernel.publish_producer(0);
    queue.reset();
    queue.open(2, 0, &Operation::Send);
    assert_eq!(queue.complete(), Ok(true));
    assert_eq!((kernel.producer(), long(&kernel, 0, 0)), (1, 2));
}
