#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Which functions of the driver were entered: coverage.py begin | end.

`begin` puts a probe on each function of the module, whether it is loaded or not at the moment; `end` prints how many
were hit and the names of the others. Rust's functions have no ftrace entry, so these are kprobes. A function that was
inlined everywhere has no address and does not appear.
"""

import re
import sys
from pathlib import Path

TRACING = Path("/sys/kernel/tracing")
GROUP = "rrxe_fuzz"
NAMES = Path("/tmp/coverage.names")
# Glue that the compiler makes, and code that runs before and after everything.
SKIP = re.compile(r"^(__|init_module|cleanup_module|_R.*(drop_in_place|4core3fmt|_4core))|\.cold$|^[a-zA-Z.]*\d*$")


def functions():
    """Names of the module's functions, as kallsyms has them."""
    found = []
    for line in Path("/proc/kallsyms").read_text().splitlines():
        words = line.split()
        if words[1] in "tT" and words[-1] == "[rrxe]" and not SKIP.search(words[2]):
            found.append(words[2])
    return sorted(set(found))


def write(name, text):
    """Appends to a file of tracefs; whether it took it."""
    try:
        with open(TRACING / name, "a", encoding="ascii") as file:
            file.write(text)
    except OSError:
        return False
    return True


def begin():
    """Puts the probes."""
    names = [name for index, name in enumerate(functions()) if write("kprobe_events", f"p:{GROUP}/f{index} rrxe:{name}\n")]
    known = {}
    for line in (TRACING / "kprobe_events").read_text().splitlines():
        if match := re.match(rf"p\d*:{GROUP}/(f\d+) (?:rrxe:)?(\S+)", line):
            known[match[1]] = match[2].removesuffix("+0")
    NAMES.write_text("".join(f"{event} {name}\n" for event, name in known.items()))
    # The counts are in kprobe_profile; the events themselves are of no interest.
    write("tracing_on", "0")
    write(f"events/{GROUP}/enable", "1")
    print(f"# probes on {len(names)} functions")


def end():
    """Takes the probes away, and tells."""
    hits = {}
    for line in (TRACING / "kprobe_profile").read_text().splitlines():
        words = line.split()
        hits[words[0]] = int(words[1])
    known = dict(line.split() for line in NAMES.read_text().splitlines())
    never = sorted(name for event, name in known.items() if not hits.get(event))
    write(f"events/{GROUP}/enable", "0")
    print(f"# functions of the driver: {len(known) - len(never)} of {len(known)} entered; never entered:")
    for name in never:
        print(f"#   {name}")


if __name__ == "__main__":
    {"begin": begin, "end": end}[sys.argv[1]]()
