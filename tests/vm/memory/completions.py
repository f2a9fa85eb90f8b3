#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests of CQ attributes and of the import of contexts: completions.py DEVICE GID-INDEX.

The stock provider librxe has no calls for moderation (`ibv_modify_cq()`) and the import of contexts
(`ibv_import_device()`), so these cases use uverbs commands. The QPs of a case are RC QPs of DEVICE
that are connected in one process (loopback, by entry GID-INDEX of the GID table).
"""

import errno
import os
import select
import signal
import subprocess
import sys
import time

from pyverbs.cq import CQEX, CqInitAttrEx
from pyverbs.device import Context
import pyverbs.enums as e
from pyverbs.pd import PD
from pyverbs.qp import QP, QPCap, QPInitAttr
from pyverbs.wr import RecvWR, SGE, SendWR

from pairs import (
    DEVICE, PAGE, Buffer, Pair, case, connect, equal, fail_on_alarm, main, pattern, register, state,
)
import uverbs

# Longest period of a moderated CQ, in seconds: 65,535 µs, the maximum of its 16-bit field.
MAX_PERIOD = 0.065535


def moderate(context, count, period):
    """Moderates both CQs of a pair. pyverbs doesn't give their handles, so all handles below 16 are
    tried."""
    errnos = [
        uverbs.errno_of(uverbs.modify_cq, context, handle, count, period) for handle in range(16)
    ]
    equal(errnos.count(0), 2, f"number of handles that are CQs, errnos {errnos}")


def event_files():
    return [
        int(name) for name in os.listdir("/proc/self/fd")
        if os.path.islink(f"/proc/self/fd/{name}")
        and "infinibandevent" in os.readlink(f"/proc/self/fd/{name}")
    ]


class Listener:
    """A pair whose second QP has a moderated CQ with a completion channel."""

    def __init__(self, count, period):
        self.pair = Pair(depth=64, listens=True)
        self.buffer = Buffer(PAGE)
        self.region = register(self.pair.pd, self.buffer)
        moderate(self.pair.context, count, period)

    def send(self, count, length=8):
        """Sends `count` messages. Returns the seconds until the event, and the number of
        completions by then.

        Receives have 8 bytes: a longer message is an error."""
        element = SGE(self.buffer.address, length, self.region.lkey)
        receive = SGE(self.buffer.address, 8, self.region.lkey)
        for _ in range(count):
            self.pair.qps[1].post_recv(RecvWR(num_sge=1, sg=[receive]))
        self.pair.cqs[1].req_notify()
        began = time.monotonic()
        for _ in range(count):
            self.pair.qps[0].post_send(SendWR(opcode=e.IBV_WR_SEND, num_sge=1, sg=[element]))
        signal.alarm(10)
        self.pair.channel.get_cq_event(self.pair.cqs[1])
        signal.alarm(0)
        took = time.monotonic() - began
        self.pair.cqs[1].ack_events(1)
        self.pair.cqs[0].poll(16)
        return took, self.pair.cqs[1].poll(16)[0]


@case("a moderated CQ raises the event of few completions after its period")
def moderated_by_period():
    for _ in range(3):
        # Each round has a new CQ: completions after the event would count for the next event.
        took, polled = Listener(4, 65535).send(3)
        equal((took >= MAX_PERIOD, polled), (True, 3),
              f"event after the period ({took:.3f} s), number of completions")


@case("a moderated CQ raises the event at once when its count is reached")
def moderated_by_count():
    listener = Listener(4, 65535)
    taken = [listener.send(4) for _ in range(5)]
    equal([polled for _, polled in taken], [4] * 5, "number of completions of each event")
    equal(min(took for took, _ in taken) < MAX_PERIOD, True, f"event before the period ({taken})")


@case("a CQ whose moderation is switched off raises an event for each completion")
def no_longer_moderated():
    listener = Listener(4, 65535)
    listener.send(1)
    for count, period in [(0, 0), (1000, 0), (0, 1000)]:
        moderate(listener.pair.context, count, period)
        taken = [listener.send(1)[0] for _ in range(5)]
        equal(min(taken) < MAX_PERIOD, True, f"event before the period ({taken})")


@case("a moderated CQ raises the event of an error at once")
def moderated_error():
    fastest = min(Listener(4, 65535).send(1, length=16)[0] for _ in range(3))
    equal(fastest < MAX_PERIOD, True, f"event before the period ({fastest:.3f} s)")


@case("ibv_modify_cq() refuses attributes other than moderation")
def refused_attributes():
    context = Context(name=DEVICE)
    handle = uverbs.create_cq(context, 8, 0)
    for mask, wanted in [(1, 0), (0, errno.EINVAL), (2, errno.EOPNOTSUPP), (3, errno.EOPNOTSUPP)]:
        got = uverbs.errno_of(uverbs.modify_cq, context, handle, 1, 1, mask)
        equal(got, wanted, f"errno of mask {mask}")


@case("an overrun of a CQ with IGNORE_OVERRUN raises no event and leaves its QP in RTS")
def ignores_overrun():
    before = event_files()
    context = Context(name=DEVICE)
    files = [file for file in event_files() if file not in before]
    equal(len(files), 1, "files of asynchronous events")
    flags = {"comp_mask": e.IBV_CQ_INIT_ATTR_MASK_FLAGS,
             "flags": e.IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN}
    cq = CQEX(context, CqInitAttrEx(cqe=3, **flags))
    pd = PD(context)
    cap = QPCap(max_send_wr=16, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
    qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap, sq_sig_all=1))
    connect(context, qp, qp.qp_num)
    buffer = Buffer(PAGE)
    region = register(pd, buffer)

    def write(number):
        buffer.fill(pattern(8), 0)
        wr = SendWR(wr_id=number, opcode=e.IBV_WR_RDMA_WRITE, num_sge=1,
                    sg=[SGE(buffer.address, 8, region.lkey)])
        wr.set_wr_rdma(region.rkey, buffer.address + 64 * number)
        qp.post_send(wr)
        end = time.monotonic() + 5
        while buffer.read(8, 64 * number) != pattern(8) and time.monotonic() < end:
            time.sleep(0.001)
        equal(buffer.read(8, 64 * number), pattern(8), f"data of write {number}")

    def polled():
        found = []
        while cq.start_poll(None) == 0 if not found else cq.poll_next() == 0:
            found.append(cq.wr_id)
        if found:
            cq.end_poll()
        return found

    for number in range(1, 7):
        write(number)
    time.sleep(0.05)
    equal(state(qp), e.IBV_QPS_RTS, "state of the QP")
    equal(polled(), [1, 2, 3], "completions that fitted")
    write(7)
    time.sleep(0.05)
    equal(polled(), [7], "completions after the overrun")
    equal(select.select(files, [], [], 0)[0], [], "asynchronous events")


@case("a CQ with completion time stamps is refused")
def no_timestamps():
    context = Context(name=DEVICE)
    equal(uverbs.errno_of(uverbs.create_cq, context, 8, 0), 0, "errno without flags")
    for flags in (1, 3, 4):
        equal(uverbs.errno_of(uverbs.create_cq, context, 8, flags), errno.EOPNOTSUPP,
              f"errno of flags {flags}")


IMPORTER = """
import sys, types, uverbs
context = types.SimpleNamespace(cmd_fd=int(sys.argv[1]))
info = uverbs.query_context(context)
mr = uverbs.IoctlMr.imported(context, int(sys.argv[2]))
print(*info, *mr.query())
"""


@case("another process can query a context and a region that it imports")
def imported():
    pair = Pair()
    buffer = Buffer(PAGE)
    mr = uverbs.reg_mr(pair.pd, pair.context, buffer.address, 100, buffer.address, 1)
    fd = pair.context.cmd_fd
    done = subprocess.run(
        [sys.executable, "-c", IMPORTER, str(fd), str(mr.handle)],
        cwd=os.path.dirname(os.path.abspath(__file__)),
        pass_fds=[fd], stdout=subprocess.PIPE, text=True, check=True,
    )
    vectors, support, *found = (int(word) for word in done.stdout.split())
    equal(vectors, pair.context.num_comp_vectors, "completion vectors")
    equal(support & 1, 1, "support of optional access rights")
    equal(tuple(found), (mr.lkey, mr.rkey, 100, buffer.address),
          "keys, length and address of the region")
    equal(state(pair.qps[0]), e.IBV_QPS_RTS, "state of a QP after the other process ended")
    mr.close()


signal.signal(signal.SIGALRM, fail_on_alarm)
sys.exit(main())
