#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Creates and invalidates a host's route to its peer again and again, until STOP-FILE exists.

  invalidate_routes.py STOP-FILE LOG FLUSH ARGUMENTS-OF-PATH_MTU...

A forged ICMP message (path_mtu.py) has the kernel create a route exception for the peer. The shell
word FLUSH is a whole command that invalidates the exception. The file LOG gets a line for each
invalidation.
"""

import subprocess
import sys
from pathlib import Path

import path_mtu

stop_file, log, flush, *arguments = sys.argv[1:]
with open(log, "w", encoding="ascii") as file:
    while not Path(stop_file).exists():
        path_mtu.main(*arguments)
        subprocess.run(flush.split(), check=True)
        print("invalidated", file=file, flush=True)
