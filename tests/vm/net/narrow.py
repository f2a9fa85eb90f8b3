#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Sends UD datagrams, and waits until all have completed.

  narrow.py DEVICE GID-INDEX ADDRESS COUNT LENGTH

COUNT datagrams of LENGTH bytes go to ADDRESS.
"""

import sys

from pairs import Datagrams, wait_until_equal

ADDRESS, COUNT, LENGTH = sys.argv[3], int(sys.argv[4]), int(sys.argv[5])

sender = Datagrams()
handle = sender.post(ADDRESS, COUNT, LENGTH)
wait_until_equal(sender.completed, COUNT, "completed datagrams")
handle.close()
