// SPDX-License-Identifier: GPL-2.0

//! Objects that libibverbs and programs know by a pointer to their first field.

use core::mem::zeroed;

use crate::bindings::*;

/// A C structure for which zeros are a value.
///
/// # Safety
///
/// All bytes zero must be a valid value.
pub(crate) unsafe trait Zeroed: Sized {
    /// The value of zeros.
    fn zeroed() -> Self {
        // SAFETY: As the implementation promises.
        unsafe { zeroed() }
    }
}

macro_rules! zeroed {
    ($($name:ident),* $(,)?) => {
        $(
            // SAFETY: A C structure of integers, pointers and optional functions.
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

/// A command or its answer, with the driver's part behind it.
///
/// libibverbs takes whatever follows the structure that it knows for the driver's.
#[repr(C)]
pub(crate) struct Extended<C, D> {
    core: C,
    /// The driver's.
    pub(crate) driver: D,
}

impl<C: Zeroed, D: Zeroed> Extended<C, D> {
    /// All zeros.
    pub(crate) fn new() -> Self {
        // The driver's part must begin where libibverbs' ends.
        const { assert!(core::mem::offset_of!(Self, driver) == size_of::<C>()) };
        Self {
            core: C::zeroed(),
            driver: D::zeroed(),
        }
    }

    /// libibverbs' part, from which it finds the driver's.
    pub(crate) fn core(&mut self) -> *mut C {
        (&raw mut *self).cast()
    }

    /// Bytes of both parts.
    pub(crate) const SIZE: usize = size_of::<C>() + size_of::<D>();
}

/// A new object for libibverbs, which gives it back to [`take`].
pub(crate) fn give<T>(object: T) -> *mut T {
    Box::into_raw(Box::new(object))
}

/// An object that libibverbs gives back.
///
/// # Safety
///
/// `object` must come from [`give`], with this type, and nothing may use it any more.
pub(crate) unsafe fn take<T>(object: *mut T) -> Box<T> {
    // SAFETY: As the caller promises.
    unsafe { Box::from_raw(object) }
}
