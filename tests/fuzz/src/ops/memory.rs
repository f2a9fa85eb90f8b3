// SPDX-License-Identifier: GPL-2.0

//! The process's memory, while regions of it are used: of each kind, and taken away in each way.

use super::{
    completions::make_cq,
    device::keep_file,
    queues::{connect_patiently, make_qp, RC},
    regions, rings, Done,
};
use crate::{
    sys::{self, nr, PRIVATE_FIXED, READ_WRITE, SHARED_FIXED},
    thread::Thread,
    uverbs::cmd,
    world::{Kind, AREA},
};

fn area(thread: &mut Thread<'_>) -> u64 {
    thread.world.memory(thread.rng.next())
}

/// Part of an area, in whole pages.
fn pages(thread: &mut Thread<'_>) -> (i64, i64) {
    let base = area(thread);
    let first = if thread.rng.one_in(2) {
        0
    } else {
        thread.rng.below(AREA / 4096)
    };
    let count = 1 + thread.rng.below(AREA / 4096 - first);
    ((base + first * 4096) as i64, (count * 4096) as i64)
}

/// Plain memory in the place of an area: old contents are unmapped.
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
    sys::map(at, AREA, READ_WRITE, flags, -1, 0)?;
    // MADV_HUGEPAGE or MADV_NOHUGEPAGE
    let advice = thread.rng.pick(&[14, 15, 0]);
    sys::call(nr::MADVISE, &[at as i64, AREA as i64, advice]).map(|_| ())
}

/// A file of memory in the place of an area.
pub fn map_file(thread: &mut Thread<'_>) -> Done {
    let at = area(thread);
    file_at(thread, at)
}

fn file_at(thread: &mut Thread<'_>, at: u64) -> Done {
    sys::poke(thread.scratch, b"fuzz\0");
    let fd = sys::call(nr::MEMFD_CREATE, &[thread.scratch as i64, 0])?;
    shared_at(thread, at, fd)
}

/// Secret memory, which the kernel cannot reach, in the place of an area.
pub fn map_secret(thread: &mut Thread<'_>) -> Done {
    let at = area(thread);
    secret_at(thread, at)
}

fn secret_at(thread: &mut Thread<'_>, at: u64) -> Done {
    let fd = sys::call(nr::MEMFD_SECRET, &[0])?;
    shared_at(thread, at, fd)
}

fn shared_at(thread: &mut Thread<'_>, at: u64, fd: i64) -> Done {
    // Secret memory counts for the limit of locked memory.
    let length = if thread.rng.one_in(4) { AREA } else { 1 << 20 };
    let _ = sys::call(nr::FTRUNCATE, &[fd, length as i64]);
    let context = thread.context();
    let done = sys::map(at, length, READ_WRITE, SHARED_FIXED, fd as i32, 0).map(|_| ());
    if thread.rng.one_in(2) && done.is_ok() {
        let _ = regions::reg_at(thread, context, at, length, 0xf | 1 << 6);
    }
    keep_file(thread, context, fd);
    done
}

/// A ring of the driver's once more, in the place of an area: regions of the kernel's own memory.
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

/// Memory of any kind with a region and a QP to itself: messages go from it to itself, and it
/// is taken away meanwhile.
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
    connect_patiently(thread, qp, qp)?;
    for _ in 0..1 + thread.rng.below(16) {
        let opcode = thread.rng.pick(&rings::TRANSFERS);
        rings::post_message(
            qp,
            region,
            thread.rng.pick(&[64, 1000, length as u32]),
            opcode,
        );
    }
    rings::call(thread, qp)?;
    super::noise::pause(thread.rng.below(2000));
    let _ = take_away(thread, at as i64);
    super::noise::pause(thread.rng.below(4000));
    if thread.rng.one_in(2) {
        let _ = thread.order_handle(cmd::DEREG_MR, region);
    }
    thread.destroy_reporting(cmd::DESTROY_QP, qp)?;
    thread.destroy_reporting(cmd::DESTROY_CQ, cq).map(|_| ())
}

/// Takes the pages of an area away, or the right to use them.
fn take_away(thread: &mut Thread<'_>, at: i64) -> Done {
    let length = AREA as i64;
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

/// Other rights.
pub fn protect(thread: &mut Thread<'_>) -> Done {
    let (at, length) = pages(thread);
    let rights = thread.rng.pick(&[0, 1, 1, 3, 3, 3]);
    sys::call(nr::MPROTECT, &[at, length, rights]).map(|_| ())
}

/// Drops pages, pages them out, splits and joins huge ones.
pub fn advise(thread: &mut Thread<'_>) -> Done {
    let (at, length) = pages(thread);
    // DONTNEED, REMOVE, FREE, COLD, PAGEOUT, COLLAPSE, DONTFORK, DOFORK, WIPEONFORK,
    // HUGEPAGE, POPULATE_WRITE
    let advice = thread
        .rng
        .pick(&[4, 4, 4, 9, 8, 20, 21, 25, 10, 11, 18, 14, 23]);
    sys::call(nr::MADVISE, &[at, length, advice]).map(|_| ())
}

/// Another length of a file.
pub fn truncate(thread: &mut Thread<'_>) -> Done {
    let file = thread.any(Kind::File);
    let length = thread.rng.pick(&[0, 4096, 1 << 20, AREA as i64]);
    sys::call(nr::FTRUNCATE, &[file.handle.into(), length]).map(|_| ())
}

/// A hole in a file.
pub fn punch(thread: &mut Thread<'_>) -> Done {
    let file = thread.any(Kind::File);
    let offset = thread.rng.below(AREA / 4096) * 4096;
    sys::call(
        nr::FALLOCATE,
        &[file.handle.into(), 3, offset as i64, 65536],
    )
    .map(|_| ())
}

/// Writes to memory, as far as it may be written to.
pub fn touch(thread: &mut Thread<'_>) -> Done {
    let (at, length) = pages(thread);
    let length = length.min(256);
    let file = thread.any(Kind::File).handle;
    if thread.rng.one_in(2) {
        return sys::call(nr::PREAD64, &[file.into(), at, length, 0]).map(|_| ());
    }
    sys::call(nr::GETRANDOM, &[at, length, 0]).map(|_| ())
}

/// Moves pages elsewhere and plain ones into their place, or unmaps them for a while.
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
        &[from as i64, AREA as i64, AREA as i64, 3, to as i64],
    );
    sys::map(from, AREA, READ_WRITE, PRIVATE_FIXED, -1, 0)?;
    moved.map(|_| ())
}

/// A child that shares all memory and files for a while, and writes to some.
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
