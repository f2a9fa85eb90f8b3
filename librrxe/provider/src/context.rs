// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Verbs for contexts (`struct ibv_context`): one for each time that a process opens a device.

use core::{
    ffi::{c_int, c_void},
    mem::{offset_of, zeroed},
    ptr::{addr_of_mut, null_mut},
};

use rrxe_rings::doorbell::Doorbells;

use crate::{
    ah,
    bindings::*,
    cq, dm, flow,
    memory::Mapping,
    mr, mw,
    object::{Extended, Zeroed},
    pd, post_recv, post_send, qp, qp_attr, srq,
    system::{code, release, set_errno},
    xrcd,
};

/// Features that this library requests from the kernel.
const FEATURES: u32 =
    RRXE_FEATURE_DOORBELL | RRXE_FEATURE_CQ_ARM | RRXE_FEATURE_CQ_NEWS | RRXE_FEATURE_DM;

/// Context. libibverbs allocates it as zeroed memory, which is a valid value of all its fields.
#[repr(C)]
pub(crate) struct Context {
    verbs: verbs_context,
    granted: *mut Granted,
}

/// Features that the kernel granted to a context.
#[derive(Default)]
pub(crate) struct Granted {
    /// Doorbell page, if granted.
    pub(crate) doorbells: Option<Doorbells<Mapping>>,
    /// Whether CQs are armed in their rings. This takes `RRXE_FEATURE_CQ_ARM` and
    /// `RRXE_FEATURE_CQ_NEWS`. By the second one the library finds earlier completions that no
    /// event has announced. A system call is necessary for these only.
    pub(crate) arms_cqs: bool,
}

/// Functions that libibverbs calls for verbs on contexts of this provider.
const OPS: verbs_context_ops = verbs_context_ops {
    query_device_ex: Some(query_device),
    query_port: Some(query_port),
    #[cfg(has_port_speed)]
    query_port_speed: Some(ibv_cmd_query_port_speed),
    free_context: Some(free),
    alloc_pd: Some(pd::alloc),
    dealloc_pd: Some(pd::dealloc),
    alloc_parent_domain: Some(pd::alloc_parent),
    alloc_td: Some(pd::alloc_td),
    dealloc_td: Some(pd::dealloc_td),
    import_pd: Some(pd::import),
    unimport_pd: Some(pd::unimport),
    reg_mr: Some(mr::reg),
    #[cfg(has_reg_mr_ex)]
    reg_mr_ex: Some(mr::reg_ex),
    reg_dmabuf_mr: Some(mr::reg_dmabuf),
    rereg_mr: Some(mr::rereg),
    dereg_mr: Some(mr::dereg),
    advise_mr: Some(mr::advise),
    import_mr: Some(mr::import),
    unimport_mr: Some(mr::unimport),
    alloc_dm: Some(dm::alloc),
    free_dm: Some(dm::free),
    reg_dm_mr: Some(dm::reg),
    import_dm: Some(dm::import),
    unimport_dm: Some(dm::unimport),
    alloc_mw: Some(mw::alloc),
    dealloc_mw: Some(mw::dealloc),
    bind_mw: Some(mw::bind),
    create_ah: Some(ah::create),
    destroy_ah: Some(ah::destroy),
    open_xrcd: Some(xrcd::open),
    close_xrcd: Some(xrcd::close),
    create_cq: Some(cq::create),
    create_cq_ex: Some(cq::create_ex),
    modify_cq: Some(cq::modify),
    resize_cq: Some(cq::resize),
    destroy_cq: Some(cq::destroy),
    poll_cq: Some(cq::poll),
    req_notify_cq: Some(cq::req_notify),
    create_srq: Some(srq::create),
    create_srq_ex: Some(srq::create_ex),
    modify_srq: Some(srq::modify),
    query_srq: Some(srq::query),
    destroy_srq: Some(srq::destroy),
    get_srq_num: Some(srq::number),
    post_srq_recv: Some(post_recv::post_shared),
    create_qp: Some(qp::create),
    create_qp_ex: Some(qp::create_ex),
    open_qp: Some(qp::open),
    destroy_qp: Some(qp::destroy),
    modify_qp: Some(qp_attr::modify),
    query_qp: Some(qp_attr::query),
    post_send: Some(post_send::post),
    post_recv: Some(post_recv::post),
    attach_mcast: Some(ibv_cmd_attach_mcast),
    detach_mcast: Some(ibv_cmd_detach_mcast),
    create_flow: Some(flow::create),
    destroy_flow: Some(flow::destroy),
    // SAFETY: The structure consists of optional functions, for which zero means `None`.
    ..unsafe { zeroed() }
};

impl Context {
    /// Returns the context that libibverbs and programs know by the pointer `context`.
    ///
    /// # Safety
    ///
    /// The context must be one of this provider, and alive during the use of the result.
    unsafe fn from_raw(context: *mut ibv_context) -> *mut Self {
        // SAFETY: `context` is a field of a `verbs_context`, which is the first field of a
        // `Context`.
        unsafe { context.byte_sub(offset_of!(verbs_context, context)).cast() }
    }

    /// Returns the features that the kernel granted.
    ///
    /// # Safety
    ///
    /// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see
    /// the crate's documentation).
    pub(crate) unsafe fn granted<'a>(context: *mut ibv_context) -> &'a Granted {
        // SAFETY: `make` set the pointer before the program knew the context, and `free` frees both
        // together.
        unsafe { &*(*Self::from_raw(context)).granted }
    }
}

/// Implements `alloc_context` of `struct verbs_device_ops`.
///
/// # Safety
///
/// To be called by libibverbs only.
pub(crate) unsafe extern "C" fn alloc(
    device: *mut ibv_device,
    fd: c_int,
    _private: *mut c_void,
) -> *mut verbs_context {
    make(device, fd, negotiate)
}

/// Implements `import_context` of `struct verbs_device_ops`. `fd` belongs to a context of another
/// process. The features that were granted to that process are not used here.
///
/// # Safety
///
/// To be called by libibverbs only.
pub(crate) unsafe extern "C" fn import(device: *mut ibv_device, fd: c_int) -> *mut verbs_context {
    let query = |context: *mut verbs_context| {
        // SAFETY: The context is one of libibverbs, and no attributes of the driver are passed.
        let code = unsafe {
            let context = addr_of_mut!((*context).context);
            self::code(ibv_cmd_query_context(context, null_mut()))
        };
        (code == 0).then(Granted::default).ok_or(code)
    };
    make(device, fd, query)
}

/// Creates a context. `open` opens it in the kernel, or queries the imported one, and returns the
/// granted features.
///
/// # Safety
///
/// To be called only within the calls of libibverbs that create contexts. `fd` must be the file
/// descriptor of the context.
unsafe fn make(
    device: *mut ibv_device,
    fd: c_int,
    open: impl FnOnce(*mut verbs_context) -> Result<Granted, c_int>,
) -> *mut verbs_context {
    // The null pointer stands for the offset of libibverbs' structure in `Context`, which is 0.
    let (size, first) = (size_of::<Context>(), null_mut());
    let context = _verbs_init_and_alloc_context(device, fd, size, first, RDMA_DRIVER_RXE);
    if context.is_null() {
        return null_mut();
    }
    let verbs: *mut verbs_context = context.cast();
    match open(verbs) {
        Ok(granted) => {
            (*context.cast::<Context>()).granted = Box::into_raw(Box::new(granted));
            verbs_set_ops(verbs, &OPS);
            verbs
        }
        Err(code) => {
            verbs_uninit_context(verbs);
            release(context);
            set_errno(code);
            null_mut()
        }
    }
}

type Request = Extended<ibv_get_context, rrxe_alloc_ucontext_req>;
type Reply = Extended<ib_uverbs_get_context_resp, rrxe_alloc_ucontext_resp>;

/// Opens the context in the kernel, and requests all features that this library knows. If the
/// kernel refuses, opens it again without a request, because an older rrxe refuses any request.
fn negotiate(context: *mut verbs_context) -> Result<Granted, c_int> {
    let mut request = Request::new();
    request.driver.abi_version = RRXE_ABI_VERSION;
    request.driver.features = FEATURES;
    let mut reply = Reply::new();
    // SAFETY: The context is one of libibverbs. The buffers have the sizes that are passed.
    let refused = unsafe { get(context, request.core(), Request::SIZE, &mut reply) };
    if refused != 0 {
        reply = Reply::new();
        let plain = size_of::<ibv_get_context>();
        // SAFETY: The context is one of libibverbs. The buffers have the sizes that are passed.
        let failed = unsafe { get(context, request.core(), plain, &mut reply) };
        if failed != 0 {
            return Err(failed);
        }
    }
    let reply = reply.driver;
    let granted = |features| reply.features & FEATURES & features == features;
    let mut result = Granted {
        doorbells: None,
        arms_cqs: granted(RRXE_FEATURE_CQ_ARM | RRXE_FEATURE_CQ_NEWS),
    };
    if granted(RRXE_FEATURE_DOORBELL) {
        // SAFETY: The context is one of libibverbs, so it is valid.
        let fd = unsafe { (*context).context.cmd_fd };
        let page = Mapping::new(fd, reply.doorbell_offset, reply.doorbell_size as usize)?;
        result.doorbells = Some(Doorbells::new(page));
    }
    Ok(result)
}

/// Executes the command that opens a context. Returns 0 or an errno.
///
/// # Safety
///
/// `request` must be valid for `size` bytes, and `context` must be a context of libibverbs.
unsafe fn get(
    context: *mut verbs_context,
    request: *mut ibv_get_context,
    size: usize,
    reply: &mut Reply,
) -> c_int {
    let response = reply.core();
    #[cfg(context_takes_fds)]
    let result = ibv_cmd_get_context(context, request, size, null_mut(), response, Reply::SIZE);
    #[cfg(not(context_takes_fds))]
    let result = ibv_cmd_get_context(context, request, size, response, Reply::SIZE);
    code(result)
}

/// Implements `free_context` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
unsafe extern "C" fn free(context: *mut ibv_context) {
    let context = Context::from_raw(context);
    drop(Box::from_raw((*context).granted));
    verbs_uninit_context(addr_of_mut!((*context).verbs));
    release(context.cast());
}

/// Implements `query_device_ex` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
unsafe extern "C" fn query_device(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    let mut reply = ib_uverbs_ex_query_device_resp::zeroed();
    let mut length = size_of_val(&reply);
    let result = ibv_cmd_query_device_any(context, input, attr, size, &mut reply, &mut length);
    if result != 0 {
        return result;
    }
    let part = |shift: u32| (reply.base.fw_ver >> shift) & 0xffff;
    let text = format!("{}.{}.{}", part(32), part(16), part(0));
    let place = &mut (*attr).orig_attr.fw_ver;
    // The last byte stays zero.
    let room = place.len() - 1;
    for (to, from) in place.iter_mut().take(room).zip(text.bytes().chain([0])) {
        *to = from as _;
    }
    0
}

/// Implements `query_port` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    let mut request = ibv_query_port::zeroed();
    ibv_cmd_query_port(context, port, attr, &mut request, size_of_val(&request))
}
