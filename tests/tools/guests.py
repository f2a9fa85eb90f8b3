#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""The guest scripts, tests/vm/*.sh, and their machines.

guests.py                      runs them on the stock kernel
guests.py --debug part|all     runs those with `vm-debug: part`, or all, on the debug kernel

A script says how it wants to be run in comment lines:

    # vm: together            it may share a boot with others of its suite (the default is a boot of its own)
    # vm: quick               it is the one of its theme that `make check` runs
    # vm: timeout=600         seconds for this script on a quiet machine (120 unless told)
    # vm: env=TYPE=rxe        a setting in its environment
    # vm: suite=testing       another Debian in the guest
    # vm: vcpus=4  append=a+b  packages=a,b  for a boot of its own: CPUs, words of the kernel's command line, packages
    # vm-debug: part          it is one of those that cost little and see much
    # vm-debug: timeout=900   seconds there (SLOWNESS times those of `# vm:` unless told)
    # vm-debug: skip why      it is not run there

Files without a `# vm:` line are not scripts to run (libraries, helpers).
"""

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
SCRIPTS = TOP / "tests/vm"
BOOT_SECONDS = 90
# A limit finds a hang, and no more. Scripts name limits for a quiet machine; a busy one is several times slower.
PATIENCE = 4
# How much longer a script takes on the debug kernel.
SLOWNESS = 5


class Script:
    """A guest script and how it wants to be run."""

    def __init__(self, path, debug):
        text = path.read_text()
        self.name = path.name
        self.words = words(text, "vm")
        self.debug_words = words(text, "vm-debug")
        skip = re.search(r"^# vm-debug: *skip (.*)$", text, re.MULTILINE)
        self.skip = skip[1] if debug and skip else None
        self.settings = settings(self.words)
        self.timeout = int(self.settings.get("timeout", "120"))
        if debug:
            self.timeout = int(settings(self.debug_words).get("timeout", self.timeout * SLOWNESS))
        self.timeout *= PATIENCE

    def job(self):
        """What run-all is told of it."""
        return f"{self.name}:{self.timeout}:{self.settings.get('env', '')}"

    def environment(self):
        """Settings of the machine for a boot of its own."""
        names = {
            "vcpus": "VCPUS", "append": "RRXE_APPEND", "packages": "GUEST_PACKAGES", "suite": "GUEST_SUITE",
            "mem": "MEM",
        }
        chosen = {names[key]: value for key, value in self.settings.items() if key in names}
        for name, separator in ("RRXE_APPEND", "+"), ("GUEST_PACKAGES", ","):
            if name in chosen:
                chosen[name] = chosen[name].replace(separator, " ")
        return chosen


def words(text, tag):
    """The words of a script's lines with this tag."""
    return [word for line in re.findall(rf"^# {tag}: *(.*)$", text, re.MULTILINE) for word in line.split()]


def settings(line):
    """Those that set something."""
    return dict(word.split("=", 1) for word in line if "=" in word)


def boot(scripts, debug):
    """Run scripts in one boot; report the one that the guest did not live to finish.

    Returns whether all went well, and those scripts that were not begun.
    """
    environment = os.environ | scripts[0].environment() | {
        "TIMEOUT": str(PATIENCE * BOOT_SECONDS * (SLOWNESS if debug else 1) + sum(script.timeout for script in scripts)),
        "RRXE_ENV": f"VM_JOBS={','.join(script.job() for script in scripts)}",
        "RRXE_KERNEL_KIND": "debug" if debug else "stock",
    }
    machine = subprocess.Popen(
        [str(TOP / "tools/rrxe"), "vm", str(SCRIPTS / "run-all")], env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    )
    began, ended = {}, set()
    for line in machine.stdout:
        print(line, end="", flush=True)
        if match := re.match(r"# (begin|end) of (\S+)", line):
            if match[1] == "begin":
                began[match[2]] = time.monotonic()
            else:
                ended.add(match[2])
                print(f"# {match[2]} took {time.monotonic() - began[match[2]]:.0f} s", flush=True)
    status = machine.wait()
    unfinished = began.keys() - ended
    left = [script for script in scripts if script.name not in began]
    if not began:
        unfinished, left = [script.name for script in scripts], []
    for name in unfinished:
        print(f"not ok - {name}: ends before the guest does", flush=True)
    if status and not unfinished:
        print(f"not ok - guest of {', '.join(sorted(ended))} stays well (status {status})", flush=True)
    return status == 0, left


def chosen(debug):
    """The scripts that are wanted, of those that RRXE_ONLY matches."""
    only = os.environ.get("RRXE_ONLY", "")
    scripts = [Script(path, bool(debug)) for path in sorted(SCRIPTS.glob("*.sh"))]
    scripts = [script for script in scripts if script.words and re.search(only, script.name)]
    if os.environ.get("RRXE_QUICK"):
        scripts = [script for script in scripts if "quick" in script.words]
    if debug == "part":
        scripts = [script for script in scripts if "part" in script.debug_words]
    return scripts


def run(scripts, debug):
    """Run scripts in as few boots as they allow; the status to exit with."""
    shared, boots, good = {}, [], True
    for script in scripts:
        if script.skip:
            print(f"ok - {script.name.removesuffix('.sh')} # SKIP {script.skip}", flush=True)
        elif "together" in script.words:
            shared.setdefault(script.settings.get("suite"), []).append(script)
        else:
            boots.append([script])
    for group in [*shared.values(), *boots]:
        while group:
            well, group = boot(group, debug)
            good = good and well
    return 0 if good else 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--debug", choices=("part", "all"))
    debug = parser.parse_args().debug
    return run(chosen(debug), bool(debug))


if __name__ == "__main__":
    sys.exit(main())
