// SPDX-License-Identifier: GPL-2.0

//! The provider: maps the operations that ib_core calls (`struct ib_device_ops`,
//! include/rdma/ib_verbs.h) to methods of the driver's objects.

use kernel::{prelude::*, sync::Arc};
use rdma::{
    abi::post::{RecvList, SendList},
    device::{
        attr::{DeviceAttributes, DeviceChange, PortAttributes, PortChange},
        gid::{Gid, GidNetdev},
        mad::PortCounters,
        restrack::DriverAttrs,
        stats::CounterName,
    },
    memory::{
        dm::{DeviceMemory, DmInit},
        fast_mr::{FastKind, FastMemory},
        odp::Fault,
    },
    net::netdev::Netdev,
    provider::Provider,
    support::error::unsupported,
    verbs::{
        av::Av,
        cq::{CqCreated, CqInit, Cqe, Moderation, NotifyWhen},
        mr::{Access, Advised, MrChange, MrKeys, UserRange},
        mw::MwKind,
        qp::{QpCreated, QpInit, QpModify, QpQuery},
        srq::{SrqAttr, SrqCreated, SrqInit, SrqModify, XrcInit},
        ucontext::{ContextCreated, ContextInit},
        udata::{RingChange, UserCall},
    },
};

use roce::{
    ids::{Lkey, Rkey},
    steering::Rule,
};

use crate::{
    device::{
        self,
        stats::{self, Counters},
        Device,
    },
    memory::{
        advise,
        mr::{self, Mr},
        mw::Mw,
    },
    qp::Qp,
    verbs::{
        ah::Ah,
        context::Context,
        cq::Cq,
        dm::Dm,
        flow::{self, Flow},
        mcast,
        pd::Pd,
        restrack,
        srq::Srq,
        xrcd::Xrcd,
    },
};

/// The driver's implementation of [`Provider`].
pub(crate) struct Rrxe;

#[vtable]
impl Provider for Rrxe {
    type Device = Device;
    type Context = Context;
    type Pd = Pd;
    type Xrcd = Xrcd;
    type Ah = Ah;
    type Cq = Cq;
    type Srq = Srq;
    type Qp = Qp;
    type Mr = Mr;
    type Dm = Dm;
    type Mw = Mw;
    type Flow = Flow;
    type CounterSet = Counters;

    const FIRMWARE: &'static CStr = device::VERSION_TEXT;
    const LOCAL_DMA_LKEY: Lkey = mr::LOCAL_DMA_LKEY;
    const COUNTERS: &'static [CounterName] = &stats::NAMES;

    fn query_device(device: &Arc<Device>) -> DeviceAttributes {
        device.attributes()
    }

    fn modify_device(device: &Arc<Device>, change: DeviceChange) {
        if let Some(guid) = change.sys_image_guid {
            device.set_sys_image_guid(guid);
        }
    }

    fn port_counters(device: &Arc<Device>) -> PortCounters {
        device.port_counters()
    }

    fn modify_port(device: &Arc<Device>, change: PortChange) {
        device.modify_port(change);
    }

    fn query_port(device: &Arc<Device>) -> PortAttributes {
        device.port()
    }

    fn netdev(device: &Arc<Device>) -> Option<Netdev> {
        device.link.netdev()
    }

    fn add_gid(device: &Arc<Device>, gid: Gid, netdev: GidNetdev<'_>) -> Result {
        device.link.add_gid(gid, netdev)
    }

    fn del_gid(device: &Arc<Device>, gid: Gid, netdev_index: u32) {
        device.link.remove_gid(gid, netdev_index);
        device.cm_queue.forget_address(gid);
    }

    fn counter(device: &Arc<Device>, index: usize) -> u64 {
        device.counter(index)
    }

    fn alloc_counter_set(device: &Arc<Device>) -> Result<(u32, Arc<Counters>)> {
        device.alloc_counter_set()
    }

    fn dealloc_counter_set(device: &Arc<Device>, id: u32) {
        device.dealloc_counter_set(id);
    }

    fn bind_to_set(qp: &Arc<Qp>, set: Arc<Counters>) -> Result {
        Qp::bind_to_set(qp, set)
    }

    fn unbind_from_set(qp: &Arc<Qp>) {
        Qp::unbind_from_set(qp);
    }

    fn set_counter(set: &Counters, index: usize) -> u64 {
        set.own_value(index)
    }

    fn qp_details(qp: &Arc<Qp>, details: &mut DriverAttrs<'_>) -> Result {
        restrack::qp(qp, details)
    }

    fn cq_details(cq: &Arc<Cq>, details: &mut DriverAttrs<'_>) -> Result {
        restrack::cq(cq, details)
    }

    fn srq_details(srq: &Arc<Srq>, details: &mut DriverAttrs<'_>) -> Result {
        restrack::srq(srq, details)
    }

    fn mr_details(mr: &Arc<Mr>, details: &mut DriverAttrs<'_>) -> Result {
        restrack::mr(mr, details)
    }

    fn enable(device: &Arc<Device>) {
        // Before it was enabled here, the device may have had users in another network namespace.
        // ib_core no longer answers their management datagrams.
        device.cm_queue.forget();
        device.link.context().cm_budget.forget(device.link.id());
        device.link.enable();
    }

    fn disable(device: &Arc<Device>) {
        device.link.close();
    }

    fn alloc_context(
        device: &Arc<Device>,
        init: ContextInit<'_>,
    ) -> Result<ContextCreated<Context>> {
        Context::create(device, init)
    }

    fn close_context(context: &Arc<Context>) {
        context.close();
    }

    fn alloc_pd(device: &Arc<Device>, context: Option<&Arc<Context>>) -> Result<Arc<Pd>> {
        let payer = context.map(|context| context.payer());
        Pd::create(device, payer, GFP_KERNEL_ACCOUNT)
    }

    fn alloc_xrcd(device: &Arc<Device>, context: &Arc<Context>, shared: bool) -> Result<Arc<Xrcd>> {
        if shared && !device.link.options().shares_xrcds {
            return Err(unsupported());
        }
        Xrcd::create(device, context.payer())
    }

    fn create_ah(pd: &Arc<Pd>, av: Av, user: bool) -> Result<Arc<Ah>> {
        Ah::create(pd, av, user)
    }

    fn ah_number(ah: &Ah) -> u32 {
        ah.number()
    }

    fn modify_ah(ah: &Ah, av: Av) {
        ah.modify(av);
    }

    fn query_ah(ah: &Ah) -> Av {
        ah.av()
    }

    fn destroy_ah(ah: &Arc<Ah>) {
        ah.destroy();
    }

    fn create_user_cq(
        device: &Arc<Device>,
        init: CqInit,
        call: &UserCall<'_, Self>,
    ) -> Result<CqCreated<Cq>> {
        Cq::create(device, init, call.context())
    }

    fn create_kernel_cq(device: &Arc<Device>, init: CqInit) -> Result<CqCreated<Cq>> {
        Cq::create_kernel(device, init)
    }

    fn poll_cq(cq: &Arc<Cq>) -> Option<Cqe> {
        cq.poll()
    }

    /// Makes ib_mad fetch one completion in each poll of a GSI QP's CQ. Then ib_mad has fetched no
    /// further completion when it sleeps in the handling of one, and the removal of the device
    /// waits for one such sleep only.
    fn polls_singly(cq: &Arc<Cq>) -> bool {
        cq.is_gsis()
    }

    fn resize_cq(cq: &Arc<Cq>, capacity: u32, call: &RingChange<'_, Self>) -> Result<u32> {
        cq.resize(capacity, call)
    }

    fn moderate_cq(cq: &Arc<Cq>, moderation: Moderation) {
        Cq::moderate(cq, moderation);
    }

    fn destroy_cq(cq: &Arc<Cq>) {
        cq.destroy();
    }

    fn req_notify_cq(cq: &Arc<Cq>, when: NotifyWhen, asks: bool) -> bool {
        Cq::req_notify(cq, when, asks)
    }

    fn alloc_dm(
        device: &Arc<Device>,
        context: &Arc<Context>,
        init: &DmInit<'_>,
    ) -> Result<Arc<Dm>> {
        Dm::alloc(device, context, init)
    }

    fn dm_memory(dm: &Dm) -> &DeviceMemory {
        dm.memory()
    }

    fn reg_user_mr(pd: &Arc<Pd>, range: &UserRange<'_>, access: Access) -> Result<Arc<Mr>> {
        pd.device().mrs.register(pd, range, access)
    }

    fn rereg_user_mr(
        device: &Arc<Device>,
        mr: &Arc<Mr>,
        change: MrChange<'_, Pd>,
    ) -> Result<Arc<Mr>> {
        device.mrs.reregister(&device.workqueues, mr, change)
    }

    fn get_dma_mr(pd: &Arc<Pd>, access: Access) -> Result<Arc<Mr>> {
        pd.device().mrs.register_kernel(pd, access)
    }

    fn alloc_mr(pd: &Arc<Pd>, kind: FastKind, max: u32) -> Result<Arc<Mr>> {
        pd.device().mrs.alloc_fast(pd, kind, max)
    }

    fn fast_memory(mr: &Mr) -> Option<&FastMemory> {
        mr.fast_memory()
    }

    fn advise_mr(pd: &Arc<Pd>, ranges: &[Advised], how: Fault, flush: bool) -> Result {
        advise::advise(pd, ranges, how, flush)
    }

    fn mr_keys(mr: &Mr) -> MrKeys {
        mr.keys()
    }

    fn dereg_mr(device: &Arc<Device>, mr: &Arc<Mr>) -> Result {
        device.mrs.deregister(mr)
    }

    fn abort_mr(device: &Arc<Device>, mr: &Arc<Mr>) {
        device.mrs.undo(mr);
    }

    fn alloc_mw(pd: &Arc<Pd>, kind: MwKind) -> Result<Arc<Mw>> {
        pd.device().mrs.windows.alloc(pd, kind)
    }

    fn mw_rkey(mw: &Mw) -> Rkey {
        mw.rkey()
    }

    fn dealloc_mw(device: &Arc<Device>, mw: &Arc<Mw>) {
        device.mrs.windows.dealloc(mw, &device.mrs);
    }

    fn create_user_srq(
        pd: &Arc<Pd>,
        init: SrqInit,
        xrc: Option<XrcInit<Self>>,
        call: &UserCall<'_, Self>,
    ) -> Result<SrqCreated<Srq>> {
        Srq::create(pd, init, xrc, Some(call.mmap_entries()))
    }

    fn create_kernel_srq(pd: &Arc<Pd>, init: SrqInit) -> Result<SrqCreated<Srq>> {
        Srq::create(pd, init, None, None)
    }

    fn post_srq_recv(srq: &Srq, requests: &mut RecvList<'_>) -> Result {
        srq.post_recv(requests)
    }

    fn modify_srq(
        srq: &Arc<Srq>,
        modify: &SrqModify,
        call: Option<&RingChange<'_, Self>>,
    ) -> Result {
        srq.modify(modify, call)
    }

    fn query_srq(srq: &Srq) -> Result<SrqAttr> {
        srq.query()
    }

    fn destroy_srq(srq: &Arc<Srq>) {
        srq.destroy();
    }

    fn create_user_qp(
        device: &Arc<Device>,
        init: QpInit<Self>,
        call: &UserCall<'_, Self>,
    ) -> Result<QpCreated<Qp>> {
        Qp::create(device, init, Some(call.context()))
    }

    fn create_kernel_qp(device: &Arc<Device>, init: QpInit<Self>) -> Result<QpCreated<Qp>> {
        Qp::create(device, init, None)
    }

    fn modify_qp(qp: &Arc<Qp>, change: &QpModify) -> Result {
        Qp::modify(qp, change)
    }

    fn query_qp(qp: &Arc<Qp>) -> Result<QpQuery> {
        Qp::query(qp)
    }

    fn destroy_qp(qp: &Arc<Qp>) {
        qp.destroy();
    }

    fn attach_mcast(qp: &Arc<Qp>, group: Gid) -> Result {
        mcast::attach(qp, group)
    }

    fn detach_mcast(qp: &Arc<Qp>, group: Gid) -> Result {
        mcast::detach(qp, group)
    }

    fn create_flow(qp: &Arc<Qp>, rule: Rule) -> Result<Arc<Flow>> {
        flow::create(qp, rule)
    }

    fn destroy_flow(flow: &Arc<Flow>) {
        flow::destroy(flow);
    }

    fn doorbell(qp: &Arc<Qp>) -> Result {
        Qp::doorbell(qp)
    }

    fn post_send(qp: &Arc<Qp>, requests: &mut SendList<'_, Self>) -> Result {
        Qp::post_send(qp, requests)
    }

    fn post_recv(qp: &Arc<Qp>, requests: &mut RecvList<'_>) -> Result {
        Qp::post_recv(qp, requests)
    }
}
