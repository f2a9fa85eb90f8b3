# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Probes on functions of the kernel."""

import contextlib
import os
import re
import subprocess

TRACING = "/sys/kernel/tracing"


class Calls:
    """Counts calls of functions of the kernel, all that there are meanwhile."""

    def __init__(self, *functions):
        self.functions = functions

    def __enter__(self):
        if not os.path.exists(f"{TRACING}/kprobe_events"):
            subprocess.run(["mount", "-t", "tracefs", "tracefs", TRACING], check=True)
        for name in self.functions:
            self._append("kprobe_events", f"p:odp_{name} {name}\n")
            self._enable(name, "1")
        return self

    @staticmethod
    def _append(name, line):
        # Python's own modes seek to the end, which the files refuse, or take away what is there.
        file_ = os.open(f"{TRACING}/{name}", os.O_WRONLY | os.O_APPEND)
        os.write(file_, line.encode())
        os.close(file_)

    def _enable(self, name, value):
        with open(f"{TRACING}/events/kprobes/odp_{name}/enable", "w", encoding="ascii") as enable:
            enable.write(value)

    def count(self, name):
        with open(f"{TRACING}/kprobe_profile", encoding="ascii") as profile:
            rows = [line.split() for line in profile]
        return next(int(row[1]) + int(row[2]) for row in rows if row[0] == f"odp_{name}")

    @contextlib.contextmanager
    def of_this_process(self, name):
        """Counts those of this process's thread only, and yields the function that tells how many."""
        directory, trigger = f"events/kprobes/odp_{name}", "hist:keys=common_pid"
        counted = 0
        self._append(f"{directory}/trigger", trigger)
        try:
            yield lambda: counted
        finally:
            self._append(f"{directory}/trigger", f"{trigger}:pause")
            with open(f"{TRACING}/{directory}/hist", encoding="ascii") as file_:
                found = re.search(rf"common_pid:\s+{os.getpid()}\s.*hitcount:\s+(\d+)", file_.read())
            counted = int(found[1]) if found else 0
            self._append(f"{directory}/trigger", f"!{trigger}")

    def __exit__(self, *_):
        for name in self.functions:
            self._enable(name, "0")
            self._append("kprobe_events", f"-:odp_{name}\n")
