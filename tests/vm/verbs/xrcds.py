#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests XRC domains and XRC target QPs by commands of uverbs.

    xrcds.py DEVICE GID-INDEX shared|private

Processes can share an XRC domain by a file, and ibv_open_qp() makes further handles of a QP of
another process. ib_core does not limit the number of such domains and handles, and charges them to
no account, so the driver refuses both by default (private). With the module parameter shared_xrcd=1
it allows both (shared).
"""

import concurrent.futures
import ctypes
import errno
import ipaddress
import json
import os
import struct
import subprocess
import sys

import forge
import userfault
from extension import CREATE_QP, ELEMENTS, MODIFY_QP, PRODUCER, Context, Cq, Mapped, Qp, node_of
from pairs import (
    DEVICE, GID_INDEX, PAGE, Buffer, MappedMemory, PrivateBuffer, case, equal, main, pattern,
    wait_until_equal,
)
from uverbs import errno_of

EXTENDED = 1 << 31
DESTROY_SRQ, OPEN_XRCD, CLOSE_XRCD, CREATE_XSRQ, OPEN_QP = 35, 37, 38, 39, 40
XRC_QUEUE, XRC_TARGET = 1, 10
# Attribute masks of ibv_modify_qp() for INIT: state, access, P_Key, port; and for RTR: state,
# address vector, path MTU, RQ PSN, responder resources, RNR timer, destination QPN.
INIT_MASK = 1 | 8 | 16 | 32
RTR_MASK = 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20
HOST1, HOST2, MTU = "10.77.0.1", "10.77.0.2", 1024
SHARED = sys.argv[3] == "shared"
# Expected errno of the two requests that are refused by default.
EXPECTED_ERRNO = 0 if SHARED else errno.EOPNOTSUPP
NO_FILE = 0xffffffff
# Seconds within which a command ends that does not wait for a page fault.
MAX_SECONDS = 60


def open_domain(context, file):
    """Returns the handle of the file's domain, or of a new domain if `file` is NO_FILE."""
    return struct.unpack("=I", context.call(OPEN_XRCD, struct.pack("=II", file, os.O_CREAT), 4))[0]


class Target(Qp):
    """An XRC target QP."""

    def __init__(self, context, domain):
        request = struct.pack(
            "=QIIIIIIIIIBBBB", 0, domain, 0, 0, 0, 1, 0, 1, 0, 0, 0, XRC_TARGET, 0, 0)
        self.context = context
        self.handle, self.number = struct.unpack_from("=II", context.call(CREATE_QP, request, 32))

    def make_ready_for(self, address):
        """Moves the QP to RTR, with a peer at an IPv4 address."""
        gid = ipaddress.IPv6Address(f"::ffff:{address}").packed
        self.modify(INIT_MASK, 1)
        self.modify(RTR_MASK, 2, gid, GID_INDEX)


class Queue:
    """A shared receive queue of a domain, with one posted receive for the whole buffer."""

    def __init__(self, context, domain, buffer):
        self.context, self.cq = context, Cq(context)
        request = struct.pack("=QIIIIIIII", 0, XRC_QUEUE, context.pd, 8, 1, 0, 0, domain, self.cq.handle)
        answer = context.call(CREATE_XSRQ, request, 40)
        self.handle, _, _, self.number, offset, size = struct.unpack_from("=IIIIQI", answer)
        ring = Mapped(context.fd, offset, size)
        length, lkey = buffer.length, context.reg(buffer)[0]
        struct.pack_into("=QIIIIII", ring.memory, ELEMENTS, 0, 0, 0, length, length, 0, 1)
        struct.pack_into("=QII", ring.memory, ELEMENTS + 40, buffer.address, length, lkey)
        ring.u32(PRODUCER).value = 1

    def destroy(self):
        self.context.call(DESTROY_SRQ, struct.pack("=II", self.handle, 0), 4)


def states_by_rdma(number):
    """Returns the states of QPs with that number, by `rdma resource show`."""
    command = ["rdma", "-j", "resource", "show", "qp", "lqpn", str(number)]
    shown = subprocess.run(command, check=True, capture_output=True)
    return [qp["state"] for qp in json.loads(shown.stdout)]


def open_target(context, domain, number):
    return context.call(OPEN_QP, struct.pack("=QIIB7x", 0, domain, number, XRC_TARGET), 32)


@case("an XRC domain without a file can be opened, and has a target QP")
def private_domain():
    context = Context(node_of(DEVICE))
    number = Target(context, open_domain(context, NO_FILE)).number
    equal(number > 0, True, "the target QP has a number")


@case("XRC domains of files " + ("can be opened by several contexts" if SHARED else "are refused"))
def domains_of_files():
    file = os.open("/tmp/domain", os.O_RDWR | os.O_CREAT)
    first, second = Context(node_of(DEVICE)), Context(node_of(DEVICE))
    for context in first, second, second:
        equal(errno_of(open_domain, context, file), EXPECTED_ERRNO, "errno of a domain of a file")


@case("ibv_open_qp() of a target QP " + ("succeeds" if SHARED else "is refused"))
def open_qp():
    context = Context(node_of(DEVICE))
    domain = open_domain(context, NO_FILE)
    number = Target(context, domain).number
    for _ in range(2):
        code = errno_of(open_target, context, domain, number)
        equal(code, EXPECTED_ERRNO, "errno of ibv_open_qp()")


def absent_page():
    """Returns the address of the second of two pages, and a userfaultfd. The page is absent, and
    its faults are not served, as long as the userfaultfd is open."""
    memory = PrivateBuffer(2 * PAGE)
    return memory.address + PAGE, userfault.open_faults_of(MappedMemory(memory.address + PAGE))


def errno_with_absent_request(context, command):
    """Returns the errno of a command whose last eight bytes, the driver's part, are in an absent
    page."""
    page, faults = absent_page()
    start = page - len(command)
    ctypes.memmove(start, command, len(command))
    view = (ctypes.c_char * (len(command) + 8)).from_address(start)
    return errno_of_waiting(context, view, faults)


def errno_of_waiting(context, command, faults):
    """Returns the errno of a command. Fails if the command waits for the pages of `faults`."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pending = pool.submit(errno_of, os.write, context.fd, command)
        try:
            return pending.result(MAX_SECONDS)
        finally:
            os.close(faults)


@case("commands that hold a lock of ib_core refuse the driver's payload without a page fault in it")
def payloads_are_refused_without_faults():
    context = Context(node_of(DEVICE))
    answer = ctypes.create_string_buffer(8)
    request = struct.pack("=IHHQII", OPEN_XRCD, 8, 1, ctypes.addressof(answer), NO_FILE, os.O_CREAT)
    code = errno_with_absent_request(context, request)
    equal(code, errno.EOPNOTSUPP, "errno of open_xrcd with request data")
    page, faults = absent_page()
    request = struct.pack("=IHHQII", OPEN_XRCD, 6, 3, page - 4, NO_FILE, os.O_CREAT)
    code = errno_of_waiting(context, request, faults)
    equal(code, errno.EOPNOTSUPP, "errno of open_xrcd with response data")
    target = Target(context, open_domain(context, NO_FILE))
    attributes = target.modification(INIT_MASK, 1)[8:] + bytes(8)
    header = struct.pack("=IHHQHHI", EXTENDED | MODIFY_QP, len(attributes) // 8, 0, 0, 1, 0, 0)
    code = errno_with_absent_request(context, header + attributes)
    equal(code, errno.EOPNOTSUPP, "errno of modify_qp with request data")


@case("a packet is not written to the receive of a destroyed shared receive queue")
def nothing_is_written_to_destroyed_queue():
    context, buffer, data = Context(node_of(DEVICE)), Buffer(2 * MTU), pattern(2 * MTU)
    domain = open_domain(context, NO_FILE)
    queue, target = Queue(context, domain, buffer), Target(context, domain)
    target.make_ready_for(HOST2)
    wire = forge.PacketSocket("h2", "eth0", forge.hardware_address("h1", "eth0"))

    def send(operation, psn):
        bth = forge.bth(forge.XRC | operation, target.number, psn, ackreq=True)
        xrceth = struct.pack(">I", queue.number)
        wire.send(forge.packet(HOST2, HOST1, bth + xrceth + data[psn * MTU:][:MTU]))

    send(forge.SEND_FIRST, 0)
    wait_until_equal(lambda: buffer.read(MTU), data[:MTU], "data of the first packet")
    queue.destroy()
    send(forge.SEND_LAST, 1)
    wait_until_equal(lambda: states_by_rdma(target.number), ["ERR"], "state of the target QP")
    equal(buffer.read(MTU, MTU), bytes(MTU), "memory behind the first packet's data")
    equal(queue.cq.poll(), None, "completion of the receive")


if __name__ == "__main__":
    sys.exit(main())
