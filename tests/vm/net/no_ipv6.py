#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests that a UD send from a link-local GID completes with success on a host without IPv6.

The driver sends no packet for it.

  no_ipv6.py DEVICE GID-INDEX

The datagram goes to a multicast group. ib_core derives the MAC address of a group from its GID,
without the routing tables, so the datagram reaches the driver.
"""

import sys

from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
import pyverbs.enums as e
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

from pairs import DEVICE, GID_INDEX, Buffer, case, gid_at, main, register, wait_until_equal

GROUP = "ff12::1234"
MULTICAST, QKEY = 0xFFFFFF, 0x1234


@case("a datagram to a group from a link-local GID completes although the host has no IPv6")
def datagram_completes():
    context = Context(name=DEVICE)
    pd, cq = PD(context), CQ(context, 2)
    cap = QPCap(max_send_wr=2, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
    attr = QPAttr(port_num=1)
    attr.qkey = QKEY
    qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_UD, scq=cq, rcq=cq, cap=cap, sq_sig_all=1), attr)
    buffer = Buffer(64)
    region = register(pd, buffer)
    route = GlobalRoute(dgid=gid_at(GROUP), sgid_index=GID_INDEX)
    handle = AH(pd, attr=AHAttr(gr=route, is_global=1, port_num=1))
    wr = SendWR(opcode=e.IBV_WR_SEND, num_sge=1, sg=[SGE(buffer.address, 64, region.lkey)])
    wr.set_wr_ud(handle, MULTICAST, QKEY)
    qp.post_send(wr)
    wait_until_equal(lambda: [completion.status for completion in cq.poll(1)[1]], [e.IBV_WC_SUCCESS], "statuses of completions")


sys.exit(main())
