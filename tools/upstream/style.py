#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""style.py TREE: runs the checkpatch.pl of the kernel tree TREE, which has rrxe, on each file of the driver.

A kind of complaint that is not in `EXPLAINED` fails, and so does a kind in `EXPLAINED` that no longer occurs.
"""
import re
import subprocess
import sys
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


def complaints(tree, path):
    """(line, kind, text) of each complaint about a file."""
    command = ["perl", "scripts/checkpatch.pl", "--strict", "--terse", "--show-types", "--no-summary", "-f", str(path)]
    result = subprocess.run(command, cwd=tree, text=True, capture_output=True, check=False)
    return [(int(line), kind, text) for _, line, kind, text in COMPLAINT.findall(result.stdout)]


def main():
    tree = Path(sys.argv[1])
    paths = [path for _, path in place.files(REPOSITORY) if path.suffix != ".rst"]
    found = [(path, *complaint) for path in paths for complaint in complaints(tree, path)]
    used = {
        (kind, files) for path, _, kind, _ in found for known, files in EXPLAINED
        if kind == known and re.search(files, str(path))
    }
    explained = lambda path, kind: any(kind == known and re.search(files, str(path)) for known, files in used)
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
