#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests the structures and attributes that the kernel copies to processes and to netlink messages.

Usage: objects.py DEVICE GID-INDEX. The copies must not contain uninitialised or freed memory, nor
secrets of other users. The kernel must be booted with slub_debug and init_on_alloc=0, so that
uninitialised and freed slab objects have a pattern. Further cases test calls that fail after uverbs
has made an object.
"""

import ast
import ctypes
import errno
import os
import struct
import sys
import threading
import time
from pathlib import Path

import pyverbs.enums as e
from pyverbs.mr import MR
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE, SendWR

import extension
import nldev
import userfault
from extension import PRODUCER
from pairs import (
    ALL, DEVICE, GID_INDEX, LOCAL_WRITE, PAGE, REMOTE_WRITE, Buffer, Pair, become_nobody, case,
    connect, equal, free_handle, libc, main, memory_with_unserved_faults, pattern, register,
    start_child, wait_until_equal,
)
from uverbs import (
    CHANGE_ACCESS, CHANGE_TRANSLATION, METHOD_REG_MR, OBJECT_MR, errno_of, ioctl, quad, rereg, word,
)

# Numbers of uverbs commands (enum ib_uverbs_write_cmds).
ALLOC_PD, QUERY_QP = 3, 25
PSN = 0x5A17EC
SECONDS = 20


def write_command(context, number, request, room):
    """Writes a uverbs command, and returns its response of `room` bytes."""
    response = ctypes.create_string_buffer(b"\xee" * room, room)
    body = struct.pack("=Q", ctypes.addressof(response)) + request
    os.write(context.cmd_fd, struct.pack("=IHH", number, (8 + len(body)) // 4, room // 4) + body)
    return response.raw


def query_qp(context, handle):
    """Queries a QP by a uverbs command. Returns the parts of struct ib_uverbs_query_qp_resp.

    The parts are the bytes of the path and of the alternate path, a dictionary of the other fields,
    and the reserved bytes.
    """
    raw = write_command(context, QUERY_QP, struct.pack("=II", handle, 0), 128)
    names = (
        "max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data qkey rq_psn sq_psn dest_qp_num "
        "qp_access_flags pkey_index alt_pkey_index qp_state cur_qp_state path_mtu path_mig_state sq_draining "
        "max_rd_atomic max_dest_rd_atomic min_rnr_timer port_num timeout retry_cnt rnr_retry alt_port_num "
        "alt_timeout sq_sig_all"
    ).split()
    rest = struct.unpack_from("=10I2H15B", raw, 64)
    return raw[:32], raw[32:64], dict(zip(names, rest)), raw[64 + 59:]


def new_qp(pair):
    """Creates a QP, which is in RESET. Returns it and its handle."""
    handle = free_handle(pair.context)
    cap = QPCap(max_send_wr=4, max_recv_wr=4, max_send_sge=1, max_recv_sge=1)
    return QP(pair.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=pair.cqs[0], rcq=pair.cqs[0], cap=cap)), handle


def expect_no_path(pair, handle, state):
    """Fails unless a QP without a path reports zeros for the attributes that it doesn't have."""
    # The kernel allocates new memory for each query, with any earlier contents.
    for _ in range(20):
        path, alternate, fields, reserved = query_qp(pair.context, handle)
        equal(fields["qp_state"], state, "state")
        equal((path, alternate), (bytes(32), bytes(32)), f"paths in state {state}")
        unset = (
            "alt_pkey_index alt_port_num alt_timeout qkey rq_psn sq_psn dest_qp_num sq_draining retry_cnt timeout"
        ).split()
        equal({name: fields[name] for name in unset}, dict.fromkeys(unset, 0), f"attributes in state {state}")
        equal(reserved, bytes(len(reserved)), "reserved bytes")


@case("query_qp returns zeros for the path and attributes that a QP in RESET or INIT lacks")
def qp_without_path():
    pair = Pair()
    qp, handle = new_qp(pair)
    expect_no_path(pair, handle, e.IBV_QPS_RESET)
    qp.to_init(QPAttr(port_num=1))
    expect_no_path(pair, handle, e.IBV_QPS_INIT)


@case("query_qp of a connected QP returns its path and no alternate path")
def qp_with_path():
    pair = Pair()
    qp, handle = new_qp(pair)
    connect(pair.context, qp, pair.qps[0].qp_num)
    for _ in range(20):
        path, alternate, fields, _ = query_qp(pair.context, handle)
        equal((path[:16] != bytes(16), path[30]), (True, 1), "a global path")
        equal(alternate, bytes(32), "alternate path")
        equal(fields["dest_qp_num"], pair.qps[0].qp_num, "peer")


def dump_all(netlink, device):
    """Dumps all objects of a device by netlink. Returns their attributes by kind of object."""
    return {name: [a for body in netlink.dump(command, device) for a in nldev.flat(body)]
            for name, command in nldev.OBJECTS.items()}


def repr_as_nobody(function):
    """Calls the function in a child process of the user nobody. Returns repr() of its result."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            become_nobody()
            text = repr(function())
        except Exception as error:  # shown by the parent
            text = repr(error)
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text


def find_secrets(attributes, ranges, keys):
    """Returns the attributes whose value is a secret.

    Secrets are addresses in `ranges`, addresses of the kernel, and the values in `keys`.
    """
    found = []
    for kind, value in attributes:
        if len(value) == 8:
            number, = struct.unpack("=Q", value)
            kernels = number >> 47 == (1 << 17) - 1 and number != (1 << 64) - 1
            if kernels or any(start <= number < end for start, end in ranges):
                found.append((kind, hex(number)))
        if len(value) == 4 and struct.unpack("=I", value)[0] in keys:
            found.append((kind, "key"))
    return found


@case("netlink shows the user nobody MRs and QPs, but no address, key or PSN")
def unprivileged():
    pair = Pair(psn=PSN)
    for qp in pair.qps:
        found, _ = qp.query(e.IBV_QP_SQ_PSN | e.IBV_QP_RQ_PSN)
        equal((found.sq_psn, found.rq_psn), (PSN, PSN), "PSNs for their owner")
    buffer = Buffer(4 * PAGE)
    demand = e.IBV_ACCESS_ON_DEMAND
    kept = [register(pair.pd, buffer, access) for access in (0, LOCAL_WRITE, ALL, ALL | demand)]
    kept += [MR(pair.pd, 0, LOCAL_WRITE | demand, address=0, implicit=True)]
    kept += [SRQ(pair.pd, SrqInitAttr(SrqAttr(max_wr=8))), new_qp(pair)[0]]
    ranges = [(buffer.address, buffer.address + buffer.length)]
    keys = {PSN} | {key for mr in kept[:5] for key in (mr.lkey, mr.rkey)} - {0}
    device = nldev.Socket().index(DEVICE)

    def look():
        seen = dump_all(nldev.Socket(), device)
        told = {name: find_secrets(attributes, ranges, keys) for name, attributes in seen.items()}
        return [len(seen["mr"]) > 0, len(seen["qp"]) > 0, {name: what for name, what in told.items() if what}]

    equal(repr_as_nobody(look), repr([True, True, {}]), "objects are shown, and no secrets")
    # A dump by root contains the keys, which shows that find_secrets() recognizes them.
    regions = dump_all(nldev.Socket(), device)["mr"]
    equal(len(find_secrets(regions, ranges, keys)) >= 8, True, "keys are found")


class SlowFree:
    """Makes frees of Rust code slow, if the kernel has kprobes.

    A return probe on krealloc_node_align_noprof(), which frees memory of Rust code, records the
    stack each time.
    """

    TRACING = Path("/sys/kernel/tracing")

    def set(self, settings):
        if (self.TRACING / "kprobe_events").exists():
            for name, value in settings:
                (self.TRACING / name).write_text(value)

    def __enter__(self):
        self.set([("kprobe_events", "r:kprobes/freed krealloc_node_align_noprof\n"), ("options/stacktrace", "1"),
                  ("events/kprobes/freed/enable", "1")])

    def __exit__(self, *_):
        self.set([("events/kprobes/freed/enable", "0"), ("options/stacktrace", "0"), ("kprobe_events", "")])


def dump_rights(device, end, pipe):
    """Dumps regions until the time `end`.

    Writes the number of dumps, and the access rights that the regions had, to the pipe.
    """
    netlink, seen, dumps = nldev.Socket(), set(), 0
    while time.monotonic() < end:
        for body in netlink.dump(nldev.RES_MR, device):
            seen.update(access_rights(nldev.flat(body)))
        dumps += 1
    os.write(pipe, repr((dumps, sorted(seen))).encode())


@case("a netlink dump during rereg_mr shows the old or the new access rights")
def reregistered():
    pair = Pair()
    buffer = Buffer(PAGE)
    region = register(pair.pd, buffer, LOCAL_WRITE)
    device = nldev.Socket().index(DEVICE)
    end, rounds = time.monotonic() + SECONDS, 0
    read, write = os.pipe()
    dumper = start_child(lambda: dump_rights(device, end, write))
    with SlowFree():
        while time.monotonic() < end:
            for access in (ALL, LOCAL_WRITE):
                rereg(pair.context, region, CHANGE_TRANSLATION | CHANGE_ACCESS, buffer.address, buffer.length,
                      access=access)
            rounds += 1
    equal(os.waitpid(dumper, 0)[1], 0, "the dumper's status")
    dumps, seen = ast.literal_eval(os.read(read, 1 << 16).decode())
    print(f"# {dumps} dumps while it was registered {2 * rounds} times")
    equal(rounds > 10 and dumps > 10, True, "dumps and registrations went on")
    equal(seen, [int(LOCAL_WRITE), int(ALL)], "rights")


def access_rights(attributes):
    """Yields the values of the driver's attribute `access`."""
    name = None
    for kind, value in attributes:
        if kind == nldev.DRIVER_STRING:
            name = value.rstrip(b"\0")
        elif kind == nldev.DRIVER_U64 and name == b"access":
            yield struct.unpack("=Q", value)[0]


def mappings():
    """Returns the addresses at which the process has mapped memory of a uverbs file."""
    with open("/proc/self/maps") as maps:
        return {int(line.split("-")[0], 16) for line in maps if "/dev/infiniband/" in line}


@case("a netlink dump shows all SRQs although the ring of one is corrupted")
def broken_queue():
    pair, before = Pair(), mappings()
    srq = SRQ(pair.pd, SrqInitAttr(SrqAttr(max_wr=8)))
    (ring,) = mappings() - before
    other = SRQ(pair.pd, SrqInitAttr(SrqAttr(max_wr=8)))
    cap = QPCap(max_send_wr=4)
    qp = QP(pair.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=pair.cqs[1], rcq=pair.cqs[1], srq=srq, cap=cap))
    sender, _ = new_qp(pair)
    connect(pair.context, qp, sender.qp_num)
    connect(pair.context, sender, qp.qp_num)
    device = nldev.Socket().index(DEVICE)

    def queues():
        """Returns the number of SRQs, and the number of those that are shown as broken."""
        found = dump_all(nldev.Socket(), device)["srq"]
        return sum(kind == nldev.SRQN for kind, _ in found), found.count((nldev.DRIVER_STRING, b"broken\0"))

    equal(queues(), (2, 0), "numbers of SRQs and of broken ones")
    ctypes.c_uint32.from_address(ring + PRODUCER).value = 1 << 30
    buffer = Buffer(PAGE)
    region = register(pair.pd, buffer)
    sender.post_send(SendWR(opcode=e.IBV_WR_SEND, num_sge=1, sg=[SGE(buffer.address, 8, region.lkey)]))
    wait_until_equal(queues, (2, 1), "numbers of SRQs and of broken ones")
    other.close()


@case("alloc_pd frees the PD if it fails afterwards, though the process has changed the request")
def undone():
    pair = Pair()
    response, faults = memory_with_unserved_faults(PAGE)
    handle = free_handle(pair.context)
    # The last 8 bytes are the driver's part of the request.
    command = Buffer(PAGE)
    command.fill(struct.pack("=IHHQQ", ALLOC_PD, 6, 1, response.address, 0))
    result = []

    def alloc():
        written = libc.write(pair.context.cmd_fd, ctypes.c_void_p(command.address), ctypes.c_size_t(24))
        result.append((written, ctypes.get_errno()))

    thread = threading.Thread(target=alloc)
    thread.start()
    # The PD exists, and uverbs waits for a page fault to write its handle to the response.
    userfault.await_fault(faults)
    command.fill(b"\xff" * 8, 16)
    libc.munmap(response.address, PAGE)
    os.close(faults)
    thread.join()
    equal(result, [(-1, errno.EFAULT)], "return value of the call")
    equal(free_handle(pair.context), handle, "the next free handle, which is that of the freed PD")


def bind_before_failure(context, window, qp, cq):
    """Binds a window to a region before the registration of the region fails.

    The registration fails when the kernel writes the region's rkey to the response, as the test
    unmaps that memory. The kernel has written the lkey before. Returns the region's memory.
    """
    memory = Buffer(PAGE)
    lkey, (response, faults) = (ctypes.c_uint32 * 1)(), memory_with_unserved_faults(PAGE)
    rkey = (ctypes.c_uint32 * 1).from_address(response.address)
    start, access = quad(memory.address), word(LOCAL_WRITE | e.IBV_ACCESS_MW_BIND)
    attributes = (
        (0, 0), (1, context.pd), (3, start), (4, start), (5, quad(PAGE)), (6, access), (9, lkey), (10, rkey),
    )
    result = []

    def reg():
        result.append(errno_of(ioctl, context, OBJECT_MR, METHOD_REG_MR, *attributes))

    thread = threading.Thread(target=reg)
    thread.start()
    userfault.await_fault(faults)
    qp.bind(1, window, lkey[0], memory, REMOTE_WRITE)
    equal(wait_completion(qp, cq), (1, e.IBV_WC_SUCCESS), "binding")
    source, local = context.source
    qp.write(2, source.address, local, memory.address, window, PAGE)
    equal(wait_completion(qp, cq), (2, e.IBV_WC_SUCCESS), "write through the window")
    equal(memory.read(PAGE) == source.read(PAGE), True, "data arrived")
    memory.fill(bytes(PAGE))
    libc.munmap(response.address, PAGE)
    os.close(faults)
    thread.join()
    equal(result, [errno.EFAULT], "return value of the call")
    return memory


def wait_completion(qp, cq):
    """Makes the doorbell system call. Waits for a completion and returns its (wr_id, status)."""
    qp.ring_by_call()
    wait_until_equal(cq.has_unread, True, "a completion is there")
    return cq.poll()


@case("reg_mr frees the region if it fails afterwards, though a window is bound to the region")
def undone_region():
    context = extension.Context(extension.node_of(DEVICE))
    # The name that pyverbs contexts have for the file, which uverbs.ioctl() uses.
    context.cmd_fd = context.fd
    source = Buffer(PAGE)
    source.fill(pattern(PAGE))
    context.source = source, context.reg(source)[0]
    windows, gid = [context.alloc_mw() for _ in range(200)], extension.gid_of(DEVICE, GID_INDEX)
    for window in windows[0], windows[-1]:
        cq = extension.Cq(context)
        qp = extension.Qp(context, cq, GID_INDEX, gid)
        memory = bind_before_failure(context, window, qp, cq)
        qp.write(3, source.address, context.source[1], memory.address, window, PAGE)
        # The QP is its own peer. As the responder it refuses the WRITE and enters the error state,
        # so the WRITE is flushed before its NAK is handled.
        equal(
            wait_completion(qp, cq), (3, e.IBV_WC_WR_FLUSH_ERR),
            "write through the window of the freed region",
        )
        equal(memory.read(PAGE), bytes(PAGE), "the memory of the freed region is unchanged")
    # All windows can be bound to another region afterwards.
    qp = extension.Qp(context, cq, GID_INDEX, gid)
    memory = Buffer(PAGE)
    lkey, _ = context.reg(memory, LOCAL_WRITE | e.IBV_ACCESS_MW_BIND)
    for window in windows:
        qp.bind(4, window, lkey, memory, REMOTE_WRITE)
        equal(wait_completion(qp, cq), (4, e.IBV_WC_SUCCESS), "binding")
    context.close()


if __name__ == "__main__":
    sys.exit(main())
