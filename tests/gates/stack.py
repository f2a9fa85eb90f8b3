#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""How much of the kernel's stack lies below the network stack when the module sends a packet.

Container administrators can have the network stack call itself for one packet; its limits leave the rest of the stack, of
16 KiB on x86-64, to those who send first (drivers/infiniband/sw/rrxe/net/outgoing.rs). This finds the calls from each function
that nobody in the module calls directly to those that send, and adds up their frames. Calls by pointers are not seen.

usage: stack.py MODULE                  exit status 1 if there is too much
"""
import re
import subprocess
import sys

# What a UDP socket takes from the system call to the IP layer is about as much.
MOST = 2048
SENDS = {"ip_local_out", "ip6_local_out", "__dev_queue_xmit"}
FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:$")
ROOM = re.compile(r"\bsub\s+\$0x([0-9a-f]+),%rsp")
PUSH = re.compile(r"\bpush\s+%r")
CALLED = re.compile(r"R_X86_64_PLT32\s+(\S+?)(?:[-+]0x[0-9a-f]+)?$")
DIRECT = re.compile(r"\b(?:call|jmp)\s+[0-9a-f]+ <([^+>]+)>")


def functions(module):
    """The bytes of each function's frame, return address included, and which functions it calls."""
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
    """The functions from which calls lead to one that sends."""
    found, size = set(SENDS), 0
    while len(found) > size:
        size = len(found)
        found |= {name for name, called in calls.items() if called & found}
    return found


def deepest(name, frames, calls, leading, above=frozenset()):
    """The most bytes from a function to one that sends, and the functions on that way."""
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
