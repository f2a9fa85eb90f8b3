// SPDX-License-Identifier: GPL-2.0

//! Operations on the process's memory while regions of it are in use: mappings of each kind, and
//! each way to unmap, protect, truncate or move them. The memory of a process consists of areas of
//! [`AREA_LEN`] bytes at fixed addresses.

use super::{
    completions::make_cq,
    device::add_file,
    queues::{connect_with_long_timers, make_qp, RC},
    regions, rings, Done,
};
use crate::{
    sys::{self, nr, PRIVATE_FIXED, READ_WRITE, SHARED_FIXED},
    thread::Thread,
    uverbs::cmd,
    world::{Kind, AREA_LEN},
};

fn area(thread: &mut Thread<'_>) -> u64 {
    thread.world.memory(thread.rng.next())
}

/// Chooses some pages of an area. Returns their address and length.
fn pages(thread: &mut Thread<'_>) -> (i64, i64) {
    let base = area(thread);
    let first = if thread.rng.one_in(2) {
        0
    } else {
        thread.rng.below(AREA_LEN / 4096)
    };
    let count = 1 + thread.rng.below(AREA_LEN / 4096 - first);
    ((base + first * 4096) as i64, (count * 4096) as i64)
}

/// Maps anonymous memory over an area, which unmaps its old contents.
pub fn map_plain(thread: &mut Thread<'_>) -> Done {
    let at = area(thread);
    plain_at(thread, at)
}

fn plain_at(thread: &mut Thread<'_>, at: u64) -> Done {
    let flags = match thread.rng.below(6) {
        0 => 0x21 | 0x10,
        // MAP_HUGETLB
        1 => PRIVATE_FIXED | 0x40000,
        _ => PRIVATE_FIXED,
    };
    sys::map(at, AREA_LEN, READ_WRITE, flags, -1, 0)?;
    // MADV_HUGEPAGE, MADV_NOHUGEPAGE or MADV_NORMAL
    let advice = thread.rng.pick(&[14, 15, 0]);
    sys::call(nr::MADVISE, &[at as i64, AREA_LEN as i64, advice]).map(|_| ())
}

/// Maps a memfd over an area.
pub fn map_file(thread: &mut Thread<'_>) -> Done {
    let at = area(thread);
    file_at(thread, at)
}

fn file_at(thread: &mut Thread<'_>, at: u64) -> Done {
    sys::poke(thread.scratch, b"fuzz\0");
    let fd = sys::call(nr::MEMFD_CREATE, &[thread.scratch as i64, 0])?;
    shared_at(thread, at, fd)
}

/// Maps secret memory (`memfd_secret`), which the kernel's direct mapping lacks, over an area.
pub fn map_secret(thread: &mut Thread<'_>) -> Done {
    let at = area(thread);
    secret_at(thread, at)
}

fn secret_at(thread: &mut Thread<'_>, at: u64) -> Done {
    let fd = sys::call(nr::MEMFD_SECRET, &[0])?;
    shared_at(thread, at, fd)
}

fn shared_at(thread: &mut Thread<'_>, at: u64, fd: i64) -> Done {
    // Mostly a shorter mapping, because secret memory counts against the limit of locked memory.
    let length = if thread.rng.one_in(4) {
        AREA_LEN
    } else {
        1 << 20
    };
    let _ = sys::call(nr::FTRUNCATE, &[fd, length as i64]);
    let context = thread.context();
    let done = sys::map(at, length, READ_WRITE, SHARED_FIXED, fd as i32, 0).map(|_| ());
    if thread.rng.one_in(2) && done.is_ok() {
        let _ = regions::reg_at(thread, context, at, length, 0xf | 1 << 6);
    }
    add_file(thread, context, fd);
    done
}

/// Maps a ring of the driver a second time, over an area, so that regions of the ring's pages can
/// be registered.
pub fn map_ring_copy(thread: &mut Thread<'_>) -> Done {
    let at = area(thread);
    ring_copy_at(thread, at)
}

fn ring_copy_at(thread: &mut Thread<'_>, at: u64) -> Done {
    let context = thread.context();
    let offset = thread.rng.below(64) * 4096;
    let length = thread.rng.pick(&[4096, 8192, 16384, 32768]);
    sys::map(
        at,
        length,
        READ_WRITE,
        SHARED_FIXED,
        thread.world.fd(context),
        offset,
    )
    .map(|_| ())
}

/// Registers memory of any kind and creates a QP that is connected to itself. Takes the memory away
/// while messages go from the region to the region.
pub fn brief_mr(thread: &mut Thread<'_>) -> Done {
    let (context, at) = (thread.context(), area(thread));
    match thread.rng.below(8) {
        0..=1 => plain_at(thread, at),
        2..=4 => file_at(thread, at),
        5..=6 => secret_at(thread, at),
        _ => ring_copy_at(thread, at),
    }?;
    let access = thread.rng.pick(&[0x1f, 0x31f, 0x5f, 0x5f]);
    let length = thread.rng.pick(&[4096, 1 << 15, 1 << 16]);
    let region = regions::reg_at(thread, context, at, length, access)?;
    let cq = make_cq(thread, context, 250)?;
    let qp = make_qp(thread, context, RC, cq, cq, None)?;
    connect_with_long_timers(thread, qp, qp)?;
    for _ in 0..1 + thread.rng.below(16) {
        let opcode = thread.rng.pick(&rings::TRANSFERS);
        rings::post_message(
            qp,
            region,
            thread.rng.pick(&[64, 1000, length as u32]),
            opcode,
        );
    }
    rings::ring_by_call(thread, qp)?;
    super::noise::pause(thread.rng.below(2000));
    let _ = revoke_memory(thread, at as i64);
    super::noise::pause(thread.rng.below(4000));
    if thread.rng.one_in(2) {
        let _ = thread.command_on_handle(cmd::DEREG_MR, region);
    }
    thread.command_destroy(cmd::DESTROY_QP, qp)?;
    thread.command_destroy(cmd::DESTROY_CQ, cq).map(|_| ())
}

/// Drops, protects or remaps the pages of an area, truncates a random file, or does nothing.
fn revoke_memory(thread: &mut Thread<'_>, at: i64) -> Done {
    let length = AREA_LEN as i64;
    match thread.rng.below(6) {
        // MADV_DONTNEED, MADV_REMOVE and MADV_PAGEOUT
        0..=1 => {
            let advice = thread.rng.pick(&[4, 9, 21]);
            sys::call(nr::MADVISE, &[at, length, advice]).map(|_| ())
        }
        2 => {
            let rights = thread.rng.pick(&[0, 1]);
            sys::call(nr::MPROTECT, &[at, length, rights]).map(|_| ())
        }
        3 => truncate(thread),
        4 => plain_at(thread, at as u64),
        _ => Ok(()),
    }
}

/// Changes the protection of pages.
pub fn protect(thread: &mut Thread<'_>) -> Done {
    let (at, length) = pages(thread);
    let rights = thread.rng.pick(&[0, 1, 1, 3, 3, 3]);
    sys::call(nr::MPROTECT, &[at, length, rights]).map(|_| ())
}

/// Makes a random `madvise`, which may drop pages, page them out, or split or collapse huge pages.
pub fn advise(thread: &mut Thread<'_>) -> Done {
    let (at, length) = pages(thread);
    // DONTNEED, REMOVE, FREE, COLD, PAGEOUT, COLLAPSE, DONTFORK, DOFORK, WIPEONFORK, HUGEPAGE,
    // POPULATE_WRITE
    let advice = thread
        .rng
        .pick(&[4, 4, 4, 9, 8, 20, 21, 25, 10, 11, 18, 14, 23]);
    sys::call(nr::MADVISE, &[at, length, advice]).map(|_| ())
}

/// Changes the length of a file that areas map.
pub fn truncate(thread: &mut Thread<'_>) -> Done {
    let file = thread.any(Kind::File);
    let length = thread.rng.pick(&[0, 4096, 1 << 20, AREA_LEN as i64]);
    sys::call(nr::FTRUNCATE, &[file.handle.into(), length]).map(|_| ())
}

/// Punches a hole in a file that areas map.
pub fn punch(thread: &mut Thread<'_>) -> Done {
    let file = thread.any(Kind::File);
    let offset = thread.rng.below(AREA_LEN / 4096) * 4096;
    sys::call(
        nr::FALLOCATE,
        &[file.handle.into(), 3, offset as i64, 65536],
    )
    .map(|_| ())
}

/// Has system calls write to memory, so that pages without write access cause no signal.
pub fn touch(thread: &mut Thread<'_>) -> Done {
    let (at, length) = pages(thread);
    let length = length.min(256);
    let file = thread.any(Kind::File).handle;
    if thread.rng.one_in(2) {
        return sys::call(nr::PREAD64, &[file.into(), at, length, 0]).map(|_| ());
    }
    sys::call(nr::GETRANDOM, &[at, length, 0]).map(|_| ())
}

/// Moves an area over another and maps anonymous memory in its place, or unmaps pages for a short
/// time.
pub fn remap(thread: &mut Thread<'_>) -> Done {
    let (from, to) = (area(thread), area(thread));
    if thread.rng.one_in(2) {
        let (at, length) = pages(thread);
        sys::call(nr::MUNMAP, &[at, length])?;
        return sys::map(at as u64, length as u64, READ_WRITE, PRIVATE_FIXED, -1, 0).map(|_| ());
    }
    // MREMAP_MAYMOVE and MREMAP_FIXED
    let moved = sys::call(
        nr::MREMAP,
        &[from as i64, AREA_LEN as i64, AREA_LEN as i64, 3, to as i64],
    );
    sys::map(from, AREA_LEN, READ_WRITE, PRIVATE_FIXED, -1, 0)?;
    moved.map(|_| ())
}

/// Forks a child, which shares all files and the copy-on-write memory for some time and writes to
/// some of the memory.
pub fn fork(thread: &mut Thread<'_>) -> Done {
    let (at, length) = pages(thread);
    let length = length.min(65536);
    let pause = thread.rng.below(20_000);
    let kill = thread.rng.one_in(2);
    let pid = sys::brief_child(|| {
        let _ = sys::call(nr::GETRANDOM, &[at, length, 0]);
        super::noise::pause(pause);
    })?;
    if kill {
        let _ = sys::call(nr::KILL, &[pid, 9]);
    }
    while sys::reap(-1).is_some() {}
    Ok(())
}
