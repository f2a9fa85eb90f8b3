#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests of on-demand paging (ODP): odp.py DEVICE GID-INDEX.

The driver faults absent pages of an ODP region in when a local or remote access needs them. Its MMU
notifier removes pages that the process loses. Rights, keys and error statuses are those of pinned
regions. Each case connects two RC QPs of DEVICE in one process (loopback, by entry GID-INDEX of the
GID table). Cases change mappings by mmap(2), munmap(2), madvise(2) and mprotect(2). Memory whose
page faults are never answered comes from userfaultfd(2).
"""

import ctypes
import errno
import mmap
import os
import random
import sys
import threading
import time
from types import SimpleNamespace

import pyverbs.enums as e
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QPAttr
from pyverbs.wr import SGE, RecvWR, SendWR

import pairs
from pairs import (
    ALL, IS_DEBUG_KERNEL, LOCAL_WRITE, PAGE, REMOTE_READ, Pair, case, equal, in_child, libc, main,
    map_memory, pattern, present_pages, register, register_filled_buffer, start_child,
    wait_until_equal,
)
from uverbs import CHANGE_TRANSLATION, advise_mr, errno_of, reg_mr, rereg

ON_DEMAND = e.IBV_ACCESS_ON_DEMAND
# All access rights of an on-demand region.
ODP_ACCESS = ALL | ON_DEMAND
SUCCESS, REM_ACCESS_ERR = e.IBV_WC_SUCCESS, e.IBV_WC_REM_ACCESS_ERR
LOC_PROT_ERR, WR_FLUSH_ERR = e.IBV_WC_LOC_PROT_ERR, e.IBV_WC_WR_FLUSH_ERR
# Kinds of advice (ib_uverbs_advise_mr_advice), and the flag that makes the call wait.
PREFETCH, PREFETCH_WRITE, PREFETCH_NO_FAULT, FLAG_FLUSH = 0, 1, 2, 1
# Bytes of address space that share one MMU notifier (rust/rdma/memory/odp.rs).
CHUNK = 2 << 20
# Of madvise(2) and mmap(2).
MADV_DONTNEED, MAP_HUGETLB = 4, 0x40000

libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class DroppableMemory(pairs.PrivateBuffer):
    """New private memory whose pages the process can drop."""

    def drop_pages(self):
        libc.madvise(self.address, self.length, MADV_DONTNEED)


@case("a peer's WRITE and READ fault absent memory in")
def peer_access():
    length = (1 if IS_DEBUG_KERNEL else 3) * (1 << 20) + 12345
    pair = Pair()
    target = DroppableMemory(length + 2 * PAGE)
    region = register(pair.pd, target, ODP_ACCESS, offset=77, length=length)
    equal(present_pages(target), 0, "pages present after the registration")
    source, local = register_filled_buffer(pair, length)
    at = (target.address + 77, region.rkey)
    equal(pair.write(local, at), SUCCESS, "write")
    equal(target.read(length, 77) == source.read(length), True, "data arrived")
    equal(target.read(77) + target.read(PAGE, 77 + length), bytes(77 + PAGE),
          "memory around the target")
    source.fill(bytes(length))
    equal(pair.read(local, at), SUCCESS, "read")
    equal(source.read(length) == pattern(length), True, "data read back")
    fresh = DroppableMemory(length)
    region = register(pair.pd, fresh, ODP_ACCESS)
    equal(pair.read(local, (fresh.address, region.rkey)), SUCCESS, "read of absent memory")
    equal(source.read(length) == bytes(length), True, "zeros")


@case("work requests of the owner fault absent memory in")
def owner_access():
    length = 1 << (18 if IS_DEBUG_KERNEL else 20)
    pair = Pair()
    other, (address, _, lkey) = register_filled_buffer(pair, length)
    remote_key = pair.kept[0].rkey
    for start in (0, 33):
        memory = DroppableMemory(length + PAGE)
        region = register(pair.pd, memory, ODP_ACCESS)
        local_sge = (memory.address + start, length, region.lkey)
        equal(pair.read(local_sge, (address, remote_key)), SUCCESS, "read into absent memory")
        equal(memory.read(length, start) == pattern(length), True, "data arrived")
        memory = DroppableMemory(length + PAGE)
        region = register(pair.pd, memory, ODP_ACCESS)
        # The payload is gathered from absent memory, so it is zeros.
        equal(pair.write((memory.address + start, length, region.lkey), (address, remote_key)),
              SUCCESS, "write")
        equal(other.read(length) == bytes(length), True, "zeros")
        other.fill(pattern(length))


@case("a SEND from absent memory arrives in absent memory of the receiver")
def send_and_receive():
    length = 300000
    pair = Pair()
    first, second = DroppableMemory(length + PAGE), DroppableMemory(length + 3 * PAGE)
    source, target = register(pair.pd, first, ODP_ACCESS), register(pair.pd, second, ODP_ACCESS)
    sges = [SGE(second.address + 5, 1000, target.lkey),
            SGE(second.address + 2 * PAGE, length - 1000, target.lkey)]
    pair.qps[1].post_recv(RecvWR(wr_id=9, num_sge=2, sg=sges))
    first.fill(pattern(PAGE))
    wr = SendWR(wr_id=1, opcode=e.IBV_WR_SEND, num_sge=1,
                sg=[SGE(first.address, length, source.lkey)])
    pair.qps[0].post_send(wr)
    equal(pair.status(), SUCCESS, "send")
    count, completions = pair.cqs[1].poll(1)
    equal((count, completions[0].status, completions[0].byte_len), (1, SUCCESS, length), "receive")
    wanted = pattern(PAGE) + bytes(length - PAGE)
    equal(second.read(1000, 5) + second.read(length - 1000, 2 * PAGE) == wanted, True, "data")


@case("atomics fault absent memory of the peer and of the requester in")
def atomics():
    pair = Pair()
    memory = DroppableMemory(4 * PAGE)
    region = register(pair.pd, memory, ODP_ACCESS)
    buffer, (address, _, lkey) = register_filled_buffer(pair, PAGE)
    for index in range(3):
        wr = SendWR(opcode=e.IBV_WR_ATOMIC_FETCH_AND_ADD, num_sge=1, sg=[SGE(address, 8, lkey)])
        wr.set_wr_atomic(region.rkey, memory.address + PAGE + 8, 5)
        pair.qps[0].post_send(wr)
        equal(pair.status(), SUCCESS, "status")
        equal(int.from_bytes(buffer.read(8), "little"), 5 * index, "original")
    equal(int.from_bytes(memory.read(8, PAGE + 8), "little"), 15, "result")
    # The requester's buffer for the original value is absent memory, too.
    original = DroppableMemory(PAGE)
    original_region = register(pair.pd, original, ODP_ACCESS)
    wr = SendWR(opcode=e.IBV_WR_ATOMIC_CMP_AND_SWP, num_sge=1,
                sg=[SGE(original.address, 8, original_region.lkey)])
    wr.set_wr_atomic(region.rkey, memory.address + PAGE + 8, 15, 99)
    pair.qps[0].post_send(wr)
    equal(pair.status(), SUCCESS, "status")
    equal(int.from_bytes(original.read(8), "little"), 15, "original")
    equal(int.from_bytes(memory.read(8, PAGE + 8), "little"), 99, "result")


@case("a peer reads zeros after the process has dropped the pages")
def dropped_pages():
    pair = Pair()
    memory = DroppableMemory(16 * PAGE)
    region = register(pair.pd, memory, ODP_ACCESS)
    buffer, local = register_filled_buffer(pair, memory.length)
    at = (memory.address, region.rkey)
    for _ in range(3):
        buffer.fill(pattern(memory.length))
        equal(pair.write(local, at), SUCCESS, "write")
        equal(memory.read(memory.length) == pattern(memory.length), True, "data")
        memory.drop_pages()
        equal(pair.read(local, at), SUCCESS, "read")
        equal(buffer.read(memory.length) == bytes(memory.length), True,
              "zeros instead of the old pages")


@case("a peer's WRITE after fork() does not change the memory of the child")
def fork_copy_on_write():
    pair = Pair()
    memory = DroppableMemory(8 * PAGE)
    region = register(pair.pd, memory, ODP_ACCESS)
    buffer, local = register_filled_buffer(pair, memory.length)
    at = (memory.address, region.rkey)
    equal(pair.write(local, at), SUCCESS, "write")
    ready, go = os.pipe(), os.pipe()

    def check_memory():
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        equal(memory.read(memory.length) == pattern(memory.length), True, "the child's memory")

    child = start_child(check_memory)
    os.read(ready[0], 1)
    # The peer writes the first half of the memory, the parent itself the second half.
    buffer.fill(b"p" * memory.length)
    equal(pair.write((local[0], 4 * PAGE, local[2]), at), SUCCESS, "write after the fork")
    memory.fill(b"q" * 4 * PAGE, 4 * PAGE)
    equal(memory.read(memory.length) == b"p" * 4 * PAGE + b"q" * 4 * PAGE, True,
          "the parent's memory")
    equal(pair.read(local, at), SUCCESS, "read after the fork")
    equal(buffer.read(memory.length) == b"p" * 4 * PAGE + b"q" * 4 * PAGE, True,
          "data that the peer reads")
    os.write(go[1], b"x")
    equal(os.waitpid(child, 0)[1], 0, "exit status of the child that compares its memory")


@case("accesses to protected memory, and beyond the region, are refused")
def refused_accesses():
    memory = DroppableMemory(8 * PAGE)
    hole = memory.address + 4 * PAGE
    libc.mprotect(hole, PAGE, 0)
    libc.mprotect(memory.address + 6 * PAGE, PAGE, mmap.PROT_READ)
    cases = [
        ("write", hole, 8, REM_ACCESS_ERR), ("read", hole, 8, REM_ACCESS_ERR),
        ("write", hole - 4, 8, REM_ACCESS_ERR),
        ("read", hole - PAGE, 3 * PAGE, REM_ACCESS_ERR), ("write", hole - 8, 8, SUCCESS),
        ("write", memory.address + 6 * PAGE, 8, REM_ACCESS_ERR),
        ("read", memory.address + 6 * PAGE, 8, SUCCESS),
        ("write", memory.address + 8 * PAGE - 8, 9, REM_ACCESS_ERR),
        ("read", memory.address - 1, 1, REM_ACCESS_ERR),
    ]
    for operation, address, length, wanted in cases:
        pair = Pair()
        region = register(pair.pd, memory, ODP_ACCESS)
        _, (local_address, _, lkey) = register_filled_buffer(pair, 4 * PAGE)
        got = getattr(pair, operation)((local_address, length, lkey), (address, region.rkey))
        equal(got, wanted, f"{operation} of {length} at page {(address - memory.address) / PAGE}")
    # Work requests of the memory's owner get the same checks.
    for operation, address, wanted in [
        ("write", hole, LOC_PROT_ERR), ("read", hole, LOC_PROT_ERR),
        ("read", memory.address + 6 * PAGE, LOC_PROT_ERR),
        ("write", memory.address + 6 * PAGE, SUCCESS),
    ]:
        pair = Pair()
        region = register(pair.pd, memory, ODP_ACCESS)
        _, (other, _, _) = register_filled_buffer(pair, PAGE)
        got = getattr(pair, operation)((address, 8, region.lkey), (other, pair.kept[0].rkey))
        equal(got, wanted, f"{operation} by the owner's QP")
    # A receive WQE has its buffer in the hole.
    pair = Pair()
    region = register(pair.pd, memory, ODP_ACCESS)
    _, (local_address, _, lkey) = register_filled_buffer(pair, PAGE)
    pair.qps[1].post_recv(RecvWR(num_sge=1, sg=[SGE(hole, 8, region.lkey)]))
    pair.qps[0].post_send(SendWR(num_sge=1, sg=[SGE(local_address, 8, lkey)]))
    equal(pair.status(), e.IBV_WC_REM_OP_ERR, "send")
    equal(pair.cqs[1].poll(1)[1][0].status, LOC_PROT_ERR, "receive")
    # New memory is mapped at the address of the hole.
    map_memory(PAGE, flags=mmap.MAP_PRIVATE, at=hole)
    pair = Pair()
    region = register(pair.pd, memory, ODP_ACCESS)
    _, (local_address, _, lkey) = register_filled_buffer(pair, PAGE)
    equal(pair.write((local_address, 8, lkey), (hole, region.rkey)), SUCCESS,
          "write to newly mapped memory")


@case("rights, protection domains and keys are checked as for pinned memory")
def rights():
    for access, operation, wanted in [
        (LOCAL_WRITE, "read", REM_ACCESS_ERR), (LOCAL_WRITE | REMOTE_READ, "write", REM_ACCESS_ERR),
        (LOCAL_WRITE | REMOTE_READ, "read", SUCCESS), (REMOTE_READ, "read", SUCCESS),
    ]:
        pair = Pair()
        memory = DroppableMemory(PAGE)
        region = register(pair.pd, memory, access | ON_DEMAND)
        _, (local_address, _, lkey) = register_filled_buffer(pair, PAGE)
        got = getattr(pair, operation)((local_address, 8, lkey), (memory.address, region.rkey))
        equal(got, wanted, f"{operation} with {access}")
    pair = Pair()
    memory = DroppableMemory(PAGE)
    region = register(PD(pair.context), memory, ODP_ACCESS)
    _, (local_address, _, lkey) = register_filled_buffer(pair, PAGE)
    equal(pair.read((local_address, 8, lkey), (memory.address, region.rkey)), REM_ACCESS_ERR,
          "read through a key of another protection domain")
    pair = Pair()
    region = register(pair.pd, memory, ODP_ACCESS)
    key = region.rkey
    _, (local_address, _, lkey) = register_filled_buffer(pair, PAGE)
    equal(pair.write((local_address, 8, lkey), (memory.address, key)), SUCCESS,
          "write before deregistration")
    region.close()
    equal(pair.write((local_address, 8, lkey), (memory.address, key)), REM_ACCESS_ERR,
          "write after deregistration")


@case("a peer's WRITE to a shared file mapping reaches the file")
def file_mapping():
    fd = os.memfd_create("file")
    os.ftruncate(fd, 16 * PAGE)
    memory = DroppableMemory.__new__(DroppableMemory)
    memory.length, memory.address = 16 * PAGE, map_memory(16 * PAGE, fd)
    pair = Pair()
    region = register(pair.pd, memory, ODP_ACCESS)
    buffer, local = register_filled_buffer(pair, memory.length)
    # The peer reads first, so that the page faults map the pages clean.
    equal(pair.read(local, (memory.address, region.rkey)), SUCCESS, "read")
    buffer.fill(pattern(memory.length))
    equal(pair.write(local, (memory.address, region.rkey)), SUCCESS, "write")
    memory.drop_pages()
    equal(os.pread(fd, memory.length, 0) == pattern(memory.length), True, "data in the file")
    equal(memory.read(memory.length) == pattern(memory.length), True, "data in the mapping")
    os.close(fd)


@case("huge pages are served, and IBV_ACCESS_HUGETLB refuses small pages")
def huge():
    memory = DroppableMemory(2 * CHUNK, mmap.MAP_PRIVATE | MAP_HUGETLB)
    pair = Pair()
    region = register(pair.pd, memory, ODP_ACCESS | e.IBV_ACCESS_HUGETLB)
    length = CHUNK + 3 * PAGE
    source, local = register_filled_buffer(pair, length)
    at = (memory.address + CHUNK // 2 + 1, region.rkey)
    equal(pair.write(local, at), SUCCESS, "write")
    equal(memory.read(length, CHUNK // 2 + 1) == pattern(length), True, "data")
    libc.munmap(memory.address, memory.length)
    # IBV_ACCESS_HUGETLB promises huge pages. The driver refuses accesses to small ones.
    small = DroppableMemory(2 * CHUNK)
    region = register(pair.pd, small, ODP_ACCESS | e.IBV_ACCESS_HUGETLB)
    libc.madvise(small.address, small.length, 15)  # MADV_NOHUGEPAGE
    equal(pair.write((local[0], 8, local[2]), (small.address, region.rkey)), REM_ACCESS_ERR,
          "write to small pages")


@case("regions over the same pages have their own rights, bounds and lifetime")
def same_pages():
    pair, memory = Pair(), DroppableMemory(4 * PAGE)
    memory.fill(pattern(4 * PAGE))
    writable = register(pair.pd, memory, ODP_ACCESS)
    read_only = register(pair.pd, memory, REMOTE_READ | ON_DEMAND)
    within = register(pair.pd, memory, ODP_ACCESS, offset=PAGE, length=PAGE)
    huge = register(pair.pd, memory, ODP_ACCESS | e.IBV_ACCESS_HUGETLB)
    libc.madvise(memory.address, memory.length, 15)  # MADV_NOHUGEPAGE

    def check_refused(operation, address, region, label):
        # The refused access puts the QPs into the error state, so each one gets new QPs.
        other = Pair(beside=pair)
        _, (local_address, _, lkey) = register_filled_buffer(other, PAGE)
        equal(getattr(other, operation)((local_address, 8, lkey), (address, region.rkey)),
              REM_ACCESS_ERR, label)

    buffer, (local_address, _, lkey) = register_filled_buffer(pair, 4 * PAGE)
    for region in (read_only, writable, read_only):
        equal(pair.read((local_address, 4 * PAGE, lkey), (memory.address, region.rkey)), SUCCESS,
              "read")
        equal(buffer.read(4 * PAGE) == pattern(4 * PAGE), True, "data")
    equal(pair.write((local_address, 4 * PAGE, lkey), (memory.address, writable.rkey)), SUCCESS,
          "write")
    # The pages are present and writable for the other region.
    check_refused("write", memory.address, read_only, "a write through the read-only region")
    check_refused("read", memory.address, within, "a read before the start of the region")
    check_refused("read", memory.address + 2 * PAGE, within, "a read beyond the end of the region")
    equal(errno_of(advise_mr, pair.pd, pair.context, PREFETCH, FLAG_FLUSH,
                   [(memory.address, PAGE, huge.lkey)]), errno.EINVAL,
          "errno of advice on small pages")
    key = writable.rkey
    writable.close()
    equal(present_pages(memory), 4, "pages present after the end of a region")
    check_refused("read", memory.address, SimpleNamespace(rkey=key),
                  "a read through the deregistered region")
    equal(pair.read((local_address, 4 * PAGE, lkey), (memory.address, read_only.rkey)), SUCCESS,
          "read through the other region")
    # The process gives up its right to write to the pages. Reads still succeed.
    libc.mprotect(memory.address, memory.length, mmap.PROT_READ)
    check_refused("write", memory.address + PAGE, within,
                  "a write to memory that the process has write-protected")
    equal(pair.read((local_address, 4 * PAGE, lkey), (memory.address, read_only.rkey)), SUCCESS,
          "read of protected pages")
    equal(buffer.read(4 * PAGE) == pattern(4 * PAGE), True, "data of protected pages")


@case("peers address a region by its iova, and a zero-based region from 0")
def iova_and_zero_based():
    pair = Pair()
    memory = DroppableMemory(4 * PAGE)
    iova = 0x4321_0000_0000
    region = reg_mr(pair.pd, pair.context, memory.address, memory.length, iova, ODP_ACCESS)
    source, local = register_filled_buffer(pair, PAGE)
    equal(pair.write(local, (iova + PAGE + 5, region.rkey)), SUCCESS, "write")
    equal(memory.read(PAGE, PAGE + 5), pattern(PAGE), "data")
    region.close()
    zero = register(pair.pd, memory, ODP_ACCESS | e.IBV_ACCESS_ZERO_BASED)
    equal(pair.write(local, (2 * PAGE, zero.rkey)), SUCCESS, "write to the zero-based region")
    equal(memory.read(PAGE, 2 * PAGE), pattern(PAGE), "data")
    equal(pair.read(local, (memory.address, zero.rkey)), REM_ACCESS_ERR,
          "read of the zero-based region at the process's address")


@case("an implicit region serves the whole address space")
def implicit():
    pair = Pair()
    before = DroppableMemory(PAGE)
    space = MR(pair.pd, 0, ODP_ACCESS, implicit=True)
    after = DroppableMemory(3 * CHUNK)
    edge = (after.address // CHUNK + 1) * CHUNK - after.address
    source, local = register_filled_buffer(pair, CHUNK + 1000)
    equal(pair.write((local[0], PAGE, local[2]), (before.address, space.rkey)), SUCCESS,
          "write to memory mapped before the registration")
    equal(before.read(PAGE), pattern(PAGE), "data")
    # Transfers across the boundary of two chunks, by one packet and by many.
    for length in (8, 1000, CHUNK + 1000):
        at = edge - 5
        equal(pair.write((local[0], length, local[2]), (after.address + at, space.rkey)), SUCCESS,
              f"write {length}")
        equal(after.read(length, at) == pattern(length), True, f"data of {length}")
        fresh = DroppableMemory(3 * CHUNK)
        at = (fresh.address // CHUNK + 1) * CHUNK - 3
        local_sge = (at, length, space.lkey)
        equal(pair.read(local_sge, (after.address + edge - 5, space.rkey)), SUCCESS,
              f"read {length}")
        equal(ctypes.string_at(at, length) == pattern(length), True,
              f"data of {length} read by the owner")
        libc.munmap(fresh.address, fresh.length)
    after.drop_pages()
    equal(pair.read((local[0], 1000, local[2]), (after.address + edge - 5, space.rkey)), SUCCESS,
          "read of dropped pages")
    equal(source.read(1000), bytes(1000), "zeros")
    libc.mprotect(after.address, after.length, 0)
    equal(pair.read((local[0], 8, local[2]), (after.address, space.rkey)), REM_ACCESS_ERR,
          "read of memory without read permission")
    for address in (0, 8, 1 << 46, (1 << 64) - 8, 0xffff_8880_0000_1000):
        pair = Pair()
        space = MR(pair.pd, 0, ODP_ACCESS, implicit=True)
        _, (local_address, _, lkey) = register_filled_buffer(pair, PAGE)
        equal(pair.read((local_address, 8, lkey), (address, space.rkey)), REM_ACCESS_ERR,
              f"read at {address:#x}")


@case("advice makes pages present, with and without IBV_ADVISE_MR_FLAG_FLUSH")
def advice():
    pair = Pair()
    for how, flags, present in [(PREFETCH, FLAG_FLUSH, 8), (PREFETCH_WRITE, FLAG_FLUSH, 8),
                                (PREFETCH, 0, 8), (PREFETCH_WRITE, 0, 8),
                                (PREFETCH_NO_FAULT, FLAG_FLUSH, 0)]:
        memory = DroppableMemory(16 * PAGE)
        region = register(pair.pd, memory, ODP_ACCESS)
        sge = (memory.address + 4 * PAGE + 7, 7 * PAGE, region.lkey)
        advise_mr(pair.pd, pair.context, how, flags, [sge])
        wait_until_equal(lambda: present_pages(memory), present,
                f"pages present after advice {how} with flags {flags}")
    space = MR(pair.pd, 0, ODP_ACCESS, implicit=True)
    memory = DroppableMemory(4 * PAGE)
    advise_mr(pair.pd, pair.context, PREFETCH_WRITE, FLAG_FLUSH,
              [(memory.address, 4 * PAGE, space.lkey)])
    equal(present_pages(memory), 4, "pages present after advice to the implicit region")


@case("invalid advice is refused with the right errno")
def bad_advice():
    pair = Pair()
    memory = DroppableMemory(4 * PAGE)
    demand, pinned = register(pair.pd, memory, ODP_ACCESS), register(pair.pd, memory)
    read_only = register(pair.pd, memory, REMOTE_READ | ON_DEMAND)
    other = PD(pair.context)
    foreign = register(other, memory, ODP_ACCESS)
    unmapped = DroppableMemory(PAGE)
    empty = register(pair.pd, unmapped, ODP_ACCESS)
    libc.munmap(unmapped.address, PAGE)
    at = memory.address
    for name, how, flags, sge, wanted in [
        ("advice to a pinned region", PREFETCH, FLAG_FLUSH, (at, PAGE, pinned.lkey), errno.EINVAL),
        ("advice to a pinned region without FLUSH", PREFETCH, 0, (at, PAGE, pinned.lkey),
         errno.EINVAL),
        ("advice with an unknown key", PREFETCH, FLAG_FLUSH, (at, PAGE, demand.lkey ^ 1),
         errno.EINVAL),
        ("advice to a region of another domain", PREFETCH, FLAG_FLUSH, (at, PAGE, foreign.lkey),
         errno.EINVAL),
        ("write advice to a read-only region", PREFETCH_WRITE, FLAG_FLUSH,
         (at, PAGE, read_only.lkey), errno.EPERM),
        ("advice beyond the region", PREFETCH, FLAG_FLUSH, (at + PAGE, 4 * PAGE, demand.lkey),
         errno.EFAULT),
        ("advice before the region", PREFETCH, FLAG_FLUSH, (at - 1, PAGE, demand.lkey),
         errno.EFAULT),
        ("advice to unmapped memory", PREFETCH, FLAG_FLUSH, (unmapped.address, PAGE, empty.lkey),
         errno.EFAULT),
        ("advice to unmapped memory without FLUSH", PREFETCH, 0,
         (unmapped.address, PAGE, empty.lkey), 0),
        ("unknown kind of advice", 3, FLAG_FLUSH, (at, PAGE, demand.lkey), errno.EOPNOTSUPP),
        ("unknown flags", PREFETCH, 2, (at, PAGE, demand.lkey), errno.EINVAL),
    ]:
        equal(errno_of(advise_mr, pair.pd, pair.context, how, flags, [sge]), wanted, name)


@case("data stays intact while the process drops pages during traffic")
def churn():
    fd = os.memfd_create("churn")
    pages, rounds, min_evictions = (64, 5, 10) if IS_DEBUG_KERNEL else (256, 10, 20)
    length = pages * PAGE
    os.ftruncate(fd, length)
    memory = DroppableMemory.__new__(DroppableMemory)
    memory.length, memory.address = length, map_memory(length, fd)
    pair = Pair()
    region = register(pair.pd, memory, ODP_ACCESS)
    buffer, local = register_filled_buffer(pair, length)
    running, evictions = True, 0

    def evict():
        nonlocal evictions
        while running:
            # If the process dropped pages faster than the driver faults them in, no transfer
            # would make progress.
            wanted = random.randint(1, pages // 4)
            while running and present_pages(memory) < wanted:
                time.sleep(0.001)
            memory.drop_pages()
            evictions += 1

    thread = threading.Thread(target=evict)
    thread.start()
    try:
        round_number = 0
        while round_number < rounds or evictions < min_evictions:
            round_number += 1
            data = pattern(length + round_number)[round_number:]
            buffer.fill(data)
            equal(pair.write(local, (memory.address, region.rkey)), SUCCESS, "write")
            equal(os.pread(fd, length, 0) == data, True, "data in the file")
            buffer.fill(bytes(length))
            equal(pair.read(local, (memory.address, region.rkey)), SUCCESS, "read")
            equal(buffer.read(length) == data, True, "data that was read")
    finally:
        running = False
        thread.join()
    os.close(fd)


@case("a process can exit while a WRITE to its on-demand memory is in progress")
def process_exit():
    def exit_process(kind):
        pair = Pair()
        memory = DroppableMemory(64 * PAGE)
        if kind == 1:
            region = MR(pair.pd, 0, ODP_ACCESS, implicit=True)
        else:
            region = register(pair.pd, memory, ODP_ACCESS)
        _, local = register_filled_buffer(pair, 64 * PAGE)
        pair.post(e.IBV_WR_RDMA_WRITE, local, (memory.address, region.rkey))
        if kind == 2:
            libc.munmap(memory.address, memory.length)
        # The process exits before Python closes the objects of this function.
        os._exit(0)

    for kind in range(3):
        in_child(lambda: exit_process(kind))


@case("packets of a deregistered region carry none of its later content")
def late_packets():
    length, old, new = 1 << 16, b"\x11", b"\xee"
    pair = Pair()
    source = DroppableMemory(length)
    source.fill(old * length)
    region = register(pair.pd, source)
    target, faults = pairs.memory_with_unserved_faults(length)
    remote = register(pair.pd, target, ODP_ACCESS)
    pair.post(e.IBV_WR_RDMA_WRITE, (source.address, length, region.lkey),
              (target.address, remote.rkey))
    os.read(faults, 32)  # struct uffd_msg: the page fault of the first packet has begun
    region.close()
    source.fill(new * length)
    os.close(faults)
    # The request succeeds if all of its packets were sent before the region ended. Otherwise it
    # fails, and the first packet may still wait for its page then.
    equal(pair.status() in (SUCCESS, LOC_PROT_ERR), True,
          "status of a request whose region was deregistered")
    wait_until_equal(lambda: target.read(length).count(old) >= 1024, True,
            "the payload of a parked packet arrives")
    for qp in pair.qps:
        qp.close()
    equal(target.read(length).count(new), 0, "bytes that were read after the deregistration")


@case("a page fault that fails on old memory does not fail the re-registered region")
def rereg_during_fault():
    pair, new = Pair(), DroppableMemory(PAGE)
    old, faults = pairs.memory_with_unserved_faults(PAGE)
    region = register(pair.pd, old, ODP_ACCESS)
    source, local = register_filled_buffer(pair, PAGE)
    pair.post(e.IBV_WR_RDMA_WRITE, local, (old.address, region.rkey))
    os.read(faults, 32)  # the page fault has begun
    rereg(pair.context, region, CHANGE_TRANSLATION, start=new.address, length=PAGE,
          iova=old.address)
    libc.munmap(old.address, PAGE)
    os.close(faults)  # the page fault ends with an error
    equal(pair.status(), SUCCESS, "write")
    equal(new.read(PAGE) == source.read(PAGE), True, "data in the new memory")


def flushed(cq, count):
    """Returns the sorted wr_ids of the next `count` completions.

    Fails unless all of their requests were flushed."""
    found, end = [], time.monotonic() + pairs.LIMIT_SECONDS
    while len(found) < count and time.monotonic() < end:
        found += cq.poll(count - len(found))[1]
    equal((len(found), {wc.status for wc in found}), (count, {WR_FLUSH_ERR}),
          "number of completions, and their statuses")
    return sorted(wc.wr_id for wc in found)


@case("a parked QP in the error state flushes its requests")
def flush_while_parked():
    # More requests in each queue than one run of the QP's engine flushes.
    depth = 100
    # 0: the requester is parked, as its local memory is absent. 1: the responder is parked.
    for parked in (0, 1):
        pair = Pair(depth=depth, cqe=4 * depth, peer_cqe=4 * depth)
        absent, faults = pairs.memory_with_unserved_faults(PAGE)
        _, (address, _, lkey) = register_filled_buffer(pair, PAGE)
        demand = register(pair.pd, absent, ODP_ACCESS)
        here, there = (address, PAGE, lkey), (absent.address, demand.rkey)
        if parked == 0:
            here, there = (absent.address, PAGE, demand.lkey), (address, pair.kept[0].rkey)
        qp, cq, sge = pair.qps[parked], pair.cqs[parked], SGE(address, PAGE, lkey)
        for number in range(depth):
            qp.post_recv(RecvWR(wr_id=depth + number, num_sge=1, sg=[sge]))
        pair.post(e.IBV_WR_RDMA_WRITE, here, there, 0)
        os.read(faults, 32)  # the page fault has begun
        for number in range(1 - parked, depth):
            qp.post_send(SendWR(wr_id=number, opcode=e.IBV_WR_SEND, num_sge=1, sg=[sge]))
        qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
        equal(flushed(cq, 2 * depth), list(range(2 * depth)), "flushed requests")
        qp.post_send(SendWR(wr_id=7, opcode=e.IBV_WR_SEND, num_sge=1, sg=[sge]))
        qp.post_recv(RecvWR(wr_id=8, num_sge=1, sg=[sge]))
        equal(flushed(cq, 2), [7, 8], "flushed requests that were posted in the error state")
        os.close(faults)
        for qp in pair.qps:
            qp.close()


@case("page faults of a region succeed beside concurrent advice that causes no page faults")
def concurrent_faults():
    pair, memory = Pair(), DroppableMemory(255 * PAGE)
    region = register(pair.pd, memory, ODP_ACCESS)
    whole = [(memory.address, memory.length, region.lkey)]
    ended, statuses = threading.Event(), set()

    def advise_without_fault():
        while not ended.is_set():
            errno_of(advise_mr, pair.pd, pair.context, PREFETCH_NO_FAULT, FLAG_FLUSH, whole)

    threads = [threading.Thread(target=advise_without_fault) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(60 if IS_DEBUG_KERNEL else 300):
        memory.drop_pages()
        statuses.add(errno_of(advise_mr, pair.pd, pair.context, PREFETCH_WRITE, FLAG_FLUSH, whole))
    ended.set()
    for thread in threads:
        thread.join()
    equal(statuses, {0}, "errnos of advice on mapped memory")


sys.exit(main())
