#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""The memory of packets that wait for QPs: inbox.py DEVICE GID-INDEX."""

import os
import sys
from pathlib import Path

import pyverbs.enums as e
from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

from pairs import ALL, DEVICE, GID_INDEX, PAGE, Buffer, case, equal, main, register, unanswered

DEMAND = ALL | e.IBV_ACCESS_ON_DEMAND
QKEY = 0x1234
# QPs that stand still, and datagrams for each: more than an inbox takes.
QPS, DATAGRAMS = 40, 1100
PAYLOAD = 4000
# Each of their packets kept a page fragment's 32 KiB: 130 MiB.
SMALL_QPS = 4
GRH = 40
# Without a limit they take 150 MiB and more. rust/rdma/net/skb/backlog.rs allows a 64th of the machine's memory for a
# namespace, and 16 KiB for each QP; the rest is for others who take memory meanwhile.
OTHERS = 32 << 20
OVERFLOWS = Path(f"/sys/class/infiniband/{DEVICE}/ports/1/hw_counters/drop_overflow")


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


@case("packets that wait for QPs which stand still take bounded memory")
def bounded():
    here = Datagrams()
    memory, fd = unanswered(PAGE * 2)
    region = register(here.pd, memory, DEMAND)
    still = [here.qp() for _ in range(QPS)]
    for qp in still:
        qp.post_recv(RecvWR(num_sge=1, sg=[SGE(memory.address, PAYLOAD + GRH, region.lkey)]))
    sender, buffer = here.qp(), Buffer(PAGE)
    source = register(here.pd, buffer)
    local = (buffer.address, PAYLOAD, source.lkey)
    free, overflows = free_memory(), int(OVERFLOWS.read_text())
    for count in range(1, DATAGRAMS + 1):
        for index, qp in enumerate(still):
            signaled = index % 20 == 19
            here.send(sender, local, qp.qp_num, signaled)
            if signaled:
                here.complete()
    taken = free - free_memory()
    lost = int(OVERFLOWS.read_text()) - overflows
    print(f"# {QPS * DATAGRAMS} packets, {lost} dropped, {taken >> 10} KiB taken")
    equal(lost > QPS * DATAGRAMS // 2, True, "packets are dropped")
    equal(taken < memory_of("MemTotal") // 64 + QPS * (16 << 10) + OTHERS, True, "memory is bounded")
    os.close(fd)


@case("a small packet that waits keeps no memory of others that are gone")
def small():
    here = Datagrams()
    memory, fd = unanswered(PAGE * 2)
    region = register(here.pd, memory, DEMAND)
    still = [here.qp() for _ in range(SMALL_QPS)]
    for qp in still:
        qp.post_recv(RecvWR(num_sge=1, sg=[SGE(memory.address, PAYLOAD + GRH, region.lkey)]))
    gone = here.qp()
    nobody = gone.qp_num
    gone.close()
    sender, buffer = here.qp(), Buffer(PAGE)
    source = register(here.pd, buffer)
    free = free_memory()
    for _ in range(DATAGRAMS):
        for qp in still:
            here.send(sender, (buffer.address, 0, source.lkey), qp.qp_num, False)
            for last in [False] * 6 + [True]:
                here.send(sender, (buffer.address, PAGE, source.lkey), nobody, last)
            here.complete()
    taken = free - free_memory()
    print(f"# {SMALL_QPS} QPs have full inboxes, {taken >> 10} KiB taken")
    equal(taken < SMALL_QPS * DATAGRAMS * 2048 + OTHERS, True, "memory is bounded")
    os.close(fd)


sys.exit(main())
