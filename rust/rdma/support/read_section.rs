// SPDX-License-Identifier: GPL-2.0

//! Short sections of reading code whose end a writer can wait for at once.
//!
//! An RCU grace period takes milliseconds or, expedited, an interrupt on every CPU: too much for each
//! of the ten thousand objects that a process leaves behind. Here each CPU notes in a cache line of its
//! own whether it is in a section, and who waits looks at those.
//!
//! A section costs its CPU an exchange on a line that nobody else writes.

use core::sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release}, //
};

use kernel::{
    cpu::{nr_cpu_ids, CpuId},
    prelude::*,
    time::{delay::fsleep, Delta},
    types::NotThreadSafe,
};

use crate::{
    bindings,
    support::sync::{smp_mb, swap_fully_ordered},
};

/// How many sections a CPU is in, one within the other: more than a stack has room for.
const DEPTH: u32 = 0xffff;
/// Added with each outermost section: tells one from the next.
const SERIAL: u32 = DEPTH + 1;

/// How often to look again before sleeping, and how long to sleep then, for those who may sleep.
const SPINS: u32 = 1000;
const NAP: Delta = Delta::from_micros(50);

/// How many CPUs are looked at before the first one is waited for.
const AT_ONCE: usize = 64;

/// What a CPU does; its own cache line. The atomics of the compiler, for the kernel's are calls.
#[repr(align(64))]
struct Line(AtomicU32);

/// One kind of section; they may lie one within the other, and the inner ones cost next to nothing.
///
/// # Invariants
///
/// `lines` has an element for each CPU number that there may be. Only code on that CPU writes to it. ReadSections on a CPU end
/// in the reverse order of their beginnings, so code that interrupts other code leaves the depth as it was.
pub struct ReadSections {
    lines: KVVec<Line>,
}

impl ReadSections {
    /// No CPU is in a section. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new() -> Result<Self> {
        let count = nr_cpu_ids() as usize;
        let mut lines = KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..count {
            lines.push(Line(AtomicU32::new(0)), GFP_KERNEL_ACCOUNT)?;
        }
        // INVARIANT: That many CPUs there may be.
        Ok(Self { lines })
    }

    /// Runs `f` in a section: on one CPU, and with softirqs excluded unless `f` itself ends an exclusion of its caller's.
    /// `f` must not sleep. Any context but hard interrupts.
    #[inline]
    pub fn within<R>(&self, f: impl FnOnce() -> R) -> R {
        let _section = self.enter();
        f()
    }

    /// Enters a section, which ends when the result is dropped. The caller drops it before any guard or section that it
    /// had before the call.
    #[inline]
    fn enter(&self) -> ReadSection<'_> {
        // SAFETY: No requirements.
        let place = unsafe { bindings::cpu_without_softirqs() };
        let (cpu, mut hold) = match u32::try_from(place) {
            Ok(place) if place & 1 != 0 => (place >> 1, Hold::Nothing),
            Ok(place) => (place >> 1, Hold::Cpu),
            Err(_) => {
                // SAFETY: Enabled again when the section ends.
                unsafe { bindings::local_bh_disable() };
                (CpuId::current().as_u32(), Hold::Softirqs)
            }
        };
        // SAFETY: By the type invariant, there is a line for each CPU.
        let line = unsafe { self.lines.get_unchecked(cpu as usize) };
        let outside = line.0.load(Relaxed);
        let inside = outside.wrapping_add(1);
        if outside & DEPTH == 0 {
            if hold == Hold::Cpu {
                // The section may outlive the guard by which its caller excludes softirqs or interrupts.
                // SAFETY: Enabled again when the section ends.
                unsafe { bindings::preempt_disable() };
            }
            // Fully ordered: visible before this section reads anything. Pairs with the barrier in
            // `wait`.
            swap_fully_ordered(&line.0, inside.wrapping_add(SERIAL));
        } else {
            if hold == Hold::Cpu {
                // The outermost section, which ends later, keeps the CPU.
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

    /// Waits until no CPU is in a section that began before this call. What was unpublished before the
    /// call is not seen by later ones.
    ///
    /// # Context
    ///
    /// Process, outside of such a section; may sleep.
    pub(crate) fn wait(&self) {
        self.wait_pausing(|| fsleep(NAP));
    }

    /// As [`Self::wait`], but doesn't sleep: for who must keep the CPU. It spins for as long as each CPU's present section
    /// lasts, which nothing but interrupts puts off, as for a spinlock that bottom halves take.
    ///
    /// # Context
    ///
    /// Process, outside of such a section.
    pub(crate) fn wait_awake(&self) {
        self.wait_pausing(|| ());
    }

    /// Waits, and calls `pause` each time a CPU was looked at often enough.
    fn wait_pausing(&self, mut pause: impl FnMut()) {
        // What was unpublished is so for whoever isn't seen in a section below.
        smp_mb();
        let mut seen = [0; AT_ONCE];
        for lines in self.lines.chunks(AT_ONCE) {
            // All are looked at first, so that the waits for their sections overlap.
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
    /// Waits until the CPU has left the section in which it was when `seen` was read.
    fn wait(&self, seen: u32, pause: &mut impl FnMut()) {
        let mut looks: u32 = 0;
        while seen & DEPTH != 0 && self.is_still_in(seen) {
            looks = looks.wrapping_add(1);
            if looks % SPINS == 0 {
                pause();
            } else {
                core::hint::spin_loop();
            }
        }
    }

    /// The CPU is in the outermost section in which it was when `seen` was read.
    fn is_still_in(&self, seen: u32) -> bool {
        let now = self.0.load(Acquire);
        now & DEPTH != 0 && now & !DEPTH == seen & !DEPTH
    }
}

/// The count that keeps a section on its CPU. The end of the section gives it up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hold {
    /// Nothing of the section's own: an interrupt, a softirq or the outermost section, which end later.
    Nothing,
    /// A count of `preempt_disable()`.
    Cpu,
    /// A count of `local_bh_disable()`.
    Softirqs,
}

/// A section. It ends on the CPU on which it began.
///
/// # Invariants
///
/// The code does not leave the CPU of `line` until this is dropped. It owns what `hold` says.
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
        // What the section read, it read before this.
        self.line.0.store(inside.wrapping_sub(1), Release);
        match self.hold {
            Hold::Nothing => {}
            // SAFETY: Pairs with `enter`.
            Hold::Cpu => unsafe { bindings::preempt_enable() },
            // SAFETY: Pairs with `enter`.
            Hold::Softirqs => unsafe { bindings::local_bh_enable() },
        }
    }
}

#[kunit_tests(rrxe_section)]
mod tests {
    use super::*;
    use crate::support::{sync::bottom_halves_off, table::Table};
    use kernel::{
        sync::{atomic::Atomic, Arc},
        workqueue,
    };

    /// Two CPUs, the second of which is in a section.
    fn busy() -> Result<Arc<ReadSections>> {
        let mut lines = KVVec::with_capacity(2, GFP_KERNEL)?;
        for state in [0, SERIAL + 1] {
            lines.push(Line(AtomicU32::new(state)), GFP_KERNEL)?;
        }
        Ok(Arc::new(ReadSections { lines }, GFP_KERNEL)?)
    }

    /// Has the second CPU do something else.
    fn turn(sections: &ReadSections, state: u32) {
        if let Some(line) = sections.lines.last() {
            line.0.store(state, Release);
        }
    }

    /// Whether `step`, which begins when the second CPU is in a section, ends when that CPU turns to `state`, and
    /// not before.
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
        turn(sections, state);
        for _ in 0..500 {
            if ended.load(kernel::sync::atomic::Acquire) {
                return Ok(!early);
            }
            fsleep(Delta::from_millis(10));
        }
        // It would use `sections` later.
        turn(sections, 0);
        Ok(false)
    }

    #[test]
    fn waits_for_the_section_of_another_cpu() -> Result {
        // It leaves the section, or is in the next one already.
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

        turn(&sections, SERIAL + 1);
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
        // These don't wait, or would never return.
        for id in 0..63 {
            table.retire(id);
        }
        let shared = table.clone();
        assert!(waits_for(&sections, SERIAL, move || shared.retire(63))?);
        Ok(())
    }

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
        sections.wait_awake();
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
