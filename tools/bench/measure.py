# SPDX-License-Identifier: GPL-2.0
"""Boots a guest that runs the benchmark's cases, and returns their rows.

A row is a case: driver, path, operation, pattern, size and figures. A guest that counts
instructions has one CPU and QEMU's `-icount shift=0`, under which one guest instruction takes one
nanosecond of the guest's clock. The time that a program measures for a message is therefore the
number of instructions of the whole machine, both ends included. In such a guest QEMU's plugin
(count.c) also counts the instructions of each function, and counts.py adds them to the rows.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import counts

TOP = Path(__file__).resolve().parents[2]
INSTRUCTIONS_GUEST = {
    "ACCEL_ARGS": "-accel tcg -icount shift=0,sleep=off -cpu max,-erms,-fsrm,-fsrs,-fzrm",
    "VCPUS": "1",
    "TIMEOUT": os.environ.get("TIMEOUT") or "3000",
}
LATENCY_GUEST = {
    "VCPUS": os.environ.get("VCPUS") or "3",
    "TIMEOUT": os.environ.get("TIMEOUT") or "600",
}
TITLES = {"librrxe": "librrxe", "rrxe": "rrxe", "rxe": "C rxe", "tcp": "TCP"}
SETTINGS = "SCALE", "DRIVERS", "GUARD", "OPERATIONS"


def in_toolbox(path):
    """Returns the path in the toolbox of a file of the cache."""
    return "/cache/" + str(path.relative_to(os.environ["RRXE_CACHE"]))


def count_plugin():
    """Builds QEMU's plugin; returns its path."""
    plugin = Path(os.environ["RRXE_BUILD"]) / "bench/count.so"
    plugin.parent.mkdir(parents=True, exist_ok=True)
    flags = "-O2 -Wall -Wextra -Werror -fvisibility=hidden -shared -fPIC".split()
    command = [TOP / "tools/rrxe", "toolbox", "cc", *flags, "-o", in_toolbox(plugin)]
    subprocess.run([*command, "tools/bench/count.c"], check=True)
    return plugin


def name_of(row):
    """Returns the operation of a row as tables show it, without size and path."""
    if row["pattern"] == "call":
        return row["op"]
    return f"{row['op'].upper()} {row['pattern'].replace('roundtrip', 'round trip')}"


def by_case(rows):
    """Returns {(path, operation, pattern, size): {driver: row}}, in the order of the rows.

    TCP has only one operation. Its row goes to each RDMA operation of the same path, pattern and
    size.
    """
    found = {}
    for row in rows:
        if row["driver"] != "tcp":
            case = row["path"], row["op"], row["pattern"], row["size"]
            found.setdefault(case, {})[row["driver"]] = row
    tcp = {(r["path"], r["pattern"], r["size"]): r for r in rows if r["driver"] == "tcp"}
    for (path, _, pattern, size), drivers in found.items():
        if (path, pattern, size) in tcp:
            drivers["tcp"] = tcp[path, pattern, size]
    return found


def show(row):
    print(f"  {TITLES[row['driver']]:8} {row['path']:7} {name_of(row):18} {row['size']:8}"
          f"  {row['ns_per_message']:12,.0f}", flush=True)


def rows_of(part, machine, environment):
    """Boots a guest for one part of guest.sh.

    Returns the rows that it prints, its kernel's release and its exit status. Adds to the rows the
    symbols of the kernel that it prints after them.
    """
    # The gate compares with stored figures (gate.json), so it always runs the same cases.
    names = () if part == "gate" else SETTINGS
    settings = " ".join(f"{name}={os.environ[name]}" for name in names if os.environ.get(name))
    environment = os.environ | machine | environment
    guest = subprocess.Popen(
        [TOP / "tools/rrxe", "vm", TOP / "tools/bench/guest.sh"],
        env=environment | {"RRXE_ENV": f"PART={part} {settings}".strip()},
        stdout=subprocess.PIPE, text=True, errors="replace",
    )
    rows, kernel, symbols = [], None, None
    for line in guest.stdout:
        if line.startswith("symbol "):
            if symbols is None:
                symbols = counts.Symbols()
                for row in rows:
                    row.setdefault("symbols", symbols)
            symbols.add(line)
            continue
        symbols = None
        if line.startswith('{"driver"'):
            rows.append(json.loads(line))
            show(rows[-1])
        elif line.startswith("kernel "):
            kernel = line.split()[1]
        else:
            print(line, end="", flush=True)
    return rows, kernel, guest.wait()


def instructions(part):
    """Counts the instructions of the cases of a part of guest.sh.

    Returns the rows, the kernel's release, and the guest's exit status or 1 if the counts are
    wrong. Each row has its number of instructions, and their division by function and category.
    """
    plugin = count_plugin()
    output = plugin.with_name("counts")
    arguments = f"-plugin {in_toolbox(plugin)},out={in_toolbox(output)}"
    output.unlink(missing_ok=True)
    rows, kernel, status = rows_of(part, INSTRUCTIONS_GUEST, {"RRXE_QEMU_EXTRA": arguments})
    wrong = counts.add_to(rows, output) if output.exists() else ["QEMU has not run"]
    for message in wrong:
        print(f"tools/bench: {message}", file=sys.stderr)
    return rows, kernel, status or (1 if wrong else 0)


def losses():
    """Measures streams over networks that lose packets; returns the rows and the guest's exit
    status.

    The guest's clock counts instructions, as in `instructions()`. So the figures do not depend on
    the load of the host. The path of a row is the network's round-trip time and share of lost
    packets.
    """
    rows, _, status = rows_of("loss", INSTRUCTIONS_GUEST, {})
    return rows, status


def latencies():
    """Measures latencies by the wall clock; returns the rows and the guest's exit status.

    The guest has several CPUs, so that the doorbell poller has a CPU of its own. Latencies depend
    on the other load of the host, so only their ratios are meaningful.
    """
    rows, _, status = rows_of("latency", LATENCY_GUEST, {})
    return rows, status
