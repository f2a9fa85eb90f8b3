// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Verbs for address handles (`struct ibv_ah`). A WQE refers to an address handle by a number that
//! the kernel assigns.

use core::ffi::c_int;

use crate::{
    bindings::*,
    object::{give, take, Extended, Zeroed},
    system::{code, failed, EOPNOTSUPP},
};

/// Address handle.
#[repr(C)]
pub(crate) struct Ah {
    verbs: ibv_ah,
    number: u32,
}

impl Ah {
    /// Returns the number that the kernel assigned to the handle.
    ///
    /// # Safety
    ///
    /// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see
    /// the crate's documentation).
    pub(crate) unsafe fn number(ah: *mut ibv_ah) -> u32 {
        (*ah.cast::<Self>()).number
    }
}

/// Implements `create_ah` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
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
        // rrxe assigns a number whenever the response has room for one, as this response has.
        // Without a number, WQEs cannot refer to the handle.
        ibv_cmd_destroy_ah(&mut ah.verbs);
        return failed(EOPNOTSUPP);
    }
    give(ah).cast()
}

/// Implements `destroy_ah` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn destroy(ah: *mut ibv_ah) -> c_int {
    let code = ibv_cmd_destroy_ah(ah);
    if code == 0 {
        drop(take(ah.cast::<Ah>()));
    }
    code
}
