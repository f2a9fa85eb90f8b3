// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Models of the library and the kernel for the model checker loom. They check that no request and
//! no completion is lost, in all orders of the threads' memory accesses with at most 3 preemptions.
//! Command to run them:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --release -p rrxe-rings --lib model
//! ```

use loom::{model::Builder, thread};
use std::sync::Arc;

use crate::{
    completion::{Armed, CompletionQueue},
    doorbell::{Doorbells, RingResult, Slot},
    layout::{arm, doorbell, news, ring},
    memory::Memory,
    ring::Ring,
    sync::{fence, AtomicU32, AtomicU64, Ordering},
};

/// Shared memory that consists only of the words that a model uses, because loom tracks each word.
struct Words {
    words: Vec<(usize, AtomicU32)>,
    longs: Vec<(usize, Vec<AtomicU64>)>,
}

impl Words {
    /// Creates the memory: 32-bit words as pairs of offset and value, and runs of zeroed 64-bit
    /// words as pairs of offset and number.
    fn new(words: &[(usize, u32)], longs: &[(usize, usize)]) -> Arc<Self> {
        let word = |&(offset, value): &(usize, u32)| (offset, AtomicU32::new(value));
        let long = |&(offset, count): &(usize, usize)| {
            let zeros = (0..count).map(|_| AtomicU64::new(0)).collect();
            (offset, zeros)
        };
        Arc::new(Self {
            words: words.iter().map(word).collect(),
            longs: longs.iter().map(long).collect(),
        })
    }
}

impl Memory for Words {
    fn word(&self, offset: usize) -> Option<&AtomicU32> {
        let found = self.words.iter().find(|(at, _)| *at == offset);
        found.map(|(_, word)| word)
    }

    fn longs(&self, offset: usize) -> &[AtomicU64] {
        let found = self.longs.iter().find(|(at, _)| *at == offset);
        found.map_or(&[], |(_, longs)| longs)
    }
}

/// Runs a model in all orders with at most 3 preemptions.
fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Model of the kernel's poller and of the send queues that it serves.
struct Poller {
    page: Arc<Words>,
    /// Producer index of each send queue.
    producers: Vec<AtomicU32>,
    /// Producer index that the kernel saw last, for each send queue.
    seen: Vec<AtomicU32>,
}

impl Poller {
    /// Creates the model of a poller with `queues` send queues.
    fn new(queues: usize) -> Arc<Self> {
        let words = || (0..queues).map(|_| AtomicU32::new(0)).collect();
        Arc::new(Self {
            page: Words::new(
                &[(doorbell::STATE, 0)],
                &[(doorbell::SUMMARY, 1), (doorbell::DIRTY, 1)],
            ),
            producers: words(),
            seen: words(),
        })
    }

    /// Serves a send queue: reads its producer index.
    fn serve(&self, queue: usize) {
        let producer = self.producers[queue].load(Ordering::Acquire);
        self.seen[queue].fetch_max(producer, Ordering::Relaxed);
    }

    /// Sweeps the page once: the summary, then the dirty bits, then the send queues. The kernel has
    /// no fences between these (`DoorbellPage::sweep_word`, rust/rdma/abi/doorbell.rs). loom takes
    /// `SeqCst` exchanges for `AcqRel` ones.
    fn sweep(&self) {
        let summary = &self.page.longs(doorbell::SUMMARY)[0];
        if summary.load(Ordering::Relaxed) == 0 || summary.swap(0, Ordering::SeqCst) == 0 {
            return;
        }
        let dirty = self.page.longs(doorbell::DIRTY)[0].swap(0, Ordering::SeqCst);
        for queue in 0..self.producers.len() {
            if dirty >> queue & 1 == 1 {
                self.serve(queue);
            }
        }
    }

    /// Polls until no doorbell is set, then sleeps.
    fn poll_until_idle(&self) {
        let state = self
            .page
            .word(doorbell::STATE)
            .expect("the memory has this word");
        loop {
            self.sweep();
            state.store(doorbell::NEED_WAKEUP, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if self.page.longs(doorbell::SUMMARY)[0].load(Ordering::Relaxed) == 0 {
                return;
            }
            state.store(0, Ordering::Relaxed);
        }
    }

    /// Posts once to a send queue as a process does, and makes the doorbell call if necessary.
    fn post(&self, queue: usize) {
        self.producers[queue].store(1, Ordering::Release);
        let slot = Slot::new(queue as u32).expect("the slot is in range");
        if Doorbells::new(self.page.clone()).ring(slot) == RingResult::NeedsCall {
            self.serve(queue);
        }
    }
}

/// Runs the poller against one thread for each send queue, and checks that each request is seen.
fn posts(queues: usize) {
    let poller = Poller::new(queues);
    let mut threads = vec![thread::spawn({
        let poller = poller.clone();
        move || poller.poll_until_idle()
    })];
    for queue in 1..queues {
        let poller = poller.clone();
        threads.push(thread::spawn(move || poller.post(queue)));
    }
    poller.post(0);
    for thread in threads {
        thread.join().expect("the thread does not panic");
    }
    for seen in &poller.seen {
        assert_eq!(seen.load(Ordering::Relaxed), 1, "a request is lost");
    }
}

#[test]
fn model_doorbell_against_sleep() {
    check(|| posts(1));
}

#[test]
fn model_two_doorbells_in_one_word() {
    check(|| posts(2));
}

/// Adds a completion that is not solicited, as the kernel does. Returns whether the kernel
/// notifies.
fn complete(ring: &Ring<Arc<Words>>) -> bool {
    let index = ring.producer();
    ring.element(index)[0].store(7, Ordering::Relaxed);
    let news = ring.word(ring::NEWS).expect("the memory has this word");
    news.store(news::ANY, Ordering::Relaxed);
    ring.publish_producer(ring.after(index));
    fence(Ordering::SeqCst);
    let word = ring.word(ring::ARM).expect("the memory has this word");
    let notifies = word.load(Ordering::Relaxed) == arm::NEXT;
    if notifies {
        // A store and no exchange, as in the kernel (`Ring::set_arm`, rust/rdma/abi/ring.rs).
        word.store(0, Ordering::Relaxed);
        news.store(news::NONE, Ordering::Relaxed);
    }
    notifies
}

/// Returns the memory of a completion queue with 4 entries whose `ARM` word is `armed`.
fn memory(armed: u32) -> Arc<Words> {
    let head = [
        (ring::LOG2_ELEMENT_SIZE, 6),
        (ring::INDEX_MASK, 3),
        (ring::PRODUCER, 0),
        (ring::NEWS, news::NONE),
        (ring::CONSUMER, 0),
        (ring::ARM, armed),
    ];
    Words::new(&head, &[(ring::ELEMENTS, 32)])
}

#[test]
fn model_arm_against_completion() {
    check(|| {
        let memory = memory(0);
        let kernel = Ring::new(memory.clone()).expect("the header is valid");
        let thread = thread::spawn(move || complete(&kernel));
        let mut queue = CompletionQueue::new(Ring::new(memory).expect("the header is valid"));
        let _ = queue.arm(false);
        let mut wr_id = 0;
        let polled = queue.poll(1, |_, completion| wr_id = completion.wr_id());
        let notified = thread.join().expect("the thread does not panic");
        assert!(polled == 1 || notified, "a completion is missed");
        assert_eq!(wr_id, 7 * polled as u64);
    });
}

#[test]
fn model_arming_again_against_completion() {
    // The queue is armed for any completion and then for solicited ones: the first arming must stay
    // valid.
    check(|| {
        let memory = memory(arm::NEXT);
        let kernel = Ring::new(memory.clone()).expect("the header is valid");
        let thread = thread::spawn(move || complete(&kernel));
        let queue = CompletionQueue::new(Ring::new(memory).expect("the header is valid"));
        let _ = queue.arm(true);
        assert!(
            thread.join().expect("the thread does not panic"),
            "an event is missed"
        );
    });
}

#[test]
fn model_arming_without_polling_against_completion() {
    // The program sleeps after it armed the queue: either the kernel notifies, or the library makes
    // a system call.
    check(|| {
        let memory = memory(0);
        let kernel = Ring::new(memory.clone()).expect("the header is valid");
        let thread = thread::spawn(move || complete(&kernel));
        let queue = CompletionQueue::new(Ring::new(memory).expect("the header is valid"));
        let armed = queue.arm(false);
        let notified = thread.join().expect("the thread does not panic");
        assert!(
            notified || armed == Armed::NeedsCall,
            "a completion is missed"
        );
    });
}
