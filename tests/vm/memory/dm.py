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
# Bytes: of the largest piece of device memory, and of all device memory that there may be.
LARGEST, TOTAL = 256 << 10, 16 << 20
# Limits, in bytes, of a user and of a memory cgroup other than the root cgroup.
OF_USER, OF_CGROUP = TOTAL // 2, TOTAL // 4
# Device memory with handle n is mapped at the mmap offset OFFSET + n * STRIDE of the uverbs file.
OFFSET, STRIDE = 1 << 43, 256 << 10
ZERO_BASED = e.IBV_ACCESS_ZERO_BASED
SUCCESS, REFUSED, PROTECTED = e.IBV_WC_SUCCESS, e.IBV_WC_REM_ACCESS_ERR, e.IBV_WC_LOC_PROT_ERR


class Hosts(Pair):
    """Two connected QPs: index 0 is the requester on PEER, index 1 the responder on DEVICE.

    All lists of this class have these indices (`side`), until `from_here` exchanges them."""

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
            connect(self.contexts[here], self.qps[here], self.qps[there].qp_num, gid_index=indices[here],
                    dgid=gids[there])

    def memory(self, length, side=1):
        """Returns new device memory of DEVICE, or of the device `side`."""
        return DM(self.contexts[side], AllocDmAttr(length))

    def region(self, dm, length, offset=0, access=ALL, side=1):
        self.kept.append(DMMR(self.pds[side], length, access | ZERO_BASED, dm, offset))
        return self.kept[-1]

    def known(self, length, side=0, fill=True):
        """Returns a buffer of the process, its (address, length, lkey) and its rkey.

        Its region is one of PEER, or of the device `side`."""
        buffer = Buffer(length)
        if fill:
            buffer.fill(pattern(length))
        region = register(self.pds[side], buffer)
        self.kept.append(region)
        return buffer, (buffer.address, length, region.lkey), region.rkey

    def from_here(self):
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


def mapped(context, handle, length):
    """Maps device memory. Returns the address, or the negative errno."""
    return map_memory(length, fd=context.cmd_fd, offset=OFFSET + handle * STRIDE)


@hosts_case("a peer and the owner use device memory, and what is around it stays")
def whole():
    for size, offset, length in (
        (LARGEST, 0, LARGEST), (3 * PAGE + 100, PAGE - 44, PAGE + 77), (4, 0, 3), (PAGE, 4092, 4), (8192, 4095, 2),
    ):
        hosts = Hosts()
        dm = hosts.memory(size)
        equal(read(dm, size), bytes(size), "fresh memory")
        region = hosts.region(dm, length, offset)
        source, local, _ = hosts.known(length)
        data = source.read(length)
        equal(hosts.write(local, (0, region.rkey)), SUCCESS, "write")
        equal(read(dm, length, offset) == data, True, "what was written")
        equal(read(dm, offset), bytes(offset), "memory before")
        behind = size - offset - length
        equal(read(dm, behind, offset + length), bytes(behind), "memory behind")
        whole = bytes(reversed(pattern(size & -4)))
        dm.copy_to_dm(0, whole, len(whole))
        equal(hosts.read(local, (0, region.rkey)), SUCCESS, "read")
        equal(source.read(length) == whole[offset:offset + length], True, "what was read")
        region.close()


@hosts_case("device memory is sent from and received into")
def local_use():
    hosts, length = Hosts(), 5 * PAGE + 4
    dm = hosts.memory(length + 8)
    region = hosts.region(dm, length, 8, LOCAL_WRITE)
    buffer, there, rkey = hosts.known(length)
    here = (0, length, region.lkey)
    hosts.qps[1].post_recv(RecvWR(sg=[SGE(*here)], num_sge=1))
    hosts.qps[0].post_send(SendWR(sg=[SGE(*there)], num_sge=1))
    equal(hosts.status(), SUCCESS, "send to it")
    equal(read(dm, length, 8) == pattern(length), True, "what was received")
    equal(read(dm, 8), bytes(8), "memory before")
    dm.copy_to_dm(8, bytes(reversed(pattern(length))), length)
    hosts.from_here()
    equal(hosts.cqs[0].poll(1)[1][0].status, SUCCESS, "the receive")
    hosts.qps[1].post_recv(RecvWR(sg=[SGE(*there)], num_sge=1))
    hosts.qps[0].post_send(SendWR(sg=[SGE(*here)], num_sge=1))
    equal(hosts.status(), SUCCESS, "send from it")
    equal(buffer.read(length) == bytes(reversed(pattern(length))), True, "what was sent")
    buffer.fill(pattern(length))
    equal(hosts.read(here, (there[0], rkey)), SUCCESS, "read into it")
    equal(read(dm, length, 8) == pattern(length), True, "what was read into it")


@hosts_case("atomics on device memory")
def atomics():
    hosts = Hosts()
    dm = hosts.memory(PAGE + 64)
    region = hosts.region(dm, 64, PAGE)
    old, local, _ = hosts.known(8)
    dm.copy_to_dm(PAGE + 16, struct.pack("=Q", 40), 8)
    for opcode, operands, wanted in (
        (e.IBV_WR_ATOMIC_FETCH_AND_ADD, (2, 0), (40, 42)), (e.IBV_WR_ATOMIC_CMP_AND_SWP, (42, 7), (42, 7)),
        (e.IBV_WR_ATOMIC_CMP_AND_SWP, (42, 8), (7, 7)),
    ):
        wr = SendWR(opcode=opcode, num_sge=1, sg=[SGE(*local)])
        wr.set_wr_atomic(region.rkey, 16, *operands)
        hosts.qps[0].post_send(wr)
        equal(hosts.status(), SUCCESS, "atomic")
        equal(struct.unpack("=QQ", old.read(8) + read(dm, 8, PAGE + 16)), wanted, "old and new")


@hosts_case("a peer reaches nothing beside the region, and has no right that was not given")
def bounds():
    size = PAGE + 50
    for length, access, opcode, at, count, wanted in (
        (size, ALL, "write", -1, 1, REFUSED), (size, ALL, "write", size, 1, REFUSED),
        (size, ALL, "read", size - 1, 2, REFUSED), (size, ALL, "read", 0, size + 1, REFUSED),
        (size, ALL, "write", size - 1, 1, SUCCESS), (0, ALL, "write", 0, 1, REFUSED),
        (size, REMOTE_READ, "write", 0, 1, REFUSED), (size, REMOTE_READ, "read", 0, size, SUCCESS),
        (size, LOCAL_WRITE, "read", 0, 1, REFUSED),
    ):
        hosts = Hosts()
        dm = hosts.memory(4 * PAGE)
        region = hosts.region(dm, length, PAGE + 7, access)
        _, (source, _, key), _ = hosts.known(size + PAGE)
        seen = getattr(hosts, opcode)((source, count, key), (at & (1 << 64) - 1, region.rkey))
        equal(seen, wanted, f"{opcode} {count} bytes at {at} of {length} with rights {access:#x}")
        if seen == REFUSED:
            equal(read(dm, 4 * PAGE), bytes(4 * PAGE), "the memory")
        region.close()


@hosts_case("its owner's requests reach nothing beside the region either")
def local_bounds():
    for at, count, access, wanted in (
        (0, 101, LOCAL_WRITE, PROTECTED), (100, 1, LOCAL_WRITE, PROTECTED), (0, 100, 0, PROTECTED),
        (0, 100, LOCAL_WRITE, SUCCESS),
    ):
        hosts = Hosts()
        hosts.from_here()
        dm = hosts.memory(2 * PAGE, side=0)
        region = hosts.region(dm, 100, PAGE - 4, access, side=0)
        _, (source, _, _), rkey = hosts.known(200, side=1)
        seen = hosts.read((at, count, region.lkey), (source, rkey))
        equal(seen, wanted, f"read {count} bytes to {at} with rights {access:#x}")


@hosts_case("what can't be allocated, registered or copied is refused")
def invalid():
    hosts = Hosts()
    context = hosts.contexts[1]
    for length, alignment, wanted in (
        (0, 0, errno.EINVAL), (LARGEST + 1, 0, errno.EINVAL), ((1 << 64) - 1, 0, errno.EINVAL),
        (64, 13, errno.EINVAL), (64, 0xFFFF_FFFF, errno.EINVAL), (64, 12, 0), (LARGEST, 0, 0),
    ):
        seen = errno_of(lambda length, alignment: free_dm(context, alloc_dm(context, length, alignment)),
                        length, alignment)
        equal(seen, wanted, f"{length} bytes aligned to 2^{alignment}")
    dm = hosts.memory(100)
    for length, access, offset, wanted in (
        (101, ALL, 0, errno.EINVAL), (1, ALL, 100, errno.EINVAL), (0, ALL, 101, errno.EINVAL),
        ((1 << 64) - 4, ALL, 8, errno.EINVAL), (8, ALL, (1 << 64) - 4, errno.EINVAL),
        (8, e.IBV_ACCESS_REMOTE_WRITE, 0, errno.EINVAL), (8, ALL | e.IBV_ACCESS_ON_DEMAND, 0, errno.EINVAL),
        (100, ALL, 0, 0), (1, ALL, 99, 0), (0, ALL, 0, 0), (0, ALL, 100, 0),
    ):
        seen = errno_of_pyverbs(DMMR, hosts.pds[1], length, access | ZERO_BASED, dm, offset)
        equal(seen, wanted, f"region of {length} bytes at {offset} with rights {access:#x}")
    equal(errno_of_pyverbs(DMMR, hosts.pds[1], 8, ALL, dm, 0), errno.EINVAL,
          "a region that doesn't count from zero")
    for offset, length, wanted in (
        (0, 104, errno.EINVAL), (100, 4, errno.EINVAL), (2, 4, errno.EINVAL), (0, 2, errno.EINVAL),
        ((1 << 64) - 4, 8, errno.EINVAL), (96, 4, 0), (100, 0, 0),
    ):
        equal(errno_of_pyverbs(dm.copy_to_dm, offset, bytes(length), length), wanted,
              f"copying {length} bytes to {offset}")
        equal(errno_of_pyverbs(dm.copy_from_dm, offset, length), wanted,
              f"copying {length} bytes from {offset}")


@hosts_case("a context that did not ask for device memory has none")
def not_negotiated():
    context = extension.Context(extension.node_of(DEVICE))
    context.cmd_fd = context.fd
    equal(errno_of(alloc_dm, context, 64), errno.EOPNOTSUPP, "without the feature")
    context.close()


def fill_up(contexts):
    """Allocates all device memory that the process may have, in pieces of the largest size.

    Returns (context, handle) of each piece."""
    pieces = []
    while True:
        context = contexts[len(pieces) % len(contexts)]
        try:
            pieces.append((context, alloc_dm(context, LARGEST)))
        except OSError as error:
            equal(error.errno, errno.ENOMEM, "when there is no more")
            return pieces


@hosts_case("device memory is limited, for all processes of a user together, and comes back")
def quota():
    contexts = [Context(name=DEVICE), Context(name=DEVICE)]
    for _ in range(2):
        pieces = fill_up(contexts)
        equal(len(pieces), OF_USER // LARGEST, "pieces")
        equal(errno_of(alloc_dm, contexts[1], 1), errno.ENOMEM, "a byte more")
        in_child(lambda: equal(errno_of(alloc_dm, Context(name=DEVICE), 1), errno.ENOMEM, "another process"))
        free_dm(*pieces.pop())
        small = alloc_dm(contexts[0], LARGEST - PAGE + 1)
        equal(errno_of(alloc_dm, contexts[1], 1), errno.ENOMEM, "pages count whole")
        for piece in (*pieces, (contexts[0], small)):
            free_dm(*piece)


@hosts_case("memory with a region isn't freed; mappings outlive it")
def lifetime():
    hosts = Hosts()
    context = hosts.contexts[1]
    dm = hosts.memory(2 * PAGE)
    region = hosts.region(dm, 2 * PAGE)
    equal(errno_of(free_dm, context, dm.handle), errno.EBUSY, "free with a region")
    source, local, _ = hosts.known(2 * PAGE)
    equal(hosts.write(local, (0, region.rkey)), SUCCESS, "write to what wasn't freed")
    equal(mapped(context, dm.handle, PAGE), -errno.EINVAL, "mapping a part")
    equal(mapped(context, dm.handle, 3 * PAGE), -errno.EINVAL, "mapping more")
    equal(mapped(context, dm.handle + 1, 2 * PAGE), -errno.EINVAL, "mapping what isn't there")
    address, handle = mapped(context, dm.handle, 2 * PAGE), dm.handle
    region.close()
    dm.close()
    equal(ctypes.string_at(address, 2 * PAGE) == source.read(2 * PAGE), True, "the mapping of freed memory")
    equal(mapped(context, handle, 2 * PAGE), -errno.EINVAL, "mapping freed memory")
    other = alloc_dm(context, 2 * PAGE)
    equal(other, handle, "the handle of new memory")
    fresh = mapped(context, other, 2 * PAGE)
    equal(ctypes.string_at(fresh, 2 * PAGE), bytes(2 * PAGE), "new memory")
    ctypes.memset(fresh, 1, 2 * PAGE)
    equal(ctypes.string_at(address, 2 * PAGE) == source.read(2 * PAGE), True, "the old mapping")
    libc.munmap(address, 2 * PAGE)
    libc.munmap(fresh, 2 * PAGE)
    again = mapped(context, other, 2 * PAGE)
    equal(again > 0, True, "mapping it again")
    libc.munmap(again, 2 * PAGE)
    free_dm(context, other)
    # The end of a region ends the access of its peers.
    dm = hosts.memory(PAGE)
    region = hosts.region(dm, PAGE)
    rkey = region.rkey
    region.close()
    equal(hosts.write((local[0], PAGE, local[2]), (0, rkey)), REFUSED, "write to a region that was there")


@hosts_case("another context of the process's file imports it")
def imports():
    context = Context(name=DEVICE)
    dm = DM(context, AllocDmAttr(PAGE + 8))
    imported = Context(cmd_fd=os.dup(context.cmd_fd))
    equal(errno_of_pyverbs(lambda: DM(imported, handle=dm.handle + 1)), errno.EINVAL, "an unknown handle")
    same = DM(imported, handle=dm.handle)
    dm.copy_to_dm(PAGE, b"original", 8)
    equal(same.copy_from_dm(PAGE, 8), b"original", "what the importer sees")
    same.copy_to_dm(0, b"imported", 8)
    equal(dm.copy_from_dm(0, 8), b"imported", "what the importer wrote")
    equal(errno_of_pyverbs(same.copy_from_dm, 2 * PAGE, 4), errno.EINVAL, "behind its pages")
    same.unimport()
    equal(dm.copy_from_dm(0, 8), b"imported", "after the import's end")
    imported.close()
    dm.close()


@hosts_case("a child process shares it")
def fork():
    hosts = Hosts()
    dm = hosts.memory(PAGE)
    region = hosts.region(dm, PAGE)
    in_child(lambda: dm.copy_to_dm(8, b"children", 8))
    target, local, _ = hosts.known(PAGE)
    equal(hosts.read(local, (0, region.rkey)), SUCCESS, "read")
    equal(target.read(8, 8), b"children", "what the child wrote")


@contextlib.contextmanager
def process(body):
    """Context manager: a process that runs `body(writer)`. Waits until `body` writes b"x" to the
    file descriptor `writer`. Kills the process at the end."""
    reader, writer = os.pipe()
    child = start_child(lambda: body(writer))
    os.close(writer)
    equal(os.read(reader, 1), b"x", "what the child says")
    os.close(reader)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        equal(os.waitpid(child, 0)[1], signal.SIGKILL, "the child's end")


@hosts_case("a process dies with all of it in use")
def dies():
    def body(writer):
        hosts = Hosts()
        dm = hosts.memory(LARGEST)
        region = hosts.region(dm, LARGEST)
        fill_up(hosts.contexts[1:])
        _, local, _ = hosts.known(LARGEST)
        told = False
        while hosts.write(local, (0, region.rkey)) == SUCCESS:
            if not told:
                os.write(writer, b"x")
            told = True

    context = Context(name=DEVICE)
    with process(body):
        equal(errno_of(alloc_dm, context, 1), errno.ENOMEM, "while it lives")
    pieces = fill_up([context])
    equal(len(pieces), OF_USER // LARGEST, "pieces after its death")


@hosts_case("a user has half of it, and others find room until all is taken")
def users():
    def of_another(writer):
        become_nobody()
        context = Context(name=DEVICE)
        pieces = fill_up([context])
        equal(len(pieces), OF_USER // LARGEST, "pieces of another user")
        os.write(writer, b"x")
        signal.pause()

    def of_third(wanted):
        os.setresuid(1000, 1000, 1000)
        equal(errno_of(alloc_dm, Context(name=DEVICE), 1), wanted, "a page of a third user")

    context = Context(name=DEVICE)
    equal(len(fill_up([context])), OF_USER // LARGEST, "pieces of root")
    with process(of_another):
        in_child(lambda: of_third(errno.ENOMEM))
    in_child(lambda: of_third(0))


@hosts_case("its pages are the memory of who allocated it")
def charged():
    group = memory_group("device-memory")

    def body(writer):
        before = Context(name=DEVICE)
        join(group)
        within = Context(name=DEVICE)
        equal(len(fill_up([within])), OF_CGROUP // LARGEST, "pieces of the cgroup")
        equal(len(fill_up([before])), (OF_USER - OF_CGROUP) // LARGEST, "other pieces of the user")
        os.write(writer, b"x")
        signal.pause()

    with process(body), open(f"{group}/memory.current", encoding="ascii") as current:
        equal(int(current.read()) >= OF_USER, True, "bytes charged")
    remove_group(group)


@hosts_case("the device goes, and what is mapped stays")
def gone():
    hosts = Hosts()
    context = hosts.contexts[1]
    dm = hosts.memory(LARGEST)
    region = hosts.region(dm, LARGEST)
    _, local, _ = hosts.known(LARGEST)
    equal(hosts.write(local, (0, region.rkey)), SUCCESS, "write")
    subprocess.run(["ip", "netns", "exec", "h1", "rdma", "link", "del", DEVICE], check=True)
    equal(read(dm, LARGEST) == pattern(LARGEST), True, "what is mapped")
    dm.copy_to_dm(0, b"mine", 4)
    equal(read(dm, 4), b"mine", "what is written there")
    equal(errno_of(alloc_dm, context, 4), errno.EIO, "more")
    equal(mapped(context, dm.handle, LARGEST), -errno.EIO, "mapping it again")


sys.exit(main())
