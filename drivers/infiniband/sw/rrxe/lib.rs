// SPDX-License-Identifier: GPL-2.0

//! rrxe: a software RoCEv2 provider (an RDMA device over an Ethernet, loopback or raw IP network
//! device).
//!
//! [`provider`] implements the `ib_device_ops` that ib_core calls. [`verbs`] has a file for each
//! kind of verbs object, except for queue pairs ([`qp`]), memory regions and memory windows
//! ([`memory`]). [`device::link`] creates and destroys devices (`rdma link add`, `rdma link
//! delete`). A queue pair runs the protocol engine of the `roce` crate under a lock of its own, the
//! turn lock ([`qp::turn`]). [`qp::engine_host`] gives the engine access to the QP's rings, memory
//! and completion queues. [`net::rx`] receives packets, [`net::tx`] builds packets.

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

use kernel::{cpu::nr_cpu_ids, prelude::*, sync::Arc};

use rdma::net::skb::RecycledBuffers;

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
            description: "Largest number of doorbell pages polled at the same time; 0: half the number of possible CPUs",
        },
        poll_idle_us: u32 {
            default: 50,
            description: "Microseconds without a post after which a doorbell page is no longer polled; 0: no polling",
        },
        softirq_percent: u32 {
            default: 75,
            description: "Largest percentage of a CPU's time that softirqs spend on QPs of processes; threads do the remaining work; 100: no limit",
        },
        shared_xrcd: u32 {
            default: 0,
            description: "1: processes may share XRC domains by a file, and open QPs of other processes; ib_core does not limit how often",
        },
        burst_icrc: u32 {
            default: 0,
            description: "1: the ICRC of packets that are sent as one within the machine covers headers and payload; 0: headers only",
        },
        fill_gaps: u32 {
            default: 1,
            description: "1: between two rrxe hosts, only lost packets of SENDs, WRITEs and READs are sent again; 0: also all packets after a lost one",
        },
    },
}

/// Properties of all links, which module parameters set.
pub(crate) struct Options {
    /// Whether processes may share XRC domains and QPs of the devices.
    pub(crate) shares_xrcds: bool,
    /// Whether the ICRC of a burst covers the payload.
    pub(crate) burst_icrcs: bool,
    /// Whether QPs recover from losses as only rrxe hosts do.
    pub(crate) fills_gaps: bool,
}

/// Type of rrxe's devices in `rdma link add NAME type TYPE` (`struct rdma_link_ops`).
const LINK_TYPE: &CStr = c"rrxe";

/// The loaded module.
struct Module {
    /// Registrations of the module with the kernel: link type, notifiers, ib_client. Dropping them
    /// unregisters all devices. `None` while the module is removed.
    service: Option<Service>,
    /// Work queues that all devices share.
    workqueues: Arc<Workqueues>,
    /// Buffers for packets within a host. Freed last.
    _recycled_buffers: RecycledBuffers,
}

impl kernel::Module for Module {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let pollers = match module_parameters::pollers.value() {
            // Counts all possible CPUs, because CPUs may come online later.
            0 => nr_cpu_ids() / 2,
            pollers => pollers,
        };
        let idle_limit = module_parameters::poll_idle_us.value();
        let options = Options {
            shares_xrcds: module_parameters::shared_xrcd.value() != 0,
            burst_icrcs: module_parameters::burst_icrc.value() != 0,
            fills_gaps: module_parameters::fill_gaps.value() != 0,
        };
        let softirq_percent = module_parameters::softirq_percent.value();
        let workqueues = Workqueues::new(pollers, idle_limit, softirq_percent)?;
        Ok(Self {
            service: Some(Service::start(LINK_TYPE, workqueues.clone(), options)?),
            workqueues,
            _recycled_buffers: RecycledBuffers::new(),
        })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        self.service = None;
        // All devices are unregistered now. Work items that hold a reference to a destroyed QP may
        // still be queued.
        self.workqueues.flush();
    }
}
