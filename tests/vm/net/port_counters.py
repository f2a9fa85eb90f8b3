#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Sends PortCounters requests (performance management MADs) to QP 1 of a host, by an ordinary UDP
socket of a user without privileges.

  port_counters.py NAMESPACE SOURCE TARGET COUNT

The socket is in NAMESPACE and bound to the address SOURCE. COUNT requests go to the address TARGET.
"""

import sys

from forge import GSI, GSI_QKEY, SEND_ONLY, UD, Socket, bth, deth
from manage import PORT_COUNTERS, request


def main(namespace, source, target, count):
    sender = Socket(source, where=namespace)
    for psn in range(int(count)):
        sender.send(target,
                    bth(UD | SEND_ONLY, GSI, psn) + deth(GSI_QKEY, GSI) + request(PORT_COUNTERS))


main(*sys.argv[1:])
