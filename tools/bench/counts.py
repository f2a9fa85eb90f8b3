# SPDX-License-Identifier: GPL-2.0
"""Adds up the counts of QEMU's plugin (count.c) by function and by category.

rrxe-bench executes mark 1 at the end of a case of messages. In the mode `calls` it executes mark k
at the end of each burst of the k-th verbs call. An instruction takes 1 ns of the guest's time
(`-icount shift=0`).
"""

import bisect
import collections

from categories import CATEGORIES, USER, category_of

# Addresses from this one on are the kernel's.
KERNEL = 1 << 63
# The kinds of blocks by the letters of count.c.
STRING = {"m": "movs", "s": "stos", "-": ""}
# Largest difference between the counted instructions and the measured time. The reads of the clock
# lie within the measured time, and outside of the counted interval.
TOLERANCE, TOLERANCE_NS = 0.01, 12


class Symbols:
    """The functions of the guest's kernel, from its /proc/kallsyms."""

    def __init__(self):
        self.found = {}
        self.addresses = None

    def add(self, line):
        """Adds a line `symbol ADDRESS TYPE NAME [MODULE]`. Of aliases the first one counts."""
        _, address, _, name, *module = line.split()
        self.found.setdefault(int(address, 16), (name, module[0].strip("[]") if module else ""))

    def function_at(self, address):
        """Returns name and module of the function that has an address."""
        if self.addresses is None:
            self.addresses = sorted(self.found)
        at = bisect.bisect_right(self.addresses, address) - 1
        return self.found[self.addresses[at]] if at >= 0 else ("unknown", "")


def intervals(path):
    """Yields the number of the mark and {(address, string): instructions} for each interval.

    `string` names the string instruction that these instructions are, or is "".
    """
    mark, blocks = None, None
    with open(path, encoding="ascii") as file:
        for line in file:
            words = line.split()
            if words[0] == "mark":
                if mark is not None:
                    yield mark, blocks
                mark, blocks = int(words[1]), collections.Counter()
            else:
                address, string = int(words[0], 16), STRING[words[3]]
                size, times = int(words[1]), int(words[2])
                # A string instruction is the last one of its block.
                blocks[address, string] += times
                blocks[address, ""] += (size - 1) * times
    if mark is not None:
        yield mark, blocks


def programs(rows):
    """Returns lists of the rows that one run of rrxe-bench printed.

    Each case of messages is a run. The mode `calls` prints several rows, a driver in a run.
    """
    found = []
    for row in rows:
        last = found[-1][-1] if found else None
        if last and last["pattern"] == row["pattern"] == "call" and last["driver"] == row["driver"]:
            found[-1].append(row)
        else:
            found.append([row])
    return found


def by_function(row, blocks):
    """Returns {(function, module, string): instructions} for {(address, string): instructions}."""
    functions = collections.Counter()
    for (address, string), instructions in blocks.items():
        if address < KERNEL:
            functions[USER, "", ""] += instructions
        else:
            functions[*row["symbols"].function_at(address), string] += instructions
    return functions


def shown(name, module, string):
    """Returns the name of a function in the results, with its module and string instruction."""
    return " ".join([name] + [f"[{module}]"] * bool(module) + [f"({string})"] * bool(string))


def divide(row, blocks, messages):
    """Adds to a row its instructions per message, by category and by function."""
    functions = by_function(row, blocks)
    categories = dict.fromkeys(CATEGORIES, 0)
    for (name, module, string), instructions in functions.items():
        category = USER if name == USER else category_of(name, module, string)
        categories[category] += instructions
    row["instructions"] = round(sum(blocks.values()) / messages, 2)
    row["categories"] = {name: round(value / messages, 2) for name, value in categories.items()}
    row["functions"] = {
        shown(*function): round(value / messages, 2)
        for function, value in functions.most_common() if value > messages / 2
    }


def complaint(row):
    """Returns a message if the counted instructions of a row differ from its time, else None.

    No instructions are counted while the CPU idles. The kernel's idle time has steps of a tick, so
    a short case may seem to have idled longer than it did.
    """
    time = row["ns_per_message"]
    tolerance = max(time * TOLERANCE, TOLERANCE_NS)
    if time * (1 - row.get("idle", 0)) - tolerance <= row["instructions"] <= time + tolerance:
        return None
    case = f"{row['op']} {row['size']}"
    return f"{row['instructions']} instructions were counted in {time} ns: {case}"


def add_to(rows, path):
    """Adds the counts in a file to the rows, which are in the order of their measurements.

    Returns a list of messages, which is empty if the counts fit the rows.
    """
    found, complaints = intervals(path), []
    for program in programs(rows):
        # Calls are measured in several bursts, and messages once.
        bursts = program[0]["count"] if "burst" in program[0] else 1
        by_mark = collections.defaultdict(list)
        for _ in range(bursts * len(program)):
            mark, blocks = next(found, (0, collections.Counter()))
            by_mark[mark].append(blocks)
        for mark, row in enumerate(program, 1):
            if len(by_mark[mark]) != bursts or "symbols" not in row:
                return [f"the counts of {row['op']} {row['size']} are missing"]
            # The row's figure is the median of the bursts, and so are its counts.
            blocks = sorted(by_mark[mark], key=lambda each: sum(each.values()))[bursts // 2]
            divide(row, blocks, row.get("burst") or row["count"])
            if message := complaint(row):
                complaints.append(message)
    for row in rows:
        row.pop("symbols", None)
    return complaints + ["there are counts without a row"] * (next(found, None) is not None)
