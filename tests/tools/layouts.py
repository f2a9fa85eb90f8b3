#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""In the toolbox: loads librrxe with libraries that have the layouts of several libibverbs.

usage: layouts.py NAME...

NAME is RDMA-CORE/LIBRARY, a librrxe in the directory librrxe of the build output. /cache/rdma-core/RDMA-CORE
has the headers that it was built with. Prints a result line for each pair of a librrxe and a layout:
librrxe registers itself with a libibverbs of its own layout, and with no other one. The toolbox's libibverbs
is one of the libraries.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from fake_system import exit_status, result

BUILT = Path(os.environ["RRXE_BUILD"]) / "librrxe"
RDMA_CORES = Path("/cache/rdma-core")
SOURCE = Path(__file__).parent / "made_libibverbs.c"
REFUSAL = "has another layout"
DIFFERENCES = (
    ("", {}),
    (" whose QP has one more function", {"QP_SHIFT": 8}),
    (" whose QP has one function less", {"QP_SHIFT": -8}),
    (" with one more function of providers", {"OPERATIONS_MORE": 1}),
    (" with one function of providers less", {"OPERATIONS_MORE": -1}),
    (" with functions of providers in another order", {"OPERATIONS_SHIFT": 1}),
    (" whose context has one more function", {"CONTEXT_MORE": 1}),
    (" whose context has one function less", {"CONTEXT_MORE": -1}),
)

class RdmaCore:
    """The headers and the symbols of an rdma-core."""

    def __init__(self, name):
        directory = RDMA_CORES / name
        self.include, self.stub = directory / "include", directory / "lib/libibverbs.so"
        self.version, self.pabi = ((directory / file).read_text().strip() for file in ("version", "pabi"))


def load(folder, librrxe, core, difference):
    """Has a program load a librrxe and a made-up libibverbs; returns the program's output."""
    made, stub = folder / "made.so", folder / "libibverbs.so.1"
    values = {"QP_SHIFT": 0, "OPERATIONS_MORE": 0, "OPERATIONS_SHIFT": 0, "CONTEXT_MORE": 0} | difference
    options = [f"-D{name}={value}" for name, value in values.items()]
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", *options, f"-I{core.include}", "-o", made, SOURCE], check=True)
    stub.unlink(missing_ok=True)
    stub.symlink_to(core.stub)
    return begin({"LD_LIBRARY_PATH": str(folder), "LD_PRELOAD": f"{made} {librrxe}"})


def begin(variables):
    """Runs a program that does nothing with variables of the dynamic loader; returns its output."""
    environment = os.environ | {"LD_BIND_NOW": "1"} | variables
    done = subprocess.run(["/usr/bin/true"], env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def main():
    built = [(RdmaCore(Path(name).parent.name), BUILT / name) for name in sys.argv[1:]]
    query = ["dpkg-query", "--show", "--showformat=${source:Upstream-Version}", "libibverbs1"]
    toolbox = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        for own, librrxe in built:
            for name, difference in DIFFERENCES:
                seen = load(Path(folder), librrxe, own, difference)
                passed = REFUSAL in seen and "rrxe\n" not in seen if difference else seen == "rrxe\n"
                result(f"librrxe for rdma-core {own.version} {'refuses' if difference else 'takes'} its libibverbs{name}", passed, seen)
            for other, _ in built:
                wanted = REFUSAL if own.pabi == other.pabi else f"version `IBVERBS_PRIVATE_{own.pabi}' not found"
                if other.version != own.version:
                    seen = load(Path(folder), librrxe, other, {})
                    result(f"librrxe for rdma-core {own.version} refuses the libibverbs of {other.version}", wanted in seen, seen)
                if other.version == toolbox:
                    seen, same = begin({"LD_PRELOAD": str(librrxe)}), own.version == toolbox
                    result(f"librrxe for rdma-core {own.version} {'takes' if same else 'refuses'} the toolbox's libibverbs {toolbox}",
                           seen == "" if same else wanted in seen, seen)
    return exit_status()


if __name__ == "__main__":
    sys.exit(main())
