#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Hostile contexts, and programs that send as much as they can, in the background."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import nldev
from pairs import DEVICE, GID_INDEX, IS_DEBUG_KERNEL, become_nobody, equal, start_child

# The debug kernel is too slow for more.
COUNTS = (1, 2) if IS_DEBUG_KERNEL else (1, 8)
RINGER = str(Path(__file__).with_name("ringer.py"))
ENVIRONMENT = os.environ | {"RDMAV_DRIVERS": "rrxe"}
LOAD = ["rrxe-bench", "verbs", DEVICE, DEVICE, "write"]
FOREVER = "1000000000"


@contextlib.contextmanager
def running(*commands):
    """Programs in the background."""
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
def ringing(count, what):
    """Beside a process with so many contexts whose doorbells all ring."""
    with running(["python3", RINGER, DEVICE, str(GID_INDEX), str(count), what]) as (ringer,):
        equal(ringer.stdout.readline(), b"ringing\n", "the ringer")
        time.sleep(0.5)
        yield


@contextlib.contextmanager
def sending(count):
    """Beside so many processes that send as much as they can through librrxe."""
    with running(*[[*LOAD, "stream", "65536", FOREVER, "32", "8"]] * count):
        time.sleep(1)
        yield


@contextlib.contextmanager
def asking(count, number):
    """Beside so many processes of user nobody that ask for the QP of that number all the time. Yields their numbers."""
    requests = nldev.qp_request(nldev.Socket().index(DEVICE), number) * 1000

    def ask():
        become_nobody()
        asker = nldev.Socket().socket
        while True:
            # The kernel has answered all of them when it returns, and dropped most answers: nobody reads them.
            asker.send(requests)

    children = [start_child(ask) for _ in range(count)]
    try:
        time.sleep(0.5)
        yield children
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def beside_each(neighbours, measure, name):
    """Measures beside neighbours(count), of that name, of each count."""
    for count in COUNTS:
        with neighbours(count):
            measure(count, name)
