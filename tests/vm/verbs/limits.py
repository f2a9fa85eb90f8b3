#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests the limits of a device that ibv_query_device() reports, and the limits of multicast groups.

    limits.py DEVICE GID-INDEX OTHER

DEVICE is a device of rrxe, OTHER a device of the C driver (rdma_rxe). No limit of DEVICE may be
lower than that of OTHER, and requests beyond a limit must be refused. rrxe-check and rrxe-scale
test the limits that are not tested here.
"""

import contextlib
import errno
import os
import socket
import struct
import subprocess
import sys

from pyverbs.cq import CQ
from pyverbs.device import Context
import pyverbs.enums as e
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqInitAttr, SrqAttr

from pairs import (
    DEVICE, become_nobody, case, connect, equal, errno_of_pyverbs, free_handle, in_child, libc,
    main, start_child, wait_until_equal,
)
from uverbs import attach_mcast, errno_of

OTHER = sys.argv[3]
# Limits that C rxe overstates: it reports 64 P_Keys and has one.
OVERSTATED = {"max_pkeys"}
# Capabilities that C rxe reports and does not have.
UNSUPPORTED = 1 << 4  # IBV_DEVICE_AUTO_PATH_MIG
# Maximum number of attachments of a user's QPs to multicast groups (OF_USER of limits.rs).
MAX_ATTACHMENTS = 1024
# Maximum number of QPs in a multicast group, of all users and of one user (MAX_MCAST_QP and
# MAX_MCAST_QP_OF_ONE of limits.rs).
MAX_MEMBERS, MAX_MEMBERS_OF_ONE = 72, 56
QKEY = 0x11223344
CLONE_NEWUSER = 0x10000000


def limits_of(attr):
    names = [name for name in dir(attr) if name.startswith("max_") and name not in OVERSTATED]
    return {name: getattr(attr, name) for name in names}


@case("no limit is lower, and no capability is missing, compared with the C driver")
def no_limit_is_lower():
    ours, theirs = (Context(name=name).query_device() for name in (DEVICE, OTHER))
    reported = limits_of(theirs)
    equal(len(reported) > 20, True, f"more than 20 limits are reported ({len(reported)})")
    own = limits_of(ours)
    lower = {name: (own[name], other) for name, other in reported.items() if own[name] < other}
    equal(lower, {}, "lower limits")
    missing = theirs.device_cap_flags & ~ours.device_cap_flags & ~UNSUPPORTED
    equal(hex(missing), "0x0", "missing capabilities")


@case("create_srq refuses more requests and SGEs than the limits")
def srq_limits():
    context = Context(name=DEVICE)
    attr, pd = context.query_device(), PD(context)
    for requests, sges, expected in [
        (attr.max_srq_wr, 1, 0),
        (attr.max_srq_wr + 1, 1, errno.EINVAL),
        (0, 1, errno.EINVAL),
        (8, attr.max_srq_sge, 0),
        (8, attr.max_srq_sge + 1, errno.EINVAL),
    ]:
        init = SrqInitAttr(SrqAttr(max_wr=requests, max_sge=sges))
        equal(errno_of_pyverbs(lambda: SRQ(pd, init).close()), expected, f"{requests} requests, {sges} SGEs")


@case("create_qp refuses more requests, SGEs and inline data than the limits")
def qp_limits():
    context = Context(name=DEVICE)
    attr, pd = context.query_device(), PD(context)
    cq = CQ(context, 4)
    for name, limit in [("max_send_sge", attr.max_sge), ("max_recv_sge", attr.max_sge),
                        ("max_inline_data", 512), ("max_send_wr", attr.max_qp_wr),
                        ("max_recv_wr", attr.max_qp_wr)]:
        for value, expected in [(limit, 0), (limit + 1, errno.EINVAL)]:
            if limit == attr.max_qp_wr and expected == 0:
                continue  # the ring would take many MiB
            cap = QPCap(**({"max_send_wr": 1, "max_recv_wr": 1} | {name: value}))
            init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap)
            equal(errno_of_pyverbs(lambda: QP(pd, init).close()), expected, f"{name} {value}")


@case("modify_qp refuses more READs at a time than the limits")
def read_limits():
    context = Context(name=DEVICE)
    limit, pd, cq = context.query_device().max_qp_rd_atom, PD(context), CQ(context, 4)
    for served, requested, expected in [
        (limit, limit, 0), (limit + 1, 1, errno.EINVAL), (1, limit + 1, errno.EINVAL),
    ]:
        cap = QPCap(max_send_wr=1, max_recv_wr=1)
        qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap))
        code = errno_of_pyverbs(connect, context, qp, qp.qp_num, 14, served, requested)
        equal(code, expected, f"errno with {served} served and {requested} requested READs")


def datagram_qp():
    """Returns a new context, a UD QP of it, and the handle of the QP."""
    context = Context(name=DEVICE)
    pd, cq = PD(context), CQ(context, 4)
    handle = free_handle(context)
    cap = QPCap(max_send_wr=1, max_recv_wr=1)
    qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_UD, scq=cq, rcq=cq, cap=cap))
    attr = QPAttr(port_num=1)
    attr.qkey = QKEY
    qp.to_rts(attr)
    return context, qp, handle


def group_gid(number):
    return bytes(10) + b"\xff\xff" + struct.pack(">I", 239 << 24 | 7 << 16 | number)


def attach_qp(count):
    """Attaches a new QP to `count` groups. Returns the number attached, the errno of the first
    failure or 0, and the QP."""
    context, qp, handle = datagram_qp()
    for number in range(count):
        code = errno_of(attach_mcast, context, handle, group_gid(number))
        if code:
            return number, code, qp
    return count, 0, qp


@case("attach_mcast refuses LIDs other than 0, and a QP that was attached twice can be destroyed")
def attached_once():
    def attach():
        context, _qp, handle = datagram_qp()
        lids = (0, 0, 1, 0xc000)
        codes = [errno_of(attach_mcast, context, handle, group_gid(1), lid) for lid in lids]
        # uverbs itself responds to the repeated attachment, without a call of the driver.
        equal(codes, [0, 0, errno.EINVAL, errno.EINVAL], "errnos of attachments")

    def ud_qps():
        command = ["rdma", "resource", "show", "qp", "link", f"{DEVICE}/1"]
        shown = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout
        return shown.count("type UD")

    in_child(attach)
    wait_until_equal(ud_qps, 0, "UD QPs after the process has ended")


@case("a user's multicast attachments are limited, and another user's QP can be attached")
def attachments_are_limited():
    def attach_as_another_user():
        become_nobody()
        equal(attach_qp(1)[:2], (1, 0), "groups of another user")

    def fill_as_root():
        number, code, _qp = attach_qp(MAX_ATTACHMENTS + 1)
        equal((number, code), (MAX_ATTACHMENTS, errno.ENOMEM), "groups of root, then errno")
        equal(attach_qp(1)[:2], (0, errno.ENOMEM), "groups of another context of root")
        in_child(attach_as_another_user)

    in_child(fill_as_root)
    in_child(lambda: equal(attach_qp(1)[:2], (1, 0), "groups of root after the QP was destroyed"))


@case("a user's QPs in a multicast group are limited, and another user's QPs can be attached")
def members_are_limited():
    def attach():
        context, qp, handle = datagram_qp()
        return errno_of(attach_mcast, context, handle, group_gid(1)), qp

    def attach_as_another_user():
        become_nobody()
        attached = [attach() for _ in range(MAX_MEMBERS - MAX_MEMBERS_OF_ONE + 1)]
        expected = [0] * (MAX_MEMBERS - MAX_MEMBERS_OF_ONE) + [errno.ENOMEM]
        codes = [code for code, _ in attached]
        equal(codes, expected, "errnos of another user's QPs, up to the group's limit")

    def fill_as_root():
        attached = [attach() for _ in range(MAX_MEMBERS_OF_ONE + 1)]
        expected = [0] * MAX_MEMBERS_OF_ONE + [errno.ENOMEM]
        equal([code for code, _ in attached], expected, "errnos of root's QPs")
        in_child(attach_as_another_user)

    in_child(fill_as_root)


@contextlib.contextmanager
def process_in_namespace(uid_map, work):
    """Runs a process of UID 1000 in a new user namespace with that UID map until the block ends.
    Root makes the namespace. The process calls `work` before the block begins, and keeps the
    result."""
    theirs, ours = socket.socketpair()

    def run_child():
        ours.close()
        if not uid_map:
            os.setresuid(1000, 0, 0)
        equal(libc.unshare(CLONE_NEWUSER), 0, "result of unshare()")
        theirs.send(b"m")
        theirs.recv(1)
        if uid_map:
            os.setresuid(1000, 1000, 1000)
        kept = work()
        theirs.send(b"w")
        theirs.recv(1)
        del kept

    child = start_child(run_child)
    theirs.close()
    ours.recv(1)
    if uid_map:
        with open(f"/proc/{child}/uid_map", "w", encoding="ascii") as file:
            file.write(uid_map)
    ours.send(b"m")
    ours.recv(1)
    yield
    ours.close()
    equal(os.waitpid(child, 0)[1], 0, "the child's status")


@case("a user's limit holds over all user namespaces of root that map no other user")
def limit_over_namespaces():
    def fill_as_user():
        number, code, qp = attach_qp(MAX_ATTACHMENTS + 1)
        equal((number, code), (MAX_ATTACHMENTS, errno.ENOMEM), "groups of a user, then errno")
        return qp

    single_uid = "1000 1000 1"
    with process_in_namespace(single_uid, fill_as_user):
        refused, attached = (0, errno.ENOMEM), (1, 0)
        for uid_map, expected in (single_uid, refused), ("", refused), ("1000 1000 2", attached):
            name = f"groups and errno of another namespace with UID map {uid_map!r}"
            with process_in_namespace(uid_map, lambda: equal(attach_qp(1)[:2], expected, name)):
                pass


if __name__ == "__main__":
    sys.exit(main())
