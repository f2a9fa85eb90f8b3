// SPDX-License-Identifier: GPL-2.0

//! Limits on numbers of objects, calls or bytes.
//!
//! ib_core counts nothing against the limits that a device reports (`struct ib_device_attr`).

use kernel::{
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        Arc,
    },
};

/// The number of units that a limit leaves. All methods are callable in any context.
pub(crate) struct Remaining(Atomic<u32>);

impl Remaining {
    /// Creates a limit of `limit` units.
    pub(crate) fn new(limit: u32) -> Self {
        Self(Atomic::new(limit))
    }

    /// Takes `count` units. The caller returns them with [`Self::give_back`].
    ///
    /// # Errors
    ///
    /// Returns `ENOMEM` if fewer than `count` units are left.
    pub(crate) fn take(&self, count: u32) -> Result {
        let mut remaining = self.0.load(Relaxed);
        loop {
            let reduced = remaining.checked_sub(count).ok_or(ENOMEM)?;
            match self.0.cmpxchg(remaining, reduced, Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => remaining = now,
            }
        }
    }

    /// Returns `count` units that [`Self::take`] took.
    pub(crate) fn give_back(&self, count: u32) {
        self.0.fetch_add(count, Relaxed);
    }
}

/// A limit of a device, a user or a memory cgroup on a number of objects, calls or bytes.
pub struct Quota(Remaining);

impl Quota {
    /// Creates a quota of `limit` units. Must be called in process context.
    ///
    /// # Errors
    ///
    /// Returns `ENOMEM` if there is no memory.
    pub fn new(limit: u32) -> Result<Arc<Self>> {
        Ok(Arc::new(Self(Remaining::new(limit)), GFP_KERNEL_ACCOUNT)?)
    }

    /// Takes one unit of the quota until the returned [`Claim`] is dropped. Callable in any
    /// context.
    ///
    /// # Errors
    ///
    /// Returns `ENOMEM` if no unit is left.
    pub fn claim(self: &Arc<Self>) -> Result<Claim> {
        self.claim_many(1)
    }

    /// Takes `count` units of the quota until the returned [`Claim`] is dropped. Callable in any
    /// context.
    ///
    /// # Errors
    ///
    /// Returns `ENOMEM` if fewer than `count` units are left.
    pub fn claim_many(self: &Arc<Self>, count: u32) -> Result<Claim> {
        self.0.take(count)?;
        let quota = self.clone();
        Ok(Claim { quota, count })
    }
}

/// Units of a [`Quota`] that an object holds. Dropping the claim returns them. It may be dropped in
/// any context.
pub struct Claim {
    quota: Arc<Quota>,
    /// Number of units.
    count: u32,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.quota.0.give_back(self.count);
    }
}

/// The claims of one object on the quotas of its payer: of the memory cgroup, `None` if there is
/// none, and of the user.
pub type Claims = [Option<Claim>; 2];

#[kunit_tests(rrxe_quota)]
mod tests {
    use super::*;

    #[test]
    fn ends_at_its_limit() -> Result {
        let quota = Quota::new(2)?;
        let spent = || quota.claim().is_err_and(|error| error == ENOMEM);
        let first = quota.claim()?;
        let second = quota.claim()?;
        assert!(spent());
        assert!(spent());
        drop(first);
        let third = quota.claim()?;
        assert!(spent());
        drop((second, third));
        let _both = (quota.claim()?, quota.claim()?);
        assert!(spent());
        Ok(())
    }

    #[test]
    fn gives_back_all_of_a_claim() -> Result {
        let quota = Quota::new(9)?;
        let most = quota.claim_many(7)?;
        assert!(quota.claim_many(3).is_err_and(|error| error == ENOMEM));
        let rest = quota.claim_many(2)?;
        drop(most);
        assert!(quota.claim_many(8).is_err());
        let _most = quota.claim_many(7)?;
        drop(rest);
        assert!(quota.claim_many(2).is_ok());
        Ok(())
    }

    #[test]
    fn of_zero_units_has_none() -> Result {
        assert!(Quota::new(0)?.claim().is_err_and(|error| error == ENOMEM));
        Ok(())
    }
}
