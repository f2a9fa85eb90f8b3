#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Builds Ethernet frames, and sends them with AF_PACKET sockets on eth0 of the namespaces h1 and
h2. A veth pair connects the two network devices."""

import socket
import struct

import forge

# MAC addresses of a host that doesn't exist, and of a multicast group.
OTHER_MAC, GROUP_MAC = bytes.fromhex("020000000007"), bytes.fromhex("01005e000009")
HOST1, HOST2 = "10.77.0.1", "10.77.0.2"


def socket_in(namespace, *arguments):
    """Returns a new socket in a network namespace."""
    with forge.namespace(namespace):
        return socket.socket(*arguments)


# All frames that the tests sent. Any other frame is the hosts' own traffic, such as a neighbour
# solicitation, which may come at any time.
sent = set()


class PacketSocket:
    """An AF_PACKET socket on eth0 of a host. Its frames arrive at the other host's eth0."""

    def __init__(self, namespace):
        self.socket = socket_in(namespace, socket.AF_PACKET, socket.SOCK_RAW, 0)
        self.socket.bind(("eth0", 0))
        self.mac = self.socket.getsockname()[4]

    def send(self, frame):
        sent.add(frame)
        self.socket.send(frame)


PEER, LOCAL = PacketSocket("h2"), PacketSocket("h1")


def ethernet(ether_type=0x88B5, dst=LOCAL.mac, src=PEER.mac, tags=()):
    tag_bytes = b"".join(struct.pack("!HH", 0x8100, tag) for tag in tags)
    return dst + src + tag_bytes + struct.pack("!H", ether_type)


def ipv4(protocol=17, src=HOST2, dst=HOST1, tos=0, ttl=9, flags=0, offset=0, options=b""):
    addresses = socket.inet_aton(src) + socket.inet_aton(dst)
    first = 0x45 + len(options) // 4
    return struct.pack("!BBHHHBBH", first, tos, 60, 7, flags << 13 | offset, ttl, protocol, 0) + addresses + options


def ipv6(next_header=17, src="fd77::2", dst="fd77::1", traffic_class=0, label=0, hop_limit=9):
    addresses = socket.inet_pton(socket.AF_INET6, src) + socket.inet_pton(socket.AF_INET6, dst)
    return struct.pack("!IHBB", 6 << 28 | traffic_class << 20 | label, 30, next_header, hop_limit) + addresses


def ports(src=1000, dst=2000):
    return struct.pack("!HH", src, dst)


def unique_frame(*parts):
    """Returns a frame of at least Ethernet's minimum length, with a unique number."""
    unique_frame.number += 1
    return b"".join(parts) + b"frame %08d" % unique_frame.number + bytes(40)


unique_frame.number = 0
