// SPDX-License-Identifier: GPL-2.0

//! The interface that a driver implements to be an RDMA provider.
//!
//! [`Provider`] mirrors `struct ib_device_ops` (`include/rdma/ib_verbs.h`). It has methods for the
//! operations that need the driver, with typed arguments and results. A driver implements all
//! methods. The `extern "C"` functions of the table that `crate::ops` builds translate between the
//! two.
//!
//! # Context
//!
//! A method runs in process context and may sleep, unless its documentation says otherwise. ib_core
//! may call several operations on one object at a time, such as `modify_*` twice, or
//! `rereg_user_mr` and `mr_details`. During the creation or the destruction of an object, no other
//! operation on this object runs.
//!
//! # Objects
//!
//! A C object (`struct ib_qp` and others) holds a counted reference to the driver's object. A
//! `destroy_*` method makes the driver's object inert: after the return no packet, timer or process
//! can look the object up. The reference is dropped after that. Packets, timers and work items that
//! still hold another reference notice that the object was destroyed.

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

/// A driver for RDMA devices. See the module's documentation.
#[vtable]
pub trait Provider: Sized + Send + Sync + 'static {
    /// The driver's device (`struct ib_device`).
    type Device: Send + Sync;
    /// The driver's state of one open of a device by a process (`struct ib_ucontext`).
    type Context: Send + Sync;
    /// The driver's protection domain (`struct ib_pd`).
    type Pd: Send + Sync;
    /// The driver's XRC domain (`struct ib_xrcd`).
    type Xrcd: Send + Sync;
    /// The driver's address handle (`struct ib_ah`).
    type Ah: Send + Sync;
    /// The driver's completion queue (`struct ib_cq`).
    type Cq: Send + Sync;
    /// The driver's shared receive queue (`struct ib_srq`).
    type Srq: Send + Sync;
    /// The driver's queue pair (`struct ib_qp`).
    type Qp: Send + Sync;
    /// The driver's memory region (`struct ib_mr`).
    type Mr: Send + Sync;
    /// The driver's device memory (`struct ib_dm`).
    type Dm: Send + Sync;
    /// The driver's memory window (`struct ib_mw`).
    type Mw: Send + Sync;
    /// The driver's flow steering rule, by which a raw packet QP receives frames
    /// (`struct ib_flow`).
    type Flow: Send + Sync;
    /// The driver's set of counters, to which QPs are bound (`struct rdma_counter`).
    type CounterSet: Send + Sync;

    /// Version of the firmware as users see it. It is the version of the module.
    const FIRMWARE: &'static CStr;
    /// Local key of all memory, for requests of in-kernel consumers (`ib_device.local_dma_lkey`).
    const LOCAL_DMA_LKEY: Lkey;
    /// Names of a port's counters. [`Self::counter`] takes the index of a name in this list.
    const COUNTERS: &'static [CounterName];

    /// Returns the attributes of the device.
    fn query_device(device: &Arc<Self::Device>) -> DeviceAttributes;

    /// Changes the attributes of the device that `ib_modify_device()` may change.
    fn modify_device(device: &Arc<Self::Device>, change: DeviceChange);

    /// Returns the port's counters for performance management (IBTA 1.x §16.1).
    fn port_counters(device: &Arc<Self::Device>) -> PortCounters;

    /// Changes the attributes of the port that `ib_modify_port()` may change.
    fn modify_port(device: &Arc<Self::Device>, change: PortChange);

    /// Returns the attributes of the port.
    ///
    /// The method can't fail. If `query_port` fails during the registration, ib_core's handlers of
    /// network device events and its work items may still use the device (`ib_cache_setup_one()`,
    /// drivers/infiniband/core/cache.c).
    fn query_port(device: &Arc<Self::Device>) -> PortAttributes;

    /// Returns the network device under the port, or `None` once that device unregisters. Any
    /// context.
    fn netdev(device: &Arc<Self::Device>) -> Option<Netdev>;

    /// Adds a RoCEv2 address to the port. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, or the provider's reason to refuse the address. On an error the port does not have
    /// the address.
    fn add_gid(device: &Arc<Self::Device>, gid: Gid, netdev: GidNetdev<'_>) -> Result;

    /// Undoes one [`Self::add_gid`] with the network device of index `netdev_index`. Process
    /// context.
    fn del_gid(device: &Arc<Self::Device>, gid: Gid, netdev_index: u32);

    /// Returns the value of the counter with the given `index` in [`Self::COUNTERS`].
    fn counter(device: &Arc<Self::Device>, index: usize) -> u64;

    /// Creates a counter set with all counters zero. Returns the set and its number, which is
    /// unique on the device and never zero.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn alloc_counter_set(device: &Arc<Self::Device>) -> Result<(u32, Arc<Self::CounterSet>)>;

    /// Frees the number of a counter set. No QP is bound to the set any more.
    fn dealloc_counter_set(device: &Arc<Self::Device>, id: u32);

    /// Binds the queue pair to a counter set. From then on the queue pair counts into this set.
    ///
    /// # Errors
    ///
    /// `EBUSY` if the queue pair is bound to a set, `EINVAL` once it is destroyed.
    fn bind_to_set(qp: &Arc<Self::Qp>, set: Arc<Self::CounterSet>) -> Result;

    /// Unbinds the queue pair from its counter set. From then on it counts into its port's
    /// counters.
    fn unbind_from_set(qp: &Arc<Self::Qp>);

    /// Returns the value in a counter set of the counter with the given `index` in
    /// [`Self::COUNTERS`].
    fn set_counter(set: &Self::CounterSet, index: usize) -> u64;

    /// Adds the attributes of a queue pair that `rdma resource show qp -d` shows.
    ///
    /// # Errors
    ///
    /// Those of [`DriverAttrs`]; `EINVAL` once the queue pair is destroyed.
    fn qp_details(qp: &Arc<Self::Qp>, details: &mut DriverAttrs<'_>) -> Result;

    /// Adds the attributes of a completion queue that `rdma resource show cq -d` shows.
    ///
    /// # Errors
    ///
    /// Those of [`DriverAttrs`].
    fn cq_details(cq: &Arc<Self::Cq>, details: &mut DriverAttrs<'_>) -> Result;

    /// Adds the attributes of a shared receive queue that `rdma resource show srq -d` shows.
    ///
    /// # Errors
    ///
    /// Those of [`DriverAttrs`].
    fn srq_details(srq: &Arc<Self::Srq>, details: &mut DriverAttrs<'_>) -> Result;

    /// Adds the attributes of a memory region that `rdma resource show mr -d` shows. Must not
    /// sleep.
    ///
    /// # Errors
    ///
    /// Those of [`DriverAttrs`].
    fn mr_details(mr: &Arc<Self::Mr>, details: &mut DriverAttrs<'_>) -> Result;

    /// Prepares the device for its consumers. ib_core calls this before it makes the device
    /// available to its clients. ib_core calls this again when the device has moved to another
    /// network namespace. Process context.
    fn enable(device: &Arc<Self::Device>);

    /// Handles the end of the device's unregistration. No operation is called after this one.
    fn disable(device: &Arc<Self::Device>);

    /// Creates a process's context.
    ///
    /// # Errors
    ///
    /// Any. The process gets it.
    fn alloc_context(
        device: &Arc<Self::Device>,
        init: ContextInit<'_>,
    ) -> Result<ContextCreated<Self::Context>>;

    /// Makes a process's context inert. The objects of the context are destroyed before.
    fn close_context(context: &Arc<Self::Context>);

    /// Creates a protection domain for the process of `context`, or for an in-kernel consumer if
    /// that is `None`.
    ///
    /// # Errors
    ///
    /// Any. The consumer gets it.
    fn alloc_pd(
        device: &Arc<Self::Device>,
        context: Option<&Arc<Self::Context>>,
    ) -> Result<Arc<Self::Pd>>;

    /// Creates an XRC domain for the process of `context`. Other processes that name the file of a
    /// `shared` domain open the same domain. Only the `rdma` cgroup limits the number of their
    /// handles, and the memory of the handles is charged to no account (`ib_uverbs_open_xrcd()`,
    /// uverbs_cmd.c).
    ///
    /// # Errors
    ///
    /// Any. The process gets it.
    fn alloc_xrcd(
        device: &Arc<Self::Device>,
        context: &Arc<Self::Context>,
        shared: bool,
    ) -> Result<Arc<Self::Xrcd>>;

    /// Creates an address handle: for a process if `user` is set, else for an in-kernel consumer.
    ///
    /// # Context
    ///
    /// May sleep for a process; must not sleep for an in-kernel consumer.
    ///
    /// # Errors
    ///
    /// Any. The consumer gets it.
    fn create_ah(pd: &Arc<Self::Pd>, av: Av, user: bool) -> Result<Arc<Self::Ah>>;

    /// Returns the number by which a process names the address handle in its work requests.
    fn ah_number(ah: &Self::Ah) -> u32;

    /// Replaces the address vector.
    fn modify_ah(ah: &Self::Ah, av: Av);

    /// Returns the address vector. Any context.
    fn query_ah(ah: &Self::Ah) -> Av;

    /// Makes an address handle inert. Must not sleep if the handle belongs to an in-kernel
    /// consumer.
    fn destroy_ah(ah: &Arc<Self::Ah>);

    /// Creates a completion queue for a process.
    ///
    /// # Errors
    ///
    /// `EINVAL` for zero entries and for more than the device's limit, `ENOMEM`, `EIO` if the
    /// context is going away.
    fn create_user_cq(
        device: &Arc<Self::Device>,
        init: CqInit,
        call: &UserCall<'_, Self>,
    ) -> Result<CqCreated<Self::Cq>>;

    /// Creates a completion queue for an in-kernel consumer.
    ///
    /// # Errors
    ///
    /// `EINVAL` for zero entries and for more than the device's limit, `ENOMEM`.
    fn create_kernel_cq(device: &Arc<Self::Device>, init: CqInit) -> Result<CqCreated<Self::Cq>>;

    /// Removes and returns the oldest completion of an in-kernel consumer's queue. Any context.
    fn poll_cq(cq: &Arc<Self::Cq>) -> Option<Cqe>;

    /// Returns whether one `ib_poll_cq()` of an in-kernel consumer's queue must return one
    /// completion at most, even if the consumer has room for more. Any context.
    fn polls_singly(cq: &Arc<Self::Cq>) -> bool;

    /// Resizes a process's completion queue to at least `capacity` entries, and returns the number
    /// of entries. The completions in the queue stay. The method tells the process the location of
    /// the new ring by `call`.
    ///
    /// # Errors
    ///
    /// `EINVAL` for zero entries, for more than the device's limit, or for fewer than the queue
    /// contains; `ENOMEM`; `EFAULT`; `EBUSY` if the queue changes all the time; `EIO` if the device
    /// is going away.
    fn resize_cq(cq: &Arc<Self::Cq>, capacity: u32, call: &RingChange<'_, Self>) -> Result<u32>;

    /// Sets the moderation of a completion queue's notifications. Process context.
    fn moderate_cq(cq: &Arc<Self::Cq>, moderation: Moderation);

    /// Makes a completion queue inert.
    fn destroy_cq(cq: &Arc<Self::Cq>);

    /// Arms a completion queue: the next completion of the kind `when` causes one notification. If
    /// the queue already contains completions that no notification covered, the notification comes
    /// soon. Returns whether the queue contains completions that the consumer has not polled.
    /// `reports_missed` is the flag `IB_CQ_REPORT_MISSED_EVENTS`: a consumer that sets it polls
    /// these completions itself, so they cause no notification. Any context.
    fn req_notify_cq(cq: &Arc<Self::Cq>, when: NotifyWhen, reports_missed: bool) -> bool;

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

    /// Returns the device memory of the driver's object.
    fn dm_memory(dm: &Self::Dm) -> &DeviceMemory;

    /// Registers memory. `access` is consistent ([`Access::is_consistent`]). The memory is the
    /// process's own, an exported DMA buffer, or device memory.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, and those of [`UserRange::pin`].
    fn reg_user_mr(
        pd: &Arc<Self::Pd>,
        range: &UserRange<'_>,
        access: Access,
    ) -> Result<Arc<Self::Mr>>;

    /// Changes a region. Returns the region that replaces it, which may be the same one. The keys
    /// stay. On an error the region is unchanged.
    ///
    /// # Errors
    ///
    /// `EINVAL` while memory windows are bound to the region, `EOPNOTSUPP` for a change that is not
    /// supported, and those of [`UserRange::pin`].
    fn rereg_user_mr(
        device: &Arc<Self::Device>,
        mr: &Arc<Self::Mr>,
        change: MrChange<'_, Self::Pd>,
    ) -> Result<Arc<Self::Mr>>;

    /// Creates a region of all of the kernel's memory. Its addresses are the kernel's virtual
    /// addresses. `access` is consistent ([`Access::is_consistent`]).
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn get_dma_mr(pd: &Arc<Self::Pd>, access: Access) -> Result<Arc<Self::Mr>>;

    /// Creates a region of at most `max` pages or pieces, which work requests register and
    /// invalidate.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a `max` of zero or beyond the device's limit, `ENOMEM`.
    fn alloc_mr(pd: &Arc<Self::Pd>, kind: FastKind, max: u32) -> Result<Arc<Self::Mr>>;

    /// Returns the memory of a region that [`Self::alloc_mr`] created, or `None` for any other
    /// region. Any context.
    fn fast_memory(mr: &Self::Mr) -> Option<&FastMemory>;

    /// Faults in memory of on-demand regions; the memory may be reclaimed later. If `flush` is set,
    /// returns once the memory is resident or a fault has failed.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a key that belongs to no on-demand region of the protection domain, `EPERM` for
    /// an access right that the region lacks, `EFAULT` for a range beyond the region; `ENOMEM`. If
    /// `flush` is set, also `EFAULT` for memory that doesn't exist, `EINTR` if the calling process
    /// or the process that owns the memory was killed, `ERESTARTNOINTR` if the system is suspended,
    /// `EIO` if the device is going away, and those of
    /// [`OnDemand::fault_in`](crate::memory::odp::OnDemand::fault_in).
    fn advise_mr(pd: &Arc<Self::Pd>, ranges: &[Advised], how: Fault, flush: bool) -> Result;

    /// Returns the keys of a region.
    fn mr_keys(mr: &Self::Mr) -> MrKeys;

    /// Deregisters a region. After the return its memory is not accessed through this region.
    ///
    /// # Errors
    ///
    /// `EINVAL` while memory windows are bound to the region.
    fn dereg_mr(device: &Arc<Self::Device>, mr: &Arc<Self::Mr>) -> Result;

    /// Deregisters a region whose creation uverbs undoes. Unlike [`Self::dereg_mr`] this can't
    /// fail, since uverbs would warn. The process may already know the key and have bound memory
    /// windows to the region. Those windows are unbound.
    fn abort_mr(device: &Arc<Self::Device>, mr: &Arc<Self::Mr>);

    /// Creates a shared receive queue for a process. If `xrc` is given, the queue belongs to an XRC
    /// domain.
    ///
    /// # Errors
    ///
    /// `EINVAL` for zero WQEs and for capacities beyond the device's limits, `ENOMEM`.
    fn create_user_srq(
        pd: &Arc<Self::Pd>,
        init: SrqInit,
        xrc: Option<XrcInit<Self>>,
        call: &UserCall<'_, Self>,
    ) -> Result<SrqCreated<Self::Srq>>;

    /// Creates a shared receive queue for an in-kernel consumer.
    ///
    /// # Errors
    ///
    /// Those of [`Self::create_user_srq`].
    fn create_kernel_srq(pd: &Arc<Self::Pd>, init: SrqInit) -> Result<SrqCreated<Self::Srq>>;

    /// Posts receive requests of an in-kernel consumer. Stops at the first that can't be posted.
    /// Any context.
    ///
    /// # Errors
    ///
    /// Those of [`Self::post_recv`].
    fn post_srq_recv(srq: &Self::Srq, requests: &mut RecvList<'_>) -> Result;

    /// Changes the capacity and the limit of a shared receive queue. On an error neither is
    /// changed. The posted receives stay. For a process, the method tells the process the location
    /// of a new ring by `call`.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a capacity that is zero, beyond the device's limit, or less than the number of
    /// posted receives or than the limit; for a limit beyond the capacity; and if the queue is in
    /// the error state. `ENOMEM`; `EFAULT`; `EBUSY` if the consumer posts receives all the time.
    fn modify_srq(
        srq: &Arc<Self::Srq>,
        modify: &SrqModify,
        call: Option<&RingChange<'_, Self>>,
    ) -> Result;

    /// Returns the capacities and the limit of a shared receive queue.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the queue is in the error state.
    fn query_srq(srq: &Self::Srq) -> Result<SrqAttr>;

    /// Makes a shared receive queue inert. No queue pair that was created with the queue exists any
    /// more. But XRC target QPs may take receives from the queue until it is inert.
    fn destroy_srq(srq: &Arc<Self::Srq>);

    /// Allocates a memory window that is not bound.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn alloc_mw(pd: &Arc<Self::Pd>, kind: MwKind) -> Result<Arc<Self::Mw>>;

    /// Returns the current key of a memory window.
    fn mw_rkey(mw: &Self::Mw) -> Rkey;

    /// Deallocates a memory window. After the return memory is not accessed through this window.
    fn dealloc_mw(device: &Arc<Self::Device>, mw: &Arc<Self::Mw>);

    /// Creates a queue pair for a process.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` for types and options that the driver doesn't support, `EINVAL` for capacities
    /// beyond the device's limits, `ENOMEM`, `EIO` if the context is going away.
    fn create_user_qp(
        device: &Arc<Self::Device>,
        init: QpInit<Self>,
        call: &UserCall<'_, Self>,
    ) -> Result<QpCreated<Self::Qp>>;

    /// Creates a queue pair for an in-kernel consumer.
    ///
    /// # Errors
    ///
    /// Those of [`Self::create_user_qp`].
    fn create_kernel_qp(
        device: &Arc<Self::Device>,
        init: QpInit<Self>,
    ) -> Result<QpCreated<Self::Qp>>;

    /// Changes the state and the attributes of a queue pair. On an error nothing is changed.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a transition, an attribute or a value that is not allowed, and once the queue
    /// pair is destroyed; `ENOMEM`.
    fn modify_qp(qp: &Arc<Self::Qp>, change: &QpModify) -> Result;

    /// Returns the state and the attributes of a queue pair.
    ///
    /// # Errors
    ///
    /// `EINVAL` once the queue pair is destroyed.
    fn query_qp(qp: &Arc<Self::Qp>) -> Result<QpQuery>;

    /// Makes a queue pair inert.
    fn destroy_qp(qp: &Arc<Self::Qp>);

    /// Attaches a datagram QP to a multicast group, so that it receives the group's packets.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the QP is already attached to the group: ib_core counts the calls that succeed,
    /// and destroys the QP only when [`Self::detach_mcast`] has succeeded as often. uverbs lets a
    /// process attach a QP to a group again with another LID. `ENOMEM`, also beyond the device's
    /// limits; `ENODEV` if the network device is gone or lacks the group's IP version; `EBUSY`
    /// while QPs of another RDMA device are attached to the group (its network device had the same
    /// index and is gone).
    fn attach_mcast(qp: &Arc<Self::Qp>, group: Gid) -> Result;

    /// Detaches a QP from a multicast group ([`Self::attach_mcast`]).
    ///
    /// # Errors
    ///
    /// `EINVAL` if the QP isn't attached to the group.
    fn detach_mcast(qp: &Arc<Self::Qp>, group: Gid) -> Result;

    /// Creates a flow steering rule, by which a raw packet QP receives the frames that match.
    ///
    /// # Errors
    ///
    /// `EINVAL` for QPs of other types; `ENOMEM`, also beyond the device's limit; `ENODEV` if the
    /// network device is gone; `EOPNOTSUPP` unless that is an Ethernet or loopback device.
    fn create_flow(qp: &Arc<Self::Qp>, rule: Rule) -> Result<Arc<Self::Flow>>;

    /// Removes a rule of [`Self::create_flow`]. After the return the QP receives no more frames by
    /// this rule.
    fn destroy_flow(flow: &Arc<Self::Flow>);

    /// Handles the doorbell of a process, which has posted send requests to its ring. The process
    /// may ring it in any state of the QP.
    ///
    /// # Errors
    ///
    /// `EINVAL` in a state in which no sends may be posted, `EIO` if the device is going away.
    fn doorbell(qp: &Arc<Self::Qp>) -> Result;

    /// Posts send requests of an in-kernel consumer. Stops at the first that can't be posted. Any
    /// context.
    ///
    /// # Errors
    ///
    /// `EINVAL` in a state in which none may be posted and for invalid requests, `ENOMEM` if the
    /// queue is full. The failed request is the one that was last taken from the list.
    fn post_send(qp: &Arc<Self::Qp>, requests: &mut SendList<'_, Self>) -> Result;

    /// Posts receive requests of an in-kernel consumer. Stops at the first that can't be posted.
    /// Any context.
    ///
    /// # Errors
    ///
    /// Those of [`Self::post_send`].
    fn post_recv(qp: &Arc<Self::Qp>, requests: &mut RecvList<'_>) -> Result;
}
