// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Polling and arming of completion queues.

use crate::{
    layout::{arm, news, ring as layout, wc},
    memory::{split, Memory},
    ring::Ring,
    sync::{fence, Ordering},
};

/// Completion in the layout of the ring, `struct ib_uverbs_wc`. `struct ibv_wc` has the same
/// layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Completion(pub [u64; wc::LONGS]);

impl Completion {
    /// Returns the 64-bit word number `at`.
    fn long(&self, at: usize) -> u64 {
        self.0.get(at).copied().unwrap_or(0)
    }

    /// Returns the ID of the work request (`wr_id`).
    pub fn wr_id(&self) -> u64 {
        self.long(wc::WR_ID)
    }

    /// Returns the status (`enum ibv_wc_status`).
    pub fn status(&self) -> u32 {
        split(self.long(wc::STATUS_OPCODE)).0
    }

    /// Returns the opcode (`enum ibv_wc_opcode`).
    pub fn opcode(&self) -> u32 {
        split(self.long(wc::STATUS_OPCODE)).1
    }

    /// Returns the vendor error.
    pub fn vendor_err(&self) -> u32 {
        split(self.long(wc::VENDOR_ERR_BYTE_LEN)).0
    }

    /// Returns the length of the message in bytes.
    pub fn byte_len(&self) -> u32 {
        split(self.long(wc::VENDOR_ERR_BYTE_LEN)).1
    }

    /// Returns the immediate data (big endian) or the key that was invalidated.
    pub fn ex(&self) -> u32 {
        split(self.long(wc::EX_QP_NUM)).0
    }

    /// Returns the number of the QP to which the completion belongs.
    pub fn qp_num(&self) -> u32 {
        split(self.long(wc::EX_QP_NUM)).1
    }

    /// Returns the number of the peer's QP.
    pub fn src_qp(&self) -> u32 {
        split(self.long(wc::SRC_QP_FLAGS)).0
    }

    /// Returns the flags (`IBV_WC_*`).
    pub fn flags(&self) -> u32 {
        split(self.long(wc::SRC_QP_FLAGS)).1
    }

    /// Returns the peer's LID. RoCE has no LIDs.
    pub fn slid(&self) -> u16 {
        let [_, _, a, b, ..] = self.long(wc::ADDRESS).to_ne_bytes();
        u16::from_ne_bytes([a, b])
    }

    /// Returns the service level.
    pub fn sl(&self) -> u8 {
        let [_, _, _, _, sl, ..] = self.long(wc::ADDRESS).to_ne_bytes();
        sl
    }

    /// Returns the path bits of the destination LID. RoCE has no LIDs.
    pub fn dlid_path_bits(&self) -> u8 {
        let [_, _, _, _, _, bits, ..] = self.long(wc::ADDRESS).to_ne_bytes();
        bits
    }
}

/// Completion queue.
///
/// # Invariants
///
/// `consumer` is the consumer index that was published last. The entries from `consumer` up to
/// `producer` may be read.
pub struct CompletionQueue<M> {
    ring: Ring<M>,
    consumer: u32,
    producer: u32,
    /// Entry that `start` or `advance` read last.
    current: Completion,
}

impl<M: Memory> CompletionQueue<M> {
    /// Creates the queue of a ring, which may already hold completions.
    pub fn new(ring: Ring<M>) -> Self {
        Self {
            consumer: ring.consumer(),
            producer: ring.producer(),
            current: Completion::default(),
            ring,
        }
    }

    /// Removes at most `room` completions, the oldest first. Calls `sink` with the number of each
    /// (from 0 on) and the completion. Returns how many there were.
    pub fn poll(&mut self, room: usize, mut sink: impl FnMut(usize, Completion)) -> usize {
        let mut count = 0;
        while count < room {
            let Some(completion) = self.peek(self.consumer) else {
                break;
            };
            sink(count, completion);
            self.consumer = self.ring.after(self.consumer);
            count += 1;
        }
        if count > 0 {
            self.ring.publish_consumer(self.consumer);
        }
        count
    }

    /// Returns the completion at `index`, or `None` if the kernel has not written one there yet.
    fn peek(&mut self, index: u32) -> Option<Completion> {
        if index == self.producer {
            self.producer = self.ring.producer();
            if index == self.producer {
                return None;
            }
        }
        Some(self.read(index))
    }

    /// Reads the entry at `index`.
    fn read(&self, index: u32) -> Completion {
        let entry = self.ring.element(index).first_chunk::<{ wc::LONGS }>();
        entry.map_or_else(Completion::default, |entry| {
            Completion(entry.each_ref().map(|long| long.load(Ordering::Relaxed)))
        })
    }

    /// Makes the oldest completion the current one (`ibv_start_poll()`). Returns whether there is
    /// one.
    pub fn start(&mut self) -> bool {
        self.take(self.consumer)
    }

    /// Makes the completion after the current one the current one, and gives the slot of the old
    /// one back to the kernel (`ibv_next_poll()`). Returns false, with the current completion
    /// unchanged, if there is none.
    pub fn advance(&mut self) -> bool {
        let next = self.ring.after(self.consumer);
        if !self.take(next) {
            return false;
        }
        self.consumer = next;
        self.ring.publish_consumer(next);
        true
    }

    /// Gives the slot of the current completion back to the kernel (`ibv_end_poll()`).
    pub fn end(&mut self) {
        self.consumer = self.ring.after(self.consumer);
        self.ring.publish_consumer(self.consumer);
    }

    /// Makes the completion at `index` the current one. Returns whether there is one.
    fn take(&mut self, index: u32) -> bool {
        match self.peek(index) {
            Some(completion) => {
                self.current = completion;
                true
            }
            None => false,
        }
    }

    /// Removes all completions of a QP that was reset or destroyed. The kernel adds no more
    /// completions of this QP.
    pub fn forget(&mut self, qp_num: u32) {
        self.producer = self.ring.producer();
        // The loop goes from the newest entry to the oldest. Entries that stay move towards the
        // newest end, to close the gaps.
        let (mut from, mut to) = (self.producer, self.producer);
        while from != self.consumer {
            from = self.ring.before(from);
            let completion = self.read(from);
            if completion.qp_num() != qp_num {
                to = self.ring.before(to);
                if to != from {
                    self.write(to, completion);
                }
            }
        }
        if to != self.consumer {
            self.consumer = to;
            self.ring.publish_consumer(to);
        }
    }

    /// Writes the entry at `index`.
    fn write(&self, index: u32, completion: Completion) {
        for (from, to) in completion.0.iter().zip(self.ring.element(index)) {
            to.store(*from, Ordering::Relaxed);
        }
    }

    /// Returns the completion that `start` or `advance` read last.
    pub fn current(&self) -> &Completion {
        &self.current
    }

    /// Arms the queue: requests an event for the next completion, or if `solicited_only`, for the
    /// next one that is solicited or in error. A caller that polls after this call and finds no
    /// completion gets an event for the next one.
    ///
    /// If the result is [`Armed::NeedsCall`], the queue may hold completions that no event has
    /// announced. The kernel announces them only if the caller also arms the queue by a system
    /// call.
    pub fn arm(&self, solicited_only: bool) -> Armed {
        let (value, kind) = match solicited_only {
            true => (arm::SOLICITED, news::SOLICITED),
            false => (arm::NEXT, news::ANY),
        };
        if let Some(word) = self.ring.word(layout::ARM) {
            // The maximum is stored: a thread that asked for any completion must not miss one
            // because another thread asks for solicited ones only.
            word.fetch_max(value, Ordering::AcqRel);
            // The caller polls after this fence, and the kernel reads the word after it has added a
            // completion. So either the caller sees the completion or the kernel sees that the
            // queue is armed.
            fence(Ordering::SeqCst);
        }
        // The kernel writes `NEWS` before it publishes a completion.
        let unpolled = self.ring.producer() != self.consumer;
        let news = self.ring.word(layout::NEWS);
        match news.map_or(news::NONE, |word| word.load(Ordering::Relaxed)) {
            found if unpolled && found >= kind => Armed::NeedsCall,
            _ => Armed::Done,
        }
    }
}

/// Result of arming a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Armed {
    /// The queue is armed.
    Done,
    /// The queue is armed for future completions. For the present ones a system call is necessary.
    NeedsCall,
}

#[cfg(all(test, not(loom)))]
mod tests;
