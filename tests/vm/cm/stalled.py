#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests that rrxe gives ib_cm few management datagrams while a user stops ib_cm's work queue.

Usage: stalled.py DEVICE GID-INDEX ADDRESS PEER. ADDRESS and PEER are the IPv4 addresses of host 1
and host 2.

A thread of the user takes an event of rdma_ucm to memory whose page fault is never served, and
holds a lock meanwhile. A work item of ib_cm's queue waits for that lock. The queue runs one work
item at a time on each CPU, and the machine has one CPU.
"""

import os
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import forge
import userfault
from pairs import (
    PAGE, LIMIT_SECONDS, PrivateBuffer, case, counter, equal, main, memory_with_unserved_faults,
    wait_until_equal,
)

ADDRESS, PEER = sys.argv[3:]
PORT = 7177
CREATE_ID, LISTEN, GET_EVENT, BIND, RESOLVE_ADDR = 0, 7, 12, 20, 21
TCP_PORTS, RC = 0x106, 2
RESPONSE = 360
# Number of forged datagrams. After each batch of datagrams rrxe sends ib_cm a request of its own, a
# probe (gsi/probe.rs). It takes no more datagrams while too many probes are without response. All
# forged datagrams come before rrxe forgets such a probe (TIMEOUT in gsi/cm_queue.rs), on the debug
# kernel, too.
FORGED = 2000
# Maximum number of datagrams that rrxe may take in meanwhile (gsi/cm_queue.rs): two batches of up
# to 257, because two probes to one address may be without response, and one more batch, after which
# no probe is allowed. The 30 are for connection requests, which the client repeats, and for the
# probes, which the counter includes.
MAX_TAKEN = 3 * 257 + 30


def address(host, port):
    """Returns a struct sockaddr_storage with an IPv4 address."""
    return struct.pack("=H", socket.AF_INET) + struct.pack(">H", port) + socket.inet_aton(host) + bytes(120)


class UcmaFile:
    """An open file of rdma_ucm (/dev/infiniband/rdma_cm), with some of its commands."""

    def __init__(self):
        self.fd = os.open("/dev/infiniband/rdma_cm", os.O_RDWR | os.O_CLOEXEC)

    def call(self, command, request, room=0):
        os.write(self.fd, struct.pack("=IHH", command, len(request), room) + request)

    def new_id(self):
        answer = PrivateBuffer(PAGE)
        self.call(CREATE_ID, struct.pack("=QQHB5x", 1, answer.address, TCP_PORTS, RC), 4)
        return struct.unpack("=I", answer.read(4))[0]

    def listen(self, port):
        """Creates an ID that listens on a port of ADDRESS."""
        listener = self.new_id()
        self.call(BIND, struct.pack("=IHH", listener, 16, 0) + address(ADDRESS, port))
        self.call(LISTEN, struct.pack("=II", listener, 8))

    def resolve(self):
        """Resolves PEER, which queues an event that `get_event` can take."""
        request = struct.pack("=IIHHI", self.new_id(), 2000, 16, 16, 0)
        self.call(RESOLVE_ADDR, request + address(ADDRESS, 0) + address(PEER, 0))

    def get_event(self, where):
        """Takes an event. The kernel writes it to the address `where`."""
        self.call(GET_EVENT, struct.pack("=Q", where), RESPONSE)


def stacks_of(name):
    """Returns the kernel stacks of all tasks with this text in their names."""
    texts = []
    for thread in Path("/proc").glob("[0-9]*"):
        try:
            if name in (thread / "comm").read_text():
                texts.append((thread / "stack").read_text())
        except OSError:
            continue
    return "".join(texts)


@case("stalled: rrxe passes few MADs on while ib_cm's queue is stopped")
def stalled():
    with forge.namespace("h1"):
        ucma = UcmaFile()
        ucma.listen(PORT)
        ucma.resolve()
    memory, faults = memory_with_unserved_faults(PAGE)
    taker = threading.Thread(target=ucma.get_event, args=(memory.address,))
    taker.start()
    # From here on the thread holds the mutex of the file, for which ib_cm's work item waits.
    userfault.await_fault(faults)
    command = ["ip", "netns", "exec", "h2", "rping", "-c", "-a", ADDRESS, "-p", str(PORT)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as client:
        try:
            wait_until_equal(
                lambda: "ucma_" in stacks_of("kworker"), True,
                "a connection request stops ib_cm's queue",
            )
            before = counter("rcvd_pkts"), counter("drop_rate")
            forger = Path(__file__).with_name("mads.py")
            subprocess.run([sys.executable, forger, "final", "0", "--count", str(FORGED)], check=True)
            time.sleep(1)
            taken, refused = counter("rcvd_pkts") - before[0], counter("drop_rate") - before[1]
            print(f"# {taken} datagrams were taken, and {refused} refused")
        finally:
            os.close(faults)
            client.kill()
    taker.join(LIMIT_SECONDS)
    equal(taker.is_alive(), False, "the thread in get_event still runs")
    equal(taken <= MAX_TAKEN and refused > 0, True, "few datagrams taken and others dropped")


sys.exit(main())
