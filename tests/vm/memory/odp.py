#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests of on-demand paging (ODP): odp.py DEVICE GID-INDEX.

The driver faults absent pages of an ODP region in when a local or remote access needs them. Its MMU
notifier removes pages that the process loses. Rights, keys and error statuses are those of pinned
regions. Each case connects two RC QPs of DEVICE in one process (loopback, by entry GID-INDEX of the
GID table). It changes the mappings by mmap(2), madvise(2) and mprotect(2). Memory whose page faults
are never answered comes from userfaultfd(2).
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
# All access rights of a region, which is an on-demand one.
DEMAND = ALL | ON_DEMAND
SUCCESS, REFUSED, PROTECTED = e.IBV_WC_SUCCESS, e.IBV_WC_REM_ACCESS_ERR, e.IBV_WC_LOC_PROT_ERR
FLUSHED = e.IBV_WC_WR_FLUSH_ERR
# Kinds of advice (enum ib_uverbs_advise_mr_advice), and the flag to follow it before the call
# returns.
READ, WRITE, NO_FAULT = 0, 1, 2
FLUSH = 1
# Bytes of address space that share one MMU notifier (rust/rdma/memory/odp.rs).
CHUNK = 2 << 20
# Of madvise(2) and mmap(2).
DONTNEED, HUGETLB = 4, 0x40000

libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


class Private(pairs.Private):
    """New private memory whose pages the process can drop."""

    def forget(self):
        libc.madvise(self.address, self.length, DONTNEED)


@case("absent memory comes when a peer uses it")
def remote():
    length = (1 if IS_DEBUG_KERNEL else 3) * (1 << 20) + 12345
    pair = Pair()
    target = Private(length + 2 * PAGE)
    region = register(pair.pd, target, DEMAND, offset=77, length=length)
    equal(present_pages(target), 0, "pages after the registration")
    source, local = register_filled_buffer(pair, length)
    at = (target.address + 77, region.rkey)
    equal(pair.write(local, at), SUCCESS, "write")
    equal(target.read(length, 77) == source.read(length), True, "data arrived")
    equal(target.read(77) + target.read(PAGE, 77 + length), bytes(77 + PAGE), "memory around")
    source.fill(bytes(length))
    equal(pair.read(local, at), SUCCESS, "read")
    equal(source.read(length) == pattern(length), True, "data came back")
    fresh = Private(length)
    region = register(pair.pd, fresh, DEMAND)
    equal(pair.read(local, (fresh.address, region.rkey)), SUCCESS, "read of absent memory")
    equal(source.read(length) == bytes(length), True, "zeros")


@case("absent memory comes when its owner uses it")
def local():
    length = 1 << (18 if IS_DEBUG_KERNEL else 20)
    pair = Pair()
    other, (address, _, lkey) = register_filled_buffer(pair, length)
    there = pair.kept[0].rkey
    for start in (0, 33):
        memory = Private(length + PAGE)
        region = register(pair.pd, memory, DEMAND)
        mine = (memory.address + start, length, region.lkey)
        equal(pair.read(mine, (address, there)), SUCCESS, "read into it")
        equal(memory.read(length, start) == pattern(length), True, "data arrived")
        memory = Private(length + PAGE)
        region = register(pair.pd, memory, DEMAND)
        # The payload is gathered from absent memory, so it is zeros.
        equal(pair.write((memory.address + start, length, region.lkey), (address, there)), SUCCESS, "write")
        equal(other.read(length) == bytes(length), True, "zeros")
        other.fill(pattern(length))


@case("messages into and out of absent memory")
def messages():
    length = 300000
    pair = Pair()
    first, second = Private(length + PAGE), Private(length + 3 * PAGE)
    source, target = register(pair.pd, first, DEMAND), register(pair.pd, second, DEMAND)
    sges = [SGE(second.address + 5, 1000, target.lkey), SGE(second.address + 2 * PAGE, length - 1000, target.lkey)]
    pair.qps[1].post_recv(RecvWR(wr_id=9, num_sge=2, sg=sges))
    first.fill(pattern(PAGE))
    wr = SendWR(wr_id=1, opcode=e.IBV_WR_SEND, num_sge=1, sg=[SGE(first.address, length, source.lkey)])
    pair.qps[0].post_send(wr)
    equal(pair.status(), SUCCESS, "send")
    count, completions = pair.cqs[1].poll(1)
    equal((count, completions[0].status, completions[0].byte_len), (1, SUCCESS, length), "receive")
    wanted = pattern(PAGE) + bytes(length - PAGE)
    equal(second.read(1000, 5) + second.read(length - 1000, 2 * PAGE) == wanted, True, "data")


@case("atomics on absent memory")
def atomics():
    pair = Pair()
    memory = Private(4 * PAGE)
    region = register(pair.pd, memory, DEMAND)
    buffer, (address, _, lkey) = register_filled_buffer(pair, PAGE)
    for turn in range(3):
        wr = SendWR(opcode=e.IBV_WR_ATOMIC_FETCH_AND_ADD, num_sge=1, sg=[SGE(address, 8, lkey)])
        wr.set_wr_atomic(region.rkey, memory.address + PAGE + 8, 5)
        pair.qps[0].post_send(wr)
        equal(pair.status(), SUCCESS, "status")
        equal(int.from_bytes(buffer.read(8), "little"), 5 * turn, "original")
    equal(int.from_bytes(memory.read(8, PAGE + 8), "little"), 15, "result")
    # The requester's buffer for the original value is absent memory, too.
    home = Private(PAGE)
    mine = register(pair.pd, home, DEMAND)
    wr = SendWR(opcode=e.IBV_WR_ATOMIC_CMP_AND_SWP, num_sge=1, sg=[SGE(home.address, 8, mine.lkey)])
    wr.set_wr_atomic(region.rkey, memory.address + PAGE + 8, 15, 99)
    pair.qps[0].post_send(wr)
    equal(pair.status(), SUCCESS, "status")
    equal(int.from_bytes(home.read(8), "little"), 15, "original")
    equal(int.from_bytes(memory.read(8, PAGE + 8), "little"), 99, "result")


@case("what the process drops is gone for peers")
def dropped():
    pair = Pair()
    memory = Private(16 * PAGE)
    region = register(pair.pd, memory, DEMAND)
    buffer, local = register_filled_buffer(pair, memory.length)
    at = (memory.address, region.rkey)
    for _ in range(3):
        buffer.fill(pattern(memory.length))
        equal(pair.write(local, at), SUCCESS, "write")
        equal(memory.read(memory.length) == pattern(memory.length), True, "data")
        memory.forget()
        equal(pair.read(local, at), SUCCESS, "read")
        equal(buffer.read(memory.length) == bytes(memory.length), True, "zeros, not the old pages")


@case("a fork shares no page that a peer writes")
def forked():
    pair = Pair()
    memory = Private(8 * PAGE)
    region = register(pair.pd, memory, DEMAND)
    buffer, local = register_filled_buffer(pair, memory.length)
    at = (memory.address, region.rkey)
    equal(pair.write(local, at), SUCCESS, "write")
    ready, go = os.pipe(), os.pipe()

    def look():
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        equal(memory.read(memory.length) == pattern(memory.length), True, "the child's memory")

    child = start_child(look)
    os.read(ready[0], 1)
    # The peer writes the first half of the memory, the parent itself the second half.
    buffer.fill(b"p" * memory.length)
    equal(pair.write((local[0], 4 * PAGE, local[2]), at), SUCCESS, "write after the fork")
    memory.fill(b"q" * 4 * PAGE, 4 * PAGE)
    equal(memory.read(memory.length) == b"p" * 4 * PAGE + b"q" * 4 * PAGE, True, "the parent's memory")
    equal(pair.read(local, at), SUCCESS, "read after the fork")
    equal(buffer.read(memory.length) == b"p" * 4 * PAGE + b"q" * 4 * PAGE, True, "what the peer reads")
    os.write(go[1], b"x")
    equal(os.waitpid(child, 0)[1], 0, "the child's memory is as it was")


@case("memory that isn't there, or not so, is refused")
def refused():
    memory = Private(8 * PAGE)
    hole = memory.address + 4 * PAGE
    libc.mprotect(hole, PAGE, 0)
    libc.mprotect(memory.address + 6 * PAGE, PAGE, mmap.PROT_READ)
    cases = [
        ("write", hole, 8, REFUSED), ("read", hole, 8, REFUSED), ("write", hole - 4, 8, REFUSED),
        ("read", hole - PAGE, 3 * PAGE, REFUSED), ("write", hole - 8, 8, SUCCESS),
        ("write", memory.address + 6 * PAGE, 8, REFUSED), ("read", memory.address + 6 * PAGE, 8, SUCCESS),
        ("write", memory.address + 8 * PAGE - 8, 9, REFUSED), ("read", memory.address - 1, 1, REFUSED),
    ]
    for operation, address, length, wanted in cases:
        pair = Pair()
        region = register(pair.pd, memory, DEMAND)
        _, (mine, _, lkey) = register_filled_buffer(pair, 4 * PAGE)
        got = getattr(pair, operation)((mine, length, lkey), (address, region.rkey))
        equal(got, wanted, f"{operation} of {length} at page {(address - memory.address) / PAGE}")
    # Work requests of the memory's owner get the same checks.
    for operation, address, wanted in [
        ("write", hole, PROTECTED), ("read", hole, PROTECTED), ("read", memory.address + 6 * PAGE, PROTECTED),
        ("write", memory.address + 6 * PAGE, SUCCESS),
    ]:
        pair = Pair()
        region = register(pair.pd, memory, DEMAND)
        _, (other, _, _) = register_filled_buffer(pair, PAGE)
        got = getattr(pair, operation)((address, 8, region.lkey), (other, pair.kept[0].rkey))
        equal(got, wanted, f"{operation} by the owner")
    # A receive WQE has its buffer in the hole.
    pair = Pair()
    region = register(pair.pd, memory, DEMAND)
    _, (mine, _, lkey) = register_filled_buffer(pair, PAGE)
    pair.qps[1].post_recv(RecvWR(num_sge=1, sg=[SGE(hole, 8, region.lkey)]))
    pair.qps[0].post_send(SendWR(num_sge=1, sg=[SGE(mine, 8, lkey)]))
    equal(pair.status(), e.IBV_WC_REM_OP_ERR, "send")
    equal(pair.cqs[1].poll(1)[1][0].status, PROTECTED, "receive")
    # New memory is mapped at the address of the hole.
    map_memory(PAGE, flags=mmap.MAP_PRIVATE, at=hole)
    pair = Pair()
    region = register(pair.pd, memory, DEMAND)
    _, (mine, _, lkey) = register_filled_buffer(pair, PAGE)
    equal(pair.write((mine, 8, lkey), (hole, region.rkey)), SUCCESS, "mapped again")


@case("rights and keys hold as for pinned memory")
def rights():
    for access, operation, wanted in [
        (LOCAL_WRITE, "read", REFUSED), (LOCAL_WRITE | REMOTE_READ, "write", REFUSED),
        (LOCAL_WRITE | REMOTE_READ, "read", SUCCESS), (REMOTE_READ, "read", SUCCESS),
    ]:
        pair = Pair()
        memory = Private(PAGE)
        region = register(pair.pd, memory, access | ON_DEMAND)
        _, (mine, _, lkey) = register_filled_buffer(pair, PAGE)
        got = getattr(pair, operation)((mine, 8, lkey), (memory.address, region.rkey))
        equal(got, wanted, f"{operation} with {access}")
    pair = Pair()
    memory = Private(PAGE)
    region = register(PD(pair.context), memory, DEMAND)
    _, (mine, _, lkey) = register_filled_buffer(pair, PAGE)
    equal(pair.read((mine, 8, lkey), (memory.address, region.rkey)), REFUSED, "another domain's")
    pair = Pair()
    region = register(pair.pd, memory, DEMAND)
    key = region.rkey
    _, (mine, _, lkey) = register_filled_buffer(pair, PAGE)
    equal(pair.write((mine, 8, lkey), (memory.address, key)), SUCCESS, "before deregistration")
    region.close()
    equal(pair.write((mine, 8, lkey), (memory.address, key)), REFUSED, "after deregistration")


@case("a file's pages are written through to the file")
def file():
    fd = os.memfd_create("file")
    os.ftruncate(fd, 16 * PAGE)
    memory = Private.__new__(Private)
    memory.length, memory.address = 16 * PAGE, map_memory(16 * PAGE, fd)
    pair = Pair()
    region = register(pair.pd, memory, DEMAND)
    buffer, local = known(pair, memory.length)
    # The peer reads first, so that the page faults map the pages clean.
    equal(pair.read(local, (memory.address, region.rkey)), SUCCESS, "read")
    buffer.fill(pattern(memory.length))
    equal(pair.write(local, (memory.address, region.rkey)), SUCCESS, "write")
    memory.forget()
    equal(os.pread(fd, memory.length, 0) == pattern(memory.length), True, "the file")
    equal(memory.read(memory.length) == pattern(memory.length), True, "the mapping")
    os.close(fd)


@case("huge pages on demand")
def huge():
    memory = Private(2 * CHUNK, mmap.MAP_PRIVATE | HUGETLB)
    pair = Pair()
    region = register(pair.pd, memory, DEMAND | e.IBV_ACCESS_HUGETLB)
    length = CHUNK + 3 * PAGE
    source, local = register_filled_buffer(pair, length)
    at = (memory.address + CHUNK // 2 + 1, region.rkey)
    equal(pair.write(local, at), SUCCESS, "write")
    equal(memory.read(length, CHUNK // 2 + 1) == pattern(length), True, "data")
    libc.munmap(memory.address, memory.length)
    # IBV_ACCESS_HUGETLB promises huge pages. The driver refuses accesses to small ones.
    small = Private(2 * CHUNK)
    region = register(pair.pd, small, DEMAND | e.IBV_ACCESS_HUGETLB)
    libc.madvise(small.address, small.length, 15)  # MADV_NOHUGEPAGE
    equal(pair.write((local[0], 8, local[2]), (small.address, region.rkey)), REFUSED, "small pages")


@case("regions over the same pages keep their own rights and ends")
def same_pages():
    pair, memory = Pair(), Private(4 * PAGE)
    memory.fill(pattern(4 * PAGE))
    writable, read_only = register(pair.pd, memory, DEMAND), register(pair.pd, memory, REMOTE_READ | ON_DEMAND)
    within = register(pair.pd, memory, DEMAND, offset=PAGE, length=PAGE)
    huge = register(pair.pd, memory, DEMAND | e.IBV_ACCESS_HUGETLB)
    libc.madvise(memory.address, memory.length, 15)  # MADV_NOHUGEPAGE

    def refuses(operation, address, region, what):
        # The refused access puts the QPs into the error state, so each one gets new QPs.
        other = Pair(beside=pair)
        _, (mine, _, lkey) = register_filled_buffer(other, PAGE)
        equal(getattr(other, operation)((mine, 8, lkey), (address, region.rkey)), REFUSED, what)

    buffer, (mine, _, lkey) = register_filled_buffer(pair, 4 * PAGE)
    for region in (read_only, writable, read_only):
        equal(pair.read((mine, 4 * PAGE, lkey), (memory.address, region.rkey)), SUCCESS, "read")
        equal(buffer.read(4 * PAGE) == pattern(4 * PAGE), True, "data")
    equal(pair.write((mine, 4 * PAGE, lkey), (memory.address, writable.rkey)), SUCCESS, "write")
    # The pages are present and writable for the other region.
    refuses("write", memory.address, read_only, "a write by the region to be read")
    refuses("read", memory.address, within, "a read before the region")
    refuses("read", memory.address + 2 * PAGE, within, "a read behind the region")
    equal(errno_of(advise_mr, pair.pd, pair.context, READ, FLUSH, [(memory.address, PAGE, huge.lkey)]), errno.EINVAL, "small pages")
    key = writable.rkey
    writable.close()
    equal(present_pages(memory), 4, "pages after the end of a region")
    refuses("read", memory.address, SimpleNamespace(rkey=key), "a read by the region that ended")
    equal(pair.read((mine, 4 * PAGE, lkey), (memory.address, read_only.rkey)), SUCCESS, "read by the other one")
    # The process gives up its right to write to the pages. Reads still succeed.
    libc.mprotect(memory.address, memory.length, mmap.PROT_READ)
    refuses("write", memory.address + PAGE, within, "a write that the process may not make")
    equal(pair.read((mine, 4 * PAGE, lkey), (memory.address, read_only.rkey)), SUCCESS, "read of protected pages")
    equal(buffer.read(4 * PAGE) == pattern(4 * PAGE), True, "data of protected pages")


@case("addresses of one's own, and from zero")
def named():
    pair = Pair()
    memory = Private(4 * PAGE)
    iova = 0x4321_0000_0000
    region = reg_mr(pair.pd, pair.context, memory.address, memory.length, iova, DEMAND)
    source, local = register_filled_buffer(pair, PAGE)
    equal(pair.write(local, (iova + PAGE + 5, region.rkey)), SUCCESS, "write")
    equal(memory.read(PAGE, PAGE + 5), pattern(PAGE), "data")
    region.close()
    zero = register(pair.pd, memory, DEMAND | e.IBV_ACCESS_ZERO_BASED)
    equal(pair.write(local, (2 * PAGE, zero.rkey)), SUCCESS, "write from zero")
    equal(memory.read(PAGE, 2 * PAGE), pattern(PAGE), "data")
    equal(pair.read(local, (memory.address, zero.rkey)), REFUSED, "by the process's address")


@case("the whole address space")
def implicit():
    pair = Pair()
    before = Private(PAGE)
    space = MR(pair.pd, 0, DEMAND, implicit=True)
    after = Private(3 * CHUNK)
    edge = (after.address // CHUNK + 1) * CHUNK - after.address
    source, local = register_filled_buffer(pair, CHUNK + 1000)
    equal(pair.write((local[0], PAGE, local[2]), (before.address, space.rkey)), SUCCESS, "what was mapped before")
    equal(before.read(PAGE), pattern(PAGE), "data")
    # Transfers across the boundary of two chunks, by one packet and by many.
    for length in (8, 1000, CHUNK + 1000):
        at = edge - 5
        equal(pair.write((local[0], length, local[2]), (after.address + at, space.rkey)), SUCCESS, f"write {length}")
        equal(after.read(length, at) == pattern(length), True, f"data of {length}")
        fresh = Private(3 * CHUNK)
        at = (fresh.address // CHUNK + 1) * CHUNK - 3
        mine = (at, length, space.lkey)
        equal(pair.read(mine, (after.address + edge - 5, space.rkey)), SUCCESS, f"read {length}")
        equal(ctypes.string_at(at, length) == pattern(length), True, f"data of {length}, by the owner")
        libc.munmap(fresh.address, fresh.length)
    after.forget()
    equal(pair.read((local[0], 1000, local[2]), (after.address + edge - 5, space.rkey)), SUCCESS, "dropped")
    equal(source.read(1000), bytes(1000), "zeros")
    libc.mprotect(after.address, after.length, 0)
    equal(pair.read((local[0], 8, local[2]), (after.address, space.rkey)), REFUSED, "not to be read")
    for address in (0, 8, 1 << 46, (1 << 64) - 8, 0xffff_8880_0000_1000):
        pair = Pair()
        space = MR(pair.pd, 0, DEMAND, implicit=True)
        _, (mine, _, lkey) = register_filled_buffer(pair, PAGE)
        equal(pair.read((mine, 8, lkey), (address, space.rkey)), REFUSED, f"{address:#x}")


@case("advice is followed, at once or later")
def advice():
    pair = Pair()
    for how, flags, present in [(READ, FLUSH, 8), (WRITE, FLUSH, 8), (READ, 0, 8), (WRITE, 0, 8), (NO_FAULT, FLUSH, 0)]:
        memory = Private(16 * PAGE)
        region = register(pair.pd, memory, DEMAND)
        sge = (memory.address + 4 * PAGE + 7, 7 * PAGE, region.lkey)
        advise_mr(pair.pd, pair.context, how, flags, [sge])
        wait_until_equal(lambda: present_pages(memory), present, f"pages after advice {how}, flags {flags}")
    space = MR(pair.pd, 0, DEMAND, implicit=True)
    memory = Private(4 * PAGE)
    advise_mr(pair.pd, pair.context, WRITE, FLUSH, [(memory.address, 4 * PAGE, space.lkey)])
    equal(present_pages(memory), 4, "pages of the address space")


@case("advice that can't be followed")
def bad_advice():
    pair = Pair()
    memory = Private(4 * PAGE)
    demand, pinned = register(pair.pd, memory, DEMAND), register(pair.pd, memory)
    read_only = register(pair.pd, memory, REMOTE_READ | ON_DEMAND)
    other = PD(pair.context)
    foreign = register(other, memory, DEMAND)
    gone = Private(PAGE)
    empty = register(pair.pd, gone, DEMAND)
    libc.munmap(gone.address, PAGE)
    at = memory.address
    for name, how, flags, sge, wanted in [
        ("a pinned region", READ, FLUSH, (at, PAGE, pinned.lkey), errno.EINVAL),
        ("a pinned region, later", READ, 0, (at, PAGE, pinned.lkey), errno.EINVAL),
        ("no region", READ, FLUSH, (at, PAGE, demand.lkey ^ 1), errno.EINVAL),
        ("another domain's region", READ, FLUSH, (at, PAGE, foreign.lkey), errno.EINVAL),
        ("writing what is read only", WRITE, FLUSH, (at, PAGE, read_only.lkey), errno.EPERM),
        ("beyond the region", READ, FLUSH, (at + PAGE, 4 * PAGE, demand.lkey), errno.EFAULT),
        ("before the region", READ, FLUSH, (at - 1, PAGE, demand.lkey), errno.EFAULT),
        ("what isn't mapped", READ, FLUSH, (gone.address, PAGE, empty.lkey), errno.EFAULT),
        ("what isn't mapped, later", READ, 0, (gone.address, PAGE, empty.lkey), 0),
        ("unknown advice", 3, FLUSH, (at, PAGE, demand.lkey), errno.EOPNOTSUPP),
        ("unknown flags", READ, 2, (at, PAGE, demand.lkey), errno.EINVAL),
    ]:
        equal(errno_of(advise_mr, pair.pd, pair.context, how, flags, [sge]), wanted, name)


@case("pages come and go under traffic")
def churn():
    fd = os.memfd_create("churn")
    pages, turns, least = (64, 5, 10) if IS_DEBUG_KERNEL else (256, 10, 20)
    length = pages * PAGE
    os.ftruncate(fd, length)
    memory = Private.__new__(Private)
    memory.length, memory.address = length, map_memory(length, fd)
    pair = Pair()
    region = register(pair.pd, memory, DEMAND)
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
            memory.forget()
            evictions += 1

    thread = threading.Thread(target=evict)
    thread.start()
    try:
        turn = 0
        while turn < turns or evictions < least:
            turn += 1
            data = pattern(length + turn)[turn:]
            buffer.fill(data)
            equal(pair.write(local, (memory.address, region.rkey)), SUCCESS, "write")
            equal(os.pread(fd, length, 0) == data, True, "the file")
            buffer.fill(bytes(length))
            equal(pair.read(local, (memory.address, region.rkey)), SUCCESS, "read")
            equal(buffer.read(length) == data, True, "what was read")
    finally:
        running = False
        thread.join()
    os.close(fd)


@case("a process may end whatever its regions do")
def ends():
    def end(kind):
        pair = Pair()
        memory = Private(64 * PAGE)
        region = MR(pair.pd, 0, DEMAND, implicit=True) if kind == 1 else register(pair.pd, memory, DEMAND)
        _, local = register_filled_buffer(pair, 64 * PAGE)
        pair.post(e.IBV_WR_RDMA_WRITE, local, (memory.address, region.rkey))
        if kind == 2:
            libc.munmap(memory.address, memory.length)
        # The process exits before Python closes the objects of this function.
        os._exit(0)

    for kind in range(3):
        in_child(lambda: end(kind))


@case("a peer gets nothing of a region that is gone, however late it takes the packets")
def late_packets():
    length, old, new = 1 << 16, b"\x11", b"\xee"
    pair = Pair()
    source = Private(length)
    source.fill(old * length)
    region = register(pair.pd, source)
    target, faults = pairs.memory_with_unserved_faults(length)
    remote = register(pair.pd, target, DEMAND)
    pair.post(e.IBV_WR_RDMA_WRITE, (source.address, length, region.lkey), (target.address, remote.rkey))
    os.read(faults, 32)  # the page fault of the first packet has begun
    region.close()
    source.fill(new * length)
    os.close(faults)
    # The request succeeds if all of its packets were sent before the region ended. Otherwise it
    # fails. In both cases the first packet may still wait for its page.
    equal(pair.status() in (SUCCESS, PROTECTED), True, "a request whose region goes")
    wait_until_equal(lambda: target.read(length).count(old) >= 1024, True, "a packet that waited is written")
    for qp in pair.qps:
        qp.close()
    equal(target.read(length).count(new), 0, "bytes written after the region was gone")


@case("a fault that fails on the old memory of a region says nothing of its new memory")
def registered_again():
    pair, new = Pair(), Private(PAGE)
    old, faults = pairs.memory_with_unserved_faults(PAGE)
    region = register(pair.pd, old, DEMAND)
    source, local = register_filled_buffer(pair, PAGE)
    pair.post(e.IBV_WR_RDMA_WRITE, local, (old.address, region.rkey))
    os.read(faults, 32)  # the page fault has begun
    rereg(pair.context, region, CHANGE_TRANSLATION, start=new.address, length=PAGE, iova=old.address)
    libc.munmap(old.address, PAGE)
    os.close(faults)  # the page fault ends with an error
    equal(pair.status(), SUCCESS, "write")
    equal(new.read(PAGE) == source.read(PAGE), True, "data in the new memory")


def flushed(cq, count):
    """Returns the sorted wr_ids of the next `count` completions.

    Fails unless all of their requests were flushed."""
    found, end = [], time.monotonic() + pairs.PATIENCE
    while len(found) < count and time.monotonic() < end:
        found += cq.poll(count - len(found))[1]
    equal((len(found), {wc.status for wc in found}), (count, {FLUSHED}), "completions, and statuses")
    return sorted(wc.wr_id for wc in found)


@case("a QP in error flushes what is posted, though its fault is never answered")
def flushed_meanwhile():
    # More requests in each queue than one run of the QP's engine flushes.
    depth = 100
    for stands in (0, 1):
        pair = Pair(depth=depth, cqe=4 * depth, peer_cqe=4 * depth)
        absent, faults = pairs.memory_with_unserved_faults(PAGE)
        _, (address, _, lkey) = register_filled_buffer(pair, PAGE)
        demand = register(pair.pd, absent, DEMAND)
        here, there = (address, PAGE, lkey), (absent.address, demand.rkey)
        if stands == 0:
            here, there = (absent.address, PAGE, demand.lkey), (address, pair.kept[0].rkey)
        qp, cq, sge = pair.qps[stands], pair.cqs[stands], SGE(address, PAGE, lkey)
        for number in range(depth):
            qp.post_recv(RecvWR(wr_id=depth + number, num_sge=1, sg=[sge]))
        pair.post(e.IBV_WR_RDMA_WRITE, here, there, 0)
        os.read(faults, 32)  # the page fault has begun
        for number in range(1 - stands, depth):
            qp.post_send(SendWR(wr_id=number, opcode=e.IBV_WR_SEND, num_sge=1, sg=[sge]))
        qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
        equal(flushed(cq, 2 * depth), list(range(2 * depth)), "flushed requests")
        qp.post_send(SendWR(wr_id=7, opcode=e.IBV_WR_SEND, num_sge=1, sg=[sge]))
        qp.post_recv(RecvWR(wr_id=8, num_sge=1, sg=[sge]))
        equal(flushed(cq, 2), [7, 8], "flushed requests that were posted in error")
        os.close(faults)
        for qp in pair.qps:
            qp.close()


@case("faults of one region don't disturb each other")
def faults_side_by_side():
    pair, memory = Pair(), Private(255 * PAGE)
    region = register(pair.pd, memory, DEMAND)
    whole = [(memory.address, memory.length, region.lkey)]
    ended, statuses = threading.Event(), set()

    def look():
        while not ended.is_set():
            errno_of(advise_mr, pair.pd, pair.context, NO_FAULT, FLUSH, whole)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(60 if IS_DEBUG_KERNEL else 300):
        memory.forget()
        statuses.add(errno_of(advise_mr, pair.pd, pair.context, WRITE, FLUSH, whole))
    ended.set()
    for thread in threads:
        thread.join()
    equal(statuses, {0}, "errors of advice on memory that the process has")


sys.exit(main())
