#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests beside a process whose memory is always invalidated: notifiers.py DEVICE GID-INDEX MODE.

Threads of the process call madvise(MADV_FREE) without a pause. So a call that waits until no range
of the address space is being invalidated (`mmu_interval_notifier_remove()`) waits for as long as
the process lives. No system call of another process may wait for such a call. MODE is one of:
  calls  runs the test cases
  stay   starts such a process, and a second one that gives advice on the on-demand memory of the
         first. Prints "ready", and ends both processes at the end of the standard input.
"""

import contextlib
import ctypes
import errno
import mmap
import os
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pyverbs.enums as e
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD

from cgroups import join, memory_group, remove_group
from kprobes import KprobeCounter
from pairs import (
    DEVICE, IS_DEBUG_KERNEL, PrivateBuffer, become_nobody, case, equal, libc, main, start_child,
    wait_until_equal,
)
from uverbs import METHOD_MR_DESTROY, OBJECT_MR, advise_mr, errno_of, ioctl

# Bytes of address space that share one MMU notifier (rust/rdma/memory/odp.rs), and number of
# regions.
CHUNK, REGIONS = 2 << 20, 20
# Bytes: of 300 chunks. Beyond 256 chunks, the driver looks for chunks without pages only when there
# are 512 (`remove_empty()` of address_space.rs). So it frees none of these.
LENGTH = 300 * CHUNK
ODP_ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_ON_DEMAND
# Number of threads that invalidate the memory.
THREADS = 12
# Of madvise(2) and mmap(2).
MADV_FREE, MADV_NOHUGEPAGE, MAP_NORESERVE = 8, 15, 0x4000
# IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE, and IB_UVERBS_ADVISE_MR_FLAG_FLUSH: the call returns
# when the advice has been followed.
PREFETCH_WRITE, FLAG_FLUSH = 1, 1
# Seconds after which a call counts as stuck. It takes some milliseconds.
TIMEOUT = 240 if IS_DEBUG_KERNEL else 80

# Machine code that calls madvise(argument, LENGTH, MADV_FREE) in an endless loop. A Python thread would
# wait for the interpreter lock between two calls, and leave moments without an invalidation.
INVALIDATE = {
    "x86_64": (
        b"\x48\xbe" + struct.pack("=Q", LENGTH)   # mov rsi, LENGTH
        + b"\xba" + struct.pack("=I", MADV_FREE)  # mov edx, MADV_FREE
        + b"\xb8" + struct.pack("=I", 28)         # again: mov eax, SYS_madvise
        + b"\x0f\x05"                             # syscall
        + b"\xeb\xf7"                             # jmp again
    ),
    "aarch64": struct.pack(
        "=7I",
        0xAA0003F3,                        # mov x19, x0
        0xAA1303E0,                        # again: mov x0, x19
        0xD2A00001 | (LENGTH >> 16) << 5,  # mov x1, LENGTH
        0xD2800002 | MADV_FREE << 5,       # mov x2, MADV_FREE
        0xD2800008 | 233 << 5,             # mov x8, SYS_madvise
        0xD4000001,                        # svc 0
        0x17FFFFFB,                        # b again
    ),
}[os.uname().machine]

libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.pthread_create.argtypes = [ctypes.c_void_p] * 4

# Kernel functions that are called when a chunk is created and when it is released.
INSERT_NOTIFIER, REMOVE_NOTIFIER = "mmu_interval_notifier_insert", "mmu_interval_notifier_remove"
# Number of attempts at a measurement during which no chunk is released.
ATTEMPTS = 6


def start_invalidation(memory):
    """Starts threads that invalidate the memory. Returns their code, which must stay mapped."""
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(INVALIDATE)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(code))
    for _ in range(THREADS):
        thread = ctypes.c_ulong()
        equal(libc.pthread_create(ctypes.byref(thread), None, begin, memory.address), 0,
              "pthread_create()")
    return code


def fault_in_each_chunk(pd, context, memory, region):
    """Faults a page of each chunk in, by advice."""
    ranges = [(at, 8, region.lkey) for at in range(memory.address, memory.address + memory.length,
                                                   CHUNK)]
    for first in range(0, len(ranges), 100):
        advise_mr(pd, context, PREFETCH_WRITE, FLAG_FLUSH, ranges[first:first + 100])


def run_process(control):
    """Body of the process: registers and uses regions, then invalidates their memory.

    Sends the address of the memory, the handles and a key of the regions, and the file of the
    context through the socket `control`. If the first message is "e", it deregisters the regions,
    replies, and reads a second message. Then it registers another region, gives advice on the
    memory of that region, replies and sleeps."""
    become_nobody()
    memory, other = PrivateBuffer(LENGTH, mmap.MAP_PRIVATE | MAP_NORESERVE), PrivateBuffer(4 * CHUNK)
    libc.madvise(memory.address, memory.length, MADV_NOHUGEPAGE)
    context = Context(name=DEVICE)
    pd = PD(context)
    regions = [MR(pd, LENGTH, ODP_ACCESS, address=memory.address) for _ in range(REGIONS)]
    fault_in_each_chunk(pd, context, memory, regions[0])
    _code = start_invalidation(memory)
    time.sleep(2)
    numbers = [pd.handle, regions[0].lkey] + [region.handle for region in regions]
    socket.send_fds(control, [struct.pack(f"=Q{len(numbers)}I", memory.address, *numbers)],
                    [context.cmd_fd])
    if control.recv(1) == b"e":
        for region in regions:
            region.close()
        control.send(b"x")
        control.recv(1)
    _region = MR(pd, other.length, ODP_ACCESS, address=other.address)
    # A thread of the process follows the advice. If at most 64 old chunks wait for their release,
    # it creates a chunk and then waits for the invalidations.
    advise_mr(pd, context, PREFETCH_WRITE, 0, [(other.address, 8, _region.lkey)])
    control.send(b"x")
    while True:
        signal.pause()


class InvalidatingProcess:
    """The process whose memory is invalidated, and system calls of others in its context."""

    def __init__(self):
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.child = start_child(lambda: run_process(theirs))
        theirs.close()
        numbers, fds, _, _ = socket.recv_fds(self.control, 4096, 1)
        self.address, pd, self.lkey, *self.regions = struct.unpack(f"=Q{2 + REGIONS}I", numbers)
        self.context, self.pd = SimpleNamespace(cmd_fd=fds[0]), SimpleNamespace(handle=pd)

    def deregister_first(self):
        """Has the process deregister its regions. Waits until a thread waits for invalidations."""
        self.control.send(b"e")
        equal(self.control.recv(1), b"x", "reply that the regions have ended")
        # By then all of their chunks wait for their release.
        wait_until_equal(lambda: len(blocked_threads()) >= 1, True, "a thread waits for invalidations")

    def register_another(self):
        """Has the process register and advise another region."""
        self.control.send(b"u")
        equal(self.control.recv(1), b"x", "reply that the region is in use")

    def advise(self):
        """Advises the memory in an endless loop.

        Each call returns when the advice has been followed. A call may fail, because the pages
        change all the time."""
        while True:
            code = errno_of(advise_mr, self.pd, self.context, 0, FLAG_FLUSH,
                            [(self.address, mmap.PAGESIZE, self.lkey)])
            equal(code in (0, errno.EBUSY, errno.EFAULT), True, f"errno {code} of advice")

    def dereg(self):
        """Deregisters all regions, which ends all chunks."""
        for handle in self.regions:
            ioctl(self.context, OBJECT_MR, METHOD_MR_DESTROY, (0, handle))

    def end(self):
        os.close(self.context.cmd_fd)
        os.kill(self.child, signal.SIGKILL)
        os.waitpid(self.child, 0)


def kernel_stack(child):
    with contextlib.suppress(OSError), open(f"/proc/{child}/stack", encoding="ascii") as stack:
        return stack.read()
    return ""


def wait_for_exit(child, label, progress=None):
    """Returns the exit status of the child.

    Fails if the child has not ended after TIMEOUT. Each change of the first byte of `progress`
    starts the time anew. `label` names the child in messages."""
    begin, seen = time.monotonic(), None
    last_progress = begin
    while time.monotonic() < last_progress + TIMEOUT:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            if (took := time.monotonic() - begin) > 0.05:
                print(f"# {label} took {took:.3f} s")
            return status
        if progress and progress[0] != seen:
            last_progress, seen = time.monotonic(), progress[0]
        time.sleep(0.02)
    raise AssertionError(f"{label} has not ended: {kernel_stack(child)}")


def blocked_threads():
    """Returns the thread IDs of the tasks that wait for invalidations of a process."""
    tasks = [name for name in os.listdir("/proc") if name.isdigit()]
    return [name for name in tasks if "mmu_interval_notifier_remove" in kernel_stack(name)]


@case("deregistration does not wait for invalidations of the process")
def deregistration():
    process = InvalidatingProcess()
    try:
        equal(wait_for_exit(start_child(process.dereg), "deregistration"), 0,
              "status of the deregistering process")
        wait_until_equal(lambda: len(blocked_threads()) >= 1, True, "a thread waits for invalidations")
    finally:
        process.end()


@case("chunks can be created while no other chunk waits for its release")
def creation_without_waiters():
    process = InvalidatingProcess()
    try:
        with KprobeCounter(INSERT_NOTIFIER) as calls:
            process.register_another()
            wait_until_equal(lambda: calls.count(INSERT_NOTIFIER) > 0, True, "a chunk is created")
    finally:
        process.end()


def count_created_while_waiting():
    """Returns the number of chunks that a process creates while old ones wait for release.

    Returns None if a chunk was released during the measurement. That happens when the invalidating
    threads get no CPU time."""
    process = InvalidatingProcess()
    try:
        with KprobeCounter(INSERT_NOTIFIER, REMOVE_NOTIFIER) as calls:
            process.deregister_first()
            removed = calls.count(REMOVE_NOTIFIER)
            process.register_another()
            time.sleep(3)
            made = calls.count(INSERT_NOTIFIER)
            return made if calls.count(REMOVE_NOTIFIER) == removed else None
    finally:
        process.end()


@case("no chunk is created while hundreds of chunks wait for their release")
def creation_with_waiters():
    attempts = (count_created_while_waiting() for _ in range(ATTEMPTS))
    equal(next((made for made in attempts if made is not None), None), 0,
          "chunks created while hundreds wait for their release")


@case("each process occupies one thread of rrxe_release, and another process finds one")
def one_thread_each():
    processes = [InvalidatingProcess() for _ in range(2)]
    most = Path("/sys/devices/virtual/workqueue/rrxe_release/max_active")
    before = most.read_text()
    most.write_text(str(len(processes) + 1))
    progress = mmap.mmap(-1, mmap.PAGESIZE)

    def register():
        context, memory = Context(name=DEVICE), PrivateBuffer(mmap.PAGESIZE)
        pd = PD(context)
        # More chunks than may wait for their release (64).
        for progress[0] in range(80):
            region = MR(pd, memory.length, ODP_ACCESS, address=memory.address)
            advise_mr(pd, context, PREFETCH_WRITE, FLAG_FLUSH, [(memory.address, 8, region.lkey)])
            region.close()

    try:
        for process in processes:
            equal(wait_for_exit(start_child(process.dereg), "deregistration"), 0,
                  "status of the deregistering process")
        wait_until_equal(lambda: len(blocked_threads()) >= 1, True, "a thread waits for invalidations")
        equal(wait_for_exit(start_child(register), "another process", progress), 0,
              "status of another process that registers regions")
    finally:
        most.write_text(before)
        for process in processes:
            process.end()


@case("processes that wait for their advice can be killed")
def killed_advisers():
    # The advice of 16 calls of a memory cgroup is followed or queued at a time. Other calls wait.
    group, count = memory_group("advisers"), 20
    process = InvalidatingProcess()

    def advise():
        join(group)
        process.advise()

    try:
        children = [start_child(advise) for _ in range(count)]
        time.sleep(5)
        for child in children:
            equal(os.waitpid(child, os.WNOHANG), (0, 0), "the process waits for its advice")
            os.kill(child, signal.SIGKILL)
        for child in children:
            equal(wait_for_exit(child, "the end of an adviser"), signal.SIGKILL,
                  "status of the adviser")
    finally:
        process.end()
        remove_group(group)


def hold():
    process = InvalidatingProcess()
    child = start_child(process.advise)
    time.sleep(1)
    print("ready", flush=True)
    sys.stdin.read()
    os.kill(child, signal.SIGKILL)
    process.end()


if sys.argv[3] == "stay":
    hold()
else:
    sys.exit(main())
