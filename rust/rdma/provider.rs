// SPDX-License-Identifier: GPL-2.0

//! What a driver implements to be an RDMA provider.
//!
//! [`Provider`] mirrors `struct ib_device_ops`: one method for each operation, with typed arguments
//! and results. A method that the driver leaves out becomes an absent operation. The thunks in
//! [`crate::ops`] translate between the two.
//!
//! # Context
//!
//! Unless a method says otherwise it runs in process context and may sleep. ib_core may call several
//! operations on one object at a time, such as `modify_*` twice, or `rereg_user_mr` and `mr_details`; the
//! creation and the destruction of an object run alone.
//!
//! # Objects
//!
//! ib_core's objects hold the driver's by counted reference. A `destroy_*` method makes the object
//! inert (unpublished, nothing in flight that could name it); the reference is dropped after it.
//! Later packets, timers and work items may still hold the object, but find it dead.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use roce::{
    ids::{Lkey, Rkey},
    steering::Rule,
};

use crate::{
    abi::post::{RecvList, SendList},
    device::{
        attr::{DeviceAttributes, DeviceChange, PortAttributes, PortChange},
        gid::{Gid, GidPlace},
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

/// A driver. See the module's documentation.
#[vtable]
pub trait Provider: Sized + Send + Sync + 'static {
    /// A device.
    type Device: Send + Sync;
    /// What a process has of a device that it opened.
    type Context: Send + Sync;
    /// A protection domain.
    type Pd: Send + Sync;
    /// An XRC domain.
    type Xrcd: Send + Sync;
    /// An address handle.
    type Ah: Send + Sync;
    /// A completion queue.
    type Cq: Send + Sync;
    /// A shared receive queue.
    type Srq: Send + Sync;
    /// A queue pair.
    type Qp: Send + Sync;
    /// A memory region.
    type Mr: Send + Sync;
    /// Device memory.
    type Dm: Send + Sync;
    /// A memory window.
    type Mw: Send + Sync;
    /// A rule by which a QP gets frames.
    type Flow: Send + Sync;
    /// Counters that QPs are bound to.
    type CounterSet: Send + Sync;

    /// Version of the driver's firmware as shown to users: the module's own.
    const FIRMWARE: &'static CStr;
    /// The key of all memory, for the kernel's own requests.
    const LOCAL_DMA_LKEY: Lkey;
    /// The names of a port's counters, in the order of [`Self::counter`].
    const COUNTERS: &'static [CounterName];

    /// What the device can do.
    fn query_device(device: &Arc<Self::Device>) -> DeviceAttributes;

    /// Changes what a subnet manager may change.
    fn modify_device(device: &Arc<Self::Device>, change: DeviceChange);

    /// The port's counters of performance management.
    fn port_counters(device: &Arc<Self::Device>) -> PortCounters;

    /// Changes what managers may change about the port.
    fn modify_port(device: &Arc<Self::Device>, change: PortChange);

    /// The state of the port. It can't fail: ib_core does not end all of what it has begun for a device if this fails during
    /// the registration (`ib_cache_setup_one()`, drivers/infiniband/core/cache.c).
    fn query_port(device: &Arc<Self::Device>) -> PortAttributes;

    /// The network device under the port; none once it unregisters. Any context.
    fn netdev(device: &Arc<Self::Device>) -> Option<Netdev>;

    /// The port has this RoCEv2 address from now on. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, or the reason for which the provider refuses the address: then it hasn't.
    fn add_gid(device: &Arc<Self::Device>, gid: Gid, place: GidPlace<'_>) -> Result;

    /// Undoes one [`Self::add_gid`], with that network device. Process context.
    fn del_gid(device: &Arc<Self::Device>, gid: Gid, netdev_index: u32);

    /// The value of counter `index` of [`Self::COUNTERS`].
    fn counter(device: &Arc<Self::Device>, index: usize) -> u64;

    /// Makes a counter set, all zero, and its number: unique on the device, not zero.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn alloc_counter_set(device: &Arc<Self::Device>) -> Result<(u32, Arc<Self::CounterSet>)>;

    /// Gives back the number of a counter set that no QP is bound to any more.
    fn dealloc_counter_set(device: &Arc<Self::Device>, id: u32);

    /// From now on the queue pair counts into this set.
    ///
    /// # Errors
    ///
    /// `EBUSY` if it is bound to a set, `EINVAL` once destroyed.
    fn bind_to_set(qp: &Arc<Self::Qp>, set: Arc<Self::CounterSet>) -> Result;

    /// From now on the queue pair counts into its port's counters.
    fn unbind_from_set(qp: &Arc<Self::Qp>);

    /// The value of counter `index` of [`Self::COUNTERS`] in a set.
    fn set_counter(set: &Self::CounterSet, index: usize) -> u64;

    /// What users may know of a queue pair.
    ///
    /// # Errors
    ///
    /// Those of [`DriverAttrs`]; `EINVAL` once destroyed.
    fn qp_details(qp: &Arc<Self::Qp>, details: &mut DriverAttrs<'_>) -> Result;

    /// What users may know of a completion queue.
    ///
    /// # Errors
    ///
    /// Those of [`DriverAttrs`].
    fn cq_details(cq: &Arc<Self::Cq>, details: &mut DriverAttrs<'_>) -> Result;

    /// What users may know of a shared receive queue.
    ///
    /// # Errors
    ///
    /// Those of [`DriverAttrs`]; `EINVAL` once destroyed.
    fn srq_details(srq: &Arc<Self::Srq>, details: &mut DriverAttrs<'_>) -> Result;

    /// What users may know of a memory region. Must not sleep.
    ///
    /// # Errors
    ///
    /// Those of [`DriverAttrs`].
    fn mr_details(mr: &Arc<Self::Mr>, details: &mut DriverAttrs<'_>) -> Result;

    /// ib_core is about to give the device to its users, perhaps again: in another namespace.
    /// Process context.
    fn enable(device: &Arc<Self::Device>);

    /// The device is unregistered: no operation is called any more.
    fn disable(device: &Arc<Self::Device>);

    /// Makes a process's context.
    ///
    /// # Errors
    ///
    /// Any.
    fn alloc_context(
        device: &Arc<Self::Device>,
        init: ContextInit<'_>,
    ) -> Result<ContextCreated<Self::Context>>;

    /// Makes a process's context inert. Its objects are gone.
    fn close_context(context: &Arc<Self::Context>);

    /// Makes a protection domain, for the process of `context`, or for the kernel.
    ///
    /// # Errors
    ///
    /// Any.
    fn alloc_pd(
        device: &Arc<Self::Device>,
        context: Option<&Arc<Self::Context>>,
    ) -> Result<Arc<Self::Pd>>;

    /// Makes an XRC domain for the process of `context`; a `shared` one is found by other processes that name its file.
    /// ib_core limits the number of their handles by the `rdma` cgroup alone, and counts their memory for nobody
    /// (`ib_uverbs_open_xrcd()`, uverbs_cmd.c).
    ///
    /// # Errors
    ///
    /// Any.
    fn alloc_xrcd(
        device: &Arc<Self::Device>,
        context: &Arc<Self::Context>,
        shared: bool,
    ) -> Result<Arc<Self::Xrcd>>;

    /// Makes an address handle, for a process if `user` is set.
    ///
    /// # Context
    ///
    /// A process's may sleep; the kernel's must not.
    ///
    /// # Errors
    ///
    /// Any.
    fn create_ah(pd: &Arc<Self::Pd>, av: Av, user: bool) -> Result<Arc<Self::Ah>>;

    /// The number under which a process names the address handle in its work requests.
    fn ah_number(ah: &Self::Ah) -> u32;

    /// Replaces the address.
    fn modify_ah(ah: &Self::Ah, av: Av);

    /// The address.
    fn query_ah(ah: &Self::Ah) -> Av;

    /// Makes an address handle inert. Must not sleep if it is the kernel's.
    fn destroy_ah(ah: &Arc<Self::Ah>);

    /// Makes a completion queue for a process.
    ///
    /// # Errors
    ///
    /// `EINVAL` for more entries than the device's limit, `ENOMEM`.
    fn create_user_cq(
        device: &Arc<Self::Device>,
        init: CqInit,
        call: &UserCall<'_, Self>,
    ) -> Result<CqCreated<Self::Cq>>;

    /// Makes a completion queue for the kernel.
    ///
    /// # Errors
    ///
    /// `EINVAL` for more entries than the device's limit, `ENOMEM`.
    fn create_kernel_cq(device: &Arc<Self::Device>, init: CqInit) -> Result<CqCreated<Self::Cq>>;

    /// The oldest completion that nobody has fetched, of a queue of the kernel. Any context.
    fn poll_cq(cq: &Arc<Self::Cq>) -> Option<Cqe>;

    /// Whether a poll of a queue of the kernel fetches one completion at most, however many the caller has room for. Any
    /// context.
    fn polls_singly(cq: &Arc<Self::Cq>) -> bool;

    /// Gives a process's completion queue room for at least `capacity` entries, and returns for how
    /// many. What is in it stays. The new ring is announced to `call`.
    ///
    /// # Errors
    ///
    /// `EINVAL` for more entries than the device's limit or fewer than are there, `ENOMEM`, `EFAULT`, `EBUSY`, `EIO`.
    fn resize_cq(cq: &Arc<Self::Cq>, capacity: u32, call: &RingChange<'_, Self>) -> Result<u32>;

    /// Moderates a completion queue's notifications from now on. Process context.
    fn moderate_cq(cq: &Arc<Self::Cq>, moderation: Moderation);

    /// Makes a completion queue inert.
    fn destroy_cq(cq: &Arc<Self::Cq>);

    /// Asks for an upcall when the next completion comes, or soon if there are completions that no upcall has
    /// told of. Returns whether there are completions that nobody has fetched; a caller that `asks` for this
    /// polls them, so that they bring about no upcall. Any context.
    fn req_notify_cq(cq: &Arc<Self::Cq>, when: NotifyWhen, asks: bool) -> bool;

    /// Allocates device memory for the process of `context`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, also beyond the provider's limits, and those of [`DeviceMemory::new`].
    fn alloc_dm(
        device: &Arc<Self::Device>,
        context: &Arc<Self::Context>,
        init: &DmInit<'_>,
    ) -> Result<Arc<Self::Dm>>;

    /// The memory itself.
    fn dm_memory(dm: &Self::Dm) -> &DeviceMemory;

    /// Registers memory of a process, or what it has of a driver's or the device's, with consistent rights.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, and those of [`UserRange::take`].
    fn reg_user_mr(
        pd: &Arc<Self::Pd>,
        range: &UserRange<'_>,
        access: Access,
    ) -> Result<Arc<Self::Mr>>;

    /// Changes a region and returns what takes its place: a changed one, or the same. The keys stay.
    /// On error nothing has changed.
    ///
    /// # Errors
    ///
    /// `EINVAL` while memory windows are bound to it, `EOPNOTSUPP` for what can't be changed, and
    /// those of [`UserRange::take`].
    fn rereg_user_mr(
        device: &Arc<Self::Device>,
        mr: &Arc<Self::Mr>,
        change: MrChange<'_, Self::Pd>,
    ) -> Result<Arc<Self::Mr>>;

    /// Makes a region of all of the kernel's memory: addresses are the kernel's own.
    ///
    /// # Errors
    ///
    /// `EINVAL` for inconsistent rights, `ENOMEM`.
    fn get_dma_mr(pd: &Arc<Self::Pd>, access: Access) -> Result<Arc<Self::Mr>>;

    /// Makes a region that work requests register and invalidate, of at most `max` pages or pieces.
    ///
    /// # Errors
    ///
    /// `EINVAL` for more than the device's limit, `ENOMEM`.
    fn alloc_mr(pd: &Arc<Self::Pd>, kind: FastKind, max: u32) -> Result<Arc<Self::Mr>>;

    /// The memory of a region that [`Self::alloc_mr`] made; none of others.
    fn fast_memory(mr: &Self::Mr) -> Option<&FastMemory>;

    /// Has memory of on-demand regions resident, for a time; `wait` until it is, or has failed.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a key that isn't such a region's in the domain, `EPERM` for a right that it hasn't,
    /// `EFAULT` for a range beyond it and for what isn't there; `EINTR`, `EIO`, `ENODEV`, `ENOMEM`.
    fn advise_mr(pd: &Arc<Self::Pd>, ranges: &[Advised], how: Fault, wait: bool) -> Result;

    /// The keys of a region.
    fn mr_keys(mr: &Self::Mr) -> MrKeys;

    /// Takes the memory away: after the return nobody accesses it through this region.
    ///
    /// # Errors
    ///
    /// `EINVAL` while memory windows are bound to it.
    fn dereg_mr(device: &Arc<Self::Device>, mr: &Arc<Self::Mr>) -> Result;

    /// As [`Self::dereg_mr`], for a region whose registration is undone. It can't fail: uverbs would
    /// warn. The process may know the key and have bound windows; they lose what they were bound to.
    fn undo_mr(device: &Arc<Self::Device>, mr: &Arc<Self::Mr>);

    /// Makes a shared receive queue for a process, of an XRC domain if `xrc` is given.
    ///
    /// # Errors
    ///
    /// `EINVAL` for capacities beyond the device's, `ENOMEM`.
    fn create_user_srq(
        pd: &Arc<Self::Pd>,
        init: SrqInit,
        xrc: Option<XrcInit<Self>>,
        call: &UserCall<'_, Self>,
    ) -> Result<SrqCreated<Self::Srq>>;

    /// Makes a shared receive queue for the kernel.
    ///
    /// # Errors
    ///
    /// As for [`Self::create_user_srq`].
    fn create_kernel_srq(pd: &Arc<Self::Pd>, init: SrqInit) -> Result<SrqCreated<Self::Srq>>;

    /// Posts receives of the kernel, up to the first that can't be posted. Any context.
    ///
    /// # Errors
    ///
    /// As for [`Self::post_recv`].
    fn post_srq_recv(srq: &Self::Srq, requests: &mut RecvList<'_>) -> Result;

    /// Changes capacity and limit of a shared receive queue: all of it or, on error, nothing. What is
    /// posted stays. A new ring is announced to the process's `call`.
    ///
    /// # Errors
    ///
    /// `EINVAL`, `ENOMEM`, `EFAULT`, `EBUSY`.
    fn modify_srq(
        srq: &Arc<Self::Srq>,
        modify: &SrqModify,
        call: Option<&RingChange<'_, Self>>,
    ) -> Result;

    /// Capacities and limit.
    ///
    /// # Errors
    ///
    /// `EINVAL` when it is in error.
    fn query_srq(srq: &Self::Srq) -> Result<SrqAttr>;

    /// Makes a shared receive queue inert. No queue pair uses it.
    fn destroy_srq(srq: &Arc<Self::Srq>);

    /// Makes a memory window, bound to nothing.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn alloc_mw(pd: &Arc<Self::Pd>, kind: MwKind) -> Result<Arc<Self::Mw>>;

    /// The present key of a window.
    fn mw_rkey(mw: &Self::Mw) -> Rkey;

    /// Takes a window away: after the return nobody accesses memory through it.
    fn dealloc_mw(device: &Arc<Self::Device>, mw: &Arc<Self::Mw>);

    /// Makes a queue pair for a process.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` for types and options that the driver lacks, `EINVAL` for capacities beyond the
    /// device's, `ENOMEM`.
    fn create_user_qp(
        device: &Arc<Self::Device>,
        init: QpInit<Self>,
        call: &UserCall<'_, Self>,
    ) -> Result<QpCreated<Self::Qp>>;

    /// Makes a queue pair for the kernel.
    ///
    /// # Errors
    ///
    /// As for [`Self::create_user_qp`].
    fn create_kernel_qp(
        device: &Arc<Self::Device>,
        init: QpInit<Self>,
    ) -> Result<QpCreated<Self::Qp>>;

    /// Changes a queue pair's state and attributes: all of it or, on error, nothing.
    ///
    /// # Errors
    ///
    /// `EINVAL`, `EOPNOTSUPP`, `EBUSY`.
    fn modify_qp(qp: &Arc<Self::Qp>, change: &QpModify) -> Result;

    /// State and attributes.
    ///
    /// # Errors
    ///
    /// `EINVAL` once destroyed.
    fn query_qp(qp: &Arc<Self::Qp>) -> Result<QpQuery>;

    /// Makes a queue pair inert.
    fn destroy_qp(qp: &Arc<Self::Qp>);

    /// Lets a datagram QP receive what is sent to a multicast group.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is attached to the group already. ib_core counts the calls that succeed, and destroys the QP only
    /// when [`Self::detach_mcast`] has succeeded as often; uverbs tells attachments apart by a LID, too.
    /// `ENOMEM`, also beyond the device's limits; `ENODEV`.
    fn attach_mcast(qp: &Arc<Self::Qp>, group: Gid) -> Result;

    /// Undoes [`Self::attach_mcast`].
    ///
    /// # Errors
    ///
    /// `EINVAL` if the QP isn't attached to the group.
    fn detach_mcast(qp: &Arc<Self::Qp>, group: Gid) -> Result;

    /// Lets a raw packet QP receive the frames that a rule is about.
    ///
    /// # Errors
    ///
    /// `EINVAL` for QPs of other types, `ENOMEM`, also beyond the device's limit; `ENODEV`;
    /// `EOPNOTSUPP` if the network device has no such frames.
    fn create_flow(qp: &Arc<Self::Qp>, rule: Rule) -> Result<Arc<Self::Flow>>;

    /// Undoes [`Self::create_flow`]: after the return the QP gets no more frames by this rule.
    fn destroy_flow(flow: &Arc<Self::Flow>);

    /// A process has posted sends to its ring. May be called in any state.
    ///
    /// # Errors
    ///
    /// `EINVAL` in a state that takes none, `EIO`.
    fn doorbell(qp: &Arc<Self::Qp>) -> Result;

    /// Posts sends of the kernel, up to the first that can't be posted. Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL` in a state that takes none and for requests that make no sense, `ENOMEM` when the queue is
    /// full. The request is the last that was taken from the list.
    fn post_send(qp: &Arc<Self::Qp>, requests: &mut SendList<'_, Self>) -> Result;

    /// Posts receives of the kernel, up to the first that can't be posted. Any context.
    ///
    /// # Errors
    ///
    /// As for [`Self::post_send`].
    fn post_recv(qp: &Arc<Self::Qp>, requests: &mut RecvList<'_>) -> Result;
}
