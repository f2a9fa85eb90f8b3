// SPDX-License-Identifier: GPL-2.0

//! The result of a work item, for a task that waits for it but may stop waiting.

use kernel::{
    bindings as core_bindings,
    prelude::*,
    sync::{
        atomic::{
            ordering::{Acquire, Relaxed, Release},
            Atomic,
        },
        Arc,
    },
    time::msecs_to_jiffies,
    types::Opaque,
};

use crate::support::sync::check_stays_awake;

/// Interval between two checks of whether the wait continues, in milliseconds.
const CHECK_MS: u32 = 50;

/// The result of a work item, shared by the work item and the task that waits for it.
///
/// The work item reports its result with [`Self::complete`], and the task waits in
/// [`Self::wait`]. Both hold a reference to the `Outcome` and none to each other, so either
/// may end first. Wraps `struct completion` (include/linux/completion.h).
#[pin_data]
pub struct Outcome {
    #[pin]
    done: Opaque<core_bindings::completion>,
    /// Result of the work item: zero, or a negative errno.
    code: Atomic<i32>,
    /// Whether the task has not returned from [`Self::wait`] yet.
    awaited: Atomic<bool>,
}

// SAFETY: The completion has a lock of its own, and the other fields are atomic.
unsafe impl Send for Outcome {}
// SAFETY: The completion has a lock of its own, and the other fields are atomic.
unsafe impl Sync for Outcome {}

impl Outcome {
    /// Creates an `Outcome` without a result. Must be called in process context.
    ///
    /// # Errors
    ///
    /// Returns `ENOMEM` if there is no memory.
    pub fn new() -> Result<Arc<Self>> {
        let outcome = pin_init!(Self {
            // SAFETY: `done` is valid for writes while the closure runs.
            done <- Opaque::ffi_init(|done| unsafe { core_bindings::init_completion(done) }),
            code: Atomic::new(0),
            awaited: Atomic::new(true),
        });
        Arc::pin_init(outcome, GFP_KERNEL_ACCOUNT)
    }

    /// Reports the result and wakes the task that waits. Callable in any context, once for each
    /// `Outcome`.
    pub fn complete(&self, outcome: Result) {
        let code = outcome.map_or_else(|error| error.to_errno(), |()| 0);
        self.code.store(code, Release);
        // SAFETY: `Self::new` initialised `done`.
        unsafe { core_bindings::complete_all(self.done.get()) };
    }

    /// Returns whether the task may still wait for the result: it has not returned from
    /// [`Self::wait`]. Callable in any context.
    pub fn has_waiter(&self) -> bool {
        self.awaited.load(Relaxed)
    }

    /// Waits until the result is reported, and returns it. Calls `may_continue` 20 times a second
    /// while it waits. Must be called in process context; sleeps.
    ///
    /// # Errors
    ///
    /// Returns the error that the work item reports; `EINTR` if the calling task was killed;
    /// `ERESTARTNOINTR` if the task is to be frozen, as when the system goes to sleep; the error of
    /// `may_continue`, which ends the wait.
    pub fn wait(&self, may_continue: impl Fn() -> Result) -> Result {
        let waited = self.wait_for_end(may_continue);
        self.awaited.store(false, Relaxed);
        waited?;
        kernel::error::to_result(self.code.load(Acquire))
    }

    /// Waits until the completion is done, for as long as `may_continue` and the state of the task
    /// allow.
    fn wait_for_end(&self, may_continue: impl Fn() -> Result) -> Result {
        let interval = msecs_to_jiffies(CHECK_MS);
        loop {
            // SAFETY: `Self::new` initialised `done`.
            let left = unsafe {
                core_bindings::wait_for_completion_killable_timeout(self.done.get(), interval)
            };
            match left {
                0 => {
                    check_stays_awake()?;
                    may_continue()?;
                }
                1.. => return Ok(()),
                // The kernel returns `-ERESTARTSYS`. The task was killed, so no code would restart
                // the system call.
                _ => return Err(EINTR),
            }
        }
    }
}

#[kunit_tests(rrxe_outcome)]
mod tests {
    use super::*;

    #[test]
    fn returns_the_reported_result() -> Result {
        let outcome = Outcome::new()?;
        outcome.complete(Ok(()));
        assert!(outcome.has_waiter());
        assert!(outcome.wait(|| Err(EIO)).is_ok());
        assert!(!outcome.has_waiter());
        let outcome = Outcome::new()?;
        outcome.complete(Err(EFAULT));
        assert!(outcome.wait(|| Ok(())).is_err_and(|error| error == EFAULT));
        Ok(())
    }

    #[test]
    fn is_not_awaited_after_the_wait_was_given_up() -> Result {
        let outcome = Outcome::new()?;
        assert!(outcome.wait(|| Err(EIO)).is_err_and(|error| error == EIO));
        assert!(!outcome.has_waiter());
        Ok(())
    }
}
