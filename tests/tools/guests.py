#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""The guest scripts, tests/vm/THEME/*.sh, and their machines.

guests.py            runs them on the stock kernel, and those with `vm-debug: part` on the debug kernel, too
guests.py --debug    runs them all on the debug kernel

RRXE_ONLY, a regular expression of names, selects some; without --debug they run on the stock kernel only.

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
import concurrent.futures
import os
import queue
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
SCRIPTS = TOP / "tests/vm"
# What a kernel prints when something is wrong with it, as regular expressions.
SPLATS = [line for line in (TOP / "tools/vm/splats").read_text().splitlines() if not line.startswith("#")]
BOOT_SECONDS = 90
# A limit finds a hang, and no more. Scripts name limits for a quiet machine; a busy one is several times slower.
PATIENCE = 4
# How much longer a script takes on the debug kernel.
SLOWNESS = 5
# How many guests run side by side. A guest keeps one to two CPUs of the host busy, and one while its programs sleep.
GUESTS = int(os.environ.get("RRXE_GUESTS") or min(2, os.cpu_count() or 1))
# The most scripts of one boot: few enough that guests end at about the same time.
SHARED = 10


class Script:
    """A guest script, how it wants to be run, and whether that is on the debug kernel."""

    def __init__(self, path, debug):
        text = path.read_text()
        self.name = path.name
        self.path = path.relative_to(SCRIPTS)
        self.debug = debug
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
        return f"{self.path}:{self.timeout}:{self.settings.get('env', '')}"

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


class Output:
    """Lines of guests that run side by side. A script's lines are written together, when it has ended."""

    lock = threading.Lock()

    def __init__(self):
        self.lines = []

    def add(self, line):
        self.lines.append(line)

    def write(self):
        with self.lock:
            sys.stdout.writelines(self.lines)
            sys.stdout.flush()
        self.lines.clear()


def met_stale_breakpoint(lines):
    """Whether a guest ended at a breakpoint that was gone when the kernel looked at it.

    The kernel patches its code by breakpoints, and removes their handlers once each CPU has left them behind
    (smp_text_poke_batch_finish(), arch/x86/kernel/alternative.c). A CPU that QEMU emulates on a busy host may meet one
    later. A breakpoint that is no patch's is still in the bytes that the oops shows.
    """
    oops = next((index for index, line in enumerate(lines) if "Oops: int3:" in line), None)
    if oops is None:
        return False
    shown = next((line for line in lines[oops:] if "Code:" in line), "")
    return re.search(r" (?!cc)[0-9a-f]{2} <[0-9a-f]{2}>", shown) is not None


# Faults of others' code, whatever the driver: the kernel's warning, a text of one of the ten lines from there on, and what
# happened.
FAULTS_OF_OTHERS = (
    # resolve_prepare_src(), drivers/infiniband/core/cma.c: RDS binds the identifier to the device, the device's removal
    # changes the identifier's state, and RDS resolves the address.
    (r".* at rdma_resolve_addr\+", "rds_connect_worker", "RDS connected while its device went"),
    # nvmet_port_subsys_drop_link() destroys the identifier that listens under nvmet_config_sem, and a command that comes
    # before its connection is established takes that in the handler of another identifier. Lockdep has one class for the
    # mutexes of both, and looks for nothing more after its report: it sees one such fault in a boot.
    (r"possible circular locking dependency", "(nvmet_config_sem)", "nvmet took its locks in two orders"),
    # rds_trans_get_preferred(), net/rds/transport.c, holds rds_trans_sem while rds_ib_laddr_check() destroys an identifier, and
    # takes it in the handler of another one.
    (r"possible circular locking dependency", "(rds_trans_sem)", "RDS took its locks in two orders"),
)


def met_fault_of_others(lines):
    """What happened, if a guest met one of the faults of others' code and nothing else is the matter; or None."""
    failures = [line for line in lines if line.startswith("not ok")]
    names = [set(re.findall(rf"^# {word} of (\S+)", "".join(lines), re.MULTILINE)) for word in ("begin", "end")]
    if not failures or not all("the kernel is well" in line for line in failures) or names[0] != names[1]:
        return None
    stamps, found = {}, None
    for index, line in enumerate(lines):
        if not any(re.search(splat, line) for splat in SPLATS):
            continue
        warning = re.search(r"\[ *(\d+\.\d+)\] WARNING: (.*)", line)
        known = [known for known in FAULTS_OF_OTHERS if warning and re.match(known[0], warning[2])]
        if not known:
            return None
        near = "".join(lines[index:index + 10])
        named = next((what for _, text, what in known if text in near), None)
        stamps[warning[1]] = stamps.get(warning[1], False) or named is not None
        found = named or found
    return found if stamps and all(stamps.values()) else None


def excused(lines, why):
    """The lines of a guest that met a fault of others' code, without the failure."""
    return [re.sub("^not (ok - .*)", rf"\1 # SKIP {why}", line) for line in lines]


def boot(scripts, slot, again=True):
    """Run scripts in one boot; report the one that the guest did not live to finish. One that the emulator ended
    is run `again`, once. A fault of others' code is no failure.

    Returns whether all went well, and those scripts that were not begun.
    """
    debug = scripts[0].debug
    environment = os.environ | scripts[0].environment() | {
        "TIMEOUT": str(PATIENCE * BOOT_SECONDS * (SLOWNESS if debug else 1) + sum(script.timeout for script in scripts)),
        "RRXE_ENV": f"VM_JOBS={','.join(script.job() for script in scripts)} VM_LABEL={'debug-' if debug else ''}",
        "RRXE_KERNEL_KIND": "debug" if debug else "stock",
        "RRXE_SLOT": slot,
    }
    machine = subprocess.Popen(
        [str(TOP / "tools/rrxe"), "vm", str(SCRIPTS / "run-all")], env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    )
    began, ended, output, lines = {}, set(), Output(), []
    for line in machine.stdout:
        lines.append(line)
        match = re.match(r"# (begin|end) of (\S+)", line)
        if match and match[1] == "begin" or not began:
            output.write()
        output.add(line)
        if match and match[1] == "begin":
            began[match[2]] = time.monotonic()
        elif match:
            ended.add(match[2])
            output.add(f"# {match[2]} took {time.monotonic() - began[match[2]]:.0f} s\n")
    status = machine.wait()
    if status and again and met_stale_breakpoint(lines):
        output.lines = [f"# {line}" for line in output.lines]
        output.add("# the emulator ended this guest at a breakpoint that was gone: again\n")
        output.write()
        rest = [script for script in scripts if script.name not in ended]
        return boot(rest, slot, again=False) if rest else (True, [])
    if status and (why := met_fault_of_others(lines)):
        output.lines = excused(output.lines, why)
        status = 0
    unfinished = began.keys() - ended
    left = [script for script in scripts if script.name not in began]
    if not began:
        unfinished, left = [script.name for script in scripts], []
    for name in unfinished:
        output.add(f"not ok - {name}: ends before the guest does\n")
    if status and not unfinished:
        output.add(f"not ok - guest of {', '.join(sorted(ended))} stays well (status {status})\n")
    output.write()
    return status == 0, left


def scripts_of(debug, only=""):
    """The scripts whose names match, for one of the kernels."""
    scripts = [Script(path, debug) for path in sorted(SCRIPTS.glob("*/*.sh"), key=lambda path: path.name)]
    return [script for script in scripts if script.words and re.search(only, script.name)]


def chosen(debug):
    """The scripts that are wanted."""
    only = os.environ.get("RRXE_ONLY", "")
    scripts = scripts_of(debug, only)
    if os.environ.get("RRXE_QUICK"):
        return [script for script in scripts if "quick" in script.words]
    if not debug and not only:
        scripts += [script for script in scripts_of(True) if "part" in script.debug_words]
    return scripts


def groups(scripts):
    """The scripts of each boot. Those that may share one share it with at most SHARED of their kernel and suite."""
    shared, boots = {}, []
    for script in scripts:
        if "together" in script.words:
            shared.setdefault((script.debug, script.settings.get("suite")), []).append(script)
        else:
            boots.append([script])
    for members in shared.values():
        count = -(-len(members) // SHARED)
        boots += [members[first::count] for first in range(count)]
    # The long ones first, so that no guest runs alone for long at the end.
    return sorted(boots, key=lambda members: -sum(script.timeout for script in members))


def run(scripts):
    """Run scripts in several guests side by side; the status to exit with."""
    for script in scripts:
        if script.skip:
            print(f"ok - {script.name.removesuffix('.sh')} # SKIP {script.skip}", flush=True)
    slots = queue.SimpleQueue()
    for number in range(GUESTS):
        slots.put(f"{os.environ.get('RRXE_SLOT', '')}{number or ''}")

    def boots(group):
        slot, good = slots.get(), True
        while group:
            well, group = boot(group, slot)
            good = good and well
        slots.put(slot)
        return good

    with concurrent.futures.ThreadPoolExecutor(GUESTS) as pool:
        results = list(pool.map(boots, groups([script for script in scripts if not script.skip])))
    return 0 if all(results) else 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--debug", action="store_true")
    return run(chosen(parser.parse_args().debug))


if __name__ == "__main__":
    sys.exit(main())
