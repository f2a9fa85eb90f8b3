#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""XRC domains that processes share by a file, and handles of QPs that others made: xrcds.py DEVICE GID-INDEX shared|private.

ib_core limits neither, and charges neither to anybody, so by default both are refused.
"""

import errno
import os
import struct
import sys

from extension import CREATE_QP, Context, node_of
from pairs import DEVICE, case, equal, main
from uverbs import errno_of

OPEN_XRCD, CLOSE_XRCD, OPEN_QP = 37, 38, 40
XRC_TARGET = 10
SHARED = sys.argv[3] == "shared"
# Of the two that are refused by default.
WANTED = 0 if SHARED else errno.EOPNOTSUPP
NO_FILE = 0xffffffff


def open_domain(context, file):
    """The handle of the domain of a file, or of a new one."""
    return struct.unpack("=I", context.call(OPEN_XRCD, struct.pack("=II", file, os.O_CREAT), 4))[0]


def make_target(context, domain):
    """The number of a new target QP."""
    request = struct.pack("=QIIIIIIIIIBBBB", 0, domain, 0, 0, 0, 1, 0, 1, 0, 0, 0, XRC_TARGET, 0, 0)
    return struct.unpack_from("=II", context.call(CREATE_QP, request, 32))[1]


def open_target(context, domain, number):
    return context.call(OPEN_QP, struct.pack("=QIIB7x", 0, domain, number, XRC_TARGET), 32)


@case("a domain of a process's own can be opened, and has a target")
def own():
    context = Context(node_of(DEVICE))
    equal(make_target(context, open_domain(context, NO_FILE)) > 0, True, "the target has a number")


@case("domains of files, which others find, " + ("can be opened again and again" if SHARED else "are refused"))
def of_files():
    file = os.open("/tmp/domain", os.O_RDWR | os.O_CREAT)
    first, second = Context(node_of(DEVICE)), Context(node_of(DEVICE))
    for context in first, second, second:
        equal(errno_of(open_domain, context, file), WANTED, "errno of a domain of a file")


@case("QPs that others made " + ("can be opened" if SHARED else "are refused"))
def of_others():
    context = Context(node_of(DEVICE))
    domain = open_domain(context, NO_FILE)
    number = make_target(context, domain)
    for _ in range(2):
        equal(errno_of(open_target, context, domain, number), WANTED, "errno of a handle of a QP")


if __name__ == "__main__":
    sys.exit(main())
