// SPDX-License-Identifier: GPL-2.0

//! Whether a network device became faster or slower.
//!
//! Not known in its notifier: that may run with the device's own lock held, which asking its driver
//! takes. So a work item asks afterwards.

use kernel::{sync::Arc, workqueue::WorkItem};

use crate::device::link::Link;

/// Has users told if the speed of `link` has changed. Any context.
///
/// A link has one work item, so however often its network device changes, one thread at most looks at it.
pub(crate) fn look_later(link: &Arc<Link>) {
    // Already queued is as good: it has not looked yet.
    let _ = link.workqueues().faults.enqueue::<_, 0>(link.clone());
}

impl WorkItem for Link {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let speed = this.netdev().and_then(|netdev| netdev.speed());
        if this.note_speed(speed) {
            if let Some(device) = this.device().try_get() {
                device.speed_changed();
            }
        }
    }
}
