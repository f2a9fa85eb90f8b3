#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Forges a connection request (REQ) to host 1 with a response timeout of 2.4 hours.

The forged neighbour on host 2 doesn't respond to the reply (REP). The program waits until ib_core
has sent the reply twice, which shows that rrxe has shortened the timeout of the request.
`rping -s -P` must listen on host 1.
"""

import socket
import struct
import subprocess
import sys

from forge import (
    GSI, GSI_QKEY, PORT, SEND_ONLY, UD, PacketSocket, bth, deth, hardware_address, namespace,
    packet, raw_address,
)

NEIGHBOUR, TARGET = "10.77.0.150", "10.77.0.1"
ETH_P_IP = 0x0800
# Service ID of librdmacm: the port space for connections (RDMA_PS_TCP), and rping's port.
SERVICE = 0x0106 << 16 | 7174
REQ, REP, REJ = 0x10, 0x13, 0x12
COMM_ID, MAX_TIMEOUT, RETRIES = 0x2E440BAD, 31, 15
# Offset of the MAD in a frame, behind Ethernet, IPv4, UDP, BTH and DETH. Offsets of the attribute
# ID and of the body in the MAD. All in bytes.
MAD, ATTRIBUTE, BODY = 14 + 20 + 8 + 12 + 8, 16, 24


def mapped_gid(address):
    """Returns the GID of an IPv4 address."""
    return b"\0" * 10 + b"\xff\xff" + raw_address(address)


def mad(attribute, body):
    head = struct.pack(">BBBBHHQHHI", 1, 7, 2, 3, 0, 0, COMM_ID, attribute, 0, 0)
    return (head + bytes(body)).ljust(256, b"\0")


def request():
    """Returns a REQ (IBTA 1.x §12.6.5) with the header of librdmacm's private data (annex A11)."""
    body = bytearray(232)
    struct.pack_into(">I", body, 0, COMM_ID)
    struct.pack_into(">QQ", body, 8, SERVICE, 0x2E4400)
    struct.pack_into(">IIB", body, 32, 0xBAD << 8 | 1, 1, 0)
    struct.pack_into(">II", body, 40, MAX_TIMEOUT << 3, 0x123456 << 8 | MAX_TIMEOUT << 3 | 7)
    # The partition key, an MTU of 1024 with unlimited RNR retries (7), and the retries of MADs.
    struct.pack_into(">HBB", body, 48, 0xFFFF, 3 << 4 | 7, RETRIES << 4)
    struct.pack_into(">HH", body, 52, 0xFFFF, 0xFFFF)
    body[56:72], body[72:88] = mapped_gid(NEIGHBOUR), mapped_gid(TARGET)
    # The rate, the hop limit, "same subnet", and the ACK timeout.
    struct.pack_into(">IBBBB", body, 88, 2, 0, 64, 1 << 3, MAX_TIMEOUT << 3)
    struct.pack_into(">BBH", body, 140, 0, 4 << 4, 7174)
    body[156:160], body[172:176] = raw_address(NEIGHBOUR), raw_address(TARGET)
    return mad(REQ, body)


def set_neighbour_entry(hardware):
    """Sets a permanent neighbour entry on host 1, as no host answers ARP for the neighbour."""
    neighbour = [NEIGHBOUR, "lladdr", hardware.hex(":"), "dev", "eth0", "nud", "permanent"]
    subprocess.run(["ip", "-n", "h1", "neigh", "replace", *neighbour], check=True)


def cm_messages(frames):
    """Yields attribute ID and body of each CM message that host 1 sends to the neighbour."""
    while True:
        frame = frames.recv(2048)
        if frame[30:34] == raw_address(NEIGHBOUR) and frame[36:38] == struct.pack(">H", PORT) and len(frame) >= MAD + 256:
            yield struct.unpack_from(">H", frame, MAD + ATTRIBUTE)[0], frame[MAD + BODY :]


def main():
    wire = PacketSocket("h2", "eth0", hardware_address("h1", "eth0"))
    with namespace("h2"):
        frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_IP))
        frames.bind(("eth0", ETH_P_IP))
    set_neighbour_entry(hardware_address("h2", "eth0"))

    wire.send(packet(NEIGHBOUR, TARGET, bth(UD | SEND_ONLY, GSI, 1) + deth(GSI_QKEY, GSI) + request()))
    replies = 0
    for attribute, body in cm_messages(frames):
        _, ours = struct.unpack_from(">II", body)
        if attribute == REJ:
            sys.exit(f"the request was rejected for reason {struct.unpack_from('>H', body, 10)[0]}")
        if attribute == REP and ours == COMM_ID:
            replies += 1
            print(f"reply {replies}", flush=True)
        if replies == 2:
            return


main()
