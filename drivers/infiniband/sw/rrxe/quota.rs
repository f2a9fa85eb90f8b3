// SPDX-License-Identifier: GPL-2.0

//! How many objects of a kind a device may have. What has a number in a [`rdma::table::Table`] is
//! bounded by that; this is for the rest. ib_core counts nothing.

use kernel::{
    prelude::*,
    sync::{
        atomic::{ordering, Atomic},
        Arc,
    },
};

/// What may still be made. Any context.
pub(crate) struct Quota(Atomic<u32>);

impl Quota {
    /// A quota of `limit`. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(limit: u32) -> Result<Arc<Self>> {
        Ok(Arc::new(Self(Atomic::new(limit)), GFP_KERNEL)?)
    }

    /// Takes one of it.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there is none left.
    pub(crate) fn claim(self: &Arc<Self>) -> Result<Claim> {
        self.claim_many(1)
    }

    /// Takes so many of it.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there are fewer left.
    pub(crate) fn claim_many(self: &Arc<Self>, count: u32) -> Result<Claim> {
        let mut left = self.0.load(ordering::Relaxed);
        loop {
            let less = left.checked_sub(count).ok_or(ENOMEM)?;
            match self.0.cmpxchg(left, less, ordering::Relaxed) {
                Ok(_) => {
                    let quota = self.clone();
                    return Ok(Claim { quota, count });
                }
                Err(now) => left = now,
            }
        }
    }
}

/// A part of a quota, given back when it is dropped.
pub(crate) struct Claim {
    quota: Arc<Quota>,
    count: u32,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.quota.0.fetch_add(self.count, ordering::Relaxed);
    }
}
