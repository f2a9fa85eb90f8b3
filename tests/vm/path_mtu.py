#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tells a host, by ICMP and as a stranger, that the path to its peer has a small MTU.

  path_mtu.py NAMESPACE DEVICE HARDWARE-ADDRESS STRANGER VICTIM PEER MTU

The message leaves by that device for that hardware address. It quotes an echo reply of the victim's to the peer: the
kernel sends those itself, so it believes messages about them without asking a socket.
"""

import socket
import struct
import sys

from forge import Wire, checksum, is_v6, raw_address

ECHO_REPLY, UNREACHABLE, FRAGMENTATION_NEEDED = 0, 3, 4
ECHO_REPLY_V6, PACKET_TOO_BIG = 129, 2


def ip_packet(source, target, body):
    addresses = raw_address(source) + raw_address(target)
    if is_v6(source):
        pseudo = addresses + struct.pack(">II", len(body), socket.IPPROTO_ICMPV6)
        body = body[:2] + struct.pack(">H", checksum(pseudo + body)) + body[4:]
        return struct.pack(">IHBB", 6 << 28, len(body), socket.IPPROTO_ICMPV6, 64) + addresses + body
    body = body[:2] + struct.pack(">H", checksum(body)) + body[4:]
    start = struct.pack(">BBHHHBB", 0x45, 0, 20 + len(body), 1, 0, 64, socket.IPPROTO_ICMP)
    return start + struct.pack(">H", checksum(start + bytes(2) + addresses)) + addresses + body


def main(where, device, hardware, stranger, victim, peer, mtu):
    v6 = is_v6(victim)
    echo = struct.pack(">BBHHH", ECHO_REPLY_V6 if v6 else ECHO_REPLY, 0, 0, 1, 1)
    quoted = ip_packet(victim, peer, echo)
    head = (PACKET_TOO_BIG, 0) if v6 else (UNREACHABLE, FRAGMENTATION_NEEDED)
    wire = Wire(where, device, bytes.fromhex(hardware.replace(":", "")))
    wire.send(ip_packet(stranger, victim, struct.pack(">BBHI", *head, 0, int(mtu)) + quoted))
    wire.close()


main(*sys.argv[1:])
