# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Counts of calls of kernel functions, by kprobes and tracefs."""

import contextlib
import os
import re
import subprocess
from pathlib import Path

from cpu_time import event_trigger

TRACING = "/sys/kernel/tracing"


class KprobeCounter:
    """Context manager: counts the calls of kernel functions, by all threads of the system.

    The counts begin when the context is entered."""

    def __init__(self, *functions):
        self.functions = functions

    def __enter__(self):
        if not os.path.exists(f"{TRACING}/kprobe_events"):
            subprocess.run(["mount", "-t", "tracefs", "tracefs", TRACING], check=True)
        for name in self.functions:
            self._append(f"p:odp_{name} {name}\n")
            self._enable(name, "1")
        return self

    @staticmethod
    def _append(line):
        # Python's own mode for appending seeks to the end, which the file refuses.
        events = os.open(f"{TRACING}/kprobe_events", os.O_WRONLY | os.O_APPEND)
        os.write(events, line.encode())
        os.close(events)

    def _enable(self, name, value):
        with open(f"{TRACING}/events/kprobes/odp_{name}/enable", "w", encoding="ascii") as enable:
            enable.write(value)

    def count(self, name):
        with open(f"{TRACING}/kprobe_profile", encoding="ascii") as profile:
            rows = [line.split() for line in profile]
        return next(int(row[1]) + int(row[2]) for row in rows if row[0] == f"odp_{name}")

    @staticmethod
    def preempt_depths(work):
        """Returns the preemption depths (preempt_count, at most 15) at the calls during `work`.

        The result has a set of depths for each pair of function name and thread ID. The kernel
        records one less than it finds, because it assumes that the probe itself disables preemption
        (`tracing_gen_ctx_dec()`, include/linux/trace_events.h). A probe by a breakpoint does not
        disable preemption. The trace marks such a probe as a non-maskable interrupt (`z` or `Z`),
        and this method adds one to its depth."""
        with open(f"{TRACING}/trace", "w", encoding="ascii"):
            pass
        work()
        with open(f"{TRACING}/trace", encoding="ascii") as trace:
            lines = re.findall(r"-(\d+) +\[\d+\] ..(.)(.)\S* +[\d.]+: odp_(\w+): ", trace.read())
        found = {}
        for thread, context, recorded, name in lines:
            depth = int(recorded.replace(".", "0"), 16) + (context in "zZ")
            found.setdefault((name, int(thread)), set()).add(depth % 16)
        return found

    @contextlib.contextmanager
    def of_this_thread(self, name):
        """Context manager: counts calls by the calling thread only, which must be the main thread.

        Yields a function that returns the count once the context has ended."""
        event, counted = Path(f"{TRACING}/events/kprobes/odp_{name}"), 0
        with event_trigger(event, "hist:keys=common_pid"):
            yield lambda: counted
            table = (event / "hist").read_text()
        found = re.search(rf"common_pid: +{os.getpid()} .*hitcount: +(\d+)", table)
        counted = int(found[1]) if found else 0

    def __exit__(self, *_):
        for name in self.functions:
            self._enable(name, "0")
            self._append(f"-:odp_{name}\n")
