# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""UD QPs for tests of multicast groups: they attach to a group, send to it and receive from it."""

import ipaddress
import time

from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
import pyverbs.enums as e
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

from pairs import DEVICE, LIMIT_SECONDS, Buffer, equal, free_handle, register

# The multicast QPN; a queue key; bytes of the GRH in front of a received datagram.
MULTICAST, QKEY, GRH = 0xFFFFFF, 0x1234, 40
# Number of datagrams that a QP sends; bytes of a datagram, which is its number; bytes of a receive
# buffer.
COUNT, DATAGRAM_SIZE, BUFFER_SIZE = 100, 4, 64


class Member:
    """A UD QP with posted receives."""

    def __init__(self, device=DEVICE):
        self.context = Context(name=device)
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 2 * COUNT)
        self.qp_handle = free_handle(self.context)
        cap = QPCap(max_send_wr=COUNT, max_recv_wr=COUNT, max_send_sge=1, max_recv_sge=1)
        init = QPInitAttr(qp_type=e.IBV_QPT_UD, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=0)
        attr = QPAttr(port_num=1)
        attr.qkey = QKEY
        self.qp = QP(self.pd, init, attr)
        self.buffer = Buffer(COUNT * BUFFER_SIZE)
        self.region = register(self.pd, self.buffer)
        for slot in range(COUNT):
            sge = SGE(self.buffer.address + slot * BUFFER_SIZE, BUFFER_SIZE, self.region.lkey)
            self.qp.post_recv(RecvWR(wr_id=slot, num_sge=1, sg=[sge]))

    def change_membership(self, group, call):
        """Attaches the QP to the group, or detaches it: `call` is attach_mcast or detach_mcast."""
        call(self.context, self.qp_handle, ipaddress.IPv6Address(group.gid).packed)

    def send_all(self, group, gid_index):
        """Sends COUNT datagrams to the group. Returns the address handle, which must live until the
        QP has sent them."""
        route = GlobalRoute(dgid=group, sgid_index=gid_index)
        handle = AH(self.pd, attr=AHAttr(gr=route, is_global=1, port_num=1))
        for number in range(COUNT):
            self.buffer.fill(number.to_bytes(DATAGRAM_SIZE, "big"), number * BUFFER_SIZE)
            wr = SendWR(opcode=e.IBV_WR_SEND, num_sge=1,
                        sg=[SGE(self.buffer.address + number * BUFFER_SIZE, DATAGRAM_SIZE,
                                self.region.lkey)])
            wr.set_wr_ud(handle, MULTICAST, QKEY)
            self.qp.post_send(wr)
        return handle

    def receive_all(self):
        """Returns the numbers of the received datagrams, in order. Waits until there are COUNT, or
        until LIMIT_SECONDS have passed."""
        numbers, end = [], time.monotonic() + LIMIT_SECONDS
        while len(numbers) < COUNT and time.monotonic() < end:
            for completion in self.cq.poll(COUNT)[1]:
                equal((completion.status, completion.byte_len),
                      (e.IBV_WC_SUCCESS, GRH + DATAGRAM_SIZE), "a receive")
                data = self.buffer.read(DATAGRAM_SIZE, completion.wr_id * BUFFER_SIZE + GRH)
                numbers.append(int.from_bytes(data, "big"))
        return numbers
