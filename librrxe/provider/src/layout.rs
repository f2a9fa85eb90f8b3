// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Check whether the loaded libibverbs has the structures that this library was built for.
//!
//! The dynamic loader compares the version of libibverbs' private symbols only. rdma-core changed
//! the structures several times without a new version (Documentation/provider.rst). An update of
//! libibverbs keeps an installed librrxe, so the check is made each time that librrxe is loaded.

use core::{
    array,
    mem::{offset_of, size_of},
    ptr::addr_of_mut,
};

use crate::{bindings::*, object::Zeroed};

/// Number of words of the arrays that stand for libibverbs' structures in [`operations_fit`]. The
/// structures are shorter.
const SLOTS: usize = 512;

/// Returns whether libibverbs' structures are those of the headers.
pub(crate) fn fits() -> bool {
    extended_qp_fits() && operations_fit()
}

/// Returns whether libibverbs finds the field `comp_mask` of an extended QP (`struct verbs_qp`).
/// The field lies behind the functions of `struct ibv_qp_ex`, whose number has grown.
fn extended_qp_fits() -> bool {
    /// QP, followed by memory that a libibverbs with a longer structure reads.
    #[repr(C)]
    struct Roomy {
        qp: verbs_qp,
        room: [u64; 64],
    }
    let mut roomy = Roomy {
        qp: verbs_qp::zeroed(),
        room: [0; 64],
    };
    roomy.qp.comp_mask = VERBS_QP_EX;
    let qp = addr_of_mut!(roomy).cast();
    // SAFETY: The function reads `comp_mask` only, which lies in `roomy` for all layouts.
    let found = unsafe { ibv_qp_to_qp_ex(qp) };
    found == qp.cast()
}

/// Returns whether libibverbs' context (`struct verbs_context`) and its table of a provider's
/// functions (`struct verbs_context_ops`) have the same length and the same order.
/// `verbs_set_ops()` copies each entry to libibverbs' private table, and some also to fields of the
/// context.
fn operations_fit() -> bool {
    // Entry N has the value N + 1. Nothing calls these values.
    let table: [usize; SLOTS] = array::from_fn(|slot| slot + 1);
    let mut private = [0usize; 2 * SLOTS];
    // libibverbs finds its private structure by a pointer in the context, whose place is unknown
    // here. So each word of the context is this pointer.
    let mut context = [private.as_mut_ptr() as usize; SLOTS];
    let context: *mut verbs_context = context.as_mut_ptr().cast();
    // SAFETY: libibverbs reads as many entries as its table has, and writes to its private
    // structure and to the context. The three arrays are longer than these structures.
    unsafe { verbs_set_ops(context, table.as_ptr().cast()) };
    let length = size_of::<verbs_context_ops>() / size_of::<usize>();
    let copied = private.into_iter().filter(|entry| *entry != 0);
    // SAFETY: The array is longer than the structure and has its alignment. All its words are valid
    // pointers or integers, and nothing calls its functions.
    let context = unsafe { &*context };
    macro_rules! at_its_place {
        ($($value:expr => $field:ident),* $(,)?) => {
            $($value.is_some_and(|function| {
                function as usize == 1 + offset_of!(verbs_context_ops, $field) / size_of::<usize>()
            }))&&*
        };
    }
    copied.eq(1..=length)
        && at_its_place!(
            context.alloc_parent_domain => alloc_parent_domain,
            context.create_qp_ex => create_qp_ex,
            context.open_xrcd => open_xrcd,
            context.context.ops.poll_cq => poll_cq,
            context.context.ops.req_notify_cq => req_notify_cq,
        )
}
