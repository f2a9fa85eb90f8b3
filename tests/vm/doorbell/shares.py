#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests that doorbell pages share the time of a poller evenly.

    shares.py DEVICE GID-INDEX

N contexts and one program use the only poller. Each has 1/(N + 1) of the poller's time, or less if
it has less to do. The kernel's trace events of work queues tell when the poller begins and ends
with a page. So the measured time is the poller's, whatever else the machine does.
"""

import functools
import re
import sys
import time

from beside import FOREVER, LOAD, beside_each, ringing, running, sending
from cpu_time import TRACING, event_trigger, softirqs_during
from pairs import PATIENCE, case, equal, main

SECONDS = 1
# Least part of its even share that the program must have, and number of tries of which one must
# succeed. If the host of an emulated machine is busy, it stops the program's CPU, too.
TOLERANCE = 0.5
TRIES = 3
# Number of softirqs of work items that the rest of the kernel may cause in SECONDS.
MAX_SOFTIRQS = 100
EVENTS = TRACING / "events/workqueue"
TURNS = TRACING / "events/synthetic/poller_turn"


@functools.cache
def watchers():
    """Returns the trace filter for work items that poll a doorbell page. It contains the address of
    the item's function, so the call waits until such an item is queued."""
    queued = EVENTS / "workqueue_queue_work"
    (queued / "filter").write_text('workqueue == "rrxe_poll"')
    (queued / "enable").write_text("1")
    with open(TRACING / "trace_pipe") as pipe:
        symbol = next(filter(None, (re.search(r"function=(\S+)", line) for line in pipe)))[1]
    (queued / "enable").write_text("0")
    with open("/proc/kallsyms") as symbols:
        address = next(line.split()[0] for line in symbols if line.split()[2] == symbol)
    return f"if function == 0x{address}"


def poller_time():
    """Returns {work item of a page: nanoseconds for which the poller polled the page} over SECONDS.
    The kernel adds up the times in a histogram."""
    condition = watchers()
    began = f"hist:keys=work:began=common_timestamp {condition}"
    took = "took=common_timestamp-$began:onmatch(workqueue.workqueue_execute_start).poller_turn(work,$took)"
    with event_trigger(EVENTS / "workqueue_execute_start", began), \
            event_trigger(EVENTS / "workqueue_execute_end", f"hist:keys=work:{took} {condition}"), \
            event_trigger(TURNS, "hist:keys=work:vals=took"):
        time.sleep(SECONDS)
        table = (TURNS / "hist").read_text()
    return {page: int(spent) for page, spent in re.findall(r"work: +(\d+) .* took: +(\d+)", table)}


def share(count):
    """Returns the part of the poller's time that the program has beside `count` pages, and the
    number of pages that have any of it."""
    before, end = set(), time.monotonic() + PATIENCE
    while len(before) < count and time.monotonic() < end:
        before |= poller_time().keys()
    with running([*LOAD, "spin", "8", FOREVER, "1", "1"]):
        while not poller_time().keys() - before and time.monotonic() < end:
            pass
        took = poller_time()
    own = sum(spent for page, spent in took.items() if page not in before)
    return own / sum(took.values()), len(took)


def even_share(count, name):
    """Fails unless the program has about 1/(`count` + 1) of the poller's time, or more. It has more
    if the other contexts do not use their shares."""
    for _ in range(TRIES):
        part, pages = share(count)
        print(f"# beside {count} {name}: {part:.3f} of the poller's time, of {pages} pages", flush=True)
        if part >= TOLERANCE / (count + 1):
            return
    raise AssertionError(f"no share of the poller beside {count}")


@case("shares: processes that send through librrxe")
def senders():
    beside_each(sending, even_share, "that send")


@case("shares: contexts whose send queues are always full")
def full_queues():
    beside_each(functools.partial(ringing, what="posts"), even_share, "with full queues")


@case("shares: what full send queues leave over is not work of softirqs")
def softirqs():
    with ringing(3, "posts"):
        count = softirqs_during(SECONDS)
    print(f"# {count} softirqs of work items in a second")
    equal(count <= MAX_SOFTIRQS, True, "hardly any")


(TRACING / "synthetic_events").write_text("poller_turn u64 work; u64 took\n")
sys.exit(main())
