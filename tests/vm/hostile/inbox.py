#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""The memory of packets that wait for QPs: inbox.py DEVICE GID-INDEX."""

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
# QPs that stand still, and datagrams for each: more than an inbox takes. The debug kernel takes minutes for ten thousand.
QPS, DATAGRAMS = 12 if IS_DEBUG_KERNEL else 40, 1100
PAYLOAD = 4000
# Bytes of such a packet, at most.
PACKET = 12 << 10
# Bytes of a queue that count for nobody; QPs that are made to see what one is charged.
FREE, CHARGED = 9 << 10, 500
# Each of their packets kept a page fragment's 32 KiB: 130 MiB of four QPs.
SMALL_QPS = 2 if IS_DEBUG_KERNEL else 4
GRH = 40
# What a socket of the other host sends at a time: segments for nobody, which fill 32 KiB, and one for a QP.
HOST, PEER, SOURCE_PORT = "fd77::1", "fd77::2", 0xC123
UDP_SEGMENT, SEGMENT, SEGMENTS, PACKETS, SMALL = 103, 4000, 7, 700, 900
# Without a limit they take 150 MiB and more. rust/rdma/net/skb/backlog.rs allows a 64th of the machine's memory for a
# namespace, half of it for a user, and 4 KiB or a packet for each QP; the rest is for others who take memory meanwhile.
OTHERS = 32 << 20
# KASAN keeps freed objects, for a 32nd part of the machine's memory (QUARANTINE_FRACTION, mm/kasan/quarantine.c).
QUARANTINE_FRACTION = 32
# Messages of a user to himself while another's QPs stand still; seconds for the last of them to come. All messages fit
# into one inbox of 1,024 packets, whose QP may not run meanwhile.
MESSAGES, LENGTH, PATIENCE = 15, 64 << 10, 60


def memory_of(field):
    """Bytes in /proc/meminfo."""
    with open("/proc/meminfo", encoding="ascii") as file_:
        return next(int(line.split()[1]) << 10 for line in file_ if line.startswith(field))


def free_memory():
    """Bytes that nobody uses."""
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
        """Sends a datagram to the QP of number `to`."""
        flags = e.IBV_SEND_SIGNALED if signaled else 0
        wr = SendWR(opcode=e.IBV_WR_SEND, num_sge=1, sg=[SGE(*local)], send_flags=flags)
        wr.set_wr_ud(self.address, to, QKEY)
        qp.post_send(wr)

    def complete(self):
        """Waits for a completion of a send."""
        while True:
            count, completions = self.cq.poll(1)
            if count:
                equal(completions[0].status, e.IBV_WC_SUCCESS, "status")
                return


class Still(Datagrams):
    """QPs that stand still: the fault of a receive in `memory` is never answered."""

    def __init__(self, memory, count=QPS):
        super().__init__()
        self.region = register(self.pd, memory, DEMAND)
        self.qps = [self.qp() for _ in range(count)]
        for qp in self.qps:
            qp.post_recv(RecvWR(num_sge=1, sg=[SGE(memory.address, PAYLOAD + GRH, self.region.lkey)]))
        self.sender, self.buffer = self.qp(), Buffer(PAGE)
        self.source = register(self.pd, self.buffer)

    def fill(self):
        """Sends more than it may have to one after the other, so that the first ones leave little to the last."""
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
            # The last segment is for the QP; all of them lie in a page of the socket's.
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
    """The user nobody has as many packets waiting as 40 QPs get."""
    reader, writer = os.pipe()

    def fill():
        # Only root may have the kernel's faults.
        memory, _fd = memory_with_unserved_faults(PAGE * 2)
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
    """How many messages came from one UC QP to another, of those sent one by one."""
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
        # All are kept: memory that comes back late would count for the next ones.
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
