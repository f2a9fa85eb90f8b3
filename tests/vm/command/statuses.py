#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Fails work requests in the ways of Documentation/troubleshooting.rst.

  statuses.py DEVICE GID-INDEX

Prints the text that libibverbs has for the completion status of each failure, and what it is of.
"""

import ctypes
import sys

import pyverbs.enums as e
from pyverbs.wr import RecvWR, SGE, SendWR

from pairs import LOCAL_WRITE, PAGE, Buffer, Pair, next_completion, register

text_of = ctypes.CDLL("libibverbs.so.1").ibv_wc_status_str
text_of.restype = ctypes.c_char_p


def failure(pair, opcode, length=64, local_key=0, remote_key=0, receive=0, access=None):
    """Posts an operation on a pair, and a SEND behind it. Returns the texts of the requester's completions.

    With a receive of `receive` bytes, the text of the responder's completion follows. The keys are
    added to the right ones. `access` is that of the responder's region.
    """
    buffer, target = Buffer(PAGE), Buffer(PAGE)
    mine = register(pair.pd, buffer)
    peers = register(pair.pd, target, LOCAL_WRITE) if access else register(pair.pd, target)
    if receive:
        pair.qps[1].post_recv(RecvWR(wr_id=1, num_sge=1, sg=[SGE(target.address, receive, peers.lkey)]))
    wr = SendWR(wr_id=1, opcode=opcode, num_sge=1, sg=[SGE(buffer.address, length, mine.lkey + local_key)])
    if opcode != e.IBV_WR_SEND:
        wr.set_wr_rdma(peers.rkey + remote_key, target.address)
    pair.qps[0].post_send(wr)
    pair.qps[0].post_send(SendWR(wr_id=2, opcode=e.IBV_WR_SEND, num_sge=1, sg=[SGE(buffer.address, 1, mine.lkey)]))
    completions = [next_completion(pair.cqs[0]) for _ in range(2)]
    if receive:
        completions.append(next_completion(pair.cqs[1]))
    return [text_of(each.status).decode() for each in completions]


def main():
    send, write = e.IBV_WR_SEND, e.IBV_WR_RDMA_WRITE
    for what, texts in (
        ("no receive", failure(Pair(rnr_retry=1, rnr_timer=1), send)),
        ("wrong rkey", failure(Pair(), write, remote_key=0x100)),
        ("no right to write", failure(Pair(), write, access=LOCAL_WRITE)),
        ("wrong lkey", failure(Pair(), write, local_key=0x100)),
        ("short receive", failure(Pair(), send, receive=16)),
    ):
        print(f"{what}: {', '.join(texts)}")
    return 0


sys.exit(main())
