#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Forges management datagrams to QP 1 of host 1 or of --host: mads.py KIND RATE [OPTION...].

The datagrams come from 100 addresses of hosts that don't exist, or from --source, over the network
device of host 2. KIND:
  counters          a request for the port's counters. ib_mad responds at once
  connection        a connection request (REQ)
  answer            a response with port counters, to a request that was never sent. ib_mad doesn't
                    respond to a response
  foreign_response  a response of the class SubnAdm with the attribute ID of a connection request.
                    ib_mad delivers a response to the agent whose number is in the transaction ID
  unversioned       a request for the port's counters with a wrong base version
  final             a "ready to use" (RTU) message, which has no response
  stale             a connection request with the GUID of a device and the QPN of one of its
                    connected QPs: --claim DEVICE
RATE is the number of datagrams per second. 0 means as many as possible.
"""

import argparse
import json
import struct
import subprocess
import sys
import time
from pathlib import Path

PARSER = argparse.ArgumentParser()
KINDS = ("counters", "connection", "answer", "foreign_response", "unversioned", "final", "stale")
PARSER.add_argument("kind", choices=KINDS)
PARSER.add_argument("rate", type=float)
PARSER.add_argument("--count", type=int, help="number of datagrams after which it ends")
PARSER.add_argument("--seconds", type=float, help="seconds after which it ends")
PARSER.add_argument("--source", help="IP address of the only sender")
PARSER.add_argument(
    "--announce", action="store_true", help="sends an ARP request of the sender first")
PARSER.add_argument("--target", default="10.77.0.1")
PARSER.add_argument("--host", default="h1", help="network namespace of the target")
PARSER.add_argument("--claim", metavar="DEVICE", help="device whose GUID and QPN `stale` names")
PARSER.add_argument("--device", default="eth0", help="network device of both hosts")
OPTIONS = PARSER.parse_args()
sys.argv[1:] = []

from forge import (
    GSI, GSI_QKEY, SEND_ONLY, UD, PacketSocket, bth, deth, hardware_address, packet, raw_address,
)

NETWORK = OPTIONS.target.rpartition(".")[0]
SOURCES = [OPTIONS.source] if OPTIONS.source else [f"{NETWORK}.{host}" for host in range(100, 200)]
# Base version, management class, its version, method and attribute (IBTA 1.x §13.4.2, §16.1,
# §16.7).
HEADERS = {"counters": (1, 4, 1, 1, 0x12), "connection": (1, 7, 2, 3, 0x10), "answer": (1, 4, 1, 0x81, 0x12),
           "foreign_response": (1, 3, 2, 0x83, 0x10), "unversioned": (2, 4, 1, 1, 0x12),
           "final": (1, 7, 2, 3, 0x14), "stale": (1, 7, 2, 3, 0x10)}


def claimed_body(device):
    """Returns a part of a REQ (IBTA 1.x §12.6.5): a device's GUID and the QPN of a connected QP."""
    guid = Path(f"/sys/class/infiniband/{device}/node_guid").read_text().strip().replace(":", "")
    shown = subprocess.run(["rdma", "-j", "resource", "show", "qp", "link", device], check=True, capture_output=True)
    number = next(qp["lqpn"] for qp in json.loads(shown.stdout) if qp.get("type") == "RC" and qp.get("state") == "RTS")
    return bytes(12) + bytes.fromhex(guid) + bytes(8) + struct.pack(">I", number << 8)


CLAIMED = claimed_body(OPTIONS.claim) if OPTIONS.claim else b""


def mad(number):
    base, kind, version, method, attribute = HEADERS[OPTIONS.kind]
    transaction, body = number, struct.pack(">I", number) + CLAIMED
    if OPTIONS.kind == "counters":
        body = bytes(41) + b"\x01"
    if OPTIONS.kind == "foreign_response":
        # The upper half of the transaction ID is the number of a MAD agent, which is small. The
        # body begins with the RMPP header (IBTA 1.x §13.6.2). Its flag marks an RMPP transfer:
        # without the flag, ib_mad drops a response for which no request waits.
        transaction, body = number % 64 << 32 | number, b"\0\0\1\0"
    head = struct.pack(">BBBBHHQHHI", base, kind, version, method, 0, 0, transaction, attribute, 0, 0)
    return (head + body).ljust(256, b"\0")


def forged_packet(number):
    source = SOURCES[number % len(SOURCES)]
    return packet(source, OPTIONS.target, bth(UD | SEND_ONLY, GSI, number) + deth(GSI_QKEY, GSI) + mad(number))


def announce(wire, hardware):
    """Sends an ARP request (RFC 826), from which the target learns the sender's MAC address."""
    arp = struct.pack(">HHBBH", 1, 0x800, 6, 4, 1)
    arp += hardware + raw_address(OPTIONS.source) + bytes(6) + raw_address(OPTIONS.target)
    wire.socket.send(wire.head + b"\x08\x06" + arp)
    time.sleep(0.5)


def main():
    wire = PacketSocket("h2", OPTIONS.device, hardware_address(OPTIONS.host, OPTIONS.device))
    if OPTIONS.announce:
        announce(wire, hardware_address("h2", OPTIONS.device))
    packets, sent, begun = [forged_packet(number) for number in range(1, 1001)], 0, time.monotonic()
    while OPTIONS.count is None or sent < OPTIONS.count:
        if OPTIONS.seconds and time.monotonic() > begun + OPTIONS.seconds:
            break
        wire.send(packets[sent % len(packets)])
        sent += 1
        if OPTIONS.rate:
            time.sleep(1 / OPTIONS.rate)


main()
