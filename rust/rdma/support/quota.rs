// SPDX-License-Identifier: GPL-2.0

//! How many objects of a kind there may be. ib_core counts nothing.

use kernel::{
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        Arc,
    },
};

/// How many more there may be. Any context.
pub(crate) struct Left(Atomic<u32>);

impl Left {
    pub(crate) fn new(limit: u32) -> Self {
        Self(Atomic::new(limit))
    }

    /// Takes so many, which the caller gives back.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there are fewer left.
    pub(crate) fn take(&self, count: u32) -> Result {
        let mut left = self.0.load(Relaxed);
        loop {
            let less = left.checked_sub(count).ok_or(ENOMEM)?;
            match self.0.cmpxchg(left, less, Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => left = now,
            }
        }
    }

    /// Gives so many back that were taken.
    pub(crate) fn give_back(&self, count: u32) {
        self.0.fetch_add(count, Relaxed);
    }
}

/// A limit to what isn't in a [`crate::support::table::Table`], which has its own.
pub struct Quota(Left);

impl Quota {
    /// A quota of `limit`. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(limit: u32) -> Result<Arc<Self>> {
        Ok(Arc::new(Self(Left::new(limit)), GFP_KERNEL_ACCOUNT)?)
    }

    /// Takes one of it. Any context.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there is none left.
    pub fn claim(self: &Arc<Self>) -> Result<Claim> {
        self.claim_many(1)
    }

    /// Takes so many of it. Any context.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there are fewer left.
    pub fn claim_many(self: &Arc<Self>, count: u32) -> Result<Claim> {
        self.0.take(count)?;
        let quota = self.clone();
        Ok(Claim { quota, count })
    }
}

/// A part of a quota, given back when it is dropped.
pub struct Claim {
    quota: Arc<Quota>,
    count: u32,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.quota.0.give_back(self.count);
    }
}

/// Parts of quotas that limit the same: of a memory cgroup, if it has any, and of a user.
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
    fn of_nothing_is_spent() -> Result {
        assert!(Quota::new(0)?.claim().is_err_and(|error| error == ENOMEM));
        Ok(())
    }
}
