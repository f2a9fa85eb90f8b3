// SPDX-License-Identifier: GPL-2.0

//! Memory that peers write to by RDMA. The programs access the bytes of an operation only before
//! and after it, by volatile reads and writes.

use std::{io, mem::ManuallyDrop, ptr};

extern "C" {
    fn mmap(addr: *mut u8, len: usize, prot: i32, flags: i32, fd: i32, offset: i64) -> *mut u8;
    fn munmap(addr: *mut u8, len: usize) -> i32;
    fn mremap(old: *mut u8, old_len: usize, len: usize, flags: i32, ...) -> *mut u8;
    fn sysconf(name: i32) -> isize;
}

const PROT_READ_WRITE: i32 = 3;
const MAP_PRIVATE_ANONYMOUS_POPULATE: i32 = 0x2 | 0x20 | 0x8000;
const MREMAP_MAYMOVE_FIXED: i32 = 0x1 | 0x2;
const SC_PAGESIZE: i32 = 30;

/// Size of a page in bytes.
pub fn page_size() -> usize {
    // SAFETY: The function only returns a constant of the machine.
    unsafe { sysconf(SC_PAGESIZE) as usize }
}

/// Page-aligned, populated, private anonymous memory.
pub struct Buffer {
    start: *mut u8,
    len: usize,
}

impl Buffer {
    /// Maps `len` zero bytes.
    pub fn new(len: usize) -> io::Result<Self> {
        // SAFETY: An anonymous mapping at an address of the kernel's choice touches nothing.
        let start = unsafe {
            mmap(
                ptr::null_mut(),
                len,
                PROT_READ_WRITE,
                MAP_PRIVATE_ANONYMOUS_POPULATE,
                -1,
                0,
            )
        };
        if start as isize == -1 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { start, len })
    }

    /// Replaces the second page, so that the pages do not all lie together in physical memory. Then
    /// rrxe stores the address of each page of a region of this memory. Does nothing if there are
    /// fewer than three pages.
    pub fn scatter(&mut self) -> io::Result<()> {
        let page_size = page_size();
        if self.len < 3 * page_size {
            return Ok(());
        }
        // This page is allocated while the second page still exists, so it is another one.
        let page = ManuallyDrop::new(Self::new(page_size)?);
        // SAFETY: The target is the second page of this mapping, to which no reference exists. The
        // new page leaves its own mapping, which is not dropped.
        let moved = unsafe {
            mremap(
                page.start,
                page_size,
                page_size,
                MREMAP_MAYMOVE_FIXED,
                self.start.add(page_size),
            )
        };
        if moved as isize == -1 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Virtual address of the first byte.
    pub fn addr(&self) -> u64 {
        self.start as u64
    }

    /// Fills `len` bytes at `offset` with the pattern of `seed`.
    pub fn fill(&mut self, offset: usize, len: usize, seed: u64) {
        for i in 0..len {
            self.set(offset + i, pattern(seed, i));
        }
    }

    /// Compares the `len` bytes at `offset` with the pattern of `seed` ([`Self::fill`]). Returns
    /// the position of the first byte that differs, counted from `offset`.
    pub fn mismatch(&self, offset: usize, len: usize, seed: u64) -> Option<usize> {
        (0..len).find(|&i| self.get(offset + i) != pattern(seed, i))
    }

    /// The byte at `at`.
    pub fn get(&self, at: usize) -> u8 {
        assert!(at < self.len);
        // SAFETY: In bounds of the mapping. Volatile, because a peer may have written the byte.
        unsafe { self.start.add(at).read_volatile() }
    }

    /// Sets the byte at `at`.
    pub fn set(&mut self, at: usize, byte: u8) {
        assert!(at < self.len);
        // SAFETY: In bounds of the mapping.
        unsafe { self.start.add(at).write_volatile(byte) }
    }

    /// The native 64-bit word at `at`, which must be aligned.
    pub fn word(&self, at: usize) -> u64 {
        assert!(at % 8 == 0 && at + 8 <= self.len);
        // SAFETY: Aligned and in bounds of the mapping.
        unsafe { self.start.add(at).cast::<u64>().read_volatile() }
    }

    /// Sets the native 64-bit word at `at`, which must be aligned.
    pub fn set_word(&mut self, at: usize, word: u64) {
        assert!(at % 8 == 0 && at + 8 <= self.len);
        // SAFETY: Aligned and in bounds of the mapping.
        unsafe { self.start.add(at).cast::<u64>().write_volatile(word) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: The buffer owns the mapping, and its last user is gone.
        unsafe { munmap(self.start, self.len) };
    }
}

/// Byte `i` of the pattern of `seed`.
fn pattern(seed: u64, i: usize) -> u8 {
    let mixed = (seed ^ (i as u64 / 8)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (8 * (i % 8))) as u8
}
