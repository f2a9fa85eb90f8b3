#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Hostile neighbours: ringer.py DEVICE GID-INDEX CONTEXTS bells|posts.

In so many contexts all doorbells ring all the time, those of connected queues and of all that don't exist. For nothing,
or, with `posts`, for send queues that are always full, at the cost of a store each. Says "ringing" once it does, and
goes on whatever becomes of its device, until it is killed.
"""

import resource
import sys

from extension import CONSUMER, DIRTY, PRODUCER, SUMMARY, Context, Cq, Qp, gid_of, node_of
from pairs import PAGE, Buffer

# Queues of a context: with posts, few are enough to keep all CPUs busy.
QUEUES = {"bells": 64, "posts": 16}
# So many calls in a row make a busy process.
BUSY = 16


class Neighbour:
    """A context, its queues, and one more to call for."""

    def __init__(self, device, gid_index, what):
        self.context = Context(node_of(device))
        gid, cq = gid_of(device, gid_index), Cq(self.context)
        self.queues = [Qp(self.context, cq, gid_index, gid, 63) for _ in range(QUEUES[what])]
        self.caller = self.queues.pop()
        self.indices = [self.fill(qp) for qp in self.queues] if what == "posts" else []

    def fill(self, qp):
        """Puts a write into each element; the indices of the ring, and its mask."""
        buffer = Buffer(PAGE)
        lkey, rkey = self.context.reg(buffer)
        for _ in range(qp.mask + 1):
            qp.write(0, buffer.address, lkey, buffer.address, rkey, PAGE, 0)
        qp.ring.u32(PRODUCER).value = 0
        return qp.ring.u32(PRODUCER), qp.ring.u32(CONSUMER), qp.mask

    def ring(self):
        for producer, consumer, mask in self.indices:
            producer.value = (consumer.value - 1) & mask
        memory = self.context.page.memory
        memory[DIRTY:DIRTY + 4096] = b"\xff" * 4096
        memory[SUMMARY:SUMMARY + 64] = b"\xff" * 64

    def call(self):
        if self.context.needs_call():
            for _ in range(BUSY):
                self.caller.call()


def main():
    device, gid_index, contexts, what = sys.argv[1:]
    # Each mapping has a file.
    resource.setrlimit(resource.RLIMIT_NOFILE, (65536, 65536))
    neighbours = [Neighbour(device, int(gid_index), what) for _ in range(int(contexts))]
    print("ringing", flush=True)
    while True:
        for neighbour in neighbours:
            neighbour.ring()
            try:
                neighbour.call()
            except OSError:
                pass  # the device is gone


main()
