// SPDX-License-Identifier: GPL-2.0

//! The operations that ib_core calls (`struct ib_device_ops`), on top of a [`Provider`].
//!
//! Each operation is an `extern "C"` function. Most convert raw pointers to typed references, call
//! one safe method of the provider, and return an errno.

use pin_init::Zeroable;

use crate::{
    abi::{self, mmap},
    bindings::{self, ib_device_ops},
    device::{counter, gid_operations as gid, mad, operations as device, port, restrack, stats},
    memory::dm,
    provider::Provider,
    verbs::{
        ah, cq, flow::operations as flow, mcast, mr, mw, object::Object, pd, qp::operations as qp,
        srq, ucontext, xrcd,
    },
};

/// Returns the table of operations for devices of `P`.
pub(crate) fn table<P: Provider>() -> ib_device_ops {
    let mut table = ib_device_ops::zeroed();
    // SAFETY: `this_module()` has no requirements.
    table.owner = unsafe { bindings::this_module() };
    table.driver_id = abi::DRIVER_ID;
    table.uverbs_abi_ver = abi::VERSION;
    table.set_uverbs_robust_udata(1);
    fill_device::<P>(&mut table);
    fill_context::<P>(&mut table);
    fill_objects::<P>(&mut table);
    fill_management::<P>(&mut table);
    fill_sizes::<P>(&mut table);
    table
}

fn fill_device<P: Provider>(table: &mut ib_device_ops) {
    table.query_device = Some(device::query::<P>);
    table.modify_device = Some(device::modify::<P>);
    table.get_dev_fw_str = Some(device::firmware::<P>);
    table.enable_driver = Some(device::enable::<P>);
    table.dealloc_driver = Some(device::dealloc::<P>);
    table.query_port = Some(port::query::<P>);
    table.modify_port = Some(port::modify::<P>);
    table.get_port_immutable = Some(port::immutable::<P>);
    table.get_link_layer = Some(port::link_layer);
    table.get_netdev = Some(port::netdev::<P>);
    table.query_pkey = Some(port::pkey);
    table.add_gid = Some(gid::add::<P>);
    table.del_gid = Some(gid::del::<P>);
    table.alloc_hw_port_stats = Some(stats::alloc::<P>);
    table.get_hw_stats = Some(stats::get::<P>);
}

fn fill_context<P: Provider>(table: &mut ib_device_ops) {
    table.alloc_ucontext = Some(ucontext::alloc::<P>);
    table.dealloc_ucontext = Some(ucontext::dealloc::<P>);
    table.query_ucontext = Some(ucontext::query);
    table.disassociate_ucontext = Some(ucontext::disassociate);
    table.mmap = Some(mmap::mmap);
    table.mmap_free = Some(mmap::mmap_free);
    table.alloc_pd = Some(pd::alloc::<P>);
    table.dealloc_pd = Some(pd::dealloc::<P>);
    table.alloc_xrcd = Some(xrcd::alloc::<P>);
    table.dealloc_xrcd = Some(xrcd::dealloc::<P>);
    table.create_ah = Some(ah::create::<P>);
    table.create_user_ah = Some(ah::create_user::<P>);
    table.modify_ah = Some(ah::modify::<P>);
    table.query_ah = Some(ah::query::<P>);
    table.destroy_ah = Some(ah::destroy::<P>);
}

fn fill_objects<P: Provider>(table: &mut ib_device_ops) {
    table.create_user_cq = Some(cq::create_user::<P>);
    table.modify_cq = Some(cq::modify::<P>);
    table.resize_user_cq = Some(cq::resize_user::<P>);
    table.destroy_cq = Some(cq::destroy::<P>);
    table.req_notify_cq = Some(cq::req_notify::<P>);
    table.reg_user_mr = Some(mr::register::user::<P>);
    table.reg_user_mr_dmabuf = Some(mr::register::exported::<P>);
    table.alloc_dm = Some(dm::alloc::<P>);
    table.dealloc_dm = Some(dm::dealloc::<P>);
    table.reg_dm_mr = Some(mr::register::device::<P>);
    table.rereg_user_mr = Some(mr::rereg::<P>);
    table.advise_mr = Some(mr::advise::<P>);
    table.dereg_mr = Some(mr::dereg::<P>);
    table.create_srq = Some(srq::create::<P>);
    table.modify_srq = Some(srq::modify::<P>);
    table.query_srq = Some(srq::query::<P>);
    table.destroy_srq = Some(srq::destroy::<P>);
    table.alloc_mw = Some(mw::alloc::<P>);
    table.dealloc_mw = Some(mw::dealloc::<P>);
    table.create_qp = Some(qp::create::<P>);
    table.modify_qp = Some(qp::modify::<P>);
    table.query_qp = Some(qp::query::<P>);
    table.destroy_qp = Some(qp::destroy::<P>);
    table.post_send = Some(qp::post_send::<P>);
    table.attach_mcast = Some(mcast::attach::<P>);
    table.detach_mcast = Some(mcast::detach::<P>);
    table.create_flow = Some(flow::create::<P>);
    table.destroy_flow = Some(flow::destroy::<P>);
    fill_kernel::<P>(table);
}

/// Fills in the operations that serve in-kernel consumers only. ib_uverbs may call some for a
/// process's objects, and gets an error or no completions.
fn fill_kernel<P: Provider>(table: &mut ib_device_ops) {
    table.create_cq = Some(cq::create_kernel::<P>);
    table.poll_cq = Some(cq::poll::<P>);
    table.post_recv = Some(qp::post_recv::<P>);
    table.post_srq_recv = Some(srq::post_recv::<P>);
    table.get_dma_mr = Some(mr::get_dma::<P>);
    table.alloc_mr = Some(mr::alloc::<P>);
    table.map_mr_sg = Some(mr::map_sg::<P>);
}

fn fill_management<P: Provider>(table: &mut ib_device_ops) {
    // SAFETY: `device_group()` has no requirements.
    table.device_group = unsafe { bindings::device_group() };
    table.process_mad = Some(mad::process::<P>);
    table.query_port_speed = Some(port::speed::<P>);
    table.fill_res_qp_entry = Some(restrack::qp::<P>);
    table.fill_res_cq_entry = Some(restrack::cq::<P>);
    table.fill_res_srq_entry = Some(restrack::srq::<P>);
    table.fill_res_mr_entry = Some(restrack::mr::<P>);
    table.counter_init = Some(counter::init::<P>);
    table.counter_alloc_stats = Some(counter::alloc_stats::<P>);
    table.counter_bind_qp = Some(counter::bind_qp::<P>);
    table.counter_unbind_qp = Some(counter::unbind_qp::<P>);
    table.counter_dealloc = Some(counter::dealloc::<P>);
    table.counter_update_stats = Some(counter::update_stats::<P>);
}

fn fill_sizes<P: Provider>(table: &mut ib_device_ops) {
    table.size_ib_ucontext = ucontext::size::<P>();
    table.size_ib_pd = Object::<P, bindings::ib_pd>::SIZE;
    table.size_ib_xrcd = xrcd::size::<P>();
    table.size_ib_ah = Object::<P, bindings::ib_ah>::SIZE;
    table.size_ib_mw = Object::<P, bindings::ib_mw>::SIZE;
    table.size_ib_cq = cq::size::<P>();
    table.size_ib_srq = srq::size::<P>();
    table.size_ib_qp = qp::size::<P>();
    table.size_rdma_counter = counter::size::<P>();
}
