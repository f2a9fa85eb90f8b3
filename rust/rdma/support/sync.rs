// SPDX-License-Identifier: GPL-2.0

//! Locks of the data path, memory barriers, and waits for RCU readers and tasks.
//!
//! The data path runs in softirq, or in process context with bottom halves disabled. A lock of the
//! data path must be held with bottom halves disabled everywhere. Otherwise the softirq of a packet
//! that arrives on the CPU of the lock's holder would spin for ever.

use core::{
    marker::PhantomData,
    sync::atomic::{AtomicU32, Ordering},
};

use kernel::{
    bindings as core_bindings,
    error::code::ERESTARTNOINTR,
    ffi::{c_char, c_ulong},
    prelude::*,
    sync::{
        barrier::{smp_mb, Full},
        lock::{Backend, Guard, Lock},
    },
    types::NotThreadSafe,
};

use crate::bindings;

/// Exchanges the value of `word`, fully ordered, and returns the old value.
///
/// Other CPUs see the accesses before the exchange before those after it. Callable in any context.
/// The kernel's own fully ordered exchange does the same, but is a function call.
#[inline]
pub fn swap_fully_ordered(word: &AtomicU32, value: u32) -> u32 {
    // On x86 the exchange is a locked instruction, which is a full barrier. Elsewhere the exchange
    // does not order the accesses around it.
    if cfg!(target_arch = "x86_64") {
        return word.swap(value, Ordering::SeqCst);
    }
    smp_mb(Full);
    let before = word.swap(value, Ordering::SeqCst);
    smp_mb(Full);
    before
}

/// The functions that take and release a kernel spinlock, and disable bottom halves or interrupts
/// on this CPU while it is held.
pub trait SpinlockCalls {
    /// The state of the CPU before the lock was taken, which the release restores.
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
    /// The caller must hold `lock`, and `state` must come from the call that took it.
    unsafe fn unlock(lock: *mut core_bindings::spinlock_t, state: &Self::State);

    /// Takes the lock unless it is held.
    ///
    /// # Safety
    ///
    /// `lock` must be initialised.
    unsafe fn try_lock(lock: *mut core_bindings::spinlock_t) -> Option<Self::State>;
}

/// Backend for the kernel crate's [`Lock`]: a `spinlock_t` that the functions of `C` take and
/// release.
pub struct SpinlockBackend<C>(PhantomData<C>);

// SAFETY: The kernel's spinlock excludes all other holders. `relock` is the default implementation,
// which takes the lock in the same way as `lock`.
unsafe impl<C: SpinlockCalls> Backend for SpinlockBackend<C> {
    type State = core_bindings::spinlock_t;
    type GuardState = C::State;

    #[inline]
    unsafe fn init(
        ptr: *mut Self::State,
        name: *const c_char,
        key: *mut core_bindings::lock_class_key,
    ) {
        // SAFETY: The caller guarantees that `ptr` is valid for writes and that `name` and `key`
        // live for ever (see `Backend::init`).
        unsafe { core_bindings::__spin_lock_init(ptr, name, key) }
    }

    #[inline]
    unsafe fn lock(ptr: *mut Self::State) -> Self::GuardState {
        // SAFETY: The caller guarantees that `init` initialised `ptr` (see `Backend::lock`).
        unsafe { C::lock(ptr) }
    }

    #[inline]
    unsafe fn unlock(ptr: *mut Self::State, state: &Self::GuardState) {
        // SAFETY: The caller guarantees that it holds the lock, and that `state` comes from the
        // call that took it (see `Backend::unlock`).
        unsafe { C::unlock(ptr, state) }
    }

    #[inline]
    unsafe fn try_lock(ptr: *mut Self::State) -> Option<Self::GuardState> {
        // SAFETY: The caller guarantees that `init` initialised `ptr` (see `Backend::try_lock`).
        unsafe { C::try_lock(ptr) }
    }

    #[inline]
    unsafe fn assert_is_held(ptr: *mut Self::State) {
        // SAFETY: The caller guarantees that `init` initialised `ptr` (see
        // `Backend::assert_is_held`).
        unsafe { core_bindings::spin_assert_is_held(ptr) }
    }
}

/// A spinlock that is held with bottom halves disabled (`spin_lock_bh()`).
///
/// Can be taken in any context with interrupts enabled.
/// [`new_bh_spinlock!`](crate::new_bh_spinlock) creates its initialiser.
pub type BhSpinLock<T> = Lock<T, SpinlockBackend<BottomHalves>>;

/// The guard of a [`BhSpinLock`]. Bottom halves are disabled while it exists.
pub type BhSpinLockGuard<'a, T> = Guard<'a, T, SpinlockBackend<BottomHalves>>;

/// Creates a [`BhSpinLock`] initialiser with a lock class of its own.
///
/// The arguments are the protected value and the name of the class for lockdep.
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

/// The functions `spin_lock_bh()`, `spin_unlock_bh()` and `spin_trylock_bh()`.
pub struct BottomHalves;

impl SpinlockCalls for BottomHalves {
    type State = ();

    #[inline]
    unsafe fn lock(lock: *mut core_bindings::spinlock_t) {
        // SAFETY: The caller guarantees that `lock` is initialised (see `SpinlockCalls::lock`).
        unsafe { bindings::spin_lock_bh(lock.cast()) }
    }

    #[inline]
    unsafe fn unlock(lock: *mut core_bindings::spinlock_t, _state: &()) {
        // SAFETY: The caller guarantees that it holds the lock (see `SpinlockCalls::unlock`).
        unsafe { bindings::spin_unlock_bh(lock.cast()) }
    }

    #[inline]
    unsafe fn try_lock(lock: *mut core_bindings::spinlock_t) -> Option<()> {
        // SAFETY: The caller guarantees that `lock` is initialised (see `SpinlockCalls::try_lock`).
        let taken = unsafe { bindings::spin_trylock_bh(lock.cast()) };
        (taken != 0).then_some(())
    }
}

/// A spinlock that is held with interrupts disabled (`spin_lock_irqsave()`).
///
/// Can be taken in any context. It is for operations that in-kernel consumers may call with locks
/// of their own held and interrupts disabled, such as posting work requests and polling CQs.
/// [`new_irq_spinlock!`](crate::new_irq_spinlock) creates its initialiser.
pub type IrqSpinLock<T> = Lock<T, SpinlockBackend<Interrupts>>;

/// Creates an [`IrqSpinLock`] initialiser with a lock class of its own.
///
/// The arguments are those of [`new_bh_spinlock!`](crate::new_bh_spinlock).
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

/// The functions `spin_lock_irqsave()`, `spin_unlock_irqrestore()` and `spin_trylock_irqsave()`.
pub struct Interrupts;

impl SpinlockCalls for Interrupts {
    /// The interrupt flags from before the lock was taken.
    type State = c_ulong;

    #[inline]
    unsafe fn lock(lock: *mut core_bindings::spinlock_t) -> c_ulong {
        // SAFETY: The caller guarantees that `lock` is initialised (see `SpinlockCalls::lock`).
        unsafe { bindings::spin_lock_irqsave(lock.cast()) }
    }

    #[inline]
    unsafe fn unlock(lock: *mut core_bindings::spinlock_t, state: &c_ulong) {
        // SAFETY: The caller guarantees that it holds the lock, and that `state` comes from the
        // call that took it (see `SpinlockCalls::unlock`).
        unsafe { bindings::spin_unlock_irqrestore(lock.cast(), *state) }
    }

    #[inline]
    unsafe fn try_lock(lock: *mut core_bindings::spinlock_t) -> Option<c_ulong> {
        let mut state = 0;
        // SAFETY: The caller guarantees that `lock` is initialised (see `SpinlockCalls::try_lock`).
        let taken = unsafe { bindings::spin_trylock_irqsave(lock.cast(), &mut state) };
        (taken != 0).then_some(state)
    }
}

/// A guard that keeps bottom halves disabled on this CPU. [`bottom_halves_off`] creates it.
///
/// # Invariants
///
/// The guard owns one count of `local_bh_disable()` of its CPU. It cannot be sent to another
/// thread.
pub struct BottomHalvesOff(NotThreadSafe);

/// Disables bottom halves until the result is dropped (`local_bh_disable()`).
///
/// Callable in any context with interrupts enabled.
#[inline]
pub fn bottom_halves_off() -> BottomHalvesOff {
    // SAFETY: `local_bh_disable()` has no requirements.
    unsafe { bindings::local_bh_disable() };
    // INVARIANT: The call above took the count.
    BottomHalvesOff(NotThreadSafe)
}

impl Drop for BottomHalvesOff {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the guard owns one count of `local_bh_disable()`, which is
        // given up once, here.
        unsafe { bindings::local_bh_enable() };
    }
}

/// Yields the CPU if the scheduler has requested it (`cond_resched()`). Must be called in process
/// context; may sleep.
pub fn cond_resched() {
    // SAFETY: The function requires process context only. In another context it warns.
    unsafe { bindings::cond_resched() };
}

/// Checks that the calling task was not killed.
///
/// A task that was killed is expected to end its system call or its job (`user_thread.rs`) soon. A
/// work item is never killed. Must be called in process context.
///
/// # Errors
///
/// Returns `EINTR` if the task was killed.
pub fn check_not_killed() -> Result {
    // SAFETY: The function has no requirements. It reads the state of the current task.
    match unsafe { bindings::current_fatal_signal_pending() } {
        true => Err(EINTR),
        false => Ok(()),
    }
}

/// Checks that the calling thread of a process has no pending signal.
///
/// A thread of `user_thread.rs` takes signals between two jobs. The stop or the freeze of the
/// process, and the suspend of the system, wait until the thread has taken the signal. Must be
/// called in process context.
///
/// # Errors
///
/// Returns `EINTR` if the thread was killed; `ERESTARTNOINTR` if another signal is pending, so that
/// the job must continue later.
pub(crate) fn check_no_signal() -> Result {
    check_not_killed()?;
    // SAFETY: The function has no requirements. It reads the state of the current task.
    match unsafe { bindings::current_signal_pending() } {
        true => Err(ERESTARTNOINTR),
        false => Ok(()),
    }
}

/// Returns the error for a function that failed with `error`, and that fails with `EINTR` for any
/// signal.
///
/// This is the error of [`check_no_signal`] if `error` is `EINTR` and a signal is pending,
/// otherwise `error`. Must be called in process context.
pub(crate) fn signal_or(error: Error) -> Error {
    match check_no_signal() {
        Err(signal) if error == EINTR => signal,
        _ => error,
    }
}

/// Checks that the current task is not about to be frozen, as when the system goes to sleep.
///
/// The freezer waits for system calls to end. Must be called in process context.
///
/// # Errors
///
/// Returns `ERESTARTNOINTR` if the task is to be frozen and the freezer has signalled it
/// (`fake_signal_wake_up()`, kernel/freezer.c). The kernel restarts the system call when the task
/// is thawed. A system call that returned this error before the signal would not be restarted.
pub fn check_stays_awake() -> Result {
    // SAFETY: The functions have no requirements. They read the state of the current task.
    match unsafe { bindings::current_freezing() && bindings::current_signal_pending() } {
        true => Err(ERESTARTNOINTR),
        false => Ok(()),
    }
}

/// Waits until each RCU reader that runs now has left its read-side section
/// (`synchronize_rcu_expedited()`).
///
/// The wait is expedited, since system calls that destroy objects call this.
///
/// # Context
///
/// Process context; sleeps.
pub fn wait_for_readers() {
    // SAFETY: The function requires process context only. In another context it warns, and there is
    // no undefined behaviour.
    unsafe { bindings::synchronize_rcu_expedited() }
}

/// Waits until each task that is in the kernel now has left the kernel or has slept there
/// (`synchronize_rcu_tasks()`).
///
/// A task that is preempted in the kernel has done neither, so this waits for it.
///
/// # Context
///
/// Process context. Sleeps for about a tenth of a second, and until each task that was runnable has
/// had CPU time.
pub(crate) fn wait_for_tasks() {
    // SAFETY: The function requires process context only. In another context it warns, and there is
    // no undefined behaviour.
    unsafe { bindings::synchronize_rcu_tasks() }
}
