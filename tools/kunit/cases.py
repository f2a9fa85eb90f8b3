# SPDX-License-Identifier: GPL-2.0
"""cases.py RESULTS: prints a line for each test case in the JSON of kunit.py, as tests/run reads it.

Fails if RESULTS has no case.
"""

import json
import sys

OUTCOMES = {"PASS": "ok - {}", "SKIP": "ok - {} # SKIP by KUnit"}


def cases(group):
    """Yields the name and status of each case in a group of results and the groups below it."""
    for case in group["test_cases"]:
        yield f"{group['name']}.{case['name']}", case["status"]
    for below in group["sub_groups"]:
        yield from cases(below)


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        found = list(cases(json.load(file)))
    for name, status in found:
        print(OUTCOMES.get(status, "not ok - {}").format(f"kunit: {name}"))
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
