#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Sends UD datagrams, with a line of text in their payload.

  mangled.py DEVICE GID-INDEX ADDRESS LENGTH COUNT [LINE]

COUNT datagrams of LENGTH bytes go to ADDRESS. Waits until all have completed. See mangled.sh.
"""

import sys

from pairs import Datagrams, wait_until_equal

ADDRESS, LENGTH, COUNT = sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
sender = Datagrams()
for line in sys.argv[6:]:
    sender.buffer.fill(bytes(64) + b"\r\n" + line.encode() + b"\r\n")
# The flow label gives all datagrams the same source port, so that netfilter's connection tracking
# takes them for one connection.
handle = sender.post(ADDRESS, COUNT, LENGTH, flow_label=1)
wait_until_equal(sender.completed, COUNT, "completions")
