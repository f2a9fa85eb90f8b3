#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""A QP whose packets can't leave their host: held.py DEVICE GID-INDEX PEER PEERS-GID-INDEX."""

import sys
import time

import pyverbs.enums as e
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

from pairs import DEVICE, GID_INDEX, Buffer, case, connect, equal, main, register

PEER, PEERS_GID_INDEX = sys.argv[3], int(sys.argv[4])
# More than may be in flight, which is 64 packets of 1 KiB.
MESSAGES, SIZE = 16, 16384


class End:
    """A QP on a device of its own."""

    def __init__(self, device, gid_index):
        self.context, self.gid_index = Context(name=device), gid_index
        self.gid = self.context.query_gid(1, gid_index)
        self.pd, self.cq = PD(self.context), CQ(self.context, 64)
        cap = QPCap(max_send_wr=MESSAGES, max_recv_wr=1)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1))

    def connect(self, other):
        # The timeout is two seconds and more: no packet is sent again meanwhile.
        connect(self.context, self.qp, other.qp.qp_num, 19, gid_index=self.gid_index, dgid=other.gid)


@case("held: what is posted is flushed while all credit is in a queue")
def flushed():
    near, far = End(DEVICE, GID_INDEX), End(PEER, PEERS_GID_INDEX)
    near.connect(far)
    far.connect(near)
    source, target = Buffer(SIZE), Buffer(SIZE)
    local, remote = register(near.pd, source), register(far.pd, target)
    for number in range(MESSAGES):
        wr = SendWR(wr_id=number, opcode=e.IBV_WR_RDMA_WRITE, num_sge=1, sg=[SGE(source.address, SIZE, local.lkey)])
        wr.set_wr_rdma(remote.rkey, target.address)
        near.qp.post_send(wr)
    near.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    found, end = [], time.monotonic() + 30
    while len(found) < MESSAGES and time.monotonic() < end:
        found += near.cq.poll(MESSAGES)[1]
    equal([(wc.wr_id, wc.status) for wc in found], [(number, e.IBV_WC_WR_FLUSH_ERR) for number in range(MESSAGES)])


sys.exit(main())
