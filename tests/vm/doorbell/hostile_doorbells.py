#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Runs hostile contexts that compete for the time of the doorbell pollers.

    hostile_doorbells.py DEVICE GID-INDEX CONTEXTS bells|posts

In each of CONTEXTS contexts all doorbells of the doorbell page ring all the time: those of
connected QPs, and those that belong to no QP. With `bells` nothing is posted. With `posts` the
send queues are always full: one store to the producer index posts a whole ring of WRITEs. The
program prints "ringing" once the contexts exist. It runs until it is killed, even if its device is
removed.
"""

import resource
import sys

from extension import CONSUMER, DIRTY, PRODUCER, SUMMARY, Context, Cq, Qp, gid_of, node_of
from pairs import PAGE, Buffer

# Number of QPs of a context. With `posts`, few QPs suffice to keep all CPUs busy.
QPS_PER_CONTEXT = {"bells": 64, "posts": 16}
# Number of doorbell calls in a row after which the driver begins to poll the page (BUSY_CALLS of
# doorbells/poll_policy.rs).
BUSY_CALLS = 16


class HostileContext:
    """A hostile context with its QPs, and one more QP for doorbell calls."""

    def __init__(self, device, gid_index, kind):
        self.context = Context(node_of(device))
        gid, cq = gid_of(device, gid_index), Cq(self.context)
        self.qps = [Qp(self.context, cq, gid_index, gid, 63) for _ in range(QPS_PER_CONTEXT[kind])]
        self.call_qp = self.qps.pop()
        self.rings = [self.fill_send_ring(qp) for qp in self.qps] if kind == "posts" else []

    def fill_send_ring(self, qp):
        """Puts a WRITE into each element of the send ring. Returns the producer index, the consumer
        index and the mask of the ring."""
        buffer = Buffer(PAGE)
        lkey, rkey = self.context.reg(buffer)
        for _ in range(qp.mask + 1):
            qp.write(0, buffer.address, lkey, buffer.address, rkey, PAGE, 0)
        qp.ring.u32(PRODUCER).value = 0
        return qp.ring.u32(PRODUCER), qp.ring.u32(CONSUMER), qp.mask

    def ring_all(self):
        for producer, consumer, mask in self.rings:
            producer.value = (consumer.value - 1) & mask
        memory = self.context.page.memory
        memory[DIRTY:DIRTY + 4096] = b"\xff" * 4096
        memory[SUMMARY:SUMMARY + 64] = b"\xff" * 64

    def call_if_needed(self):
        if self.context.needs_call():
            for _ in range(BUSY_CALLS):
                self.call_qp.ring_by_call()


def main():
    device, gid_index, contexts, kind = sys.argv[1:]
    # Python's mmap duplicates the descriptor of the device file for each mapping of a ring.
    resource.setrlimit(resource.RLIMIT_NOFILE, (65536, 65536))
    hostile_contexts = [HostileContext(device, int(gid_index), kind) for _ in range(int(contexts))]
    print("ringing", flush=True)
    while True:
        for hostile in hostile_contexts:
            hostile.ring_all()
            try:
                hostile.call_if_needed()
            except OSError:
                pass  # the device is gone


main()
