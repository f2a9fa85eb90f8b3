#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests trains: packets of one message that a QP gives to a QP of the same device as one.

  trains.py DEVICE GID-INDEX

Each case connects RC QPs of DEVICE in one process (loopback, by entry GID-INDEX of the GID table),
transfers data and compares it. The counter sent_trains shows whether trains were used.
"""

import errno
import os
import random
import sys
import time

import pyverbs.enums as e
from pyverbs.qp import QPAttr
from pyverbs.wr import RecvWR, SGE, SendWR

from pairs import (
    ALL, LOCAL_WRITE, PAGE, Buffer, Pair, case, counter, equal, errno_of_pyverbs, main,
    memory_with_unserved_faults, pattern, register, wait_until_equal,
)

SUCCESS, LOC_PROT_ERR, LOC_LEN_ERR = e.IBV_WC_SUCCESS, e.IBV_WC_LOC_PROT_ERR, e.IBV_WC_LOC_LEN_ERR
REM_ACCESS_ERR, REM_INV_REQ_ERR = e.IBV_WC_REM_ACCESS_ERR, e.IBV_WC_REM_INV_REQ_ERR
ON_DEMAND = e.IBV_ACCESS_ON_DEMAND
# Bytes of a packet: Pair connects with a path MTU of 1,024.
MTU = 1024
LENGTHS = (MTU + 1, 4 * MTU, 5 * PAGE + 77, 1 << 20)


class Memory:
    """A buffer with a region. `key` is its L_Key and R_Key."""

    def __init__(self, pair, length, access=ALL):
        self.buffer = Buffer(length)
        self.region = register(pair.pd, self.buffer, access)
        self.address, self.key = self.buffer.address, self.region.lkey

    def piece(self, offset, length):
        return (self.address + offset, length, self.key)


def status_of(pair, which):
    """Waits for the next completion of a QP, and returns its status."""
    pair.cqs = pair.cqs if which == 0 else list(reversed(pair.cqs))
    try:
        return pair.status()
    finally:
        pair.cqs = pair.cqs if which == 0 else list(reversed(pair.cqs))


def send(pair, pieces, target):
    """Sends the pieces of memory as one message to the second QP's piece `target`. Returns the
    statuses of the sender's and of the receiver's completion."""
    pair.qps[1].post_recv(RecvWR(wr_id=7, num_sge=1, sg=[SGE(*target)]))
    request = SendWR(wr_id=8, opcode=e.IBV_WR_SEND, num_sge=len(pieces), sg=[SGE(*piece) for piece in pieces])
    pair.qps[0].post_send(request)
    return pair.status(), status_of(pair, 1)


def sent_trains():
    """Returns the number of trains that the device has sent."""
    # ib_core shows values of up to 10 ms ago (RDMA_HW_STATS_DEFAULT_LIFESPAN, rdma/ib_verbs.h).
    time.sleep(0.02)
    return counter("sent_trains")


def trains_during(work):
    """Calls `work` and returns the number of trains sent meanwhile."""
    before = sent_trains()
    work()
    return sent_trains() - before


def move(pair, verb, source, target, length, at):
    """Moves `length` bytes from offset `at` of `source` to offset 5 of `target`, and compares them
    and the bytes beside them. The target had zeros."""
    data = pattern(at + length)[at:]
    source.buffer.fill(data, at)
    target.buffer.fill(bytes(length + 10))
    local, remote = source.piece(at, length), target.piece(5, length)
    if verb == "send":
        equal(send(pair, [local], remote), (SUCCESS, SUCCESS), "statuses of a SEND")
    elif verb == "write":
        equal(pair.write(local, (remote[0], remote[2])), SUCCESS, "status of a WRITE")
    else:
        equal(pair.read(remote, (local[0], local[2])), SUCCESS, "status of a READ")
    equal(target.buffer.read(length + 10), bytes(5) + data + bytes(5), f"data of a {verb} of {length} bytes")


@case("trains: messages of several packets go as trains, with the right data")
def use_trains():
    pair = Pair()
    source, target = Memory(pair, (1 << 20) + 64), Memory(pair, (1 << 20) + 64)
    for verb in ("send", "write", "read"):
        for length in LENGTHS:
            for at in (0, 13):
                trains = trains_during(lambda: move(pair, verb, source, target, length, at))
                packets = -(-length // MTU)
                # The first packet of a connection shows whether the peer is on this host.
                equal(0 < trains <= packets // 2 or packets == 2, True, f"{trains} trains of {packets} packets")
                if length == 1 << 20:
                    equal(trains < packets // 8, True, f"{trains} trains of {packets} packets")


@case("trains: a message of several SGEs arrives in order")
def gathers():
    pair = Pair()
    source, target = Memory(pair, 40 * PAGE), Memory(pair, 40 * PAGE)
    generator = random.Random(3)
    for _ in range(20):
        lengths = [generator.randrange(1, 10 * PAGE) for _ in range(2)]
        data = bytes(generator.randrange(256) for _ in range(64)) * (sum(lengths) // 64 + 1)
        data = data[:sum(lengths)]
        source.buffer.fill(data[:lengths[0]], 20 * PAGE)
        source.buffer.fill(data[lengths[0]:], 1)
        pieces = [source.piece(20 * PAGE, lengths[0]), source.piece(1, lengths[1])]
        target.buffer.fill(bytes(target.buffer.length))
        equal(send(pair, pieces, target.piece(3, len(data))), (SUCCESS, SUCCESS), "statuses")
        equal(target.buffer.read(len(data) + 1, 3), data + b"\0", "gathered data")


@case("trains: memory on demand is served packet by packet")
def on_demand():
    for accesses in ((ALL | ON_DEMAND, ALL), (ALL, ALL | ON_DEMAND)):
        pair = Pair()
        source, target = (Memory(pair, 66 * PAGE, access) for access in accesses)
        for verb in ("send", "write", "read"):
            move(pair, verb, source, target, 64 * PAGE, 3)


@case("trains: a message that is too long for the receive buffer fails as a message of packets does")
def too_long():
    pair = Pair()
    source, target = Memory(pair, 64 * PAGE), Memory(pair, 64 * PAGE)
    move(pair, "send", source, target, 8 * PAGE, 0)
    source.buffer.fill(pattern(8 * PAGE))
    target.buffer.fill(bytes(64 * PAGE))
    statuses = send(pair, [source.piece(0, 8 * PAGE)], target.piece(0, 7 * PAGE))
    equal(statuses, (REM_INV_REQ_ERR, LOC_LEN_ERR), "statuses")
    equal(target.buffer.read(PAGE, 8 * PAGE), bytes(PAGE), "bytes behind the receive buffer")


@case("trains: a WRITE beyond a region and a READ without a right are refused, and nothing is copied")
def refuses():
    pair = Pair()
    source, target = Memory(pair, 16 * PAGE), Memory(pair, 16 * PAGE)
    move(pair, "write", source, target, 8 * PAGE, 0)
    source.buffer.fill(pattern(16 * PAGE))
    target.buffer.fill(bytes(16 * PAGE))
    beyond = (target.address + 9 * PAGE, target.key)
    equal(pair.write(source.piece(0, 8 * PAGE), beyond), REM_ACCESS_ERR, "status of the WRITE")
    equal(target.buffer.read(16 * PAGE), bytes(16 * PAGE), "the region")
    pair = Pair()
    source, target = Memory(pair, 16 * PAGE, LOCAL_WRITE), Memory(pair, 16 * PAGE)
    status = pair.read(target.piece(0, 8 * PAGE), (source.address, source.key))
    equal(status, REM_ACCESS_ERR, "status of the READ")
    equal(target.buffer.read(16 * PAGE), bytes(16 * PAGE), "the buffer of the READ")


@case("trains: a source without a region, or of a region that is gone, fails the request")
def source_is_gone():
    for invalidate in (lambda memory: memory.region.close(), lambda memory: setattr(memory, "key", 0x777)):
        pair = Pair()
        source, target = Memory(pair, 16 * PAGE), Memory(pair, 16 * PAGE)
        move(pair, "write", source, target, 8 * PAGE, 0)
        invalidate(source)
        remote = (target.address, target.key)
        equal(pair.write(source.piece(0, 8 * PAGE), remote), LOC_PROT_ERR, "status of the WRITE")


def pair_with_absent_memory(verb, **connection):
    """Returns a pair that has used trains for `verb`, its source with a pattern, its target with
    zeros, and a page of memory with its on-demand region. Faults on that page wait until the last
    returned value, a userfaultfd, is closed. Arguments go to `Pair`."""
    pair = Pair(**connection)
    source, target = Memory(pair, 16 * PAGE), Memory(pair, 16 * PAGE)
    move(pair, verb, source, target, 8 * PAGE, 0)
    absent, faults = memory_with_unserved_faults(PAGE)
    region = register(pair.pd, absent, ALL | ON_DEMAND)
    source.buffer.fill(pattern(8 * PAGE))
    target.buffer.fill(bytes(16 * PAGE))
    return pair, source, target, absent, region, faults


def reuse(source, absent, faults):
    """Writes other data to `source`. Then lets the QP that waits for `absent` go on, and gives it
    the time to copy what waits for it."""
    source.buffer.fill(b"secret! " * (8 * PAGE // 8))
    os.close(faults)
    wait_until_equal(lambda: absent.read(64) == pattern(64), True, "the data that waited first arrives")
    time.sleep(0.5)


@case("trains: memory of a request that was flushed is not sent any more")
def flushed_source():
    """The second QP waits for a page fault of its owner, while a train waits for the QP. Meanwhile
    the sender's request is flushed, and the process writes other data to its memory."""
    pair, source, target, absent, region, faults = pair_with_absent_memory("write")
    trains = sent_trains()
    pair.post(e.IBV_WR_RDMA_WRITE, source.piece(0, 64), (absent.address, region.rkey), 1)
    pair.post(e.IBV_WR_RDMA_WRITE, source.piece(0, 8 * PAGE), (target.address, target.key), 2)
    wait_until_equal(lambda: sent_trains() > trains, True, "a train of the second request is sent")
    pair.qps[0].modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    for _ in range(2):
        equal(pair.status(), e.IBV_WC_WR_FLUSH_ERR, "status of a request")
    reuse(source, absent, faults)
    equal(target.buffer.read(16 * PAGE), bytes(16 * PAGE), "the target of the second request")


@case("trains: a refused transition to ERR or RESET loses no train")
def refused_transition():
    """The second QP waits for a page fault of its owner, while a train waits for the QP. Meanwhile
    changes of the sender's QP are refused. A lost train would cause a sequence NAK."""
    pair, source, target, absent, region, faults = pair_with_absent_memory("write", timeout=0)
    trains, repeats = sent_trains(), counter("completer_retry_err")
    pair.post(e.IBV_WR_RDMA_WRITE, source.piece(0, 64), (absent.address, region.rkey), 1)
    pair.post(e.IBV_WR_RDMA_WRITE, source.piece(0, 8 * PAGE), (target.address, target.key), 2)
    wait_until_equal(lambda: sent_trains() > trains, True, "a train of the second request is sent")
    for state in (e.IBV_QPS_ERR, e.IBV_QPS_RESET):
        attr = QPAttr(qp_state=state, cur_qp_state=e.IBV_QPS_RTR)
        refused = errno_of_pyverbs(pair.qps[0].modify, attr, e.IBV_QP_STATE | e.IBV_QP_CUR_STATE)
        equal(refused, errno.EINVAL, "errno of a change from a state that the QP is not in")
    os.close(faults)
    for _ in range(2):
        equal(pair.status(), SUCCESS, "status of a request")
    equal(target.buffer.read(8 * PAGE), pattern(8 * PAGE), "the target of the second request")
    time.sleep(0.02)
    equal(counter("completer_retry_err"), repeats, "times that requests were sent again")


@case("trains: memory of a READ is not sent any more after the transition of the responder's QP to ERR")
def flushed_responder():
    read_after_error(8 * PAGE, lambda pair: pair.qps[1].modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE))


@case("trains: memory of a READ is not sent any more after a refused request has broken the responder's QP")
def broken_responder():
    # One run of the responder's QP sends the whole response to a READ of four packets.
    read_after_error(4 * MTU, None)


def read_after_error(length, fail):
    """The first QP waits for a page fault of its owner, while READ responses of `length` bytes wait
    for the QP. Meanwhile the responder's QP, which has no work requests, goes to ERR by `fail`, or
    by a third request without a right if that is None. The process then writes other data to its
    memory."""
    pair, source, target, absent, region, faults = pair_with_absent_memory("read")
    trains = sent_trains()
    # One call posts all, because the QP sends no request while it waits for the page fault.
    reads = [(absent.address, 64, region.lkey), target.piece(0, length)]
    requests = [] if fail else [SendWR(wr_id=1, opcode=e.IBV_WR_RDMA_WRITE, num_sge=1, sg=[SGE(*target.piece(0, 8))])]
    for request in requests:
        request.set_wr_rdma(0x777, source.address)
    for local in reversed(reads):
        requests.append(SendWR(wr_id=1, opcode=e.IBV_WR_RDMA_READ, num_sge=1, sg=[SGE(*local)],
                               next_wr=requests[-1] if requests else None))
        requests[-1].set_wr_rdma(source.key, source.address)
    pair.qps[0].post_send(requests[-1])
    if fail:
        wait_until_equal(lambda: sent_trains() > trains, True, "a train of the second response is sent")
        fail(pair)
    else:
        state = lambda: pair.qps[1].query(e.IBV_QP_STATE)[0].qp_state
        wait_until_equal(state, e.IBV_QPS_ERR, "the state of the responder's QP")
    reuse(source, absent, faults)
    equal(b"secret!" in target.buffer.read(16 * PAGE), False, "other data in the target of the second READ")


@case("trains: many messages in flight in both directions keep their order and their data")
def both_ways():
    pair = Pair(depth=64, cqe=256, peer_cqe=256)
    length, count = 9 * MTU + 1, 48
    memories = [Memory(pair, 64 * length) for _ in range(2)]
    for _ in range(4):
        for memory in memories:
            memory.buffer.fill(pattern(count // 2 * length))
            memory.buffer.fill(bytes(count // 2 * length), count // 2 * length)
        for number in range(count // 2):
            for which, qp in enumerate(pair.qps):
                mine, theirs = memories[which], memories[1 - which]
                wr = SendWR(wr_id=number, opcode=e.IBV_WR_RDMA_WRITE, num_sge=1,
                            sg=[SGE(*mine.piece(number * length, length))])
                wr.set_wr_rdma(theirs.key, theirs.address + (count // 2 + number) * length)
                qp.post_send(wr)
        for _ in range(count // 2):
            equal((pair.status(), status_of(pair, 1)), (SUCCESS, SUCCESS), "statuses")
        for memory in memories:
            equal(memory.buffer.read(count // 2 * length, count // 2 * length), pattern(count // 2 * length), "data")


sys.exit(main())
