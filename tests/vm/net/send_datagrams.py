#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Sends UD datagrams, and waits until all have completed.

  send_datagrams.py DEVICE GID-INDEX ADDRESS COUNT LENGTH [LINE]

COUNT datagrams of LENGTH bytes go to ADDRESS. Their payload contains the line of text LINE, if it
is given.
"""

import sys

from pairs import Datagrams, wait_until_equal

ADDRESS, COUNT, LENGTH = sys.argv[3], int(sys.argv[4]), int(sys.argv[5])

sender = Datagrams()
for line in sys.argv[6:]:
    sender.buffer.fill(bytes(64) + b"\r\n" + line.encode() + b"\r\n")
# The flow label gives all datagrams the same source port, so that netfilter's connection tracking
# takes them for one connection.
handle = sender.post(ADDRESS, COUNT, LENGTH, flow_label=1)
wait_until_equal(sender.completed, COUNT, "completed datagrams")
handle.close()
