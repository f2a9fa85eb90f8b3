#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""A container makes a fragment of a packet of this host, and completes it with a fragment of its own, in the buffer that
this host sent: reassembled.py DEVICE GID-INDEX.

DEVICE is on eth0 of h1, the container is h2. The path between them has an MTU that is smaller than the packet.
"""

import json
import struct
import subprocess
import sys

from forge import PORT, Wire, ip_packet
from pairs import Datagrams, becomes, case, main

HOST, CONTAINER = "fd77::1", "fd77::2"
LENGTH, ICRC = 2048, 4
FRAGMENT, UDP, MORE, NUMBER = 44, 17, 1, 0x1234
# A datagram's bytes between the UDP header, which becomes a fragment header, and the end. A multiple of 8.
OFFSET = 12 + 8 + LENGTH + ICRC


def box(line):
    return subprocess.run(["ip", "netns", "exec", "h2", *line.split()], check=True, capture_output=True, text=True).stdout


def completed():
    """How many whole packets connection tracking has let pass."""
    shown = json.loads(box("tc -s -j filter show dev eth0 ingress"))
    actions = [action for entry in shown for action in entry.get("options", {}).get("actions", [])]
    return sum(action["stats"]["packets"] for action in actions if action["kind"] == "gact")


@case("another host reassembles a packet of this host in this host's buffer")
def reassembled():
    box("ip link add dummy0 type dummy")
    box("ip link set dummy0 up")
    box("tc qdisc add dev dummy0 clsact")
    box("tc filter add dev dummy0 egress protocol ipv6 matchall action ct pipe action drop")
    box("tc qdisc add dev eth0 clsact")
    # Header 44 follows the IPv6 header, and the UDP header becomes one of the first fragment.
    box(f"tc filter add dev eth0 ingress protocol ipv6 flower ip_proto udp dst_port {PORT} "
        f"action pedit munge offset 6 u8 set {FRAGMENT} munge offset 40 u32 set {UDP << 24 | MORE:#x} "
        f"munge offset 44 u32 set {NUMBER:#x} pipe action ct pipe action drop")
    last = struct.pack(">BBHI", UDP, 0, OFFSET, NUMBER) + bytes(904)
    wire = Wire("h2", "dummy0", bytes(6))
    wire.send(ip_packet(HOST, CONTAINER, last, protocol=FRAGMENT))
    wire.close()
    sender = Datagrams()
    handle = sender.post(CONTAINER, 1, LENGTH)
    becomes(sender.completed, 1, "completions")
    handle.close()
    becomes(completed, 1, "packets that are complete")


sys.exit(main())
