#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Makes each operation between two hosts (network namespaces) with a soft-RoCE device each.

traffic.sh runs this script in the virtual machine and captures the packets, of which capture.py
makes test vectors. The script forks. The parent has device rxe1 and requests, and the child has
device rxe2 and responds. Both take the same steps at the same time, over IPv4 and then over IPv6.
Each step has queue pairs of its own, because some steps end in an error.
"""
import os
import socket
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import AH, GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QPCap, QPAttr, QPEx, QPInitAttrEx
from pyverbs.wr import SGE, RecvWR

SMALL, LARGE = 61, 2 * 256 + 130
QKEY, IMM = 0x11223344, 0x12345678
ACCESS = (
    e.IBV_ACCESS_LOCAL_WRITE
    | e.IBV_ACCESS_REMOTE_WRITE
    | e.IBV_ACCESS_REMOTE_READ
    | e.IBV_ACCESS_REMOTE_ATOMIC
    | e.IBV_ACCESS_FLUSH_GLOBAL
)
RC, UC, UD = e.IBV_QPT_RC, e.IBV_QPT_UC, e.IBV_QPT_UD
DATAGRAM = e.IBV_QP_EX_WITH_SEND | e.IBV_QP_EX_WITH_SEND_WITH_IMM
UNRELIABLE = DATAGRAM | e.IBV_QP_EX_WITH_RDMA_WRITE | e.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
RELIABLE = (
    UNRELIABLE
    | e.IBV_QP_EX_WITH_RDMA_READ
    | e.IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | e.IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | e.IBV_QP_EX_WITH_SEND_WITH_INV
    | e.IBV_QP_EX_WITH_FLUSH
    | e.IBV_QP_EX_WITH_ATOMIC_WRITE
)
OPERATIONS = {RC: RELIABLE, UC: UNRELIABLE, UD: DATAGRAM}


def with_sge(post):
    """Returns an operation that posts by `post` and then sets the SGE, which has the length."""

    def operation(qp, peer, sge):
        post(qp, peer)
        qp.wr_set_sge(sge)

    return operation


SEND = with_sge(lambda qp, peer: qp.wr_send())
SEND_IMM = with_sge(lambda qp, peer: qp.wr_send_imm(IMM))
SEND_INV = with_sge(lambda qp, peer: qp.wr_send_inv(peer["rkey"]))
WRITE = with_sge(lambda qp, peer: qp.wr_rdma_write(peer["rkey"], peer["va"]))
WRITE_IMM = with_sge(lambda qp, peer: qp.wr_rdma_write_imm(peer["rkey"], peer["va"], IMM))
READ = with_sge(lambda qp, peer: qp.wr_rdma_read(peer["rkey"], peer["va"]))
SWAP = with_sge(lambda qp, peer: qp.wr_atomic_cmp_swp(peer["rkey"], peer["va"], OLD, NEW))
ADD = with_sge(lambda qp, peer: qp.wr_atomic_fetch_add(peer["rkey"], peer["va"], NEW))
WRONG_KEY = with_sge(lambda qp, peer: qp.wr_rdma_write(peer["rkey"] ^ 0x5500, peer["va"]))
MISALIGNED = with_sge(lambda qp, peer: qp.wr_atomic_fetch_add(peer["rkey"], peer["va"] + 1, NEW))
OLD, NEW, WORD = 0x0102030405060708, 0xA1A2A3A4A5A6A7A8, b"eight by"


def atomic_write(qp, peer, _sge):
    qp.wr_atomic_write(peer["rkey"], peer["va"], WORD)


def flush(qp, peer, _sge):
    qp.wr_flush(peer["rkey"], peer["va"], 64, e.IBV_FLUSH_GLOBAL, e.IBV_FLUSH_RANGE)


# Transport, operation, bytes, number of receives of the responder, status of the completion.
STEPS = [
    (transport, operation, length, 1, e.IBV_WC_SUCCESS)
    for transport, operations in (
        (RC, (SEND, SEND_IMM, SEND_INV, WRITE, WRITE_IMM, READ)),
        (UC, (SEND, SEND_IMM, WRITE, WRITE_IMM)),
    )
    for operation in operations
    for length in (SMALL, LARGE)
] + [
    (RC, SWAP, 8, 0, e.IBV_WC_SUCCESS),
    (RC, ADD, 8, 0, e.IBV_WC_SUCCESS),
    (RC, atomic_write, 8, 0, e.IBV_WC_SUCCESS),
    (RC, flush, 64, 0, e.IBV_WC_SUCCESS),
    (RC, WRONG_KEY, SMALL, 0, e.IBV_WC_REM_ACCESS_ERR),
    (RC, MISALIGNED, 8, 0, e.IBV_WC_REM_INV_REQ_ERR),
    (RC, SEND, SMALL, 0, e.IBV_WC_RNR_RETRY_EXC_ERR),
    (UD, SEND, SMALL, 1, e.IBV_WC_SUCCESS),
    (UD, SEND_IMM, SMALL, 1, e.IBV_WC_SUCCESS),
]


class Host:
    """One of the two hosts: a device with memory, and the control stream to the other host."""

    def __init__(self, number, peer):
        self.peer = peer.makefile("rw")
        self.first = number == 1
        self.ctx = Context(name=f"rxe{number}")
        self.pd = PD(self.ctx)
        self.mr = MR(self.pd, 4096, ACCESS)
        self.mr.write(bytes(i & 0xFF for i in range(4096)), 4096)

    def exchange(self, parameters):
        self.peer.write(repr(parameters) + "\n")
        self.peer.flush()
        return eval(self.peer.readline())

    def gid_index(self, version):
        for index in range(16):
            gid = self.ctx.query_gid(1, index).gid
            if gid.startswith("2001:0db8:" if version == 6 else "0000:0000:0000:0000:0000:ffff:"):
                return index
        raise SystemExit(f"no GID for IPv{version}")

    def step(self, version, transport, operation, length, receives, expected):
        index = self.gid_index(version)
        cq = CQ(self.ctx, 16)
        qp = self.make_qp(transport, cq)
        parameters = {
            "qpn": qp.qp_num,
            "gid": self.ctx.query_gid(1, index).gid,
            "rkey": self.mr.rkey,
            "va": self.mr.buf,
        }
        peer = self.exchange(parameters)
        route = GlobalRoute(dgid=GID(peer["gid"]), sgid_index=index, hop_limit=64, traffic_class=0x28)
        address = AHAttr(port_num=1, is_global=1, gr=route)
        self.connect(qp, transport, address, peer)
        if not self.first:
            for _ in range(receives):
                qp.post_recv(RecvWR(sg=[SGE(self.mr.buf, 4096, self.mr.lkey)], num_sge=1))
        self.exchange("ready")
        if self.first:
            self.post(qp, transport, address, operation, peer, length)
            status = self.wait(cq)
            if status != expected:
                raise SystemExit(f"{transport} {operation} {length}: status {status}")
        self.exchange("done")
        qp.close()
        cq.close()

    def make_qp(self, transport, cq):
        cap = QPCap(max_send_wr=4, max_recv_wr=4, max_send_sge=1, max_recv_sge=1)
        init = QPInitAttrEx(
            cap=cap,
            qp_type=transport,
            scq=cq,
            rcq=cq,
            pd=self.pd,
            send_ops_flags=OPERATIONS[transport],
            comp_mask=e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        )
        attr = QPAttr(port_num=1)
        if transport == UD:
            attr.qkey = QKEY
        else:
            attr.qp_access_flags = ACCESS
        return QPEx(self.ctx, init, attr)

    def connect(self, qp, transport, address, peer):
        if transport == UD:
            return
        attr = QPAttr(port_num=1)
        attr.path_mtu = e.IBV_MTU_256
        attr.max_dest_rd_atomic = attr.max_rd_atomic = 1
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 14, 7, 1
        attr.qp_access_flags = ACCESS
        attr.ah_attr = address
        attr.dest_qp_num = peer["qpn"]
        attr.rq_psn = 0xFFFFFE if self.first else 0xABCDEF
        attr.sq_psn = 0xABCDEF if self.first else 0xFFFFFE
        qp.to_rts(attr)

    def post(self, qp, transport, address, operation, peer, length):
        qp.wr_start()
        qp.wr_id = 1
        qp.wr_flags = e.IBV_SEND_SIGNALED | e.IBV_SEND_SOLICITED
        operation(qp, peer, SGE(self.mr.buf, length, self.mr.lkey))
        if transport == UD:
            self.handle = AH(self.pd, attr=address)
            qp.wr_set_ud_addr(self.handle, peer["qpn"], QKEY)
        qp.wr_complete()

    @staticmethod
    def wait(cq):
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            count, completions = cq.poll(1)
            if count:
                return completions[0].status
        raise SystemExit("an operation did not complete")


def main():
    ours, theirs = socket.socketpair()
    child = os.fork()
    host = Host(2, theirs) if child == 0 else Host(1, ours)
    for version in (4, 6):
        for step in STEPS:
            host.step(version, *step)
    if child:
        _, status = os.waitpid(child, 0)
        sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
