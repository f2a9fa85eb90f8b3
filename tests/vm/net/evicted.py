#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Has a host's routes to a peer end, until a file is there: evicted.py FILE COUNTS FLUSH ARGUMENTS-OF-PATH_MTU...

A forged message makes a route for the peer alone. FLUSH, a command in one word, ends it. COUNTS gets a line each time."""

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
