#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Creates and invalidates a host's route to its peer again and again, until FILE exists.

  evicted.py FILE COUNTS FLUSH ARGUMENTS-OF-PATH_MTU...

A forged ICMP message (path_mtu.py) has the kernel create a route exception for the peer. The shell
word FLUSH is a whole command that invalidates it. The file COUNTS gets a line each time.
"""

import subprocess
import sys
from pathlib import Path

import path_mtu

over, counts, flush, *message = sys.argv[1:]
with open(counts, "w", encoding="ascii") as file:
    while not Path(over).exists():
        path_mtu.main(*message)
        subprocess.run(flush.split(), check=True)
        print("ended", file=file, flush=True)
