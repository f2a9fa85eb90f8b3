#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Runs the guest scripts, tests/vm/THEME/*.sh, in virtual machines, and prints their results.

guests.py            runs all scripts on the stock kernel, and those with `vm-debug: part` also on
                     the debug kernel
guests.py --debug    runs all scripts on the debug kernel
guests.py --arm64    runs all scripts on the stock kernel of an emulated arm64 machine
guests.py --system   runs the scripts with `vm: system`, which the other calls leave out, and those
                     with `vm-arm64: part` on arm64

Each virtual machine ("guest") is one boot by `tools/rrxe vm`. The program tests/vm/run-all runs the
scripts of a boot one after another, and prints lines `# begin of SCRIPT` and `# end of SCRIPT`.

RRXE_ONLY, a regular expression, selects scripts by name. Without --debug and --arm64 these run on
the stock kernel of the default architecture only. RRXE_QUICK (`make check`) selects the scripts with
`vm: quick`. RRXE_GUESTS sets the number of guests that run side by side.

Comment lines of a script say how it is to be run:

    # vm: together            The script may share a boot with other scripts of the same Debian
                              suite and kernel. Without this word it has a boot of its own.
    # vm: quick               `make check` runs the script. Most themes have such scripts.
    # vm: system              `make test-system` runs the script, and `make test` does not. Such
                              scripts test rrxe with Debian 12 or with systemd.
    # vm: timeout=600         Limit for the script in seconds on a quiet machine. Default: 120.
    # vm: env=TYPE=rxe        A variable of the script's environment.
    # vm: suite=testing       The Debian suite of the guest. Default: tools/lib/toolbox.sh, SUITE.
    # vm: vcpus=4  mem=4G  append=a+b  packages=a,b
                              Settings of a boot of its own: number of CPUs, memory, parameters of
                              the kernel's command line, additional Debian packages.
    # vm: init=systemd        Boots of its own with systemd and udev. The script is run in each boot.
    # vm-debug: part          `make test` runs the script on the debug kernel, too. Such scripts
                              take little time and cover much of the driver.
    # vm-debug: timeout=900   Limit in seconds on the debug kernel. Default: SLOWDOWN times
                              the limit of `# vm:`.
    # vm-debug: skip REASON   The script is not run on the debug kernel.
    # vm-arm64: part          `make test-system` runs the script on arm64.
    # vm-arm64: skip REASON   The script is not run on arm64.

Files without a `# vm:` line are libraries and helpers of scripts.
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
# Regular expressions for the lines by which a kernel reports an error.
SPLATS = [line for line in (TOP / "tools/vm/splats").read_text().splitlines() if not line.startswith("#")]
# Limit for a boot without its scripts, in seconds, on a quiet machine.
BOOT_SECONDS = 90
# Factor for all limits. The limits of scripts are for a quiet machine, and a busy machine is
# several times slower. A limit only has to detect a hang, so that it may be far too long.
LIMIT_FACTOR = 4
# Factors by which a script takes longer on a kernel than on the stock one. arm64 is always emulated.
SLOWDOWN = {"stock": 1, "debug": 5, "arm64": 5}
# Number of guests that run side by side. A guest keeps one to two CPUs of the host busy, and one
# CPU while the guest's programs sleep.
GUESTS = int(os.environ.get("RRXE_GUESTS") or min(2, os.cpu_count() or 1))
# Maximum number of scripts in one boot. It is small so that the guests end at about the same time.
MAX_SCRIPTS_PER_BOOT = 10


class Script:
    """A guest script, its settings, and the kernel that it is to run on.

    `kernel` is "stock", "debug", or "arm64" for the stock kernel of that architecture.
    """

    def __init__(self, path, kernel):
        text = path.read_text()
        self.name = path.name
        self.path = path.relative_to(SCRIPTS)
        self.kernel = kernel
        self.words = directive_words(text, "vm")
        skip = re.search(rf"^# vm-{kernel}: *skip (.*)$", text, re.MULTILINE)
        self.skip = skip[1] if skip else None
        self.parts = [name for name in ("debug", "arm64") if "part" in directive_words(text, f"vm-{name}")]
        self.settings = directive_settings(self.words)
        limit = int(self.settings.get("timeout", "120")) * SLOWDOWN[kernel]
        own = directive_settings(directive_words(text, f"vm-{kernel}"))
        self.timeout = int(own.get("timeout", limit)) * LIMIT_FACTOR

    def job(self):
        """Returns the script's entry of VM_JOBS (tests/vm/run-all): path, limit, environment."""
        return f"{self.path}:{self.timeout}:{self.settings.get('env', '')}"

    def environment(self):
        """Returns the variables of `tools/rrxe vm` for a boot of the script's own."""
        names = {
            "vcpus": "VCPUS", "append": "RRXE_APPEND", "packages": "GUEST_PACKAGES", "suite": "GUEST_SUITE",
            "mem": "MEM", "init": "RRXE_INIT",
        }
        chosen = {names[key]: value for key, value in self.settings.items() if key in names}
        for name, separator in ("RRXE_APPEND", "+"), ("GUEST_PACKAGES", ","):
            if name in chosen:
                chosen[name] = chosen[name].replace(separator, " ")
        if self.kernel == "arm64":
            chosen["RRXE_ARCH"] = "arm64"
        return chosen


def directive_words(text, tag):
    """Returns the words of all comment lines `# tag: words` of a script."""
    return [word for line in re.findall(rf"^# {tag}: *(.*)$", text, re.MULTILINE) for word in line.split()]


def directive_settings(words):
    """Returns the words `name=value` as a dictionary."""
    return dict(word.split("=", 1) for word in words if "=" in word)


class Output:
    """Buffer for the lines of one guest.

    Guests run side by side. The lines of a script are written together when the script has ended,
    so that the lines of two guests do not mix.
    """

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
    """Returns whether a guest ended by a stale breakpoint of the kernel's code patching.

    The kernel patches its code by temporary breakpoints (int3). It removes the handler of a
    breakpoint once each CPU has passed it (smp_text_poke_batch_finish(),
    arch/x86/kernel/alternative.c). A CPU that QEMU emulates on a busy host may execute such a
    breakpoint later. The kernel then reports "Oops: int3". By that time the byte of the breakpoint
    (cc) has been overwritten, so that the line "Code:" of the oops does not show it. That line does
    show a breakpoint that is part of the kernel's code.
    """
    oops = next((index for index, line in enumerate(lines) if "Oops: int3:" in line), None)
    if oops is None:
        return False
    shown = next((line for line in lines[oops:] if "Code:" in line), "")
    return re.search(r" (?!cc)[0-9a-f]{2} <[0-9a-f]{2}>", shown) is not None


# Bugs of kernel code outside rrxe that occur with any RDMA driver. Each entry has a regular
# expression for the kernel's warning, a text that one of the ten lines from the warning on
# contains, and a description.
KNOWN_KERNEL_BUGS = (
    # resolve_prepare_src(), drivers/infiniband/core/cma.c: RDS binds the rdma_cm identifier to the
    # device. The device's removal changes the identifier's state. Then RDS resolves the address.
    (r".* at rdma_resolve_addr\+", "rds_connect_worker",
     "RDS resolved an address during the removal of its device"),
    # nvmet_port_subsys_drop_link() destroys the listening rdma_cm identifier with nvmet_config_sem
    # held. A command that arrives before its connection is established takes nvmet_config_sem in
    # the handler of another identifier. Lockdep has one class for the mutexes of both identifiers.
    # Lockdep stops after its first report, so it finds one such fault in a boot.
    (r"possible circular locking dependency", "(nvmet_config_sem)", "nvmet took its locks in two orders"),
    # rds_trans_get_preferred(), net/rds/transport.c, holds rds_trans_sem while rds_ib_laddr_check()
    # destroys an rdma_cm identifier. RDS also takes rds_trans_sem in the handler of another
    # identifier.
    (r"possible circular locking dependency", "(rds_trans_sem)", "RDS took its locks in two orders"),
)


def only_known_kernel_bug(lines):
    """Returns the description of the entry of KNOWN_KERNEL_BUGS that alone made a guest fail.

    Returns None if no such bug occurred, if no check failed, if one other than "the kernel reports
    no error" failed, if the kernel reported another error, or if a script did not end.
    """
    failures = [line for line in lines if line.startswith("not ok")]
    begun, ended = (
        set(re.findall(rf"^# {word} of (\S+)", "".join(lines), re.MULTILINE))
        for word in ("begin", "end")
    )
    if not failures or not all("the kernel reports no error" in line for line in failures) or begun != ended:
        return None
    explained_times, found = {}, None
    for index, line in enumerate(lines):
        if not any(re.search(splat, line) for splat in SPLATS):
            continue
        warning = re.search(r"\[ *(\d+\.\d+)\] WARNING: (.*)", line)
        bugs = [bug for bug in KNOWN_KERNEL_BUGS if warning and re.match(bug[0], warning[2])]
        if not bugs:
            return None
        following = "".join(lines[index:index + 10])
        description = next((what for _, text, what in bugs if text in following), None)
        time_stamp = warning[1]
        explained_times.setdefault(time_stamp, False)
        explained_times[time_stamp] |= description is not None
        found = description or found
    return found if explained_times and all(explained_times.values()) else None


def with_failures_skipped(lines, reason):
    """Returns the lines of a guest with each failed result turned into a skipped one."""
    return [re.sub("^not (ok - .*)", rf"\1 # SKIP {reason}", line) for line in lines]


def boot(scripts, slot, again=True):
    """Runs scripts in one boot and writes their lines.

    A script that was begun and had not ended when the guest ended is reported as failed. If no
    script was begun, all are. If the guest ended by a stale breakpoint (met_stale_breakpoint()) and
    `again` is true, the scripts that had not ended are run in one more boot. A known kernel bug
    does not count as a failure.

    Returns whether the guest succeeded, and a list of the scripts that were neither begun nor
    reported.
    """
    kernel = scripts[0].kernel
    label = "" if kernel == "stock" else f"{kernel}-"
    boot_timeout = LIMIT_FACTOR * BOOT_SECONDS * SLOWDOWN[kernel]
    environment = os.environ | scripts[0].environment() | {
        "TIMEOUT": str(boot_timeout + sum(script.timeout for script in scripts)),
        "RRXE_ENV": f"VM_JOBS={','.join(script.job() for script in scripts)} VM_LABEL={label}",
        "RRXE_KERNEL_KIND": "debug" if kernel == "debug" else "stock",
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
        output.add("# the guest ended by a stale breakpoint: its remaining scripts run again\n")
        output.write()
        remaining = [script for script in scripts if script.name not in ended]
        return boot(remaining, slot, again=False) if remaining else (True, [])
    if status and (bug := only_known_kernel_bug(lines)):
        output.lines = with_failures_skipped(output.lines, bug)
        status = 0
    interrupted = began.keys() - ended
    not_begun = [script for script in scripts if script.name not in began]
    if not began:
        interrupted, not_begun = [script.name for script in scripts], []
    for name in interrupted:
        output.add(f"not ok - {label}{name}: the script ends before the guest does\n")
    if status and not interrupted:
        names = ", ".join(sorted(ended))
        output.add(f"not ok - the guest of {names} exits with status 0 (got {status})\n")
    output.write()
    return status == 0, not_begun


def scripts_for_kernel(kernel, only=""):
    """Returns the scripts whose names match `only`, for a kernel (see `Script`)."""
    scripts = [Script(path, kernel) for path in sorted(SCRIPTS.glob("*/*.sh"), key=lambda path: path.name)]
    return [script for script in scripts if script.words and re.search(only, script.name)]


def parts_for_kernel(kernel):
    """Returns the scripts that are a part of the tests on a kernel other than the stock one."""
    return [script for script in scripts_for_kernel(kernel) if kernel in script.parts]


def selected_scripts(kernel, system=False):
    """Returns the scripts that RRXE_ONLY and RRXE_QUICK select."""
    only = os.environ.get("RRXE_ONLY", "")
    scripts = scripts_for_kernel(kernel, only)
    if system or not only:
        scripts = [script for script in scripts if ("system" in script.words) == system]
    if system:
        return scripts if only else scripts + parts_for_kernel("arm64")
    if os.environ.get("RRXE_QUICK"):
        return [script for script in scripts if "quick" in script.words]
    if kernel == "stock" and not only:
        scripts += parts_for_kernel("debug")
    return scripts


def boots_of(scripts):
    """Distributes scripts over boots and returns a list of scripts for each boot.

    Scripts with `vm: together` share boots of at most MAX_SCRIPTS_PER_BOOT scripts with the same
    kernel and the same Debian suite.
    """
    shared, boots = {}, []
    for script in scripts:
        if "together" in script.words:
            shared.setdefault((script.kernel, script.settings.get("suite")), []).append(script)
        else:
            boots.append([script])
    for members in shared.values():
        count = -(-len(members) // MAX_SCRIPTS_PER_BOOT)
        boots += [members[first::count] for first in range(count)]
    # Long boots start first, so that at the end no guest runs alone for long.
    return sorted(boots, key=lambda members: -sum(script.timeout for script in members))


def run(scripts):
    """Runs scripts in GUESTS guests side by side, and returns the exit status."""
    for script in scripts:
        if script.skip:
            print(f"ok - {script.name.removesuffix('.sh')} # SKIP {script.skip}", flush=True)
    slots = queue.SimpleQueue()
    for number in range(GUESTS):
        slots.put(f"{os.environ.get('RRXE_SLOT', '')}{number or ''}")

    def run_group(group):
        """Boots with the scripts of a group, and boots again with those that were not begun."""
        slot, all_passed = slots.get(), True
        while group:
            passed, group = boot(group, slot)
            all_passed = all_passed and passed
        slots.put(slot)
        return all_passed

    groups = boots_of([script for script in scripts if not script.skip])
    with concurrent.futures.ThreadPoolExecutor(GUESTS) as pool:
        results = list(pool.map(run_group, groups))
    return 0 if all(results) else 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--debug", dest="kernel", action="store_const", const="debug", default="stock")
    parser.add_argument("--arm64", dest="kernel", action="store_const", const="arm64")
    parser.add_argument("--system", action="store_true")
    arguments = parser.parse_args()
    return run(selected_scripts(arguments.kernel, arguments.system))


if __name__ == "__main__":
    sys.exit(main())
