#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests that reassembly of a packet in the buffer that the driver sent does no harm.

  reassembled.py DEVICE GID-INDEX

DEVICE is a link on eth0 of namespace h1. The container, h2, rewrites a packet of h1 into a first
IPv6 fragment, in the same buffer. Connection tracking completes this fragment with a last fragment
that h2 has forged. routes.sh has made the path MTU smaller than the packet, so the packet has a
routing entry of its own. Reassembly changes the buffer's `truesize`. If the buffer had a socket,
the socket's count of bytes would become wrong, so the driver gives no buffer a socket (route.rs).
"""

import json
import struct
import subprocess
import sys

from forge import PORT, PacketSocket, ip_packet
from pairs import Datagrams, case, main, wait_until_equal

HOST, CONTAINER = "fd77::1", "fd77::2"
LENGTH, ICRC = 2048, 4
# Next-header values of a fragment header and of UDP; the M flag and the identification of
# fragments.
FRAGMENT, UDP, MORE_FRAGMENTS, IDENTIFICATION = 44, 17, 1, 0x1234
# Bytes of the packet behind its UDP header, which becomes a fragment header: BTH, DETH, payload and
# ICRC. A multiple of 8.
OFFSET = 12 + 8 + LENGTH + ICRC


def run_in_container(command):
    return subprocess.run(["ip", "netns", "exec", "h2", *command.split()], check=True,
                          capture_output=True, text=True).stdout


def complete_packets():
    """Returns the number of packets that connection tracking has passed on as complete."""
    shown = json.loads(run_in_container("tc -s -j filter show dev eth0 ingress"))
    actions = [action for entry in shown for action in entry.get("options", {}).get("actions", [])]
    return sum(action["stats"]["packets"] for action in actions if action["kind"] == "gact")


@case("a container reassembles a packet in the buffer that the driver sent")
def packet_is_reassembled():
    run_in_container("ip link add dummy0 type dummy")
    run_in_container("ip link set dummy0 up")
    run_in_container("tc qdisc add dev dummy0 clsact")
    run_in_container(
        "tc filter add dev dummy0 egress protocol ipv6 matchall action ct pipe action drop")
    run_in_container("tc qdisc add dev eth0 clsact")
    # Write 44, a fragment header, into the IPv6 header's next-header field, and turn the UDP header
    # into the fragment header of a first fragment.
    run_in_container(
        f"tc filter add dev eth0 ingress protocol ipv6 flower ip_proto udp dst_port {PORT} "
        f"action pedit munge offset 6 u8 set {FRAGMENT} "
        f"munge offset 40 u32 set {UDP << 24 | MORE_FRAGMENTS:#x} "
        f"munge offset 44 u32 set {IDENTIFICATION:#x} pipe action ct pipe action drop")
    last = struct.pack(">BBHI", UDP, 0, OFFSET, IDENTIFICATION) + bytes(904)
    wire = PacketSocket("h2", "dummy0", bytes(6))
    wire.send(ip_packet(HOST, CONTAINER, last, protocol=FRAGMENT))
    wire.close()
    sender = Datagrams()
    handle = sender.post(CONTAINER, 1, LENGTH)
    wait_until_equal(sender.completed, 1, "completions")
    handle.close()
    wait_until_equal(complete_packets, 1, "packets that are complete")


sys.exit(main())
