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
        let mut left = self.0.load(ordering::Relaxed);
        loop {
            let less = left.checked_sub(1).ok_or(ENOMEM)?;
            match self.0.cmpxchg(left, less, ordering::Relaxed) {
                Ok(_) => return Ok(Claim(self.clone())),
                Err(now) => left = now,
            }
        }
    }
}

/// One of a quota, given back when it is dropped.
pub(crate) struct Claim(Arc<Quota>);

impl Drop for Claim {
    fn drop(&mut self) {
        self.0 .0.fetch_add(1, ordering::Relaxed);
    }
}
