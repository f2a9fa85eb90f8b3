#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Chooses the newest complete Debian kernel from the records of `apt-cache show` on standard input.

usage: choose-kernel.py [RELEASE]

A kernel is complete if there are packages of the same version for its signed image, modules,
headers and source. Prints the kernel release, the package version and the packages to download.
RELEASE (7.3.4+deb13-amd64, or just 7.3.4) chooses that kernel instead of the newest.
"""

import re
import subprocess
import sys
from functools import cmp_to_key

OLDEST_MAJOR = 7
ARCH = "amd64"


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
    plain = release.removesuffix(f"-{ARCH}")
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


def main():
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    known = set(records(sys.stdin))
    image = re.compile(rf"linux-image-((\d+)\.\d+\.\d+\+deb\d+-{ARCH})$")
    candidates = []
    for package, version in known:
        match = image.match(package)
        if match and int(match[2]) >= OLDEST_MAJOR:
            candidates.append((match[1], version))
    candidates.sort(key=cmp_to_key(newer), reverse=True)
    incomplete = []
    for release, version in candidates:
        if wanted and wanted not in (release, release.split("+")[0]):
            continue
        missing = [part for part in parts(release) if (part, version) not in known]
        if not missing:
            print(release, version, *(f"{part}={version}" for part in parts(release)[1:]))
            return 0
        incomplete.append(f"{release} lacks {', '.join(missing)}")
    print(f"no complete Debian kernel {wanted or f'{OLDEST_MAJOR}.x'} found", *incomplete, sep="; ", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
