#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Chooses the newest complete Debian kernel from the records of `apt-cache show` on standard input.

usage: choose-kernel.py --oldest VERSION [--architecture NAME] [RELEASE]

A kernel is complete if there are packages of the same version for its signed image, modules,
headers and source. Prints the kernel release, the package version and the packages to download.
Kernels older than VERSION (7.3) are left out, and so are the flavours cloud, rt and 16k. RELEASE
(7.3.4+deb13-cloud-amd64, or just 7.3.4) chooses that kernel instead of the newest. A kernel with
PREEMPT_RT is never chosen, because rrxe does not compile for it.
"""

import argparse
import re
import subprocess
import sys
from functools import cmp_to_key

# The release of a kernel has the version, the release of Debian (with a number if the package was
# built again), the flavour if there is one, the architecture, and the page size if it is not 4 KiB.
IMAGE = r"linux-image-((\d+\.\d+)\.\d+\+deb[\d.]+-(?:(\w+)-)?{}(-\w+)?)$"


def records(stream):
    """Yields the (package, version) pairs of a stream of control records."""
    package = None
    for line in stream:
        if line.startswith("Package: "):
            package = line.split()[1]
        elif line.startswith("Version: "):
            yield package, line.split()[1]


def parts(release):
    """Returns the packages of a kernel release. Each must exist in the version of the image."""
    plain = release.partition("-")[0]
    series = ".".join(release.split(".")[:2])
    return [
        f"linux-image-{release}",
        f"linux-binary-{release}",
        f"linux-modules-{release}",
        f"linux-base-{release}",
        f"linux-headers-{release}",
        f"linux-headers-{plain}-common",
        f"linux-kbuild-{plain}",
        f"linux-source-{series}",
    ]


def newer(a, b):
    """Compares the versions of two (release, version) pairs as dpkg does; returns -1 or 1."""
    lower = subprocess.run(["dpkg", "--compare-versions", a[1], "lt", b[1]], check=False)
    return -1 if lower.returncode == 0 else 1


def numbers(version):
    return [int(part) for part in version.split(".")]


def candidates(known, architecture, oldest, wanted):
    """Returns the kernels to choose from, the newest first, as (release, version) pairs."""
    found, image = [], re.compile(IMAGE.format(architecture))
    for package, version in known:
        match = image.match(package)
        if not match or numbers(match[2]) < numbers(oldest) or match[3] == "rt":
            continue
        if wanted == match[1] or not (match[3] or match[4]) and wanted in ("", match[1].partition("+")[0]):
            found.append((match[1], version))
    return sorted(found, key=cmp_to_key(newer), reverse=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--oldest", required=True)
    parser.add_argument("--architecture", default="amd64")
    parser.add_argument("release", nargs="?", default="")
    arguments = parser.parse_args()
    known = set(records(sys.stdin))
    incomplete = []
    for release, version in candidates(known, arguments.architecture, arguments.oldest, arguments.release):
        missing = [part for part in parts(release) if (part, version) not in known]
        if not missing:
            print(release, version, *(f"{part}={version}" for part in parts(release)[1:]))
            return 0
        incomplete.append(f"{release} lacks {', '.join(missing)}")
    wanted = arguments.release or f"{arguments.oldest} or newer"
    print(f"no complete Debian kernel {wanted} found", *incomplete, sep="; ", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
