#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests the limits on the memory of received packets that wait for their QPs.

    inbox.py DEVICE GID-INDEX

UD QPs are parked: their receives are in memory with userfaultfd, whose page faults are never
served. Other QPs, or a socket of host h2, send them more packets than their inboxes take. The cases
check the memory that the packets take (MemFree of /proc/meminfo), and that other users' QPs still
receive.
"""

import contextlib
import os
import socket
import struct
import sys
import time
from pathlib import Path

import pyverbs.enums as e
from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

import forge
from cgroups import join, memory_group, remove_group
from pairs import (
    ALL, DEVICE, GID_INDEX, IS_DEBUG_KERNEL, PAGE, Buffer, become_nobody, case, connect, counter,
    equal, in_child, main, memory_with_unserved_faults, register, start_child,
)

DEMAND = ALL | e.IBV_ACCESS_ON_DEMAND
QKEY = 0x1234
# Number of parked QPs, and of datagrams for each: more than an inbox takes (1,024, INBOX of
# limits.rs). The debug kernel takes minutes for ten thousand datagrams.
QPS, DATAGRAMS = 12 if IS_DEBUG_KERNEL else 40, 1100
PAYLOAD = 4000
# Maximum memory of a packet with PAYLOAD bytes, in bytes.
PACKET = 12 << 10
# Number of bytes of a queue that do not count for the limits (FREE of
# rust/rdma/net/skb/backlog.rs), and number of QPs that the case `charged` makes to measure how much
# memory one is charged for.
FREE, CHARGED = 9 << 10, 500
# Number of parked QPs that get small packets. If each packet kept its page fragment of 32 KiB, the
# full inboxes of four QPs would take 130 MiB.
SMALL_QPS = 2 if IS_DEBUG_KERNEL else 4
GRH = 40
# Addresses of h1 and h2, and the source port, of packets from a socket of h2. One sendmsg() with
# UDP_SEGMENT (linux/udp.h) sends SEGMENTS segments of SEGMENT bytes that are no RoCE packets, which
# nearly fill 32 KiB, and one segment for a parked QP, with a payload of SMALL bytes. Each QP gets
# PACKETS of the latter.
HOST, PEER, SOURCE_PORT = "fd77::1", "fd77::2", 0xC123
UDP_SEGMENT, SEGMENT, SEGMENTS, PACKETS, SMALL = 103, 4000, 7, 700, 900
# Number of bytes that the rest of the machine may take during a case. Without a limit the packets
# would take 150 MiB and more. rust/rdma/net/skb/backlog.rs allows a 64th of the machine's memory
# for a namespace and half of that for a user. In addition, it does not count the first FREE bytes
# of each queue.
OTHERS = 32 << 20
# KASAN keeps freed objects, for a 32nd part of the machine's memory (QUARANTINE_FRACTION,
# mm/kasan/quarantine.c).
QUARANTINE_FRACTION = 32
# Number and length in bytes of messages between two QPs of one user while another user's QPs are
# parked, and seconds within which the next one must be received. With a path MTU of 1024 all
# messages are 960 packets, which fit into the receiver's inbox (1,024 packets) even if the QP does
# not run.
MESSAGES, LENGTH, PATIENCE = 15, 64 << 10, 60


def memory_of(field):
    """Returns a field of /proc/meminfo, in bytes."""
    with open("/proc/meminfo", encoding="ascii") as file_:
        return next(int(line.split()[1]) << 10 for line in file_ if line.startswith(field))


def free_memory():
    """Returns the free memory after caches were dropped, in bytes."""
    Path("/proc/sys/vm/drop_caches").write_text("3")
    return memory_of("MemFree")


class Datagrams:
    """UD QPs on one CQ."""

    def __init__(self):
        self.context = Context(name=DEVICE)
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 1024)
        gid = self.context.query_gid(1, GID_INDEX)
        route = GlobalRoute(dgid=gid, sgid_index=GID_INDEX)
        self.address = AH(self.pd, attr=AHAttr(port_num=1, is_global=1, gr=route))

    def qp(self):
        cap = QPCap(max_send_wr=64, max_recv_wr=4)
        init = QPInitAttr(qp_type=e.IBV_QPT_UD, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=0)
        attr = QPAttr(port_num=1)
        attr.qkey = QKEY
        return QP(self.pd, init, attr)

    def send(self, qp, local, to, signaled):
        """Sends a datagram to QPN `to`. `local` is (address, length, lkey)."""
        flags = e.IBV_SEND_SIGNALED if signaled else 0
        wr = SendWR(opcode=e.IBV_WR_SEND, num_sge=1, sg=[SGE(*local)], send_flags=flags)
        wr.set_wr_ud(self.address, to, QKEY)
        qp.post_send(wr)

    def complete(self):
        """Waits for the completion of a send request."""
        while True:
            count, completions = self.cq.poll(1)
            if count:
                equal(completions[0].status, e.IBV_WC_SUCCESS, "status")
                return


class Still(Datagrams):
    """Parked QPs: each has a receive in `memory`, whose page faults are never served."""

    def __init__(self, memory, count=QPS):
        super().__init__()
        self.region = register(self.pd, memory, DEMAND)
        self.qps = [self.qp() for _ in range(count)]
        for qp in self.qps:
            qp.post_recv(RecvWR(num_sge=1, sg=[SGE(memory.address, PAYLOAD + GRH, self.region.lkey)]))
        self.sender, self.buffer = self.qp(), Buffer(PAGE)
        self.source = register(self.pd, self.buffer)

    def fill(self):
        """Sends each QP more datagrams than its inbox takes, one QP after another. So the first QPs
        leave little memory to the last ones."""
        local = (self.buffer.address, PAYLOAD, self.source.lkey)
        for qp in self.qps:
            for count in range(1, DATAGRAMS + 1):
                signaled = count % 20 == 0
                self.send(self.sender, local, qp.qp_num, signaled)
                if signaled:
                    self.complete()


@case("packets that wait for QPs which stand still take bounded memory")
def bounded():
    memory, fd = memory_with_unserved_faults(PAGE * 2)
    still = Still(memory)
    free, overflows = free_memory(), counter("drop_overflow")
    still.fill()
    taken = free - free_memory()
    lost = counter("drop_overflow") - overflows
    print(f"# {QPS * DATAGRAMS} packets, {lost} dropped, {taken >> 10} KiB taken")
    equal(lost > QPS * DATAGRAMS // 2, True, "packets are dropped")
    total = memory_of("MemTotal")
    freed = total // QUARANTINE_FRACTION if IS_DEBUG_KERNEL else 0
    equal(taken < total // 128 + QPS * PACKET + OTHERS + freed, True, "memory is bounded")
    os.close(fd)


@case("a small packet that waits keeps no memory of others that are gone")
def small():
    memory, fd = memory_with_unserved_faults(PAGE * 2)
    still = Still(memory, SMALL_QPS)
    gone = still.qp()
    nobody = gone.qp_num
    gone.close()
    free, address, lkey = free_memory(), still.buffer.address, still.source.lkey
    for _ in range(DATAGRAMS):
        for qp in still.qps:
            still.send(still.sender, (address, 0, lkey), qp.qp_num, False)
            for last in [False] * 6 + [True]:
                still.send(still.sender, (address, PAGE, lkey), nobody, last)
            still.complete()
    taken = free - free_memory()
    print(f"# {SMALL_QPS} QPs have full inboxes, {taken >> 10} KiB taken")
    equal(taken < SMALL_QPS * DATAGRAMS * 2048 + OTHERS, True, "memory is bounded")
    os.close(fd)


@case("a small packet of another host's socket that waits keeps none of its pages")
def pages():
    memory, fd = memory_with_unserved_faults(PAGE * 2)
    still = Still(memory, SMALL_QPS)
    with forge.namespace("h2"):
        sender = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    sender.bind((PEER, SOURCE_PORT))
    sender.connect((HOST, forge.PORT))
    segment = [(socket.SOL_UDP, UDP_SEGMENT, struct.pack("H", SEGMENT))]
    free, overflows = free_memory(), counter("drop_overflow")
    for psn in range(PACKETS):
        for qp in still.qps:
            # The last segment is for the QP. All segments lie in one page fragment of the socket.
            body = forge.bth(forge.UD | forge.SEND_ONLY, qp.qp_num, psn) + forge.deth(QKEY, 7) + bytes(SMALL)
            sender.sendmsg([bytes(SEGMENT * SEGMENTS), forge.udp_payload_with_icrc(PEER, HOST, body, SOURCE_PORT)], segment)
    taken, lost = free - free_memory(), counter("drop_overflow") - overflows
    print(f"# {SMALL_QPS * PACKETS} packets, {lost} dropped, {taken >> 10} KiB taken")
    equal(taken < SMALL_QPS * PACKETS * PAGE + OTHERS, True, "memory is bounded")
    for qp in still.qps:
        qp.close()
    equal(lost, 0, "packets that were dropped")
    os.close(fd)


@contextlib.contextmanager
def filled_by_nobody():
    """Runs a process of the user nobody whose parked QPs have as many waiting packets as they may
    have, until the block ends."""
    reader, writer = os.pipe()

    def fill():
        # Only root may serve page faults of the kernel by userfaultfd.
        memory, _fd = unanswered(PAGE * 2)
        become_nobody()
        still = Still(memory)
        still.fill()
        os.write(writer, b"x")
        time.sleep(600)

    child = start_child(fill)
    os.close(writer)
    try:
        equal(os.read(reader, 1), b"x", "the child's word")
        yield
    finally:
        os.close(reader)
        os.kill(child, 9)
        os.waitpid(child, 0)


def exchange():
    """Sends messages from one UC QP to another, one by one. Returns the number received."""
    context = Context(name=DEVICE)
    pd, cq = PD(context), CQ(context, 2 * MESSAGES)
    cap = QPCap(max_send_wr=MESSAGES, max_recv_wr=MESSAGES)
    init = QPInitAttr(qp_type=e.IBV_QPT_UC, scq=cq, rcq=cq, cap=cap, sq_sig_all=1)
    sender, receiver = (QP(pd, init) for _ in range(2))
    connect(context, sender, receiver.qp_num)
    connect(context, receiver, sender.qp_num)
    buffers = [Buffer(LENGTH) for _ in range(2)]
    regions = [register(pd, buffer) for buffer in buffers]
    source, target = (SGE(buffer.address, LENGTH, region.lkey) for buffer, region in zip(buffers, regions))
    for _ in range(MESSAGES):
        receiver.post_recv(RecvWR(num_sge=1, sg=[target]))
    sent = came = 0
    end = time.monotonic() + PATIENCE
    sender.post_send(SendWR(opcode=e.IBV_WR_SEND, num_sge=1, sg=[source]))
    # The last message may be received before its send has completed.
    while min(came, sent) < MESSAGES and time.monotonic() < end:
        for completion in cq.poll(1)[1]:
            equal(completion.status, e.IBV_WC_SUCCESS, "status")
            if completion.opcode == e.IBV_WC_RECV:
                came += 1
                continue
            sent += 1
            if sent < MESSAGES:
                end = time.monotonic() + PATIENCE
                sender.post_send(SendWR(opcode=e.IBV_WR_SEND, num_sge=1, sg=[source]))
    equal(sent, MESSAGES, "messages sent")
    return came


@case("QPs of one user that stand still take no room from another user")
def another_user():
    with filled_by_nobody():
        overflows = counter("drop_overflow")
        came = exchange()
        lost = counter("drop_overflow") - overflows
        print(f"# {came} of {MESSAGES} messages came, {lost} packets dropped")
        equal(came, MESSAGES, "messages that came")


@case("a QP without room is charged for about the bytes that count for nobody")
def charged():
    group = memory_group("queue-pairs")

    def kernel_memory():
        lines = Path(group, "memory.stat").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("kernel "))

    def make():
        join(group)
        context = Context(name=DEVICE)
        pd, cq = PD(context), CQ(context, 1)
        srq = SRQ(pd, SrqInitAttr(SrqAttr(max_wr=1, max_sge=1)))
        cap = QPCap(max_send_wr=0, max_recv_wr=0, max_send_sge=0, max_recv_sge=0)
        # The QPs are kept until the end. Memory of a destroyed QP that is freed late would falsify
        # the next measurement.
        kept = []
        for name, kind, queue in (
            ("RC", e.IBV_QPT_RC, None), ("RC with an SRQ", e.IBV_QPT_RC, srq), ("UC", e.IBV_QPT_UC, None),
            ("UD", e.IBV_QPT_UD, None),
        ):
            before = kernel_memory()
            init = QPInitAttr(qp_type=kind, scq=cq, rcq=cq, srq=queue, cap=cap)
            kept += [QP(pd, init) for _ in range(CHARGED)]
            each = (kernel_memory() - before) // CHARGED
            print(f"# {name}: {each} bytes for each QP")
            equal(each > FREE * 7 // 8, True, f"{name} is charged for about its free bytes")

    in_child(make)
    remove_group(group)


sys.exit(main())
