#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""What the kernel's threads cost."""

import contextlib
import os
import re
import time
from pathlib import Path

TRACING = Path("/sys/kernel/tracing")
# In the flags of an event: a softirq caused it.
SOFTIRQ = 0x10


def worker_ticks():
    """CPU time of all kernel workers, in ticks."""
    total = 0
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat") as stat:
                text = stat.read()
        except OSError:
            continue
        if "(kworker/u" in text:
            fields = text.rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
    return total


def softirq_count(*names):
    """How often all CPUs together have run softirqs of these kinds."""
    with open("/proc/softirqs") as softirqs:
        rows = [line.split() for line in softirqs]
    return sum(int(count) for row in rows if row[0].rstrip(":") in names for count in row[1:])


def softirqs_during(seconds, kind="TASKLET"):
    """How often all CPUs together run such softirqs, or those of work items, in that time. Sleeps for as long."""
    before = softirq_count(kind)
    time.sleep(seconds)
    return softirq_count(kind) - before


@contextlib.contextmanager
def triggered(event, trigger):
    """The event does that meanwhile."""
    with open(event / "trigger", "a") as triggers:
        triggers.write(trigger)
    try:
        yield
    finally:
        with open(event / "trigger", "a") as triggers:
            triggers.write("!" + trigger)


def histogram(name, keys, work):
    """What the kernel counts of an event of rrxe by these keys while `work` is called, as a text."""
    event = TRACING / "events/rrxe" / name
    with triggered(event, f"hist:keys={keys}"):
        work()
        return (event / "hist").read_text()


def packets_during(name, work, number=None):
    """How often all QPs, or that of a number, cause that event, of a packet each, while `work` is called, and how many of these
    softirqs cause."""
    table = histogram(name, "common_flags,qpn", work)
    rows = re.findall(r"common_flags: +(\d+), qpn: +(\d+) .* hitcount: +(\d+)", table)
    counts = [(int(flags), int(count)) for flags, qpn, count in rows if number in (None, int(qpn))]
    return sum(count for _, count in counts), sum(count for flags, count in counts if flags & SOFTIRQ)


def packets_sent_during(seconds):
    """How many packets all QPs send in that time, and how many of them softirqs send. Sleeps for as long."""
    return packets_during("rrxe_packet_out", lambda: time.sleep(seconds))


def packets_sent_by(processes, work):
    """How many packets of all QPs these processes send while `work` is called, not counting softirqs."""
    table = histogram("rrxe_packet_out", "common_pid,common_flags", work)
    rows = re.findall(r"common_pid: +(\d+), common_flags: +(\d+) .* hitcount: +(\d+)", table)
    return sum(int(count) for pid, flags, count in rows if int(pid) in processes and not int(flags) & SOFTIRQ)


def turns_queued_during(work):
    """How many turns of QPs are queued for softirqs while `work` is called."""
    event = TRACING / "events/workqueue/workqueue_queue_work"
    with triggered(event, 'hist:keys=workqueue if workqueue == "rrxe"'):
        work()
        table = (event / "hist").read_text()
    return sum(int(count) for count in re.findall(r"hitcount: +(\d+)", table))


def packets_sent_by_items(queue, work):
    """How many items of a work queue run while `work` is called, and how many packets of all QPs these items send, not
    counting softirqs."""
    events = [TRACING / "events" / name for name in (
        "workqueue/workqueue_queue_work", "workqueue/workqueue_execute_start", "workqueue/workqueue_execute_end",
        "rrxe/rrxe_packet_out",
    )]
    (TRACING / "trace").write_text("")
    for event in events:
        (event / "enable").write_text("1")
    try:
        work()
    finally:
        for event in events:
            (event / "enable").write_text("0")
    queued, running, items, packets = set(), set(), 0, 0
    for line in (TRACING / "trace").read_text().splitlines():
        found = re.match(r".*-(\d+) +\[\d+\] (\S+) +[\d.]+: (\w+): (.*)", line)
        if not found:
            continue
        thread, flags, event, text = found.groups()
        item = re.match(r"work struct[ =](\w+)", text)
        if event == "workqueue_queue_work" and f"workqueue={queue} " in text:
            queued.add(item[1])
        elif event == "workqueue_execute_start" and item[1] in queued:
            running.add(thread)
            items += 1
        elif event == "workqueue_execute_end":
            running.discard(thread)
        elif event == "rrxe_packet_out" and thread in running and flags[2] not in "shHzZ":
            packets += 1
    return items, packets
