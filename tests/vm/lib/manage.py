#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Queries a port's speed and its performance management counters.

The counters are requested by management datagrams: ib_umad sends each from DEVICE to QP1 of the
port that has the GID.

  manage.py speed DEVICE                   prints the speed (ibv_query_port_speed) in units of
                                           100 Mb/s, and checks that there is no port 2
  manage.py counters DEVICE GID-INDEX GID  prints the data and packet counters of the port
  manage.py refused DEVICE GID-INDEX GID   checks the status of the responses to ClassPortInfo and
                                           to requests that the port can't serve
"""

import errno
import fcntl
import itertools
import os
import socket
import struct
import sys
from pathlib import Path

from pyverbs.device import Context

import uverbs
from uverbs import errno_of

ENABLE_PKEY, REGISTER_AGENT2 = 0x1B03, 0xC0281B04
TIMEOUT_MS = 60000
GSI, WELL_KNOWN_QKEY = 1, 0x80010000
PERFORMANCE, VENDOR = 0x04, 0x09
GET, SET, GET_RESPONSE = 0x01, 0x02, 0x81
CLASS_PORT_INFO, PORT_SAMPLES, PORT_COUNTERS, PORT_COUNTERS_EXTENDED = 0x0001, 0x0010, 0x0012, 0x001D
# Each request has its own transaction ID. ib_umad refuses a request with the ID of a request that
# is not completed yet, and completes a request after it has delivered the response (ib_umad_write()
# and is_duplicate(), user_mad.c).
TIDS = itertools.count(0x11223344)


class Umad:
    """An open file of ib_umad for a device, with an agent for requests of one management class."""

    def __init__(self, device, qpn, mgmt_class):
        ports = Path("/sys/class/infiniband_mad").glob("umad*/ibdev")
        (name,) = [port.parent.name for port in ports if port.read_text().strip() == device]
        self.file = os.open(f"/dev/infiniband/{name}", os.O_RDWR)
        fcntl.ioctl(self.file, ENABLE_PKEY)
        request = bytearray(struct.pack("=IIBBHIQQIB3x", 0, qpn, mgmt_class, 1, 0, 0, 0, 0, 0, 0))
        fcntl.ioctl(self.file, REGISTER_AGENT2, request, True)
        (self.agent,) = struct.unpack_from("=I", request)

    def exchange(self, index, gid, mad):
        """Sends a request to QP1 of a GID. Returns ib_umad's status and the response."""
        header = struct.pack("=IIIII", self.agent, 0, TIMEOUT_MS, 0, len(mad))
        header += struct.pack(">IIHBBBBBB16sI", GSI, WELL_KNOWN_QKEY, 0, 0, 0, 1, index, 64, 0, gid, 0)
        header += struct.pack("=H6x", 0)
        os.write(self.file, header + mad)
        reply = os.read(self.file, 4096)
        return struct.unpack_from("=4xI", reply)[0], reply[len(header):]


def request(attribute, port=1, mgmt_class=PERFORMANCE, method=GET, version=1):
    head = struct.pack(">BBBBHHQHHI", 1, mgmt_class, version, method, 0, 0, next(TIDS), attribute, 0, 0)
    return (head.ljust(64, b"\0") + bytes([0, port])).ljust(256, b"\0")


def equal(seen, wanted, what):
    if seen != wanted:
        raise SystemExit(f"{what}: {seen}, and expected {wanted}")


def get_response(umad, index, gid, mad):
    """Sends a request. Returns the status and the attribute's data of its response.

    Fails if the request is not answered, or answered by a response that doesn't belong to it.
    """
    status, response = umad.exchange(index, gid, mad)
    equal(status, 0, "ib_umad's status of the exchange")
    # ib_umad writes the agent's number into the upper half of the transaction ID.
    seen = response[1], response[3], response[12:16]
    equal(seen, (mad[1], GET_RESPONSE, mad[12:16]), "class, method and transaction")
    return struct.unpack_from(">H", response, 4)[0], response[64:]


def speed(device):
    context = Context(name=device)
    print(uverbs.query_port_speed(context))
    equal(errno_of(uverbs.query_port_speed, context, 2), errno.EINVAL, "port 2")


def counters(device, index, gid):
    umad = Umad(device, GSI, PERFORMANCE)
    for attribute in PORT_COUNTERS, PORT_COUNTERS_EXTENDED:
        status, attribute_data = get_response(umad, index, gid, request(attribute))
        equal(status, 0, "the status of the response")
        layout = ">24x4I" if attribute == PORT_COUNTERS else ">8x4Q"
        fields = struct.unpack_from(layout, attribute_data)
        names = "xmit_data", "rcv_data", "xmit_packets", "rcv_packets"
        print(*(f"{name} {value}" for name, value in zip(names, fields)))


def refused(device, index, gid):
    umad = Umad(device, GSI, PERFORMANCE)
    for what, mad, wanted in [
        ("ClassPortInfo", request(CLASS_PORT_INFO), 0),
        ("PortSamplesControl", request(PORT_SAMPLES), 3 << 2),
        ("a SET of PortCounters", request(PORT_COUNTERS, method=SET), 3 << 2),
        ("port 2", request(PORT_COUNTERS, port=2), 7 << 2),
        ("class version 2", request(PORT_COUNTERS, version=2), 1 << 2),
    ]:
        equal(get_response(umad, index, gid, mad)[0], wanted, what)
    # rrxe leaves other classes to agents of ib_mad. The vendor class has none.
    vendor = Umad(device, GSI, VENDOR)
    status = get_response(vendor, index, gid, request(1, mgmt_class=VENDOR))[0]
    equal(status, 3 << 2, "a class without an agent")
    # Ethernet has no subnet management. perfquery and similar programs, which register an agent for
    # it first, fail here.
    equal(errno_of(Umad, device, 0, 0x81), errno.EPROTONOSUPPORT, "an agent on QP0")


def main():
    what, device, *words = sys.argv[1:]
    if words:
        words = [int(words[0]), socket.inet_pton(socket.AF_INET6, words[1])]
    {"speed": speed, "counters": counters, "refused": refused}[what](device, *words)


if __name__ == "__main__":
    main()
