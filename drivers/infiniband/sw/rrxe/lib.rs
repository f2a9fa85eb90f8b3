// SPDX-License-Identifier: GPL-2.0

//! rrxe: a software RoCEv2 provider.
//!
//! [`provider`] answers ib_core, a file for each kind of object; [`link`] makes and unmakes devices.
//! A QP ([`qp`]) runs its engine when it has the turn ([`turn`]), against the surroundings that
//! [`engine_host`] gives it; [`rx`] and [`tx`] take packets in and out.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod ah;
mod cq;
mod details;
mod device;
mod engine;
mod engine_host;
mod fault;
mod limits;
mod link;
mod mcast;
mod mr;
mod mw;
mod netns;
mod noted_state;
mod path;
mod pd;
mod peer;
mod poster;
mod prefetch;
mod provider;
mod qp;
mod qp_cap;
mod quota;
mod raw;
mod recv_queue;
mod recv_ring;
mod right;
mod rx;
mod send_queue;
mod sge;
mod speed;
mod srq;
mod stats;
mod turn;
mod tx;
mod unplug;
mod wqe;
mod xrcd;

use kernel::{prelude::*, sync::Arc};
use rdma::workqueue::OwnedQueue;

use fault::Queues;
use link::Service;

module! {
    type: Module,
    name: "rrxe",
    authors: ["The rrxe authors"],
    description: "Software RoCEv2 provider",
    license: "GPL",
    alias: ["rdma-link-rrxe"],
    imports_ns: ["DMA_BUF"],
}

/// What `rdma link add … type` calls our devices.
const LINK_TYPE: &CStr = c"rrxe";

struct Module {
    service: Option<Service>,
    queues: Arc<Queues>,
}

impl kernel::Module for Module {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let queues = Queues {
            turns: OwnedQueue::new_bh(c"rrxe")?,
            faults: OwnedQueue::new_unbound(c"rrxe_faults")?,
        };
        let queues = Arc::new(queues, GFP_KERNEL)?;
        Ok(Self {
            service: Some(Service::start(LINK_TYPE, queues.clone())?),
            queues,
        })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        self.service = None;
        // Work that holds a destroyed QP may still be queued.
        self.queues.faults.flush();
        self.queues.turns.flush();
    }
}
