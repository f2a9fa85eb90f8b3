#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests that hostile contexts do not starve others of the doorbell poller.

    neighbours.py DEVICE GID-INDEX

A program sends 8 byte WRITEs, one after another, through librrxe, while other contexts of the same
device compete for the only poller. All its round trips must end within a limit that only starvation
exceeds: the limit is at least a hundred times the usual duration. The test prints the round-trip
times of the program alone and beside the others. Further cases check, by the kernel's trace events,
that no softirq does work that a process caused. shares.py checks how the poller divides its time.
"""

import functools
import json
import os
import subprocess
import sys
import threading
import time

from beside import ENVIRONMENT, LOAD, asking, beside_each, ringing, sending
from cpu_time import packets_sent_by, packets_sent_during, runs_queued_during, worker_ticks
from extension import Context, Cq, Qp, gid_of, node_of
from pairs import (
    DEVICE, GID_INDEX, IS_DEBUG_KERNEL, PATIENCE, Pair, case, equal, main, register_filled_buffer,
)


# Number of round trips. On the debug kernel one takes up to 30 ms.
TRIPS = 200 if IS_DEBUG_KERNEL else 3000
LIMIT_SECONDS = 100
# Number of packets that chance does not explain.
ENOUGH = 10


def round_trip(where):
    """Fails if the round trips take longer than the limit. Prints their median and average."""
    command = [*LOAD, "spin", "8", str(TRIPS), "1", "1"]
    line = subprocess.run(command, env=ENVIRONMENT, check=True, timeout=LIMIT_SECONDS, stdout=subprocess.PIPE).stdout
    times = json.loads(line)
    median, average = times["ns_per_message"] / 1000, times["ns_mean"] / 1000
    print(f"# {where}: {median:.1f} us, on average {average:.1f}", flush=True)


def measure(count, name):
    round_trip(f"beside {count} {name}")


@case("neighbours: a program alone")
def alone():
    round_trip("alone")


@case("neighbours: processes that send through librrxe")
def senders():
    beside_each(sending, measure, "that send")


@case("neighbours: contexts that ring for nothing")
def bells():
    beside_each(functools.partial(ringing, what="bells"), measure, "that ring for nothing")


@case("neighbours: contexts whose send queues are always full")
def full_queues():
    beside_each(functools.partial(ringing, what="posts"), measure, "with full queues")


def ticks_a_second():
    """Returns the CPU time of kernel workers, in ticks per second."""
    before, began = worker_ticks(), time.monotonic()
    time.sleep(2)
    return (worker_ticks() - before) / (time.monotonic() - began)


@case("neighbours: contexts that ring for nothing are hardly watched")
def vain():
    with ringing(3, "bells"):
        time.sleep(2)
        # If the host stops a virtual CPU that runs a poller, that time counts as the poller's. A
        # poller that polls all the time takes CPU time in each of the five measurements, so the
        # minimum counts.
        rate = min(ticks_a_second() for _ in range(5))
    print(f"# {rate:.0f} ticks of pollers in a second")
    equal(rate <= os.sysconf("SC_CLK_TCK") / 4, True, "pollers have a quarter of a CPU at most")


@case("neighbours: no softirq serves doorbells")
def turns_of_softirqs():
    # The only poller is overloaded, so the watchdogs end the polling of pages.
    with ringing(8, "posts"):
        sent, by_softirqs = packets_sent_during(2)
    print(f"# {sent} packets, {by_softirqs} of them sent by softirqs")
    equal((sent > 0, by_softirqs), (True, 0), "packets, and those sent by softirqs")


@case("neighbours: no softirq does what queries kept a queue from")
def queries():
    context = Context(node_of(DEVICE))
    qp, over = Qp(context, Cq(context), GID_INDEX, gid_of(DEVICE, GID_INDEX)), threading.Event()

    def repeat(call):
        while not over.is_set():
            call()

    threads = [threading.Thread(target=repeat, args=(call,), daemon=True) for call in (qp.query, qp.call, qp.call)]
    for thread in threads:
        thread.start()
    count = runs_queued_during(lambda: time.sleep(5))
    over.set()
    for thread in threads:
        thread.join()
    context.close()
    equal(count, 0, "turns of softirqs")


@case("neighbours: who asks for a queue does what it kept the queue from")
def askers():
    pair = Pair()
    source, (target, _) = register_filled_buffer(pair, 8)[1], register_filled_buffer(pair, 8)
    there = (target.address, pair.kept[-1].rkey)
    messages = packets = 0

    def write():
        for _ in range(500):
            equal(pair.write(source, there), 0, "status of a WRITE")

    end = time.monotonic() + PATIENCE
    with asking(4, pair.qps[0].qp_num) as children:
        while packets < ENOUGH and time.monotonic() < end:
            packets += packets_sent_by(children, write)
            messages += 500
    print(f"# {messages} messages, {packets} packets that those sent who asked")
    equal(packets >= ENOUGH, True, "a queue has its turn before others ask")


sys.exit(main())
