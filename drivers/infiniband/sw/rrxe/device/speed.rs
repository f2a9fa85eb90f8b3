// SPDX-License-Identifier: GPL-2.0

//! Detection of changes of the network device's speed.
//!
//! The netdev notifier can't ask for the speed: the notifier may run with the network device's own
//! lock held, which a query of the network driver takes (ethtool). So a work item asks afterwards.

use kernel::{sync::Arc, workqueue::WorkItem};

use crate::device::link::Link;

/// Queues the work item that tells users if the speed of `link` has changed. Any context.
///
/// A link has one such work item. So at most one thread asks for the speed of a network device,
/// however often that changes.
pub(crate) fn query_later(link: &Arc<Link>) {
    // If the item is queued already, it has not asked yet, so its query will see the change.
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
