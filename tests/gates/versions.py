# SPDX-License-Identifier: GPL-2.0
"""Compares the version of rrxe in all files that state it, and in the tags of releases.

The version is that of the cargo workspace (`[workspace.package]` in Cargo.toml). The other files
have copies, because neither kbuild nor the other workspaces of cargo read it there.
"""
import re

from history import git
from reference import read

SOURCE = "Cargo.toml"
PACKAGE = r'^version = "(.*)"$'
# Own packages of a Cargo.lock. The packages of other projects have a source.
LOCKED = r'^name = ".*"\nversion = "(.*)"\n(?!source)'
CHANGELOG = "CHANGELOG.md"
# The heading of a version in the changelog. A released version has a date.
HEADING = re.compile(r"^## (\d\S*)(?: - (.*))?$", re.M)
COPIES = (
    ("Cargo.lock", LOCKED),
    ("cli/Cargo.toml", PACKAGE),
    ("cli/Cargo.lock", LOCKED),
    ("cli/rrxe.7", r'^\.TH .* "rrxe (.*?)"'),
    ("cli/rrxe.8", r'^\.TH .* "rrxe (.*?)"'),
    ("librrxe/librrxe.7", r'^\.TH .* "rrxe (.*?)"'),
    ("librrxe/provider/Cargo.toml", PACKAGE),
    ("librrxe/provider/Cargo.lock", LOCKED),
    ("tests/fuzz/Cargo.toml", PACKAGE),
    ("tests/fuzz/Cargo.lock", LOCKED),
    ("tests/verbs/Cargo.toml", PACKAGE),
    ("tests/verbs/Cargo.lock", LOCKED),
    ("drivers/infiniband/sw/rrxe/version.c", r'^MODULE_VERSION\("(.*)"\);'),
    ("drivers/infiniband/sw/rrxe/device.rs", r'VERSION_TEXT: &CStr = c"rrxe (.*)";'),
    ("drivers/infiniband/sw/rrxe/device.rs", r"VERSION: \[u16; 3\] = \[(.*)\];"),
    ("README.md", r"^\*\*State\.\*\* rrxe (\S+) implements:"),
    ("Documentation/index.rst", r"^These are the documents of rrxe (\S+)\.$"),
)


def complaints(top):
    """Returns a message for each place without the version, and for each tag of another version.

    A workspace without a version has no copies. cargo refuses such a workspace if its members inherit
    the version.
    """
    source = re.search(PACKAGE, read(top, SOURCE), re.M)
    if source is None:
        return []
    version = source[1]
    found = list(faults_of_changelog(read(top, CHANGELOG), version, tags(top)))
    for path, pattern in COPIES:
        found += faults_of_copy(path, read(top, path), pattern, version)
    return found


def faults_of_copy(path, text, pattern, version):
    """Yields a message if the text of a file does not have the version where the pattern matches."""
    found = re.findall(pattern, text, re.M)
    if not found:
        yield f"{path}: no version"
    for each in found:
        if each.replace(", ", ".") != version:
            yield f"{path}: the version is {each}, and {version} in {SOURCE}"


def faults_of_changelog(text, version, tagged):
    """Yields a message for each fault of the changelog's newest version, and of the commit's tags."""
    newest = HEADING.search(text)
    if newest is None or newest[1] != version:
        yield f"{CHANGELOG}: the newest version is not {version}, as in {SOURCE}"
    for tag in tagged:
        if tag != f"v{version}":
            yield f"the tag {tag} is not v{version}, the version in {SOURCE}"
        elif newest and not re.fullmatch(r"\d{4}-\d\d-\d\d", newest[2] or ""):
            yield f"{CHANGELOG}: the released version {version} has no date"


def tags(top):
    """Returns the tags of releases at the present commit."""
    return (git(top, "tag", "--points-at", "HEAD", "--list", "v*") or "").split()
