#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""A QP sends packets that GRO merges: gro.py DEVICE GID-INDEX ADDRESS."""

import sys

from pyverbs.cq import CQ
from pyverbs.device import Context
import pyverbs.enums as e
from pyverbs.pd import PD
from pyverbs.qp import QP, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

from pairs import DEVICE, PAGE, Buffer, becomes, case, connect, equal, gid_at, main, register

# Four times as many as have credit (PACKETS_IN_FLIGHT, limits.rs). GRO takes the credit of every second one.
COUNT = 256
# The path MTU, which the disguise counts on.
LENGTH = 1024
# A QP that nobody has: SENDs of UC complete without an answer.
PEER = 0x1234


@case("a UC QP sends all that it has")
def all_leave():
    context = Context(name=DEVICE)
    pd, cq, buffer = PD(context), CQ(context, COUNT), Buffer(PAGE)
    region = register(pd, buffer)
    cap = QPCap(max_send_wr=COUNT, max_recv_wr=1)
    qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_UC, scq=cq, rcq=cq, cap=cap, sq_sig_all=1))
    connect(context, qp, PEER, dgid=gid_at(sys.argv[3]))
    for number in range(COUNT):
        sge = SGE(buffer.address, LENGTH, region.lkey)
        qp.post_send(SendWR(wr_id=number, opcode=e.IBV_WR_SEND, num_sge=1, sg=[sge]))
    statuses = []

    def completed():
        statuses.extend(completion.status for completion in cq.poll(COUNT)[1])
        return len(statuses)

    becomes(completed, COUNT, "completions")
    equal(set(statuses), {e.IBV_WC_SUCCESS}, "statuses")


if __name__ == "__main__":
    sys.exit(main())
