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
NOT_ITS = 1 << 4  # IBV_DEVICE_AUTO_PATH_MIG
# Maximum number of attachments of a user's QPs to multicast groups (OF_USER of limits.rs).
ATTACHMENTS = 1024
# Maximum number of QPs in a multicast group, of all users and of one user (MAX_MCAST_QP and
# MAX_MCAST_QP_OF_ONE of limits.rs).
MEMBERS, OF_ONE = 72, 56
QKEY = 0x11223344
CLONE_NEWUSER = 0x10000000


def limits(attr):
    names = [name for name in dir(attr) if name.startswith("max_") and name not in OVERSTATED]
    return {name: getattr(attr, name) for name in names}


@case("no limit is lower than the other device's")
def not_lower():
    ours, theirs = (Context(name=name).query_device() for name in (DEVICE, OTHER))
    known = limits(theirs)
    equal(len(known) > 20, True, f"limits are known, {len(known)}")
    lower = {name: (limits(ours)[name], other) for name, other in known.items() if limits(ours)[name] < other}
    equal(lower, {}, "limits that are lower")
    missing = theirs.device_cap_flags & ~ours.device_cap_flags & ~NOT_ITS
    equal(hex(missing), "0x0", "capabilities that are missing")


@case("shared receive queues end at their limits")
def shared_queues():
    context = Context(name=DEVICE)
    attr, pd = context.query_device(), PD(context)
    for requests, sges, wanted in [
        (attr.max_srq_wr, 1, 0),
        (attr.max_srq_wr + 1, 1, errno.EINVAL),
        (0, 1, errno.EINVAL),
        (8, attr.max_srq_sge, 0),
        (8, attr.max_srq_sge + 1, errno.EINVAL),
    ]:
        init = SrqInitAttr(SrqAttr(max_wr=requests, max_sge=sges))
        equal(errno_of_pyverbs(lambda: SRQ(pd, init).close()), wanted, f"{requests} requests, {sges} SGEs")


@case("queue pairs end at their limits")
def queue_pairs():
    context = Context(name=DEVICE)
    attr, pd = context.query_device(), PD(context)
    cq = CQ(context, 4)
    for name, limit in [("max_send_sge", attr.max_sge), ("max_recv_sge", attr.max_sge),
                        ("max_inline_data", 512), ("max_send_wr", attr.max_qp_wr), ("max_recv_wr", attr.max_qp_wr)]:
        for value, wanted in [(limit, 0), (limit + 1, errno.EINVAL)]:
            if limit == attr.max_qp_wr and wanted == 0:
                continue  # the ring would take many MiB
            cap = QPCap(**({"max_send_wr": 1, "max_recv_wr": 1} | {name: value}))
            init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap)
            equal(errno_of_pyverbs(lambda: QP(pd, init).close()), wanted, f"{name} {value}")


@case("READs at a time end at their limits")
def reads():
    context = Context(name=DEVICE)
    limit, pd, cq = context.query_device().max_qp_rd_atom, PD(context), CQ(context, 4)
    for served, asked, wanted in [(limit, limit, 0), (limit + 1, 1, errno.EINVAL), (1, limit + 1, errno.EINVAL)]:
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(max_send_wr=1, max_recv_wr=1))
        qp = QP(pd, init)
        equal(errno_of_pyverbs(connect, context, qp, qp.qp_num, 14, served, asked), wanted, f"{served} served, {asked} asked")


def datagram_qp():
    """Returns a new context, a UD QP of it, and the handle of the QP."""
    context = Context(name=DEVICE)
    pd, cq = PD(context), CQ(context, 4)
    handle = free_handle(context)
    qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_UD, scq=cq, rcq=cq, cap=QPCap(max_send_wr=1, max_recv_wr=1)))
    attr = QPAttr(port_num=1)
    attr.qkey = QKEY
    qp.to_rts(attr)
    return context, qp, handle


def group(number):
    return bytes(10) + b"\xff\xff" + struct.pack(">I", 239 << 24 | 7 << 16 | number)


def attachable(count):
    """Attaches a new QP to `count` groups. Returns the number attached, the errno of the first
    failure or 0, and the QP."""
    context, qp, handle = datagram_qp()
    for number in range(count):
        code = errno_of(attach_mcast, context, handle, group(number))
        if code:
            return number, code, qp
    return count, 0, qp


@case("a QP is attached to a group once, whatever LID the attachment names, and can be destroyed")
def attached_once():
    def attach():
        context, _qp, handle = datagram_qp()
        codes = [errno_of(attach_mcast, context, handle, group(1), lid) for lid in (0, 0, 1, 0xc000)]
        # uverbs itself responds to the repeated attachment, without a call of the driver.
        equal(codes, [0, 0, errno.EINVAL, errno.EINVAL], "errnos of attachments")

    def left():
        command = ["rdma", "resource", "show", "qp", "link", f"{DEVICE}/1"]
        return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout.count("type UD")

    in_child(attach)
    wait_until_equal(left, 0, "QPs of the process that ended")


@case("a user has a share of the multicast groups, and others find room")
def attachments():
    def of_another_user():
        become_nobody()
        equal(attachable(1)[:2], (1, 0), "groups of another user")

    def all_of_root():
        number, code, _qp = attachable(ATTACHMENTS + 1)
        equal((number, code), (ATTACHMENTS, errno.ENOMEM), "groups of root, and what ends them")
        equal(attachable(1)[:2], (0, errno.ENOMEM), "groups of another context of root")
        in_child(of_another_user)

    in_child(all_of_root)
    in_child(lambda: equal(attachable(1)[:2], (1, 0), "groups of root when those are left"))


@case("a user can't fill a multicast group")
def members():
    def attach():
        context, qp, handle = datagram_qp()
        return errno_of(attach_mcast, context, handle, group(1)), qp

    def of_another_user():
        become_nobody()
        attached = [attach() for _ in range(MEMBERS - OF_ONE + 1)]
        wanted = [0] * (MEMBERS - OF_ONE) + [errno.ENOMEM]
        equal([code for code, _ in attached], wanted, "errnos of another user's QPs, up to the group's limit")

    def all_of_root():
        attached = [attach() for _ in range(OF_ONE + 1)]
        equal([code for code, _ in attached], [0] * OF_ONE + [errno.ENOMEM], "errnos of root's QPs")
        in_child(of_another_user)

    in_child(all_of_root)


@contextlib.contextmanager
def in_namespace(uid_map, work):
    """Runs a process of UID 1000 in a new user namespace with that UID map until the block ends.
    Root makes the namespace. The process calls `work` before the block begins, and keeps the
    result."""
    theirs, ours = socket.socketpair()

    def stay():
        ours.close()
        if not uid_map:
            os.setresuid(1000, 0, 0)
        equal(libc.unshare(CLONE_NEWUSER), 0, "result of unshare()")
        theirs.send(b"m")
        theirs.recv(1)
        if uid_map:
            os.setresuid(1000, 1000, 1000)
        held = work()
        theirs.send(b"w")
        theirs.recv(1)
        del held

    child = start_child(stay)
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


@case("a user has one share in all user namespaces of root's that have no other user")
def namespaces():
    def all_of_user():
        number, code, qp = attachable(ATTACHMENTS + 1)
        equal((number, code), (ATTACHMENTS, errno.ENOMEM), "groups of a user, and what ends them")
        return qp

    alone = "1000 1000 1"
    with in_namespace(alone, all_of_user):
        for uid_map, wanted in (alone, (0, errno.ENOMEM)), ("", (0, errno.ENOMEM)), ("1000 1000 2", (1, 0)):
            with in_namespace(uid_map, lambda: equal(attachable(1)[:2], wanted, f"groups beside, with {uid_map!r}")):
                pass


if __name__ == "__main__":
    sys.exit(main())
