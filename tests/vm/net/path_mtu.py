#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Sends a forged ICMP message ("fragmentation needed" or "packet too big") with a small path MTU.

  path_mtu.py NAMESPACE DEVICE MAC-ADDRESS STRANGER VICTIM PEER MTU

The message says that the path from the address VICTIM to the address PEER has this MTU. Its source
is the address STRANGER. It leaves through the network device DEVICE of NAMESPACE for the MAC
address MAC-ADDRESS. It quotes an echo reply from VICTIM to PEER. The kernel itself sends echo
replies, so it accepts messages about them without asking a socket.
"""

import socket
import struct
import sys

from forge import PacketSocket, checksum, ip_packet, is_v6, raw_address

ECHO_REPLY, UNREACHABLE, FRAGMENTATION_NEEDED = 0, 3, 4
ECHO_REPLY_V6, PACKET_TOO_BIG = 129, 2


def icmp_packet(source, target, body):
    """Returns the IP packet of an ICMP message. Computes the message's checksum."""
    covered, protocol = body, socket.IPPROTO_ICMP
    if is_v6(source):
        protocol = socket.IPPROTO_ICMPV6
        covered = raw_address(source) + raw_address(target) + struct.pack(">II", len(body), protocol) + body
    body = body[:2] + struct.pack(">H", checksum(covered)) + body[4:]
    return ip_packet(source, target, body, protocol=protocol)


def main(namespace, device, mac_address, stranger, victim, peer, mtu):
    v6 = is_v6(victim)
    echo = struct.pack(">BBHHH", ECHO_REPLY_V6 if v6 else ECHO_REPLY, 0, 0, 1, 1)
    quoted = icmp_packet(victim, peer, echo)
    head = (PACKET_TOO_BIG, 0) if v6 else (UNREACHABLE, FRAGMENTATION_NEEDED)
    wire = PacketSocket(namespace, device, bytes.fromhex(mac_address.replace(":", "")))
    wire.send(icmp_packet(stranger, victim, struct.pack(">BBHI", *head, 0, int(mtu)) + quoted))
    wire.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
