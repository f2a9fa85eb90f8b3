#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests of pinned memory regions, completion queues and mapped rings: memory.py DEVICE GID-INDEX.

Regions: bounds, rights, keys and the count of pinned pages. Completion queues: capacity, resizing
and overflow. Mapped rings (queues of CQs and QPs that the process shares with the driver): mmap(2),
lifetime and arbitrary content. Cases with QPs connect pairs of RC QPs of DEVICE in one process
(loopback, by entry GID-INDEX of the GID table). The environment variable SEED is the seed of random
content.
"""

import ctypes
import errno
import mmap
import os
import random
import signal
import struct
import sys
import time

from pyverbs.cq import CQ
from pyverbs.device import Context
import pyverbs.enums as e
from pyverbs.mr import MR, MW
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import RecvWR, SGE, SendWR

from pairs import (
    ALL, DEVICE, LOCAL_WRITE, PAGE, LIMIT_SECONDS, REMOTE_READ, REMOTE_WRITE, Buffer, Pair, case, equal,
    errno_of_pyverbs, fail_on_alarm, in_child, libc, main, map_memory, pattern, pinned_kib,
    register, state, wait_for_state,
)

SEED = int(os.environ.get("SEED", "7"))
# Key of all memory in the protection domains of the kernel (`ib_device.local_dma_lkey`,
# LOCAL_DMA_LKEY of memory/mr.rs).
LOCAL_DMA_LKEY = 1


@case("a region may start and end at any byte")
def unaligned_region():
    pair = Pair()
    source, target = Buffer(5 * PAGE), Buffer(5 * PAGE)
    data = pattern(3 * PAGE + 77)
    source.fill(data, 13)
    here = register(pair.pd, source, offset=13, length=len(data))
    there = register(pair.pd, target, offset=PAGE - 1, length=len(data))
    local = (source.address + 13, len(data), here.lkey)
    remote = (target.address + PAGE - 1, there.rkey)
    equal(pair.write(local, remote), e.IBV_WC_SUCCESS, "write")
    equal(target.read(len(data), PAGE - 1) == data, True, "data arrived")
    equal(target.read(PAGE - 1), bytes(PAGE - 1), "memory before the region")
    equal(target.read(100, PAGE - 1 + len(data)), bytes(100), "memory behind the region")
    source.fill(bytes(len(data)), 13)
    equal(pair.read(local, remote), e.IBV_WC_SUCCESS, "read")
    equal(source.read(len(data), 13) == data, True, "data read back")


@case("a peer's access outside a region is refused")
def remote_bounds():
    for distance, length in [(-1, 8), (93, 8), (100, 1), (0, 101), (-PAGE, 8), ((1 << 64) - 8, 8),
                             (1 << 63, 8)]:
        pair = Pair()
        source, target = Buffer(PAGE), Buffer(3 * PAGE)
        here = register(pair.pd, source)
        there = register(pair.pd, target, offset=PAGE, length=100)
        address = (target.address + PAGE + distance) & ((1 << 64) - 1)
        source.fill(b"x" * 200)
        got = pair.write((source.address, length, here.lkey), (address, there.rkey))
        equal(got, e.IBV_WC_REM_ACCESS_ERR, f"write of {length} at {distance}")
        equal(target.read(3 * PAGE), bytes(3 * PAGE), "memory")


@case("a work request outside the owner's region is refused")
def local_bounds():
    for distance, length in [(-1, 8), (93, 8), (0, 101)]:
        pair = Pair()
        source, target = Buffer(3 * PAGE), Buffer(PAGE)
        here = register(pair.pd, source, offset=PAGE, length=100)
        there = register(pair.pd, target)
        local = (source.address + PAGE + distance, length, here.lkey)
        got = pair.write(local, (target.address, there.rkey))
        equal(got, e.IBV_WC_LOC_PROT_ERR, f"write of {length} at {distance}")


@case("a peer's access without the right is refused")
def rights():
    for access, opcode in [
        (LOCAL_WRITE, e.IBV_WR_RDMA_WRITE),
        (LOCAL_WRITE, e.IBV_WR_RDMA_READ),
        (LOCAL_WRITE | REMOTE_READ, e.IBV_WR_RDMA_WRITE),
        (LOCAL_WRITE | REMOTE_WRITE, e.IBV_WR_RDMA_READ),
        (0, e.IBV_WR_RDMA_READ),
    ]:
        pair = Pair()
        buffer = Buffer(PAGE)
        here, there = register(pair.pd, buffer), register(pair.pd, buffer, access)
        got = pair.transfer(opcode, (buffer.address, 8, here.lkey), (buffer.address, there.rkey))
        equal(got, e.IBV_WC_REM_ACCESS_ERR, f"access {access}, opcode {opcode}")


@case("a READ into a region without local write access is refused")
def read_only_target():
    pair = Pair()
    buffer = Buffer(PAGE)
    here, there = register(pair.pd, buffer, 0), register(pair.pd, buffer)
    got = pair.read((buffer.address, 8, here.lkey), (buffer.address, there.rkey))
    equal(got, e.IBV_WC_LOC_PROT_ERR, "status")


@case("registration of remote write access without local write access fails")
def inconsistent_rights():
    pair = Pair()
    buffer = Buffer(PAGE)
    for access in (REMOTE_WRITE, e.IBV_ACCESS_REMOTE_ATOMIC, REMOTE_WRITE | REMOTE_READ):
        equal(errno_of_pyverbs(register, pair.pd, buffer, access), errno.EINVAL, f"errno of access {access}")


@case("registration of unmapped memory fails")
def unmapped():
    pair = Pair()
    buffer = Buffer(4 * PAGE)
    libc.munmap(buffer.address + 2 * PAGE, PAGE)
    equal(errno_of_pyverbs(register, pair.pd, buffer), errno.EFAULT, "errno")


@case("a key is refused after deregistration")
def stale_key():
    pair = Pair()
    buffer = Buffer(PAGE)
    here, there = register(pair.pd, buffer), register(pair.pd, buffer)
    rkey = there.rkey
    equal(pair.write((buffer.address, 8, here.lkey), (buffer.address, rkey)), e.IBV_WC_SUCCESS,
          "write before deregistration")
    there.close()
    again = register(pair.pd, buffer)
    equal(again.rkey != rkey, True, "the new region has another key")
    equal(pair.write((buffer.address, 8, here.lkey), (buffer.address, rkey)),
          e.IBV_WC_REM_ACCESS_ERR, "write after deregistration")


@case("a key of another protection domain is refused")
def other_domain():
    for local in (True, False):
        pair = Pair()
        foreign = PD(pair.context)
        buffer = Buffer(PAGE)
        own, other = register(pair.pd, buffer), register(foreign, buffer)
        lkey, rkey, wanted = (
            (other.lkey, own.rkey, e.IBV_WC_LOC_PROT_ERR) if local
            else (own.lkey, other.rkey, e.IBV_WC_REM_ACCESS_ERR)
        )
        equal(pair.write((buffer.address, 8, lkey), (buffer.address, rkey)), wanted, "status")


def kernel_memory():
    """Returns an address in the kernel's direct mapping of RAM."""
    with open("/proc/kcore", "rb") as core:
        header = core.read(64)
        start = struct.unpack_from("=Q", header, 32)[0]
        count = struct.unpack_from("=H", header, 56)[0]
        core.seek(start)
        segments = [struct.unpack("=IIQQQQQQ", core.read(56)) for _ in range(count)]
    # Fields of a segment (Elf64_Phdr): type, flags, offset, virtual and physical address, size in
    # the file and in memory, alignment. Loadable segments (type 1, PT_LOAD) with a valid physical
    # address are those of RAM, and that of the kernel's text. The largest one is RAM.
    candidates = [segment for segment in segments if segment[0] == 1 and segment[4] < 1 << 46]
    largest = max(candidates, key=lambda segment: segment[6])
    return largest[3] + 4 * PAGE


@case("the kernel's local DMA lkey is refused to a process")
def kernel_key():
    secret = kernel_memory()
    for local in (True, False):
        pair = Pair()
        buffer = Buffer(PAGE)
        own = register(pair.pd, buffer)
        if local:
            got = pair.write((secret, 8, LOCAL_DMA_LKEY), (buffer.address, own.rkey))
            equal(got, e.IBV_WC_LOC_PROT_ERR, "status of a write")
        else:
            got = pair.read((buffer.address, 8, own.lkey), (secret, LOCAL_DMA_LKEY))
            equal(got, e.IBV_WC_REM_ACCESS_ERR, "status of a read")
        equal(buffer.read(PAGE), bytes(PAGE), "memory")


@case("keys can't be predicted from other keys")
def unpredictable_keys():
    pair = Pair()
    buffer = Buffer(PAGE)
    for name, make in (
        ("regions", lambda: register(pair.pd, buffer)),
        ("windows of type 1", lambda: MW(pair.pd, e.IBV_MW_TYPE_1)),
        ("windows of type 2", lambda: MW(pair.pd, e.IBV_MW_TYPE_2)),
    ):
        objects = [make() for _ in range(64)]
        keys = sorted(each.rkey for each in objects)
        equal(len(set(keys)), 64, f"different keys of {name}")
        gaps = {second - first for first, second in zip(keys, keys[1:])}
        equal(len(gaps) > 60, True, f"differences between keys of {name} vary ({len(gaps)})")
        equal(keys[-1] - keys[0] > 1 << 30, True, f"keys of {name} are spread over 31 bits")


@case("a zero-length WRITE succeeds with any key")
def zero_length_write():
    pair = Pair()
    equal(pair.write((0, 0, 0), (0x1234, 0xdead)), e.IBV_WC_SUCCESS, "status")


@case("a region of more than 1 GiB serves its last byte and no further one")
def large_region():
    pair = Pair()
    chunk, count = 4 << 20, 320
    fd = os.memfd_create("chunk")
    os.ftruncate(fd, chunk)
    start = map_memory(chunk * count)
    for index in range(count):
        equal(map_memory(chunk, fd, at=start + index * chunk), start + index * chunk, "mapping")
    region = MR(pair.pd, chunk * count, ALL, address=start)
    buffer = Buffer(PAGE)
    buffer.fill(pattern(64))
    here = register(pair.pd, buffer)
    last = start + chunk * count - 64
    equal(pair.write((buffer.address, 64, here.lkey), (last, region.rkey)), e.IBV_WC_SUCCESS,
          "write at the end")
    equal(ctypes.string_at(last, 64), pattern(64), "data at the end")
    equal(pair.write((buffer.address, 65, here.lkey), (last, region.rkey)), e.IBV_WC_REM_ACCESS_ERR,
          "write beyond the end")
    region.close()
    libc.munmap(start, chunk * count)
    os.close(fd)


@case("memory stays pinned until deregistration")
def pinned():
    pair = Pair()
    before = pinned_kib()
    buffer = Buffer(10 * PAGE)
    region = register(pair.pd, buffer)
    equal(pinned_kib() - before, 10 * PAGE // 1024, "pinned KiB")
    region.close()
    equal(pinned_kib(), before, "pinned KiB after deregistration")


@case("a CQ has at least the requested capacity, rounded up")
def capacities():
    context = Context(name=DEVICE)
    max_cqe = context.query_device().max_cqe
    equal(max_cqe, (1 << 22) - 1, "max_cqe")
    for asked, granted in [(1, 1), (2, 3), (3, 3), (4, 7), (1000, 1023), (32768, 65535),
                           (max_cqe, max_cqe)]:
        cq = CQ(context, asked)
        equal(cq.cqe, granted, f"capacity for {asked} entries")
        cq.close()
    for asked in (0, max_cqe + 1, (1 << 31) - 1):
        equal(errno_of_pyverbs(CQ, context, asked), errno.EINVAL, f"errno for {asked} entries")


@case("a CQ keeps its completions in order when it is resized")
def resized_cq():
    pair = Pair(depth=1024, cqe=4095)
    buffer = Buffer(PAGE)
    region = register(pair.pd, buffer)
    posted, polled = 0, 0

    def post(count):
        nonlocal posted
        end, last = time.monotonic() + LIMIT_SECONDS, posted + count
        while posted < last:
            try:
                pair.post(e.IBV_WR_RDMA_WRITE, (buffer.address, 8, region.lkey),
                          (buffer.address, region.rkey), posted)
                posted += 1
                end = time.monotonic() + LIMIT_SECONDS
            except PyverbsRDMAError:  # the send queue is full: tries until requests have completed
                equal(time.monotonic() < end, True, "room in the send queue")

    def poll(count):
        nonlocal polled
        end = time.monotonic() + LIMIT_SECONDS
        while count:
            found, completions = pair.cqs[0].poll(min(count, 64))
            equal([wc.wr_id for wc in completions], list(range(polled, polled + found)),
                  "completions in order")
            polled, count = polled + found, count - found
            if found:
                end = time.monotonic() + LIMIT_SECONDS
            equal(time.monotonic() < end, True, "completions in time")

    for size in 60000, 5000, 4095, 32768:
        post(1000)
        poll(700)
        post(3700 - (posted - polled))
        # The requests that were posted last may still complete during the resize.
        pair.cqs[0].resize(size)
        equal(pair.cqs[0].cqe >= size, True, "capacity after the resize")
        poll(1234)
    equal(errno_of_pyverbs(pair.cqs[0].resize, posted - polled - 1024), errno.EINVAL,
          "errno of a resize below the number of completions")
    poll(posted - polled)
    equal(pair.cqs[0].poll(1)[0], 0, "further completions")


@case("a CQ overflow raises an event and puts its QPs into the error state")
def overflow():
    pair = Pair(cqe=3)
    buffer = Buffer(PAGE)
    region = register(pair.pd, buffer)
    for number in range(6):
        pair.post(e.IBV_WR_RDMA_WRITE, (buffer.address, 8, region.lkey),
                  (buffer.address, region.rkey), number)
    event = pair.context.get_async_event()
    equal(event.event_type, e.IBV_EVENT_CQ_ERR, "event")
    event.ack()
    wait_for_state(pair.qps[0], e.IBV_QPS_ERR)
    count, completions = pair.cqs[0].poll(16)
    equal(count, 3, "completions that fitted")
    equal([wc.wr_id for wc in completions], [0, 1, 2], "order of the completions")
    equal(pair.cqs[0].poll(16)[0], 0, "further completions")


@case("a CQ that overflows still delivers the notification of earlier completions")
def overflow_with_notification():
    pair = Pair(peer_cqe=3, listens=True)
    buffer = Buffer(PAGE)
    region = register(pair.pd, buffer)
    element = SGE(buffer.address, 8, region.lkey)
    for number in range(6):
        pair.qps[1].post_recv(RecvWR(wr_id=number, num_sge=1, sg=[element]))
    pair.cqs[1].req_notify()
    # One call posts all sends, so that the peer's QP takes the packets in during one run of its
    # engine. The first completion makes a notification due. The fourth overflows the CQ before the
    # notification is delivered.
    sends = [None]
    for number in reversed(range(6)):
        sends.append(SendWR(wr_id=number, opcode=e.IBV_WR_SEND, num_sge=1, sg=[element],
                            next_wr=sends[-1]))
    pair.qps[0].post_send(sends[-1])
    event = pair.context.get_async_event()
    equal(event.event_type, e.IBV_EVENT_CQ_ERR, "event")
    event.ack()
    signal.alarm(60)
    pair.channel.get_cq_event(pair.cqs[1])
    signal.alarm(0)
    pair.cqs[1].ack_events(1)
    equal(pair.cqs[1].poll(16)[0], 3, "completions that fitted")


def to_init(qp):
    attr = QPAttr(qp_state=e.IBV_QPS_INIT, port_num=1)
    qp.modify(attr, e.IBV_QP_STATE | e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT | e.IBV_QP_ACCESS_FLAGS)


@case("a CQ overflow puts idle QPs of the CQ into the error state, and no other QPs")
def overflow_with_idle_qps():
    pair = Pair(cqe=3)
    idle = Pair(beside=pair)
    buffer = Buffer(PAGE)
    region = register(pair.pd, buffer)
    kind = {"qp_type": e.IBV_QPT_RC, "cap": QPCap(max_send_wr=4, max_recv_wr=4)}
    # The send completions of this QP go to the CQ, its receive completions to another CQ.
    half_user = QP(pair.pd, QPInitAttr(scq=pair.cqs[0], rcq=pair.cqs[1], **kind))
    to_init(half_user)
    half_user.post_recv(RecvWR(wr_id=77, num_sge=1, sg=[SGE(buffer.address, 8, region.lkey)]))
    for number in range(4):
        pair.post(e.IBV_WR_RDMA_WRITE, (buffer.address, 8, region.lkey),
                  (buffer.address, region.rkey), number)
    for qp in (pair.qps[0], idle.qps[0], half_user):
        wait_for_state(qp, e.IBV_QPS_ERR)
    count, completions = pair.cqs[1].poll(16)
    equal([(wc.wr_id, wc.status) for wc in completions[:count]], [(77, e.IBV_WC_WR_FLUSH_ERR)],
          "flushed completions")
    equal(idle.state(1), e.IBV_QPS_RTS, "state of a QP with another CQ")
    # A QP that is created after the overflow gets into the error state, too, once it leaves RESET.
    late = QP(pair.pd, QPInitAttr(scq=pair.cqs[0], rcq=pair.cqs[0], **kind))
    equal(state(late), e.IBV_QPS_RESET, "state of a new QP")
    to_init(late)
    wait_for_state(late, e.IBV_QPS_ERR)
    events = [pair.context.get_async_event() for _ in range(5)]
    for event in events:
        event.ack()
    kinds = [event.event_type for event in events]
    equal(kinds, [e.IBV_EVENT_CQ_ERR] + 4 * [e.IBV_EVENT_QP_FATAL], "events")


def ring_mappings():
    """Returns (address, length, offset) of each mapping of a uverbs file, and the highest file
    descriptor of such files."""
    mappings = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            fields = line.split()
            if "/dev/infiniband/uverbs" in line:
                start, end = (int(part, 16) for part in fields[0].split("-"))
                mappings.append((start, end - start, int(fields[2], 16)))
    files = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if "/dev/infiniband/uverbs" in os.readlink(f"/proc/self/fd/{name}"):
                files.append(int(name))
        except FileNotFoundError:
            continue
    return mappings, max(files)


@case("a ring can be mapped only whole, shared and at its offset")
def ring_mapping():
    context = Context(name=DEVICE)
    cq = CQ(context, 1000)
    mappings, fd = ring_mappings()
    equal(len(mappings), 1, "mappings of device files")
    address, length, offset = mappings[0]
    second = map_memory(length, fd, offset)
    equal(second > 0, True, f"address of the second mapping ({second})")
    equal(ctypes.string_at(second, 8), ctypes.string_at(address, 8), "header of the ring")
    for name, got in [
        ("a private mapping", map_memory(length, fd, offset, mmap.MAP_PRIVATE)),
        ("a mapping one page too long", map_memory(length + PAGE, fd, offset)),
        ("a mapping from the second page on", map_memory(length - PAGE, fd, offset + PAGE)),
        ("a mapping at an unused offset", map_memory(length, fd, offset + (1 << 30))),
        ("a mapping at an offset beyond 32 bits of pages", map_memory(length, fd, 1 << 50)),
    ]:
        equal(got, -errno.EINVAL, name)
    libc.munmap(second, length)
    cq.close()


@case("a mapped ring outlives its CQ, a fork and its context")
def ring_lifetime():
    context = Context(name=DEVICE)
    cq = CQ(context, 1000)
    (_, length, offset), = ring_mappings()[0]
    fd = os.dup(ring_mappings()[1])
    kept = map_memory(length, fd, offset)
    ring_header = ctypes.string_at(kept, 8)
    cq.close()
    equal(map_memory(length, fd, offset), -errno.EINVAL, "mapping after the CQ was destroyed")
    equal(ctypes.string_at(kept, 8), ring_header, "the ring after the CQ was destroyed")
    ctypes.memset(kept, 0xff, length)
    in_child(lambda: equal(ctypes.string_at(kept + length - 8, 8), b"\xff" * 8,
                           "the ring in a child process"))
    context.close()
    os.close(fd)
    equal(ctypes.string_at(kept, 8), b"\xff" * 8, "the ring after the context was closed")
    libc.munmap(kept, length)


def post_nothing(fd):
    """Makes the system call POST_SEND, without requests, on all QPs of a context.

    The driver then reads their rings. The library's own call would trust the content of the
    rings."""
    response = ctypes.create_string_buffer(8)
    for handle in range(32):
        # struct ib_uverbs_cmd_hdr for POST_SEND, and struct ib_uverbs_post_send with no requests.
        command = struct.pack("=IHHQIIII", 28, 8, 1, ctypes.addressof(response), handle, 0, 0, 128)
        try:
            os.write(fd, command)
        except OSError:
            pass  # the handle is not that of a QP


@case("garbage in a process's rings does not affect other QPs")
def garbage_in_rings():
    random.seed(SEED)
    victim = Pair()
    memory = Buffer(PAGE)
    memory.fill(pattern(PAGE))
    region = register(victim.pd, memory)
    victim_rings, _ = ring_mappings()
    for _ in range(20):
        pair = Pair()
        mappings, fd = ring_mappings()
        rings = [ring for ring in mappings if ring not in victim_rings]
        for _ in range(10):
            for address, length, _ in rings:
                start = random.choice([0, 128, 256, 384])
                garbage = random.randbytes(min(length - start, 4096))
                ctypes.memmove(address + start, garbage, len(garbage))
            post_nothing(fd)
        del pair
    equal(memory.read(PAGE) == pattern(PAGE), True, f"another QP's memory (seed {SEED})")
    local, remote = (memory.address, 8, region.lkey), (memory.address, region.rkey)
    equal(victim.write(local, remote), e.IBV_WC_SUCCESS, f"another QP's write (seed {SEED})")


signal.signal(signal.SIGALRM, fail_on_alarm)
sys.exit(main())
