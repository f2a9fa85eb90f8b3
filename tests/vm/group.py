#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Who takes in the packets of a multicast group, and which of them: group.py DEVICE GID-INDEX GID-INDEX-V6
GID-INDEX-LINK-LOCAL LINK-LOCAL-ADDRESS.

DEVICE is on eth0 of h1. Host 2 sends back each RoCEv2 packet over IPv6 that comes to it.
"""

import ipaddress
import sys
import time

from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
import pyverbs.enums as e
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

import forge
from cpu_time import packets_during
from forge import Socket
from pairs import (
    DEVICE, GID_INDEX, PATIENCE, Buffer, becomes, case, counter, equal, free_handle, gid_at, main, register,
)
from uverbs import attach_mcast, detach_mcast

MULTICAST, QKEY, GRH = 0xFFFFFF, 0x1234, 40
GROUPS = ("239.77.1.11", "239.77.1.12", "239.77.1.13")
GROUP_V6 = "ff0e::7711"
GID_INDEX_V6, GID_INDEX_LINK_LOCAL, LINK_LOCAL = int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
HOST, HOST_V6 = "10.77.0.1", "fd77::1"
# Datagrams, each with its number, and the room for one.
COUNT, NUMBER, ROOM = 100, 4, 64
# More than its process has threads.
MANY = 20


class Queue:
    """A UD QP with receives posted."""

    def __init__(self):
        self.context = Context(name=DEVICE)
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 2 * COUNT)
        self.handle = free_handle(self.context)
        cap = QPCap(max_send_wr=COUNT, max_recv_wr=COUNT, max_send_sge=1, max_recv_sge=1)
        init = QPInitAttr(qp_type=e.IBV_QPT_UD, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=0)
        attr = QPAttr(port_num=1)
        attr.qkey = QKEY
        self.qp = QP(self.pd, init, attr)
        self.buffer = Buffer(COUNT * ROOM)
        self.region = register(self.pd, self.buffer)
        for slot in range(COUNT):
            sge = SGE(self.buffer.address + slot * ROOM, ROOM, self.region.lkey)
            self.qp.post_recv(RecvWR(wr_id=slot, num_sge=1, sg=[sge]))

    def change(self, group, call):
        """Attaches the QP to the group, or detaches it."""
        call(self.context, self.handle, ipaddress.IPv6Address(group.gid).packed)

    def send(self, group, gid_index=GID_INDEX):
        """All datagrams to the group."""
        route = GlobalRoute(dgid=group, sgid_index=gid_index)
        address = AH(self.pd, attr=AHAttr(gr=route, is_global=1, port_num=1))
        for number in range(COUNT):
            self.buffer.fill(number.to_bytes(NUMBER, "big"), number * ROOM)
            wr = SendWR(opcode=e.IBV_WR_SEND, num_sge=1,
                        sg=[SGE(self.buffer.address + number * ROOM, NUMBER, self.region.lkey)])
            wr.set_wr_ud(address, MULTICAST, QKEY)
            self.qp.post_send(wr)
        return address

    def received(self):
        """The numbers of the datagrams that come, until as many as are sent have."""
        numbers, end = [], time.monotonic() + PATIENCE
        while len(numbers) < COUNT and time.monotonic() < end:
            for completion in self.cq.poll(COUNT)[1]:
                equal((completion.status, completion.byte_len), (e.IBV_WC_SUCCESS, GRH + NUMBER), "a receive")
                data = self.buffer.read(NUMBER, completion.wr_id * ROOM + GRH)
                numbers.append(int.from_bytes(data, "big"))
        return numbers


def exchange(members, address):
    """Sends to so many QPs. Returns how many packets QPs took in, and how many of these a softirq did."""
    group, sender, queues = gid_at(address), Queue(), [Queue() for _ in range(members)]
    for queue in queues:
        queue.change(group, attach_mcast)
    before = counter("drop_overflow")

    def work():
        kept = sender.send(group)
        for queue in queues:
            equal(queue.received(), list(range(COUNT)), "datagrams in their order")
        kept.close()

    taken = packets_during("rrxe_packet_in", work)
    for queue in queues:
        queue.change(group, detach_mcast)
    equal(counter("drop_overflow") - before, 0, "packets dropped")
    print(f"# {members} members: {taken[0]} packets taken in, {taken[1]} of them by softirqs")
    return taken


@case("group: one member's packets are taken in as those of a QP")
def alone():
    equal(exchange(1, GROUPS[0])[0], COUNT, "packets taken in")


@case("group: no softirq takes in the packets of several members")
def several():
    equal(exchange(2, GROUPS[1]), (2 * COUNT, 0), "packets taken in, and those by softirqs")
    equal(exchange(MANY, GROUPS[2]), (MANY * COUNT, 0), "packets taken in, and those by softirqs")


def own(address, gid_index, dropped):
    """A QP sends to a group of its own host, from that address. So many packets are dropped for who sent them."""
    group, sender, queue = gid_at(address), Queue(), Queue()
    queue.change(group, attach_mcast)
    before = counter("drop_local")
    kept = sender.send(group, gid_index)
    becomes(lambda: counter("drop_local") - before, dropped, "packets in drop_local")
    equal(queue.received(), list(range(COUNT)), "datagrams in their order")
    kept.close()
    queue.change(group, detach_mcast)


@case("group: datagrams of this host that another host sends back are dropped")
def sent_back():
    own(GROUPS[0], GID_INDEX, 0)
    own(GROUP_V6, GID_INDEX_V6, COUNT)
    own(GROUP_V6, GID_INDEX_LINK_LOCAL, COUNT)


@case("group: datagrams of an ordinary socket of this host are dropped")
def forged():
    for source, address in (HOST, GROUPS[0]), (HOST_V6, GROUP_V6), (LINK_LOCAL, GROUP_V6):
        group, queue = gid_at(address), Queue()
        queue.change(group, attach_mcast)
        user, before = Socket(source, where="h1", device="eth0"), counter("drop_local")
        user.groups_by("eth0", "h1")
        body = forge.bth(forge.UD | forge.SEND_ONLY, MULTICAST, 0) + forge.deth(QKEY, queue.qp.qp_num) + bytes(NUMBER)
        user.send(address, body)
        # Over IPv6 it comes back once more.
        becomes(lambda: counter("drop_local") - before, 2 if forge.is_v6(source) else 1, "packets in drop_local")
        equal(queue.cq.poll(1)[0], 0, f"datagrams from {source}")
        user.close()
        queue.change(group, detach_mcast)


sys.exit(main())
