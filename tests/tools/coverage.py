#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: host
"""Which functions of the driver ran: coverage.py TRANSLATED OUTPUT.

TRANSLATED is what QEMU's emulation writes with `-d in_asm` and `-dfilter` for the addresses of modules: each piece of code
once it is about to run. OUTPUT is what fuzz.sh printed with FUZZ_COVERAGE: the module's symbols are in it. Prints how
many of the functions ran, and the names of the others. A function that was inlined everywhere has no symbol.
"""

import bisect
import re
import sys

SYMBOL = re.compile(r"symbol: ([0-9a-f]{16}) [tT] (\S+)\s+\[rrxe\]")
# Glue that the compiler makes, and code that runs before and after everything.
SKIP = re.compile(r"^(__|init_module|cleanup_module|_R.*(drop_in_place|4core3fmt|_4core))|\.cold$|^[a-zA-Z.]*\d*$")


def symbols(path):
    """Names by their addresses."""
    with open(path, encoding="utf-8", errors="replace") as file:
        found = (SYMBOL.search(line) for line in file)
        return {int(match[1], 16): match[2] for match in found if match}


def beginnings(path):
    """The addresses that pieces of code begin at."""
    found, begins = set(), False
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if begins and line.startswith("0x"):
                found.add(int(line[2:18], 16))
            begins = line.startswith("IN:")
    return found


def main(translated, output):
    """Compares the two."""
    names = symbols(output)
    if not names:
        sys.exit("coverage.py: the output has no symbols")
    addresses = sorted(names)
    ran = set()
    for address in beginnings(translated):
        at = bisect.bisect_right(addresses, address) - 1
        if at >= 0:
            ran.add(names[addresses[at]])
    wanted = {name for name in names.values() if not SKIP.search(name)}
    print(f"functions of the driver: {len(wanted & ran)} of {len(wanted)} ran; not these:")
    for name in sorted(wanted - ran):
        print(f"  {name}")


if __name__ == "__main__":
    main(*sys.argv[1:])
