// SPDX-License-Identifier: GPL-2.0

//! Whether a network device became faster or slower.
//!
//! Not known in its notifier: that may run with the device's own lock held, which asking its driver
//! takes. So a work item asks afterwards.

use kernel::{
    impl_has_work, new_work,
    prelude::*,
    sync::Arc,
    workqueue::{Work, WorkItem},
};

use crate::link::Link;

/// Has users told if the speed of `link` has changed. Process context. Without memory they aren't told.
pub(crate) fn look_later(link: &Arc<Link>) {
    let look = pin_init!(Look {
        link: link.clone(),
        work <- new_work!("Look::work"),
    });
    if let Ok(look) = Arc::pin_init(look, GFP_KERNEL) {
        // It was just made, so it isn't queued.
        let _ = link.workers().faults.enqueue(look);
    }
}

/// A look at the speed of a link.
#[pin_data]
struct Look {
    link: Arc<Link>,
    #[pin]
    work: Work<Self>,
}

impl_has_work! { impl HasWork<Self> for Look { self.work } }

impl WorkItem for Look {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let speed = this.link.netdev().and_then(|netdev| netdev.speed());
        if this.link.note_speed(speed) {
            if let Some(device) = this.link.device().try_get() {
                device.speed_changed();
            }
        }
    }
}
