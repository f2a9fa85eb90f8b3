# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Functions that create, enter and remove cgroups of version 2."""

import os
import subprocess
import time


def memory_group(name):
    """Creates a cgroup with the memory controller and returns its directory."""
    return make_group(name, "memory")


def make_group(name, controller):
    """Creates a cgroup with this controller and returns its directory."""
    group = f"/sys/fs/cgroup/{name}"
    if not os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
        subprocess.run(["mount", "-t", "cgroup2", "cgroup2", "/sys/fs/cgroup"], check=True)
    with open("/sys/fs/cgroup/cgroup.subtree_control", "w", encoding="ascii") as control:
        control.write(f"+{controller}")
    os.mkdir(group)
    return group


def join(group):
    """Moves the calling process into a cgroup."""
    with open(f"{group}/cgroup.procs", "w", encoding="ascii") as processes:
        processes.write("0")


def remove_group(group):
    """Removes a cgroup as soon as its processes have ended. Fails after 20 s."""
    end = time.monotonic() + 20
    while True:
        try:
            return os.rmdir(group)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
