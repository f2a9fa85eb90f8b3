#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: host
"""Prints how many functions of the driver ran in a guest, and the names of the others.

usage: coverage.py TRANSLATED OUTPUT

TRANSLATED is the log that QEMU's emulator (TCG) writes with `-d in_asm` and with `-dfilter` for the
addresses of kernel modules. It has each block of code that QEMU translated because it was about to
run. OUTPUT is the output of tests/vm/hostile/fuzz.sh with FUZZ_COVERAGE set; it has the symbols of
the module. A function that was inlined at each call has no symbol, and is not counted.
"""

import bisect
import re
import sys

SYMBOL = re.compile(r"symbol: ([0-9a-f]{16}) [tT] (\S+)\s+\[rrxe\]")
# Symbols that are not counted: code that the compiler generates, functions whose symbols name the
# core library, and code that runs when the module is loaded or unloaded.
SKIP = re.compile(r"^(__|init_module|cleanup_module|_R.*(drop_in_place|4core3fmt|_4core))|\.cold$|^[a-zA-Z.]*\d*$")


def symbols(path):
    """Returns the names of the module's functions by their addresses."""
    with open(path, encoding="utf-8", errors="replace") as file:
        found = (SYMBOL.search(line) for line in file)
        return {int(match[1], 16): match[2] for match in found if match}


def block_starts(path):
    """Returns the start addresses of the translated blocks."""
    found, after_marker = set(), False
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if after_marker and line.startswith("0x"):
                found.add(int(line[2:18], 16))
            after_marker = line.startswith("IN:")
    return found


def main(translated, output):
    """Compares the translated blocks with the module's symbols, and prints the result."""
    names = symbols(output)
    if not names:
        sys.exit("coverage.py: the output has no symbols")
    addresses = sorted(names)
    executed = set()
    for address in block_starts(translated):
        at = bisect.bisect_right(addresses, address) - 1
        if at >= 0:
            executed.add(names[addresses[at]])
    wanted = {name for name in names.values() if not SKIP.search(name)}
    print(f"functions of the driver: {len(wanted & executed)} of {len(wanted)} ran; not these:")
    for name in sorted(wanted - executed):
        print(f"  {name}")


if __name__ == "__main__":
    main(*sys.argv[1:])
