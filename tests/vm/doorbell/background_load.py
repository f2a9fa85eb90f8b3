#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Background load for tests: hostile user contexts, and programs that send as much as they can."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import nldev
from pairs import DEVICE, GID_INDEX, IS_DEBUG_KERNEL, become_nobody, equal, start_child

# Numbers of competing contexts or processes. The debug kernel is too slow for more than two.
COUNTS = (1, 2) if IS_DEBUG_KERNEL else (1, 8)
DOORBELLS = str(Path(__file__).with_name("hostile_doorbells.py"))
ENVIRONMENT = os.environ | {"RDMAV_DRIVERS": "rrxe"}
WRITE_BENCH = ["rrxe-bench", "verbs", DEVICE, DEVICE, "write"]
ENDLESS = "1000000000"


@contextlib.contextmanager
def background(*commands):
    """Runs the commands in the background until the block ends. Yields their processes."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    programs = [subprocess.Popen(command, env=ENVIRONMENT, **pipes) for command in commands]
    try:
        yield programs
    finally:
        for program in programs:
            program.kill()
            program.wait()
            program.stdout.close()


@contextlib.contextmanager
def ringing(count, kind):
    """Runs a process with `count` contexts, all of whose doorbells ring, until the block ends.

    `kind` is the last argument of hostile_doorbells.py: bells or posts."""
    with background(["python3", DOORBELLS, DEVICE, str(GID_INDEX), str(count), kind]) as (process,):
        equal(process.stdout.readline(), b"ringing\n", "first line of hostile_doorbells.py")
        time.sleep(0.5)
        yield


@contextlib.contextmanager
def sending(count):
    """Runs `count` processes that send through librrxe as fast as they can, until the block ends."""
    with background(*[[*WRITE_BENCH, "stream", "65536", ENDLESS, "32", "8"]] * count):
        time.sleep(1)
        yield


@contextlib.contextmanager
def querying(count, qpn):
    """Runs `count` processes of the user nobody until the block ends. They query the QP of that
    number by netlink (`rdma resource show`) all the time. Yields their process IDs."""
    requests = nldev.qp_request(nldev.Socket().index(DEVICE), qpn) * 1000

    def query_forever():
        become_nobody()
        sender = nldev.Socket().socket
        while True:
            # When send() returns, the kernel has handled all requests. It has dropped most
            # responses, because the socket's receive buffer is full and is not read.
            sender.send(requests)

    children = [start_child(query_forever) for _ in range(count)]
    try:
        time.sleep(0.5)
        yield children
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def for_each_count(neighbours, measure, name):
    """Calls measure(count, name) while the context manager neighbours(count) is active, for each
    number of COUNTS."""
    for count in COUNTS:
        with neighbours(count):
            measure(count, name)
