#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests that threads may modify the same QP at the same time, as uverbs allows.

Usage: modify_races.py DEVICE GID-INDEX OTHER-GID-INDEX. ib_core holds no lock then when it replaces
the GID entry of the QP's path (rdma_update_sgid_attr()), nor when it looks whether the QP has a
counter, before it binds the QP to one automatically (__rdma_counter_bind_qp()).
"""

import json
import os
import subprocess
import sys
import threading
import time

from extension import Context, Cq, Qp, gid_of, node_of
from pairs import DEVICE, GID_INDEX, become_nobody, case, equal, in_child, main

OTHER_GID_INDEX = int(sys.argv[3])
STATE, ACCESS, PKEY, PORT, AV = 1, 1 << 3, 1 << 4, 1 << 5, 1 << 7
INIT, SQD = 1, 4
THREADS, SECONDS = 3, 10


def new_qp(connect):
    context = Context(node_of(DEVICE))
    return Qp(context, Cq(context), GID_INDEX, gid_of(DEVICE, GID_INDEX), 1, connect)


def run_in_threads(works):
    """Runs each function in a thread of its own, and waits for all of them."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def change_paths():
    become_nobody()
    qp = new_qp(True)
    qp.modify(STATE, SQD)
    indices = (GID_INDEX, OTHER_GID_INDEX)
    changes = [qp.modification(AV, SQD, gid_of(DEVICE, index), index) for index in indices]
    end, counts = time.monotonic() + SECONDS, [0] * THREADS

    def change(index):
        while time.monotonic() < end:
            for number in range(50):
                os.write(qp.context.fd, changes[(index + number) % 2])
            counts[index] += 50

    run_in_threads([lambda index=index: change(index) for index in range(THREADS)])
    print(f"# {sum(counts)} changes")
    equal(all(counts), True, "each thread changes the path")


@case("modify races: concurrent changes of a QP's path leave the device its GIDs")
def paths():
    before = [gid_of(DEVICE, index) for index in (GID_INDEX, OTHER_GID_INDEX)]
    in_child(change_paths)
    equal([gid_of(DEVICE, index) for index in (GID_INDEX, OTHER_GID_INDEX)], before, "GIDs")


def is_counted(qp):
    """Returns whether the QP is bound to a counter."""
    shown = subprocess.run(["rdma", "-j", "statistic", "qp", "show"], capture_output=True, check=True, text=True).stdout
    return any(qp.number in counter.get("lqpn", []) for counter in json.loads(shown))


def move_to_init():
    become_nobody()
    context = Context(node_of(DEVICE))
    cq, end, count = Cq(context), time.monotonic() + SECONDS, 0
    start, done = threading.Barrier(2), threading.Barrier(2)
    current = [None]

    def modify():
        os.write(context.fd, current[0].modification(STATE | ACCESS | PKEY | PORT, INIT))

    def other():
        while True:
            start.wait()
            if current[0] is None:
                return
            modify()
            done.wait()

    helper = threading.Thread(target=other)
    helper.start()

    def make():
        current[0] = Qp(context, cq, 0, bytes(16), 1, False)
        start.wait()
        modify()
        done.wait()
        return current[0]

    while time.monotonic() < end:
        make().destroy()
        count += 1
    last = make()
    counted = is_counted(last)
    last.destroy()
    current[0] = None
    start.wait()
    helper.join()
    print(f"# {count} QPs")
    equal(counted, True, "the last QP is bound to a counter")


@case("modify races: two threads may move a QP to INIT at once with automatic counters")
def initialisations():
    in_child(move_to_init)


sys.exit(main())
