#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Round trips of a program that polls, beside hostile contexts: neighbours.py DEVICE GID-INDEX.

All round trips end within a limit that only starvation exceeds: it is a hundred times and more what they take. How
long they take, alone and beside the others, is printed. shares.py checks by events of the kernel how the poller
divides its time.
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


# They take up to 30 ms each on the debug kernel.
TRIPS = 200 if IS_DEBUG_KERNEL else 3000
LIMIT_SECONDS = 100
# Packets: more than chance.
ENOUGH = 10


def round_trip(where):
    """Fails where a program's round trips take longer than the limit; shows their median and average."""
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
    """Ticks of the kernel's workers."""
    before, began = worker_ticks(), time.monotonic()
    time.sleep(2)
    return (worker_ticks() - before) / (time.monotonic() - began)


@case("neighbours: contexts that ring for nothing are hardly watched")
def vain():
    with ringing(3, "bells"):
        time.sleep(2)
        # A CPU that its host stops in a poller counts as the poller's time. One that always watches does so each time.
        rate = min(ticks_a_second() for _ in range(5))
    print(f"# {rate:.0f} ticks of pollers in a second")
    equal(rate <= os.sysconf("SC_CLK_TCK") / 4, True, "pollers have a quarter of a CPU at most")


@case("neighbours: no softirq serves doorbells")
def turns_of_softirqs():
    # The only poller is behind, so that pages are relieved.
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
