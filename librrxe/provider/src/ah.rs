// SPDX-License-Identifier: GPL-2.0

//! Address handles. A WQE names them by a number of the kernel's.

use core::ffi::c_int;

use crate::{
    bindings::*,
    object::{give, take, Extended, Zeroed},
    system::{code, failed, EOPNOTSUPP},
};

/// An address handle.
#[repr(C)]
pub(crate) struct Ah {
    verbs: ibv_ah,
    number: u32,
}

impl Ah {
    /// The kernel's number of a handle.
    ///
    /// # Safety
    ///
    /// *verbs*
    pub(crate) unsafe fn number(ah: *mut ibv_ah) -> u32 {
        (*ah.cast::<Self>()).number
    }
}

/// Implements `create_ah`.
///
/// # Safety
///
/// *verbs*
pub(crate) unsafe extern "C" fn create(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    type Reply = Extended<ib_uverbs_create_ah_resp, rxe_create_ah_resp>;
    let mut reply = Reply::new();
    let mut ah = Ah {
        verbs: ibv_ah::zeroed(),
        number: 0,
    };
    let code = code(ibv_cmd_create_ah(
        pd,
        &mut ah.verbs,
        attr,
        reply.core(),
        Reply::SIZE,
    ));
    if code != 0 {
        return failed(code);
    }
    ah.number = reply.driver.ah_num;
    if ah.number == 0 {
        // rrxe numbers all that a library has room to hear of.
        ibv_cmd_destroy_ah(&mut ah.verbs);
        return failed(EOPNOTSUPP);
    }
    give(ah).cast()
}

/// Implements `destroy_ah`.
///
/// # Safety
///
/// *verbs*
pub(crate) unsafe extern "C" fn destroy(ah: *mut ibv_ah) -> c_int {
    let code = ibv_cmd_destroy_ah(ah);
    if code == 0 {
        drop(take(ah.cast::<Ah>()));
    }
    code
}
