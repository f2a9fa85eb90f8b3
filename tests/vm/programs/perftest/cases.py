#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Prints combinations of perftest's settings, one a line, for perftest-range.sh.

    cases.py pairs      a selection in which each possible pair of settings occurs
    cases.py all        all combinations
    cases.py 300 SEED   that many combinations at random

A line has the IP version, `tcp` or `cm` (librdmacm) for the way to connect, the program, and its
arguments.
"""

import itertools
import random
import sys

DIMENSIONS = {
    "verb": ("send", "write", "read", "atomic"),
    "measure": ("bw", "lat"),
    "transport": ("RC", "UC", "UD", "XRC"),
    "mtu": (256, 512, 1024, 2048, 4096),
    "family": (4, 6),
    "wait": ("poll", "events"),
    "inline": (False, True),
    "connect": ("tcp", "cm"),
    "qps": (1, 16),
    "both_ways": (False, True),
}
TRANSPORTS = {
    "send": ("RC", "UC", "UD", "XRC"), "write": ("RC", "UC", "XRC"), "read": ("RC", "XRC"), "atomic": ("RC", "XRC"),
}
INLINE_BYTES = 64
# Number of messages in flight. perftest signals one message in DEPTH, and counts its completion for
# all of them. So the number of messages must be a multiple of DEPTH. Otherwise perftest counts too
# many, and a host that also receives may end with some of its own messages unsent.
DEPTH = 16


def is_supported(case):
    """Returns whether perftest has this combination."""
    verb, transport = case["verb"], case["transport"]
    if transport not in TRANSPORTS[verb]:
        return False
    if case["inline"] and verb in ("read", "atomic"):
        return False
    if case["measure"] == "lat" and (case["qps"] > 1 or case["both_ways"]):
        return False
    # perftest's programs for WRITE have no events.
    if verb == "write" and case["wait"] == "events":
        return False
    # librdmacm has port spaces for RC and UD, and perftest does not connect XRC by librdmacm.
    return case["connect"] == "tcp" or transport in ("RC", "UD")


def pairs_of(case):
    program = (case["verb"], case["measure"], case["transport"])
    return {program, *itertools.combinations(case.items(), 2)}


def every_case():
    for settings in itertools.product(*DIMENSIONS.values()):
        case = dict(zip(DIMENSIONS, settings))
        if is_supported(case):
            yield case


def selection():
    """Cases that cover all pairs and each program over each transport: those with the most new
    pairs first."""
    cases = list(every_case())
    random.Random(0).shuffle(cases)
    pairs = [pairs_of(case) for case in cases]
    missing = set().union(*pairs)
    while missing:
        best = max(range(len(cases)), key=lambda number: len(pairs[number] & missing))
        missing -= pairs[best]
        yield cases[best]


def perftest_arguments(case):
    """Returns perftest's arguments. Datagrams, atomics and inline messages have one packet, other
    messages have three. Few messages are in flight, because datagrams have no flow control."""
    mtu, words = case["mtu"], ["-m", case["mtu"], "-c", case["transport"], "-n", DEPTH * (6 if case["qps"] == 1 else 2)]
    if case["verb"] != "atomic":
        size = mtu if case["transport"] == "UD" else 2 * mtu + 5
        words += ["-s", INLINE_BYTES if case["inline"] else size]
    if case["verb"] in ("send", "write"):
        words += ["-I", INLINE_BYTES if case["inline"] else 0]
    if case["measure"] == "bw":
        words += ["-t", DEPTH]
    if case["wait"] == "events":
        words += ["-e"]
    if case["qps"] > 1:
        words += ["-q", case["qps"]]
    if case["both_ways"]:
        words += ["-b"]
    return words


def sample(count, seed):
    cases = list(every_case())
    return random.Random(seed).sample(cases, min(count, len(cases)))


def cases_of(which, seed="0"):
    if which.isdecimal():
        return sample(int(which), int(seed))
    return {"pairs": selection, "all": every_case}[which]()


def main():
    for case in cases_of(*sys.argv[1:]):
        program = f"ib_{case['verb']}_{case['measure']}"
        print(case["family"], case["connect"], program, *perftest_arguments(case))


if __name__ == "__main__":
    main()
