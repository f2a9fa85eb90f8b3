// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Protection domains, thread domains, and parent domains, which combine both.
//!
//! Objects that are created in a parent domain with a thread domain are used by one thread at a
//! time, as the program promises. They need no locks.

use core::{
    ffi::c_int,
    ptr::null_mut,
    sync::atomic::{AtomicUsize, Ordering},
};

use crate::{
    bindings::*,
    guarded::Threads,
    object::{give, take, Zeroed},
    system::{code, failed, EBUSY, EINVAL, EOPNOTSUPP},
};

/// Protection domain or parent domain. libibverbs treats a parent domain as a protection domain.
#[repr(C)]
pub(crate) struct Pd {
    verbs: ibv_pd,
    /// Number of parent domains that contain this protection domain.
    parents: AtomicUsize,
    /// Parts of a parent domain. `None` for a protection domain.
    joins: Option<Joined>,
}

/// Parts of a parent domain.
struct Joined {
    pd: *mut Pd,
    td: *mut Td,
}

/// Thread domain.
#[repr(C)]
pub(crate) struct Td {
    verbs: ibv_td,
    /// Number of parent domains that contain this thread domain.
    parents: AtomicUsize,
}

impl Pd {
    /// Creates a domain that no parent domain contains.
    fn new(verbs: ibv_pd, joins: Option<Joined>) -> Self {
        Self {
            verbs,
            parents: AtomicUsize::new(0),
            joins,
        }
    }

    /// Returns whether one thread or many threads at a time use the objects of a domain.
    ///
    /// # Safety
    ///
    /// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see
    /// the crate's documentation). `pd` may be null.
    pub(crate) unsafe fn threads(pd: *mut ibv_pd) -> Threads {
        let pd = pd.cast::<Self>().as_ref();
        match pd.and_then(|pd| pd.joins.as_ref()) {
            Some(joined) if !joined.td.is_null() => Threads::One,
            _ => Threads::Many,
        }
    }
}

/// Implements `alloc_pd` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn alloc(context: *mut ibv_context) -> *mut ibv_pd {
    let mut request = ibv_alloc_pd::zeroed();
    let mut reply = ib_uverbs_alloc_pd_resp::zeroed();
    let mut pd = ibv_pd::zeroed();
    let code = code({
        let (request_size, reply_size) = (size_of_val(&request), size_of_val(&reply));
        ibv_cmd_alloc_pd(
            context,
            &mut pd,
            &mut request,
            request_size,
            &mut reply,
            reply_size,
        )
    });
    if code != 0 {
        return failed(code);
    }
    give(Pd::new(pd, None)).cast()
}

/// Implements `dealloc_pd` of `struct verbs_context_ops`, also for parent domains.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn dealloc(pd: *mut ibv_pd) -> c_int {
    let raw = pd.cast::<Pd>();
    let domain = &*raw;
    if domain.parents.load(Ordering::Acquire) != 0 {
        return EBUSY;
    }
    match &domain.joins {
        Some(joined) => {
            (*joined.pd).parents.fetch_sub(1, Ordering::Release);
            if let Some(td) = joined.td.as_ref() {
                td.parents.fetch_sub(1, Ordering::Release);
            }
        }
        None => {
            let code = ibv_cmd_dealloc_pd(pd);
            if code != 0 {
                return code;
            }
        }
    }
    drop(take(raw));
    0
}

/// Implements `alloc_parent_domain` of `struct verbs_context_ops`. The allocators in `attr` are not
/// called, since the kernel allocates all memory that the library shares with it.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn alloc_parent(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    const KNOWN: u32 =
        IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
    let attr = &*attr;
    let Some(inner) = attr.pd.cast::<Pd>().as_ref() else {
        return failed(EINVAL);
    };
    if attr.comp_mask & !KNOWN != 0 {
        return failed(EOPNOTSUPP);
    }
    let allocators = attr.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS != 0;
    if inner.joins.is_some() || allocators && (attr.alloc.is_none() || attr.free.is_none()) {
        return failed(EINVAL);
    }
    let td = attr.td.cast::<Td>();
    inner.parents.fetch_add(1, Ordering::Relaxed);
    if let Some(td) = td.as_ref() {
        td.parents.fetch_add(1, Ordering::Relaxed);
    }
    let verbs = ibv_pd {
        context,
        handle: inner.verbs.handle,
    };
    let joined = Joined {
        pd: attr.pd.cast(),
        td,
    };
    give(Pd::new(verbs, Some(joined))).cast()
}

/// Implements `alloc_td` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    if (*attr).comp_mask != 0 {
        return failed(EINVAL);
    }
    give(Td {
        verbs: ibv_td { context },
        parents: AtomicUsize::new(0),
    })
    .cast()
}

/// Implements `dealloc_td` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    let raw = td.cast::<Td>();
    if (*raw).parents.load(Ordering::Acquire) != 0 {
        return EBUSY;
    }
    drop(take(raw));
    0
}

/// Implements `import_pd` of `struct verbs_context_ops`: gives access to the protection domain
/// `handle`, which a process that shares the context's file descriptor created.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn import(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    if context.is_null() {
        return null_mut();
    }
    give(Pd::new(ibv_pd { context, handle }, None)).cast()
}

/// Implements `unimport_pd` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn unimport(pd: *mut ibv_pd) {
    drop(take(pd.cast::<Pd>()));
}
