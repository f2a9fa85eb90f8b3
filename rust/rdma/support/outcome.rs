// SPDX-License-Identifier: GPL-2.0

//! The outcome of work that somebody waits for, but not at any price.

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

/// Between two looks at whether the wait goes on, in milliseconds.
const LOOK_MS: u32 = 50;

/// What became of a work item: the item tells it, another task waits for it. Each has a count of this, and nothing of the
/// other.
#[pin_data]
pub struct Outcome {
    #[pin]
    done: Opaque<core_bindings::completion>,
    /// Zero, or the negative errno.
    code: Atomic<i32>,
    awaited: Atomic<bool>,
}

// SAFETY: The completion locks, the rest is atomic.
unsafe impl Send for Outcome {}
// SAFETY: As above.
unsafe impl Sync for Outcome {}

impl Outcome {
    /// One that is to be told. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new() -> Result<Arc<Self>> {
        let outcome = pin_init!(Self {
            // SAFETY: `done` is valid for writes while the closure runs.
            done <- Opaque::ffi_init(|done| unsafe { core_bindings::init_completion(done) }),
            code: Atomic::new(0),
            awaited: Atomic::new(true),
        });
        Arc::pin_init(outcome, GFP_KERNEL_ACCOUNT)
    }

    /// Tells it, once. Any context.
    pub fn tell(&self, outcome: Result) {
        let code = outcome.map_or_else(|error| error.to_errno(), |()| 0);
        self.code.store(code, Release);
        // SAFETY: `done` was initialised when this was made.
        unsafe { core_bindings::complete_all(self.done.get()) };
    }

    /// Whether the task waits for it still. Any context.
    pub fn is_awaited(&self) -> bool {
        self.awaited.load(Relaxed)
    }

    /// Waits until it is told and returns it, and asks `goes_on` 20 times a second. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// The error that the other side tells; `EINTR` if the calling task was killed; `ERESTARTNOINTR` if the system goes to
    /// sleep; the errors of `goes_on`.
    pub fn wait(&self, goes_on: impl Fn() -> Result) -> Result {
        let waited = self.await_end(goes_on);
        self.awaited.store(false, Relaxed);
        waited?;
        kernel::error::to_result(self.code.load(Acquire))
    }

    fn await_end(&self, goes_on: impl Fn() -> Result) -> Result {
        let look = msecs_to_jiffies(LOOK_MS);
        loop {
            // SAFETY: `done` was initialised when this was made.
            let left = unsafe {
                core_bindings::wait_for_completion_killable_timeout(self.done.get(), look)
            };
            match left {
                0 => {
                    check_stays_awake()?;
                    goes_on()?;
                }
                1.. => return Ok(()),
                // It says ERESTARTSYS, and there is nobody who would.
                _ => return Err(EINTR),
            }
        }
    }
}

#[kunit_tests(rrxe_outcome)]
mod tests {
    use super::*;

    #[test]
    fn is_what_was_told() -> Result {
        let outcome = Outcome::new()?;
        outcome.tell(Ok(()));
        assert!(outcome.is_awaited());
        assert!(outcome.wait(|| Err(EIO)).is_ok());
        assert!(!outcome.is_awaited());
        let outcome = Outcome::new()?;
        outcome.tell(Err(EFAULT));
        assert!(outcome.wait(|| Ok(())).is_err_and(|error| error == EFAULT));
        Ok(())
    }

    #[test]
    fn is_given_up_when_the_wait_does_not_go_on() -> Result {
        let outcome = Outcome::new()?;
        assert!(outcome.wait(|| Err(EIO)).is_err_and(|error| error == EIO));
        assert!(!outcome.is_awaited());
        Ok(())
    }
}
