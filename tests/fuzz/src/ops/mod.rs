// SPDX-License-Identifier: GPL-2.0

//! The operations of attackers, with their weights.

pub mod completions;
pub mod device;
pub mod memory;
pub mod netlink;
pub mod noise;
pub mod queues;
pub mod regions;
pub mod rings;

use crate::thread::Thread;

/// The result of an operation: success or an errno.
pub type Done = Result<(), i32>;

/// An operation of attackers.
pub struct Operation {
    /// Name in the report.
    pub name: &'static str,
    /// Probability with which it is chosen, relative to the other operations.
    pub weight: u64,
    /// Function that makes the operation once.
    pub make: fn(&mut Thread<'_>) -> Done,
}

const fn operation(
    name: &'static str,
    weight: u64,
    make: fn(&mut Thread<'_>) -> Done,
) -> Operation {
    Operation { name, weight, make }
}

/// Index of the operation that each attacker begins with.
pub const SETUP: usize = 0;

/// All operations. Those of weight zero are made only by attackers with a focus
/// ([`crate::profile::Focus`]).
pub const OPERATIONS: &[Operation] = &[
    operation("setup", 2, queues::setup),
    operation("open", 1, device::open),
    operation("close", 1, device::close),
    operation("dup", 1, device::dup),
    operation("query_device", 1, device::query_device),
    operation("query_ioctl", 3, device::query_ioctl),
    operation("events", 4, device::events),
    operation("alloc_pd", 4, device::alloc_pd),
    operation("dealloc_pd", 2, device::dealloc_pd),
    operation("create_ah", 5, device::create_ah),
    operation("destroy_ah", 4, device::destroy_ah),
    operation("open_xrcd", 2, device::open_xrcd),
    operation("close_xrcd", 2, device::close_xrcd),
    operation("create_flow", 5, device::create_flow),
    operation("destroy_flow", 3, device::destroy_flow),
    operation("alloc_dm", 4, device::alloc_dm),
    operation("free_dm", 3, device::free_dm),
    operation("map_dm", 3, device::map_dm),
    operation("counters", 3, device::counters),
    operation("reg_mr", 20, regions::reg_mr),
    operation("reg_mr_ioctl", 5, regions::reg_mr_ioctl),
    operation("reg_dm_mr", 4, regions::reg_dm_mr),
    operation("reg_dmabuf_mr", 4, regions::reg_dmabuf_mr),
    operation("rereg_mr", 10, regions::rereg_mr),
    operation("rereg_often", 1, regions::rereg_often),
    operation("dereg_mr", 10, regions::dereg_mr),
    operation("query_mr", 2, regions::query_mr),
    operation("advise_mr", 6, regions::advise_mr),
    operation("alloc_mw", 4, regions::alloc_mw),
    operation("dealloc_mw", 3, regions::dealloc_mw),
    operation("create_channel", 2, completions::create_channel),
    operation("create_cq", 6, completions::create_cq),
    operation("create_cq_ex", 3, completions::create_cq_ex),
    operation("resize_cq", 6, completions::resize_cq),
    operation("resize_long_cq", 0, completions::resize_long_cq),
    operation("destroy_cq", 4, completions::destroy_cq),
    operation("poll_cq", 4, completions::poll_cq),
    operation("notify_cq", 10, completions::notify_cq),
    operation("modify_cq", 5, completions::modify_cq),
    operation("brief_cq", 3, completions::brief_cq),
    operation("create_srq", 4, queues::create_srq),
    operation("modify_srq", 4, queues::modify_srq),
    operation("query_srq", 1, queues::query_srq),
    operation("destroy_srq", 2, queues::destroy_srq),
    operation("create_qp", 8, queues::create_qp),
    operation("open_qp", 2, queues::open_qp),
    operation("connect_qp", 16, queues::connect_qp),
    operation("modify_qp", 10, queues::modify_qp),
    operation("query_qp", 4, queues::query_qp),
    operation("destroy_qp", 6, queues::destroy_qp),
    operation("mcast", 5, queues::mcast),
    operation("post_send", 150, rings::post_send),
    operation("post_recv", 60, rings::post_recv),
    operation("post_srq", 20, rings::post_srq),
    operation("ring_call", 30, rings::ring_call),
    operation("ring_bell", 20, rings::ring_bell),
    operation("ring_often", 6, rings::ring_often),
    operation("consume", 40, rings::consume),
    operation("scribble", 20, rings::scribble),
    operation("scribble_page", 8, rings::scribble_page),
    operation("flip", 20, rings::flip),
    operation("flip_long", 0, rings::flip_long),
    operation("unmap_ring", 2, rings::unmap_ring),
    operation("map_anything", 2, rings::map_anything),
    operation("map_plain", 6, memory::map_plain),
    operation("map_file", 6, memory::map_file),
    operation("map_secret", 3, memory::map_secret),
    operation("map_ring_copy", 2, memory::map_ring_copy),
    operation("brief_mr", 8, memory::brief_mr),
    operation("protect", 6, memory::protect),
    operation("advise", 10, memory::advise),
    operation("truncate", 4, memory::truncate),
    operation("punch", 4, memory::punch),
    operation("touch", 12, memory::touch),
    operation("remap", 3, memory::remap),
    operation("fork", 2, memory::fork),
    operation("dump", 8, netlink::dump),
    operation("dump_mr", 2, netlink::dump_mr),
    operation("get", 4, netlink::get),
    operation("noise_command", 4, noise::command),
    operation("noise_extended", 3, noise::extended),
    operation("noise_ioctl", 8, noise::ioctl),
    operation("noise_sysfs", 2, noise::sysfs),
    operation("sleep", 10, noise::sleep),
];

/// Names of all operations.
pub fn names() -> Vec<&'static str> {
    OPERATIONS.iter().map(|operation| operation.name).collect()
}
