// SPDX-License-Identifier: GPL-2.0

//! Locks of the data path, and the end of RCU readers.
//!
//! The data path runs in softirq, or in process context with bottom halves disabled. A lock that
//! it takes must therefore keep bottom halves off wherever it is held, or a packet that arrives on
//! the same CPU would spin for ever.

use core::{
    marker::PhantomData,
    sync::atomic::{AtomicU32, Ordering},
};

use kernel::{
    bindings as core_bindings,
    error::code::ERESTARTNOINTR,
    ffi::{c_char, c_ulong},
    prelude::*,
    sync::lock::{Backend, Guard, Lock},
    types::NotThreadSafe,
};

use crate::bindings;

/// A full memory barrier between CPUs: accesses before it are seen before those after it. Any context.
///
/// The kernel crate has one as well, whose signature changed with Linux 7.3.
#[inline]
pub fn smp_mb() {
    // SAFETY: A barrier has no preconditions.
    unsafe { bindings::smp_mb() }
}

/// Exchanges the value of `word`: accesses before it are seen before those after it. Any context.
///
/// As the kernel's own fully ordered exchange, but inline: without a call.
#[inline]
pub fn swap_fully_ordered(word: &AtomicU32, value: u32) -> u32 {
    // A locked instruction is a full barrier; elsewhere the order of the exchange is that of itself only.
    if cfg!(target_arch = "x86_64") {
        return word.swap(value, Ordering::SeqCst);
    }
    smp_mb();
    let before = word.swap(value, Ordering::SeqCst);
    smp_mb();
    before
}

/// The calls that take and release a kernel spinlock, which disable something on this CPU while it is held.
pub trait SpinlockCalls {
    /// Keeps for the release in which state the CPU was.
    type State;

    /// Takes the lock.
    ///
    /// # Safety
    ///
    /// `lock` must be initialised.
    unsafe fn lock(lock: *mut core_bindings::spinlock_t) -> Self::State;

    /// Releases the lock.
    ///
    /// # Safety
    ///
    /// The caller must own `lock`, and have `state` from the call that took it.
    unsafe fn unlock(lock: *mut core_bindings::spinlock_t, state: &Self::State);

    /// Takes the lock unless it is held.
    ///
    /// # Safety
    ///
    /// `lock` must be initialised.
    unsafe fn try_lock(lock: *mut core_bindings::spinlock_t) -> Option<Self::State>;
}

/// The backend of a kernel [`Lock`] that is a spinlock, taken and released by the calls of `C`.
pub struct SpinlockBackend<C>(PhantomData<C>);

// SAFETY: The kernel's spinlock excludes all other owners; `relock` is the default one, which
// takes the lock in the same way as `lock`.
unsafe impl<C: SpinlockCalls> Backend for SpinlockBackend<C> {
    type State = core_bindings::spinlock_t;
    type GuardState = C::State;

    #[inline]
    unsafe fn init(
        ptr: *mut Self::State,
        name: *const c_char,
        key: *mut core_bindings::lock_class_key,
    ) {
        // SAFETY: The caller promises that `ptr` is valid for writes and that `name` and `key`
        // live for ever.
        unsafe { core_bindings::__spin_lock_init(ptr, name, key) }
    }

    #[inline]
    unsafe fn lock(ptr: *mut Self::State) -> Self::GuardState {
        // SAFETY: The caller promises that `ptr` was initialised by `init`.
        unsafe { C::lock(ptr) }
    }

    #[inline]
    unsafe fn unlock(ptr: *mut Self::State, state: &Self::GuardState) {
        // SAFETY: The caller promises that it owns the lock, and `state` is of the call that took it.
        unsafe { C::unlock(ptr, state) }
    }

    #[inline]
    unsafe fn try_lock(ptr: *mut Self::State) -> Option<Self::GuardState> {
        // SAFETY: The caller promises that `ptr` was initialised by `init`.
        unsafe { C::try_lock(ptr) }
    }

    #[inline]
    unsafe fn assert_is_held(ptr: *mut Self::State) {
        // SAFETY: The caller promises that `ptr` was initialised by `init`.
        unsafe { core_bindings::spin_assert_is_held(ptr) }
    }
}

/// A spinlock that is held with bottom halves disabled.
///
/// Any context except hard interrupts. Made with [`new_bh_spinlock!`](crate::new_bh_spinlock).
pub type BhSpinLock<T> = Lock<T, SpinlockBackend<BottomHalves>>;

/// The guard of a [`BhSpinLock`]; bottom halves are disabled while it lives.
pub type BhSpinLockGuard<'a, T> = Guard<'a, T, SpinlockBackend<BottomHalves>>;

/// Creates a [`BhSpinLock`] initialiser with a lock class of its own.
///
/// The arguments are the protected value and, for lockdep, the name of the class.
#[macro_export]
macro_rules! new_bh_spinlock {
    ($inner:expr $(, $name:literal)? $(,)?) => {
        $crate::support::sync::BhSpinLock::new(
            $inner,
            ::kernel::optional_name!($($name)?),
            ::kernel::static_lock_class!(),
        )
    };
}
pub use new_bh_spinlock;

/// `spin_lock_bh()` and its relatives.
pub struct BottomHalves;

impl SpinlockCalls for BottomHalves {
    type State = ();

    #[inline]
    unsafe fn lock(lock: *mut core_bindings::spinlock_t) {
        // SAFETY: The caller promises that `lock` was initialised.
        unsafe { bindings::spin_lock_bh(lock.cast()) }
    }

    #[inline]
    unsafe fn unlock(lock: *mut core_bindings::spinlock_t, _state: &()) {
        // SAFETY: The caller promises that it owns the lock.
        unsafe { bindings::spin_unlock_bh(lock.cast()) }
    }

    #[inline]
    unsafe fn try_lock(lock: *mut core_bindings::spinlock_t) -> Option<()> {
        // SAFETY: The caller promises that `lock` was initialised.
        let taken = unsafe { bindings::spin_trylock_bh(lock.cast()) };
        (taken != 0).then_some(())
    }
}

/// A spinlock that is held with interrupts disabled.
///
/// Any context. For what ib_core's users call with their own locks held and interrupts off, as they
/// may post and poll. Made with [`new_irq_spinlock!`](crate::new_irq_spinlock).
pub type IrqSpinLock<T> = Lock<T, SpinlockBackend<Interrupts>>;

/// Creates an [`IrqSpinLock`] initialiser with a lock class of its own; arguments as those of
/// [`new_bh_spinlock!`](crate::new_bh_spinlock).
#[macro_export]
macro_rules! new_irq_spinlock {
    ($inner:expr $(, $name:literal)? $(,)?) => {
        $crate::support::sync::IrqSpinLock::new(
            $inner,
            ::kernel::optional_name!($($name)?),
            ::kernel::static_lock_class!(),
        )
    };
}
pub use new_irq_spinlock;

/// `spin_lock_irqsave()` and its relatives.
pub struct Interrupts;

impl SpinlockCalls for Interrupts {
    /// Whether interrupts were enabled.
    type State = c_ulong;

    #[inline]
    unsafe fn lock(lock: *mut core_bindings::spinlock_t) -> c_ulong {
        // SAFETY: The caller promises that `lock` was initialised.
        unsafe { bindings::spin_lock_irqsave(lock.cast()) }
    }

    #[inline]
    unsafe fn unlock(lock: *mut core_bindings::spinlock_t, state: &c_ulong) {
        // SAFETY: The caller promises that it owns the lock, and `state` is of the call that took it.
        unsafe { bindings::spin_unlock_irqrestore(lock.cast(), *state) }
    }

    #[inline]
    unsafe fn try_lock(lock: *mut core_bindings::spinlock_t) -> Option<c_ulong> {
        let mut state = 0;
        // SAFETY: The caller promises that `lock` was initialised.
        let taken = unsafe { bindings::spin_trylock_irqsave(lock.cast(), &mut state) };
        (taken != 0).then_some(state)
    }
}

/// Keeps bottom halves off while it lives. Made by [`bottom_halves_off`].
///
/// # Invariants
///
/// Owns one count of `local_bh_disable()` of its CPU, from which it can't be sent away.
pub struct BottomHalvesOff(NotThreadSafe);

/// Keeps bottom halves off. Any context with interrupts enabled.
pub fn bottom_halves_off() -> BottomHalvesOff {
    // SAFETY: No requirements.
    unsafe { bindings::local_bh_disable() };
    // INVARIANT: The count was just taken.
    BottomHalvesOff(NotThreadSafe)
}

impl Drop for BottomHalvesOff {
    fn drop(&mut self) {
        // SAFETY: Gives up the count that the type invariant speaks of.
        unsafe { bindings::local_bh_enable() };
    }
}

/// Lets another task run if one should. Process context; may sleep.
pub fn cond_resched() {
    // SAFETY: No requirements but process context; a caller elsewhere gets a warning.
    unsafe { bindings::cond_resched() };
}

/// Checks that the calling task was not killed: one that was shall end its system call, or its job, soon. A work item never
/// is. Process context.
///
/// # Errors
///
/// `EINTR` if it was.
pub fn check_not_killed() -> Result {
    // SAFETY: No requirements.
    match unsafe { bindings::current_fatal_signal_pending() } {
        true => Err(EINTR),
        false => Ok(()),
    }
}

/// Checks that a thread of a process has no signal to take: it takes signals between two jobs, and a process that is stopped
/// or frozen, or a system that goes to sleep, waits for that. Process context.
///
/// # Errors
///
/// `EINTR` if it was killed; `ERESTARTNOINTR` if it is to go on later.
pub(crate) fn check_no_signal() -> Result {
    check_not_killed()?;
    // SAFETY: No requirements.
    match unsafe { bindings::current_signal_pending() } {
        true => Err(ERESTARTNOINTR),
        false => Ok(()),
    }
}

/// The error of a function that gives up with `EINTR` for any signal: that of [`check_no_signal`] if there is one. Process context.
pub(crate) fn signal_or(error: Error) -> Error {
    match check_no_signal() {
        Err(signal) if error == EINTR => signal,
        _ => error,
    }
}

/// Checks that the current task isn't to be frozen, as when the system goes to sleep: that waits for system calls. Process
/// context.
///
/// # Errors
///
/// `ERESTARTNOINTR` if it is, and was told so: the system call begins again when the task is thawed. Nothing would begin a
/// call again that ends before the task is told (`fake_signal_wake_up()`, kernel/freezer.c).
pub fn check_stays_awake() -> Result {
    // SAFETY: No requirements.
    match unsafe { bindings::current_freezing() && bindings::current_signal_pending() } {
        true => Err(ERESTARTNOINTR),
        false => Ok(()),
    }
}

/// Waits until every RCU reader that is running now has left its read-side section.
///
/// # Context
///
/// Process; sleeps. Expedited, because destroying objects is in somebody's system call.
pub fn wait_for_readers() {
    // SAFETY: No requirements but process context; a caller elsewhere gets a warning, not
    // undefined behaviour.
    unsafe { bindings::synchronize_rcu_expedited() }
}

/// Waits until every task that is in the kernel now has left it, or has slept there. A task that is preempted has done
/// neither.
///
/// # Context
///
/// Process; sleeps, for about a tenth of a second, and until each task that could run then has had CPU time.
pub(crate) fn wait_for_tasks() {
    // SAFETY: No requirements but process context; a caller elsewhere gets a warning, not
    // undefined behaviour.
    unsafe { bindings::synchronize_rcu_tasks() }
}
