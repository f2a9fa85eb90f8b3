#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Finds the code of object files that can panic.

Prints each reference to a panicking function of Rust's `core`, with the functions whose code it is
in. Only panics of this project's crates count. Code of the `kernel` crate that was inlined into
them (such as the growth of a vector) does not count. A panic of arithmetic (an overflow, a division
by zero) belongs to the crate of the innermost inlined function. Any other panic belongs to the
crate of the innermost function outside `core`, because that function called `core` with arguments
that `core` refuses.

usage: panics.py OBJECT...              exit status 1 if it finds a panic
"""
import re
import subprocess
import sys

RELOCATION = re.compile(r"^([0-9a-f]+) R_\w+\s+(\S+?)(?:[-+]0x[0-9a-f]+)?$")
SECTION = re.compile(r"^RELOCATION RECORDS FOR \[(.*)\]:$")
PANIC = re.compile(r"9panicking|slice_\w*_fail|mismatch_fail|unwrap_failed|expect_failed")
OUR_CRATES = ("roce", "rdma", "rrxe")


def references(path):
    """Returns (section, offset, symbol) of each relocation in code that refers to a panic."""
    text = subprocess.check_output(["objdump", "-r", path], text=True)
    section, found = "", []
    for line in text.splitlines():
        if match := SECTION.match(line):
            section = match[1]
        elif (match := RELOCATION.match(line)) and section.startswith(".text") and PANIC.search(match[2]):
            found.append((section, match[1], match[2]))
    return found


def frames(path, section, offset):
    """Returns the functions at an address with their source lines, the innermost inlined first."""
    command = ["addr2line", "-Cfis", f"--section={section}", "-e", path, offset]
    lines = subprocess.check_output(command, text=True).split("\n")[:-1]
    return [f"{name} ({place})" for name, place in zip(lines[::2], lines[1::2])]


def crate(frame):
    """Returns the crate of a function. Methods of slices and numbers belong to `core`."""
    match = re.match(r"<?(\w+)(?:\[\w+\])?::", frame)
    return match[1] if match else "core"


def responsible_crate(symbol, inlined):
    """Returns the crate that a panic belongs to."""
    crates = [crate(frame) for frame in inlined]
    if "panic_const" in symbol:
        return crates[0]
    return next((name for name in crates if name != "core"), "core")


def complaints(paths):
    """Returns a line for each place in this project's crates that can panic.

    An address without a line number is skipped. There the compiler has merged the calls of a
    panicking function from several places. A build without such merging has one address, with a
    line number, for each place.
    """
    found = []
    for path in paths:
        for section, offset, symbol in references(path):
            inlined = frames(path, section, offset)
            if responsible_crate(symbol, inlined) in OUR_CRATES and ":?)" not in inlined[0]:
                found.append(f"{symbol}: {' < '.join(inlined)}")
    return found


def main():
    found = complaints(sys.argv[1:])
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
