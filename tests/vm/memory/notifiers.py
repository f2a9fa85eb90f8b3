#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests beside a process with permanent invalidations: notifiers.py DEVICE GID-INDEX MODE.

Threads of the process call madvise(MADV_FREE) without a pause. So a call that waits until no range
of the address space is being invalidated (`mmu_interval_notifier_remove()`) waits for as long as
the process lives. No system call of another process may wait for that. MODE is one of:
  calls  runs the test cases
  stay   starts such a process, and another one that advises its on-demand memory. Prints "ready",
         and ends both processes at the end of the standard input.
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
from kprobes import Calls
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
DEMAND = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_ON_DEMAND
# Number of threads that invalidate the memory.
THREADS = 12
# Of madvise(2) and mmap(2).
FREE, NOHUGEPAGE, NORESERVE = 8, 15, 0x4000
# IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE, and IB_UVERBS_ADVISE_MR_FLAG_FLUSH: the call returns
# when the advice has been followed.
WRITE, FLUSH = 1, 1
# Seconds after which a call counts as stuck. It takes some milliseconds.
SECONDS = 240 if IS_DEBUG_KERNEL else 80

# Machine code (x86-64) that calls madvise(argument, LENGTH, FREE) in an endless loop. A Python
# thread would wait for the interpreter lock between two calls, and leave moments without an
# invalidation.
INVALIDATE = (
    b"\x48\xbe" + struct.pack("=Q", LENGTH)  # mov rsi, LENGTH
    + b"\xba" + struct.pack("=I", FREE)      # mov edx, FREE
    + b"\xb8" + struct.pack("=I", 28)        # again: mov eax, SYS_madvise
    + b"\x0f\x05"                            # syscall
    + b"\xeb\xf7"                            # jmp again
)

libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.pthread_create.argtypes = [ctypes.c_void_p] * 4

# Kernel functions that are called when a chunk is created and when it is released.
INSERT, REMOVE = "mmu_interval_notifier_insert", "mmu_interval_notifier_remove"
# Attempts to have a period without a release.
ATTEMPTS = 6


def invalidate(memory):
    """Starts threads that invalidate the memory. Returns their code, which must stay mapped."""
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(INVALIDATE)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(code))
    for _ in range(THREADS):
        thread = ctypes.c_ulong()
        equal(libc.pthread_create(ctypes.byref(thread), None, begin, memory.address), 0, "a thread")
    return code


def use_all(pd, context, memory, region):
    """Faults a page of each chunk in, by advice."""
    places = [(at, 8, region.lkey) for at in range(memory.address, memory.address + memory.length, CHUNK)]
    for first in range(0, len(places), 100):
        advise_mr(pd, context, WRITE, FLUSH, places[first:first + 100])


def spin(tell):
    """Body of the process: registers and uses regions, then invalidates their memory.

    Sends their address, handles and key through the socket `tell`, and the file of the context. On
    the message "e" it deregisters the regions and replies. On the next message, or any other one,
    it registers another region, advises its memory, replies and sleeps."""
    become_nobody()
    memory, other = PrivateBuffer(LENGTH, mmap.MAP_PRIVATE | NORESERVE), PrivateBuffer(4 * CHUNK)
    libc.madvise(memory.address, memory.length, NOHUGEPAGE)
    context = Context(name=DEVICE)
    pd = PD(context)
    regions = [MR(pd, LENGTH, DEMAND, address=memory.address) for _ in range(REGIONS)]
    use_all(pd, context, memory, regions[0])
    _code = invalidate(memory)
    time.sleep(2)
    numbers = [pd.handle, regions[0].lkey] + [region.handle for region in regions]
    socket.send_fds(tell, [struct.pack(f"=Q{len(numbers)}I", memory.address, *numbers)], [context.cmd_fd])
    if tell.recv(1) == b"e":
        for region in regions:
            region.close()
        tell.send(b"x")
        tell.recv(1)
    _region = MR(pd, other.length, DEMAND, address=other.address)
    # A thread of the process follows the advice. It creates a chunk and then waits for the
    # invalidations.
    advise_mr(pd, context, WRITE, 0, [(other.address, 8, _region.lkey)])
    tell.send(b"x")
    while True:
        signal.pause()


class Spinner:
    """The process whose memory is invalidated, and system calls of others in its context."""

    def __init__(self):
        self.told, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.child = start_child(lambda: spin(theirs))
        theirs.close()
        numbers, fds, _, _ = socket.recv_fds(self.told, 4096, 1)
        self.address, pd, self.lkey, *self.regions = struct.unpack(f"=Q{2 + REGIONS}I", numbers)
        self.context, self.pd = SimpleNamespace(cmd_fd=fds[0]), SimpleNamespace(handle=pd)

    def end_others(self):
        """Has the process deregister its regions. Waits until a thread waits for invalidations."""
        self.told.send(b"e")
        equal(self.told.recv(1), b"x", "its word that regions have ended")
        # By then all of their chunks wait for their release.
        becomes(lambda: len(held_up()) >= 1, True, "a thread is held up")

    def use_another(self):
        """Has the process register and advise another region."""
        self.told.send(b"u")
        equal(self.told.recv(1), b"x", "its word")

    def advise(self):
        """Advises the memory in an endless loop.

        Each call returns when the advice has been followed. A call may fail, because the pages
        change all the time."""
        while True:
            code = errno_of(advise_mr, self.pd, self.context, 0, FLUSH, [(self.address, mmap.PAGESIZE, self.lkey)])
            equal(code in (0, errno.EBUSY, errno.EFAULT), True, f"errno {code} of advice")

    def dereg(self):
        """Deregisters all regions, which ends all chunks."""
        for handle in self.regions:
            ioctl(self.context, OBJECT_MR, METHOD_MR_DESTROY, (0, handle))

    def end(self):
        os.close(self.context.cmd_fd)
        os.kill(self.child, signal.SIGKILL)
        os.waitpid(self.child, 0)


def state(child):
    with contextlib.suppress(OSError), open(f"/proc/{child}/stack", encoding="ascii") as stack:
        return stack.read()
    return ""


def ended(child, what, progress=None):
    """Returns the exit status of the child.

    Fails if the child has not ended after SECONDS. Each change of the first byte of `progress`
    starts the time anew. `what` names the child in messages."""
    begin, seen = time.monotonic(), None
    heard = begin
    while time.monotonic() < heard + SECONDS:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            if (took := time.monotonic() - begin) > 0.05:
                print(f"# {what} took {took:.3f} s")
            return status
        if progress and progress[0] != seen:
            heard, seen = time.monotonic(), progress[0]
        time.sleep(0.02)
    raise AssertionError(f"{what} has not ended: {state(child)}")


def held_up():
    """Returns the numbers of the threads that wait for invalidations of a process."""
    workers = [name for name in os.listdir("/proc") if name.isdigit()]
    return [name for name in workers if "mmu_interval_notifier_remove" in state(name)]


@case("deregistration waits for no invalidation of the process")
def dereg():
    spinner = Spinner()
    try:
        equal(ended(start_child(spinner.dereg), "deregistration"), 0, "its status")
        wait_until_equal(lambda: len(held_up()) >= 1, True, "a thread is held up")
    finally:
        spinner.end()


@case("a process has chunks made while none waits for its release")
def unbounded():
    spinner = Spinner()
    try:
        with Calls(INSERT) as calls:
            spinner.use_another()
            wait_until_equal(lambda: calls.count(INSERT) > 0, True, "a chunk is made")
    finally:
        spinner.end()


def made_while_hundreds_wait():
    """Returns the number of chunks that a process creates while old ones wait for release.

    Returns None if a chunk was released during the measurement. That happens when the invalidating
    threads get no CPU time."""
    spinner = Spinner()
    try:
        with Calls(INSERT, REMOVE) as calls:
            spinner.end_others()
            removed = calls.count(REMOVE)
            spinner.use_another()
            time.sleep(3)
            made = calls.count(INSERT)
            return made if calls.count(REMOVE) == removed else None
    finally:
        spinner.end()


@case("chunks that wait for their release are bounded")
def bounded():
    attempts = (made_while_hundreds_wait() for _ in range(ATTEMPTS))
    equal(next((made for made in attempts if made is not None), None), 0, "chunks made while hundreds wait")


@case("each process holds up one thread, and others find one")
def one_thread_each():
    spinners = [Spinner() for _ in range(2)]
    most = Path("/sys/devices/virtual/workqueue/rrxe_release/max_active")
    before = most.read_text()
    most.write_text(str(len(spinners) + 1))
    progress = mmap.mmap(-1, mmap.PAGESIZE)

    def register():
        context, memory = Context(name=DEVICE), PrivateBuffer(mmap.PAGESIZE)
        pd = PD(context)
        # More chunks than may wait for their release (64).
        for progress[0] in range(80):
            region = MR(pd, memory.length, DEMAND, address=memory.address)
            advise_mr(pd, context, WRITE, FLUSH, [(memory.address, 8, region.lkey)])
            region.close()

    try:
        for spinner in spinners:
            equal(ended(start_child(spinner.dereg), "deregistration"), 0, "its status")
        wait_until_equal(lambda: len(held_up()) >= 1, True, "a thread is held up")
        equal(ended(start_child(register), "another process", progress), 0, "the status of another process")
    finally:
        most.write_text(before)
        for spinner in spinners:
            spinner.end()


@case("who waits for advice, or for a thread that follows it, can be killed")
def killed():
    # Pieces of advice of a memory cgroup that are followed or queued: at most 16. The others wait.
    group, count = memory_group("advisers"), 20
    spinner = Spinner()

    def advise():
        join(group)
        spinner.advise()

    try:
        children = [start_child(advise) for _ in range(count)]
        time.sleep(5)
        for child in children:
            equal(os.waitpid(child, os.WNOHANG), (0, 0), "it waits")
            os.kill(child, signal.SIGKILL)
        for child in children:
            equal(ended(child, "the end of who gave advice"), signal.SIGKILL, "its status")
    finally:
        spinner.end()
        remove_group(group)


def stay():
    spinner = Spinner()
    child = start_child(spinner.advise)
    time.sleep(1)
    print("ready", flush=True)
    sys.stdin.read()
    os.kill(child, signal.SIGKILL)
    spinner.end()


if sys.argv[3] == "stay":
    stay()
else:
    sys.exit(main())
