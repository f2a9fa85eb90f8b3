#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests of special and changed memory regions: regions.py DEVICE GID-INDEX.

Special regions: zero-based ones, regions of huge pages, very large ones, and regions that are
registered by ioctl. Changed regions: `ibv_rereg_mr()`. The cases check bounds, rights, keys and the
count of pinned pages. Each case connects two RC QPs of DEVICE in one process (loopback, by entry
GID-INDEX of the GID table). memory.sh provides the huge pages.
"""

import ctypes
import errno
import mmap
import os
import sys

import pyverbs.enums as e
from pyverbs.mr import MR, MW, MWBind, MWBindInfo
from pyverbs.pd import PD

from pairs import (
    ALL, LOCAL_WRITE, PAGE, REMOTE_READ, REMOTE_WRITE, Buffer, Pair, case, equal, libc, main,
    map_memory, pattern, pinned_kib, register,
)
from uverbs import CHANGE_ACCESS, CHANGE_PD, CHANGE_TRANSLATION, errno_of, reg_mr, rereg

# Bytes of a huge page.
HUGE_PAGE = 2 << 20
ZERO_BASED = e.IBV_ACCESS_ZERO_BASED
REM_ACCESS_ERR, LOC_PROT_ERR = e.IBV_WC_REM_ACCESS_ERR, e.IBV_WC_LOC_PROT_ERR
SUCCESS = e.IBV_WC_SUCCESS


def outside_ranges(length):
    """Returns ranges (offset, length) that are not within a region of `length` bytes."""
    return [(-1, 1), (-1, 2), (length, 1), (length - 1, 2), (0, length + 1)]


def check_bounds(base, length, make):
    """Fails if a peer can read outside a region of `length` bytes.

    `base` is the address of the region in work requests. `make` returns a new pair and the R_Key. A
    refused access puts QPs into the error state, so each access has a new pair."""
    for offset, count in outside_ranges(length):
        pair, key = make()
        scratch = Buffer(length + PAGE)
        here = register(pair.pd, scratch)
        local = (scratch.address, count, here.lkey)
        remote = ((base + offset) & ((1 << 64) - 1), key)
        equal(pair.read(local, remote), REM_ACCESS_ERR, f"{count} bytes at {offset}")


@case("addresses of a zero-based region are offsets from its start")
def zero_based():
    target = Buffer(3 * PAGE)
    data = pattern(PAGE + 99)

    def make():
        pair = Pair()
        pair.region = register(pair.pd, target, ALL | ZERO_BASED, offset=77, length=len(data))
        return pair, pair.region.rkey

    pair, key = make()
    source = Buffer(3 * PAGE)
    source.fill(data)
    here = register(pair.pd, source)
    equal(pair.write((source.address, len(data), here.lkey), (0, key)), SUCCESS, "write")
    equal(target.read(len(data), 77) == data, True, "data arrived")
    equal(target.read(77), bytes(77), "memory before the region")
    equal(target.read(99, 77 + len(data)), bytes(99), "memory behind the region")
    # SGEs of the owner count from zero, too.
    source.fill(bytes(len(data)))
    region = pair.region.lkey
    equal(pair.write((10, 500, region), (source.address, here.rkey)), SUCCESS,
          "write from the region")
    equal(source.read(500), data[10:510], "data read back")
    equal(pair.write((len(data) - 5, 6, region), (source.address, here.rkey)), LOC_PROT_ERR,
          "write from beyond the end, by the owner")
    check_bounds(0, len(data), make)
    pair, key = make()
    here = register(pair.pd, source)
    local = (source.address, 8, here.lkey)
    equal(pair.read(local, (target.address + 77, key)), REM_ACCESS_ERR,
          "read at the process's address")


class HugePages(Buffer):
    """New private memory of `pages` huge pages."""

    def __init__(self, pages):
        self.length = pages * HUGE_PAGE
        self.address = map_memory(self.length, flags=mmap.MAP_PRIVATE | 0x40000)  # MAP_HUGETLB
        equal(self.address > 0, True, f"huge pages ({self.address})")


@case("a region of huge pages is served, with and without IBV_ACCESS_HUGETLB")
def huge_pages():
    memory = HugePages(4)
    data = pattern(HUGE_PAGE + 4321)
    for flag, start in (0, 5), (e.IBV_ACCESS_HUGETLB, HUGE_PAGE - 7):
        memory.fill(bytes(memory.length))

        def make():
            pair = Pair()
            pair.region = register(pair.pd, memory, ALL | flag, offset=start, length=len(data))
            return pair, pair.region.rkey

        pair, key = make()
        source = Buffer(len(data))
        source.fill(data)
        here = register(pair.pd, source)
        local = (source.address, len(data), here.lkey)
        remote = (memory.address + start, key)
        equal(pair.write(local, remote), SUCCESS, "write")
        equal(memory.read(len(data), start) == data, True, "data arrived")
        equal(memory.read(start) == bytes(start), True, "memory before the region")
        equal(memory.read(4096, start + len(data)), bytes(4096), "memory behind the region")
        source.fill(bytes(len(data)))
        equal(pair.read(local, remote), SUCCESS, "read")
        equal(source.read(len(data)) == data, True, "data read back")
        check_bounds(memory.address + start, len(data), make)


@case("a region of small and huge pages is served")
def mixed_pages():
    # Huge pages lie between small ones, so the region's page table has small blocks.
    start = map_memory(8 * HUGE_PAGE)
    aligned = (start + HUGE_PAGE - 1) // HUGE_PAGE * HUGE_PAGE
    memory = Buffer.__new__(Buffer)
    memory.address, memory.length = aligned, 5 * HUGE_PAGE
    for index in (1, 2, 4):
        at = aligned + index * HUGE_PAGE
        equal(map_memory(HUGE_PAGE, flags=mmap.MAP_PRIVATE | 0x40000, at=at), at, "huge page")
    pair = Pair()
    data = pattern(4 * HUGE_PAGE)
    memory.fill(bytes(memory.length))
    source = Buffer(len(data))
    source.fill(data)
    here = register(pair.pd, source)
    there = register(pair.pd, memory, offset=3 * PAGE + 1, length=len(data))
    remote = (memory.address + 3 * PAGE + 1, there.rkey)
    equal(pair.write((source.address, len(data), here.lkey), remote), SUCCESS, "write")
    equal(memory.read(len(data), 3 * PAGE + 1) == data, True, "data arrived")
    libc.munmap(start, 8 * HUGE_PAGE)


@case("a region of 128 GiB is served and takes less than 64 MiB of kernel memory")
def very_large():
    chunk, count = 128 << 20, 1024
    fd = os.memfd_create("chunk", 4)  # MFD_HUGETLB
    os.ftruncate(fd, chunk)
    mapping = map_memory(chunk * count + HUGE_PAGE, flags=mmap.MAP_SHARED | 0x4000)  # MAP_NORESERVE
    start = (mapping + HUGE_PAGE - 1) // HUGE_PAGE * HUGE_PAGE
    for index in range(count):
        equal(map_memory(chunk, fd, at=start + index * chunk), start + index * chunk, "mapping")
    pair = Pair()
    before = memory_used()
    region = MR(pair.pd, chunk * count, ALL, address=start)
    equal(memory_used() - before < 64 << 20, True,
          "kernel memory that the region takes is less than 64 MiB")
    buffer = Buffer(PAGE)
    here = register(pair.pd, buffer)
    for number, at in enumerate([0, (100 << 30) + 12345, chunk * count - 64]):
        data = bytes([number + 1]) * 64
        buffer.fill(data)
        equal(pair.write((buffer.address, 64, here.lkey), (start + at, region.rkey)), SUCCESS,
              f"write at {at}")
        equal(ctypes.string_at(start + at, 64), data, f"data at {at}")
        # Another mapping of the same page of the file shows the data, too.
        equal(ctypes.string_at(start + at % chunk, 64), data, f"data of {at} in the file")
    last = start + chunk * count - 64
    equal(pair.write((buffer.address, 65, here.lkey), (last, region.rkey)), REM_ACCESS_ERR,
          "write beyond the end")
    region.close()
    libc.munmap(mapping, chunk * count + HUGE_PAGE)
    os.close(fd)


def memory_used():
    """Returns the number of bytes of memory in use, without the page cache."""
    with open("/proc/meminfo") as meminfo:
        words = {line.split(":")[0]: int(line.split()[1]) for line in meminfo}
    return (words["MemTotal"] - words["MemFree"] - words["Cached"]) * 1024


@case("a region registered by ioctl reports its iova and length")
def ioctl_region():
    pair = Pair()
    buffer = Buffer(3 * PAGE)
    data = pattern(1000)
    # Work requests name the region by an address (iova) that the process chose.
    iova = 0x1234_5678_0000 + buffer.address % PAGE + 9
    region = reg_mr(pair.pd, pair.context, buffer.address + 9, 2 * PAGE, iova, ALL)
    equal(region.query(), (region.lkey, region.rkey, 2 * PAGE, iova), "lkey, rkey, length, iova")
    source = Buffer(PAGE)
    source.fill(data)
    here = register(pair.pd, source)
    remote = (iova + PAGE, region.rkey)
    equal(pair.write((source.address, 1000, here.lkey), remote), SUCCESS, "write")
    equal(buffer.read(1000, 9 + PAGE), data, "data")
    region.close()
    zero = reg_mr(pair.pd, pair.context, buffer.address, PAGE, buffer.address, ALL | ZERO_BASED)
    equal(zero.query()[2:], (PAGE, 0), "length and iova of a zero-based region")
    zero.close()


def region_to_change(access=ALL):
    """Returns a pair, a buffer, its region, and (address, length, lkey) of other memory."""
    pair = Pair()
    buffer, other = Buffer(2 * PAGE), Buffer(PAGE)
    pair.kept = [register(pair.pd, other)]
    return pair, buffer, register(pair.pd, buffer, access), (other.address, 64, pair.kept[0].lkey)


@case("rereg: new rights hold, and the keys stay")
def rereg_access():
    for first, then, read, write in [
        (ALL, LOCAL_WRITE | REMOTE_READ, SUCCESS, REM_ACCESS_ERR),
        (ALL, LOCAL_WRITE | REMOTE_WRITE, REM_ACCESS_ERR, SUCCESS),
        (LOCAL_WRITE, ALL, SUCCESS, SUCCESS),
        # The memory was pinned for reading only, so it is pinned again for writing.
        (REMOTE_READ, ALL, SUCCESS, SUCCESS),
        (0, REMOTE_READ, SUCCESS, REM_ACCESS_ERR),
    ]:
        for operation, wanted in (("read", read), ("write", write)):
            pair, buffer, region, local = region_to_change(first)
            keys = rereg(pair.context, region, CHANGE_ACCESS, access=then)
            equal(keys, (region.lkey, region.rkey), "keys")
            buffer.fill(b"*" * 64)
            got = getattr(pair, operation)(local, (buffer.address, region.rkey))
            equal(got, wanted, f"{operation} after {first} became {then}")
            if operation == "write" and wanted == SUCCESS:
                equal(buffer.read(64), bytes(64), "data that was written")


@case("rereg: the keys stay and open the new memory only")
def rereg_translation():
    pair, buffer, region, local = region_to_change()
    fresh = Buffer(4 * PAGE)
    fresh.fill(b"x" * fresh.length)
    rereg(pair.context, region, CHANGE_TRANSLATION, start=fresh.address + 3, length=3 * PAGE)
    last = fresh.address + 3 + 3 * PAGE - 64
    for address in (fresh.address + 3, last):
        equal(pair.write(local, (address, region.rkey)), SUCCESS,
              f"write at {address - fresh.address}")
        equal(fresh.read(64, address - fresh.address), bytes(64), "data")
    equal(fresh.read(3), b"xxx", "memory before the region")
    equal(fresh.read(100, 3 + 3 * PAGE), b"x" * 100, "memory behind the region")
    equal(pair.read(local, (last + 1, region.rkey)), REM_ACCESS_ERR, "read beyond the new memory")
    pair, buffer, region, local = region_to_change()
    rereg(pair.context, region, CHANGE_TRANSLATION, start=fresh.address, length=PAGE)
    equal(pair.read(local, (buffer.address, region.rkey)), REM_ACCESS_ERR, "read of the old memory")
    # The new region has another iova, then it is zero-based.
    pair, buffer, region, local = region_to_change()
    iova = 0x7654_3210_0000 + fresh.address % PAGE
    rereg(pair.context, region, CHANGE_TRANSLATION, start=fresh.address, length=PAGE, iova=iova)
    equal(pair.read(local, (iova, region.rkey)), SUCCESS, "read at the new iova")
    flags = CHANGE_TRANSLATION | CHANGE_ACCESS
    rereg(pair.context, region, flags, start=fresh.address, length=PAGE, access=ALL | ZERO_BASED)
    equal(pair.read(local, (PAGE - 64, region.rkey)), SUCCESS,
          "read at the end of the zero-based region")
    equal(pair.read(local, (PAGE - 63, region.rkey)), REM_ACCESS_ERR,
          "read beyond the end of the zero-based region")


@case("rereg: the old memory is unpinned and the new memory is pinned")
def rereg_pins():
    before = pinned_kib()
    pair, _, region, _ = region_to_change()
    fresh = Buffer(50 * PAGE)
    with_two = pinned_kib()
    rereg(pair.context, region, CHANGE_TRANSLATION, start=fresh.address, length=fresh.length)
    equal(pinned_kib() - with_two, 48 * PAGE // 1024, "additional pinned KiB")
    region.close()
    pair.kept[0].close()
    equal(pinned_kib(), before, "pinned KiB after deregistration")


@case("rereg: the region is valid in the new protection domain only")
def rereg_pd():
    pair, buffer, region, local = region_to_change()
    other = PD(pair.context)
    rereg(pair.context, region, CHANGE_PD, pd=other)
    equal(pair.read(local, (buffer.address, region.rkey)), REM_ACCESS_ERR,
          "read through the old protection domain")
    region.close()
    other.close()
    # The region moves into the QPs' protection domain, and gets new rights and new memory.
    pair = Pair()
    other = PD(pair.context)
    buffer, fresh, third = Buffer(PAGE), Buffer(PAGE), Buffer(PAGE)
    region, here = register(other, buffer, LOCAL_WRITE), register(pair.pd, third)
    rereg(
        pair.context, region, CHANGE_PD | CHANGE_ACCESS | CHANGE_TRANSLATION, start=fresh.address,
        length=PAGE,
        pd=pair.pd, access=LOCAL_WRITE | REMOTE_READ,
    )
    fresh.fill(pattern(64))
    equal(pair.read((third.address, 64, here.lkey), (fresh.address, region.rkey)), SUCCESS,
          "read through the new protection domain")
    equal(third.read(64), pattern(64), "data")
    # The old protection domain has no more objects, so it can be deallocated.
    other.close()


@case("rereg: a call that fails changes nothing")
def rereg_failures():
    pair, buffer, region, local = region_to_change()
    unmapped = Buffer(2 * PAGE)
    libc.munmap(unmapped.address, unmapped.length)
    for name, wanted, arguments in [
        ("unmapped memory", errno.EFAULT,
         {"flags": CHANGE_TRANSLATION, "start": unmapped.address, "length": PAGE}),
        ("length zero", errno.EINVAL,
         {"flags": CHANGE_TRANSLATION, "start": buffer.address, "length": 0}),
        ("a length that wraps", errno.EINVAL,
         {"flags": CHANGE_TRANSLATION, "start": buffer.address, "length": (1 << 64) - 1}),
        ("an iova with another offset in the page", errno.EINVAL,
         {"flags": CHANGE_TRANSLATION, "start": buffer.address, "length": 8,
          "iova": buffer.address + 1}),
        ("remote write without local write", errno.EINVAL,
         {"flags": CHANGE_ACCESS, "access": REMOTE_WRITE}),
        ("no flags", errno.EINVAL, {"flags": 0}),
        ("an unknown flag", errno.EOPNOTSUPP, {"flags": 16}),
        ("all changes, with unmapped memory", errno.EFAULT,
         {"flags": CHANGE_TRANSLATION | CHANGE_ACCESS | CHANGE_PD, "start": unmapped.address,
          "length": PAGE,
          "access": 0, "pd": PD(pair.context)}),
    ]:
        equal(errno_of(lambda: rereg(pair.context, region, **arguments)), wanted, name)
    buffer.fill(b"#" * 64)
    equal(pair.write(local, (buffer.address + 2 * PAGE - 64, region.rkey)), SUCCESS, "write")
    equal(pair.read(local, (buffer.address, region.rkey)), SUCCESS, "read")
    equal(ctypes.string_at(local[0], 64), b"#" * 64, "data")


@case("rereg: refused with EINVAL while memory windows are bound")
def rereg_bound():
    pair, buffer, region, local = region_to_change(ALL | e.IBV_ACCESS_MW_BIND)
    window = MW(pair.pd, e.IBV_MW_TYPE_1)

    def bind(length):
        pair.qps[0].bind_mw(window,
                            MWBind(MWBindInfo(region, buffer.address, length, REMOTE_READ), 0))
        equal(pair.status(), SUCCESS, "bind")

    bind(64)
    change = (pair.context, region, CHANGE_ACCESS)
    equal(errno_of(lambda: rereg(*change, access=LOCAL_WRITE)), errno.EINVAL,
          "errno while a window is bound")
    equal(pair.read(local, (buffer.address, window.rkey)), SUCCESS, "read through the window")
    bind(0)
    rereg(*change, access=LOCAL_WRITE | e.IBV_ACCESS_MW_BIND)
    bind(64)
    equal(pair.read(local, (buffer.address, window.rkey)), SUCCESS,
          "read through the window after the change of rights")
    window.close()
    rereg(*change, access=LOCAL_WRITE)
    equal(pair.read(local, (buffer.address, region.rkey)), REM_ACCESS_ERR, "read of the region")


sys.exit(main())
