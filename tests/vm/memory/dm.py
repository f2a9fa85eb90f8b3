#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests of device memory (`ibv_alloc_dm()`): dm.py DEVICE GID-INDEX PEER-DEVICE PEER-GID-INDEX.

The stock provider librxe has no calls for device memory, so these tests need librrxe. A QP of
PEER-DEVICE, on another host, accesses device memory of DEVICE through the network. The process
compares the result with its own mapping of the device memory. The GID indices are those of the two
devices. The last case deletes the RDMA link of DEVICE.
"""

import contextlib
import ctypes
import errno
import os
import signal
import struct
import subprocess
import sys

from pyverbs.cq import CQ
from pyverbs.device import AllocDmAttr, Context, DM
import pyverbs.enums as e
from pyverbs.mr import DMMR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPCap, QPInitAttr
from pyverbs.wr import RecvWR, SGE, SendWR

import extension
from cgroups import join, memory_group, remove_group
from pairs import (
    ALL, DEVICE, GID_INDEX, LOCAL_WRITE, PAGE, REMOTE_READ, Buffer, Pair, become_nobody, case,
    connect, equal, errno_of_pyverbs, in_child, libc, main, map_memory, pattern, register,
    start_child,
)
from uverbs import alloc_dm, errno_of, free_dm

PEER, PEER_GID_INDEX = sys.argv[3], int(sys.argv[4])
# Size in bytes of the largest piece of device memory, and of all device memory of a device.
MAX_PIECE, MAX_TOTAL = 256 << 10, 16 << 20
# Limits, in bytes, of a user and of a memory cgroup other than the root cgroup.
USER_LIMIT, CGROUP_LIMIT = MAX_TOTAL // 2, MAX_TOTAL // 4
# Device memory with handle n is mapped at offset MMAP_OFFSET + n * MMAP_STRIDE of the uverbs file.
MMAP_OFFSET, MMAP_STRIDE = 1 << 43, 256 << 10
ZERO_BASED = e.IBV_ACCESS_ZERO_BASED
SUCCESS, REM_ACCESS_ERR = e.IBV_WC_SUCCESS, e.IBV_WC_REM_ACCESS_ERR
LOC_PROT_ERR = e.IBV_WC_LOC_PROT_ERR


class Hosts(Pair):
    """Two connected QPs: index 0 is the requester on PEER, index 1 the responder on DEVICE.

    The lists of contexts, PDs, CQs and QPs have these indices (`side`), until `swap_sides`
    exchanges them."""

    made = []

    def __init__(self):
        self.made.append(self)
        self.kept = []
        self.contexts = [Context(name=PEER), Context(name=DEVICE)]
        self.pds = [PD(context) for context in self.contexts]
        self.cqs = [CQ(context, 64) for context in self.contexts]
        cap = QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=2, max_recv_sge=2)
        self.qps = [
            QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap, sq_sig_all=1))
            for pd, cq in zip(self.pds, self.cqs)
        ]
        indices = [PEER_GID_INDEX, GID_INDEX]
        gids = [context.query_gid(1, index) for context, index in zip(self.contexts, indices)]
        for here, there in (0, 1), (1, 0):
            connect(self.contexts[here], self.qps[here], self.qps[there].qp_num,
                    gid_index=indices[here], dgid=gids[there])

    def memory(self, length, side=1):
        """Returns new device memory of DEVICE, or of the device `side`."""
        return DM(self.contexts[side], AllocDmAttr(length))

    def region(self, dm, length, offset=0, access=ALL, side=1):
        self.kept.append(DMMR(self.pds[side], length, access | ZERO_BASED, dm, offset))
        return self.kept[-1]

    def registered_buffer(self, length, side=0, fill=True):
        """Registers a new buffer of the process with PEER, or with the device `side`.

        With `fill` the buffer holds `pattern(length)`. Returns the buffer, its (address, length,
        lkey) and its rkey."""
        buffer = Buffer(length)
        if fill:
            buffer.fill(pattern(length))
        region = register(self.pds[side], buffer)
        self.kept.append(region)
        return buffer, (buffer.address, length, region.lkey), region.rkey

    def swap_sides(self):
        """Exchanges the sides, so that DEVICE has the requester."""
        for pair in self.contexts, self.pds, self.cqs, self.qps:
            pair.reverse()

    def close(self):
        """Deregisters the regions first: device memory with regions can't be freed, and pyverbs
        frees objects in any order."""
        for region in self.kept:
            region.close()
        for context in self.contexts:
            context.close()


def hosts_case(name):
    """Registers a test case, and closes all `Hosts` that it makes."""
    def register_case(function):
        @case(name)
        def run():
            try:
                function()
            finally:
                while Hosts.made:
                    Hosts.made.pop().close()
    return register_case


def read(dm, length, offset=0):
    """Returns bytes of device memory from its mapping, which is read by words of 4 bytes."""
    first = offset & -4
    data = dm.copy_from_dm(first, (offset + length + 3 & -4) - first)
    return data[offset - first:offset - first + length]


def map_dm(context, handle, length):
    """Maps device memory. Returns the address, or the negative errno."""
    return map_memory(length, fd=context.cmd_fd, offset=MMAP_OFFSET + handle * MMAP_STRIDE)


@hosts_case("a peer's WRITE and READ access the region's range of device memory and no other")
def remote_use():
    for size, offset, length in (
        (MAX_PIECE, 0, MAX_PIECE), (3 * PAGE + 100, PAGE - 44, PAGE + 77), (4, 0, 3),
        (PAGE, 4092, 4), (8192, 4095, 2),
    ):
        hosts = Hosts()
        dm = hosts.memory(size)
        equal(read(dm, size), bytes(size), "fresh memory")
        region = hosts.region(dm, length, offset)
        source, local, _ = hosts.registered_buffer(length)
        data = source.read(length)
        equal(hosts.write(local, (0, region.rkey)), SUCCESS, "write")
        equal(read(dm, length, offset) == data, True, "data that was written")
        equal(read(dm, offset), bytes(offset), "memory before the region")
        behind = size - offset - length
        equal(read(dm, behind, offset + length), bytes(behind), "memory behind the region")
        whole = bytes(reversed(pattern(size & -4)))
        dm.copy_to_dm(0, whole, len(whole))
        equal(hosts.read(local, (0, region.rkey)), SUCCESS, "read")
        equal(source.read(length) == whole[offset:offset + length], True, "data that was read")
        region.close()


@hosts_case("SEND from, receive into and READ into device memory")
def local_use():
    hosts, length = Hosts(), 5 * PAGE + 4
    dm = hosts.memory(length + 8)
    region = hosts.region(dm, length, 8, LOCAL_WRITE)
    buffer, there, rkey = hosts.registered_buffer(length)
    here = (0, length, region.lkey)
    hosts.qps[1].post_recv(RecvWR(sg=[SGE(*here)], num_sge=1))
    hosts.qps[0].post_send(SendWR(sg=[SGE(*there)], num_sge=1))
    equal(hosts.status(), SUCCESS, "send to device memory")
    equal(read(dm, length, 8) == pattern(length), True, "data that was received")
    equal(read(dm, 8), bytes(8), "memory before the region")
    dm.copy_to_dm(8, bytes(reversed(pattern(length))), length)
    hosts.swap_sides()
    equal(hosts.cqs[0].poll(1)[1][0].status, SUCCESS, "receive")
    hosts.qps[1].post_recv(RecvWR(sg=[SGE(*there)], num_sge=1))
    hosts.qps[0].post_send(SendWR(sg=[SGE(*here)], num_sge=1))
    equal(hosts.status(), SUCCESS, "send from device memory")
    equal(buffer.read(length) == bytes(reversed(pattern(length))), True, "data that was sent")
    buffer.fill(pattern(length))
    equal(hosts.read(here, (there[0], rkey)), SUCCESS, "read into device memory")
    equal(read(dm, length, 8) == pattern(length), True, "data that was read into device memory")


@hosts_case("atomics on device memory")
def atomics():
    hosts = Hosts()
    dm = hosts.memory(PAGE + 64)
    region = hosts.region(dm, 64, PAGE)
    old, local, _ = hosts.registered_buffer(8)
    dm.copy_to_dm(PAGE + 16, struct.pack("=Q", 40), 8)
    for opcode, operands, wanted in (
        (e.IBV_WR_ATOMIC_FETCH_AND_ADD, (2, 0), (40, 42)),
        (e.IBV_WR_ATOMIC_CMP_AND_SWP, (42, 7), (42, 7)),
        (e.IBV_WR_ATOMIC_CMP_AND_SWP, (42, 8), (7, 7)),
    ):
        wr = SendWR(opcode=opcode, num_sge=1, sg=[SGE(*local)])
        wr.set_wr_atomic(region.rkey, 16, *operands)
        hosts.qps[0].post_send(wr)
        equal(hosts.status(), SUCCESS, "atomic")
        equal(struct.unpack("=QQ", old.read(8) + read(dm, 8, PAGE + 16)), wanted,
              "original value and new value")


@hosts_case("a peer's access outside the region or without the right is refused")
def remote_bounds():
    size = PAGE + 50
    for length, access, opcode, at, count, wanted in (
        (size, ALL, "write", -1, 1, REM_ACCESS_ERR), (size, ALL, "write", size, 1, REM_ACCESS_ERR),
        (size, ALL, "read", size - 1, 2, REM_ACCESS_ERR),
        (size, ALL, "read", 0, size + 1, REM_ACCESS_ERR),
        (size, ALL, "write", size - 1, 1, SUCCESS), (0, ALL, "write", 0, 1, REM_ACCESS_ERR),
        (size, REMOTE_READ, "write", 0, 1, REM_ACCESS_ERR),
        (size, REMOTE_READ, "read", 0, size, SUCCESS),
        (size, LOCAL_WRITE, "read", 0, 1, REM_ACCESS_ERR),
    ):
        hosts = Hosts()
        dm = hosts.memory(4 * PAGE)
        region = hosts.region(dm, length, PAGE + 7, access)
        _, (source, _, key), _ = hosts.registered_buffer(size + PAGE)
        seen = getattr(hosts, opcode)((source, count, key), (at & (1 << 64) - 1, region.rkey))
        equal(seen, wanted, f"{opcode} {count} bytes at {at} of {length} with rights {access:#x}")
        if seen == REM_ACCESS_ERR:
            equal(read(dm, 4 * PAGE), bytes(4 * PAGE), "device memory after a refused access")
        region.close()


@hosts_case("a work request of the owner outside the region or without the right is refused")
def local_bounds():
    for at, count, access, wanted in (
        (0, 101, LOCAL_WRITE, LOC_PROT_ERR), (100, 1, LOCAL_WRITE, LOC_PROT_ERR),
        (0, 100, 0, LOC_PROT_ERR),
        (0, 100, LOCAL_WRITE, SUCCESS),
    ):
        hosts = Hosts()
        hosts.swap_sides()
        dm = hosts.memory(2 * PAGE, side=0)
        region = hosts.region(dm, 100, PAGE - 4, access, side=0)
        _, (source, _, _), rkey = hosts.registered_buffer(200, side=1)
        seen = hosts.read((at, count, region.lkey), (source, rkey))
        equal(seen, wanted, f"read {count} bytes to {at} with rights {access:#x}")


@hosts_case("invalid allocations, registrations and copies are refused")
def invalid():
    hosts = Hosts()
    context = hosts.contexts[1]
    for length, alignment, wanted in (
        (0, 0, errno.EINVAL), (MAX_PIECE + 1, 0, errno.EINVAL), ((1 << 64) - 1, 0, errno.EINVAL),
        (64, PAGE.bit_length(), errno.EINVAL), (64, 0xFFFF_FFFF, errno.EINVAL),
        (64, PAGE.bit_length() - 1, 0), (MAX_PIECE, 0, 0),
    ):
        seen = errno_of(lambda length,
                        alignment: free_dm(context, alloc_dm(context, length, alignment)),
                        length, alignment)
        equal(seen, wanted, f"{length} bytes aligned to 2^{alignment}")
    dm = hosts.memory(100)
    for length, access, offset, wanted in (
        (101, ALL, 0, errno.EINVAL), (1, ALL, 100, errno.EINVAL), (0, ALL, 101, errno.EINVAL),
        ((1 << 64) - 4, ALL, 8, errno.EINVAL), (8, ALL, (1 << 64) - 4, errno.EINVAL),
        (8, e.IBV_ACCESS_REMOTE_WRITE, 0, errno.EINVAL),
        (8, ALL | e.IBV_ACCESS_ON_DEMAND, 0, errno.EINVAL),
        (100, ALL, 0, 0), (1, ALL, 99, 0), (0, ALL, 0, 0), (0, ALL, 100, 0),
    ):
        seen = errno_of_pyverbs(DMMR, hosts.pds[1], length, access | ZERO_BASED, dm, offset)
        equal(seen, wanted, f"region of {length} bytes at {offset} with rights {access:#x}")
    equal(errno_of_pyverbs(DMMR, hosts.pds[1], 8, ALL, dm, 0), errno.EINVAL,
          "a region that isn't zero-based")
    for offset, length, wanted in (
        (0, 104, errno.EINVAL), (100, 4, errno.EINVAL), (2, 4, errno.EINVAL), (0, 2, errno.EINVAL),
        ((1 << 64) - 4, 8, errno.EINVAL), (96, 4, 0), (100, 0, 0),
    ):
        equal(errno_of_pyverbs(dm.copy_to_dm, offset, bytes(length), length), wanted,
              f"copying {length} bytes to {offset}")
        equal(errno_of_pyverbs(dm.copy_from_dm, offset, length), wanted,
              f"copying {length} bytes from {offset}")


@hosts_case("a context that did not negotiate the feature gets no device memory")
def not_negotiated():
    context = extension.Context(extension.node_of(DEVICE))
    context.cmd_fd = context.fd
    equal(errno_of(alloc_dm, context, 64), errno.EOPNOTSUPP, "errno without the feature")
    context.close()


def allocate_all(contexts):
    """Allocates all device memory that the process may have, in pieces of the largest size.

    Returns (context, handle) of each piece."""
    pieces = []
    while True:
        context = contexts[len(pieces) % len(contexts)]
        try:
            pieces.append((context, alloc_dm(context, MAX_PIECE)))
        except OSError as error:
            equal(error.errno, errno.ENOMEM, "errno at the limit")
            return pieces


@hosts_case("all processes of a user share a limit of device memory, and can reuse freed memory")
def quota():
    contexts = [Context(name=DEVICE), Context(name=DEVICE)]
    for _ in range(2):
        pieces = allocate_all(contexts)
        equal(len(pieces), USER_LIMIT // MAX_PIECE, "pieces")
        equal(errno_of(alloc_dm, contexts[1], 1), errno.ENOMEM,
              "errno of one byte beyond the limit")
        in_child(lambda: equal(errno_of(alloc_dm, Context(name=DEVICE), 1), errno.ENOMEM,
                               "errno for another process"))
        free_dm(*pieces.pop())
        small = alloc_dm(contexts[0], MAX_PIECE - PAGE + 1)
        equal(errno_of(alloc_dm, contexts[1], 1), errno.ENOMEM,
              "errno beyond the limit, which counts whole pages")
        for piece in (*pieces, (contexts[0], small)):
            free_dm(*piece)


@hosts_case("device memory with a region can't be freed, and mappings outlive the memory")
def lifetime():
    hosts = Hosts()
    context = hosts.contexts[1]
    dm = hosts.memory(2 * PAGE)
    region = hosts.region(dm, 2 * PAGE)
    equal(errno_of(free_dm, context, dm.handle), errno.EBUSY,
          "errno of freeing memory with a region")
    source, local, _ = hosts.registered_buffer(2 * PAGE)
    equal(hosts.write(local, (0, region.rkey)), SUCCESS, "write after the refusal to free")
    equal(map_dm(context, dm.handle, PAGE), -errno.EINVAL, "mapping of a part")
    equal(map_dm(context, dm.handle, 3 * PAGE), -errno.EINVAL, "mapping beyond the end")
    equal(map_dm(context, dm.handle + 1, 2 * PAGE), -errno.EINVAL, "mapping of an unknown handle")
    address, handle = map_dm(context, dm.handle, 2 * PAGE), dm.handle
    region.close()
    dm.close()
    equal(ctypes.string_at(address, 2 * PAGE) == source.read(2 * PAGE), True,
          "data in the mapping of freed memory")
    equal(map_dm(context, handle, 2 * PAGE), -errno.EINVAL, "mapping of freed memory")
    other = alloc_dm(context, 2 * PAGE)
    equal(other, handle, "the handle of new memory")
    fresh = map_dm(context, other, 2 * PAGE)
    equal(ctypes.string_at(fresh, 2 * PAGE), bytes(2 * PAGE), "content of new memory")
    ctypes.memset(fresh, 1, 2 * PAGE)
    equal(ctypes.string_at(address, 2 * PAGE) == source.read(2 * PAGE), True,
          "data in the old mapping")
    libc.munmap(address, 2 * PAGE)
    libc.munmap(fresh, 2 * PAGE)
    again = map_dm(context, other, 2 * PAGE)
    equal(again > 0, True, "second mapping")
    libc.munmap(again, 2 * PAGE)
    free_dm(context, other)
    # A peer has no access to a deregistered region.
    dm = hosts.memory(PAGE)
    region = hosts.region(dm, PAGE)
    rkey = region.rkey
    region.close()
    equal(hosts.write((local[0], PAGE, local[2]), (0, rkey)), REM_ACCESS_ERR,
          "write to a deregistered region")


@hosts_case("a context that shares the uverbs file can import device memory")
def import_dm():
    context = Context(name=DEVICE)
    dm = DM(context, AllocDmAttr(PAGE + 8))
    imported = Context(cmd_fd=os.dup(context.cmd_fd))
    equal(errno_of_pyverbs(lambda: DM(imported, handle=dm.handle + 1)), errno.EINVAL, "an unknown handle")
    same = DM(imported, handle=dm.handle)
    dm.copy_to_dm(PAGE, b"original", 8)
    equal(same.copy_from_dm(PAGE, 8), b"original", "data that the importer reads")
    same.copy_to_dm(0, b"imported", 8)
    equal(dm.copy_from_dm(0, 8), b"imported", "data that the importer wrote")
    equal(same.copy_from_dm(2 * PAGE - 4, 4), bytes(4), "the end of the last page")
    equal(errno_of_pyverbs(same.copy_from_dm, 2 * PAGE, 4), errno.EINVAL, "errno of a copy beyond the pages")
    same.unimport()
    equal(dm.copy_from_dm(0, 8), b"imported", "data after the end of the import")
    imported.close()
    dm.close()


@hosts_case("a child process shares the mapping of device memory")
def fork():
    hosts = Hosts()
    dm = hosts.memory(PAGE)
    region = hosts.region(dm, PAGE)
    in_child(lambda: dm.copy_to_dm(8, b"children", 8))
    target, local, _ = hosts.registered_buffer(PAGE)
    equal(hosts.read(local, (0, region.rkey)), SUCCESS, "read")
    equal(target.read(8, 8), b"children", "data that the child wrote")


@contextlib.contextmanager
def process(body):
    """Context manager: a process that runs `body(writer)`. Waits until `body` writes b"x" to the
    file descriptor `writer`. Kills the process at the end."""
    reader, writer = os.pipe()
    child = start_child(lambda: body(writer))
    os.close(writer)
    equal(os.read(reader, 1), b"x", "message of the child")
    os.close(reader)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        equal(os.waitpid(child, 0)[1], signal.SIGKILL, "status of the killed child")


@hosts_case("device memory is freed when its process is killed during traffic")
def killed_process():
    def body(writer):
        hosts = Hosts()
        dm = hosts.memory(MAX_PIECE)
        region = hosts.region(dm, MAX_PIECE)
        allocate_all(hosts.contexts[1:])
        _, local, _ = hosts.registered_buffer(MAX_PIECE)
        reported = False
        while hosts.write(local, (0, region.rkey)) == SUCCESS:
            if not reported:
                os.write(writer, b"x")
            reported = True

    context = Context(name=DEVICE)
    with process(body):
        equal(errno_of(alloc_dm, context, 1), errno.ENOMEM, "errno while the process lives")
    pieces = allocate_all([context])
    equal(len(pieces), USER_LIMIT // MAX_PIECE, "pieces after the end of the process")


@hosts_case("a user gets half of the device memory, and other users get the rest")
def quota_of_users():
    def second_user(writer):
        become_nobody()
        context = Context(name=DEVICE)
        pieces = allocate_all([context])
        equal(len(pieces), USER_LIMIT // MAX_PIECE, "pieces of another user")
        os.write(writer, b"x")
        signal.pause()

    def third_user(wanted):
        os.setresuid(1000, 1000, 1000)
        equal(errno_of(alloc_dm, Context(name=DEVICE), 1), wanted,
              "errno of one byte for a third user")

    context = Context(name=DEVICE)
    equal(len(allocate_all([context])), USER_LIMIT // MAX_PIECE, "pieces of root")
    with process(second_user):
        in_child(lambda: third_user(errno.ENOMEM))
    in_child(lambda: third_user(0))


@hosts_case("device memory is charged to the memory cgroup of the process that allocates it")
def charged_to_cgroup():
    group = memory_group("device-memory")

    def body(writer):
        outside = Context(name=DEVICE)
        join(group)
        inside = Context(name=DEVICE)
        equal(len(allocate_all([inside])), CGROUP_LIMIT // MAX_PIECE, "pieces of the cgroup")
        equal(len(allocate_all([outside])), (USER_LIMIT - CGROUP_LIMIT) // MAX_PIECE,
              "pieces of the user outside the cgroup")
        os.write(writer, b"x")
        signal.pause()

    with process(body), open(f"{group}/memory.current", encoding="ascii") as current:
        equal(int(current.read()) >= USER_LIMIT, True, "at least USER_LIMIT bytes are charged")
    remove_group(group)


@hosts_case("mappings of device memory outlive the device")
def deleted_device():
    hosts = Hosts()
    context = hosts.contexts[1]
    dm = hosts.memory(MAX_PIECE)
    region = hosts.region(dm, MAX_PIECE)
    _, local, _ = hosts.registered_buffer(MAX_PIECE)
    equal(hosts.write(local, (0, region.rkey)), SUCCESS, "write")
    subprocess.run(["ip", "netns", "exec", "h1", "rdma", "link", "del", DEVICE], check=True)
    equal(read(dm, MAX_PIECE) == pattern(MAX_PIECE), True, "data in the mapping")
    dm.copy_to_dm(0, b"mine", 4)
    equal(read(dm, 4), b"mine", "data written through the mapping")
    equal(errno_of(alloc_dm, context, 4), errno.EIO, "errno of an allocation")
    equal(map_dm(context, dm.handle, MAX_PIECE), -errno.EIO, "another mapping")


sys.exit(main())
