#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""CPU time of kernel workers, and counts of softirqs, work items and packets of rrxe.

The counts come from /proc, and from histograms and the trace buffer of ftrace. The events are
rrxe's tracepoints and those of work queues.
"""

import contextlib
import os
import re
import time
from pathlib import Path

TRACING = Path("/sys/kernel/tracing")
# Bit of the field `common_flags` of an event: it happened in softirq context (TRACE_FLAG_SOFTIRQ,
# include/linux/trace_events.h).
SOFTIRQ = 0x10


def worker_ticks():
    """Returns the CPU time (user and system) of the workers of unbound queues, in ticks."""
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
    """Returns how often all CPUs together have run softirqs of these kinds."""
    with open("/proc/softirqs") as softirqs:
        rows = [line.split() for line in softirqs]
    return sum(int(count) for row in rows if row[0].rstrip(":") in names for count in row[1:])


def softirqs_during(seconds, kind="TASKLET"):
    """Sleeps for `seconds`. Returns how often all CPUs together ran this kind of softirq meanwhile.

    The default kind, TASKLET, is the softirq that runs the work items of BH work queues (WQ_BH).
    """
    before = softirq_count(kind)
    time.sleep(seconds)
    return softirq_count(kind) - before


@contextlib.contextmanager
def event_trigger(event, trigger):
    """Sets a trigger, such as a histogram, of a trace event for the time of the context."""
    with open(event / "trigger", "a") as triggers:
        triggers.write(trigger)
    try:
        yield
    finally:
        with open(event / "trigger", "a") as triggers:
            triggers.write("!" + trigger)


def histogram(name, keys, work):
    """Calls `work`. Returns the kernel's histogram, as text, of one of rrxe's events meanwhile.

    `keys` are the fields of the event by which the histogram counts.
    """
    event = TRACING / "events/rrxe" / name
    with event_trigger(event, f"hist:keys={keys}"):
        work()
        return (event / "hist").read_text()


def packets_during(name, work, number=None):
    """Calls `work`, and counts a per-packet event of rrxe meanwhile.

    Counts the events of all QPs, or only those of QPN `number`. Returns how many events there were
    in all, and how many of them happened in softirq context.
    """
    table = histogram(name, "common_flags,qpn", work)
    rows = re.findall(r"common_flags: +(\d+), qpn: +(\d+) .* hitcount: +(\d+)", table)
    counts = [(int(flags), int(count)) for flags, qpn, count in rows if number in (None, int(qpn))]
    return sum(count for _, count in counts), sum(count for flags, count in counts if flags & SOFTIRQ)


def packets_sent_during(seconds):
    """Sleeps for `seconds`. Returns how many packets all QPs sent, and how many in softirq."""
    return packets_during("rrxe_packet_out", lambda: time.sleep(seconds))


def packets_sent_by(threads, work):
    """Calls `work`. Returns how many packets, of all QPs, these threads sent meanwhile.

    `threads` are thread IDs. Packets that a softirq sent on top of such a thread don't count.
    """
    table = histogram("rrxe_packet_out", "common_pid,common_flags", work)
    rows = re.findall(r"common_pid: +(\d+), common_flags: +(\d+) .* hitcount: +(\d+)", table)
    return sum(int(count) for pid, flags, count in rows if int(pid) in threads and not int(flags) & SOFTIRQ)


def runs_queued_during(work):
    """Calls `work`. Returns how many items, such as runs of QPs, were queued meanwhile to `rrxe`.

    `rrxe` is a BH work queue: softirqs run its items.
    """
    event = TRACING / "events/workqueue/workqueue_queue_work"
    with event_trigger(event, 'hist:keys=workqueue if workqueue == "rrxe"'):
        work()
        table = (event / "hist").read_text()
    return sum(int(count) for count in re.findall(r"hitcount: +(\d+)", table))


def packets_sent_by_items(queue, work):
    """Calls `work`. Returns how many items of a work queue ran, and how many packets they sent.

    Packets of all QPs count, but not those that a softirq sent on top of an item.
    """
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
