#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""What on-demand regions may cost others, and the end of their process: bounds.py DEVICE GID-INDEX."""

import ctypes
import functools
import mmap
import os
import socket
import subprocess
import sys
import time

import pyverbs.enums as e
from pyverbs.mr import MR

import pairs
from pairs import ALL, PAGE, Buffer, case, equal, libc, main, register
from userfault import Private, unanswered
from uverbs import advise_mr

DEMAND, SUCCESS = ALL | e.IBV_ACCESS_ON_DEMAND, e.IBV_WC_SUCCESS
WRITE, FLUSH = 1, 1
CHUNK = 2 << 20
NOHUGEPAGE, NORESERVE = 15, 0x4000
TRACING = "/sys/kernel/tracing"

# Machines that are emulated on busy hosts take milliseconds to take a page away.
Pair = functools.partial(pairs.Pair, timeout=19)

libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def known(pair, length):
    """A pinned buffer: its region, and (address, length, lkey)."""
    buffer = Buffer(length)
    region = register(pair.pd, buffer)
    return region, (buffer.address, length, region.lkey)


class Calls:
    """Counts calls of functions of the kernel, all that there are meanwhile."""

    def __init__(self, *functions):
        self.functions = functions

    def __enter__(self):
        if not os.path.exists(f"{TRACING}/kprobe_events"):
            subprocess.run(["mount", "-t", "tracefs", "tracefs", TRACING], check=True)
        for name in self.functions:
            self._append(f"p:odp_{name} {name}\n")
            self._enable(name, "1")
        return self

    @staticmethod
    def _append(line):
        # Python's own mode for appending seeks to the end, which the file refuses.
        events = os.open(f"{TRACING}/kprobe_events", os.O_WRONLY | os.O_APPEND)
        os.write(events, line.encode())
        os.close(events)

    def _enable(self, name, value):
        with open(f"{TRACING}/events/kprobes/odp_{name}/enable", "w", encoding="ascii") as enable:
            enable.write(value)

    def count(self, name):
        with open(f"{TRACING}/kprobe_profile", encoding="ascii") as profile:
            rows = [line.split() for line in profile]
        return next(int(row[1]) + int(row[2]) for row in rows if row[0] == f"odp_{name}")

    def __exit__(self, *_):
        for name in self.functions:
            self._enable(name, "0")
            self._append(f"-:odp_{name}\n")


def sparse(count):
    """Memory of so many chunks, of which one page each is used."""
    memory = Private(count * CHUNK, mmap.MAP_PRIVATE | NORESERVE)
    libc.madvise(memory.address, memory.length, NOHUGEPAGE)
    return memory


def use_sparse(pair, space, memory):
    """Has one page of each chunk faulted in, to be written."""
    places = [(at, 8, space.lkey) for at in range(memory.address, memory.address + memory.length, CHUNK)]
    for first in range(0, len(places), 100):
        advise_mr(pair.pd, pair.context, WRITE, FLUSH, places[first:first + 100])


@case("the end of a process with many chunks waits for no grace period of each")
def many_chunks():
    count = 1000
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            pair = Pair()
            space, memory = MR(pair.pd, 0, DEMAND, implicit=True), sparse(count)
            use_sparse(pair, space, memory)
            os.write(writer, b"x")
            time.sleep(600)
        finally:
            os._exit(1)
    os.close(writer)
    equal(os.read(reader, 1), b"x", "the child's word")
    with Calls("synchronize_rcu_expedited", "mmu_interval_notifier_remove") as calls:
        begin = time.monotonic()
        os.kill(child, 9)
        os.waitpid(child, 0)
        took = time.monotonic() - begin
        end = time.monotonic() + 60
        while calls.count("mmu_interval_notifier_remove") < count and time.monotonic() < end:
            time.sleep(0.05)
        equal(calls.count("mmu_interval_notifier_remove") >= count, True, "all chunks are freed")
        waits = calls.count("synchronize_rcu_expedited")
    print(f"# {waits} expedited grace periods, {took:.3f} s")
    equal(waits < count // 10, True, f"few grace periods ({waits})")


@case("chunks whose pages are gone are freed")
def old_chunks():
    pair = Pair()
    space = MR(pair.pd, 0, DEMAND, implicit=True)
    with Calls("mmu_interval_notifier_insert", "mmu_interval_notifier_remove") as calls:
        for _ in range(10):
            memory = sparse(100)
            use_sparse(pair, space, memory)
            libc.munmap(memory.address, memory.length)
            # The next one lies elsewhere.
            Private(memory.length, mmap.MAP_PRIVATE | NORESERVE)
        made, freed = calls.count("mmu_interval_notifier_insert"), calls.count("mmu_interval_notifier_remove")
    print(f"# {made} chunks made, {freed} freed")
    equal(made >= 200, True, f"chunks made ({made})")
    equal(made - freed <= 250, True, f"chunks kept ({made - freed})")


@case("chunks are charged to the process that they are for")
def charged_chunks():
    count, group = 200, "/sys/fs/cgroup/odp"
    if not os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
        subprocess.run(["mount", "-t", "cgroup2", "cgroup2", "/sys/fs/cgroup"], check=True)
    with open("/sys/fs/cgroup/cgroup.subtree_control", "w", encoding="ascii") as control:
        control.write("+memory")
    os.mkdir(group)

    def charged():
        # The counters are brought together every two seconds.
        time.sleep(3)
        with open(f"{group}/memory.stat", encoding="ascii") as file_:
            words = dict(line.split() for line in file_)
        return int(words["slab"]) + int(words["pagetables"])

    child = os.fork()
    if child == 0:
        status = 1
        try:
            with open(f"{group}/cgroup.procs", "w", encoding="ascii") as processes:
                processes.write("0")
            pair = Pair()
            space, memory = MR(pair.pd, 0, DEMAND, implicit=True), sparse(count)
            _own, (mine, _, lkey) = known(pair, PAGE)
            before = charged()
            # By a peer: the memory is faulted in by a thread of the kernel.
            for at in range(memory.address, memory.address + memory.length, CHUNK):
                equal(pair.write((mine, 8, lkey), (at, space.rkey)), SUCCESS, "write")
            grown = charged() - before
            print(f"# {count} chunks and page tables: {grown} bytes")
            # A page of entries and a page of a page table for each.
            equal(grown > count * PAGE * 3 // 2, True, f"bytes charged ({grown})")
            status = 0
        except Exception as error:
            print(f"#   {error!r}")
        finally:
            sys.stdout.flush()
            os._exit(status)
    equal(os.waitpid(child, 0)[1], 0, "the child's status")
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            os.rmdir(group)
            break
        except OSError:
            time.sleep(0.1)


@case("faults that are never answered hold up nobody else, and no removal")
def stuck():
    # The file goes to this process by a socket, so that it outlives the other.
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    child = os.fork()
    if child == 0:
        try:
            pair = Pair()
            memory, fd = unanswered(64 * PAGE)
            region = register(pair.pd, memory, DEMAND)
            sge = (memory.address, 8, region.lkey)
            # More than there are threads of a work queue, and a QP.
            for _ in range(1100):
                advise_mr(pair.pd, pair.context, WRITE, 0, [sge])
            _own, local = known(pair, PAGE)
            pair.post(e.IBV_WR_RDMA_WRITE, local, (memory.address, region.rkey))
            socket.send_fds(theirs, [b"x"], [fd])
            time.sleep(600)
        finally:
            os._exit(1)
    theirs.close()
    fd = socket.recv_fds(ours, 1, 1)[1][0]
    try:
        pair, memory = Pair(), Private(4 * PAGE)
        region = register(pair.pd, memory, DEMAND)
        _own, local = known(pair, PAGE)
        equal(pair.write(local, (memory.address, region.rkey)), SUCCESS, "another process's write")
        os.kill(child, 9)
        equal(os.waitpid(child, 0)[1], 9, "the child's end")
        removal = subprocess.run(["timeout", "-s", "KILL", "60", "rmmod", "rrxe"], stderr=subprocess.PIPE, check=False)
        equal((removal.returncode, b"in use" in removal.stderr), (1, True), f"removal ({removal.stderr})")
    finally:
        os.close(fd)


sys.exit(main())
