// SPDX-License-Identifier: GPL-2.0

//! Detection of changes of the network device's speed.
//!
//! The netdev notifier can't query the speed. The query (ethtool) takes the network device's own
//! lock, and the notifier may run with that lock held. So a work item queries the speed later.

use kernel::{sync::Arc, workqueue::WorkItem};

use crate::device::link::Link;

/// Queues the work item that queries the speed of `link`'s network device, and raises an event if
/// the speed has changed. Any context.
///
/// A link has one such work item. So at most one thread queries the speed of a network device,
/// however often the speed changes.
pub(crate) fn query_later(link: &Arc<Link>) {
    // If the item is queued already, its query is still to come, and will see the change.
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
