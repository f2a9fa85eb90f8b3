#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests the doorbell page of a user context and the arm word of a CQ.

    doorbell.py DEVICE GID-INDEX

The cases use both as rrxe-abi.h describes, and write arbitrary values to them. The cases write the
commands of uverbs themselves, without a provider library. A QP's slot is the number of the bit of
the page that is its doorbell. A work item of the driver, the poller, reads the page of a busy
process. Each QP that sends is connected to itself. SEED (7 by default) selects the random values.
"""

import errno
import mmap
import os
import random
import resource
import struct
import sys
import threading
import time

from cpu_time import softirq_count, worker_ticks
from pairs import (
    DEVICE, GID_INDEX, PAGE, LIMIT_SECONDS, Buffer, case, equal, main, pattern, wait_until_equal,
)
from extension import (
    ARM, ARM_NEXT, ARM_NONE, ARM_SOLICITED, CQ_ARM, DIRTY, DOORBELL, NO_SLOT, SIGNALED, SLOTS,
    SOLICITED, SUMMARY, Context, Cq, Qp, gid_of, node_of,
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
        source, target = self.source.address, self.target.address
        self.qp.write(self.count, source, self.lkey, target, self.rkey, PAGE, flags)

    def finish(self, seconds=LIMIT_SECONDS):
        """Waits for the completion of the last WRITE, and compares the pages."""
        end = time.monotonic() + seconds
        while True:
            done = self.cq.poll()
            if done:
                equal(done, (self.count, 0), "completion")
                break
            if time.monotonic() > end:
                raise AssertionError(f"WRITE {self.count} does not complete")
        equal(self.target.read(PAGE) == self.source.read(PAGE), True, "the written page is right")

    def write_by_call(self):
        self.post()
        self.qp.ring_by_call()
        self.finish()

    def call_until_polled(self, seconds=LIMIT_SECONDS):
        """Makes doorbell calls until a poller polls the doorbell page."""
        end = time.monotonic() + seconds
        while self.context.needs_call():
            if time.monotonic() > end:
                raise AssertionError("no poller polls the page of a busy process")
            self.qp.ring_by_call()


def open_errno(request, room=24):
    """Returns the errno of opening the device with the request, or 0."""
    return errno_of(lambda: Context(NODE, request, room).close())


@case("doorbells: version and features of the interface are negotiated")
def negotiation():
    context = Context(NODE)
    granted = (context.version, context.features, context.size)
    equal(granted, (1, DOORBELL | CQ_ARM, max(8192, mmap.PAGESIZE)), "version, features and page size")
    equal(context.needs_call(), True, "a new page needs calls")
    context.close()
    newer = Context(NODE, struct.pack("=II", 9, DOORBELL | 1 << 31))
    equal((newer.version, newer.features), (1, DOORBELL), "version and features of a newer library")
    newer.close()
    equal(open_errno(b"", 0), 0, "errno of stock librxe")
    equal(open_errno(struct.pack("=I", 1)), errno.EINVAL, "errno of half a request")
    equal(open_errno(struct.pack("=II", 0, 1)), errno.EINVAL, "errno of version 0")
    equal(open_errno(struct.pack("=III", 1, 1, 7)), errno.EOPNOTSUPP, "errno of a longer request")
    equal(open_errno(struct.pack("=III", 1, 1, 0)), 0, "errno of a request padded with zeros")


@case("doorbells: a context without the doorbell feature has no page, and its QPs have no slot")
def context_without_doorbells():
    writer = Writer(Context(NODE, struct.pack("=II", 1, CQ_ARM)))
    granted = (writer.context.features, writer.context.size, writer.qp.slot)
    equal(granted, (CQ_ARM, 0, NO_SLOT), "features, page size and slot")
    writer.write_by_call()
    writer.context.close()


@case("doorbells: the page of a busy process is polled, and that of an idle process is not")
def only_busy_pages_are_polled():
    writer = Writer()
    without_call = 0
    for _ in range(1000):
        writer.call_until_polled()
        writer.post()
        writer.qp.ring_bell()
        if writer.context.needs_call():
            writer.qp.ring_by_call()
        else:
            without_call += 1
        writer.finish()
        if without_call == 50:
            break
    equal(without_call, 50, "WRITEs without a call")
    wait_until_equal(writer.context.needs_call, True, "an idle page needs calls")
    writer.post()

    def stays_rung():
        writer.qp.ring_bell()
        time.sleep(0.1)
        return writer.qp.doorbell_is_set()

    # After the poller has set NEED_WAKEUP, it looks for doorbells once more, perhaps late. So the
    # first doorbell may still be served.
    equal(any(stays_rung() for _ in range(2)), True, "an idle page is not polled")
    writer.qp.ring_by_call()
    writer.finish()
    writer.context.close()


@case("doorbells: set bits of slots without a QP, or of a QP without posts, do no harm")
def useless_bits_do_no_harm():
    writer, other = Writer(), Writer()
    writer.call_until_polled()
    end = time.monotonic() + 1
    page = writer.context.page
    while time.monotonic() < end:
        for leaf in (0, 1, 63, 64, 511):
            page.u64(DIRTY + 8 * leaf).value = (1 << 64) - 1
        for word in range(8):
            page.u64(SUMMARY + 8 * word).value = (1 << 64) - 1
        other.write_by_call()
    time.sleep(0.2)
    writer.write_by_call()
    writer.context.close()
    other.context.close()


@case("doorbells: random values in a page do not disturb WRITEs of this or another context")
def random_values_do_no_harm():
    generator, stop = random.Random(SEED), threading.Event()
    hostile = Writer()
    hostile.call_until_polled()

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
            other.write_by_call()
            hostile.post()
            hostile.qp.ring_by_call()
            hostile.finish()
            if count % 50 == 0:
                qp = Qp(hostile.context, hostile.cq, GID_INDEX, GID)
                qp.destroy()
    finally:
        stop.set()
        scribbler.join()
    hostile.context.close()
    other.write_by_call()
    other.context.close()


@case("doorbells: a context can be closed while its doorbells ring")
def context_closes_while_ringing():
    for _ in range(20):
        writer = Writer()
        writer.call_until_polled()
        for _ in range(10):
            writer.post()
            writer.qp.ring_bell()
        writer.context.close()
        del writer


@case("doorbells: new QPs get the slots of destroyed QPs")
def slots_are_used_again():
    context = Context(NODE)
    cq = Cq(context)
    first = [Qp(context, cq, GID_INDEX, GID, 1, False) for _ in range(100)]
    equal(sorted(qp.slot for qp in first), list(range(100)), "slots of the first QPs")
    for qp in first[10:20]:
        qp.destroy()
    again = [Qp(context, cq, GID_INDEX, GID, 1, False) for _ in range(10)]
    equal(sorted(qp.slot for qp in again), list(range(10, 20)), "slots of the later QPs")
    equal(max(qp.slot for qp in first) < SLOTS, True, "slots lie in the page")
    context.close()


def wait_for_events(cq):
    """Waits for a notification of the CQ, and returns the number of notifications taken at once."""
    counts = []
    wait_until_equal(lambda: counts.append(cq.events()) or counts[-1] > 0, True, "an event")
    return counts[-1]


@case("arm word: arming for any or for solicited completions gives one notification")
def arm_word_notifies_once():
    writer = Writer()
    writer.write_by_call()
    equal(writer.cq.events(), 0, "events of a CQ that was not armed")
    writer.cq.arm(ARM_NEXT)
    writer.write_by_call()
    equal(wait_for_events(writer.cq), 1, "events after arming")
    equal(writer.cq.ring.u32(ARM).value, ARM_NONE, "the arm word after the notification")
    writer.write_by_call()
    equal(writer.cq.events(), 0, "events after the notification")
    writer.cq.arm(ARM_SOLICITED)
    writer.post(SIGNALED | SOLICITED)
    writer.qp.ring_by_call()
    writer.finish()
    seen = (writer.cq.events(), writer.cq.ring.u32(ARM).value)
    equal(seen, (0, ARM_SOLICITED), "events and arm word after the completion of a send request")
    # An error completion notifies although it is not solicited. The access error moves the peer to
    # the error state. The peer is the same QP, so the WRITE completes with a flush error (5).
    source, target = writer.source.address, writer.target.address
    writer.qp.write(99, source, writer.lkey, target, writer.rkey ^ 1, 8)
    writer.qp.ring_by_call()
    equal((wait_for_events(writer.cq), writer.cq.poll()), (1, (99, 5)), "events and completion")
    writer.context.close()


@case("arm word: any value at any time does no harm")
def any_arm_word_does_no_harm():
    generator = random.Random(SEED)
    writer = Writer()
    for _ in range(500):
        writer.cq.ring.u32(ARM).value = generator.getrandbits(32)
        writer.write_by_call()
        writer.cq.events()
    writer.context.close()


def worker_cost():
    """Returns the CPU time of kernel workers in ticks, and the number of softirqs of hrtimers and
    work items, both within two seconds."""
    ticks, softirqs = worker_ticks(), softirq_count("HRTIMER", "TASKLET")
    time.sleep(2)
    return worker_ticks() - ticks, softirq_count("HRTIMER", "TASKLET") - softirqs


@case("doorbells: a thousand idle contexts cost no CPU time")
def idle_contexts_cost_nothing():
    contexts = [Context(NODE) for _ in range(1000)]
    writers = [Writer(context) for context in contexts[:20]]
    for writer in writers:
        writer.call_until_polled()
    time.sleep(0.5)
    # The counts include other work of the kernel. If the host stops a virtual CPU, that time is
    # charged to the worker that runs there. A polled page would cost CPU time in each of the three
    # measurements, so the minimum counts.
    ticks, softirqs = map(min, zip(*(worker_cost() for _ in range(3))))
    print(f"# in 2 s: {ticks} ticks of workers, {softirqs} softirqs of timers and work items")
    # A poller that polls all the time takes hundreds of ticks.
    equal(ticks <= 20, True, f"at most 20 ticks of kernel workers in 2 s ({ticks})")
    # Each polled page would cause thousands of softirqs.
    equal(softirqs <= 100, True, f"at most 100 softirqs in 2 s ({softirqs})")
    for writer in writers:
        equal(writer.context.needs_call(), True, "an idle page needs calls")
    for context in contexts:
        context.close()


resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
sys.exit(main())
