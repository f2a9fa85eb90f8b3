#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""A UD QP one of whose receivers' hosts keeps all packets in a queue: kept.py DEVICE GID-INDEX KEEPER OTHER BROADCAST."""

import socket
import sys

import pyverbs.enums as e
from pyverbs.addr import AH, AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

from pairs import DEVICE, GID_INDEX, PAGE, Buffer, becomes, case, counter, main, register

KEEPER, OTHER, BROADCAST = sys.argv[3:]
# More than may be in flight, which is 64 packets.
KEPT, DATAGRAMS, QKEY = 150, 20, 0x1111


class Sender:
    """A UD QP."""

    def __init__(self):
        self.context = Context(name=DEVICE)
        self.pd, self.cq, self.buffer = PD(self.context), CQ(self.context, 512), Buffer(PAGE)
        self.mr = register(self.pd, self.buffer)
        cap = QPCap(max_send_wr=256, max_recv_wr=1)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_UD, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1))
        attr = QPAttr(port_num=1)
        attr.qkey = QKEY
        self.qp.to_rts(attr)

    def send(self, address, count, counted="sent_pkts"):
        """Returns when all have left the QP."""
        before = counter(counted)
        mapped = (bytes(10) + b"\xff\xff" + socket.inet_aton(address)).hex(":", 2)
        route = GlobalRoute(dgid=GID(mapped), sgid_index=GID_INDEX)
        handle = AH(self.pd, attr=AHAttr(port_num=1, is_global=1, gr=route))
        for number in range(count):
            sge = SGE(self.buffer.address, 512, self.mr.lkey)
            wr = SendWR(wr_id=number, opcode=e.IBV_WR_SEND, num_sge=1, sg=[sge])
            wr.set_wr_ud(handle, 0x1234, QKEY)
            self.qp.post_send(wr)
        becomes(lambda: counter(counted) - before >= count, True, f"{count} datagrams to {address} in {counted}")


@case("kept: a UD QP sends to others, though a host keeps the packets that come to it")
def others_are_reached():
    sender = Sender()
    sender.send(OTHER, DATAGRAMS)
    sender.send(KEEPER, KEPT)
    sender.send(OTHER, DATAGRAMS)


@case("kept: a UD QP sends nothing to all hosts of a network")
def no_broadcast():
    Sender().send(BROADCAST, DATAGRAMS, counted="send_err")


sys.exit(main())
