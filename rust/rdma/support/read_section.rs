// SPDX-License-Identifier: GPL-2.0

//! Short read-side critical sections whose end a writer can wait for quickly.
//!
//! An RCU grace period takes milliseconds. An expedited grace period takes an interrupt on every
//! CPU. Both cost too much for each of the ten thousand objects that a process may leave behind.
//! Here each CPU records in a cache line of its own whether it is in a section. A writer that waits
//! for readers reads the lines of all CPUs.
//!
//! Entering the outermost section costs a CPU one atomic exchange on a cache line that no other CPU
//! writes.

use core::sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release}, //
};

use kernel::{
    cpu::{nr_cpu_ids, CpuId},
    prelude::*,
    sync::barrier::{smp_mb, Full},
    time::{delay::fsleep, Delta},
    types::NotThreadSafe,
};

use crate::{bindings, support::sync::swap_fully_ordered};

/// Mask of the nesting depth in a line's value: the number of sections that the CPU is in. A stack
/// has no room for so many nested sections.
const DEPTH: u32 = 0xffff;
/// Increment of the serial number in a line's value, added with each outermost section. It
/// distinguishes a section from the next one.
const SERIAL: u32 = DEPTH + 1;

/// Number of reads of a line after which a waiter that may sleep sleeps for [`SLEEP`].
const SPINS: u32 = 1000;
/// Time for which a waiter sleeps after [`SPINS`] reads.
const SLEEP: Delta = Delta::from_micros(50);

/// Number of CPUs whose lines are read before the writer waits for the first of these CPUs.
const AT_ONCE: usize = 64;

/// The state of one CPU, in a cache line of its own: its nesting depth ([`DEPTH`]) and its serial
/// number.
///
/// Uses an atomic of the core library, since an access to an atomic of the kernel crate is a
/// function call.
#[repr(align(64))]
struct Line(AtomicU32);

/// A domain of read-side critical sections, like one `struct srcu_struct`.
///
/// Sections may nest. An inner section costs two loads and two stores of the CPU's own line.
///
/// # Invariants
///
/// `lines` has an element for each possible CPU number. Only code on a CPU writes that CPU's
/// element. The sections of a CPU end in the reverse order of their beginnings. So code that
/// interrupts other code leaves the nesting depth unchanged.
pub struct ReadSections {
    lines: KVVec<Line>,
}

impl ReadSections {
    /// Creates a domain without readers. Must be called in process context.
    ///
    /// # Errors
    ///
    /// Returns `ENOMEM` if there is no memory.
    pub fn new() -> Result<Self> {
        let count = nr_cpu_ids() as usize;
        let mut lines = KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..count {
            lines.push(Line(AtomicU32::new(0)), GFP_KERNEL_ACCOUNT)?;
        }
        // INVARIANT: `nr_cpu_ids()` is greater than each possible CPU number, and `lines` has as
        // many elements.
        Ok(Self { lines })
    }

    /// Runs `f` in a read-side critical section.
    ///
    /// `f` runs on one CPU, and without interruption by softirqs, unless `f` itself ends the
    /// caller's own exclusion of softirqs. `f` must not sleep. Callable in any context but hard
    /// interrupts.
    #[inline]
    pub fn within<R>(&self, f: impl FnOnce() -> R) -> R {
        let _section = self.enter();
        f()
    }

    /// Enters a section, which ends when the result is dropped.
    ///
    /// The caller drops the result before any section that it had before the call.
    #[inline]
    fn enter(&self) -> ReadSection<'_> {
        // SAFETY: The function has no requirements. It returns a negative number if a softirq or a
        // preemption may move or interrupt the caller. Otherwise it returns the CPU number, shifted
        // left by one. The lowest bit is set in a softirq or a hard interrupt.
        let place = unsafe { bindings::cpu_without_softirqs() };
        let (cpu, mut hold) = match u32::try_from(place) {
            Ok(place) if place & 1 != 0 => (place >> 1, Hold::Nothing),
            Ok(place) => (place >> 1, Hold::Cpu),
            Err(_) => {
                // SAFETY: The section's `drop` enables bottom halves again.
                unsafe { bindings::local_bh_disable() };
                (CpuId::current().as_u32(), Hold::Softirqs)
            }
        };
        // SAFETY: By the type invariant `lines` has an element for each CPU number, and `cpu` is
        // the number of this CPU.
        let line = unsafe { self.lines.get_unchecked(cpu as usize) };
        let outside = line.0.load(Relaxed);
        let inside = outside.wrapping_add(1);
        if outside & DEPTH == 0 {
            if hold == Hold::Cpu {
                // The section may outlive the guard by which its caller excludes softirqs or
                // interrupts.
                // SAFETY: The section's `drop` enables preemption again.
                unsafe { bindings::preempt_disable() };
            }
            // The exchange is fully ordered: other CPUs see the section before it reads anything.
            // It pairs with the barrier in `wait_pausing`.
            swap_fully_ordered(&line.0, inside.wrapping_add(SERIAL));
        } else {
            if hold == Hold::Cpu {
                // The outermost section ends later and keeps the code on this CPU.
                hold = Hold::Nothing;
            }
            line.0.store(inside, Relaxed);
        }
        ReadSection {
            line,
            hold,
            _cpu: NotThreadSafe,
        }
    }

    /// Waits until no CPU is in a section that began before this call.
    ///
    /// Sections that begin later do not see objects that were unpublished before the call.
    ///
    /// # Context
    ///
    /// Process context, outside of such a section. May sleep.
    pub(crate) fn wait(&self) {
        self.wait_pausing(|| fsleep(SLEEP));
    }

    /// Does the same as [`Self::wait`], but does not sleep.
    ///
    /// For callers that must keep the CPU. The call spins for as long as the present section of
    /// each CPU lasts. Only interrupts prolong a section, as they prolong the hold of a spinlock
    /// that bottom halves take.
    ///
    /// # Context
    ///
    /// Process context, outside of such a section.
    pub(crate) fn wait_spinning(&self) {
        self.wait_pausing(|| ());
    }

    /// Waits for the readers, and calls `pause` once per [`SPINS`] reads of a line.
    fn wait_pausing(&self, mut pause: impl FnMut()) {
        // CPUs that the loop below does not see in a section see the preceding changes when they
        // enter one.
        smp_mb(Full);
        let mut seen = [0; AT_ONCE];
        for lines in self.lines.chunks(AT_ONCE) {
            // The states of the chunk's CPUs are read first, so that the waits for their sections
            // overlap.
            for (line, seen) in Iterator::zip(lines.iter(), &mut seen) {
                *seen = line.0.load(Acquire);
            }
            for (line, seen) in Iterator::zip(lines.iter(), &seen) {
                line.wait(*seen, &mut pause);
            }
        }
    }
}

impl Line {
    /// Waits until the CPU has left the section that it was in when `seen` was read.
    fn wait(&self, seen: u32, pause: &mut impl FnMut()) {
        let mut reads: u32 = 0;
        while seen & DEPTH != 0 && self.is_still_in(seen) {
            reads = reads.wrapping_add(1);
            if reads % SPINS == 0 {
                pause();
            } else {
                core::hint::spin_loop();
            }
        }
    }

    /// Returns whether the CPU is in the same outermost section as when `seen` was read.
    fn is_still_in(&self, seen: u32) -> bool {
        let now = self.0.load(Acquire);
        now & DEPTH != 0 && now & !DEPTH == seen & !DEPTH
    }
}

/// The mechanism that keeps a section's code on its CPU. The end of the section undoes it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hold {
    /// Nothing. The code runs in a softirq or in an outermost section, each of which ends later.
    Nothing,
    /// One `preempt_disable()`.
    Cpu,
    /// One `local_bh_disable()`.
    Softirqs,
}

/// A read-side critical section. It ends on the CPU on which it began.
///
/// # Invariants
///
/// The code does not leave the CPU of `line` until the section is dropped. The section owns one
/// call of the function that `hold` names.
#[must_use = "the section ends at once"]
struct ReadSection<'a> {
    line: &'a Line,
    hold: Hold,
    _cpu: NotThreadSafe,
}

impl Drop for ReadSection<'_> {
    #[inline]
    fn drop(&mut self) {
        let inside = self.line.0.load(Relaxed);
        // The release orders all reads of the section before this store.
        self.line.0.store(inside.wrapping_sub(1), Release);
        match self.hold {
            Hold::Nothing => {}
            // SAFETY: By the type invariant the section owns one `preempt_disable()`, called by
            // `ReadSections::enter`.
            Hold::Cpu => unsafe { bindings::preempt_enable() },
            // SAFETY: By the type invariant the section owns one `local_bh_disable()`, called by
            // `ReadSections::enter`.
            Hold::Softirqs => unsafe { bindings::local_bh_enable() },
        }
    }
}

#[kunit_tests(rrxe_read_section)]
mod tests {
    use super::*;
    use crate::support::{sync::bottom_halves_off, table::Table};
    use kernel::{
        sync::{atomic::Atomic, Arc},
        workqueue,
    };

    /// Creates a domain of two CPUs, the second of which is in a section.
    fn busy() -> Result<Arc<ReadSections>> {
        let mut lines = KVVec::with_capacity(2, GFP_KERNEL)?;
        for state in [0, SERIAL + 1] {
            lines.push(Line(AtomicU32::new(state)), GFP_KERNEL)?;
        }
        Ok(Arc::new(ReadSections { lines }, GFP_KERNEL)?)
    }

    /// Sets the state of the second CPU.
    fn set_state(sections: &ReadSections, state: u32) {
        if let Some(line) = sections.lines.last() {
            line.0.store(state, Release);
        }
    }

    /// Runs `step` in a work item while the second CPU is in a section. Returns whether `step` ends
    /// after that CPU's state becomes `state`, and not before.
    fn waits_for(
        sections: &Arc<ReadSections>,
        state: u32,
        step: impl FnOnce() + Send + 'static,
    ) -> Result<bool> {
        let ended = Arc::new(Atomic::new(false), GFP_KERNEL)?;
        let end = ended.clone();
        workqueue::system().try_spawn(GFP_KERNEL, move || {
            step();
            end.store(true, kernel::sync::atomic::Release);
        })?;
        fsleep(Delta::from_millis(50));
        let early = ended.load(kernel::sync::atomic::Acquire);
        set_state(sections, state);
        for _ in 0..500 {
            if ended.load(kernel::sync::atomic::Acquire) {
                return Ok(!early);
            }
            fsleep(Delta::from_millis(10));
        }
        // Lets the work item end, which still waits.
        set_state(sections, 0);
        Ok(false)
    }

    #[test]
    fn waits_for_the_section_of_another_cpu() -> Result {
        // The CPU has left the section, or is in the next one already.
        for state in [SERIAL, 2 * SERIAL + 1] {
            let sections = busy()?;
            let waiting = sections.clone();
            assert!(waits_for(&sections, state, move || waiting.wait())?);
        }
        Ok(())
    }

    #[test]
    fn tables_wait_before_they_give_up_an_object() -> Result {
        let sections = busy()?;
        let numbers = || Arc::pin_init(Table::<u32>::new(9, &sections), GFP_KERNEL);
        let table = numbers()?;
        table.reserve_exact(3)?.publish(Arc::new(7, GFP_KERNEL)?);
        let shared = table.clone();
        assert!(waits_for(&sections, SERIAL, move || drop(
            shared.remove(3)
        ))?);
        assert!(table.get(3).is_none());

        set_state(&sections, SERIAL + 1);
        let table = numbers()?;
        table.reserve_exact(3)?.publish(Arc::new(7, GFP_KERNEL)?);
        let (shared, other) = (table.clone(), Arc::new(8, GFP_KERNEL)?);
        assert!(waits_for(&sections, SERIAL, move || drop(
            shared.replace(3, other)
        ))?);
        assert_eq!(table.get(3).map(|number| *number), Some(8));
        Ok(())
    }

    #[test]
    fn tables_wait_once_for_many_that_retire() -> Result {
        let sections = busy()?;
        let table = Arc::pin_init(Table::<u32>::new(99, &sections), GFP_KERNEL)?;
        for id in 0..64 {
            table.reserve_exact(id)?.publish(Arc::new(id, GFP_KERNEL)?);
        }
        // These calls do not wait. If they did, they would not return.
        for id in 0..63 {
            table.retire(id);
        }
        let shared = table.clone();
        assert!(waits_for(&sections, SERIAL, move || shared.retire(63))?);
        Ok(())
    }

    /// Returns the sum of the nesting depths of all CPUs.
    fn depths(sections: &ReadSections) -> u32 {
        let depths = sections
            .lines
            .iter()
            .map(|line| line.0.load(Relaxed) & DEPTH);
        depths.sum()
    }

    #[test]
    fn counts_sections_within_sections() -> Result {
        let sections = ReadSections::new()?;
        sections.within(|| {
            assert_eq!(depths(&sections), 1);
            sections.within(|| ());
            sections.within(|| assert_eq!(depths(&sections), 2));
            assert_eq!(depths(&sections), 1);
        });
        assert_eq!(depths(&sections), 0);
        sections.wait();
        sections.wait_spinning();
        Ok(())
    }

    #[test]
    fn keeps_its_cpu_when_the_guard_of_its_caller_is_gone() -> Result {
        let sections = ReadSections::new()?;
        assert!(sections.enter().hold == Hold::Softirqs);
        let off = bottom_halves_off();
        let outer = sections.enter();
        assert!(outer.hold == Hold::Cpu);
        assert!(sections.enter().hold == Hold::Nothing);
        drop(off);
        assert!(sections.enter().hold == Hold::Softirqs);
        assert_eq!(depths(&sections), 1);
        drop(outer);
        assert_eq!(depths(&sections), 0);
        Ok(())
    }

    #[test]
    fn objects_are_looked_at_in_sections() -> Result {
        let sections = Arc::new(ReadSections::new()?, GFP_KERNEL)?;
        let table = Arc::pin_init(Table::<u32>::new(9, &sections), GFP_KERNEL)?;
        table.reserve_exact(3)?.publish(Arc::new(7, GFP_KERNEL)?);
        assert_eq!(table.with(3, |_| depths(&sections)), Some(1));
        table.for_each(|_, _| assert_eq!(depths(&sections), 1));
        let found = table.find_from(0, |_| depths(&sections) == 1);
        assert!(found.is_some());
        assert_eq!(depths(&sections), 0);
        Ok(())
    }

    #[test]
    fn tells_one_section_from_the_next() -> Result {
        let line = Line(AtomicU32::new(0));
        let seen = SERIAL + 1;
        for (now, same) in [
            (seen, true),
            (seen + 1, true),
            (seen - 1, false),
            (seen + SERIAL, false),
            (seen.wrapping_sub(SERIAL), false),
        ] {
            line.0.store(now, Relaxed);
            assert_eq!(line.is_still_in(seen), same);
        }
        Ok(())
    }
}
