#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Netlink dumps of RDMA objects (NETLINK_RDMA, nldev.c), as `rdma resource show` requests them.

Any user may request such dumps.
"""

import socket
import struct

NETLINK_RDMA, CLIENT = 20, 5
GET, RES_QP, RES_CM_ID, RES_CQ, RES_MR, RES_PD, STAT, RES_CTX, RES_SRQ = 1, 10, 11, 12, 13, 14, 17, 22, 23
OBJECTS = {"qp": RES_QP, "cm_id": RES_CM_ID, "cq": RES_CQ, "mr": RES_MR, "pd": RES_PD, "ctx": RES_CTX, "srq": RES_SRQ}
REQUEST, REQUEST_DUMP = 1, 0x301
ERROR, DONE = 2, 3
NESTED = 0x8000
# Types of attributes (enum rdma_nldev_attr) that hold attributes, though nldev.c doesn't set
# NESTED: the tables of objects and their entries.
TABLES = {19, 20, 30, 31, 35, 36, 40, 41, 46, 47, 86, 87, 88, 89}
DEV_INDEX, DEV_NAME, PORT_INDEX, LQPN = 1, 2, 3, 21
DRIVER_STRING, DRIVER_U64, SRQN = 54, 59, 90


class Socket:
    """A netlink socket of the family NETLINK_RDMA."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_RDMA)

    def dump(self, command, device=None):
        """Requests a dump, of one device if its index is given. Returns the messages' bodies."""
        body = struct.pack("=HHI", 8, DEV_INDEX, device) if device is not None else b""
        header = struct.pack("=IHHII", 16 + len(body), CLIENT << 10 | command, REQUEST_DUMP, 0, 0)
        self.socket.send(header + body)
        bodies = []
        while True:
            received = self.socket.recv(1 << 16)
            while received:
                length, kind = struct.unpack_from("=IH", received)
                if kind == DONE:
                    return bodies
                if kind == ERROR:
                    code, = struct.unpack_from("=i", received, 16)
                    raise OSError(-code, "netlink")
                bodies.append(received[16:length])
                received = received[(length + 3) & ~3:]

    def index(self, name):
        """Returns the index of the RDMA device of this name."""
        for body in self.dump(GET):
            found = dict(flat(body))
            if found[DEV_NAME].rstrip(b"\0").decode() == name:
                return struct.unpack("=I", found[DEV_INDEX])[0]
        raise AssertionError(f"no device {name}")


def qp_request(device, number):
    """Returns the message that requests the QP with this QPN, on port 1 of a device index."""
    pairs = ((DEV_INDEX, device), (PORT_INDEX, 1), (LQPN, number))
    body = b"".join(struct.pack("=HHI", 8, kind, value) for kind, value in pairs)
    return struct.pack("=IHHII", 16 + len(body), CLIENT << 10 | RES_QP, REQUEST, 0, 0) + body


def flat(body):
    """Returns (type, bytes) of all attributes that hold no other attributes, in order."""
    found = []
    while len(body) >= 4:
        length, kind = struct.unpack_from("=HH", body)
        value = body[4:length]
        found += flat(value) if kind & NESTED or kind in TABLES else [(kind, value)]
        body = body[(length + 3) & ~3:]
    return found
