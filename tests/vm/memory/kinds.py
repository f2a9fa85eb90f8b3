#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests of regions over every kind of memory that a process can map: kinds.py DEVICE GID-INDEX.

The driver either serves accesses to a kind of memory, or refuses them with the right status or
errno. Documentation/safety.rst, "Memory that a region may lie over", gives the reason for each
kind. The cases try pinned and on-demand regions, accesses by a peer and by the owner of the memory,
and advice (`ibv_advise_mr()`). Each use has two RC QPs of DEVICE, connected in one process
(loopback, by entry GID-INDEX of the GID table).
"""

import ctypes
import errno
import mmap
import os
import resource
import socket
import struct
import sys

import pyverbs.enums as e

import pairs
from pairs import (
    ALL, PAGE, REMOTE_READ, Buffer, MappedMemory, Pair, become_nobody, case, equal, in_child, libc,
    main, map_memory, pattern, register, wait_until_equal,
)
import userfault
from uverbs import advise_mr, errno_of, reg_mr

ON_DEMAND = e.IBV_ACCESS_ON_DEMAND
SUCCESS, REM_ACCESS_ERR = e.IBV_WC_SUCCESS, e.IBV_WC_REM_ACCESS_ERR
LOC_PROT_ERR = e.IBV_WC_LOC_PROT_ERR
# Kinds of advice (enum ib_uverbs_advise_mr_advice), and the flag to follow it before the call
# returns.
PREFETCH, PREFETCH_WRITE, FLAG_FLUSH = 0, 1, 1
# Bytes: the kernel's default of RLIMIT_MEMLOCK (MLOCK_LIMIT).
DEFAULT_MEMLOCK = 8 << 20
# Bytes of a huge page.
HUGE_PAGE = 2 << 20
# Of madvise(2), mmap(2) and fallocate(2), and numbers of system calls on x86-64.
MADV_MERGEABLE, MADV_HUGEPAGE = 12, 14
MAP_HUGETLB = 0x40000
PUNCH_HOLE_KEEP_SIZE = 3
NR_MEMFD_SECRET, NR_IO_URING_SETUP = 447, 425

libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


def syscall(number, *arguments):
    value = libc.syscall(number, *arguments)
    if value < 0:
        raise OSError(ctypes.get_errno(), f"system call {number}")
    return value


def check_no_error(code, label):
    equal(code, 0, f"{label}, errno {ctypes.get_errno()}")


def private(length=PAGE, flags=mmap.MAP_PRIVATE):
    return MappedMemory(map_memory(length, flags=flags), length)


def map_file(fd, length=PAGE, protection=pairs.READ_WRITE, flags=mmap.MAP_SHARED):
    address = libc.mmap(None, length, protection, flags, fd, 0)
    return MappedMemory(0 if address == ctypes.c_void_p(-1).value else address, length)


def memfd(length, flags=0):
    fd = os.memfd_create("memory", flags)
    os.ftruncate(fd, length)
    return fd


class Use:
    """A pair of QPs, a region over `memory`, and a region over a page of ordinary memory.

    The region over `memory` is an on-demand one, unless `access` says otherwise."""

    def __init__(self, memory, access=ALL | ON_DEMAND):
        self.pair, self.memory = Pair(), memory
        # Not by the library's ibv_reg_mr(), which may first exclude the memory from fork()
        # (ibv_dontfork_range()).
        self.region = reg_mr(self.pair.pd, self.pair.context, memory.address, memory.length,
                             memory.address, access)
        self.own = Buffer(PAGE)
        self.own_region = register(self.pair.pd, self.own)

    def peer(self, operation, at=0, length=64):
        """Has a peer read or write the memory. Returns the status."""
        local = (self.own.address, length, self.own_region.lkey)
        return getattr(self.pair, operation)(local, (self.memory.address + at, self.region.rkey))

    def owner(self, operation, at=0, length=64):
        """Has the owner's QP read into the memory, or write from it. Returns the status."""
        local = (self.memory.address + at, length, self.region.lkey)
        return getattr(self.pair, operation)(local, (self.own.address, self.own_region.rkey))

    def advise(self, how, at=0, length=64):
        """Returns the errno of advice that is followed before the call returns."""
        sge = (self.memory.address + at, length, self.region.lkey)
        return errno_of(advise_mr, self.pair.pd, self.pair.context, how, FLAG_FLUSH, [sge])


def check_served(memory, access=ALL | ON_DEMAND, at=0):
    """Fails unless a peer and the owner can use the memory and see the content that the process
    sees."""
    use = Use(memory, access)
    memory.fill(b"process ".ljust(64), at)
    equal(use.peer("read", at), SUCCESS, "a peer's read")
    equal(use.own.read(64), b"process ".ljust(64), "data that the peer read")
    use.own.fill(pattern(64))
    equal(use.peer("write", at), SUCCESS, "a peer's write")
    equal(memory.read(64, at), pattern(64), "data that the peer wrote")
    use.own.fill(bytes(64))
    equal(use.owner("write", at), SUCCESS, "the owner's write from the memory")
    equal(use.own.read(64), pattern(64), "data that the owner wrote")
    use.own.fill(b"owner".ljust(64))
    equal(use.owner("read", at), SUCCESS, "the owner's read into the memory")
    equal(memory.read(64, at), b"owner".ljust(64), "data that the owner read")
    return use


def check_served_odp_and_pinned(memory, at=0):
    check_served(memory, at=at)
    check_served(memory, ALL, at=at)


def check_refused(memory, operations="both", at=0, access=ALL | ON_DEMAND):
    """Fails unless all accesses to an on-demand region over the memory are refused.

    With another value of `operations` than "both", only writes are refused."""
    writes = REM_ACCESS_ERR, LOC_PROT_ERR
    reads = writes if operations == "both" else (SUCCESS, SUCCESS)
    equal(Use(memory, access).peer("read", at), reads[0], "a peer's read")
    equal(Use(memory, access).peer("write", at), writes[0], "a peer's write")
    equal(Use(memory, access).owner("write", at), reads[1], "the owner's write from the memory")
    equal(Use(memory, access).owner("read", at), writes[1], "the owner's read into the memory")
    wanted = errno.EFAULT if operations == "both" else 0
    equal(Use(memory, access).advise(PREFETCH, at), wanted, "errno of advice to read")


def pinned_errno(memory, access=ALL):
    pair = Pair()
    return errno_of(reg_mr, pair.pd, pair.context, memory.address, memory.length, memory.address,
                    access)


def secret(length=PAGE):
    fd = syscall(NR_MEMFD_SECRET, 0)
    os.ftruncate(fd, length)
    memory = map_file(fd, length)
    os.close(fd)
    return memory


def check_secret_refused():
    memory = secret(2 * PAGE)
    check_refused(memory)
    memory.fill(pattern(64), PAGE)
    check_refused(memory, at=PAGE)
    equal(Use(memory).advise(PREFETCH_WRITE), errno.EFAULT, "errno of advice to write")
    equal(pinned_errno(memory), errno.EFAULT, "errno of pinning")
    equal(memory.read(64, PAGE), pattern(64), "data that the process sees")


@case("secret memory is refused")
def secret_memory():
    check_secret_refused()


@case("secret memory between ordinary pages of a region is refused")
def secret_between():
    base = map_memory(4 * PAGE, flags=mmap.MAP_PRIVATE)
    fd = syscall(NR_MEMFD_SECRET, 0)
    os.ftruncate(fd, PAGE)
    equal(map_memory(PAGE, fd, at=base + PAGE), base + PAGE, "address")
    memory = MappedMemory(base, 4 * PAGE)
    check_served(memory)
    check_served(memory, at=2 * PAGE)
    check_refused(memory, at=PAGE)
    equal(Use(memory).peer("write", PAGE - 8), REM_ACCESS_ERR,
          "a write across the boundary to the secret page")
    # Ordinary memory takes the place of the secret page.
    use = Use(memory)
    equal(use.advise(PREFETCH, PAGE), errno.EFAULT, "errno of advice to the secret page")
    equal(map_memory(PAGE, flags=mmap.MAP_PRIVATE, at=base + PAGE), base + PAGE, "address")
    equal(use.peer("write", PAGE), SUCCESS, "a write to the page that replaced it")
    os.close(fd)


@case("secret memory is refused and ordinary memory is served for the user nobody")
def unprivileged():
    def work():
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (DEFAULT_MEMLOCK, DEFAULT_MEMLOCK))
        become_nobody()
        check_secret_refused()
        check_served_odp_and_pinned(private())

    in_child(work)


@case("shared and private anonymous memory is served")
def anonymous():
    check_served_odp_and_pinned(private())
    check_served_odp_and_pinned(Buffer(PAGE))


@case("transparent huge pages are served")
def transparent():
    memory = private(2 * HUGE_PAGE)
    libc.madvise(memory.address, memory.length, MADV_HUGEPAGE)
    check_served_odp_and_pinned(memory, HUGE_PAGE + 5 * PAGE)


@case("huge pages are served")
def huge():
    memory = private(HUGE_PAGE, mmap.MAP_PRIVATE | MAP_HUGETLB)
    check_served_odp_and_pinned(memory, 17 * PAGE)
    libc.munmap(memory.address, memory.length)


@case("a peer's WRITE does not change the shared page of zeros")
def zeros():
    for flags in (0, MADV_HUGEPAGE):
        memory, other = private(2 * HUGE_PAGE), private(2 * HUGE_PAGE)
        for buffer in (memory, other):
            if flags:
                libc.madvise(buffer.address, buffer.length, flags)
        use, other_use = Use(memory), Use(other)
        use.own.fill(pattern(64))
        for at in (0, HUGE_PAGE):
            # The reads map the shared page of zeros twice. The write gives one mapping a page of
            # its own.
            equal(use.peer("read", at), SUCCESS, "a read of the page of zeros")
            equal(other_use.peer("read", at), SUCCESS,
                  "a read of the page of zeros by another mapping")
            equal(use.own.read(64), bytes(64), "zeros that were read")
            use.own.fill(pattern(64))
            equal(use.peer("write", at), SUCCESS, "write")
            equal(memory.read(64, at), pattern(64), "data that was written")
            equal(other_use.peer("read", at), SUCCESS,
                  "a read of the other mapping after the write")
            equal(other_use.own.read(64) + other.read(64, at), bytes(128),
                  "zeros in the other mapping")


@case("a peer's WRITE to a page merged by KSM changes one copy only")
def merged():
    first, second = private(16 * PAGE), private(16 * PAGE)
    for memory in (first, second):
        memory.fill(b"\x5a" * memory.length)
        libc.madvise(memory.address, memory.length, MADV_MERGEABLE)
    use = Use(first)
    equal(use.peer("write"), SUCCESS, "write")
    first.fill(b"\x5a" * 64)

    def merged_pages():
        with open("/proc/self/ksm_merging_pages", encoding="ascii") as count:
            return int(count.read())

    def setting(name, value):
        with open(f"/sys/kernel/mm/ksm/{name}", "w", encoding="ascii") as file:
            file.write(str(value))

    setting("pages_to_scan", 1000)
    setting("run", 1)
    wait_until_equal(merged_pages, 32, "merged pages")
    setting("run", 0)
    use.own.fill(pattern(64))
    equal(use.peer("write"), SUCCESS, "write")
    equal(first.read(64), pattern(64), "data that was written")
    equal(second.read(second.length), b"\x5a" * second.length, "the other copy of the merged page")
    equal(first.read(15 * PAGE, PAGE), b"\x5a" * 15 * PAGE, "further pages of the same mapping")


@case("a memfd and a hole in it are served")
def file():
    fd = memfd(4 * PAGE)
    memory = map_file(fd, 4 * PAGE)
    check_served_odp_and_pinned(memory)
    use = check_served(memory, at=PAGE)
    check_no_error(libc.fallocate(fd, PUNCH_HOLE_KEEP_SIZE, PAGE, PAGE), "punching a hole")
    equal(use.peer("read", PAGE), SUCCESS, "a read of the hole")
    equal(use.own.read(64), bytes(64), "zeros from the hole")
    use.own.fill(pattern(64))
    equal(use.peer("write", PAGE), SUCCESS, "a write into the hole")
    equal(os.pread(fd, 64, PAGE), pattern(64), "data in the file")
    os.close(fd)


@case("accesses beyond the end of a truncated file are refused")
def truncated():
    fd = memfd(4 * PAGE)
    memory = map_file(fd, 4 * PAGE)
    use = check_served(memory, at=2 * PAGE)
    pinned = Use(memory, ALL)
    os.ftruncate(fd, PAGE)
    equal(use.peer("read", 2 * PAGE), REM_ACCESS_ERR, "a read beyond the end of the file")
    check_refused(memory, at=2 * PAGE)
    # The pinned pages are no longer pages of the file, but the region keeps them.
    equal(pinned.peer("write", 2 * PAGE), SUCCESS, "a write to a pinned page")
    os.ftruncate(fd, 4 * PAGE)
    equal(os.pread(fd, 3 * PAGE, PAGE), bytes(3 * PAGE), "data in the file")
    check_served(memory, at=2 * PAGE)
    os.close(fd)


@case("a WRITE to a shared mapping of a read-only file is refused")
def read_only_file():
    path = "/tmp/read-only"
    with open(path, "wb") as file_:
        file_.write(b"file".ljust(2 * PAGE))
    fd = os.open(path, os.O_RDONLY)
    shared = map_file(fd, 2 * PAGE, mmap.PROT_READ)
    check_refused(shared, "write")
    equal(pinned_errno(shared), errno.EFAULT, "errno of pinning for writing")
    # A write to a private mapping makes a private copy of the page.
    copy = map_file(fd, 2 * PAGE, flags=mmap.MAP_PRIVATE)
    equal(Use(copy).peer("read"), SUCCESS, "a read of the file")
    check_served_odp_and_pinned(copy)
    with open(path, "rb") as file_:
        equal(file_.read(), b"file".ljust(2 * PAGE), "data in the file")
    os.close(fd)
    os.unlink(path)


@case("accesses are refused after mprotect() has taken the right away")
def protected():
    memory = private(2 * PAGE)
    writer, reader = check_served(memory), check_served(memory)
    check_no_error(libc.mprotect(memory.address, PAGE, mmap.PROT_READ), "mprotect")
    equal(reader.peer("read"), SUCCESS, "a read of memory with PROT_READ")
    equal(writer.peer("write"), REM_ACCESS_ERR, "a write to memory with PROT_READ")
    check_no_error(libc.mprotect(memory.address, PAGE, 0), "mprotect")
    equal(reader.peer("read"), REM_ACCESS_ERR, "a read of memory with PROT_NONE")
    check_refused(memory)
    check_no_error(libc.mprotect(memory.address, PAGE, pairs.READ_WRITE), "mprotect")
    check_served_odp_and_pinned(memory)


@case("absent or write-protected pages of a user-mode-only userfaultfd are refused")
def served_by_userfaultfd():
    fd = userfault.open_faults(userfault.USER_MODE_ONLY)
    # The page fault of a peer's access to the first page faults the first 64 KiB in (MIN_AHEAD of
    # qp/parked.rs). The last pages stay absent.
    memory, absent = private(64 * PAGE), 60 * PAGE
    present = check_served(memory)

    userfault.register_memory(fd, memory, userfault.MISSING | userfault.WRITE_PROTECT)
    check_refused(memory, at=absent)
    equal(present.peer("write"), SUCCESS, "a write to a present page")
    userfault.protect(fd, memory.address, PAGE)
    equal(present.peer("read"), SUCCESS, "a read of a write-protected page")
    equal(present.peer("write"), REM_ACCESS_ERR, "a write to a write-protected page")
    os.close(fd)
    check_served_odp_and_pinned(memory, absent)


@case("the ring of a packet socket is served")
def packet_ring():
    ring = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    ring.setsockopt(263, 5, struct.pack("=IIII", 4 * PAGE, 2, 2048, 16))  # PACKET_RX_RING
    check_served_odp_and_pinned(map_file(ring.fileno(), 8 * PAGE), 3 * PAGE)
    ring.close()


@case("the rings of io_uring are served")
def io_uring():
    with open("/proc/sys/kernel/io_uring_disabled", encoding="ascii") as disabled:
        equal(disabled.read().strip(), "0", "io_uring_disabled")
    fd = syscall(NR_IO_URING_SETUP, 8, ctypes.create_string_buffer(120))
    memory = map_file(fd)
    # Heads and tails of the rings are in the first bytes of the page.
    check_served_odp_and_pinned(memory, PAGE - 64)
    os.close(fd)


def mappings(name):
    """Returns (address, length) of each mapping of the process that has this name."""
    with open("/proc/self/maps", encoding="ascii") as maps:
        rows = [line.split() for line in maps]
    ranges = [row[0].split("-") for row in rows if len(row) > 5 and row[5] == name]
    return [(int(start, 16), int(end, 16) - int(start, 16)) for start, end in ranges]


@case("WRITEs to vdso and vvar are refused")
def vdso_and_vvar():
    for name in ("[vdso]", "[vvar]"):
        memory = MappedMemory(*mappings(name)[0])
        check_refused(memory, "write")
        equal(pinned_errno(memory), errno.EFAULT, f"errno of pinning {name} for writing")


@case("pages of a /dev/mem mapping (VM_PFNMAP) are refused")
def dev_mem():
    with open("/dev/mem", "rb", buffering=0) as device:
        # 0xF0000 is the BIOS of a PC: the kernel lets root map the first MiB.
        address = libc.mmap(None, PAGE, mmap.PROT_READ, mmap.MAP_SHARED, device.fileno(), 0xF0000)
    memory = MappedMemory(address)
    check_refused(memory)
    equal(pinned_errno(memory, REMOTE_READ), errno.EFAULT, "errno of pinning")


def overwrite_rings(others):
    """Has a peer overwrite the rings of a new context of this process.

    `others` are the mappings of other contexts, which stay as they are."""
    victim = Pair()
    rings = [at for at in mappings("/dev/infiniband/uverbs0") if at not in others]
    equal(len(rings) > 0, True, "mappings of the device")
    for access in (ALL, ALL | ON_DEMAND):
        for address, length in rings:
            use = Use(MappedMemory(address, length), access)
            for at in range(0, length, PAGE):
                for data in (b"\xff" * PAGE, pattern(PAGE + at % 251)[-PAGE:]):
                    use.own.fill(data)
                    equal(use.peer("write", at, PAGE), SUCCESS, "a write to a ring")
            # The owner's QP writes from the ring to ordinary memory.
            use.owner("write", 0, 64)
    for qp in victim.qps:
        qp.close()


@case("the rings and doorbells of a verbs context are served")
def own_rings():
    victim = Pair()
    equal(victim.state(), e.IBV_QPS_RTS, "state")
    pages = mappings("/dev/infiniband/uverbs0")
    equal(len(pages) > 0, True, "mappings of the device")
    for address, length in pages:
        memory = MappedMemory(address, length)
        for access in (ALL, ALL | ON_DEMAND):
            use = Use(memory, access)
            equal(use.peer("read", length - 64), SUCCESS, "a read of a ring")
            equal(use.own.read(64), memory.read(64, length - 64), "data that the peer read")
    in_child(lambda: overwrite_rings(pages))
    check_served_odp_and_pinned(private())


sys.exit(main())
