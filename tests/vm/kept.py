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

    def post(self, address, count):
        """Datagrams, by one call. Returns what must live until they have left the QP."""
        mapped = (bytes(10) + b"\xff\xff" + socket.inet_aton(address)).hex(":", 2)
        route = GlobalRoute(dgid=GID(mapped), sgid_index=GID_INDEX)
        handle = AH(self.pd, attr=AHAttr(port_num=1, is_global=1, gr=route))
        requests = []
        for number in range(count):
            sge, after = SGE(self.buffer.address, 512, self.mr.lkey), requests[-1] if requests else None
            requests.append(SendWR(wr_id=number, opcode=e.IBV_WR_SEND, num_sge=1, sg=[sge], next_wr=after))
            requests[-1].set_wr_ud(handle, 0x1234, QKEY)
        self.qp.post_send(requests[-1])
        return handle

    def send(self, address, count, counted="sent_pkts"):
        """Returns when all have left the QP."""
        before = counter(counted)
        handle = self.post(address, count)
        becomes(lambda: counter(counted) - before >= count, True, f"{count} datagrams to {address} in {counted}")
        handle.close()


@case("kept: a UD QP sends to others, though a host keeps the packets that come to it")
def others_are_reached():
    sender = Sender()
    sender.send(OTHER, DATAGRAMS)
    sender.send(KEEPER, KEPT)
    sender.send(OTHER, DATAGRAMS)


@case("kept: the send queue of a UD QP is drained, though a host keeps the packets")
def is_drained():
    sender, seen = Sender(), 0

    def completed():
        nonlocal seen
        seen += len(sender.cq.poll(KEPT)[1])
        return seen

    def change(state):
        attr = QPAttr()
        attr.qp_state = state
        sender.qp.modify(attr, e.IBV_QP_STATE)

    handle = sender.post(KEEPER, KEPT)
    change(e.IBV_QPS_SQD)
    becomes(lambda: sender.qp.query(e.IBV_QP_STATE)[0].sq_draining, 0, "draining")
    change(e.IBV_QPS_RTS)
    becomes(completed, KEPT, "completed datagrams")
    handle.close()


@case("kept: a UD QP sends nothing to all hosts of a network")
def no_broadcast():
    Sender().send(BROADCAST, DATAGRAMS, counted="send_err")


sys.exit(main())
