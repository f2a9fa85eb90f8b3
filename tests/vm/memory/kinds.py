#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests of regions over every kind of memory that a process can map: kinds.py DEVICE GID-INDEX.

The driver either serves accesses to a kind of memory, or refuses them with the right status or
errno. Documentation/safety.rst, "Memory that a region may lie over", gives the reason for each
kind. Each case tries pinned and on-demand regions, accesses by a peer and by the owner of the
memory, and advice (`ibv_advise_mr()`). Two RC QPs of DEVICE are connected in one process (loopback,
by entry GID-INDEX of the GID table).
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
SUCCESS, REFUSED, PROTECTED = e.IBV_WC_SUCCESS, e.IBV_WC_REM_ACCESS_ERR, e.IBV_WC_LOC_PROT_ERR
# Kinds of advice (enum ib_uverbs_advise_mr_advice), and the flag to follow it before the call
# returns.
ADVICE_READ, ADVICE_WRITE, FLUSH = 0, 1, 1
# Bytes: the kernel's default of RLIMIT_MEMLOCK (MLOCK_LIMIT).
DEFAULT_MEMLOCK = 8 << 20
# Bytes of a huge page.
HUGE = 2 << 20
# Of madvise(2), mmap(2) and fallocate(2), and numbers of system calls on x86-64.
MERGEABLE, HUGEPAGE = 12, 14
HUGETLB = 0x40000
PUNCH_HOLE = 3
MEMFD_SECRET, IO_URING_SETUP = 447, 425

libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


def syscall(number, *arguments):
    value = libc.syscall(number, *arguments)
    if value < 0:
        raise OSError(ctypes.get_errno(), f"system call {number}")
    return value


def succeeds(code, what):
    equal(code, 0, f"{what}, errno {ctypes.get_errno()}")


def private(length=PAGE, flags=mmap.MAP_PRIVATE):
    return MappedMemory(map_memory(length, flags=flags), length)


def of_file(fd, length=PAGE, protection=pairs.READ_WRITE, flags=mmap.MAP_SHARED):
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
        # The library's ibv_reg_mr() may first exclude the memory from fork()
        # (ibv_dontfork_range()).
        self.region = reg_mr(self.pair.pd, self.pair.context, memory.address, memory.length, memory.address, access)
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
        return errno_of(advise_mr, self.pair.pd, self.pair.context, how, FLUSH, [sge])


def serves(memory, access=ALL | ON_DEMAND, at=0):
    """Fails unless a peer and the owner can use the memory, with the content of the process."""
    use = Use(memory, access)
    memory.fill(b"process ".ljust(64), at)
    equal(use.peer("read", at), SUCCESS, "a peer's read")
    equal(use.own.read(64), b"process ".ljust(64), "what it read")
    use.own.fill(pattern(64))
    equal(use.peer("write", at), SUCCESS, "a peer's write")
    equal(memory.read(64, at), pattern(64), "what it wrote")
    use.own.fill(bytes(64))
    equal(use.owner("write", at), SUCCESS, "the owner's write from it")
    equal(use.own.read(64), pattern(64), "what the owner wrote")
    use.own.fill(b"owner".ljust(64))
    equal(use.owner("read", at), SUCCESS, "the owner's read into it")
    equal(memory.read(64, at), b"owner".ljust(64), "what the owner read")
    return use


def serves_both_ways(memory, at=0):
    serves(memory, at=at)
    serves(memory, ALL, at=at)


def refuses(memory, operations="both", at=0, access=ALL | ON_DEMAND):
    """Fails unless all accesses to an on-demand region over the memory are refused.

    With another value of `operations` than "both", only writes are refused."""
    reads, writes = (REFUSED, PROTECTED) if operations == "both" else (SUCCESS, SUCCESS), (REFUSED, PROTECTED)
    equal(Use(memory, access).peer("read", at), reads[0], "a peer's read")
    equal(Use(memory, access).peer("write", at), writes[0], "a peer's write")
    equal(Use(memory, access).owner("write", at), reads[1], "the owner's write from it")
    equal(Use(memory, access).owner("read", at), writes[1], "the owner's read into it")
    wanted = errno.EFAULT if operations == "both" else 0
    equal(Use(memory, access).advise(ADVICE_READ, at), wanted, "errno of advice to read")


def pinned_errno(memory, access=ALL):
    pair = Pair()
    return errno_of(reg_mr, pair.pd, pair.context, memory.address, memory.length, memory.address, access)


def secret(length=PAGE):
    fd = syscall(MEMFD_SECRET, 0)
    os.ftruncate(fd, length)
    memory = of_file(fd, length)
    os.close(fd)
    return memory


def refuses_secret():
    memory = secret(2 * PAGE)
    refuses(memory)
    memory.fill(pattern(64), PAGE)
    refuses(memory, at=PAGE)
    equal(Use(memory).advise(ADVICE_WRITE), errno.EFAULT, "errno of advice to write")
    equal(pinned_errno(memory), errno.EFAULT, "errno of pinning")
    equal(memory.read(64, PAGE), pattern(64), "what the process has there")


@case("secret memory is refused")
def secret_memory():
    refuses_secret()


@case("secret memory is refused, in a range with other memory")
def secret_beside():
    base = map_memory(4 * PAGE, flags=mmap.MAP_PRIVATE)
    fd = syscall(MEMFD_SECRET, 0)
    os.ftruncate(fd, PAGE)
    equal(map_memory(PAGE, fd, at=base + PAGE), base + PAGE, "address")
    memory = MappedMemory(base, 4 * PAGE)
    serves(memory)
    serves(memory, at=2 * PAGE)
    refuses(memory, at=PAGE)
    equal(Use(memory).peer("write", PAGE - 8), REFUSED, "a write over the edge")
    # Ordinary memory takes the place of the secret page.
    use = Use(memory)
    equal(use.advise(ADVICE_READ, PAGE), errno.EFAULT, "errno of advice")
    equal(map_memory(PAGE, flags=mmap.MAP_PRIVATE, at=base + PAGE), base + PAGE, "address")
    equal(use.peer("write", PAGE), SUCCESS, "a write to what took its place")
    os.close(fd)


@case("a user without rights gets no secret memory either, and nothing breaks")
def unprivileged():
    def work():
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (DEFAULT_MEMLOCK, DEFAULT_MEMLOCK))
        become_nobody()
        refuses_secret()
        serves_both_ways(private())

    in_child(work)


@case("shared and private anonymous memory")
def anonymous():
    serves_both_ways(private())
    serves_both_ways(Buffer(PAGE))


@case("transparent huge pages")
def transparent():
    memory = private(2 * HUGE)
    libc.madvise(memory.address, memory.length, HUGEPAGE)
    serves_both_ways(memory, HUGE + 5 * PAGE)


@case("huge pages")
def huge():
    memory = private(HUGE, mmap.MAP_PRIVATE | HUGETLB)
    serves_both_ways(memory, 17 * PAGE)
    libc.munmap(memory.address, memory.length)


@case("nobody writes to the shared page of zeros")
def zeros():
    for flags in (0, HUGEPAGE):
        memory, other = private(2 * HUGE), private(2 * HUGE)
        for buffer in (memory, other):
            if flags:
                libc.madvise(buffer.address, buffer.length, flags)
        use, beside = Use(memory), Use(other)
        use.own.fill(pattern(64))
        for at in (0, HUGE):
            # The reads map the shared page of zeros twice. The write gives one mapping a page of
            # its own.
            equal(use.peer("read", at), SUCCESS, "a read of zeros")
            equal(beside.peer("read", at), SUCCESS, "another read of zeros")
            equal(use.own.read(64), bytes(64), "zeros")
            use.own.fill(pattern(64))
            equal(use.peer("write", at), SUCCESS, "write")
            equal(memory.read(64, at), pattern(64), "what was written")
            equal(beside.peer("read", at), SUCCESS, "a read beside it")
            equal(beside.own.read(64) + other.read(64, at), bytes(128), "zeros beside it")


@case("merged pages are parted before a peer writes")
def merged():
    first, second = private(16 * PAGE), private(16 * PAGE)
    for memory in (first, second):
        memory.fill(b"\x5a" * memory.length)
        libc.madvise(memory.address, memory.length, MERGEABLE)
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
    equal(first.read(64), pattern(64), "what was written")
    equal(second.read(second.length), b"\x5a" * second.length, "what was the same page")
    equal(first.read(15 * PAGE, PAGE), b"\x5a" * 15 * PAGE, "the other pages")


@case("a file in memory, and holes in it")
def file():
    fd = memfd(4 * PAGE)
    memory = of_file(fd, 4 * PAGE)
    serves_both_ways(memory)
    use = serves(memory, at=PAGE)
    succeeds(libc.fallocate(fd, PUNCH_HOLE, PAGE, PAGE), "a hole")
    equal(use.peer("read", PAGE), SUCCESS, "a read of the hole")
    equal(use.own.read(64), bytes(64), "zeros")
    use.own.fill(pattern(64))
    equal(use.peer("write", PAGE), SUCCESS, "a write into the hole")
    equal(os.pread(fd, 64, PAGE), pattern(64), "the file")
    os.close(fd)


@case("a file that is cut off has nothing behind its end")
def truncated():
    fd = memfd(4 * PAGE)
    memory = of_file(fd, 4 * PAGE)
    kept = serves(memory, at=2 * PAGE)
    pinned = Use(memory, ALL)
    os.ftruncate(fd, PAGE)
    equal(kept.peer("read", 2 * PAGE), REFUSED, "a read of what was there")
    refuses(memory, at=2 * PAGE)
    # The pinned pages are no longer pages of the file, but the region keeps them.
    equal(pinned.peer("write", 2 * PAGE), SUCCESS, "a write to a pinned page")
    os.ftruncate(fd, 4 * PAGE)
    equal(os.pread(fd, 3 * PAGE, PAGE), bytes(3 * PAGE), "the file")
    serves(memory, at=2 * PAGE)
    os.close(fd)


@case("a file that may only be read isn't written")
def read_only_file():
    path = "/tmp/read-only"
    with open(path, "wb") as file_:
        file_.write(b"file".ljust(2 * PAGE))
    fd = os.open(path, os.O_RDONLY)
    shared = of_file(fd, 2 * PAGE, mmap.PROT_READ)
    refuses(shared, "write")
    equal(pinned_errno(shared), errno.EFAULT, "errno of pinning it to write")
    # A write to a private mapping makes a private copy of the page.
    copy = of_file(fd, 2 * PAGE, flags=mmap.MAP_PRIVATE)
    equal(Use(copy).peer("read"), SUCCESS, "a read of the file")
    serves_both_ways(copy)
    with open(path, "rb") as file_:
        equal(file_.read(), b"file".ljust(2 * PAGE), "the file")
    os.close(fd)
    os.unlink(path)


@case("rights that the process gives up")
def protected():
    memory = private(2 * PAGE)
    use, reader = serves(memory), serves(memory)
    succeeds(libc.mprotect(memory.address, PAGE, mmap.PROT_READ), "mprotect")
    equal(reader.peer("read"), SUCCESS, "a read")
    equal(use.peer("write"), REFUSED, "a write to what may only be read")
    succeeds(libc.mprotect(memory.address, PAGE, 0), "mprotect")
    equal(reader.peer("read"), REFUSED, "a read of what may not be read")
    refuses(memory)
    succeeds(libc.mprotect(memory.address, PAGE, pairs.READ_WRITE), "mprotect")
    serves_both_ways(memory)


@case("memory that a program serves by userfaultfd, for user mode only")
def served_by_userfaultfd():
    fd = userfault.open_faults(userfault.USER_MODE_ONLY)
    # The page fault of a peer's access to the first page also faults the following 64 KiB in
    # (MIN_AHEAD of qp/parked.rs). The last pages stay absent.
    memory, absent = private(64 * PAGE), 60 * PAGE
    there = serves(memory)

    userfault.register_memory(fd, memory, userfault.MISSING | userfault.WRITE_PROTECT)
    refuses(memory, at=absent)
    equal(there.peer("write"), SUCCESS, "a write to what is there")
    userfault.protect(fd, memory.address, PAGE)
    equal(there.peer("read"), SUCCESS, "a read of what is protected")
    equal(there.peer("write"), REFUSED, "a write to what is protected")
    os.close(fd)
    serves_both_ways(memory, absent)


@case("the ring of a packet socket")
def packet_ring():
    ring = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    ring.setsockopt(263, 5, struct.pack("=IIII", 4 * PAGE, 2, 2048, 16))  # PACKET_RX_RING
    serves_both_ways(of_file(ring.fileno(), 8 * PAGE), 3 * PAGE)
    ring.close()


@case("the rings of io_uring")
def io_uring():
    with open("/proc/sys/kernel/io_uring_disabled", encoding="ascii") as disabled:
        equal(disabled.read().strip(), "0", "io_uring_disabled")
    fd = syscall(IO_URING_SETUP, 8, ctypes.create_string_buffer(120))
    memory = of_file(fd)
    # Heads and tails of the rings are in the first bytes of the page.
    serves_both_ways(memory, PAGE - 64)
    os.close(fd)


def mappings(name):
    """Returns (address, length) of each mapping of the process that has this name."""
    with open("/proc/self/maps", encoding="ascii") as maps:
        rows = [line.split() for line in maps]
    ranges = [row[0].split("-") for row in rows if len(row) > 5 and row[5] == name]
    return [(int(start, 16), int(end, 16) - int(start, 16)) for start, end in ranges]


@case("pages that the kernel maps into every process")
def kernels_own():
    for name in ("[vdso]", "[vvar]"):
        memory = MappedMemory(*mappings(name)[0])
        refuses(memory, "write")
        equal(pinned_errno(memory), errno.EFAULT, f"errno of pinning {name} to write")


@case("frames without memory behind them")
def frames():
    with open("/dev/mem", "rb", buffering=0) as device:
        # 0xF0000 is the BIOS of a PC: the kernel lets root map the first MiB.
        address = libc.mmap(None, PAGE, mmap.PROT_READ, mmap.MAP_SHARED, device.fileno(), 0xF0000)
    memory = MappedMemory(address)
    refuses(memory)
    equal(pinned_errno(memory, REMOTE_READ), errno.EFAULT, "errno of pinning")


def spoil_rings(others):
    """Has a peer overwrite the rings of a new context of this process.

    `others` are the mappings of other contexts, which stay as they are."""
    victim = Pair()
    mine = [at for at in mappings("/dev/infiniband/uverbs0") if at not in others]
    equal(len(mine) > 0, True, "mappings of the device")
    for access in (ALL, ALL | ON_DEMAND):
        for address, length in mine:
            use = Use(MappedMemory(address, length), access)
            for at in range(0, length, PAGE):
                for data in (b"\xff" * PAGE, pattern(PAGE + at % 251)[-PAGE:]):
                    use.own.fill(data)
                    equal(use.peer("write", at, PAGE), SUCCESS, "a write to a ring")
            # The owner's QP writes from the ring to ordinary memory.
            use.owner("write", 0, 64)
    for qp in victim.qps:
        qp.close()


@case("the provider's own rings and doorbells")
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
            equal(use.own.read(64), memory.read(64, length - 64), "what it read")
    in_child(lambda: spoil_rings(pages))
    serves_both_ways(private())


sys.exit(main())
