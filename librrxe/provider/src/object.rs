// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Objects that libibverbs and programs know by a pointer to their first field.

use core::mem::zeroed;

use crate::bindings::*;

/// C structure for which zeroed memory is a valid value.
///
/// # Safety
///
/// All bytes zero must be a valid value of the type.
pub(crate) unsafe trait Zeroed: Sized {
    /// Returns the value whose bytes are all zero.
    fn zeroed() -> Self {
        // SAFETY: The implementation of the trait guarantees that all bytes zero are a valid value.
        unsafe { zeroed() }
    }
}

macro_rules! zeroed {
    ($($name:ident),* $(,)?) => {
        $(
            // SAFETY: The C structure consists of integers, pointers and optional functions.
            unsafe impl Zeroed for $name {}
        )*
    };
}

zeroed!(
    ibv_pd,
    ibv_td,
    ibv_ah,
    ibv_mw,
    ibv_flow,
    ibv_qp_init_attr_ex,
    verbs_cq,
    verbs_device,
    verbs_dm,
    verbs_mr,
    verbs_qp,
    verbs_srq,
    verbs_xrcd,
    ibv_alloc_pd,
    ibv_alloc_mw,
    ibv_create_cq,
    ibv_create_cq_ex,
    ibv_create_qp_ex,
    ibv_create_srq,
    ibv_create_xsrq,
    ibv_get_context,
    ibv_modify_cq,
    ibv_modify_qp,
    ibv_modify_srq,
    ibv_open_qp,
    ibv_open_xrcd,
    ibv_query_port,
    ibv_query_qp,
    ibv_query_srq,
    ibv_reg_mr,
    ibv_rereg_mr,
    ibv_resize_cq,
    ib_uverbs_alloc_mw_resp,
    ib_uverbs_alloc_pd_resp,
    ib_uverbs_create_ah_resp,
    ib_uverbs_create_cq_resp,
    ib_uverbs_create_qp_resp,
    ib_uverbs_create_srq_resp,
    ib_uverbs_ex_create_cq_resp,
    ib_uverbs_ex_create_qp_resp,
    ib_uverbs_ex_query_device_resp,
    ib_uverbs_get_context_resp,
    ib_uverbs_open_xrcd_resp,
    ib_uverbs_reg_mr_resp,
    ib_uverbs_rereg_mr_resp,
    ib_uverbs_resize_cq_resp,
    mminfo,
    rrxe_alloc_ucontext_req,
    rrxe_alloc_ucontext_resp,
    rrxe_create_qp_resp,
    rxe_create_ah_resp,
    rxe_create_cq_resp,
    rxe_create_qp_resp,
    rxe_create_srq_resp,
    rxe_modify_srq_cmd,
    rxe_resize_cq_resp,
);

/// Command or response of uverbs, followed by the part of the driver.
///
/// libibverbs regards all bytes after its own structure as the part of the driver.
#[repr(C)]
pub(crate) struct Extended<C, D> {
    core: C,
    /// Part of the driver.
    pub(crate) driver: D,
}

impl<C: Zeroed, D: Zeroed> Extended<C, D> {
    /// Returns the structure with all bytes zero.
    pub(crate) fn new() -> Self {
        // The part of the driver must begin at the end of libibverbs' structure.
        const { assert!(core::mem::offset_of!(Self, driver) == size_of::<C>()) };
        Self {
            core: C::zeroed(),
            driver: D::zeroed(),
        }
    }

    /// Returns a pointer to libibverbs' part, from which libibverbs finds the part of the driver.
    pub(crate) fn core(&mut self) -> *mut C {
        (&raw mut *self).cast()
    }

    /// Size of both parts in bytes.
    pub(crate) const SIZE: usize = size_of::<C>() + size_of::<D>();
}

/// Moves `object` to the heap, for libibverbs. [`take`] takes it back.
pub(crate) fn give<T>(object: T) -> *mut T {
    Box::into_raw(Box::new(object))
}

/// Takes back an object that [`give`] returned.
///
/// # Safety
///
/// `object` must come from [`give`] with the same type `T`, and nothing may use it any more.
pub(crate) unsafe fn take<T>(object: *mut T) -> Box<T> {
    // SAFETY: The caller guarantees that the pointer comes from [`give`] and is not used any more
    // (see `# Safety`).
    unsafe { Box::from_raw(object) }
}
