#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests bursts: packets of one message that pass through the network stack as one buffer.

  bursts.py DEVICE GID-INDEX PEER PEER-GID-INDEX NAME EXPECTED [DESTINATION]

Connects RC QPs of DEVICE and of PEER, another device, transfers messages in both directions and
compares the data. EXPECTED names the number of bursts that the two devices must send together:
"bursts" (more than one per 60 packets), "some" (more than one per 120 packets), "few" (where every
burst is longer than the rules of bursts.sh permit, less than one per 16 packets), or "singles" (none,
after the first messages). If EXPECTED is "lost", no message can arrive: WRITEs must fail, and bursts
must be sent. The requests go to DESTINATION, an IPv6 address, instead of PEER's. NAME names
the cases.
"""

import ipaddress
import sys
import time

from pyverbs.cq import CQ
from pyverbs.device import Context
import pyverbs.enums as e
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.addr import AHAttr, GID, GlobalRoute
from pyverbs.wr import RecvWR, SGE, SendWR

from pairs import (
    ALL, DEVICE, GID_INDEX, IS_DEBUG_KERNEL, PAGE, Buffer, case, counter, equal, main, next_completion, pattern, register,
)

PEER, PEER_GID_INDEX, NAME, EXPECTED = sys.argv[3], int(sys.argv[4]), sys.argv[5], sys.argv[6]
DESTINATION = GID(ipaddress.ip_address(sys.argv[7]).exploded) if len(sys.argv) > 7 else None
SUCCESS = e.IBV_WC_SUCCESS
# Maximum number of packets for each burst.
LEAST = {"bursts": 60, "some": 120}
MTUS = {e.IBV_MTU_256: 256, e.IBV_MTU_1024: 1024, e.IBV_MTU_4096: 4096}
# The rules of bursts.sh drop packets that are longer than this number of bytes.
DROPPED_LENGTH = 8000
# Timeout of the QPs: 4.096 us * 2^17, some 0.5 s; on a debug kernel 4.096 us * 2^19, some 2 s. An
# emulated machine on a busy host needs it.
TIMEOUT = 19 if IS_DEBUG_KERNEL else 17
LONGEST = (1 << 18) if IS_DEBUG_KERNEL else (1 << 20)


class End:
    """A QP of a device, and a buffer with a region."""

    def __init__(self, device, gid_index):
        self.device, self.gid_index = device, gid_index
        self.context = Context(name=device)
        self.pd, self.cq = PD(self.context), CQ(self.context, 64)
        self.buffer = Buffer(LONGEST + 2 * PAGE)
        self.region = register(self.pd, self.buffer)
        cap = QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=2, max_recv_sge=2)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1))

    def connect(self, peer, mtu, timeout, retries=7):
        dgid = DESTINATION or peer.context.query_gid(1, peer.gid_index)
        route = GlobalRoute(dgid=dgid, sgid_index=self.gid_index, hop_limit=64)
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = ALL
        attr.path_mtu = mtu
        attr.dest_qp_num = peer.qp.qp_num
        attr.max_dest_rd_atomic = attr.max_rd_atomic = 4
        attr.min_rnr_timer = 12
        attr.timeout = timeout
        attr.retry_cnt, attr.rnr_retry = retries, 7
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
        self.qp.to_rts(attr)

    def piece(self, offset, length):
        return SGE(self.buffer.address + offset, length, self.region.lkey)

    def status(self):
        """Waits for the next completion and returns its status."""
        return next_completion(self.cq).status


def connected(mtu, *timing):
    ends = End(DEVICE, GID_INDEX), End(PEER, PEER_GID_INDEX)
    for end, peer in zip(ends, reversed(ends)):
        end.connect(peer, mtu, *(timing or (TIMEOUT,)))
    return ends


def move(ends, verb, length, at):
    """Moves `length` bytes from offset `at` of the first end's buffer to offset 5 of the second
    one's, and compares them and the bytes beside them."""
    source, target = ends
    data = pattern(at + length)[at:]
    source.buffer.fill(data, at)
    target.buffer.fill(bytes(length + 10))
    opcodes = {"send": e.IBV_WR_SEND, "write": e.IBV_WR_RDMA_WRITE, "read": e.IBV_WR_RDMA_READ}
    requester, responder = (target, source) if verb == "read" else (source, target)
    local, remote = (5, at) if verb == "read" else (at, 5)
    wr = SendWR(wr_id=1, opcode=opcodes[verb], num_sge=1, sg=[requester.piece(local, length)])
    if verb == "send":
        target.qp.post_recv(RecvWR(wr_id=2, num_sge=1, sg=[target.piece(5, length)]))
    else:
        wr.set_wr_rdma(responder.region.rkey, responder.buffer.address + remote)
    requester.qp.post_send(wr)
    equal(requester.status(), SUCCESS, f"status of a {verb}")
    if verb == "send":
        equal(target.status(), SUCCESS, "status of the receive")
    equal(target.buffer.read(length + 10) == bytes(5) + data + bytes(5), True, f"data of a {verb} of {length} bytes")


def sent(name):
    """Returns the sum of a counter of both devices."""
    # ib_core shows values of up to 10 ms ago (RDMA_HW_STATS_DEFAULT_LIFESPAN, rdma/ib_verbs.h).
    time.sleep(0.02)
    return counter(name) + counter(name, PEER)


def transfer_all(mtu):
    ends = connected(mtu)
    size = MTUS[mtu]
    for verb in ("send", "write", "read"):
        move(ends, verb, 8 * size, 0)
    before, packets = sent("sent_bursts"), sent("sent_pkts")
    for verb in ("send", "write", "read"):
        for length in (size + 1, 2 * size, 15 * size + 7, 31 * size, LONGEST):
            for at in (0, 13):
                move(ends, verb, length, at)
                move(ends[::-1], verb, length, at)
    return sent("sent_bursts") - before, sent("sent_pkts") - packets


def register_cases():
    for mtu, size in MTUS.items():
        @case(f"bursts: messages of packets of {size} bytes arrive, {NAME}")
        def transfer(mtu=mtu):
            bursts, packets = transfer_all(mtu)
            print(f"# {bursts} bursts, {packets} packets")
            if EXPECTED in LEAST:
                equal(bursts > packets // LEAST[EXPECTED], True, f"{bursts} bursts of {packets} packets")
            elif EXPECTED == "few":
                # Shorter bursts, which a slow sender makes, pass the rules.
                if 2 * size > DROPPED_LENGTH:
                    equal(bursts < packets // 16, True, f"{bursts} bursts of {packets} packets")
            else:
                equal(bursts, 0, "number of bursts")


def lose_all():
    for mtu, size in MTUS.items():
        @case(f"bursts: a WRITE of packets of {size} bytes fails, {NAME}")
        def fail(mtu=mtu):
            before = sent("sent_bursts")
            for _ in range(4):
                ends = connected(mtu, 10, 1)
                wr = SendWR(wr_id=1, opcode=e.IBV_WR_RDMA_WRITE, num_sge=1, sg=[ends[0].piece(0, LONGEST)])
                wr.set_wr_rdma(ends[1].region.rkey, ends[1].buffer.address)
                ends[0].qp.post_send(wr)
                equal(ends[0].status(), e.IBV_WC_RETRY_EXC_ERR, "status of a WRITE")
            equal(sent("sent_bursts") > before, True, "bursts were sent")


if EXPECTED == "lost":
    lose_all()
    sys.exit(main())


def register_cautious_cases():
    @case(f"bursts: QPs without a timer send no bursts, {NAME}")
    def no_timer():
        ends = connected(e.IBV_MTU_1024, 0)
        before = sent("sent_bursts")
        for verb in ("send", "write", "read"):
            move(ends, verb, 40 * 1024, 0)
        equal(sent("sent_bursts") - before, 0, "number of bursts")

    @case(f"bursts: READ responses to a QP without a timer or without retries are no bursts, {NAME}")
    def cautious_requester():
        for timing in ((0, 7), (TIMEOUT, 0)):
            responder, requester = End(DEVICE, GID_INDEX), End(PEER, PEER_GID_INDEX)
            responder.connect(requester, e.IBV_MTU_1024, TIMEOUT)
            requester.connect(responder, e.IBV_MTU_1024, *timing)
            before = sent("sent_bursts")
            for _ in range(3):
                move((responder, requester), "read", 40 * 1024, 0)
            equal(sent("sent_bursts") - before, 0, "number of bursts")


# A QP without a timer or retries may not survive the loss of a single packet.
if EXPECTED != "singles":
    register_cautious_cases()
register_cases()
sys.exit(main())
