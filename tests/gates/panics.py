#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Finds where object files can panic: references to core's panicking functions, with their source.

What the kernel's own crate brings along when it is inlined (a vector's growth, say) isn't counted: its
authors answer for it. An overflow belongs to the innermost inlined function, and any other panic to the
innermost one outside `core`, which called for something that `core` refuses.

usage: panics.py OBJECT...              exit status 1 if there is any
"""
import re
import subprocess
import sys

RELOCATION = re.compile(r"^([0-9a-f]+) R_\w+\s+(\S+?)(?:[-+]0x[0-9a-f]+)?$")
SECTION = re.compile(r"^RELOCATION RECORDS FOR \[(.*)\]:$")
PANIC = re.compile(r"9panicking|slice_\w*_fail|mismatch_fail|unwrap_failed|expect_failed")
OURS = ("roce", "rdma", "rrxe")


def references(path):
    """(section, offset, symbol) of each reference to a panic in code."""
    text = subprocess.check_output(["objdump", "-r", path], text=True)
    section, found = "", []
    for line in text.splitlines():
        if match := SECTION.match(line):
            section = match[1]
        elif (match := RELOCATION.match(line)) and section.startswith(".text") and PANIC.search(match[2]):
            found.append((section, match[1], match[2]))
    return found


def frames(path, section, offset):
    """The functions of an address, from the innermost inlined one outwards, with their lines."""
    command = ["addr2line", "-Cfis", f"--section={section}", "-e", path, offset]
    lines = subprocess.check_output(command, text=True).split("\n")[:-1]
    return [f"{name} ({place})" for name, place in zip(lines[::2], lines[1::2])]


def crate(frame):
    """The crate of a function; methods of slices and numbers are core's."""
    match = re.match(r"<?(\w+)(?:\[\w+\])?::", frame)
    return match[1] if match else "core"


def culprit(symbol, inlined):
    """The crate that answers for a panic."""
    crates = [crate(frame) for frame in inlined]
    if "panic_const" in symbol:
        return crates[0]
    return next((name for name in crates if name != "core"), "core")


def complaints(paths):
    """One line for each place of our own in these objects that can panic.

    An address without a line number is a panic shared by several places, each of which stands for itself
    in a build without that sharing, or comes from one that does have a line.
    """
    found = []
    for path in paths:
        for section, offset, symbol in references(path):
            inlined = frames(path, section, offset)
            if culprit(symbol, inlined) in OURS and ":?)" not in inlined[0]:
                found.append(f"{symbol}: {' < '.join(inlined)}")
    return found


def main():
    found = complaints(sys.argv[1:])
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
