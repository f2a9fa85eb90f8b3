#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""style.py TREE: runs the checkpatch.pl of the kernel tree TREE, which contains rrxe, on each file of
the driver.

Fails if a kind of complaint occurs that is not in `EXPLAINED`, or if a kind in `EXPLAINED` no longer
occurs.
"""
import itertools
import os
import re
import subprocess
import sys
from multiprocessing.pool import ThreadPool
from pathlib import Path

import place

REPOSITORY = Path(__file__).resolve().parents[2]
# (kind of complaint, files): why it stays
EXPLAINED = {
    ("COMPLEX_MACRO", r"include/trace/"): "the lists of __print_symbolic() are no expressions",
    ("LONG_LINE_STRING", r"/lib\.rs$"): "descriptions of module parameters, each one string for modinfo",
    ("OPEN_ENDED_LINE", r"include/trace/"): "the form of TRACE_EVENT() everywhere in the kernel",
    ("PARENTHESIS_ALIGNMENT", r"include/trace/"): "the form of TRACE_EVENT() everywhere in the kernel",
    ("REPEATED_WORD", r"qp/state\.rs$"): "pairs of states, such as (Reset, Reset)",
}
COMPLAINT = re.compile(r"^(.*?):(\d+): (?:ERROR|WARNING|CHECK):(\w+): (.*)$", re.M)


def complaints(tree, paths):
    """Returns (path, line, kind, text) of each complaint about some files."""
    command = ["perl", "scripts/checkpatch.pl", "--strict", "--terse", "--show-types", "--no-summary", "-f", *map(str, paths)]
    result = subprocess.run(command, cwd=tree, text=True, capture_output=True, check=False)
    return [(path, int(line), kind, text) for path, line, kind, text in COMPLAINT.findall(result.stdout)]


def main():
    tree = Path(sys.argv[1])
    paths = [path for _, path in place.files(REPOSITORY) if path.suffix != ".rst"]
    # One process for each CPU: checkpatch.pl takes a second for a file, and one at a time is slow.
    processes = os.cpu_count() or 1
    with ThreadPool(processes) as pool:
        results = pool.starmap(complaints, [(tree, paths[first::processes]) for first in range(processes)])
    found = sorted(itertools.chain(*results))
    used = {
        (kind, files) for path, _, kind, _ in found for known, files in EXPLAINED
        if kind == known and re.search(files, path)
    }
    explained = lambda path, kind: any(kind == known and re.search(files, path) for known, files in used)
    new = [complaint for complaint in found if not explained(complaint[0], complaint[2])]
    unused = sorted(set(EXPLAINED) - used)
    print(f"{'not ok' if new or unused else 'ok'} - upstream: checkpatch.pl --strict finds nothing that is not explained")
    for path, line, kind, text in new[:50]:
        print(f"# {path}:{line}: {kind}: {text}")
    for kind, files in unused:
        print(f"# no file {files} is {kind} any more")
    return bool(new or unused)


if __name__ == "__main__":
    sys.exit(main())
