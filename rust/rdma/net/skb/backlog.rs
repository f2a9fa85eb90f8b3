// SPDX-License-Identifier: GPL-2.0

//! Limits on the memory of received packets that wait for their QPs.
//!
//! The memory of received packets is not charged to a cgroup. A peer decides how many packets come,
//! and the owner of a QP can let them wait. So the packets that wait in one network namespace have
//! a limit, and so have the packets in all namespaces. Both are in bytes of `sk_buff.truesize`.
//!
//! The limit of a queue depends on the free bytes: a queue may have as many bytes as it leaves
//! free. So a few long queues do not take all memory, and packets are dropped early when many
//! queues are long. The first [`UNCOUNTED`] bytes of a queue are not counted. A packet of 4 KiB
//! from this host fits into them, so the QP gets it even if others have taken the memory.
//!
//! Many queues of one payer would still take all memory. A payer is the user and the memory cgroup
//! to which a QP is charged. So the bytes of a queue and all bytes of its user together may be as
//! many as are free in the namespace. One user then takes at most half of the bytes that others
//! leave in a namespace. Likewise, the bytes of a queue and three times the bytes of its memory
//! cgroup together may be as many as are free. One cgroup then takes at most a quarter. So a
//! container, whose root may become any user, does not take all bytes of a user.
//!
//! Packets that owners of queues keep (`net/skb/held.rs`) count as well. A packet is kept if all
//! kept packets of the namespace then have at most as many bytes as are free. So the full queues of
//! one user do not prevent others from keeping packets. If that user keeps packets as well, and
//! another user fills queues, no more packets are kept. Then a loss takes more time.

use kernel::{
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        Arc,
    },
};

use crate::bindings;

/// Divisor of the machine's memory. The quotient, but at most [`MAX_TOTAL`], is the limit of all
/// namespaces together.
const PART_OF_MEMORY: usize = 16;
/// Maximum limit of all namespaces together, in bytes.
const MAX_TOTAL: usize = 512 << 20;
/// Divisor of the limit of all namespaces. The quotient is the limit of one namespace.
const PART_OF_ALL: usize = 4;
/// Number of bytes that each queue may have whatever other queues have, and that are not counted.
///
/// One packet of 4 KiB from this host fits into them. If such a packet were counted, QPs that do
/// not handle their packets would take the bytes that are free for others, with one packet each.
/// Parked QPs, which wait for a page fault, are an example. A QP is charged to its process for
/// more: its send ring has a page at least, and its structures have over 5 KiB.
const UNCOUNTED: usize = 9 << 10;

/// Number of counted bytes in all namespaces.
static ALL: Atomic<usize> = Atomic::new(0);

/// The memory of the packets that wait in one network namespace.
pub struct Backlog {
    /// Number of counted bytes.
    used: Atomic<usize>,
    /// Number of counted bytes of packets that owners of queues keep.
    kept: Atomic<usize>,
    limit: usize,
    /// Limit of all namespaces, in bytes.
    total: usize,
}

impl Backlog {
    /// Creates the state of a namespace without packets. Must be called in process context.
    ///
    /// # Errors
    ///
    /// Returns `ENOMEM` if there is no memory.
    pub fn new() -> Result<Arc<Self>> {
        // SAFETY: The function has no requirements.
        let memory = unsafe { bindings::total_memory() };
        let total = (memory / PART_OF_MEMORY).min(MAX_TOTAL);
        Self::of(total / PART_OF_ALL, total)
    }

    /// Creates a state with other limits.
    fn of(limit: usize, total: usize) -> Result<Arc<Self>> {
        let backlog = Self {
            used: Atomic::new(0),
            kept: Atomic::new(0),
            limit,
            total,
        };
        Ok(Arc::new(backlog, GFP_KERNEL)?)
    }

    /// Returns the number of bytes that are free for the queues of the namespace.
    fn free(&self) -> usize {
        let free = self.limit.saturating_sub(self.used.load(Relaxed));
        free.min(self.total.saturating_sub(ALL.load(Relaxed)))
    }
}

/// The counted bytes of all queues of one user or of one memory cgroup, in all namespaces.
pub struct PayerBacklog {
    bytes: Atomic<usize>,
    /// Number of bytes of a namespace that must stay free for each byte in `bytes`.
    free_factor: usize,
}

impl PayerBacklog {
    /// Creates the state of a user without packets. Must be called in process context.
    ///
    /// # Errors
    ///
    /// Returns `ENOMEM` if there is no memory.
    pub fn of_user() -> Result<Arc<Self>> {
        Self::new(1)
    }

    /// Creates the state of a memory cgroup without packets. Must be called in process context.
    ///
    /// # Errors
    ///
    /// Returns `ENOMEM` if there is no memory.
    pub fn of_cgroup() -> Result<Arc<Self>> {
        Self::new(3)
    }

    fn new(free_factor: usize) -> Result<Arc<Self>> {
        let bytes = Atomic::new(0);
        Ok(Arc::new(Self { bytes, free_factor }, GFP_KERNEL_ACCOUNT)?)
    }

    /// Returns whether one of the queues may have `bytes` in total while `free` bytes are free in
    /// its namespace.
    fn fits(&self, bytes: usize, free: usize) -> bool {
        let taken = self.bytes.load(Relaxed).saturating_mul(self.free_factor);
        taken.saturating_add(bytes) <= free
    }
}

/// The states of a queue's payer: of its memory cgroup and of its user. Queues of the kernel have
/// none.
pub type PayerBacklogs = [Option<Arc<PayerBacklog>>; 2];

/// The memory of one queue.
///
/// # Invariants
///
/// The number of bytes by which `bytes` exceeds [`UNCOUNTED`] is counted for the queue in `backlog`
/// and in each of `shares`. Bytes that the owner keeps are counted there, too.
pub(super) struct QueueUsage {
    backlog: Arc<Backlog>,
    shares: PayerBacklogs,
    /// Memory of the packets in the queue, in bytes.
    bytes: Atomic<usize>,
}

impl QueueUsage {
    /// Creates the state of an empty queue.
    pub(super) fn new(backlog: Arc<Backlog>, shares: PayerBacklogs) -> Self {
        Self {
            backlog,
            shares,
            bytes: Atomic::new(0),
        }
    }

    /// Returns whether the queue may have another packet of `size` bytes.
    ///
    /// CPUs that call this at the same time may exceed a limit by their packets. Callable in any
    /// context.
    #[inline]
    pub(super) fn has_room(&self, size: usize) -> bool {
        let bytes = self.bytes.load(Relaxed).saturating_add(size);
        if bytes <= UNCOUNTED {
            return true;
        }
        let free = self.backlog.free();
        bytes <= free && self.shares().all(|share| share.fits(bytes, free))
    }

    /// Returns whether the queue's owner may keep a packet of `size` bytes whose execution the peer
    /// can delay. All kept packets leave as many bytes of the namespace to queues as they take, and
    /// those of a payer leave a third of the payer's bytes. Callable in any context.
    pub(super) fn has_room_to_keep(&self, size: usize) -> bool {
        let free = self.backlog.free();
        let kept = self.backlog.kept.load(Relaxed).saturating_add(size);
        kept <= free && self.shares().all(|share| share.fits(size, free / 2))
    }

    /// Counts all `size` bytes of a packet that the queue's owner keeps outside of the queue.
    /// Callable in any context.
    pub(super) fn count_kept(&self, size: usize) {
        self.backlog.kept.fetch_add(size, Relaxed);
        self.count(size);
    }

    /// Subtracts `size` bytes that [`Self::count_kept`] counted. Callable in any context.
    pub(super) fn uncount_kept(&self, size: usize) {
        self.uncount(size);
        self.backlog.kept.fetch_sub(size, Relaxed);
    }

    #[inline]
    fn count(&self, size: usize) {
        self.backlog.used.fetch_add(size, Relaxed);
        ALL.fetch_add(size, Relaxed);
        self.shares().for_each(|share| {
            share.bytes.fetch_add(size, Relaxed);
        });
    }

    #[inline]
    fn uncount(&self, size: usize) {
        self.backlog.used.fetch_sub(size, Relaxed);
        ALL.fetch_sub(size, Relaxed);
        self.shares().for_each(|share| {
            share.bytes.fetch_sub(size, Relaxed);
        });
    }

    /// Adds `size` bytes. Called before the packet is queued, in any context.
    #[inline]
    pub(super) fn add(&self, size: usize) {
        // The atomic operations return the preceding sum. So the differences that all CPUs count
        // add up to the counted part of the present sum.
        let before = self.bytes.fetch_add(size, Relaxed);
        let more = counted(before.wrapping_add(size)).wrapping_sub(counted(before));
        if more != 0 {
            self.count(more);
        }
    }

    /// Subtracts `size` bytes that [`Self::add`] added. Called after the packet has left the queue,
    /// in any context.
    #[inline]
    pub(super) fn subtract(&self, size: usize) {
        let before = self.bytes.fetch_sub(size, Relaxed);
        let less = counted(before).wrapping_sub(counted(before.wrapping_sub(size)));
        if less != 0 {
            self.uncount(less);
        }
    }

    /// Returns the states of the queue's payer.
    fn shares(&self) -> impl Iterator<Item = &PayerBacklog> {
        self.shares.iter().flatten().map(|share| &**share)
    }
}

impl Drop for QueueUsage {
    fn drop(&mut self) {
        self.subtract(self.bytes.load(Relaxed));
    }
}

/// Returns the counted part of the bytes of a queue.
fn counted(bytes: usize) -> usize {
    bytes.saturating_sub(UNCOUNTED)
}

#[kunit_tests(rrxe_backlog)]
mod tests {
    use super::*;

    const PACKET: usize = 1 << 10;

    /// Adds packets to a queue until it has no room. Returns their number.
    fn fill(usage: &QueueUsage) -> usize {
        let mut count = 0;
        while usage.has_room(PACKET) {
            usage.add(PACKET);
            count += 1;
        }
        count
    }

    /// Creates a queue of the kernel for each backlog.
    fn usages(backlogs: &[&Arc<Backlog>]) -> Result<KVec<QueueUsage>> {
        let mut usages = KVec::new();
        for backlog in backlogs {
            let usage = QueueUsage::new((*backlog).clone(), PayerBacklogs::default());
            usages.push(usage, GFP_KERNEL)?;
        }
        Ok(usages)
    }

    /// Creates queues of one payer.
    fn usages_of(
        backlog: &Arc<Backlog>,
        shares: &PayerBacklogs,
        count: usize,
    ) -> Result<KVec<QueueUsage>> {
        let mut usages = KVec::new();
        for _ in 0..count {
            usages.push(QueueUsage::new(backlog.clone(), shares.clone()), GFP_KERNEL)?;
        }
        Ok(usages)
    }

    /// Fills each queue. Returns the number of counted bytes of all queues.
    fn fill_all(usages: &[QueueUsage]) -> usize {
        let beyond = |usage: &QueueUsage| counted(fill(usage) * PACKET);
        usages.iter().map(beyond).sum()
    }

    #[test]
    fn queues_leave_about_as_much_as_they_take() -> Result {
        let backlog = Backlog::of(1 << 20, 4 << 20)?;
        let queues = usages(&[&backlog; 16])?;
        let counts: [usize; 16] = core::array::from_fn(|index| fill(&queues[index]));
        assert!(counts[0] > 512 && counts[0] < 530);
        assert!(counts[1] > 256 && counts[1] < 280);
        assert_eq!(counts[15], UNCOUNTED / PACKET);
        assert!(backlog.used.load(Relaxed) < 1 << 20);
        // The packets leave the queues and return when no more bytes are free.
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
        let user = PayerBacklog::of_user()?;
        let queue = QueueUsage::new(backlog.clone(), [None, Some(user.clone())]);
        assert!(!queue.has_room(UNCOUNTED + 1));
        for _ in 0..2 {
            assert!(queue.has_room(UNCOUNTED));
            queue.add(UNCOUNTED);
            assert!(!queue.has_room(1));
            // A packet that is put back, or that another CPU adds, exceeds the limit.
            queue.add(PACKET);
            assert_eq!(backlog.used.load(Relaxed), PACKET);
            assert_eq!(user.bytes.load(Relaxed), PACKET);
            queue.subtract(UNCOUNTED);
            queue.subtract(PACKET);
        }
        assert_eq!(fill(&queue), UNCOUNTED / PACKET);
        assert_eq!(backlog.used.load(Relaxed), 0);
        Ok(())
    }

    #[test]
    fn kept_packets_leave_memory_to_queues() -> Result {
        let backlog = Backlog::of(1 << 20, 4 << 20)?;
        let user: PayerBacklogs = [None, Some(PayerBacklog::of_user()?)];
        let kept_by = |queue: &QueueUsage| {
            let mut kept = 0;
            while queue.has_room_to_keep(PACKET) {
                queue.count_kept(PACKET);
                kept += PACKET;
            }
            kept
        };
        let of_user = QueueUsage::new(backlog.clone(), user);
        let of_kernel = QueueUsage::new(backlog.clone(), PayerBacklogs::default());
        let third = (1 << 20) / 3;
        let kept = kept_by(&of_user);
        assert!(kept > third - 2 * PACKET && kept <= third + PACKET);
        assert!(of_user.has_room(1 << 17));
        let more = kept_by(&of_kernel);
        assert!(kept + more <= (1 << 19) + PACKET && kept + more > (1 << 19) - PACKET);
        assert!(of_kernel.has_room(1 << 18));
        of_user.uncount_kept(kept);
        of_kernel.uncount_kept(more);
        assert_eq!(backlog.used.load(Relaxed), 0);
        Ok(())
    }

    #[test]
    fn packets_are_kept_although_others_queues_are_full() -> Result {
        let backlog = Backlog::of(1 << 20, 4 << 20)?;
        let greedy = usages_of(&backlog, &[None, Some(PayerBacklog::of_user()?)], 64)?;
        assert!(fill_all(&greedy) > 480 << 10);
        // Another user takes some more.
        let second = usages_of(&backlog, &[None, Some(PayerBacklog::of_user()?)], 1)?;
        assert!(fill_all(&second) > 64 << 10);
        let other = QueueUsage::new(backlog.clone(), [None, Some(PayerBacklog::of_user()?)]);
        let mut kept = 0;
        while other.has_room_to_keep(PACKET) {
            other.count_kept(PACKET);
            kept += PACKET;
        }
        assert!(kept > 64 << 10 && kept < backlog.free());
        other.uncount_kept(kept);
        Ok(())
    }

    #[test]
    fn a_large_packet_obeys_the_limits_also_in_an_empty_queue() -> Result {
        const HUGE: usize = 128 << 10;
        let backlog = Backlog::of(1 << 20, 4 << 20)?;
        let shares: PayerBacklogs = [None, Some(PayerBacklog::of_user()?)];
        let mut taken = 0;
        for usage in &usages_of(&backlog, &shares, 100)? {
            if usage.has_room(HUGE) {
                usage.add(HUGE);
                taken += HUGE;
            }
        }
        assert!(taken > 0 && taken <= 1 << 19);
        Ok(())
    }

    #[test]
    fn queues_with_a_packet_each_take_nothing_from_others() -> Result {
        // `truesize` of a packet of 4 KiB from this host.
        const LARGE: usize = 8704;
        let backlog = Backlog::of(1 << 20, 4 << 20)?;
        let greedy = usages_of(&backlog, &[None, Some(PayerBacklog::of_user()?)], 400)?;
        for greedy_queue in &greedy {
            assert!(greedy_queue.has_room(LARGE));
            greedy_queue.add(LARGE);
        }
        let other = QueueUsage::new(backlog.clone(), [None, Some(PayerBacklog::of_user()?)]);
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
        let queues = usages(&[&first, &second])?;
        let (one, two) = (fill(&queues[0]), fill(&queues[1]));
        assert!(one > 512 && two < one && two > 256);
        drop(queues);
        assert_eq!(ALL.load(Relaxed), 0);
        Ok(())
    }

    #[test]
    fn a_user_leaves_half_of_a_namespace() -> Result {
        let backlog = Backlog::of(1 << 20, 4 << 20)?;
        let users = [
            PayerBacklog::of_user()?,
            PayerBacklog::of_user()?,
            PayerBacklog::of_user()?,
        ];
        let of = |user: usize| [None, Some(users[user].clone())];
        let greedy = usages_of(&backlog, &of(0), 64)?;
        let taken = fill_all(&greedy);
        assert!(taken > 480 << 10 && taken <= 512 << 10);
        assert_eq!(users[0].bytes.load(Relaxed), taken);
        // The second user takes half of the remaining bytes, and the third a quarter.
        let (second, third) = (
            usages_of(&backlog, &of(1), 64)?,
            usages_of(&backlog, &of(2), 64)?,
        );
        let (two, three) = (fill_all(&second), fill_all(&third));
        assert!(two > 230 << 10 && two < 280 << 10);
        assert!(three > 100 << 10 && three < 140 << 10);
        // The queues of the kernel have no payer.
        let kernel = usages(&[&backlog])?;
        assert!(fill_all(&kernel) > 2 * UNCOUNTED);
        assert_eq!(backlog.used.load(Relaxed), ALL.load(Relaxed));
        drop((greedy, second, third, kernel));
        assert!(users.iter().all(|user| user.bytes.load(Relaxed) == 0));
        assert_eq!(backlog.used.load(Relaxed), 0);
        assert_eq!(ALL.load(Relaxed), 0);
        Ok(())
    }

    #[test]
    fn a_queue_leaves_room_for_others_of_its_user() -> Result {
        let backlog = Backlog::of(1 << 20, 4 << 20)?;
        let user = PayerBacklog::of_user()?;
        let queues = usages_of(&backlog, &[None, Some(user.clone())], 2)?;
        let (one, two) = (fill(&queues[0]) * PACKET, fill(&queues[1]) * PACKET);
        assert!(one > 340 << 10 && one < 360 << 10);
        assert!(two > 4 * UNCOUNTED);
        drop(queues);
        assert_eq!(user.bytes.load(Relaxed), 0);
        Ok(())
    }

    #[test]
    fn users_of_a_cgroup_take_a_quarter_of_a_namespace() -> Result {
        let backlog = Backlog::of(1 << 20, 4 << 20)?;
        let (cgroup, stranger) = (PayerBacklog::of_cgroup()?, PayerBacklog::of_user()?);
        let mut greedy = KVec::new();
        for _ in 0..32 {
            let shares = [Some(cgroup.clone()), Some(PayerBacklog::of_user()?)];
            greedy.push(QueueUsage::new(backlog.clone(), shares), GFP_KERNEL)?;
        }
        assert!(fill_all(&greedy) <= 256 << 10);
        let other = usages_of(&backlog, &[None, Some(stranger.clone())], 1)?;
        assert!(fill_all(&other) > 4 * UNCOUNTED);
        drop((greedy, other));
        assert_eq!(cgroup.bytes.load(Relaxed) + stranger.bytes.load(Relaxed), 0);
        Ok(())
    }

    #[test]
    fn a_cgroup_leaves_room_for_others_of_its_user() -> Result {
        let backlog = Backlog::of(1 << 20, 4 << 20)?;
        let (hostile, honest) = (PayerBacklog::of_cgroup()?, PayerBacklog::of_cgroup()?);
        let user = PayerBacklog::of_user()?;
        let greedy = usages_of(&backlog, &[Some(hostile), Some(user.clone())], 64)?;
        let taken = fill_all(&greedy);
        assert!(taken > 230 << 10 && taken <= 256 << 10);
        let other = usages_of(&backlog, &[Some(honest), Some(user.clone())], 1)?;
        assert!(fill_all(&other) > 4 * UNCOUNTED);
        drop((greedy, other));
        assert_eq!(user.bytes.load(Relaxed), 0);
        Ok(())
    }

    #[test]
    fn a_user_has_one_share_of_all_namespaces() -> Result {
        let (first, second) = (
            Backlog::of(1 << 20, 4 << 20)?,
            Backlog::of(1 << 20, 4 << 20)?,
        );
        let shares = [None, Some(PayerBacklog::of_user()?)];
        let (here, there) = (
            usages_of(&first, &shares, 64)?,
            usages_of(&second, &shares, 64)?,
        );
        let (one, two) = (fill_all(&here), fill_all(&there));
        assert!(one > 480 << 10 && two > 230 << 10 && two < 280 << 10);
        drop((here, there));
        assert_eq!(ALL.load(Relaxed), 0);
        Ok(())
    }
}
