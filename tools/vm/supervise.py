#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Runs a virtual machine and decides whether the run succeeded.

usage: supervise.py --console LOG --shown-console PATH --timeout SECONDS -- QEMU ARGUMENT...

Copies the guest's output port to standard output and its console to LOG. Searches the console for
error reports of the kernel (tools/vm/splats). Exits with the exit status of the guest's script, or
with 124 if the time ran out, or with 125 if the guest's kernel or the machine itself failed.
"""

import argparse
import os
import re
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Exit statuses.
TIMED_OUT = 124
BROKEN = 125
# Limit for the guest's power off after the end of its script, in seconds.
POWER_OFF_SECONDS = 30
# Number of console lines that are shown. If the kernel reported an error before them, the lines
# from there on are shown, at most three times as many.
TAIL_LINES = 40

# Regular expressions for the lines by which a kernel reports an error.
SPLATS = (Path(__file__).parent / "splats").read_bytes().splitlines()
SPLAT = re.compile(b"|".join(line for line in SPLATS if not line.startswith(b"#")))
# Taint flags of the kernel for an oops, a warning and a lockup. Loading an out-of-tree module sets
# none of them.
TAINT_DIED, TAINT_WARNED, TAINT_LOCKUP = 1 << 7, 1 << 9, 1 << 14


class Machine:
    """A running virtual machine with its three channels: output, status, console."""

    def __init__(self, command, console_path):
        self.console = open(console_path, "wb", buffering=0)
        self.status_text = b""
        self.partial = b""
        self.splats = []
        self.selector = selectors.DefaultSelector()
        with tempfile.TemporaryDirectory(dir="/tmp") as directory:
            channels = {"output": self.on_output, "status": self.on_status, "console": self.on_console}
            listeners = {}
            for name in channels:
                path = f"{directory}/{name}"
                listeners[name] = socket.socket(socket.AF_UNIX)
                listeners[name].bind(path)
                listeners[name].listen(1)
                listeners[name].settimeout(20)
                command += ["-chardev", f"socket,id={name},path={path}"]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
            for name, receive in channels.items():
                connection = self.accept(listeners[name])
                self.selector.register(connection, selectors.EVENT_READ, receive)

    def accept(self, listener):
        """Returns QEMU's connection to a channel. QEMU makes it before the guest starts."""
        try:
            return listener.accept()[0]
        except TimeoutError:
            self.process.kill()
            sys.exit(fail(f"QEMU did not start (status {self.process.wait()})"))

    def on_output(self, received):
        while received:
            received = received[os.write(1, received):]

    def on_status(self, received):
        self.status_text += received

    def on_console(self, received):
        self.console.write(received)
        *lines, self.partial = (self.partial + received).split(b"\n")
        self.splats += [line.strip() for line in lines if SPLAT.search(line)]

    def run(self, deadline):
        """Serves the channels until all are closed; returns False if the time ran out first."""
        while self.selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if self.status_text.endswith(b"\n"):
                deadline = min(deadline, time.monotonic() + POWER_OFF_SECONDS)
            for ready, _ in self.selector.select(left):
                received = ready.fileobj.recv(65536)
                if received:
                    ready.data(received)
                else:
                    self.selector.unregister(ready.fileobj)
        return True

    def stop(self):
        self.process.kill()
        self.process.wait()
        if self.partial:
            self.on_console(b"\n")


def fail(message):
    """Prints a message and returns the exit status for a failed machine."""
    print(f"rrxe: {message}", file=sys.stderr, flush=True)
    return BROKEN


def show_console(path, shown_path):
    """Prints the console from shortly before the first error report on, or else its last lines."""
    with open(path, "rb") as file:
        lines = file.read().replace(b"\r", b"").split(b"\n")
    first = next((number for number, line in enumerate(lines) if SPLAT.search(line)), len(lines))
    start = max(0, min(first - 2, len(lines) - TAIL_LINES))
    print(f"--- guest console, {shown_path}", file=sys.stderr)
    for line in lines[start:start + 3 * TAIL_LINES]:
        print(line.decode(errors="replace"), file=sys.stderr)
    print("---", file=sys.stderr, flush=True)


def verdict(machine, in_time, timeout):
    """Returns the exit status, and a message if the guest failed, else None."""
    finished = re.fullmatch(rb"exit (\d+) taint (\d+)\n", machine.status_text)
    if machine.splats:
        first = machine.splats[0].decode(errors="replace")
        return BROKEN, f"the guest's kernel reported an error: {first}"
    if finished is None:
        if not in_time:
            return TIMED_OUT, f"the script did not end within {timeout} s: it or the guest hangs"
        return BROKEN, "the guest powered off before the script ended"
    if int(finished[2]) & (TAINT_DIED | TAINT_WARNED | TAINT_LOCKUP):
        return BROKEN, f"the guest's kernel is tainted ({int(finished[2])}): it warned, died or locked up"
    if not in_time:
        return BROKEN, "the guest did not power off after the script"
    return int(finished[1]), None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--console", required=True)
    parser.add_argument("--shown-console", required=True, help="the console's path outside the toolbox")
    parser.add_argument("--timeout", type=float, required=True)
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()

    machine = Machine(list(arguments.command), arguments.console)
    try:
        in_time = machine.run(time.monotonic() + arguments.timeout)
    finally:
        machine.stop()
    status, message = verdict(machine, in_time, arguments.timeout)
    if message:
        show_console(arguments.console, arguments.shown_console)
        fail(message)
    return status


if __name__ == "__main__":
    sys.exit(main())
