// SPDX-License-Identifier: GPL-2.0

//! How much memory received packets may take while they wait for QPs.
//!
//! The memory of received packets counts for no cgroup: a peer decides how many come, and the owner of a QP can
//! keep them waiting. So the packets that wait in a namespace have a limit, and those of all namespaces, in bytes of
//! `truesize`. The limit of a queue depends on the free bytes: a queue may have as many as it leaves free. So a
//! few long queues don't take everything, and packets are dropped early when many queues are long. `FREE` bytes of each
//! queue count for nobody, which is one packet at least, so no QP stops for want of memory that others have.
//!
//! Many queues of one payer would still take everything. So a user may have as many bytes as its queues leave free in
//! the namespace, and a queue may have as many of them as the user's queues have not taken. One user takes at most half
//! of the bytes that others leave in a namespace. A memory cgroup may have a third of the bytes that its queues leave
//! free, which is a quarter: a container, whose root may become any user, does not take all that the user may have.

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
/// Bytes that a queue may have whatever others have, and that count for nobody: those of one packet of 4 KiB from this
/// host. If such a packet counted, QPs that stand still with one packet each would take the bytes that are free for
/// others. A QP is charged to its process for nearly as much: its send ring is a page at least, and its structures take
/// nearly 4 KiB.
const FREE: usize = 9 << 10;

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

    /// Bytes that are free for the queues of the namespace.
    fn free(&self) -> usize {
        let free = self.limit.saturating_sub(self.used.load(Relaxed));
        free.min(self.total.saturating_sub(ALL.load(Relaxed)))
    }
}

/// The bytes that the queues of one payer count for, in the backlogs of all namespaces.
pub struct Share {
    bytes: Atomic<usize>,
    /// Bytes of a namespace that must be free for each of these.
    leaves: usize,
}

impl Share {
    /// That of a user. Nothing waits yet. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn of_user() -> Result<Arc<Self>> {
        Self::new(1)
    }

    /// That of a memory cgroup. Nothing waits yet. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn of_cgroup() -> Result<Arc<Self>> {
        Self::new(3)
    }

    fn new(leaves: usize) -> Result<Arc<Self>> {
        let bytes = Atomic::new(0);
        Ok(Arc::new(Self { bytes, leaves }, GFP_KERNEL_ACCOUNT)?)
    }

    /// Whether one of the queues may have `bytes` while so many are free.
    fn fits(&self, bytes: usize, free: usize) -> bool {
        let taken = self.bytes.load(Relaxed).saturating_mul(self.leaves);
        taken.saturating_add(bytes) <= free
    }
}

/// The shares of a queue's payer: that of its memory cgroup and that of its user. None of the kernel's queues.
pub type Shares = [Option<Arc<Share>>; 2];

/// A queue's part of a [`Backlog`].
///
/// # Invariants
///
/// The queue counts for as many bytes in the backlog, and in each of its shares, as `bytes` exceeds [`FREE`].
pub(super) struct Part {
    backlog: Arc<Backlog>,
    shares: Shares,
    /// Bytes of the packets in the queue.
    bytes: Atomic<usize>,
}

impl Part {
    /// That of an empty queue.
    pub(super) fn new(backlog: Arc<Backlog>, shares: Shares) -> Self {
        Self {
            backlog,
            shares,
            bytes: Atomic::new(0),
        }
    }

    /// Whether the queue may have a packet of `size` bytes more. CPUs that ask at the same time may overrun a limit by the
    /// bytes that they ask for. Any context.
    #[inline]
    pub(super) fn has_room(&self, size: usize) -> bool {
        let bytes = self.bytes.load(Relaxed).saturating_add(size);
        if bytes <= FREE {
            return true;
        }
        let free = self.backlog.free();
        bytes <= free && self.shares().all(|share| share.fits(bytes, free))
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
            self.shares().for_each(|share| {
                share.bytes.fetch_add(more, Relaxed);
            });
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
            self.shares().for_each(|share| {
                share.bytes.fetch_sub(less, Relaxed);
            });
        }
    }

    fn shares(&self) -> impl Iterator<Item = &Share> {
        self.shares.iter().flatten().map(|share| &**share)
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
            let part = Part::new((*backlog).clone(), Shares::default());
            parts.push(part, GFP_KERNEL)?;
        }
        Ok(parts)
    }

    /// Queues of one payer.
    fn parts_of(backlog: &Arc<Backlog>, shares: &Shares, count: usize) -> Result<KVec<Part>> {
        let mut parts = KVec::new();
        for _ in 0..count {
            parts.push(Part::new(backlog.clone(), shares.clone()), GFP_KERNEL)?;
        }
        Ok(parts)
    }

    /// Fills each of the queues. The bytes that all of them have beyond those that each is free to have.
    fn fill_all(parts: &[Part]) -> usize {
        let beyond = |part: &Part| excess(fill(part) * PACKET);
        parts.iter().map(beyond).sum()
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
    fn a_queue_takes_what_is_free_for_it_and_no_more() -> Result {
        let backlog = Backlog::of(0, 0)?;
        let user = Share::of_user()?;
        let queue = Part::new(backlog.clone(), [None, Some(user.clone())]);
        assert!(!queue.has_room(FREE + 1));
        for _ in 0..2 {
            assert!(queue.has_room(FREE));
            queue.add(FREE);
            assert!(!queue.has_room(1));
            // Put back, or by two CPUs at a time.
            queue.add(PACKET);
            assert_eq!(backlog.used.load(Relaxed), PACKET);
            assert_eq!(user.bytes.load(Relaxed), PACKET);
            queue.subtract(FREE);
            queue.subtract(PACKET);
        }
        assert_eq!(fill(&queue), FREE / PACKET);
        assert_eq!(backlog.used.load(Relaxed), 0);
        Ok(())
    }

    #[test]
    fn a_large_packet_obeys_the_limits_also_in_an_empty_queue() -> Result {
        const HUGE: usize = 128 << 10;
        let backlog = Backlog::of(1 << 20, 4 << 20)?;
        let shares: Shares = [None, Some(Share::of_user()?)];
        let mut taken = 0;
        for part in &parts_of(&backlog, &shares, 100)? {
            if part.has_room(HUGE) {
                part.add(HUGE);
                taken += HUGE;
            }
        }
        assert!(taken > 0 && taken <= 1 << 19);
        Ok(())
    }

    #[test]
    fn queues_with_a_packet_each_take_nothing_from_others() -> Result {
        // Bytes of a packet of 4 KiB from this host.
        const LARGE: usize = 8704;
        let backlog = Backlog::of(1 << 20, 4 << 20)?;
        let hogs = parts_of(&backlog, &[None, Some(Share::of_user()?)], 400)?;
        for hog in &hogs {
            assert!(hog.has_room(LARGE));
            hog.add(LARGE);
        }
        let other = Part::new(backlog.clone(), [None, Some(Share::of_user()?)]);
        for _ in 0..2 {
            assert!(other.has_room(LARGE));
            other.add(LARGE);
        }
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

    #[test]
    fn a_user_leaves_half_of_a_namespace() -> Result {
        let backlog = Backlog::of(1 << 20, 4 << 20)?;
        let users = [Share::of_user()?, Share::of_user()?, Share::of_user()?];
        let of = |user: usize| [None, Some(users[user].clone())];
        let hogs = parts_of(&backlog, &of(0), 64)?;
        let taken = fill_all(&hogs);
        assert!(taken > 480 << 10 && taken <= 512 << 10);
        assert_eq!(users[0].bytes.load(Relaxed), taken);
        // The second user takes half of the rest, and the third a quarter of it.
        let (second, third) = (
            parts_of(&backlog, &of(1), 64)?,
            parts_of(&backlog, &of(2), 64)?,
        );
        let (two, three) = (fill_all(&second), fill_all(&third));
        assert!(two > 230 << 10 && two < 280 << 10);
        assert!(three > 100 << 10 && three < 140 << 10);
        // The queues of the kernel have no user.
        let kernel = parts(&[&backlog])?;
        assert!(fill_all(&kernel) > 2 * FREE);
        assert_eq!(backlog.used.load(Relaxed), ALL.load(Relaxed));
        drop((hogs, second, third, kernel));
        assert!(users.iter().all(|user| user.bytes.load(Relaxed) == 0));
        assert_eq!(backlog.used.load(Relaxed), 0);
        assert_eq!(ALL.load(Relaxed), 0);
        Ok(())
    }

    #[test]
    fn a_queue_leaves_room_for_others_of_its_user() -> Result {
        let backlog = Backlog::of(1 << 20, 4 << 20)?;
        let user = Share::of_user()?;
        let queues = parts_of(&backlog, &[None, Some(user.clone())], 2)?;
        let (one, two) = (fill(&queues[0]) * PACKET, fill(&queues[1]) * PACKET);
        assert!(one > 340 << 10 && one < 360 << 10);
        assert!(two > 4 * FREE);
        drop(queues);
        assert_eq!(user.bytes.load(Relaxed), 0);
        Ok(())
    }

    #[test]
    fn users_of_a_cgroup_take_a_quarter_of_a_namespace() -> Result {
        let backlog = Backlog::of(1 << 20, 4 << 20)?;
        let (cgroup, stranger) = (Share::of_cgroup()?, Share::of_user()?);
        let mut hogs = KVec::new();
        for _ in 0..32 {
            let shares = [Some(cgroup.clone()), Some(Share::of_user()?)];
            hogs.push(Part::new(backlog.clone(), shares), GFP_KERNEL)?;
        }
        assert!(fill_all(&hogs) <= 256 << 10);
        let other = parts_of(&backlog, &[None, Some(stranger.clone())], 1)?;
        assert!(fill_all(&other) > 4 * FREE);
        drop((hogs, other));
        assert_eq!(cgroup.bytes.load(Relaxed) + stranger.bytes.load(Relaxed), 0);
        Ok(())
    }

    #[test]
    fn a_cgroup_leaves_room_for_others_of_its_user() -> Result {
        let backlog = Backlog::of(1 << 20, 4 << 20)?;
        let (hostile, honest) = (Share::of_cgroup()?, Share::of_cgroup()?);
        let user = Share::of_user()?;
        let hogs = parts_of(&backlog, &[Some(hostile), Some(user.clone())], 64)?;
        let taken = fill_all(&hogs);
        assert!(taken > 230 << 10 && taken <= 256 << 10);
        let other = parts_of(&backlog, &[Some(honest), Some(user.clone())], 1)?;
        assert!(fill_all(&other) > 4 * FREE);
        drop((hogs, other));
        assert_eq!(user.bytes.load(Relaxed), 0);
        Ok(())
    }

    #[test]
    fn a_user_has_one_share_of_all_namespaces() -> Result {
        let (first, second) = (
            Backlog::of(1 << 20, 4 << 20)?,
            Backlog::of(1 << 20, 4 << 20)?,
        );
        let shares = [None, Some(Share::of_user()?)];
        let (here, there) = (
            parts_of(&first, &shares, 64)?,
            parts_of(&second, &shares, 64)?,
        );
        let (one, two) = (fill_all(&here), fill_all(&there));
        assert!(one > 480 << 10 && two > 230 << 10 && two < 280 << 10);
        drop((here, there));
        assert_eq!(ALL.load(Relaxed), 0);
        Ok(())
    }
}
