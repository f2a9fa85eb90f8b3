// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Functions of the C library that the provider needs: errno, `mmap()`, `munmap()`, `write()`,
//! `free()`.

use core::{
    ffi::{c_int, c_long, c_void},
    ptr::{null_mut, NonNull},
};

pub(crate) const EINVAL: c_int = 22;
pub(crate) const ENOENT: c_int = 2;
pub(crate) const ENOMEM: c_int = 12;
pub(crate) const EBUSY: c_int = 16;
pub(crate) const EOPNOTSUPP: c_int = 95;

const PROT_READ: c_int = 1;
const PROT_WRITE: c_int = 2;
const MAP_SHARED: c_int = 1;

extern "C" {
    fn __errno_location() -> *mut c_int;
    fn mmap(
        addr: *mut c_void,
        length: usize,
        prot: c_int,
        flags: c_int,
        fd: c_int,
        offset: c_long,
    ) -> *mut c_void;
    fn munmap(addr: *mut c_void, length: usize) -> c_int;
    fn write(fd: c_int, buffer: *const c_void, count: usize) -> isize;
    fn free(memory: *mut c_void);
}

/// Returns the errno of this thread, as the last failed call left it.
pub(crate) fn errno() -> c_int {
    // SAFETY: The address is that of this thread's errno, which is always valid.
    unsafe { *__errno_location() }
}

/// Sets errno and returns it.
pub(crate) fn set_errno(code: c_int) -> c_int {
    // SAFETY: The address is that of this thread's errno, which is always valid.
    unsafe { *__errno_location() = code };
    code
}

/// Sets errno and returns null, as verbs that return objects do if they fail.
pub(crate) fn failed<T>(code: c_int) -> *mut T {
    set_errno(code);
    null_mut()
}

/// Returns the errno of a command of libibverbs. Most commands return it; some return -1 and set
/// errno.
pub(crate) fn code(result: c_int) -> c_int {
    if result < 0 {
        errno()
    } else {
        result
    }
}

/// Maps `length` bytes of a device file at `offset`, shared with the kernel, for reading and
/// writing.
///
/// # Errors
///
/// errno.
pub(crate) fn map(fd: c_int, offset: u64, length: usize) -> Result<NonNull<c_void>, c_int> {
    let offset = c_long::try_from(offset).map_err(|_| EINVAL)?;
    let prot = PROT_READ | PROT_WRITE;
    // SAFETY: The kernel chooses the address of the new mapping, so no existing memory is affected.
    let place = unsafe { mmap(null_mut(), length, prot, MAP_SHARED, fd, offset) };
    // `MAP_FAILED` is the address -1.
    if place as isize == -1 {
        return Err(errno());
    }
    NonNull::new(place).ok_or(ENOMEM)
}

/// Removes a mapping.
///
/// # Safety
///
/// The mapping must have been made by [`map`] with this length, and nothing may use it any more.
pub(crate) unsafe fn unmap(place: NonNull<c_void>, length: usize) {
    // SAFETY: The caller guarantees that the mapping exists and is not used any more (see
    // `# Safety`).
    unsafe { munmap(place.as_ptr(), length) };
}

/// Writes a command to a device file.
///
/// # Errors
///
/// errno.
///
/// # Safety
///
/// All pointers in the command must be valid.
pub(crate) unsafe fn command<T>(fd: c_int, request: &T) -> Result<(), c_int> {
    let size = size_of::<T>();
    let buffer = core::ptr::from_ref(request).cast();
    // SAFETY: `buffer` is valid for `size` bytes. The caller guarantees that pointers in it are
    // valid (see `# Safety`).
    let written = unsafe { write(fd, buffer, size) };
    if usize::try_from(written) == Ok(size) {
        Ok(())
    } else {
        Err(errno())
    }
}

/// Frees memory that the C library allocated.
///
/// # Safety
///
/// `memory` must come from `malloc()` or `calloc()`, and nothing may use it any more.
pub(crate) unsafe fn release(memory: *mut c_void) {
    // SAFETY: The caller guarantees that the memory comes from `malloc()` or `calloc()` and is not
    // used any more (see `# Safety`).
    unsafe { free(memory) };
}
