#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Test double for QEMU in tests of tools/vm/supervise.py (tests/suites.d/12-tools).

usage: fake_guest.py SCENARIO -chardev socket,id=NAME,path=PATH...

Connects to the socket of each channel, as QEMU does, and writes the bytes of the scenario. Then it
exits, which closes the channels. supervise.py takes that for the guest's power-off.
"""

import socket
import sys
import time

BOOTED = b"[    1.0] Run /init as init process\r\n"
# For each scenario the bytes that the guest writes to its channels, in order. A number is a pause
# in seconds. The channel "status" carries the script's exit status and the kernel's taint flags.
SCENARIOS = {
    "success": [("console", BOOTED), ("output", b"hello\n"), ("status", b"exit 0 taint 12288\n")],
    "status-3": [("output", b"\xff\x00binary\n"), ("status", b"exit 3 taint 0\n")],
    "panic": [("output", b"before\n"), ("console", b"[    2.0] Kernel panic - not syncing: gone")],
    "warning": [
        ("console", b"[    2.0] WARNING: net/core/dev.c:1 at f\r\n"),
        ("status", b"exit 0 taint 0\n"),
    ],
    "split-report": [
        ("console", b"[    2.0] BU"),
        ("console", b"G: bad page\n"),
        ("status", b"exit 0 taint 0\n"),
    ],
    "kernel-fault": [
        ("console", b"[    2.0] Oops: general protection fault, 0000 [#1]\n"),
        ("status", b"exit 0 taint 0\n"),
    ],
    "program-fault": [
        ("console", b"[    2.0] traps: a[7] general protection fault ip:7f sp:7f\n"),
        ("status", b"exit 0 taint 0\n"),
    ],
    "leak": [
        ("console", b"unreferenced object 0xffff888006 (size 64):\n"),
        ("status", b"exit 0 taint 0\n"),
    ],
    "netdev-reference": [
        ("console", b"[    2.0] ref_tracker: netdev@f has 1/1 users at\n"),
        ("status", b"exit 0 taint 0\n"),
    ],
    "slab": [
        ("console", b"[    2.0] BUG kmalloc-64 (Tainted: G O): Redzone overwritten\n"),
        ("status", b"exit 0 taint 0\n"),
    ],
    "lockdep": [
        ("console", b"[    2.0] WARNING: possible circular locking\n"),
        ("status", b"exit 0 taint 0\n"),
    ],
    "odebug": [
        ("console", b"[    2.0] ODEBUG: free active (active state 0)\n"),
        ("status", b"exit 0 taint 0\n"),
    ],
    "tainted": [("status", b"exit 0 taint 512\n")],
    "early-power-off": [("output", b"half\n")],
    "hang": [("output", b"waiting\n"), 60],
    "no-power-off": [("status", b"exit 0 taint 0\n"), 60],
}


def main():
    channels = {}
    for argument in sys.argv[2:]:
        if argument.startswith("socket,"):
            settings = dict(word.split("=", 1) for word in argument.split(",")[1:])
            channels[settings["id"]] = socket.socket(socket.AF_UNIX)
            channels[settings["id"]].connect(settings["path"])
    for step in SCENARIOS[sys.argv[1]]:
        if isinstance(step, tuple):
            channels[step[0]].sendall(step[1])
            time.sleep(0.05)
        else:
            time.sleep(step)


if __name__ == "__main__":
    main()
