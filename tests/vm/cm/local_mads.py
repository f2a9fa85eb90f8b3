#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Sends requests for port counters from a QP of this host to QP 1 of the device with the GID.

Usage: local_mads.py DEVICE GID-INDEX GID [KIND]. It sends without a pause until it is killed. KIND:
  right      (default) a UD QP with the queue key of QP 1, as root
  qkey       a UD QP with another queue key, as the user nobody
  connected  a UC QP with QP 1 as its peer, as the user nobody
"""

import os
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
KIND = sys.argv[4] if len(sys.argv) > 4 else "right"
GSI, BATCH, NOBODY, PACKETS = 1, 64, 65534, 256
QKEY = 0x80010000 if KIND == "right" else 0x11111111
MAD = struct.pack(">BBBBHHQHHI", 1, 4, 1, 1, 0, 0, 7, 0x12, 0, 0) + bytes(41) + b"\x01" + bytes(190)

if KIND != "right":
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
context = Context(name=DEVICE)
pd, cq = PD(context), CQ(context, 2 * BATCH)
address = AHAttr(gr=GlobalRoute(dgid=GID(TARGET), sgid_index=GID_INDEX, hop_limit=64), is_global=1, port_num=1)
capacities = QPCap(max_send_wr=2 * BATCH, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)


def uc_sender():
    """Returns a UC QP with QP 1 as its peer, no address handle, and a message of PACKETS packets.

    Each packet has the payload of a management datagram, but the opcode of UC.
    """
    qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_UC, scq=cq, rcq=cq, cap=capacities, sq_sig_all=0))
    attributes = QPAttr(port_num=1)
    attributes.qp_access_flags = 0
    qp.to_init(attributes)
    attributes.path_mtu, attributes.dest_qp_num, attributes.rq_psn = e.IBV_MTU_256, GSI, 0
    attributes.ah_attr = address
    qp.to_rtr(attributes)
    attributes.sq_psn = 0
    qp.to_rts(attributes)
    return qp, None, MAD * PACKETS


def ud_sender():
    """Returns a UD QP, the address handle of the target, and one management datagram."""
    attributes = QPAttr(port_num=1)
    attributes.qkey, attributes.qp_state = QKEY, e.IBV_QPS_RTS
    qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_UD, scq=cq, rcq=cq, cap=capacities, sq_sig_all=0), attributes)
    return qp, AH(pd, attr=address), MAD


qp, handle, message = uc_sender() if KIND == "connected" else ud_sender()
memory = MR(pd, len(message), e.IBV_ACCESS_LOCAL_WRITE)
memory.write(message, len(message))
sge = SGE(memory.buf, len(message), memory.lkey)
while True:
    for number in range(1, BATCH + 1):
        flags = e.IBV_SEND_SIGNALED if number == BATCH else 0
        request = SendWR(wr_id=1, opcode=e.IBV_WR_SEND, num_sge=1, sg=[sge], send_flags=flags)
        if handle:
            request.set_wr_ud(handle, GSI, QKEY)
        qp.post_send(request)
    while not cq.poll(1)[0]:
        pass
