// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Device memory (DM). The kernel allocates it. The process maps it at an offset that follows from
//! its handle.

use core::{
    ffi::{c_int, c_void},
    ptr::{addr_of_mut, null_mut},
};

use crate::{
    bindings::*,
    memory::Mapping,
    mr,
    object::{give, take, Zeroed},
    system::{code, failed, set_errno, EINVAL},
};

/// Size in bytes of the unit in which device memory is copied.
const WORD: usize = 4;
/// Smallest size in bytes of a page. On some machines pages are larger.
const LEAST_PAGE: usize = 4096;

/// Device memory, mapped into this process.
#[repr(C)]
struct Dm {
    verbs: verbs_dm,
    mapping: Mapping,
    /// Length in bytes that the program requested. For imported memory, the length of the whole
    /// mapping.
    length: usize,
}

impl Dm {
    /// Maps the device memory with the handle `verbs.handle`.
    ///
    /// # Errors
    ///
    /// errno.
    ///
    /// # Safety
    ///
    /// The context in `verbs` must be valid.
    unsafe fn map(mut verbs: verbs_dm, length: usize) -> Result<Self, c_int> {
        let place = RRXE_DM_OFFSET + u64::from(verbs.handle) * u64::from(RRXE_DM_STRIDE);
        let mapping = Mapping::new((*verbs.dm.context).cmd_fd, place, length)?;
        verbs.dm.memcpy_to_dm = Some(copy_to);
        verbs.dm.memcpy_from_dm = Some(copy_from);
        Ok(Self {
            verbs,
            mapping,
            length,
        })
    }

    /// Returns the address of the `length` bytes from `offset` on. Returns `None` if they are not
    /// within the memory, or if `offset` or `length` is not a multiple of 4.
    fn range(&self, offset: u64, length: usize) -> Option<*mut u8> {
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(length)?;
        let words = start % WORD == 0 && length % WORD == 0;
        (words && end <= self.length).then(|| self.mapping.start().wrapping_add(start))
    }
}

/// Implements `alloc_dm` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn alloc(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    if (*attr).comp_mask != 0 {
        return failed(EINVAL);
    }
    let mut verbs = verbs_dm::zeroed();
    let code = code(ibv_cmd_alloc_dm(context, attr, &mut verbs, null_mut()));
    if code != 0 {
        return failed(code);
    }
    match Dm::map(verbs, (*attr).length) {
        Ok(dm) => give(dm).cast(),
        Err(code) => {
            ibv_cmd_free_dm(&mut verbs);
            failed(code)
        }
    }
}

/// Implements `free_dm` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn free(dm: *mut ibv_dm) -> c_int {
    let raw = dm.cast::<Dm>();
    let code = ibv_cmd_free_dm(addr_of_mut!((*raw).verbs));
    if code == 0 {
        drop(take(raw));
    }
    code
}

/// Implements `reg_dm_mr` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn reg(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: u32,
) -> *mut ibv_mr {
    mr::make(|mr| ibv_cmd_reg_dm_mr(pd, dm.cast(), offset, length, access, mr, null_mut()))
}

/// Implements `import_dm` of `struct verbs_context_ops`: maps device memory of the process to which
/// the context belongs.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn import(context: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    let mut verbs = verbs_dm::zeroed();
    verbs.handle = handle;
    verbs.dm.handle = handle;
    verbs.dm.comp_mask = IBV_DM_MASK_HANDLE;
    verbs.dm.context = context;
    // The kernel does not report the length, but maps device memory only as a whole. So the sizes
    // are tried. It rounds each of them up to whole pages, so the largest one that it accepts is
    // the length in whole pages.
    let sizes = (1..=RRXE_DM_STRIDE as usize / LEAST_PAGE).rev();
    for size in sizes.map(|count| count * LEAST_PAGE) {
        if let Ok(dm) = Dm::map(verbs, size) {
            return give(dm).cast();
        }
    }
    failed(EINVAL)
}

/// Implements `unimport_dm` of `struct verbs_context_ops`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
pub(crate) unsafe extern "C" fn unimport(dm: *mut ibv_dm) {
    drop(take(dm.cast::<Dm>()));
}

/// Implements `memcpy_to_dm` of `struct ibv_dm`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
unsafe extern "C" fn copy_to(
    dm: *mut ibv_dm,
    offset: u64,
    from: *const c_void,
    length: usize,
) -> c_int {
    match (*dm.cast::<Dm>()).range(offset, length) {
        Some(to) => {
            to.copy_from(from.cast(), length);
            0
        }
        None => set_errno(EINVAL),
    }
}

/// Implements `memcpy_from_dm` of `struct ibv_dm`.
///
/// # Safety
///
/// The program must keep the rules of the verbs API: pointers are valid, objects are alive (see the
/// crate's documentation).
unsafe extern "C" fn copy_from(
    to: *mut c_void,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
) -> c_int {
    match (*dm.cast::<Dm>()).range(offset, length) {
        Some(from) => {
            to.cast::<u8>().copy_from(from, length);
            0
        }
        None => set_errno(EINVAL),
    }
}
