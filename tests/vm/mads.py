#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Forges management datagrams for host 1, from neighbours that don't exist: mads.py KIND RATE [COUNT].

KIND:
  counters    asks for the port's counters, which ib_core answers at once
  connection  asks for a connection
RATE: so many a second; 0: as many as it can. COUNT: ends after so many.
"""

import struct
import sys
import time

ARGUMENTS = sys.argv[1:]
sys.argv[1:] = []

from forge import GSI, GSI_QKEY, SEND_ONLY, UD, Wire, bth, deth, hardware_address, packet

KIND, RATE, COUNT = ARGUMENTS[0], float(ARGUMENTS[1]), int(ARGUMENTS[2]) if len(ARGUMENTS) > 2 else None
TARGET, SOURCES = "10.77.0.1", [f"10.77.0.{host}" for host in range(100, 200)]
# Management class, its version, method and attribute (IBTA 1.x §13.4.2, §16.1, §16.7).
HEADERS = {"counters": (4, 1, 1, 0x12), "connection": (7, 2, 3, 0x10)}


def mad(number):
    kind, version, method, attribute = HEADERS[KIND]
    head = struct.pack(">BBBBHHQHHI", 1, kind, version, method, 0, 0, number, attribute, 0, 0)
    body = bytes(41) + b"\x01" if KIND == "counters" else struct.pack(">I", number)
    return (head + body).ljust(256, b"\0")


def forged(number):
    source = SOURCES[number % len(SOURCES)]
    return packet(source, TARGET, bth(UD | SEND_ONLY, GSI, number) + deth(GSI_QKEY, GSI) + mad(number))


def main():
    wire = Wire("h2", "eth0", hardware_address("h1", "eth0"))
    packets, sent = [forged(number) for number in range(1, 1001)], 0
    while COUNT is None or sent < COUNT:
        wire.send(packets[sent % len(packets)])
        sent += 1
        if RATE:
            time.sleep(1 / RATE)


main()
