#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests rrxe-guard.nft, the nftables rules against forged RoCE packets of a host's own users.

    guard_rules.py DEVICE GID-INDEX lands|refused

A UD QP of DEVICE, on eth0 of host h1, posts receives. A user of host h2 sends datagrams to the QP
by an ordinary UDP socket, with the right Q_Key, over IPv4 and IPv6. With `lands` all of them must
be received, with `refused` each sendto() must fail.
"""

import sys
import time

from pyverbs.cq import CQ
from pyverbs.device import Context
import pyverbs.enums as e
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR

import forge
from pairs import LOCAL_WRITE, PAGE, Buffer, equal, register

DEVICE, EXPECTED = sys.argv[1], sys.argv[3]
QKEY, DATAGRAMS_PER_FAMILY, PAYLOAD = 0x11223344, 8, b"forged message, "
ADDRESSES = (("10.77.0.2", "10.77.0.1"), ("fd77::2", "fd77::1"))

context = Context(name=DEVICE)
pd = PD(context)
cq = CQ(context, 64)
cap = QPCap(max_send_wr=1, max_recv_wr=32, max_send_sge=1, max_recv_sge=1)
attr = QPAttr(port_num=1)
attr.qkey = QKEY
qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_UD, scq=cq, rcq=cq, cap=cap))
qp.to_rts(attr)
buffer = Buffer(PAGE)
region = register(pd, buffer, LOCAL_WRITE)
for slot in range(2 * DATAGRAMS_PER_FAMILY):
    qp.post_recv(RecvWR(wr_id=slot, num_sge=1, sg=[SGE(buffer.address, PAGE, region.lkey)]))
refused = 0
for source, target in ADDRESSES:
    sender = forge.Socket(source, where="h2")
    for psn in range(DATAGRAMS_PER_FAMILY):
        try:
            bth = forge.bth(forge.UD | forge.SEND_ONLY, qp.qp_num, psn)
            sender.send(target, bth + forge.deth(QKEY, 7) + PAYLOAD)
        except PermissionError:
            refused += 1
arrived, end = 0, time.monotonic() + (20 if EXPECTED == "lands" else 1)
while arrived < 2 * DATAGRAMS_PER_FAMILY and time.monotonic() < end:
    arrived += cq.poll(1)[0]
count = 2 * DATAGRAMS_PER_FAMILY
expected = (count, 0) if EXPECTED == "lands" else (0, count)
equal((arrived, refused), expected, "datagrams arrived, refused")
