#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests an RC QP whose packets stay in a queueing discipline of their host.

  queued_for_ever.py DEVICE GID-INDEX PEER PEERS-GID-INDEX [stay]

DEVICE and PEER are links of two hosts. The queueing discipline of DEVICE's network device hardly
sends (see queued-for-ever.sh). With `stay`, the script runs no test case: it posts RDMA WRITEs, and
keeps the QP, with its packets in the queueing discipline, until standard input ends.
"""

import os
import sys
import time

import pyverbs.enums as e
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MW, MWBind, MWBindInfo
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

from cpu_time import worker_ticks
from pairs import (
    ALL, DEVICE, GID_INDEX, REMOTE_READ, Buffer, case, connect, counter, equal, main, register,
    wait_until_equal,
)

PEER, PEERS_GID_INDEX = sys.argv[3], int(sys.argv[4])
# Tx limit of a QP in packets (limits.rs: PACKETS_IN_FLIGHT).
TX_LIMIT = 64
# Number of messages and their bytes: 256 packets of 1 KiB, more than the tx limit.
MESSAGES, SIZE = 16, 16384
# Number of memory window binds, which need no packet. The QP rarely completes as many before the
# peer's request arrives.
BINDS = 16384
# Seconds of a measurement; clock ticks of a second.
SECONDS, TICKS = 2, os.sysconf("SC_CLK_TCK")


class Endpoint:
    """An RC QP with its own device context, PD and CQ."""

    def __init__(self, device, gid_index, depth=MESSAGES, signal_all=1):
        self.context, self.gid_index = Context(name=device), gid_index
        self.gid = self.context.query_gid(1, gid_index)
        self.pd, self.cq = PD(self.context), CQ(self.context, 64)
        cap = QPCap(max_send_wr=depth, max_recv_wr=1)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap,
                                         sq_sig_all=signal_all))

    def connect(self, other):
        # An ACK timeout of more than two seconds, so that no packet is retransmitted meanwhile.
        connect(self.context, self.qp, other.qp.qp_num, 19, gid_index=self.gid_index, dgid=other.gid)


def post_writes():
    """Posts RDMA WRITEs of more packets than the tx limit. Returns the QP, and the objects that
    must live as long as the QP."""
    near, far = Endpoint(DEVICE, GID_INDEX), Endpoint(PEER, PEERS_GID_INDEX)
    near.connect(far)
    far.connect(near)
    source, target = Buffer(SIZE), Buffer(SIZE)
    local, remote = register(near.pd, source), register(far.pd, target)
    for number in range(MESSAGES):
        wr = SendWR(wr_id=number, opcode=e.IBV_WR_RDMA_WRITE, num_sge=1, sg=[SGE(source.address, SIZE, local.lkey)])
        wr.set_wr_rdma(remote.rkey, target.address)
        near.qp.post_send(wr)
    return near, far, local, remote


def stay():
    """Keeps a QP that has reached its tx limit until standard input ends."""
    before = counter("sent_pkts")
    near, *others = post_writes()
    wait_until_equal(lambda: counter("sent_pkts") - before, TX_LIMIT, "packets in flight")
    print("attached", flush=True)
    sys.stdin.read()
    # The module may be unloaded, so the objects must not be destroyed by calls.
    os._exit(0)


@case("queued for ever: posted WQEs are flushed while a qdisc holds as many packets as the tx limit")
def wqes_are_flushed():
    near, *others = post_writes()
    near.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    found, end = [], time.monotonic() + 30
    while len(found) < MESSAGES and time.monotonic() < end:
        found += near.cq.poll(MESSAGES)[1]
    equal([(wc.wr_id, wc.status) for wc in found], [(number, e.IBV_WC_WR_FLUSH_ERR) for number in range(MESSAGES)])


def ticks_at_tx_limit():
    """Returns the CPU time of kernel workers, in ticks, while a QP has reached its tx limit and has
    pending bind WQEs, which need no packet.

    A READ response to the peer makes the QP reach its tx limit. Returns None if the QP completed
    all binds before that."""
    near, far = Endpoint(DEVICE, GID_INDEX, BINDS, 0), Endpoint(PEER, PEERS_GID_INDEX)
    near.connect(far)
    far.connect(near)
    source, target = Buffer(8 * SIZE), Buffer(8 * SIZE)
    remote = register(near.pd, source, ALL | e.IBV_ACCESS_MW_BIND)
    local = register(far.pd, target)
    window = MW(near.pd, e.IBV_MW_TYPE_1)
    near.qp.modify(QPAttr(qp_state=e.IBV_QPS_SQD), e.IBV_QP_STATE)
    for number in range(BINDS):
        last = number == BINDS - 1
        info = MWBindInfo(remote, source.address, SIZE, REMOTE_READ)
        near.qp.bind_mw(window, MWBind(info, e.IBV_SEND_SIGNALED if last else 0))
    before = counter("sent_pkts")
    near.qp.modify(QPAttr(qp_state=e.IBV_QPS_RTS), e.IBV_QP_STATE)
    sge = SGE(target.address, target.length, local.lkey)
    wr = SendWR(opcode=e.IBV_WR_RDMA_READ, num_sge=1, sg=[sge])
    wr.set_wr_rdma(remote.rkey, source.address)
    far.qp.post_send(wr)
    wait_until_equal(lambda: counter("sent_pkts") - before, TX_LIMIT, "packets of the response")
    before = worker_ticks()
    time.sleep(SECONDS)
    ticks = worker_ticks() - before
    return None if near.cq.poll(1)[0] else ticks


@case("queued for ever: a QP at its tx limit uses no CPU time for WQEs that need no packet")
def no_cpu_time_is_used():
    ticks = None
    for _ in range(10):
        ticks = ticks_at_tx_limit()
        if ticks is not None:
            break
    equal(ticks is not None, True, "binds are pending when the QP reaches its tx limit")
    print(f"# {ticks} ticks of kernel workers in {SECONDS} s")
    equal(ticks < SECONDS * TICKS // 4, True, "the ticks are few")


if sys.argv[5:] == ["stay"]:
    stay()
sys.exit(main())
