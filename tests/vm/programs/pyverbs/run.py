#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Runs rdma-core's own pyverbs tests over a device, and prints one result line for each test.

    run.py DEVICE GID-INDEX KIND EXPECTED NOT-YET [PATTERN]

KIND is `rrxe` (rrxe through librxe), `plugin` (rrxe through librrxe) or `rxe` (the C driver). The
tests are those of Debian's rdma-core package, so they fit the installed libraries. PATTERN, a
regular expression, selects tests by their names. A test must pass unless a line of these files
excuses it:

    EXPECTED    both NAME why   The test cannot run, and must be skipped. But if `why` begins with
                                `plugin`, it must run and pass with KIND `plugin`.
                rxe NAME why    With KIND `rxe` it need not pass. Otherwise it must.
                both * why      The list is of another version, so all tests may be skipped.
    NOT-YET     NAME why        With KIND `rrxe` or `plugin` it need not pass yet. If it passes, the
                                line must be deleted.

One process runs the tests. If a test takes too long or ends that process, the test has failed, and
another process runs the remaining tests.
"""

import gc
import gzip
import importlib
import multiprocessing
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

SOURCE = Path("/usr/share/doc/rdma-core/tests")
# Tests of other vendors' hardware. Without that hardware one of them ends the process.
OTHER_VENDORS = re.compile(r"test_(mlx5|efa|cuda|hns|irdma|mana|zxdh)")
TEST_SECONDS = float(os.environ.get("PYVERBS_TEST_SECONDS", "60"))


def unpack(target):
    """Copies the tests to the folder `target`, so that Python can import them. The package has
    compressed some."""
    target.mkdir()
    for path in SOURCE.iterdir():
        if OTHER_VENDORS.match(path.name):
            continue
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        (target / path.name.removesuffix(".gz")).write_bytes(content)


def flatten(suite):
    for entry in suite:
        if isinstance(entry, unittest.TestSuite):
            yield from flatten(entry)
        else:
            yield entry


class Reporter(unittest.TestResult):
    """Reports the begin and the outcome of each test to the parent process, through a pipe."""

    def __init__(self, pipe):
        super().__init__()
        self.pipe = pipe

    def report(self, *words):
        line = "\t".join(" ".join(str(word).split("\n")) for word in words)
        os.write(self.pipe, (line + "\n").encode())

    def startTest(self, test):
        super().startTest(test)
        self.outcome = ("ok", "")
        self.report("begin", test.id())

    def stopTest(self, test):
        super().stopTest(test)
        self.report("end", test.id(), *self.outcome)

    def fail_test(self, test, error):
        text = self._exc_info_to_string(error, test)
        self.outcome = ("fail", text.replace("\n", "\v"))

    def addError(self, test, err):
        self.fail_test(test, err)

    def addFailure(self, test, err):
        self.fail_test(test, err)

    def addSubTest(self, test, subtest, err):
        if err:
            self.fail_test(test, err)

    def addSkip(self, test, reason):
        self.outcome = ("skip", reason)

    def addUnexpectedSuccess(self, test):
        self.outcome = ("fail", "unexpected success")


def run_worker(folder, device, gid, pipe):
    """Runs the tests whose names come on standard input, in this process. Lists all tests if the
    only name is `list`."""
    # pyverbs crashes if objects of a reference cycle are freed in the wrong order. So the garbage
    # collector is disabled, and such objects stay.
    gc.disable()
    # Some tests run parts in other processes, and expect these to have all objects of the test.
    multiprocessing.set_start_method("fork")
    wanted = sys.stdin.read().split()
    sys.path[0:0] = [str(folder), str(folder.parent)]
    sys.argv[1:] = ["--dev", device, "--port", "1", "--gid", gid]
    from args_parser import parser  # the tests' own

    parser.parse_args()
    importlib.import_module("tests")
    modules = [importlib.import_module(f"tests.{path.stem}") for path in sorted(folder.glob("test_*.py"))]
    loader = unittest.TestLoader()
    # A test class that a module imports from another module is found in both, under one name.
    tests = {test.id(): test for module in modules for test in flatten(loader.loadTestsFromModule(module))}
    reporter = Reporter(pipe)
    if wanted == ["list"]:
        for name in tests:
            reporter.report("name", name)
    else:
        # The suite drops each test after it has run. This function must drop them, too. Otherwise
        # objects of a test outlive their device.
        suite = unittest.TestSuite([tests[name] for name in wanted])
        tests.clear()
        suite.run(reporter)
    reporter.report("done")
    os._exit(0)


class Worker:
    """The process that runs tests, and its output."""

    def __init__(self, folder, device, gid, names):
        read, write = os.pipe()
        self.output = tempfile.TemporaryFile()
        command = [sys.executable, "-B", __file__, "--work", str(folder), device, gid, str(write)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=self.output, stderr=subprocess.STDOUT,
            pass_fds=[write], start_new_session=True,
        )
        os.close(write)
        self.process.stdin.write("\n".join(names).encode())
        self.process.stdin.close()
        self.pipe, self.partial, self.lines = read, b"", []
        self.selector = selectors.DefaultSelector()
        self.selector.register(read, selectors.EVENT_READ)

    def line(self, deadline):
        """Returns the words of the next line of the pipe: None if there is none before the
        deadline, [] if the process has ended."""
        while not self.lines:
            if not self.selector.select(max(0, deadline - time.monotonic())):
                return None
            received = os.read(self.pipe, 65536)
            if not received:
                return []
            *lines, self.partial = (self.partial + received).split(b"\n")
            self.lines += [line.decode(errors="replace").split("\t") for line in lines]
        return self.lines.pop(0)

    def stop(self):
        """Ends the process and its children. Returns its standard output."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        os.close(self.pipe)
        self.output.seek(0)
        return self.output.read().decode(errors="replace")


def list_tests(folder, device, gid):
    worker = Worker(folder, device, gid, ["list"])
    names = []
    while words := worker.line(time.monotonic() + TEST_SECONDS):
        if words[0] == "done":
            worker.stop()
            return names
        names.append(words[1])
    print(worker.stop())
    sys.exit("the tests can't be loaded")


def run_tests(folder, device, gid, names):
    """Runs the named tests, and yields (name, outcome, reason, seconds) for each."""
    remaining = list(names)
    while remaining:
        worker = Worker(folder, device, gid, remaining)
        current, began = None, time.monotonic()
        while True:
            words = worker.line(began + TEST_SECONDS)
            if words and words[0] == "begin":
                current, began = words[1], time.monotonic()
                if current in remaining:
                    remaining.remove(current)
            elif words and words[0] == "end":
                yield current, words[2], words[3], time.monotonic() - began
                current, began = None, time.monotonic()
            else:
                break
        printed = worker.stop().replace("\n", "\v")
        if words and words[0] == "done":
            yield from ((name, "fail", "was not run", 0) for name in remaining)
            return
        why = "hangs" if words is None else f"takes the process down (status {worker.process.returncode})"
        reason, seconds = f"{why}\v{printed[-2000:]}", time.monotonic() - began
        yield current or remaining.pop(0), "fail", reason, seconds


def lines(path):
    """Returns the lines of a file that are neither empty nor comments."""
    return [line for line in Path(path).read_text().splitlines() if line and not line.startswith("#")]


def read_expectations(kind, expected, not_yet):
    """Returns the tests that need not pass: {name: (what, why)}. `what` is `skip` (must be
    skipped), `any` (any outcome) or `later` (listed in NOT-YET)."""
    found = {}
    for line in lines(not_yet) if kind != "rxe" else []:
        name, why = line.split(maxsplit=1)
        found[name] = ("later", f"not yet: {why}")
    for line in lines(expected):
        kinds, name, why = line.split(maxsplit=2)
        if kinds == "both" and kind == "plugin" and why.startswith("plugin"):
            continue
        if kinds == "both":
            found[name] = ("skip", why)
        elif kind == "rxe":
            found[name] = ("any", why)
    return found


def result_lines(name, outcome, reason, expected):
    """Returns the result lines of a test."""
    what, why = expected.get(name, ("pass", ""))
    short = name.removeprefix("tests.")
    if "*" in expected and (outcome, what) == ("skip", "pass"):
        what, why = expected["*"]
    if outcome == "ok" and what in ("skip", "later") and "*" not in expected:
        return [f"not ok - {short} passes: take its line out of the expectations"]
    if outcome == "ok":
        return [f"ok - {short}"]
    if what in ("any", "later") or (outcome, what) == ("skip", "skip"):
        return [f"ok - {short} # SKIP {why}"]
    return [f"not ok - {short}", f"#   {outcome}", *(f"#   {line}" for line in reason.rstrip("\v").split("\v"))]


def main():
    device, gid, kind, *files, pattern = [*sys.argv[1:], ""][:6]
    expected = read_expectations(kind, *files)
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory) / "tests"
        unpack(folder)
        existing = list_tests(folder, device, gid)
        selected = [name for name in existing if re.search(pattern, name)]
        failed = False
        for name, outcome, reason, seconds in run_tests(folder, device, gid, selected):
            results = result_lines(name, outcome, reason, expected)
            print("\n".join(results), flush=True)
            if os.environ.get("PYVERBS_TIMES"):
                print(f"# {seconds:.1f} s {outcome} {name}: {reason.split(chr(11))[0]}", flush=True)
            failed |= results[0].startswith("not ")
    # A test of NOT-YET need not exist: it may be a test of another version.
    must_exist = [] if "*" in expected else [name for name, (what, _) in expected.items() if what != "later"]
    for name in sorted(set(must_exist) - set(existing)):
        print(f"not ok - {name} exists: it is in the expectations")
        failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        run_worker(Path(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]))
    else:
        sys.exit(main())
