#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Configures a WireGuard device by generic netlink, as wg(8) does.

    wireguard.py DEVICE HOST ENDPOINT PORT

HOST is 1 or 2. The other host is the only peer. Its endpoint is the IPv4 address ENDPOINT and PORT,
and it may use all addresses in the tunnel.
"""

import socket
import struct
import sys

NETLINK_GENERIC, CONTROL, REQUEST, ACK, ERROR = 16, 0x10, 1, 4, 2
NESTED = 1 << 15
GET_FAMILY, FAMILY_ID, FAMILY_NAME = 3, 1, 2
SET_DEVICE = 1
DEVICE_NAME, DEVICE_PRIVATE_KEY, DEVICE_LISTEN_PORT, DEVICE_PEERS = 2, 3, 6, 8
PEER_PUBLIC_KEY, PEER_ENDPOINT, PEER_ALLOWED = 1, 4, 9
ALLOWED_FAMILY, ALLOWED_ADDRESS, ALLOWED_MASK = 1, 2, 3
# The private and the public key of each host, for this test only.
KEYS = {
    1: ("c023467df8a30853fea1991c1d4be72b1697029da466d621a100f4c91e6ae378",
        "9759a4d79e48a5dc269c2c0fd0ad49fdbc9df82b67b2698e4b9b0d3ac707bb32"),
    2: ("889b3f736c8ed1dd57ee88bccadba453238cc7366574c5daf533d229e3586e48",
        "937dffcb5281b80a630452a45ca14db3923e899c934cfa1f249008988a442e6d"),
}


def attribute(kind, value):
    return struct.pack("=HH", len(value) + 4, kind) + value + bytes(-len(value) % 4)


def call(sock, family, command, attributes):
    """Sends a request and returns the payload of the response, behind its headers. It is empty if
    the response is an acknowledgment only."""
    body = struct.pack("=BBH", command, 1, 0) + attributes
    sock.send(struct.pack("=IHHII", 16 + len(body), family, REQUEST | ACK, 1, 0) + body)
    answer = sock.recv(65536)
    if struct.unpack_from("=H", answer, 4)[0] == ERROR:
        code = struct.unpack_from("=i", answer, 16)[0]
        if code:
            raise OSError(-code, "netlink")
        return b""
    sock.recv(65536)
    return answer[20:]


def family_of(sock, name):
    answer = call(sock, CONTROL, GET_FAMILY, attribute(FAMILY_NAME, name.encode() + b"\0"))
    while answer:
        length, kind = struct.unpack_from("=HH", answer)
        if kind == FAMILY_ID:
            return struct.unpack_from("=H", answer, 4)[0]
        answer = answer[(length + 3) & ~3:]
    raise LookupError(name)


def main():
    device, host, endpoint, port = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    private, public = KEYS[host][0], KEYS[3 - host][1]
    allowed = b"".join(
        attribute(NESTED, attribute(ALLOWED_FAMILY, struct.pack("=H", family))
                  + attribute(ALLOWED_ADDRESS, bytes(size)) + attribute(ALLOWED_MASK, b"\0"))
        for family, size in ((socket.AF_INET, 4), (socket.AF_INET6, 16)))
    address = struct.pack("=H", socket.AF_INET) + struct.pack(">H", port)
    address += socket.inet_aton(endpoint) + bytes(8)
    peer = (attribute(PEER_PUBLIC_KEY, bytes.fromhex(public)) + attribute(PEER_ENDPOINT, address)
            + attribute(PEER_ALLOWED | NESTED, allowed))
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_GENERIC)
    sock.bind((0, 0))
    call(sock, family_of(sock, "wireguard"), SET_DEVICE,
         attribute(DEVICE_NAME, device.encode() + b"\0")
         + attribute(DEVICE_PRIVATE_KEY, bytes.fromhex(private))
         + attribute(DEVICE_LISTEN_PORT, struct.pack("=H", port))
         + attribute(DEVICE_PEERS | NESTED, attribute(NESTED, peer)))


main()
