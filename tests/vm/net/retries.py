#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests which events count against an RC QP's retry counter (retry_cnt).

  retries.py DEVICE GID-INDEX PEER-DEVICE PEER-GID-INDEX

DEVICE is a link on eth0 of namespace h1, PEER-DEVICE one on eth0 of h2; a veth pair connects them.
The kernel runs softirqs in threads (kernel parameter `threadirqs`). CPU 1 handles packets that eth0
of h1 receives, CPU 0 those that eth0 of h2 receives (RPS).
"""

import os
import subprocess
import sys
import time

from pyverbs.addr import AHAttr, GlobalRoute
import pyverbs.enums as e
from pyverbs.qp import QPAttr
from pyverbs.wr import SendWR

from order import Endpoint, on_cpu
from pairs import ALL, PAGE, case, cases, counter, equal, main, next_completion

# The import of order.py has registered its cases, too.
cases.clear()

# The end that initiates a transfer: the one on h1, with a WRITE, or the one on h2, with a READ. In
# both cases h1 sends the payload.
LOCAL, REMOTE = 0, 1
# Bytes of a message: more than the queueing discipline holds (6,000 bytes).
LENGTH = 15 * PAGE


def qdisc(*arguments):
    subprocess.run(["ip", "netns", "exec", "h1", "tc", "qdisc", *arguments], check=True)


class RcEndpoint(Endpoint):
    """An RC QP that fails after `retries` retransmissions, with an ACK timeout of
    4.096 µs · 2^`timeout`."""

    def __init__(self, device, gid_index, timeout, retries):
        super().__init__(device, gid_index, e.IBV_QPT_RC)
        self.timeout, self.retries = timeout, retries

    def connect(self, peer):
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = ALL
        attr.path_mtu = e.IBV_MTU_1024
        attr.dest_qp_num = peer.qp.qp_num
        attr.max_dest_rd_atomic = attr.max_rd_atomic = 4
        attr.timeout, attr.retry_cnt, attr.rnr_retry = self.timeout, self.retries, 7
        gid = peer.context.query_gid(1, peer.gid_index)
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=GlobalRoute(dgid=gid, sgid_index=self.gid_index))
        self.qp.to_rts(attr)

    def transfer(self, opcode, peer, length):
        wr = SendWR(wr_id=1, opcode=opcode, num_sge=1, sg=[self.sge(0, length)])
        wr.set_wr_rdma(peer.region.rkey, peer.buffer.address)
        self.qp.post_send(wr)

    def status(self, seconds=60):
        return next_completion(self.cq, seconds).status

    def counter(self, name):
        return counter(name, self.device)


def connected_pair(timeout, retries):
    requester = RcEndpoint(*sys.argv[1:3], timeout, retries)
    responder = RcEndpoint(*sys.argv[3:5], timeout, retries)
    requester.connect(responder)
    responder.connect(requester)
    return requester, responder


def backlog_length(cpu):
    """Returns the number of packets in the CPU's backlog (`struct softnet_data`)."""
    with open("/proc/net/softnet_stat") as rows:
        fields = [[int(word, 16) for word in row.split()] for row in rows]
    return sum(row[11] for row in fields if row[12] == cpu)


@case("an acknowledgment that came before the timer ran costs no retry")
def _():
    for attempt in range(5):
        requester, responder = connected_pair(timeout=8, retries=0)
        mark = bytes([attempt + 1]) * 8
        requester.buffer.fill(mark)
        with on_cpu(1):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
            try:
                # This thread has a real-time priority, so softirqs of CPU 1 don't run: received
                # packets stay in its backlog, and the ACK timer expires without being handled.
                requester.transfer(e.IBV_WR_RDMA_WRITE, responder, len(mark))
                limit = time.monotonic() + 20
                while responder.buffer.read(len(mark)) != mark and time.monotonic() < limit:
                    pass
                # Wait until the acknowledgment is in the backlog of CPU 1.
                while not backlog_length(1) and time.monotonic() < limit:
                    pass
                limit = time.monotonic() + 0.2
                while time.monotonic() < limit:
                    pass
            finally:
                os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        equal(responder.buffer.read(len(mark)), mark, "the written memory")
        equal(requester.status(), e.IBV_WC_SUCCESS, "status")


def transfer_through_small_queue(opcode, initiating_end):
    """Transfers more than the queueing discipline of eth0 of h1 holds, so that it drops packets.
    Fails if that costs a retry. `initiating_end` is LOCAL or REMOTE.

    The QPs have no retries, so a transfer that needs one fails. The packets may wait for longer than
    the retransmission timeout, which spends no retry, but may count as one."""
    ends = connected_pair(timeout=20, retries=0)
    names = "send_err", "completer_retry_err", "rto_resends"
    before = [[end.counter(name) for name in names] for end in ends]
    qdisc("add", "dev", "eth0", "root", "tbf", "rate", "4mbit", "burst", "3000", "limit", "6000")
    try:
        initiator, target = ends if initiating_end == LOCAL else reversed(ends)
        for _ in range(4):
            initiator.transfer(opcode, target, LENGTH)
            equal(initiator.status(), e.IBV_WC_SUCCESS, "status")
    finally:
        qdisc("del", "dev", "eth0", "root")
    after = [[end.counter(name) for name in names] for end in ends]
    if after[0][0] == before[0][0]:
        raise AssertionError("the qdisc has dropped no packet")
    for (_, retries, rtos), (_, retries_before, rtos_before) in zip(after, before):
        if retries - retries_before > rtos - rtos_before:
            raise AssertionError(f"retries: {after}, and before {before}")


@case("requests that the local qdisc drops cost no retry")
def _():
    transfer_through_small_queue(e.IBV_WR_RDMA_WRITE, LOCAL)


@case("responses that the local qdisc drops cost no retry")
def _():
    transfer_through_small_queue(e.IBV_WR_RDMA_READ, REMOTE)


@case("a qdisc that drops everything gets few packets, and the QP fails with RETRY_EXC_ERR")
def _():
    requester, responder = connected_pair(timeout=14, retries=7)
    before = requester.counter("send_err")
    qdisc("add", "dev", "eth0", "root", "pfifo", "limit", "0")
    try:
        requester.transfer(e.IBV_WR_RDMA_WRITE, responder, LENGTH)
        equal(requester.status(), e.IBV_WC_RETRY_EXC_ERR, "status")
    finally:
        qdisc("del", "dev", "eth0", "root")
    drops = requester.counter("send_err") - before
    # The QP fails after half a second. It pauses for 100 µs after the first drop, twice as long
    # after each further drop, and for 102 ms at most (rust/roce/qp/pause.rs).
    if not 8 <= drops <= 100:
        raise AssertionError(f"{drops} packets were dropped")


if __name__ == "__main__":
    sys.exit(main())
