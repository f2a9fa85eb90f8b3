// SPDX-License-Identifier: GPL-2.0

//! rrxe: a software RoCEv2 provider.
//!
//! [`provider`] answers ib_core, a file for each kind of object; [`link`] makes and unmakes devices.
//! A QP ([`qp`]) runs its engine when it has the turn ([`turn`]), against the surroundings that
//! [`engine_host`] gives it; [`rx`] and [`tx`] take packets in and out.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod device;
mod doorbells;
mod gsi;
mod limits;
mod memory;
mod net;
mod provider;
mod qp;
mod verbs;

use core::borrow::Borrow;

use kernel::{cpu::nr_cpu_ids, prelude::*, sync::Arc};

use device::{link::Service, workqueues::Workqueues};

module! {
    type: Module,
    name: "rrxe",
    authors: ["The rrxe authors"],
    description: "Software RoCEv2 provider",
    license: "GPL",
    alias: ["rdma-link-rrxe"],
    imports_ns: ["DMA_BUF"],
    params: {
        pollers: u32 {
            default: 0,
            description: "Pages of doorbells watched at a time; 0: half as many as possible CPUs, none with one",
        },
        poll_idle_us: u32 {
            default: 50,
            description: "Microseconds that a page is watched in vain; 0: never watch any",
        },
        softirq_percent: u32 {
            default: 75,
            description: "Percent of a CPU's time that softirqs spend on processes' QPs at most; threads do the rest; 100: no bound",
        },
        shared_xrcd: u32 {
            default: 0,
            description: "1: XRC domains of files, and QPs of other processes, can be opened; their number has no limit",
        },
    },
}

/// What `rdma link add … type` calls our devices.
const LINK_TYPE: &CStr = c"rrxe";

/// The value of a parameter: before Linux 7.3 one got a reference.
fn parameter(value: impl Borrow<u32>) -> u32 {
    *value.borrow()
}

struct Module {
    service: Option<Service>,
    workqueues: Arc<Workqueues>,
}

impl kernel::Module for Module {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let pollers = match parameter(module_parameters::pollers.value()) {
            // All that may ever be online: they come and go.
            0 => nr_cpu_ids() / 2,
            pollers => pollers,
        };
        let idle_limit = parameter(module_parameters::poll_idle_us.value());
        let shares_xrcds = parameter(module_parameters::shared_xrcd.value()) != 0;
        let softirq_percent = parameter(module_parameters::softirq_percent.value());
        let workqueues = Workqueues::new(pollers, idle_limit, softirq_percent)?;
        Ok(Self {
            service: Some(Service::start(LINK_TYPE, workqueues.clone(), shares_xrcds)?),
            workqueues,
        })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        self.service = None;
        // Work that holds a destroyed QP may still be queued.
        self.workqueues.flush();
    }
}
