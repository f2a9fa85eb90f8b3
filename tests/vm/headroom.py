#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""What becomes of datagrams: headroom.py DEVICE GID-INDEX DESTINATION COUNTER; the counter counts all of them."""

import sys

from pairs import Datagrams, becomes, counter

DESTINATION, COUNTER = sys.argv[3:]
COUNT = 8

sender = Datagrams()
before = counter(COUNTER)
handle = sender.post(DESTINATION, COUNT)
becomes(sender.completed, COUNT, "completed datagrams")
becomes(lambda: counter(COUNTER) - before, COUNT, COUNTER)
handle.close()
