#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Measures how much of the kernel stack the module uses when it calls the network stack to send.

The kernel stack has 16 KiB on x86-64. A container's administrator can configure network devices so
that the network stack calls itself recursively for one packet. The recursion limits of the network
stack leave the rest of the kernel stack to its first caller
(drivers/infiniband/sw/rrxe/net/outgoing.rs). This program disassembles the module. It follows the
direct calls from each function that no other function of the module calls directly to the functions
that send a packet, and adds up the stack frames on the way. It does not see calls by pointers.

usage: stack.py MODULE                  exit status 1 if a path takes more than MOST bytes
"""
import re
import subprocess
import sys

# Limit for the stack frames of one path, in bytes. A UDP socket takes about as much of the stack
# from the system call to the IP layer.
MOST = 2048
SENDS = {"ip_local_out", "ip6_local_out", "__dev_queue_xmit"}
FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:$")
ROOM = re.compile(r"\bsub\s+\$0x([0-9a-f]+),%rsp")
PUSH = re.compile(r"\bpush\s+%r")
CALLED = re.compile(r"R_X86_64_PLT32\s+(\S+?)(?:[-+]0x[0-9a-f]+)?$")
DIRECT = re.compile(r"\b(?:call|jmp)\s+[0-9a-f]+ <([^+>]+)>")


def functions(module):
    """Returns for each function the bytes of its frame with the return address, and its callees."""
    text = subprocess.check_output(["objdump", "-dr", "--no-show-raw-insn", module], text=True)
    frames, calls, name = {}, {}, None
    for line in text.splitlines():
        if match := FUNCTION.match(line):
            name = match[1]
            frames[name], calls[name] = 8, set()
        elif name is None:
            continue
        elif match := ROOM.search(line):
            frames[name] += int(match[1], 16)
        elif PUSH.search(line):
            frames[name] += 8
        elif match := CALLED.search(line) or DIRECT.search(line):
            calls[name].add(match[1])
    return frames, calls


def senders(calls):
    """Returns the functions from which direct calls lead to a function of SENDS."""
    found, size = set(SENDS), 0
    while len(found) > size:
        size = len(found)
        found |= {name for name, called in calls.items() if called & found}
    return found


def deepest(name, frames, calls, leading, above=frozenset()):
    """Returns the path from a function to one of SENDS that takes most stack: bytes and functions.

    `above` holds the functions that are already on the path. Returns None if there is no path.
    """
    if name in SENDS:
        return 0, [name]
    ways = [deepest(called, frames, calls, leading, above | {name})
            for called in calls[name] & leading - above - {name}]
    ways = [way for way in ways if way]
    if not ways:
        return None
    below, path = max(ways)
    return frames[name] + below, [name, *path]


def main():
    frames, calls = functions(sys.argv[1])
    leading = senders(calls)
    called = set().union(*(calls[name] - {name} for name in leading - SENDS))
    ways = [deepest(name, frames, calls, leading) for name in leading - SENDS - called]
    if not ways:
        print("nothing sends")
        return 1
    for size, path in sorted(ways):
        if size > MOST or (size, path) == max(ways):
            print(f"{size} bytes, of {MOST} at most:")
            print("".join(f"  {frames.get(name, '')} {name}\n" for name in path), end="")
    return max(ways)[0] > MOST


if __name__ == "__main__":
    sys.exit(main())
