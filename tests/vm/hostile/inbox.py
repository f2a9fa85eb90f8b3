#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests the limits on the memory of received packets that wait for their QPs.

    inbox.py DEVICE GID-INDEX

UD QPs are parked: their receives are in memory with userfaultfd, whose page faults are never
served. Other QPs send them more packets than their inboxes (queues of received packets) take, or a
socket of host h2 sends them fewer. The cases check the memory that the packets take (MemFree of
/proc/meminfo), and that other users' QPs still receive.
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

ON_DEMAND = ALL | e.IBV_ACCESS_ON_DEMAND
QKEY = 0x1234
# Number of parked QPs, and of datagrams for each: more than an inbox takes (1,024, INBOX of
# limits.rs). The debug kernel takes minutes for ten thousand datagrams.
QPS, DATAGRAMS = 12 if IS_DEBUG_KERNEL else 40, 1100
PAYLOAD = 4000
# Maximum memory of a packet with PAYLOAD bytes, in bytes.
MAX_PACKET_BYTES = 12 << 10
# Number of bytes of a queue that do not count for the limits (UNCOUNTED of
# rust/rdma/net/skb/backlog.rs), and number of QPs that are made to measure how many bytes of kernel
# memory one QP is charged for.
UNCOUNTED_BYTES, CHARGED_QPS = 9 << 10, 500
# Number of parked QPs that get small packets. If each packet kept its page fragment of 32 KiB, the
# full inboxes of four QPs would take 128 MiB.
SMALL_QPS = 2 if IS_DEBUG_KERNEL else 4
GRH_BYTES = 40
# Addresses of h1 and h2, and the source port, of packets from a socket of h2. One sendmsg() with
# UDP_SEGMENT (linux/udp.h) sends SEGMENTS_PER_CALL segments of SEGMENT_BYTES that are no RoCE
# packets, which nearly fill 32 KiB, and one segment for a parked QP, with a payload of SMALL_BYTES.
# Each QP gets PACKETS_PER_QP of the latter.
HOST, PEER, SOURCE_PORT = "fd77::1", "fd77::2", 0xC123
UDP_SEGMENT, SEGMENT_BYTES, SEGMENTS_PER_CALL, PACKETS_PER_QP, SMALL_BYTES = 103, 4000, 7, 700, 900
# Number of bytes that the rest of the machine may take during a case. Without a limit the packets
# would take 150 MiB and more. rust/rdma/net/skb/backlog.rs allows a 64th of the machine's memory
# for a namespace and half of that for a user. In addition, it does not count the first
# UNCOUNTED bytes of each queue.
OTHER_MEMORY = 32 << 20
# KASAN keeps freed objects, up to a 32nd of the machine's memory (QUARANTINE_FRACTION,
# mm/kasan/quarantine.c).
QUARANTINE_FRACTION = 32
# Number and length in bytes of messages between two QPs of one user while another user's QPs are
# parked, and seconds within which the next one must be sent, and the last one received. With a path
# MTU of 1024 all messages are 960 packets, which fit into the receiver's inbox (1,024 packets) even
# if the QP does not run.
MESSAGES, MESSAGE_BYTES, LIMIT_SECONDS = 15, 64 << 10, 60


def meminfo_bytes(field):
    """Returns a field of /proc/meminfo, in bytes."""
    with open("/proc/meminfo", encoding="ascii") as file_:
        return next(int(line.split()[1]) << 10 for line in file_ if line.startswith(field))


def free_memory():
    """Returns the free memory after caches were dropped, in bytes."""
    Path("/proc/sys/vm/drop_caches").write_text("3")
    return meminfo_bytes("MemFree")


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


class ParkedQps(Datagrams):
    """Parked QPs: each has a receive in `memory`, whose page faults are never served."""

    def __init__(self, memory, count=QPS):
        super().__init__()
        self.region = register(self.pd, memory, ON_DEMAND)
        self.qps = [self.qp() for _ in range(count)]
        for qp in self.qps:
            sge = SGE(memory.address, PAYLOAD + GRH_BYTES, self.region.lkey)
            qp.post_recv(RecvWR(num_sge=1, sg=[sge]))
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


@case("packets that wait for parked QPs take bounded memory")
def waiting_packets_take_bounded_memory():
    memory, fd = memory_with_unserved_faults(PAGE * 2)
    parked = ParkedQps(memory)
    free, overflows = free_memory(), counter("drop_overflow")
    parked.fill()
    taken = free - free_memory()
    lost = counter("drop_overflow") - overflows
    print(f"# {QPS * DATAGRAMS} packets, {lost} dropped, {taken >> 10} KiB taken")
    equal(lost > QPS * DATAGRAMS // 2, True, "more than half of the packets are dropped")
    total = meminfo_bytes("MemTotal")
    freed = total // QUARANTINE_FRACTION if IS_DEBUG_KERNEL else 0
    limit = total // 128 + QPS * MAX_PACKET_BYTES + OTHER_MEMORY + freed
    equal(taken < limit, True, "memory is bounded")
    os.close(fd)


@case("a small waiting packet of this host does not keep the memory of freed packets")
def small_packets_keep_no_other_memory():
    memory, fd = memory_with_unserved_faults(PAGE * 2)
    parked = ParkedQps(memory, SMALL_QPS)
    destroyed = parked.qp()
    destroyed_qpn = destroyed.qp_num
    destroyed.close()
    free, address, lkey = free_memory(), parked.buffer.address, parked.source.lkey
    for _ in range(DATAGRAMS):
        for qp in parked.qps:
            parked.send(parked.sender, (address, 0, lkey), qp.qp_num, False)
            for last in [False] * 6 + [True]:
                parked.send(parked.sender, (address, PAGE, lkey), destroyed_qpn, last)
            parked.complete()
    taken = free - free_memory()
    print(f"# {SMALL_QPS} QPs have full inboxes, {taken >> 10} KiB taken")
    equal(taken < SMALL_QPS * DATAGRAMS * 2048 + OTHER_MEMORY, True, "memory is bounded")
    os.close(fd)


@case("a small waiting packet of another host's socket does not keep the socket's page fragment")
def small_packets_keep_no_fragments():
    memory, fd = memory_with_unserved_faults(PAGE * 2)
    parked = ParkedQps(memory, SMALL_QPS)
    with forge.namespace("h2"):
        sender = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    sender.bind((PEER, SOURCE_PORT))
    sender.connect((HOST, forge.PORT))
    segment = [(socket.SOL_UDP, UDP_SEGMENT, struct.pack("H", SEGMENT_BYTES))]
    free, overflows = free_memory(), counter("drop_overflow")
    for psn in range(PACKETS_PER_QP):
        for qp in parked.qps:
            # The last segment is for the QP. All segments lie in one page fragment of the socket.
            bth = forge.bth(forge.UD | forge.SEND_ONLY, qp.qp_num, psn)
            body = bth + forge.deth(QKEY, 7) + bytes(SMALL_BYTES)
            last = forge.udp_payload_with_icrc(PEER, HOST, body, SOURCE_PORT)
            sender.sendmsg([bytes(SEGMENT_BYTES * SEGMENTS_PER_CALL), last], segment)
    taken, lost = free - free_memory(), counter("drop_overflow") - overflows
    print(f"# {SMALL_QPS * PACKETS_PER_QP} packets, {lost} dropped, {taken >> 10} KiB taken")
    equal(taken < SMALL_QPS * PACKETS_PER_QP * PAGE + OTHER_MEMORY, True, "memory is bounded")
    for qp in parked.qps:
        qp.close()
    equal(lost, 0, "dropped packets")
    os.close(fd)


@contextlib.contextmanager
def full_inboxes_of_nobody():
    """Runs a process of the user nobody whose parked QPs have as many waiting packets as they may
    have, until the block ends."""
    reader, writer = os.pipe()

    def fill():
        # Only root may serve page faults of the kernel by userfaultfd.
        memory, _fd = memory_with_unserved_faults(PAGE * 2)
        become_nobody()
        parked = ParkedQps(memory)
        parked.fill()
        os.write(writer, b"x")
        time.sleep(600)

    child = start_child(fill)
    os.close(writer)
    try:
        equal(os.read(reader, 1), b"x", "message of the child that its inboxes are full")
        yield
    finally:
        os.close(reader)
        os.kill(child, 9)
        os.waitpid(child, 0)


def count_received():
    """Sends messages from one UC QP to another, one by one. Returns the number received."""
    context = Context(name=DEVICE)
    pd, cq = PD(context), CQ(context, 2 * MESSAGES)
    cap = QPCap(max_send_wr=MESSAGES, max_recv_wr=MESSAGES)
    init = QPInitAttr(qp_type=e.IBV_QPT_UC, scq=cq, rcq=cq, cap=cap, sq_sig_all=1)
    sender, receiver = (QP(pd, init) for _ in range(2))
    connect(context, sender, receiver.qp_num)
    connect(context, receiver, sender.qp_num)
    buffers = [Buffer(MESSAGE_BYTES) for _ in range(2)]
    regions = [register(pd, buffer) for buffer in buffers]
    source, target = (
        SGE(buffer.address, MESSAGE_BYTES, region.lkey) for buffer, region in zip(buffers, regions))
    for _ in range(MESSAGES):
        receiver.post_recv(RecvWR(num_sge=1, sg=[target]))
    sent = received = 0
    end = time.monotonic() + LIMIT_SECONDS
    sender.post_send(SendWR(opcode=e.IBV_WR_SEND, num_sge=1, sg=[source]))
    # The last message may be received before its send has completed.
    while min(received, sent) < MESSAGES and time.monotonic() < end:
        for completion in cq.poll(1)[1]:
            equal(completion.status, e.IBV_WC_SUCCESS, "status")
            if completion.opcode == e.IBV_WC_RECV:
                received += 1
                continue
            sent += 1
            if sent < MESSAGES:
                end = time.monotonic() + LIMIT_SECONDS
                sender.post_send(SendWR(opcode=e.IBV_WR_SEND, num_sge=1, sg=[source]))
    equal(sent, MESSAGES, "messages sent")
    return received


@case("a user's QPs receive although the inboxes of another user's parked QPs are full")
def other_users_still_receive():
    with full_inboxes_of_nobody():
        overflows = counter("drop_overflow")
        received = count_received()
        lost = counter("drop_overflow") - overflows
        print(f"# {received} of {MESSAGES} messages were received, {lost} packets dropped")
        equal(received, MESSAGES, "received messages")


@case("the smallest QP is charged for about as many bytes as its inbox may have uncounted")
def qps_are_charged_for_uncounted_bytes():
    group = memory_group("queue-pairs")

    def kernel_memory():
        lines = Path(group, "memory.stat").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("kernel "))

    def measure():
        join(group)
        context = Context(name=DEVICE)
        pd, cq = PD(context), CQ(context, 1)
        srq = SRQ(pd, SrqInitAttr(SrqAttr(max_wr=1, max_sge=1)))
        cap = QPCap(max_send_wr=0, max_recv_wr=0, max_send_sge=0, max_recv_sge=0)
        # The QPs are kept until the end. Memory of a destroyed QP that is freed late would falsify
        # the next measurement.
        qps = []
        for name, kind, queue in (
            ("RC", e.IBV_QPT_RC, None), ("RC with an SRQ", e.IBV_QPT_RC, srq),
            ("UC", e.IBV_QPT_UC, None), ("UD", e.IBV_QPT_UD, None),
        ):
            before = kernel_memory()
            init = QPInitAttr(qp_type=kind, scq=cq, rcq=cq, srq=queue, cap=cap)
            qps += [QP(pd, init) for _ in range(CHARGED_QPS)]
            bytes_per_qp = (kernel_memory() - before) // CHARGED_QPS
            print(f"# {name}: {bytes_per_qp} bytes for each QP")
            is_charged = bytes_per_qp > UNCOUNTED_BYTES * 7 // 8
            equal(is_charged, True, f"{name} is charged for about {UNCOUNTED_BYTES} bytes")

    in_child(measure)
    remove_group(group)


sys.exit(main())
