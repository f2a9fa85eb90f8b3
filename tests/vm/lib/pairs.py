#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Framework for test programs that use pairs of connected QPs of one device.

Usage of such a program: PROGRAM DEVICE GID-INDEX. It declares test cases with `case`, and `main`
runs them and prints a TAP line for each. Each case makes its own QPs, as a refused access moves QPs
to the error state.
"""

import ctypes
import ipaddress
import mmap
import os
import sys
import time
import traceback

from pyverbs.addr import AH, AHAttr, GID, GlobalRoute
from pyverbs.cq import CompChannel, CQ
from pyverbs.device import Context
import pyverbs.enums as e
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

import userfault

DEVICE, GID_INDEX = sys.argv[1], int(sys.argv[2])
PAGE = mmap.PAGESIZE
LOCAL_WRITE = e.IBV_ACCESS_LOCAL_WRITE
REMOTE_WRITE = e.IBV_ACCESS_REMOTE_WRITE
REMOTE_READ = e.IBV_ACCESS_REMOTE_READ
ALL = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC

# Timeout of QPs unless a case sets another: 4.096 us * 2^19, some 2 s. It is that long because an
# emulated machine on a busy host is slow, above all with a debug kernel.
TIMEOUT = 19
# User ID and group ID of the user nobody, who has no privileges.
NOBODY = 65534
# Seconds for which a case waits for an event before it fails.
LIMIT_SECONDS = 120
# Whether the kernel has debug checks (kmemleak). Emulated, such a kernel transfers some hundred KiB
# per second, so cases use smaller sizes and counts.
IS_DEBUG_KERNEL = os.path.exists("/sys/kernel/debug/kmemleak")

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE

cases = []


def case(name):
    """Decorator that registers a test case. The case fails if the function raises an exception."""
    def register(function):
        cases.append((name, function))
        return function
    return register


def equal(seen, wanted, what="value"):
    if seen != wanted:
        raise AssertionError(f"{what}: {seen!r}, and expected {wanted!r}")


def errno_of_pyverbs(call, *arguments):
    """Makes a call of pyverbs. Returns 0, or the errno with which it fails."""
    try:
        call(*arguments)
    except PyverbsRDMAError as error:
        return error.error_code
    return 0


def counter(name, device=DEVICE):
    """Returns the value of a hardware counter of the device's port."""
    path = f"/sys/class/infiniband/{device}/ports/1/hw_counters/{name}"
    with open(path, encoding="ascii") as file:
        return int(file.read())


def fail_on_alarm(*_):
    """Signal handler for SIGALRM: fails the case."""
    raise AssertionError("nothing came in time")


def start_child(work):
    """Forks a process that runs `work`, and returns its PID.

    The process ends with status 0, or with 1 if `work` raises an exception.
    """
    # Otherwise the child would print its copy of the buffered output again.
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except Exception as error:
            print(f"#   {error!r}")
        finally:
            sys.stdout.flush()
            os._exit(status)
    return child


def in_child(work):
    """Runs `work` in a child process and waits for it. Fails if `work` fails."""
    equal(os.waitpid(start_child(work), 0)[1], 0, "the child's status")


def become_nobody():
    """Makes "nobody" the user of the process. The process can't undo that."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def map_memory(length, fd=-1, offset=0, flags=mmap.MAP_SHARED, at=None):
    """Maps a file, or anonymous memory if there is no `fd`. Returns the address, or -errno."""
    if fd < 0:
        flags |= mmap.MAP_ANONYMOUS
    if at is not None:
        flags |= 0x10  # MAP_FIXED
    address = libc.mmap(at, length, READ_WRITE, flags, fd, offset)
    return -ctypes.get_errno() if address == ctypes.c_void_p(-1).value else address


class Buffer:
    """New anonymous memory, mapped shared."""

    def __init__(self, length):
        self.length = length
        self.address = map_memory(length)

    def fill(self, data, offset=0):
        ctypes.memmove(self.address + offset, bytes(data), len(data))

    def read(self, length, offset=0):
        return ctypes.string_at(self.address + offset, length)


class PrivateBuffer(Buffer):
    """New anonymous memory, mapped private."""

    def __init__(self, length, flags=mmap.MAP_PRIVATE):
        self.length = length
        self.address = map_memory(length, flags=flags)


class MappedMemory(Buffer):
    """Memory that is mapped at a given address already."""

    def __init__(self, address, length=PAGE):
        equal(address > 0, True, f"a mapping ({address})")
        self.address, self.length = address, length


def present_pages(memory):
    """Returns how many pages of the memory are present in the process's page table."""
    with open("/proc/self/pagemap", "rb") as pagemap:
        pagemap.seek(memory.address // PAGE * 8)
        entries = pagemap.read(memory.length // PAGE * 8)
    return sum(entries[at + 7] >> 7 for at in range(0, len(entries), 8))


def pinned_kib():
    """Returns how many KiB the process has pinned (VmPin in /proc/self/status)."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmPin:"))


def memory_with_unserved_faults(length):
    """Returns new memory and a userfaultfd. Faults on it wait until the userfaultfd is closed."""
    memory = PrivateBuffer(length)
    return memory, userfault.open_faults_of(memory)


# The data of `pattern`, which repeats these bytes.
PERIOD = bytes((index * 7 + index // 251) & 0xff for index in range(251 * 256))


def pattern(length):
    return (PERIOD * (length // len(PERIOD) + 1))[:length]


def free_handle(context):
    """Returns the lowest free handle of the context, which its next object will get."""
    probe = PD(context)
    handle = probe.handle
    probe.close()
    return handle


def gid_at(address):
    """Returns the GID of an IPv4 or IPv6 address.

    pyverbs requires all eight groups with four digits each.
    """
    mapped = address if ":" in address else f"::ffff:{address}"
    return GID(ipaddress.IPv6Address(mapped).packed.hex(":", 2))


def connect(context, qp, peer, timeout=TIMEOUT, served=4, asked=4, gid_index=GID_INDEX, dgid=None, rnr_timer=12,
            rnr_retry=7, psn=0):
    """Connects a QP to the QP with QPN `peer` and moves it to RTS.

    The peer is on the device with the GID `dgid`, or else on the same device. `served` and `asked`
    are the maximum numbers of outstanding READs and atomics, as responder and as requester.
    """
    route = GlobalRoute(dgid=dgid or context.query_gid(1, gid_index), sgid_index=gid_index)
    attr = QPAttr(port_num=1)
    attr.qp_access_flags = ALL
    attr.path_mtu = e.IBV_MTU_1024
    attr.dest_qp_num = peer
    attr.rq_psn = attr.sq_psn = psn
    attr.max_dest_rd_atomic, attr.max_rd_atomic = served, asked
    attr.min_rnr_timer = rnr_timer
    attr.timeout = timeout
    attr.retry_cnt, attr.rnr_retry = 7, rnr_retry
    attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
    qp.to_rts(attr)


def next_completion(cq, seconds=LIMIT_SECONDS):
    """Waits for the next completion of a CQ and returns it. Fails after these seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        count, completions = cq.poll(1)
        if count:
            return completions[0]
    raise AssertionError("no completion")


class Pair:
    """Two QPs, connected to each other, with one CQ each on one protection domain.

    With `beside` they share context, PD and CQs of that pair. With `listens` the second CQ has a
    completion channel. `depth` is the size of the queues, `cqe` and `peer_cqe` those of the CQs.
    Further arguments go to `connect`.
    """

    def __init__(self, depth=16, cqe=64, peer_cqe=64, listens=False, beside=None, **connection):
        if beside:
            self.context, self.pd, self.channel, self.cqs = beside.context, beside.pd, beside.channel, beside.cqs
        else:
            self.context = Context(name=DEVICE)
            self.pd = PD(self.context)
            self.channel = CompChannel(self.context) if listens else None
            self.cqs = [CQ(self.context, cqe), CQ(self.context, peer_cqe, channel=self.channel)]
        cap = QPCap(max_send_wr=depth, max_recv_wr=depth, max_send_sge=2, max_recv_sge=2)
        self.qps = [
            QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap, sq_sig_all=1)) for cq in self.cqs
        ]
        for qp, peer in zip(self.qps, reversed(self.qps)):
            connect(self.context, qp, peer.qp_num, **connection)

    def post(self, opcode, local, remote, number=1):
        """Posts an RDMA operation on the first QP.

        `local` is (address, length, lkey), and `remote` begins with (address, rkey).
        """
        wr = SendWR(wr_id=number, opcode=opcode, num_sge=1, sg=[SGE(*local)])
        wr.set_wr_rdma(remote[1], remote[0])
        self.qps[0].post_send(wr)

    def status(self):
        """Waits for the first QP's next completion and returns its status."""
        return next_completion(self.cqs[0]).status

    def transfer(self, opcode, local, remote):
        self.post(opcode, local, remote)
        return self.status()

    def write(self, local, remote):
        return self.transfer(e.IBV_WR_RDMA_WRITE, local, remote)

    def read(self, local, remote):
        return self.transfer(e.IBV_WR_RDMA_READ, local, remote)

    def state(self, which=0):
        return state(self.qps[which])


class Datagrams:
    """A UD QP that sends datagrams from one buffer to a QPN, TARGET, that no QP has."""

    QKEY, TARGET = 0x1111, 0x1234

    def __init__(self, depth=256):
        self.context = Context(name=DEVICE)
        self.pd, self.cq, self.buffer = PD(self.context), CQ(self.context, depth), Buffer(PAGE)
        self.depth, self.seen = depth, 0
        self.region = register(self.pd, self.buffer)
        cap = QPCap(max_send_wr=depth, max_recv_wr=1)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_UD, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1))
        attr = QPAttr(port_num=1)
        attr.qkey = self.QKEY
        self.qp.to_rts(attr)

    def post(self, address, count, length=512, flow_label=0):
        """Posts `count` datagrams by one call.

        Datagrams with the same flow label other than 0 have the same UDP source port. Returns the
        address handle, which the caller must keep until the QP has sent the datagrams.
        """
        route = GlobalRoute(dgid=gid_at(address), sgid_index=GID_INDEX, flow_label=flow_label)
        handle = AH(self.pd, attr=AHAttr(port_num=1, is_global=1, gr=route))
        requests = []
        for number in range(count):
            sge, after = SGE(self.buffer.address, length, self.region.lkey), requests[-1] if requests else None
            requests.append(SendWR(wr_id=number, opcode=e.IBV_WR_SEND, num_sge=1, sg=[sge], next_wr=after))
            requests[-1].set_wr_ud(handle, self.TARGET, self.QKEY)
        self.qp.post_send(requests[-1])
        return handle

    def completed(self):
        """Returns how many datagrams have completed so far."""
        self.seen += len(self.cq.poll(self.depth)[1])
        return self.seen


def state(qp):
    attr, _ = qp.query(e.IBV_QP_STATE)
    return attr.qp_state


def wait_until_equal(value, wanted, what):
    """Waits until `value()` equals `wanted`. Fails after LIMIT_SECONDS seconds."""
    end = time.monotonic() + LIMIT_SECONDS
    while (seen := value()) != wanted and time.monotonic() < end:
        time.sleep(0.01)
    equal(seen, wanted, what)


def wait_for_state(qp, wanted):
    """Waits until the QP is in the state `wanted`. Fails after LIMIT_SECONDS seconds."""
    wait_until_equal(lambda: state(qp), wanted, "state of a QP")


def register(pd, buffer, access=ALL, offset=0, length=None):
    return MR(pd, buffer.length - offset if length is None else length, access, address=buffer.address + offset)


def register_filled_buffer(pair, length, fill=True):
    """Makes a buffer, fills it with `pattern` if asked to, and registers it as a pinned region.

    Returns the buffer and its (address, length, lkey). The pair keeps a reference to the region.
    """
    buffer = Buffer(length)
    if fill:
        buffer.fill(pattern(length))
    region = register(pair.pd, buffer)
    pair.kept = getattr(pair, "kept", []) + [region]
    return buffer, (buffer.address, length, region.lkey)


def main():
    failed = 0
    for name, function in cases:
        try:
            function()
        except Exception:  # of any kind: the other cases still run
            failed += 1
            print(f"not ok - {name}")
            for line in traceback.format_exc().splitlines():
                print(f"#   {line}")
        else:
            print(f"ok - {name}")
        sys.stdout.flush()
    return 1 if failed else 0
