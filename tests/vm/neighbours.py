#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""What a busy program has of a poller that it shares with hostile contexts: neighbours.py DEVICE GID-INDEX.

Of one poller for N hostile contexts and one that is as busy, that one has 1/(N + 1) of the time, at least. The kernel
tells when it begins with a page and when it ends (the events of work queues), so time is the poller's, whatever else
the machine does. Who has no more than that calls, so round trips hardly take longer.
"""

import contextlib
import functools
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from cpu_time import worker_ticks
from pairs import DEVICE, GID_INDEX, case, equal, main

COUNTS = (1, 3, 8)
SECONDS = 2
# Of its share, at least this much: the host of an emulated machine may be busy with something else.
TOLERANCE = 0.5
RINGER = str(Path(__file__).with_name("ringer.py"))
ENVIRONMENT = os.environ | {"RDMAV_DRIVERS": "rrxe"}
LOAD = ["rrxe-bench", "verbs", DEVICE, DEVICE, "write"]
FOREVER = "1000000000"
TRACING = Path("/sys/kernel/tracing")
EVENTS = TRACING / "events/workqueue"


@contextlib.contextmanager
def running(*commands):
    """Programs in the background."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    programs = [subprocess.Popen(command, env=ENVIRONMENT, **pipes) for command in commands]
    try:
        yield programs
    finally:
        for program in programs:
            program.kill()
            program.wait()
            program.stdout.close()


@contextlib.contextmanager
def ringing(count, what):
    """Beside a process with so many contexts whose doorbells all ring."""
    with running(["python3", RINGER, DEVICE, str(GID_INDEX), str(count), what]) as (ringer,):
        equal(ringer.stdout.readline(), b"ringing\n", "the ringer")
        time.sleep(0.5)
        yield


@contextlib.contextmanager
def sending(count):
    """Beside so many processes that send as much as they can through librrxe."""
    with running(*[[*LOAD, "stream", "65536", FOREVER, "32", "8"]] * count):
        time.sleep(1)
        yield


@contextlib.contextmanager
def recorded(event, condition):
    """The event is recorded meanwhile, where the condition is true."""
    (EVENTS / event / "filter").write_text(condition)
    (EVENTS / event / "enable").write_text("1")
    try:
        yield
    finally:
        (EVENTS / event / "enable").write_text("0")


def emptied():
    """What was recorded, which is forgotten."""
    text = (TRACING / "trace").read_text()
    (TRACING / "trace").write_text("")
    return text


@functools.cache
def watchers():
    """The condition that a work item watches a page, which some do now."""
    with recorded("workqueue_queue_work", 'workqueue == "rrxe_poll"'):
        time.sleep(0.2)
    symbol = re.search(r"function=(\S+)", emptied())[1]
    with open("/proc/kallsyms") as symbols:
        address = next(line.split()[0] for line in symbols if line.split()[2] == symbol)
    return f"function == 0x{address}"


def poller_time():
    """How long the poller was with each page within some seconds."""
    condition = watchers()
    with recorded("workqueue_execute_start", condition), recorded("workqueue_execute_end", condition):
        time.sleep(SECONDS)
    began, took = {}, {}
    for moment, what, page in re.findall(r"([\d.]+): workqueue_execute_(start|end): work struct (\w+)", emptied()):
        if what == "start":
            began[page] = float(moment)
        elif page in began:
            took[page] = took.get(page, 0) + float(moment) - began.pop(page)
    return took


def share():
    """Which part of the poller's time a program has that polls, and how many pages have some."""
    before = poller_time()
    with running([*LOAD, "spin", "8", FOREVER, "1", "1"]):
        time.sleep(1)
        took = poller_time()
    own = sum(spent for page, spent in took.items() if page not in before)
    return own / sum(took.values()), len(took)


def median():
    """Of round trips, in microseconds."""
    command = [*LOAD, "spin", "8", "1000", "1", "1"]
    line = subprocess.run(command, env=ENVIRONMENT, check=True, timeout=100, stdout=subprocess.PIPE).stdout
    return json.loads(line)["ns_per_message"] / 1000


@functools.cache
def alone():
    return median()


def round_trips(count, name):
    """They take no longer than those of one of `count` + 1 that take turns."""
    before, beside = alone(), median()
    print(f"# beside {count} {name}: {beside:.1f} us, alone {before:.1f}", flush=True)
    equal(beside <= before * (count + 1), True, f"round trips beside {count}")


@case("neighbours: processes that send through librrxe")
def senders():
    alone()
    for count in COUNTS:
        with sending(count):
            part, pages = share()
            print(f"# beside {count} that send: {part:.3f} of the poller's time, of {pages} pages", flush=True)
            equal(part >= TOLERANCE / (count + 1), True, f"the share beside {count}")
            round_trips(count, "that send")


@case("neighbours: contexts that ring for nothing")
def bells():
    for count in COUNTS:
        with ringing(count, "bells"):
            round_trips(count, "that ring for nothing")


@case("neighbours: contexts whose send queues are always full")
def full_queues():
    for count in COUNTS:
        with ringing(count, "posts"):
            round_trips(count, "with full queues")


@case("neighbours: contexts that ring for nothing are hardly watched")
def vain():
    with ringing(3, "bells"):
        time.sleep(2)
        before = worker_ticks()
        time.sleep(2)
        ticks = worker_ticks() - before
    print(f"# {ticks} ticks of pollers in two seconds")
    equal(ticks <= os.sysconf("SC_CLK_TCK") * 2 // 4, True, "pollers have a quarter of a CPU at most")


(TRACING / "buffer_size_kb").write_text("16384")
sys.exit(main())
