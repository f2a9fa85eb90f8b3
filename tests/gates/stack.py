#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Measures how much of the kernel stack the module uses: in each function, and when it calls the
network stack to send.

The kernel stack has 16 KiB on x86-64. A container's administrator can configure network devices so
that the network stack calls itself recursively for one packet. The recursion limits of the network
stack leave the rest of the kernel stack to its first caller
(drivers/infiniband/sw/rrxe/net/outgoing.rs). This program disassembles the module. It starts at
each function that has no direct caller in the module, follows the direct calls from there to the
functions that send a packet, and adds up the stack frames on the path. It does not see calls by
pointers.

A function that is called to create an object has many callers below it, such as ib_core and netlink,
and may wait for memory. So each function has the limit that the kernel has for its functions in C
(CONFIG_FRAME_WARN), which rustc does not check.

usage: stack.py MODULE      exit status 1 if a path takes more than MAX_BYTES, if there is no path,
                            or if a function takes more than MAX_FRAME
"""
import re
import subprocess
import sys

# Limit for the stack frames of one path, in bytes. A UDP socket takes about as much of the stack
# from the system call to the IP layer.
MAX_BYTES = 2048
# Limit for the stack frame of one function, in bytes.
MAX_FRAME = 2048
SEND_FUNCTIONS = {"ip_local_out", "ip6_local_out", "__dev_queue_xmit"}
FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:$")
STACK_ALLOCATION = re.compile(r"\bsub\s+\$0x([0-9a-f]+),%rsp")
PUSH = re.compile(r"\bpush\s+%r")
CALL_RELOCATION = re.compile(r"R_X86_64_PLT32\s+(\S+?)(?:[-+]0x[0-9a-f]+)?$")
CALL_INSTRUCTION = re.compile(r"\b(?:call|jmp)\s+[0-9a-f]+ <([^+>]+)>")


def functions(module):
    """Returns for each function the bytes of its frame and return address, and its callees."""
    text = subprocess.check_output(["objdump", "-dr", "--no-show-raw-insn", module], text=True)
    frames, calls, name = {}, {}, None
    for line in text.splitlines():
        if match := FUNCTION.match(line):
            name = match[1]
            frames[name], calls[name] = 8, set()
        elif name is None:
            continue
        elif match := STACK_ALLOCATION.search(line):
            frames[name] += int(match[1], 16)
        elif PUSH.search(line):
            frames[name] += 8
        elif match := CALL_RELOCATION.search(line) or CALL_INSTRUCTION.search(line):
            calls[name].add(match[1])
    return frames, calls


def senders(calls):
    """Returns SEND_FUNCTIONS and the functions from which direct calls lead to one of them."""
    found, size = set(SEND_FUNCTIONS), 0
    while len(found) > size:
        size = len(found)
        found |= {name for name, called in calls.items() if called & found}
    return found


def deepest_path(name, frames, calls, calling_senders, on_path=frozenset()):
    """Returns the bytes and the functions of the deepest path to one of SEND_FUNCTIONS.

    `on_path` holds the functions that are already on the path. Returns None if there is no path.
    """
    if name in SEND_FUNCTIONS:
        return 0, [name]
    paths = [deepest_path(called, frames, calls, calling_senders, on_path | {name})
             for called in calls[name] & calling_senders - on_path - {name}]
    paths = [path for path in paths if path]
    if not paths:
        return None
    below, path = max(paths)
    return frames[name] + below, [name, *path]


def has_large_frames(frames):
    """Prints the functions whose frames are larger than MAX_FRAME. Returns whether there are any."""
    large = {name: size for name, size in frames.items() if size > MAX_FRAME}
    for name, size in large.items():
        print(f"{size} bytes, of {MAX_FRAME} at most for one function: {name}")
    return bool(large)


def main():
    frames, calls = functions(sys.argv[1])
    has_large = has_large_frames(frames)
    calling_senders = senders(calls)
    called = set().union(*(calls[name] - {name} for name in calling_senders - SEND_FUNCTIONS))
    first_functions = calling_senders - SEND_FUNCTIONS - called
    paths = [deepest_path(name, frames, calls, calling_senders) for name in first_functions]
    if not paths:
        print("no function of the module calls the network stack to send")
        return 1
    for size, path in sorted(paths):
        if size > MAX_BYTES or (size, path) == max(paths):
            print(f"{size} bytes, of {MAX_BYTES} at most:")
            print("".join(f"  {frames.get(name, '')} {name}\n" for name in path), end="")
    return has_large or max(paths)[0] > MAX_BYTES


if __name__ == "__main__":
    sys.exit(main())
