// SPDX-License-Identifier: GPL-2.0

//! System calls, and access to memory that other threads, other processes and the kernel change at
//! the same time.
//!
//! Addresses are plain numbers. They are in fixed areas of the address space, outside of the memory
//! that Rust allocates, or in buffers that a caller lends to a system call, or they are invalid and
//! the kernel must refuse them. Except for one call in stats.rs, all of the program's `unsafe` is
//! in this module.

use std::{
    ffi::{c_char, c_int, c_long, c_void, CString},
    ptr,
    sync::atomic::{AtomicU32, AtomicU64},
};

extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
    fn __errno_location() -> *mut c_int;
    fn fork() -> c_int;
    fn _exit(status: c_int) -> !;
    fn waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn setgroups(count: usize, list: *const u32) -> c_int;
    fn setresuid(real: u32, effective: u32, saved: u32) -> c_int;
    fn setresgid(real: u32, effective: u32, saved: u32) -> c_int;
}

/// Numbers of system calls.
pub mod nr {
    /// Defines constants. Each line has a name, the number on x86-64, and the number on arm64.
    macro_rules! numbers {
        ($($name:ident, $x86_64:literal, $arm64:literal;)*) => {
            $(
                #[allow(missing_docs)]
                pub const $name: i64 = if cfg!(target_arch = "x86_64") { $x86_64 } else { $arm64 };
            )*
        };
    }

    numbers! {
        READ, 0, 63;
        WRITE, 1, 64;
        CLOSE, 3, 57;
        MMAP, 9, 222;
        MPROTECT, 10, 226;
        MUNMAP, 11, 215;
        IOCTL, 16, 29;
        PREAD64, 17, 67;
        MREMAP, 25, 216;
        MADVISE, 28, 233;
        DUP, 32, 23;
        NANOSLEEP, 35, 101;
        SOCKET, 41, 198;
        SENDTO, 44, 206;
        RECVFROM, 45, 207;
        FCNTL, 72, 25;
        FTRUNCATE, 77, 46;
        FALLOCATE, 285, 47;
        PRLIMIT64, 302, 261;
        GETTID, 186, 178;
        KILL, 62, 129;
        PRCTL, 157, 167;
        SCHED_SETAFFINITY, 203, 122;
        SCHED_SETSCHEDULER, 144, 119;
        SETPGID, 109, 154;
        GETRANDOM, 318, 278;
        MEMFD_CREATE, 319, 279;
        MEMFD_SECRET, 447, 447;
    }
}

/// The result of a system call: its return value or its errno.
pub type Outcome = Result<i64, i32>;

/// Makes any system call. Its arguments must not let the kernel write to memory that Rust owns,
/// except to a buffer that the caller lends.
pub fn call(number: i64, arguments: &[i64]) -> Outcome {
    let at = |index: usize| arguments.get(index).copied().unwrap_or(0);
    // SAFETY: The call has at most six arguments. The callers pass addresses in the fixed areas,
    // addresses of buffers that they own, or addresses that the kernel refuses.
    let result = unsafe { syscall(number, at(0), at(1), at(2), at(3), at(4), at(5)) };
    if result == -1 {
        // SAFETY: The pointer is this thread's errno.
        return Err(unsafe { *__errno_location() });
    }
    Ok(result)
}

/// `mmap`.
pub fn map(
    address: u64,
    length: u64,
    protection: i64,
    flags: i64,
    fd: i32,
    offset: u64,
) -> Outcome {
    let fd = i64::from(fd);
    call(
        nr::MMAP,
        &[
            address as i64,
            length as i64,
            protection,
            flags,
            fd,
            offset as i64,
        ],
    )
}

/// PROT_READ and PROT_WRITE.
pub const READ_WRITE: i64 = 3;
/// MAP_SHARED and MAP_FIXED.
pub const SHARED_FIXED: i64 = 0x11;
/// MAP_PRIVATE, MAP_FIXED, MAP_ANONYMOUS and MAP_NORESERVE.
pub const PRIVATE_FIXED: i64 = 0x4032;
/// MAP_SHARED and MAP_ANONYMOUS.
const SHARED_ANONYMOUS: i64 = 0x21;

/// Closes a file descriptor.
pub fn close(fd: i32) -> Outcome {
    call(nr::CLOSE, &[fd.into()])
}

/// Writes `bytes` to a file descriptor.
pub fn write(fd: i32, bytes: &[u8]) -> Outcome {
    call(
        nr::WRITE,
        &[fd.into(), bytes.as_ptr() as i64, bytes.len() as i64],
    )
}

/// Sets O_NONBLOCK of a file descriptor.
pub fn nonblocking(fd: i32) {
    let _ = call(nr::FCNTL, &[fd.into(), 4, 0o4000]);
}

/// Opens a file with O_RDWR and O_CLOEXEC.
pub fn open(path: &str) -> Result<i32, i32> {
    extern "C" {
        fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    }
    let path = CString::new(path).map_err(|_| 22)?;
    // SAFETY: The path is a string that ends with zero.
    let fd = unsafe { open(path.as_ptr(), 0o2_000_002) };
    if fd < 0 {
        // SAFETY: The pointer is this thread's errno.
        return Err(unsafe { *__errno_location() });
    }
    Ok(fd)
}

/// The 32-bit word at an address of a fixed area. Other threads and the kernel may change it.
pub fn word(address: u64) -> &'static AtomicU32 {
    // SAFETY: The callers pass addresses in areas that stay mapped for reading and writing.
    unsafe { AtomicU32::from_ptr(address as *mut u32) }
}

/// The 64-bit word at an address of a fixed area. Other threads and the kernel may change it.
pub fn quad(address: u64) -> &'static AtomicU64 {
    // SAFETY: The callers pass addresses in areas that stay mapped for reading and writing.
    unsafe { AtomicU64::from_ptr(address as *mut u64) }
}

/// Copies bytes to a fixed area.
pub fn poke(address: u64, bytes: &[u8]) {
    for (offset, byte) in (0u64..).zip(bytes) {
        // SAFETY: The callers pass addresses in areas that stay mapped for reading and writing.
        unsafe { ptr::write_volatile((address + offset) as *mut u8, *byte) };
    }
}

/// Copies bytes from a fixed area.
pub fn peek(address: u64, length: usize) -> Vec<u8> {
    // SAFETY: The callers pass addresses in areas that stay mapped for reading and writing.
    let byte = |offset| unsafe { ptr::read_volatile((address + offset) as *const u8) };
    (0..length as u64).map(byte).collect()
}

/// Maps zeroed memory that later children share, and returns it as a `T`.
///
/// # Safety
///
/// All zero bytes must be a valid `T`.
pub unsafe fn shared<T: Sync>() -> Result<&'static T, i32> {
    let address = map(
        0,
        size_of::<T>() as u64,
        READ_WRITE,
        SHARED_ANONYMOUS,
        -1,
        0,
    )?;
    // SAFETY: The mapping has the length of `T`, is aligned to pages, and is never unmapped.
    Ok(unsafe { &*(address as *const T) })
}

/// Forks a child that runs `body` and exits with its result. May be called only while the process
/// has one thread.
pub fn child(body: impl FnOnce() -> i32) -> Result<i32, i32> {
    // SAFETY: The process has one thread, so that the child may do anything.
    match unsafe { fork() } {
        // SAFETY: The call ends the process at once.
        0 => unsafe { _exit(body()) },
        // SAFETY: The pointer is this thread's errno.
        -1 => Err(unsafe { *__errno_location() }),
        pid => Ok(pid),
    }
}

/// Forks a child that makes the system calls of `body` and exits. The process may have several
/// threads.
///
/// `body` must not allocate memory and must not take a lock.
pub fn brief_child(body: impl FnOnce()) -> Outcome {
    // SAFETY: The child only makes system calls.
    match unsafe { fork() } {
        0 => {
            body();
            // SAFETY: The call ends the process at once.
            unsafe { _exit(0) }
        }
        // SAFETY: The pointer is this thread's errno.
        -1 => Err(unsafe { *__errno_location() }),
        pid => Ok(pid.into()),
    }
}

/// Reaps child `pid`, or any child for -1, if it has ended. Returns its process ID and status.
pub fn reap(pid: i32) -> Option<(i32, i32)> {
    let mut status = 0;
    // SAFETY: The status is a local variable. 1 is WNOHANG.
    let pid = unsafe { waitpid(pid, &mut status, 1) };
    (pid > 0).then_some((pid, status))
}

/// Changes the process to user and group `id`, without supplementary groups.
pub fn become_user(id: u32) -> bool {
    // SAFETY: With a count of zero the call reads no list.
    let groups = unsafe { setgroups(0, ptr::null()) };
    // SAFETY: The call has no pointer arguments.
    let group = unsafe { setresgid(id, id, id) };
    // SAFETY: The call has no pointer arguments.
    let user = unsafe { setresuid(id, id, id) };
    // PR_SET_DUMPABLE, so that the process owns its files in /proc, such as fail-nth.
    let dumpable = call(nr::PRCTL, &[4, 1]);
    (groups, group, user, dumpable) == (0, 0, 0, Ok(0))
}

/// Sets the soft and the hard limit of a resource.
pub fn limit(resource: i64, value: u64) {
    let limits = [value, value];
    let _ = call(nr::PRLIMIT64, &[0, resource, limits.as_ptr() as i64, 0]);
}

/// Binds this thread to a CPU and gives it the real-time policy SCHED_FIFO, so that it preempts all
/// threads without a real-time policy.
pub fn set_realtime_on(cpu: u64) {
    let mask = [1u64 << cpu];
    let _ = call(nr::SCHED_SETAFFINITY, &[0, 8, mask.as_ptr() as i64]);
    let priority = [50i32];
    let _ = call(nr::SCHED_SETSCHEDULER, &[0, 1, priority.as_ptr() as i64]);
}

/// The address of memory that a caller lends to a system call.
pub fn address<T>(memory: &T) -> i64 {
    ptr::from_ref(memory).cast::<c_void>() as i64
}
