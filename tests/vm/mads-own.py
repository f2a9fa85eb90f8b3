#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Asks QP 1 of another device of this host for its counters, without a pause, until it is killed: mads-own.py DEVICE
GID-INDEX GID."""

import struct
import sys

import pyverbs.enums as e
from pyverbs.addr import AH, AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

DEVICE, GID_INDEX, TARGET = sys.argv[1], int(sys.argv[2]), sys.argv[3]
GSI, GSI_QKEY, BATCH = 1, 0x80010000, 64

context = Context(name=DEVICE)
pd, cq = PD(context), CQ(context, 2 * BATCH)
attributes = QPAttr(port_num=1)
attributes.qkey, attributes.qp_state = GSI_QKEY, e.IBV_QPS_RTS
capacities = QPCap(max_send_wr=2 * BATCH, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_UD, scq=cq, rcq=cq, cap=capacities, sq_sig_all=0), attributes)
memory = MR(pd, 256, e.IBV_ACCESS_LOCAL_WRITE)
memory.write(struct.pack(">BBBBHHQHHI", 1, 4, 1, 1, 0, 0, 7, 0x12, 0, 0) + bytes(41) + b"\x01" + bytes(190), 256)
ah = AH(pd, attr=AHAttr(gr=GlobalRoute(dgid=GID(TARGET), sgid_index=GID_INDEX, hop_limit=64), is_global=1, port_num=1))
piece = SGE(memory.buf, 256, memory.lkey)
while True:
    for number in range(1, BATCH + 1):
        flags = e.IBV_SEND_SIGNALED if number == BATCH else 0
        request = SendWR(wr_id=1, opcode=e.IBV_WR_SEND, num_sge=1, sg=[piece], send_flags=flags)
        request.set_wr_ud(ah, GSI, GSI_QKEY)
        qp.post_send(request)
    while not cq.poll(1)[0]:
        pass
