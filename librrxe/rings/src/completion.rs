// SPDX-License-Identifier: GPL-2.0

//! Polling and arming a completion queue.

use crate::{
    layout::{arm, news, ring as layout, wc},
    memory::{split, Memory},
    ring::Ring,
    sync::{fence, Ordering},
};

/// A completion, as it lies in the ring: `struct ib_uverbs_wc`, and `struct ibv_wc` alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Completion(pub [u64; wc::LONGS]);

impl Completion {
    fn long(&self, at: usize) -> u64 {
        self.0.get(at).copied().unwrap_or(0)
    }

    /// The cookie of the request.
    pub fn wr_id(&self) -> u64 {
        self.long(wc::WR_ID)
    }

    /// `enum ibv_wc_status`.
    pub fn status(&self) -> u32 {
        split(self.long(wc::STATUS_OPCODE)).0
    }

    /// `enum ibv_wc_opcode`.
    pub fn opcode(&self) -> u32 {
        split(self.long(wc::STATUS_OPCODE)).1
    }

    /// Detail of an error.
    pub fn vendor_err(&self) -> u32 {
        split(self.long(wc::VENDOR_ERR_BYTE_LEN)).0
    }

    /// Bytes of the message.
    pub fn byte_len(&self) -> u32 {
        split(self.long(wc::VENDOR_ERR_BYTE_LEN)).1
    }

    /// Immediate data (big endian), or the key that was invalidated.
    pub fn ex(&self) -> u32 {
        split(self.long(wc::EX_QP_NUM)).0
    }

    /// The QP that it is of.
    pub fn qp_num(&self) -> u32 {
        split(self.long(wc::EX_QP_NUM)).1
    }

    /// The peer's QP.
    pub fn src_qp(&self) -> u32 {
        split(self.long(wc::SRC_QP_FLAGS)).0
    }

    /// `IBV_WC_*` flags.
    pub fn flags(&self) -> u32 {
        split(self.long(wc::SRC_QP_FLAGS)).1
    }

    /// The peer's LID; none in RoCE.
    pub fn slid(&self) -> u16 {
        let [_, _, a, b, ..] = self.long(wc::ADDRESS).to_ne_bytes();
        u16::from_ne_bytes([a, b])
    }

    /// The service level.
    pub fn sl(&self) -> u8 {
        let [_, _, _, _, sl, ..] = self.long(wc::ADDRESS).to_ne_bytes();
        sl
    }

    /// The path bits of the destination LID; none in RoCE.
    pub fn dlid_path_bits(&self) -> u8 {
        let [_, _, _, _, _, bits, ..] = self.long(wc::ADDRESS).to_ne_bytes();
        bits
    }
}

/// A completion queue.
///
/// # Invariants
///
/// `consumer` is what was last published. Entries from there up to `producer` can be read.
pub struct CompletionQueue<M> {
    ring: Ring<M>,
    consumer: u32,
    producer: u32,
    /// The entry that `start` and `advance` read last.
    current: Completion,
}

impl<M: Memory> CompletionQueue<M> {
    /// The queue in a ring, which may hold completions already.
    pub fn new(ring: Ring<M>) -> Self {
        Self {
            consumer: ring.consumer(),
            producer: ring.producer(),
            current: Completion::default(),
            ring,
        }
    }

    /// Takes out at most `room` completions, the oldest first, and gives each to `sink` with its number
    /// from 0 on; how many there were.
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

    /// The completion at `index`, if the kernel has put one there.
    fn peek(&mut self, index: u32) -> Option<Completion> {
        if index == self.producer {
            self.producer = self.ring.producer();
            if index == self.producer {
                return None;
            }
        }
        Some(self.read(index))
    }

    fn read(&self, index: u32) -> Completion {
        let entry = self.ring.element(index).first_chunk::<{ wc::LONGS }>();
        entry.map_or_else(Completion::default, |entry| {
            Completion(entry.each_ref().map(|long| long.load(Ordering::Relaxed)))
        })
    }

    /// Makes the oldest completion the current one: `ibv_start_poll()`. Whether there is one.
    pub fn start(&mut self) -> bool {
        self.take(self.consumer)
    }

    /// Makes the completion behind the current one current, and gives that back to the kernel:
    /// `ibv_next_poll()`. Whether there is one; the current one stays else.
    pub fn advance(&mut self) -> bool {
        let next = self.ring.after(self.consumer);
        if !self.take(next) {
            return false;
        }
        self.consumer = next;
        self.ring.publish_consumer(next);
        true
    }

    /// Gives the current completion back to the kernel: `ibv_end_poll()`.
    pub fn end(&mut self) {
        self.consumer = self.ring.after(self.consumer);
        self.ring.publish_consumer(self.consumer);
    }

    fn take(&mut self, index: u32) -> bool {
        match self.peek(index) {
            Some(completion) => {
                self.current = completion;
                true
            }
            None => false,
        }
    }

    /// Takes out all completions of a QP that was reset or is gone. The kernel adds none for it any more.
    pub fn forget(&mut self, qp_num: u32) {
        self.producer = self.ring.producer();
        // From the newest to the oldest: what stays moves up to where something was taken out.
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

    fn write(&self, index: u32, completion: Completion) {
        for (from, to) in completion.0.iter().zip(self.ring.element(index)) {
            to.store(*from, Ordering::Relaxed);
        }
    }

    /// The completion that `start` or `advance` read last.
    pub fn current(&self) -> &Completion {
        &self.current
    }

    /// Asks for an event at the next completion, or the next solicited one. Who polls after this and
    /// finds nothing gets the event of whatever comes then.
    ///
    /// With [`Armed::OwesCall`] the kernel may not have told of completions that are in the queue: it does so
    /// only if it is asked by a call.
    pub fn arm(&self, solicited_only: bool) -> Armed {
        let (value, kind) = match solicited_only {
            true => (arm::SOLICITED, news::SOLICITED),
            false => (arm::NEXT, news::ANY),
        };
        if let Some(word) = self.ring.word(layout::ARM) {
            // Who asked for any completion is not to miss one because another asks for less.
            word.fetch_max(value, Ordering::AcqRel);
            // The poll that follows looks at the ring; the kernel fills it, then looks at the word.
            fence(Ordering::SeqCst);
        }
        // The kernel writes the word before it hands a completion over.
        let unpolled = self.ring.producer() != self.consumer;
        let news = self.ring.word(layout::NEWS);
        match news.map_or(news::NONE, |word| word.load(Ordering::Relaxed)) {
            found if unpolled && found >= kind => Armed::OwesCall,
            _ => Armed::Done,
        }
    }
}

/// Whether a completion queue is armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Armed {
    /// It is.
    Done,
    /// It is for completions to come. For those that are there a call is needed.
    OwesCall,
}

#[cfg(all(test, not(loom)))]
mod tests;
