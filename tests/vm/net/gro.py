#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests that a UC QP sends all its messages although GRO clears the destructors of its packets.

  gro.py DEVICE GID-INDEX ADDRESS

DEVICE is a link of host 1, ADDRESS the IPv4 address of host 2. gro.sh has GRO of host 2 merge the
packets.
"""

import sys

from pyverbs.cq import CQ
from pyverbs.device import Context
import pyverbs.enums as e
from pyverbs.pd import PD
from pyverbs.qp import QP, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

from pairs import (
    DEVICE, PAGE, Buffer, case, connect, equal, gid_at, main, register, wait_until_equal,
)

# Number of messages, each of one packet: four times the tx limit of the QP (PACKETS_IN_FLIGHT,
# limits.rs). GRO clears the destructor of every second packet. If the driver relied on destructors,
# these packets would count as in flight for ever, and the QP would stop at its tx limit.
COUNT = 256
# Bytes of a message: the path MTU. gro.sh derives TCP sequence numbers from this length.
LENGTH = 1024
# QPN that no QP has: SENDs of UC complete without a response.
UNUSED_QPN = 0x1234


@case("a UC QP completes all SENDs although GRO clears destructors of its packets")
def all_sends_complete():
    context = Context(name=DEVICE)
    pd, cq, buffer = PD(context), CQ(context, COUNT), Buffer(PAGE)
    region = register(pd, buffer)
    cap = QPCap(max_send_wr=COUNT, max_recv_wr=1)
    qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_UC, scq=cq, rcq=cq, cap=cap, sq_sig_all=1))
    connect(context, qp, UNUSED_QPN, dgid=gid_at(sys.argv[3]))
    for number in range(COUNT):
        sge = SGE(buffer.address, LENGTH, region.lkey)
        qp.post_send(SendWR(wr_id=number, opcode=e.IBV_WR_SEND, num_sge=1, sg=[sge]))
    statuses = []

    def completed():
        statuses.extend(completion.status for completion in cq.poll(COUNT)[1])
        return len(statuses)

    wait_until_equal(completed, COUNT, "completions")
    equal(set(statuses), {e.IBV_WC_SUCCESS}, "statuses")


if __name__ == "__main__":
    sys.exit(main())
