#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests the doorbell page of a user context and the arm word of a CQ.

    doorbell.py DEVICE GID-INDEX

The cases use both as rrxe-abi.h describes, and write arbitrary values to them. They speak the
interface by commands of uverbs, without a provider library. Each QP is connected to itself. SEED
(7 by default) selects the random values.
"""

import errno
import os
import random
import resource
import struct
import sys
import threading
import time

from cpu_time import softirq_count, worker_ticks
from pairs import (
    DEVICE, GID_INDEX, PAGE, PATIENCE, Buffer, case, equal, main, pattern, wait_until_equal,
)
from extension import (
    ARM_NEXT, ARM_NONE, ARM_SOLICITED, CQ_ARM, DIRTY, DOORBELL, SIGNALED, SLOTS, SOLICITED, SUMMARY,
    Context, Cq, Qp, gid_of, node_of,
)
from uverbs import errno_of

SEED = int(os.environ.get("SEED", "7"))
GID = gid_of(DEVICE, GID_INDEX)


NODE = node_of(DEVICE)


class Writer:
    """A QP connected to itself. It writes one page of the process to another by RDMA WRITE, and
    compares the two pages."""

    def __init__(self, context=None):
        self.context = context or Context(NODE)
        self.cq = Cq(self.context)
        self.qp = Qp(self.context, self.cq, GID_INDEX, GID)
        self.source, self.target = Buffer(PAGE), Buffer(PAGE)
        self.lkey, _ = self.context.reg(self.source)
        _, self.rkey = self.context.reg(self.target)
        self.count = 0

    def post(self, flags=SIGNALED):
        self.count += 1
        self.source.fill(struct.pack("=Q", self.count) + pattern(PAGE)[8:])
        self.qp.write(self.count, self.source.address, self.lkey, self.target.address, self.rkey, PAGE, flags)

    def finish(self, seconds=PATIENCE):
        """Waits for the completion of the last WRITE, and compares the pages."""
        end = time.monotonic() + seconds
        while True:
            done = self.cq.poll()
            if done:
                equal(done, (self.count, 0), "completion")
                break
            if time.monotonic() > end:
                raise AssertionError(f"write {self.count} does not complete")
        equal(self.target.read(PAGE) == self.source.read(PAGE), True, "what was written")

    def by_call(self):
        self.post()
        self.qp.call()
        self.finish()

    def watched(self, seconds=PATIENCE):
        """Makes doorbell calls until a poller polls the doorbell page."""
        end = time.monotonic() + seconds
        while self.context.needs_call():
            if time.monotonic() > end:
                raise AssertionError("the kernel does not watch the page of a busy process")
            self.qp.call()


def refused(request, room=24):
    return errno_of(lambda: Context(NODE, request, room).close())


@case("doorbells: negotiation")
def negotiation():
    context = Context(NODE)
    equal((context.version, context.features, context.size), (1, DOORBELL | CQ_ARM, 8192), "the answer")
    equal(context.needs_call(), True, "a new page needs calls")
    context.close()
    newer = Context(NODE, struct.pack("=II", 9, DOORBELL | 1 << 31))
    equal((newer.version, newer.features), (1, DOORBELL), "of a newer library")
    newer.close()
    equal(refused(b"", 0), 0, "stock librxe")
    equal(refused(struct.pack("=I", 1)), errno.EINVAL, "half a request")
    equal(refused(struct.pack("=II", 0, 1)), errno.EINVAL, "no version")
    equal(refused(struct.pack("=III", 1, 1, 7)), errno.EOPNOTSUPP, "a request with more")
    equal(refused(struct.pack("=III", 1, 1, 0)), 0, "a request with zeros behind")


@case("doorbells: a library without doorbells gets no slot")
def without():
    writer = Writer(Context(NODE, struct.pack("=II", 1, CQ_ARM)))
    equal((writer.context.features, writer.context.size, writer.qp.slot), (CQ_ARM, 0, 0xffffffff), "slot")
    writer.by_call()
    writer.context.close()


@case("doorbells: a busy process needs no calls, an idle one is not watched")
def busy_and_idle():
    writer = Writer()
    without_call = 0
    for _ in range(1000):
        writer.watched()
        writer.post()
        writer.qp.ring_bell()
        if writer.context.needs_call():
            writer.qp.call()
        else:
            without_call += 1
        writer.finish()
        if without_call == 50:
            break
    equal(without_call, 50, "writes without a call")
    wait_until_equal(writer.context.needs_call, True, "an idle page needs calls")
    writer.post()

    def stays_rung():
        writer.qp.ring_bell()
        time.sleep(0.1)
        return writer.qp.is_rung()

    # After the poller has set NEED_WAKEUP, it looks for doorbells once more, perhaps late. So the
    # first doorbell may still be served.
    equal(any(stays_rung() for _ in range(2)), True, "nobody watches an idle page")
    writer.qp.call()
    writer.finish()
    writer.context.close()


@case("doorbells: bits that name nothing, or a queue without news")
def idle_bits():
    writer, other = Writer(), Writer()
    writer.watched()
    end = time.monotonic() + 1
    page = writer.context.page
    while time.monotonic() < end:
        for leaf in (0, 1, 63, 64, 511):
            page.u64(DIRTY + 8 * leaf).value = (1 << 64) - 1
        for word in range(8):
            page.u64(SUMMARY + 8 * word).value = (1 << 64) - 1
        other.by_call()
    time.sleep(0.2)
    writer.by_call()
    writer.context.close()
    other.context.close()


@case("doorbells: random garbage in the page while others work")
def garbage():
    generator, stop = random.Random(SEED), threading.Event()
    hostile = Writer()
    hostile.watched()

    def scribble():
        page = hostile.context.page
        while not stop.is_set():
            offset = generator.choice([0, SUMMARY, DIRTY, generator.randrange(0, 8192 - 64)]) & ~7
            for step in range(8):
                page.u64(offset + 8 * step).value = generator.getrandbits(64)

    scribbler = threading.Thread(target=scribble)
    scribbler.start()
    try:
        other = Writer()
        for count in range(300):
            other.by_call()
            hostile.post()
            hostile.qp.call()
            hostile.finish()
            if count % 50 == 0:
                qp = Qp(hostile.context, hostile.cq, GID_INDEX, GID)
                qp.destroy()
    finally:
        stop.set()
        scribbler.join()
    hostile.context.close()
    other.by_call()
    other.context.close()


@case("doorbells: a context that is closed while its doorbells ring")
def closed():
    for _ in range(20):
        writer = Writer()
        writer.watched()
        for _ in range(10):
            writer.post()
            writer.qp.ring_bell()
        writer.context.close()
        del writer


@case("doorbells: slots are used again, and there are enough")
def slots():
    context = Context(NODE)
    cq = Cq(context)
    first = [Qp(context, cq, GID_INDEX, GID, 1, False) for _ in range(100)]
    equal(sorted(qp.slot for qp in first), list(range(100)), "slots")
    for qp in first[10:20]:
        qp.destroy()
    again = [Qp(context, cq, GID_INDEX, GID, 1, False) for _ in range(10)]
    equal(sorted(qp.slot for qp in again), list(range(10, 20)), "slots of the second lot")
    equal(max(qp.slot for qp in first) < SLOTS, True, "slot")
    context.close()


def heard(cq):
    """Waits for a notification of the CQ, and returns the number of notifications taken at once."""
    counts = []
    wait_until_equal(lambda: counts.append(cq.events()) or counts[-1] > 0, True, "an event")
    return counts[-1]


@case("arm word: one notification for each time, solicited or any")
def arming():
    writer = Writer()
    writer.by_call()
    equal(writer.cq.events(), 0, "events of a CQ that was not armed")
    writer.cq.arm(ARM_NEXT)
    writer.by_call()
    equal(heard(writer.cq), 1, "events once armed")
    equal(writer.cq.ring.u32(320).value, ARM_NONE, "the word after that")
    writer.by_call()
    equal(writer.cq.events(), 0, "events after that")
    writer.cq.arm(ARM_SOLICITED)
    writer.post(SIGNALED | SOLICITED)
    writer.qp.call()
    writer.finish()
    equal((writer.cq.events(), writer.cq.ring.u32(320).value), (0, ARM_SOLICITED), "a send's completion is not solicited")
    # An error completion notifies although it is not solicited. The access error moves the peer to
    # the error state. The peer is the same QP, so the WRITE completes with a flush error (5).
    writer.qp.write(99, writer.source.address, writer.lkey, writer.target.address, writer.rkey ^ 1, 8)
    writer.qp.call()
    equal((heard(writer.cq), writer.cq.poll()), (1, (99, 5)), "an error")
    writer.context.close()


@case("arm word: any value, at any time")
def arm_garbage():
    generator = random.Random(SEED)
    writer = Writer()
    for _ in range(500):
        writer.cq.ring.u32(320).value = generator.getrandbits(32)
        writer.by_call()
        writer.cq.events()
    writer.context.close()


def cost():
    """Returns the CPU time of kernel workers in ticks, and the number of softirqs of hrtimers and
    work items, both within two seconds."""
    ticks, softirqs = worker_ticks(), softirq_count("HRTIMER", "TASKLET")
    time.sleep(2)
    return worker_ticks() - ticks, softirq_count("HRTIMER", "TASKLET") - softirqs


@case("doorbells: a thousand idle contexts cost no CPU time")
def idle_cost():
    contexts = [Context(NODE) for _ in range(1000)]
    writers = [Writer(context) for context in contexts[:20]]
    for writer in writers:
        writer.watched()
    time.sleep(0.5)
    # The counts include other work of the kernel. If the host stops a virtual CPU, that time is
    # charged to the worker that runs there. A polled page would cost CPU time in each of the three
    # measurements, so the minimum counts.
    ticks, softirqs = map(min, zip(*(cost() for _ in range(3))))
    print(f"# in two seconds {ticks} ticks of workers, {softirqs} softirqs of timers and work items")
    equal(ticks <= 20, True, "ticks of the kernel's workers in two seconds, of which one that watches takes hundreds")
    equal(softirqs <= 100, True, "softirqs in two seconds, where each watched page would have thousands")
    for writer in writers:
        equal(writer.context.needs_call(), True, "an idle page needs calls")
    for context in contexts:
        context.close()


resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
sys.exit(main())
