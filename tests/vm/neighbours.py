#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Round trips of a program that polls, beside hostile contexts: neighbours.py DEVICE GID-INDEX.

Of N + 1 that share a machine evenly, each takes N + 1 times as long as one alone, at most. Who has no more of a poller
than that calls, so round trips hardly take longer.
"""

import functools
import json
import os
import subprocess
import sys
import time

from beside import ENVIRONMENT, LOAD, beside_each, ringing, sending
from cpu_time import worker_ticks
from pairs import case, equal, main


def round_trip(where):
    """The median in microseconds; shows the average, too, which tells more of what else the host did."""
    command = [*LOAD, "spin", "8", "3000", "1", "1"]
    line = subprocess.run(command, env=ENVIRONMENT, check=True, timeout=100, stdout=subprocess.PIPE).stdout
    times = json.loads(line)
    median = times["ns_per_message"] / 1000
    print(f"# {where}: {median:.1f} us, on average {times['ns_mean'] / 1000:.1f}", flush=True)
    return median


@functools.cache
def alone():
    return round_trip("alone")


def round_trips_beside(neighbours, name):
    # Before there are any.
    least = alone()

    def measure(count, name):
        equal(round_trip(f"beside {count} {name}") <= least * (count + 1), True, f"fair beside {count}")

    beside_each(neighbours, measure, name)


@case("neighbours: processes that send through librrxe")
def senders():
    round_trips_beside(sending, "that send")


@case("neighbours: contexts that ring for nothing")
def bells():
    round_trips_beside(functools.partial(ringing, what="bells"), "that ring for nothing")


@case("neighbours: contexts whose send queues are always full")
def full_queues():
    round_trips_beside(functools.partial(ringing, what="posts"), "with full queues")


@case("neighbours: contexts that ring for nothing are hardly watched")
def vain():
    with ringing(3, "bells"):
        time.sleep(2)
        before = worker_ticks()
        time.sleep(2)
        ticks = worker_ticks() - before
    print(f"# {ticks} ticks of pollers in two seconds")
    equal(ticks <= os.sysconf("SC_CLK_TCK") * 2 // 4, True, "pollers have a quarter of a CPU at most")


sys.exit(main())
