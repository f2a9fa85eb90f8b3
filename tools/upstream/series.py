#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""series.py REPOSITORY TREE: commits rrxe to the git checkout TREE of a kernel, as a series of patches.

The kernel builds after each commit: the last commit but one adds the driver with its Kconfig and
Makefile, after all files that these name.
"""
import os
import subprocess
import sys
from pathlib import Path

import place

# All new files of the series.
PATHS = (place.HOME, place.DOCUMENTS, *place.HEADERS)


def below(*folders):
    """Returns a function that says whether a path is one of these folders of the driver, or below one."""
    homes = [place.HOME / folder for folder in folders]
    return lambda path: any(home == path or home in path.parents for home in homes)


def driver(path):
    """Returns whether a path is below the driver's directory and in no patch of a crate or of tests.

    The patch that adds the driver contains these paths and the headers.
    """
    return place.HOME in path.parents and not below(*place.CRATES, "tests")(path)


# (function that changes the tree, subject, body)
PATCHES = (
    (
        lambda repository, tree: place.keep_large_bss(tree),
        "um: Keep clang's large bss in .bss",
        "clang's large code model names this section .lbss. Lockdep regards a\nlock as static if its address is in .bss, and"
        " turns itself off when it\nfinds a static lock elsewhere.",
    ),
    (
        lambda repository, tree: place.place(repository, tree, below("roce")),
        "RDMA/rrxe: Add the protocol engine",
        "The wire format, the requester, the responder and the states of a queue\npair, in Rust without unsafe code and"
        " without kernel types, so that its\ntests run in user space, too.",
    ),
    (
        lambda repository, tree: place.place(repository, tree, below("bindings", "helpers")),
        "RDMA/rrxe: Add bindings and helpers",
        "bindgen generates the bindings from the headers of ib_core and of the\nnetwork stack. The helpers wrap inline"
        " functions and macros.",
    ),
    (
        lambda repository, tree: place.place(repository, tree, below("rdma")),
        "RDMA/rrxe: Add abstractions of ib_core and the network stack",
        "All unsafe code of the driver is here. The modules abi and trace have the\nlayouts of rdma_rxe's user interface"
        " and the driver's tracepoints. The\nother modules know no driver, and can serve a second one.",
    ),
    (
        lambda repository, tree: place.place(repository, tree, below("tests")),
        "RDMA/rrxe: Add KUnit tests",
        "They create a device on dummy0, transfer messages over it, and remove it.",
    ),
    (
        lambda repository, tree: (
            place.place(repository, tree, lambda path: driver(path) or path in place.HEADERS), place.connect(tree)),
        "RDMA/rrxe: Add a software RoCEv2 provider",
        "It gives Ethernet and raw IP interfaces RoCEv2, as rdma_rxe does, by the\nsame user interface.",
    ),
    (
        lambda repository, tree: (
            place.place(repository, tree, lambda path: path.parts[0] == "Documentation"), place.document(tree),
            place.list_maintainers(tree, repository)),
        "RDMA/rrxe: Add documentation and maintainers",
        "The documents name the locks and their order, the guarantees of other\ncode that unsafe code relies on, and the"
        " threats.",
    ),
)


def git(tree, *arguments):
    """Runs git in the tree, without any user's configuration."""
    command = ["git", "-c", "safe.directory=*", "-C", tree, *arguments]
    environment = os.environ | {"HOME": "/nonexistent"}
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, env=environment).stdout


def become_owner(tree):
    """Continues as the owner of the tree, so that new files belong to the owner."""
    owner = tree.stat()
    if os.getuid() == 0 and owner.st_uid != 0:
        os.setgroups([])
        os.setgid(owner.st_gid)
        os.setuid(owner.st_uid)


def main():
    repository, tree = (Path(argument).resolve() for argument in sys.argv[1:3])
    become_owner(tree)
    if git(tree, "status", "--porcelain"):
        sys.exit(f"series: {tree} has uncommitted changes")
    for put, subject, body in PATCHES:
        put(repository, tree)
        git(tree, "add", "--update")
        # Debian's sources ignore all new files.
        git(tree, "add", "--force", "--all", *(path for path in PATHS if (tree / path).exists()))
        if git(tree, "status", "--porcelain"):
            git(tree, "commit", "-q", "-s", "-m", subject, "-m", body)
            print(git(tree, "log", "-1", "--format=%h %s"), end="")


if __name__ == "__main__":
    main()
