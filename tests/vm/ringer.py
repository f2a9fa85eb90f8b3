#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""A hostile neighbour: rings all doorbells of 1,000 queues without news, and of all that don't exist, until it is
killed. ringer.py DEVICE. Says "ringing" once it does."""

import sys

from extension import DIRTY, SUMMARY, Context, Cq, Qp, node_of

QUEUES = 1000


def main():
    context = Context(node_of(sys.argv[1]))
    cq = Cq(context)
    queues = [Qp(context, cq, 0, bytes(16), 1, False) for _ in range(QUEUES)]
    print("ringing", flush=True)
    memory, ones = context.page.memory, b"\xff" * 4096
    while True:
        memory[DIRTY:DIRTY + 4096] = ones
        memory[SUMMARY:SUMMARY + 64] = ones[:64]
        if context.needs_call():
            queues[0].call()


main()
