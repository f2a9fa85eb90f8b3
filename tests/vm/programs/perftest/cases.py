#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""The range of perftest, a case a line: the IP version, `cm` or `tcp` for how it connects, the program, its arguments.

    cases.py pairs      a selection in which each two settings of two dimensions meet, wherever they may
    cases.py all        each combination there is
    cases.py 300 SEED   so many of them at random
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
# Messages in flight, of which perftest signals one in as many, and counts its completion for all of them. So messages must
# come in multiples of this: else it counts too many, and a host that also receives may leave with some of its own unsent.
DEPTH = 16


def possible(case):
    """Whether perftest has this combination."""
    verb, transport = case["verb"], case["transport"]
    if transport not in TRANSPORTS[verb]:
        return False
    if case["inline"] and verb in ("read", "atomic"):
        return False
    if case["measure"] == "lat" and (case["qps"] > 1 or case["both_ways"]):
        return False
    # Its programs for WRITE have no events.
    if verb == "write" and case["wait"] == "events":
        return False
    # librdmacm has port spaces for RC and UD, and perftest connects no XRC by it.
    return case["connect"] == "tcp" or transport in ("RC", "UD")


def pairs_of(case):
    program = (case["verb"], case["measure"], case["transport"])
    return {program, *itertools.combinations(case.items(), 2)}


def every_case():
    for settings in itertools.product(*DIMENSIONS.values()):
        case = dict(zip(DIMENSIONS, settings))
        if possible(case):
            yield case


def selection():
    """Cases that cover all pairs and each program over each transport: those with the most new pairs first."""
    cases = list(every_case())
    random.Random(0).shuffle(cases)
    pairs = [pairs_of(case) for case in cases]
    missing = set().union(*pairs)
    while missing:
        best = max(range(len(cases)), key=lambda number: len(pairs[number] & missing))
        missing -= pairs[best]
        yield cases[best]


def arguments(case):
    """perftest's arguments: messages of several packets, few in flight, for datagrams are not paced."""
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


def chosen(which, seed="0"):
    if which.isdecimal():
        return sample(int(which), int(seed))
    return {"pairs": selection, "all": every_case}[which]()


def main():
    for case in chosen(*sys.argv[1:]):
        program = f"ib_{case['verb']}_{case['measure']}"
        print(case["family"], case["connect"], program, *arguments(case))


if __name__ == "__main__":
    main()
