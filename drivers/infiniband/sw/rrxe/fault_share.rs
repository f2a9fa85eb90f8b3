// SPDX-License-Identifier: GPL-2.0

//! How many threads the faults of one context may hold up.
//!
//! A fault lasts as long as it takes: a file system in user space, or a program that serves its memory by userfaultfd,
//! may never answer. All contexts share the threads of a work queue, so each may have only some of them. What it
//! wants beyond is left to another queue, where it competes with those alone that want too much, too.

use kernel::{
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        Arc,
    },
};

use crate::limits;

/// The faults of a context's QPs that are in the queue of all contexts.
pub(crate) struct Faults(Atomic<u32>);

impl Faults {
    /// Those of a context that has none yet. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Ok(Arc::new(Self(Atomic::new(0)), GFP_KERNEL_ACCOUNT)?)
    }

    fn take(&self) -> bool {
        let within = self.0.fetch_add(1, Relaxed) < limits::FAULTS;
        if !within {
            self.give_back();
        }
        within
    }

    fn give_back(&self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// What one QP, which has one fault at a time, has of the faults of its context.
pub(crate) struct FaultShare {
    /// `None` of the kernel's.
    of: Option<Arc<Faults>>,
    taken: Atomic<bool>,
}

impl FaultShare {
    /// That of a QP that has no fault.
    pub(crate) fn new(of: Option<Arc<Faults>>) -> Self {
        Self {
            of,
            taken: Atomic::new(false),
        }
    }

    /// A fault begins. Whether it may use the queue of all contexts. Any context.
    pub(crate) fn begin(&self) -> bool {
        let Some(faults) = &self.of else {
            return true;
        };
        let taken = faults.take();
        // The one before may still be going on, if the QP was reset meanwhile.
        if self.taken.xchg(taken, Relaxed) {
            faults.give_back();
        }
        taken
    }

    /// It has ended. Any context.
    pub(crate) fn end(&self) {
        if self.taken.xchg(false, Relaxed) {
            if let Some(faults) = &self.of {
                faults.give_back();
            }
        }
    }
}

#[kunit_tests(rrxe_fault_share)]
mod tests {
    use super::*;

    #[test]
    fn a_context_has_so_many_faults_and_no_more() -> Result {
        let faults = Faults::new()?;
        let mut shares = KVVec::new();
        for _ in 0..limits::FAULTS {
            shares.push(FaultShare::new(Some(faults.clone())), GFP_KERNEL)?;
        }
        let more = FaultShare::new(Some(faults.clone()));
        assert!(shares.iter().all(FaultShare::begin));
        assert!(!more.begin());
        more.end();
        assert!(!more.begin());
        if let Some(share) = shares.first() {
            share.end();
            share.end();
        }
        assert!(more.begin() && !more.begin() && more.begin());
        more.end();
        assert!(FaultShare::new(Some(Faults::new()?)).begin());
        assert!(FaultShare::new(None).begin());
        Ok(())
    }
}
