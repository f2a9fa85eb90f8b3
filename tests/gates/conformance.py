# SPDX-License-Identifier: GPL-2.0
"""Checks the tables of Documentation/conformance.rst.

Each row must have a known state, and each test that it names must exist. A row is an item of a
list-table with three cells: a feature, its state, and the tests that show it. A test is named in
double backquotes in one of these ways:

    data.sh                 a guest script, tests/vm/*/data.sh
    30-sim                  a suite, tests/suites.d/30-sim
    engine: a_name          a test function of rust/roce
    kunit: a_name           a KUnit case of tests/kunit or of rust/rdma
    rrxe-check: some words  a check of tests/verbs/src/bin/rrxe-check
    pyverbs: test_name      a test or a test module of rdma-core; it must not be in the list of
                            tests that rrxe does not pass yet, tests/vm/programs/pyverbs/not-yet
"""

import re
from pathlib import Path

DOCUMENT = Path("Documentation/conformance.rst")
STATES = ("works", "untested", "missing")
ROW = re.compile(r"^   \* - (.*?)\n     - (.*?)\n     - ?(.*?)(?=^   \* - |^\S|\Z)", re.MULTILINE | re.DOTALL)


def text_of(top, folder, suffix):
    """Returns the text of all files with this suffix below a folder."""
    return "\n".join(path.read_text() for path in sorted((top / folder).rglob(f"*{suffix}")))


def check_names(source):
    """Returns patterns of the names of checks: string literals, in which `{...}` is any text.

    In a literal with fewer than eight characters outside its placeholders, a placeholder matches
    only `{}`.
    """
    patterns = []
    for literal in re.findall(r'"((?:[^"\\]|\\.)*)"', source, re.DOTALL):
        literal = re.sub(r"\\\n\s*", "", literal)
        pieces = re.split(r"\{[^{}]*\}", literal)
        any_text = ".+" if sum(map(len, pieces)) >= 8 else re.escape("{}")
        patterns.append(re.compile(any_text.join(map(re.escape, pieces))))
    return patterns


class Tests:
    """The tests of the repository."""

    def __init__(self, top):
        self.top = top
        self.engine = text_of(top, "rust/roce", ".rs")
        self.kunit = text_of(top, "tests/kunit", ".c")
        self.rdma = text_of(top, "rust/rdma", ".rs")
        self.checks = check_names(text_of(top, "tests/verbs/src/bin/rrxe-check", ".rs"))
        not_yet = top / "tests/vm/programs/pyverbs/not-yet"
        self.lacking = not_yet.read_text() if not_yet.exists() else ""

    def exists(self, name):
        """Returns whether there is a test of this name, or, for pyverbs, whether it is not in not-yet.

        The tests of rdma-core are not in this repository, so a name of pyverbs may not exist.
        """
        kind, _, rest = name.partition(": ")
        if kind == "engine":
            return re.search(rf"#\[test\]\s+(?:#\[[^\]]*\]\s+)*fn {re.escape(rest)}\(", self.engine) is not None
        if kind == "kunit":
            return f"KUNIT_CASE({rest})" in self.kunit or f"    #[test]\n    fn {rest}()" in self.rdma
        if kind == "rrxe-check":
            return any(pattern.fullmatch(rest) for pattern in self.checks)
        if kind == "pyverbs":
            return re.search(rf"\b{re.escape(rest)}\b", self.lacking) is None
        if name.endswith(".sh"):
            scripts = [path.read_text() for path in (self.top / "tests/vm").glob(f"*/{name}")]
            return any(re.search(r"^# vm:", script, re.MULTILINE) for script in scripts)
        return (self.top / "tests/suites.d" / name).is_file()


def complaints(top):
    """Returns a message for each error of the document."""
    if not (top / DOCUMENT).exists():
        return [f"{DOCUMENT} is missing"]
    rows, tests, found = ROW.findall((top / DOCUMENT).read_text()), Tests(top), []
    if not rows:
        return [f"{DOCUMENT} has no rows"]
    for feature, state, evidence in rows:
        if feature == "feature":
            continue
        names = re.findall(r"``([^`]+)``", evidence)
        if state not in STATES:
            found.append(f"{DOCUMENT}: {feature}: the state {state!r} is none of {STATES}")
        if state == "works" and not names:
            found.append(f"{DOCUMENT}: {feature}: no test shows that it works")
        found += [
            f"{DOCUMENT}: {feature}: there is no test {name!r}, or it does not pass yet"
            for name in names if not tests.exists(name)
        ]
    return found
