// SPDX-License-Identifier: GPL-2.0

//! How much memory received packets may take while they wait for QPs.
//!
//! The memory of received packets counts for no cgroup: a peer decides how many come, and the owner of a QP can
//! keep them waiting. So the packets that wait in a namespace have a limit, and those of all namespaces, in bytes of
//! `truesize`. The limit of a queue depends on the free bytes: a queue may have as many as it leaves free. So a
//! few long queues don't take everything, and packets are dropped early when many queues are long.

use kernel::{
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        Arc,
    },
};

use crate::bindings;

/// The limit of all namespaces is the machine's memory divided by this, and at most [`MOST`].
const PART_OF_MEMORY: usize = 16;
/// The limit of all namespaces on large machines, in bytes.
const MOST: usize = 512 << 20;
/// The limit of a namespace is that of all divided by this.
const PART_OF_ALL: usize = 4;
/// Bytes that a queue may have whatever others have. A QP is charged to its process for more than that.
const FREE: usize = 16 << 10;

/// Bytes of the packets that wait in all namespaces.
static ALL: Atomic<usize> = Atomic::new(0);

/// The packets that wait in one namespace.
pub struct Backlog {
    used: Atomic<usize>,
    limit: usize,
    /// The limit of all namespaces.
    total: usize,
}

impl Backlog {
    /// Nothing waits yet. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new() -> Result<Arc<Self>> {
        // SAFETY: No requirements.
        let memory = unsafe { bindings::total_memory() };
        let total = (memory / PART_OF_MEMORY).min(MOST);
        Self::of(total / PART_OF_ALL, total)
    }

    fn of(limit: usize, total: usize) -> Result<Arc<Self>> {
        let backlog = Self {
            used: Atomic::new(0),
            limit,
            total,
        };
        Ok(Arc::new(backlog, GFP_KERNEL)?)
    }

    /// Bytes that are free for all queues of the namespace.
    fn free(&self) -> usize {
        let free = self.limit.saturating_sub(self.used.load(Relaxed));
        free.min(self.total.saturating_sub(ALL.load(Relaxed)))
    }
}

/// A queue's part of a [`Backlog`].
///
/// # Invariants
///
/// The queue counts for as many bytes in the backlog as `bytes` exceeds [`FREE`].
pub(super) struct Part {
    backlog: Arc<Backlog>,
    /// Bytes of the packets in the queue.
    bytes: Atomic<usize>,
}

impl Part {
    /// That of an empty queue.
    pub(super) fn new(backlog: Arc<Backlog>) -> Self {
        Self {
            backlog,
            bytes: Atomic::new(0),
        }
    }

    /// Whether the queue may have `size` bytes more. CPUs that ask at the same time may overrun a limit by the bytes that
    /// they ask for. Any context.
    #[inline]
    pub(super) fn has_room(&self, size: usize) -> bool {
        let bytes = self.bytes.load(Relaxed).saturating_add(size);
        bytes <= FREE || bytes <= self.backlog.free()
    }

    /// Counts `size` bytes more. Before the packet is in the queue. Any context.
    #[inline]
    pub(super) fn add(&self, size: usize) {
        // Each addition and subtraction is told the sum before it, so the excesses add up on all CPUs.
        let before = self.bytes.fetch_add(size, Relaxed);
        let more = excess(before.wrapping_add(size)).wrapping_sub(excess(before));
        if more != 0 {
            self.backlog.used.fetch_add(more, Relaxed);
            ALL.fetch_add(more, Relaxed);
        }
    }

    /// Counts `size` bytes less that [`Self::add`] counted. When the packet has left the queue. Any context.
    #[inline]
    pub(super) fn subtract(&self, size: usize) {
        let before = self.bytes.fetch_sub(size, Relaxed);
        let less = excess(before).wrapping_sub(excess(before.wrapping_sub(size)));
        if less != 0 {
            self.backlog.used.fetch_sub(less, Relaxed);
            ALL.fetch_sub(less, Relaxed);
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.subtract(self.bytes.load(Relaxed));
    }
}

/// The bytes that count for a backlog, of those in a queue.
fn excess(bytes: usize) -> usize {
    bytes.saturating_sub(FREE)
}

#[kunit_tests(rrxe_backlog)]
mod tests {
    use super::*;

    const PACKET: usize = 1 << 10;

    /// Packets that a queue gets until it is refused one.
    fn fill(part: &Part) -> usize {
        let mut count = 0;
        while part.has_room(PACKET) {
            part.add(PACKET);
            count += 1;
        }
        count
    }

    fn parts(backlogs: &[&Arc<Backlog>]) -> Result<KVec<Part>> {
        let mut parts = KVec::new();
        for backlog in backlogs {
            parts.push(Part::new((*backlog).clone()), GFP_KERNEL)?;
        }
        Ok(parts)
    }

    #[test]
    fn queues_leave_about_as_much_as_they_take() -> Result {
        let backlog = Backlog::of(1 << 20, 4 << 20)?;
        let queues = parts(&[&backlog; 16])?;
        let counts: [usize; 16] = core::array::from_fn(|index| fill(&queues[index]));
        assert!(counts[0] > 512 && counts[0] < 530);
        assert!(counts[1] > 256 && counts[1] < 280);
        assert_eq!(counts[15], FREE / PACKET);
        assert!(backlog.used.load(Relaxed) < 1 << 20);
        // Out and in again at the limit of the free bytes.
        for _ in 0..3 {
            queues[0].subtract(PACKET);
            queues[15].subtract(PACKET);
            assert!(queues[15].has_room(PACKET));
            queues[15].add(PACKET);
            queues[0].add(PACKET);
        }
        drop(queues);
        assert_eq!(backlog.used.load(Relaxed), 0);
        assert_eq!(ALL.load(Relaxed), 0);
        Ok(())
    }

    #[test]
    fn namespaces_share_a_limit() -> Result {
        let (first, second) = (
            Backlog::of(1 << 20, 1 << 20)?,
            Backlog::of(1 << 20, 1 << 20)?,
        );
        let queues = parts(&[&first, &second])?;
        let (one, two) = (fill(&queues[0]), fill(&queues[1]));
        assert!(one > 512 && two < one && two > 256);
        drop(queues);
        assert_eq!(ALL.load(Relaxed), 0);
        Ok(())
    }
}
