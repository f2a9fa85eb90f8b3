#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests that doorbell pages share the time of the pollers evenly.

    shares.py DEVICE GID-INDEX

A poller is the work item of the driver that polls the doorbell page of one busy context. The module
is loaded with `pollers=1`: the pollers of N contexts and of one program run one at a time. Each has
1/(N + 1) of the time, or less if it has less to do. The kernel's trace events of work queues give
the times at which a poller begins and ends to run. The measured times are those of the clock. They
include the time in which other tasks preempt a poller.
"""

import functools
import re
import sys
import time

from background_load import ENDLESS, WRITE_BENCH, for_each_count, ringing, background, sending
from cpu_time import TRACING, event_trigger, softirqs_during
from pairs import LIMIT_SECONDS, case, equal, main

SECONDS = 1
# Least part of its even share that the program must have, and number of tries of which one must
# succeed. A busy host may stop the virtual CPU that the program runs on. The program then posts
# less, and uses less of its share.
MIN_PART_OF_SHARE = 0.5
TRIES = 3
# Number of softirqs of work items that the rest of the kernel may cause in SECONDS.
MAX_SOFTIRQS = 100
EVENTS = TRACING / "events/workqueue"
SLICE_EVENT = TRACING / "events/synthetic/poller_slice"


@functools.cache
def poller_filter():
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


def poller_times():
    """Returns {poller of a page: nanoseconds for which the poller ran} over SECONDS.
    The kernel adds up the times in a histogram."""
    condition = poller_filter()
    began = f"hist:keys=work:began=common_timestamp {condition}"
    start = "workqueue.workqueue_execute_start"
    took = f"took=common_timestamp-$began:onmatch({start}).poller_slice(work,$took)"
    with event_trigger(EVENTS / "workqueue_execute_start", began), \
            event_trigger(EVENTS / "workqueue_execute_end", f"hist:keys=work:{took} {condition}"), \
            event_trigger(SLICE_EVENT, "hist:keys=work:vals=took"):
        time.sleep(SECONDS)
        table = (SLICE_EVENT / "hist").read_text()
    return {page: int(spent) for page, spent in re.findall(r"work: +(\d+) .* took: +(\d+)", table)}


def program_share(count):
    """Returns the part of the pollers' time that the program's page has beside `count` pages, and
    the number of pages that have any of it."""
    before, end = set(), time.monotonic() + LIMIT_SECONDS
    while len(before) < count and time.monotonic() < end:
        before |= poller_times().keys()
    with background([*WRITE_BENCH, "spin", "8", ENDLESS, "1", "1"]):
        while not poller_times().keys() - before and time.monotonic() < end:
            pass
        took = poller_times()
    own = sum(spent for page, spent in took.items() if page not in before)
    return own / sum(took.values()), len(took)


def check_even_share(count, name):
    """Fails unless the program has at least half of 1/(`count` + 1) of the pollers' time. It has
    more than its even share if the other contexts do not use theirs."""
    for _ in range(TRIES):
        measured, pages = program_share(count)
        found = f"{measured:.3f} of the pollers' time, of {pages} pages"
        print(f"# beside {count} {name}: {found}", flush=True)
        if measured >= MIN_PART_OF_SHARE / (count + 1):
            return
    raise AssertionError(f"no even share of the pollers' time beside {count} {name}")


@case("shares: a program has an even share beside processes that send through librrxe")
def share_beside_senders():
    for_each_count(sending, check_even_share, "that send")


@case("shares: a program has an even share beside contexts with full send queues")
def share_beside_full_queues():
    for_each_count(functools.partial(ringing, kind="posts"), check_even_share, "with full queues")


@case("shares: further runs of the engine for full send queues are not queued to softirqs")
def no_softirq_work():
    with ringing(3, "posts"):
        count = softirqs_during(SECONDS)
    print(f"# {count} softirqs of work items in a second")
    equal(count <= MAX_SOFTIRQS, True, f"at most {MAX_SOFTIRQS} softirqs of work items ({count})")


(TRACING / "synthetic_events").write_text("poller_slice u64 work; u64 took\n")
sys.exit(main())
