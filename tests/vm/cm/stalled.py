#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""A user stops ib_cm's queue, and management datagrams come all the same: stalled.py DEVICE GID-INDEX ADDRESS PEER."""

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
from pairs import DEVICE, PAGE, PATIENCE, Private, becomes, case, counter, equal, main, unanswered

ADDRESS, PEER = sys.argv[3:]
PORT = 7177
CREATE_ID, LISTEN, GET_EVENT, BIND, RESOLVE_ADDR = 0, 7, 12, 20, 21
TCP_PORTS, RC = 0x106, 2
RESPONSE = 360
# They come within the time of a probe, on the debug kernel, too.
DATAGRAMS = 2000
# Of two batches with the datagrams behind which probes come, one more batch, a request for a connection or more, and what the
# probes themselves count (gsi/cm_queue.rs).
MOST = 3 * 257 + 30


def address(host, port):
    """A struct sockaddr_storage."""
    return struct.pack("=H", socket.AF_INET) + struct.pack(">H", port) + socket.inet_aton(host) + bytes(120)


class Manager:
    """An open file of rdma_ucm, and commands of it."""

    def __init__(self):
        self.fd = os.open("/dev/infiniband/rdma_cm", os.O_RDWR | os.O_CLOEXEC)

    def call(self, command, request, room=0):
        os.write(self.fd, struct.pack("=IHH", command, len(request), room) + request)

    def new_id(self):
        answer = Private(PAGE)
        self.call(CREATE_ID, struct.pack("=QQHB5x", 1, answer.address, TCP_PORTS, RC), 4)
        return struct.unpack("=I", answer.read(4))[0]

    def listen(self, port):
        """An id that listens."""
        listener = self.new_id()
        self.call(BIND, struct.pack("=IHH", listener, 16, 0) + address(ADDRESS, port))
        self.call(LISTEN, struct.pack("=II", listener, 8))

    def resolve(self):
        """Causes an event, which waits to be taken."""
        request = struct.pack("=IIHHI", self.new_id(), 2000, 16, 16, 0)
        self.call(RESOLVE_ADDR, request + address(ADDRESS, 0) + address(PEER, 0))

    def get_event(self, where):
        """Takes an event, to that address."""
        self.call(GET_EVENT, struct.pack("=Q", where), RESPONSE)


def stack_of(name):
    """Of the kernel's threads with this text in their names, what they are in."""
    texts = []
    for thread in Path("/proc").glob("[0-9]*"):
        try:
            if name in (thread / "comm").read_text():
                texts.append((thread / "stack").read_text())
        except OSError:
            continue
    return "".join(texts)


@case("stalled: few datagrams wait while ib_cm's queue stands still")
def stalled():
    with forge.namespace("h1"):
        manager = Manager()
        manager.listen(PORT)
        manager.resolve()
    memory, faults = unanswered(PAGE)
    taker = threading.Thread(target=manager.get_event, args=(memory.address,))
    taker.start()
    # It holds the lock of the file from here on.
    userfault.await_fault(faults)
    command = ["ip", "netns", "exec", "h2", "rping", "-c", "-a", ADDRESS, "-p", str(PORT)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as client:
        try:
            becomes(lambda: "ucma_" in stack_of("kworker"), True, "a request for a connection stops the queue")
            before = counter("rcvd_pkts"), counter("drop_rate")
            forger = Path(__file__).with_name("mads.py")
            subprocess.run([sys.executable, forger, "final", "0", "--count", str(DATAGRAMS)], check=True)
            time.sleep(1)
            taken, refused = counter("rcvd_pkts") - before[0], counter("drop_rate") - before[1]
            print(f"# {taken} datagrams were taken, and {refused} refused")
        finally:
            os.close(faults)
            client.kill()
    taker.join(PATIENCE)
    equal(taker.is_alive(), False, "the call goes on for ever")
    equal(taken <= MOST and refused > 0, True, "few were taken")


sys.exit(main())
