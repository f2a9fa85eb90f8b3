#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests of the charging of page faults and advice to the process: fault_costs.py DEVICE GID-INDEX.

Kernel threads of the process (`rrxe_faults`) serve page faults on its on-demand regions, and follow
advice (`ibv_advise_mr()`). So their CPU time, quotas and lifetime are those of the process. The
cases read /proc and cgroup files, and count calls of kernel functions by kprobes. Each case
connects RC QPs of DEVICE in one process (loopback, by entry GID-INDEX of the GID table)."""

import contextlib
import errno
import mmap
import os
import re
import resource
import signal
import struct
import sys
import threading
import time
from pathlib import Path

import pyverbs.enums as e
from pyverbs.mr import MR

from cgroups import join, make_group, remove_group
from cpu_time import packets_sent_by_items, worker_ticks
from kprobes import KprobeCounter
from pairs import (
    ALL, NOBODY, PAGE, Pair, PrivateBuffer, become_nobody, case, equal, errno_of_pyverbs, in_child,
    main, register, register_filled_buffer, start_child, wait_until_equal,
)
from userfault import FAULT_THREADS, await_fault, open_faults_of, serve_zeros
from uverbs import IoctlMr, advise_mr, reg_mr

ODP_ACCESS = ALL | e.IBV_ACCESS_ON_DEMAND
SUCCESS, REM_ACCESS_ERR = e.IBV_WC_SUCCESS, e.IBV_WC_REM_ACCESS_ERR
# Kinds of advice (enum ib_uverbs_advise_mr_advice), and the flag to follow it before the call
# returns.
PREFETCH, PREFETCH_WRITE, FLAG_FLUSH = 0, 1, 1
# Of mmap(2).
MAP_NORESERVE = 0x4000
GIB = 1 << 30
# Number of the system call ioctl(2).
NR_IOCTL = {"x86_64": 16, "aarch64": 29}[os.uname().machine]
# Name of the threads, and of the work queue that hands page faults to them. Kernel function that
# each piece of a page fault or of advice calls.
FAULT_THREAD, WALK = "rrxe_faults", "hmm_range_fault_unlocked_timeout"


def fault_threads():
    """Returns the user ID of each thread of this process that serves page faults."""
    users = []
    for task in Path("/proc/self/task").iterdir():
        # The thread may end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            lines = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
            if lines["Name"].strip() == FAULT_THREAD:
                users.append(int(lines["Uid"].split()[0]))
    return users


@case("threads of the process, with its user ID, serve the page faults of all its regions")
def thread_of_the_process():
    def work():
        become_nobody()
        equal(fault_threads(), [], "threads before the first registration")
        pair, memory = Pair(), PrivateBuffer(PAGE)
        regions = [register(pair.pd, memory, ODP_ACCESS), MR(pair.pd, 0, ODP_ACCESS, implicit=True)]
        equal(fault_threads(), [NOBODY], "users of the threads")
        # While one thread runs a job, another thread waits for the next job.
        equal(pair.write(register_filled_buffer(pair, PAGE)[1], (memory.address, regions[0].rkey)), SUCCESS,
              "write to absent memory")
        equal(fault_threads(), [NOBODY, NOBODY], "users of the threads")
        for region in regions:
            region.close()
        wait_until_equal(fault_threads, [], "threads after the end of the regions")

    in_child(work)


@case("a process at its limit of threads can't register an on-demand region")
def no_thread():
    def work():
        become_nobody()
        pair, memory = Pair(), PrivateBuffer(PAGE)
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
        for _ in range(2):
            equal(errno_of_pyverbs(register, pair.pd, memory, ODP_ACCESS), errno.EAGAIN,
                  "errno of registration")
        register(pair.pd, memory, ALL)

    in_child(work)


@case("up to 15 unanswered page faults of a process delay no other page fault")
def unanswered_faults():
    def work():
        unanswered, memory = PrivateBuffer(PAGE), PrivateBuffer(PAGE)
        faults = open_faults_of(unanswered)
        first = Pair()
        unanswered_region = register(first.pd, unanswered, ODP_ACCESS)
        region = register(first.pd, memory, ODP_ACCESS)
        _, local = register_filled_buffer(first, PAGE)
        waiting = [Pair(beside=first) for _ in range(FAULT_THREADS + 4)]
        for pair in waiting[: FAULT_THREADS - 1]:
            pair.post(e.IBV_WR_RDMA_WRITE, local, (unanswered.address, unanswered_region.rkey))
            await_fault(faults)
        equal(first.write(local, (memory.address, region.rkey)), SUCCESS,
              "write to other absent memory")
        for pair in waiting[FAULT_THREADS - 1 :]:
            pair.post(e.IBV_WR_RDMA_WRITE, local, (unanswered.address, unanswered_region.rkey))
        await_fault(faults)
        equal(len(fault_threads()), FAULT_THREADS, "threads")
        serve_zeros(faults, unanswered.address, PAGE)
        for _ in waiting:
            equal(first.status(), SUCCESS, "write that waited for its page fault")

    in_child(work)


@case("the CPU time of advice is charged to the process")
def cpu_time():
    def work():
        pair, memory = Pair(), PrivateBuffer(64 << 20)
        memory.fill(b"x")
        region = register(pair.pd, memory, ODP_ACCESS)
        ranges = [(memory.address, memory.length, region.lkey)] * 100
        before, workers = time.process_time(), worker_ticks()
        advise_mr(pair.pd, pair.context, PREFETCH, FLAG_FLUSH, ranges)
        own = (time.process_time() - before) * os.sysconf("SC_CLK_TCK")
        workers = worker_ticks() - workers
        print(f"# ticks of the process: {own:.0f}, of the kernel's workers: {workers}")
        equal(own > 10, True, f"more than 10 ticks of the process ({own})")
        equal(workers < own // 4, True, f"few ticks of the kernel's workers ({workers})")

    in_child(work)


@case("the CPU quota of a cgroup limits the advice of its processes")
def cpu_quota():
    group, seconds = make_group("quota", "cpu"), 10
    quota = Path(group, "cpu.max")
    if not quota.exists():
        print("# a kernel without CONFIG_CFS_BANDWIDTH has no quotas")
        return remove_group(group)
    quota.write_text("10000 100000", encoding="ascii")

    def used():
        return int(re.search(r"usage_usec (\d+)",
                             Path(group, "cpu.stat").read_text(encoding="ascii"))[1]) / 1e6

    def work():
        join(group)
        pair, memory = Pair(), PrivateBuffer(64 << 20)
        memory.fill(b"x")
        region = register(pair.pd, memory, ODP_ACCESS)
        # This advice takes minutes to follow, and the process sleeps meanwhile.
        ranges = [(memory.address, memory.length, region.lkey)] * 2000
        for _ in range(4):
            advise_mr(pair.pd, pair.context, PREFETCH, 0, ranges)
        time.sleep(1000)

    child = start_child(work)
    with KprobeCounter(WALK) as calls:
        wait_until_equal(lambda: calls.count(WALK) > 0, True, "advice is followed")
    before = used()
    time.sleep(seconds)
    took = used() - before
    os.kill(child, 9)
    os.waitpid(child, 0)
    remove_group(group)
    print(f"# {took:.2f} s of CPU time in {seconds} s")
    equal(took < seconds / 3, True, f"CPU time in {seconds} s is below a third ({took})")


@case("advice is not followed after its process has ended")
def end_of_process():
    def work():
        pair, memory = Pair(), PrivateBuffer(16 * GIB, mmap.MAP_PRIVATE | MAP_NORESERVE)
        region = register(pair.pd, memory, ODP_ACCESS)
        # 16 GiB are more than the memory of the machine.
        for first in range(16):
            address = memory.address + first * GIB
            advise_mr(pair.pd, pair.context, PREFETCH_WRITE, 0, [(address, GIB, region.lkey)])
        with KprobeCounter(WALK) as calls:
            wait_until_equal(lambda: calls.count(WALK) > 0, True, "advice is followed")
        # The process exits without closing any object.
        os._exit(0)

    equal(os.waitpid(start_child(work), 0)[1], 0, "exit status of the child")
    with KprobeCounter(WALK) as calls:
        time.sleep(2)
        equal(calls.count(WALK), 0, "walks of page tables")


@case("advice is not followed after execve() of its process")
def execve():
    def work():
        pair, memory = Pair(), PrivateBuffer(16 * GIB, mmap.MAP_PRIVATE | MAP_NORESERVE)
        os.set_inheritable(pair.context.cmd_fd, True)
        region = register(pair.pd, memory, ODP_ACCESS)
        advise_mr(pair.pd, pair.context, PREFETCH_WRITE, 0,
                  [(memory.address, 2 * GIB, region.lkey)])
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(2)"])

    child = start_child(work)
    wait_until_equal(lambda: Path(f"/proc/{child}/cmdline").read_bytes().endswith(b"sleep(2)\0"), True,
            "the other program runs")
    with KprobeCounter(WALK) as calls:
        time.sleep(1)
        equal(calls.count(WALK), 0, "walks of page tables")
    equal(os.waitpid(child, 0)[1], 0, "exit status of the child")


@case("a work item, and not a system call, ends superfluous threads of a process")
def concurrent_registrations():
    create, stop, rounds = "vhost_task_create", "vhost_task_stop", 0

    def work():
        pair, memory, begin = Pair(), PrivateBuffer(PAGE), threading.Barrier(6)

        def registration():
            begin.wait()
            reg_mr(pair.pd, pair.context, memory.address, PAGE, memory.address, ODP_ACCESS)

        threads = [threading.Thread(target=registration) for _ in range(begin.parties)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        os._exit(0)

    def run():
        nonlocal rounds
        # Tries until two registrations of one process race, and each creates a thread. Then one of
        # the threads is not needed.
        while rounds < 40 and calls.count(create) == rounds:
            in_child(work)
            rounds += 1
        wait_until_equal(lambda: calls.count(stop), calls.count(create), "number of threads that have ended")

    with KprobeCounter(create, stop) as calls:
        callers = [thread for name, thread in calls.preempt_depths(run) if name == stop]
        print(f"# {calls.count(create)} threads of {rounds} processes")
    for caller in callers:
        # A thread of the ended process would have no entry in /proc.
        comm = Path(f"/proc/{caller}/comm")
        equal(comm.exists() and comm.read_text().startswith("kworker"), True,
              "a work item ends threads")


@case("a call that waits for advice lets the system suspend, and waits again afterwards")
def system_sleep():
    power = Path("/sys/power")
    if not (power / "pm_test").exists():
        return print("# a kernel without CONFIG_PM_SLEEP_DEBUG tests no sleep")
    pair, memory = Pair(), PrivateBuffer(PAGE)
    (reader, writer), (end_reader, end_writer) = os.pipe(), os.pipe()

    def register_and_stop():
        region = reg_mr(pair.pd, pair.context, memory.address, PAGE, memory.address, ODP_ACCESS)
        os.write(writer, struct.pack("=II", region.handle, region.lkey))
        os.kill(os.getpid(), signal.SIGSTOP)
        os.read(end_reader, 1)

    timeout = power / "pm_freeze_timeout"
    old_timeout = timeout.read_text()

    def freeze():
        (power / "pm_test").write_text("freezer")
        timeout.write_text("4000")
        (power / "state").write_text("freeze")

    owner = start_child(register_and_stop)
    handle, lkey = struct.unpack("=II", os.read(reader, 8))
    os.waitpid(owner, os.WUNTRACED)
    adviser = start_child(lambda: advise_mr(pair.pd, pair.context, PREFETCH, FLAG_FLUSH,
                                            [(memory.address, PAGE, lkey)]))

    def in_ioctl():
        # The file contains "running" or -1 if the task doesn't sleep in a system call.
        return Path(f"/proc/{adviser}/syscall").read_text().split()[0] == str(NR_IOCTL)

    wait_until_equal(in_ioctl, True, "the call waits for advice")
    try:
        freeze()
        wait_until_equal(in_ioctl, True, "the call waits for advice after the suspend")
    finally:
        (power / "pm_test").write_text("none")
        timeout.write_text(old_timeout)
        os.kill(owner, signal.SIGCONT)
        status = os.waitpid(adviser, 0)[1]
        os.write(end_writer, b"x")
        os.waitpid(owner, 0)
    equal(status, 0, "exit status of the adviser")
    IoctlMr.imported(pair.context, handle).close()


@case("work items of rrxe_faults send no packets, even if the process has ended")
def ended_process():
    pair, memory = Pair(), PrivateBuffer(PAGE)
    _, local = register_filled_buffer(pair, PAGE)
    reader, writer = os.pipe()

    def work():
        # Both processes share the context, which keeps the region when this process ends.
        region = reg_mr(pair.pd, pair.context, memory.address, PAGE, memory.address, ODP_ACCESS)
        os.write(writer, struct.pack("=II", region.handle, region.rkey))

    def write():
        equal(pair.write(local, (memory.address, rkey)), REM_ACCESS_ERR, "write")

    in_child(work)
    handle, rkey = struct.unpack("=II", os.read(reader, 8))
    items, packets = packets_sent_by_items(FAULT_THREAD, write)
    equal(items > 0, True, f"work items that look up the process ({items})")
    equal(packets, 0, "packets sent by these work items")
    IoctlMr.imported(pair.context, handle).close()


sys.exit(main())
