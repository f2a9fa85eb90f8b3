#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""What the kernel's threads cost."""

import os
import time


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


def softirqs_during(seconds):
    """How often all CPUs together run softirqs of work items and timers in that time. Sleeps for as long."""
    before = softirq_count("TASKLET")
    time.sleep(seconds)
    return softirq_count("TASKLET") - before
