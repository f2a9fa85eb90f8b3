#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Asks QP 1 of a host for its counters, as a user's socket: asks.py NAMESPACE SOURCE TARGET COUNT."""

import sys

from forge import GSI, GSI_QKEY, SEND_ONLY, UD, Socket, bth, deth
from manage import PORT_COUNTERS, request


def main(where, source, target, count):
    asker = Socket(source, where=where)
    for psn in range(int(count)):
        asker.send(target, bth(UD | SEND_ONLY, GSI, psn) + deth(GSI_QKEY, GSI) + request(PORT_COUNTERS))


main(*sys.argv[1:])
