// SPDX-License-Identifier: GPL-2.0

//! The lock of a table's writers.
//!
//! The last packet of the QPs of a network namespace may be freed in softirq, after all RDMA links
//! of the namespace are gone. The free of the packet may drop the last reference to a table, and
//! `xa_destroy()` takes the table's lock. So bottom halves are disabled wherever such a lock is
//! held.

use kernel::{bindings, prelude::*};

use super::Table;
use crate::bindings::{
    xa_init_flags, xa_lock_bh, xa_unlock_bh, XA_FLAGS_ACCOUNT, XA_FLAGS_LOCK_BH,
};

/// Initialises the empty xarray of a table. The locks of all tables have one lockdep class.
///
/// # Safety
///
/// `xa` must be valid for writes.
pub(super) unsafe fn init(xa: *mut bindings::xarray) {
    let flags = bindings::XA_FLAGS_ALLOC | XA_FLAGS_ACCOUNT | XA_FLAGS_LOCK_BH;
    // SAFETY: The caller guarantees that `xa` is valid for writes (see `# Safety`).
    unsafe { xa_init_flags(xa.cast(), flags) };
}

impl<T: Send + Sync + 'static> Table<T> {
    /// Runs `f` on the xarray with its lock held and bottom halves disabled.
    ///
    /// `f` must not sleep. A function of the xarray that allocates memory may drop the lock
    /// meanwhile, but takes it again. Must be called in process context.
    pub(super) fn locked<R>(&self, f: impl FnOnce(*mut bindings::xarray) -> R) -> R {
        let xa = self.xa.get();
        // SAFETY: `xa` is initialised by the type invariant.
        unsafe { xa_lock_bh(xa.cast()) };
        let result = f(xa);
        // SAFETY: The lock was taken above.
        unsafe { xa_unlock_bh(xa.cast()) };
        result
    }
}

#[kunit_tests(rrxe_table_locked)]
mod tests {
    use super::*;
    use crate::support::{read_section::ReadSections, workqueue::OwnedQueue};
    use kernel::{
        impl_has_work, new_work,
        sync::Arc,
        workqueue::{Work, WorkItem},
    };

    /// A table that its work item drops.
    #[pin_data]
    struct Last {
        #[pin]
        table: Table<u32>,
        #[pin]
        work: Work<Self>,
    }

    impl_has_work! { impl HasWork<Self> for Last { self.work } }

    impl WorkItem for Last {
        type Pointer = Arc<Self>;

        fn run(this: Arc<Self>) {
            drop(this);
        }
    }

    /// Takes the lock in softirq, so that lockdep compares that with all writers.
    #[test]
    fn tables_are_dropped_in_softirq() -> Result {
        let readers = Arc::new(ReadSections::new()?, GFP_KERNEL)?;
        let last = Arc::pin_init(
            pin_init!(Last {
                table <- Table::new(100, &readers),
                work <- new_work!(),
            }),
            GFP_KERNEL,
        )?;
        for id in 0..70 {
            let object = Arc::new(id, GFP_KERNEL)?;
            last.table.reserve_exact(id)?.publish(object);
        }
        drop(last.table.replace(3, Arc::new(33, GFP_KERNEL)?)?);
        drop(last.table.remove(4));
        drop(last.table.reserve_exact(4)?);
        let queue = OwnedQueue::new_bh(c"rrxe_table_locked")?;
        assert!(queue.enqueue(last).is_ok());
        queue.flush();
        Ok(())
    }
}
