#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests of limits to the cost of on-demand regions and QP timers: bounds.py DEVICE GID-INDEX.

On-demand regions have bounded costs: kernel memory, grace periods, and time with preemption
disabled. Page faults that are never answered (by userfaultfd(2)) delay no other process. The
timers of QPs cause few softirqs. The cases count calls of kernel functions by kprobes, bytes that
are charged to a memory cgroup, and softirqs. Each case connects RC QPs of DEVICE in one process
(loopback, by entry GID-INDEX of the GID table).

A chunk holds the present pages of 2 MiB of on-demand memory, and has one MMU notifier
(rust/rdma/memory/odp.rs). So `mmu_interval_notifier_insert` is called once for each chunk that is
created, and `mmu_interval_notifier_remove` once for each that is freed.
"""

import contextlib
import ctypes
import errno
import mmap
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pyverbs.enums as e
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QPAttr
from pyverbs.wr import SGE, SendWR

import userfault
from cgroups import join, memory_group, remove_group
from cpu_time import softirqs_during
from kprobes import KprobeCounter
from pairs import (
    ALL, IS_DEBUG_KERNEL, NOBODY, PAGE, Pair, PrivateBuffer, become_nobody, case, equal, in_child,
    libc, main, memory_with_unserved_faults, present_pages, register, register_filled_buffer,
    start_child, wait_until_equal,
)
from uverbs import CHANGE_PD, advise_mr, errno_of, rereg

ODP_ACCESS, SUCCESS = ALL | e.IBV_ACCESS_ON_DEMAND, e.IBV_WC_SUCCESS
# IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE, and IB_UVERBS_ADVISE_MR_FLAG_FLUSH: the call returns
# when the advice has been followed.
PREFETCH_WRITE, FLAG_FLUSH = 1, 1
# Bytes of address space that a chunk covers.
CHUNK = 2 << 20
# Of madvise(2) and mmap(2).
MADV_DONTNEED, MADV_NOHUGEPAGE, MAP_NORESERVE = 4, 15, 0x4000

libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def sparse_memory(count):
    """Returns memory of `count` chunks. One small page of each is to be used."""
    memory = PrivateBuffer(count * CHUNK, mmap.MAP_PRIVATE | MAP_NORESERVE)
    libc.madvise(memory.address, memory.length, MADV_NOHUGEPAGE)
    return memory


def fault_in_each_chunk(pair, space, memory):
    """Faults one page of each chunk in for writing, by advice."""
    ranges = [(at, 8, space.lkey) for at in range(memory.address, memory.address + memory.length,
                                                  CHUNK)]
    for first in range(0, len(ranges), 100):
        advise_mr(pair.pd, pair.context, PREFETCH_WRITE, FLAG_FLUSH, ranges[first:first + 100])


@case("the exit of a process waits for no RCU grace period per chunk")
def many_chunks():
    count = 1000
    reader, writer = os.pipe()

    def work():
        pair = Pair()
        space, memory = MR(pair.pd, 0, ODP_ACCESS, implicit=True), sparse_memory(count)
        fault_in_each_chunk(pair, space, memory)
        os.write(writer, b"x")
        time.sleep(600)

    child = start_child(work)
    os.close(writer)
    equal(os.read(reader, 1), b"x", "message of the child")
    with KprobeCounter("synchronize_rcu_expedited", "mmu_interval_notifier_remove") as calls:
        begin = time.monotonic()
        os.kill(child, 9)
        os.waitpid(child, 0)
        took = time.monotonic() - begin
        wait_until_equal(lambda: calls.count("mmu_interval_notifier_remove") >= count, True,
                "all chunks are freed")
        waits = calls.count("synchronize_rcu_expedited")
    print(f"# {waits} expedited grace periods, {took:.3f} s")
    equal(waits < count // 10, True, f"few expedited grace periods ({waits})")


@case("chunks without present pages are freed")
def empty_chunks():
    pair = Pair()
    space = MR(pair.pd, 0, ODP_ACCESS, implicit=True)
    with KprobeCounter("mmu_interval_notifier_insert", "mmu_interval_notifier_remove") as calls:
        for _ in range(10):
            memory = sparse_memory(100)
            fault_in_each_chunk(pair, space, memory)
            libc.munmap(memory.address, memory.length)
            # This memory takes the addresses, so that the next round gets others.
            PrivateBuffer(memory.length, mmap.MAP_PRIVATE | MAP_NORESERVE)
        made = calls.count("mmu_interval_notifier_insert")
        # A work item frees the chunks.
        wait_until_equal(lambda: made - calls.count("mmu_interval_notifier_remove") <= 250, True,
                "at most 250 chunks are left")
        print(f"# {made} chunks created, {calls.count('mmu_interval_notifier_remove')} freed")
    equal(made >= 200, True, f"enough chunks created ({made})")


@case("chunks are charged to the memory cgroup of the process whose memory they hold")
def charged_chunks():
    count, group = 200, memory_group("odp")

    def charged():
        with open(f"{group}/memory.stat", encoding="ascii") as file_:
            words = dict(line.split() for line in file_)
        return int(words["slab"]) + int(words["pagetables"])

    def work():
        join(group)
        pair = Pair()
        space, memory = MR(pair.pd, 0, ODP_ACCESS, implicit=True), sparse_memory(count)
        _, (local_address, _, lkey) = register_filled_buffer(pair, PAGE)
        before = charged()
        # A peer writes, so a kernel thread of the process faults the memory in.
        for at in range(memory.address, memory.address + memory.length, CHUNK):
            equal(pair.write((local_address, 8, lkey), (at, space.rkey)), SUCCESS, "write")
        # Each chunk takes a page of entries and a page of a page table. The kernel sums up the
        # counters of its CPUs from time to time only.
        wait_until_equal(lambda: charged() - before > count * PAGE * 3 // 2, True,
                "enough bytes are charged")
        print(f"# {count} chunks and page tables: {charged() - before} bytes")

    in_child(work)
    remove_group(group)


@case("preemption is disabled while the lock of a chunk is held")
def not_preempted():
    # For a write fault, `store` is called where a page is stored in a chunk. `remove` is called
    # where a page is removed. Both happen with the chunk's `umem_mutex` held, for which reclaim may
    # wait. `walk` is called without the lock.
    walk = "hmm_range_fault_unlocked_timeout"
    store, remove = "copy_from_kernel_nofault", "set_page_dirty"
    pair, memory = Pair(), PrivateBuffer(16 * PAGE)
    region = register(pair.pd, memory, ODP_ACCESS)

    def fault_in_and_drop():
        advise_mr(pair.pd, pair.context, PREFETCH_WRITE, FLAG_FLUSH,
                  [(memory.address, memory.length, region.lkey)])
        libc.madvise(memory.address, memory.length, MADV_DONTNEED)

    def measure_depths():
        """Returns the preemption depths at calls of the functions: of `walk` and `store` in
        the thread that serves the advice, of `remove` in this thread."""
        with KprobeCounter(walk, store, remove) as calls:
            preempt_depths = calls.preempt_depths(fault_in_and_drop)
        server = next((thread for name, thread in preempt_depths if name == walk), None)
        probed = (walk, server), (store, server), (remove, os.getpid())
        return [preempt_depths.get(call, []) for call in probed]

    for _ in range(10):
        unlocked_depths, *locked_depths = measure_depths()
        # Reclaim may remove the pages first, in another thread. Then `remove` is not seen here.
        if unlocked_depths and all(locked_depths):
            break
    for name, preempt_depths in zip((store, remove), locked_depths):
        equal(min(preempt_depths) > max(unlocked_depths), True, f"preemption is disabled in {name}")


@case("the cost of an on-demand region depends on its present pages, not on its length")
def large_region():
    length, group = 64 << 30, memory_group("long")

    def charged():
        with open(f"{group}/memory.stat", encoding="ascii") as file_:
            return int(dict(line.split() for line in file_)["kernel"])

    def fastest_invalidation(address):
        """Returns the shortest time, in seconds, of 9 invalidations of all but the last chunk."""
        times = []
        for _ in range(9):
            begin = time.monotonic()
            libc.madvise(address, length - CHUNK, MADV_DONTNEED)
            times.append(time.monotonic() - begin)
        return min(times)

    def work():
        join(group)
        pair, memory = Pair(), PrivateBuffer(length, mmap.MAP_PRIVATE | MAP_NORESERVE)
        libc.madvise(memory.address, length, MADV_NOHUGEPAGE)
        bytes_before, time_before = charged(), fastest_invalidation(memory.address)
        region = register(pair.pd, memory, ODP_ACCESS)
        advise_mr(pair.pd, pair.context, PREFETCH_WRITE, FLAG_FLUSH,
                  [(memory.address + length - PAGE, PAGE, region.lkey)])
        used, time_after = charged() - bytes_before, fastest_invalidation(memory.address)
        print(f"# {used} bytes; an invalidation took {time_before * 1e6:.0f} µs before the use, "
              f"{time_after * 1e6:.0f} µs with a page present")
        equal(used < 4 << 20, True, f"less than 4 MiB charged ({used})")
        # To visit each of the region's 16 million pages takes a thousand times as long.
        equal(time_after < 20 * time_before + 0.002, True,
              f"quick invalidation ({time_before:.6f}, {time_after:.6f} s)")

    in_child(work)
    remove_group(group)


@case("repeated page faults that fail create one chunk")
def failed_faults():
    def work():
        pair, memory = Pair(), PrivateBuffer(PAGE)
        equal(libc.mprotect(memory.address, memory.length, 0), 0, "mprotect of PROT_NONE")
        region = register(pair.pd, memory, ODP_ACCESS)
        with KprobeCounter("mmu_interval_notifier_insert") as calls:
            for _ in range(50):
                failed = errno_of(advise_mr, pair.pd, pair.context, PREFETCH_WRITE, FLAG_FLUSH,
                                  [(memory.address, PAGE, region.lkey)])
                equal(failed, errno.EFAULT, "errno of advice")
            equal(calls.count("mmu_interval_notifier_insert"), 1, "notifiers inserted")
        equal(present_pages(memory), 0, "present pages")

    in_child(work)


@case("regions over the same memory share their MMU notifiers")
def shared_notifiers():
    def work():
        pair, memory = Pair(), PrivateBuffer(4 * PAGE)
        with KprobeCounter("mmu_interval_notifier_insert", "mmu_interval_notifier_remove") as calls:
            accesses = (ODP_ACCESS, e.IBV_ACCESS_ON_DEMAND) * 100
            regions = [register(pair.pd, memory, access) for access in accesses]
            regions += [MR(pair.pd, 0, ODP_ACCESS, implicit=True),
                        register(PD(pair.context), memory, ODP_ACCESS)]
            for region in regions[:-1]:
                advise_mr(pair.pd, pair.context, 0, FLAG_FLUSH,
                          [(memory.address, PAGE, region.lkey)])
            made = calls.count("mmu_interval_notifier_insert")
            # The memory may cross the boundary of two chunks.
            equal(made in (1, 2), True, f"one or two notifiers inserted ({made})")
            # Only the end of the last region frees the chunks.
            for region in regions[1:]:
                region.close()
            time.sleep(1)
            equal(calls.count("mmu_interval_notifier_remove"), 0,
                  "notifiers removed before the last region ended")
            regions[0].close()
            wait_until_equal(lambda: calls.count("mmu_interval_notifier_remove"), made,
                    "notifiers removed after the last region ended")

    in_child(work)


@case("deregistration of the last region does not end its chunks one by one")
def last_region():
    count = 2000

    def work():
        pair, memory = Pair(), sparse_memory(count)
        region = MR(pair.pd, 0, ODP_ACCESS, implicit=True)
        fault_in_each_chunk(pair, region, memory)
        # The system call takes mutexes by `lock`. The end of a chunk tries to take one by
        # `attempt`. With lockdep the kernel's functions have other names.
        lock, attempt = "mutex_lock", "mutex_trylock"
        if IS_DEBUG_KERNEL:
            lock, attempt = "mutex_lock_nested", "_mutex_trylock_nest_lock"
        with KprobeCounter("mmu_interval_notifier_remove", lock, attempt) as calls:
            with calls.of_this_thread(lock) as taken, calls.of_this_thread(attempt) as tried:
                region.close()
            print(f"# {taken()} mutexes, {tried()} attempts")
            equal(0 < taken() + tried() < count // 10, True, f"few mutexes ({taken()}, {tried()})")
            wait_until_equal(lambda: calls.count("mmu_interval_notifier_remove") >= count, True,
                    "all chunks are freed")

    in_child(work)


@case("all chunks are freed after regions were registered and deregistered")
def repeated_registration():
    def work():
        pair, memory = Pair(), PrivateBuffer(PAGE)
        with KprobeCounter("mmu_interval_notifier_insert", "mmu_interval_notifier_remove") as calls:
            for _ in range(300):
                region = register(pair.pd, memory, ODP_ACCESS)
                advise_mr(pair.pd, pair.context, PREFETCH_WRITE, FLAG_FLUSH,
                          [(memory.address, PAGE, region.lkey)])
                region.close()
            made = calls.count("mmu_interval_notifier_insert")
            print(f"# {made} chunks created")
            equal(made > 0, True, "chunks are created")
            wait_until_equal(lambda: calls.count("mmu_interval_notifier_remove"), made,
                    "all chunks are freed")

    in_child(work)


@contextlib.contextmanager
def unanswered_process(groups, uid, work, faults):
    """Context manager: a process of user `uid` with memory whose page faults are never answered.

    The process joins `groups` new memory cgroups one after the other. In each it opens a new
    context and calls `work(address, region, pair)`: `region` covers the memory at `address`. Waits
    until `faults` page faults have begun, and yields the process ID. Kills the process at the
    end."""
    # The child sends the userfaultfd through a socket. So the file outlives the child, and the page
    # faults stay unanswered.
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    names = [memory_group(f"stuck{number}") for number in range(groups)]

    def run_child():
        memory, fd = memory_with_unserved_faults(64 * PAGE)
        kept = []
        for name in names:
            join(name)
            # The objects of a context are charged to the user who opens it.
            os.setresuid(uid, uid, 0)
            pair = Pair()
            kept.append((pair, register(pair.pd, memory, ODP_ACCESS)))
            kept.append(work(memory.address, kept[-1][1], pair))
            os.setresuid(0, 0, 0)
        socket.send_fds(theirs, [b"x"], [fd])
        time.sleep(600)

    child = start_child(run_child)
    theirs.close()
    fds = socket.recv_fds(ours, 1, 1)[1]
    try:
        equal(len(fds), 1, "files received from the child")
        for _ in range(faults):
            userfault.await_fault(fds[0])
        yield child
    finally:
        for fd in fds:
            os.close(fd)
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, 9)
            os.waitpid(child, 0)
        for name in names:
            remove_group(name)


def advise_absent(address, region, pair):
    """Gives advice on the absent memory 1100 times. The driver follows or queues at most 16 pieces
    of advice for each memory cgroup at a time."""
    for _ in range(1100):
        advise_mr(pair.pd, pair.context, PREFETCH_WRITE, 0, [(address, 8, region.lkey)])


def write_from_qps(count):
    """Returns a function that posts WRITEs to the absent memory on `count` QPs of one context."""
    def work(address, region, pair):
        pairs_ = [pair] + [Pair(beside=pair) for _ in range(count - 1)]
        _, local = register_filled_buffer(pair, PAGE)
        for each in pairs_:
            each.post(e.IBV_WR_RDMA_WRITE, local, (address, region.rkey))
        return pairs_
    return work


def check_other_process():
    """Fails unless a peer can write to absent memory of the calling process."""
    pair, memory = Pair(), PrivateBuffer(4 * PAGE)
    region = register(pair.pd, memory, ODP_ACCESS)
    _, local = register_filled_buffer(pair, PAGE)
    equal(pair.write(local, (memory.address, region.rkey)), SUCCESS,
          "write to memory of another process")


def module_references():
    return int(Path("/sys/module/rrxe/refcnt").read_text(encoding="ascii"))


@case("rmmod does not wait for an unanswered page fault, which ends with its process")
def module_removal():
    before = module_references()
    with unanswered_process(1, 0, write_from_qps(1), 1) as child:
        in_child(check_other_process)
        ended = subprocess.run(["timeout", "-s", "KILL", "60", "rmmod", "rrxe"],
                               stderr=subprocess.PIPE, check=False)
        equal((ended.returncode, b"in use" in ended.stderr), (1, True),
              f"rmmod fails because the module is in use ({ended.stderr})")
        os.kill(child, 9)
        equal(os.waitpid(child, 0)[1], 9, "status of the killed child")
        # Objects of earlier cases may end, and drop their references, only now.
        wait_until_equal(lambda: module_references() <= before, True, "references to the module end")


@case("advice on memory that stays absent delays no other process")
def stuck_advice():
    with (
        KprobeCounter("hmm_range_fault_unlocked_timeout") as calls,
        unanswered_process(1, 0, advise_absent, 1),
    ):
        pair, memory = Pair(), PrivateBuffer(4 * PAGE)
        region = register(pair.pd, memory, ODP_ACCESS)
        memory.fill(b"x")
        libc.madvise(memory.address, memory.length, MADV_DONTNEED)
        advise_mr(pair.pd, pair.context, PREFETCH_WRITE, 0,
                  [(memory.address, memory.length, region.lkey)])
        wait_until_equal(lambda: present_pages(memory), 4, "pages present after advice of another process")
        count = calls.count("hmm_range_fault_unlocked_timeout")
        # One walk for the advice that is stuck. At least one for the advice that was followed: a
        # walk is repeated if the mappings change.
        equal(count <= 20, True, f"walks of page tables ({count})")
        check_other_process()


@case("page faults that are never answered delay no other process of the user")
def stuck_faults():
    def work():
        become_nobody()
        check_other_process()

    # 130 QPs are more than the threads of any work queue that one user may occupy (128 of
    # `rrxe_release`).
    with unanswered_process(1, NOBODY, write_from_qps(130), 1):
        in_child(work)


@case("page faults that wait for a thread of their process are served later")
def queued_faults():
    memory, fd = memory_with_unserved_faults(PAGE)
    first = Pair()
    region = register(first.pd, memory, ODP_ACCESS)
    _, local = register_filled_buffer(first, PAGE)
    every = [first] + [Pair(beside=first) for _ in range(39)]
    for number, pair in enumerate(every):
        pair.post(e.IBV_WR_RDMA_WRITE, local, (memory.address, region.rkey), number)
    # The page fault of QP 0 has begun. Those of QPs 20 and 39 wait for a thread.
    ended = (0, 20, 39)
    for number in ended:
        every[number].qps[1].close()
    os.close(fd)
    left = {number for number in range(len(every)) if number not in ended}
    end = time.monotonic() + 60
    while left and time.monotonic() < end:
        for completion in first.cqs[0].poll(1)[1]:
            if completion.wr_id not in ended:
                equal(completion.status, SUCCESS, f"write {completion.wr_id}")
                left.remove(completion.wr_id)
    equal(left, set(), "writes that did not complete")


@case("page faults that wait for a thread of their process keep no destroyed QP")
def withdrawn_faults():
    # More page faults than the threads of a process serve at a time (FAULT_THREADS).
    count, group = 320, memory_group("withdrawn")

    def charged():
        with open(f"{group}/memory.stat", encoding="ascii") as file_:
            return int(dict(line.split() for line in file_)["slab"])

    def work():
        join(group)
        (memory, fd), first = memory_with_unserved_faults(PAGE), Pair()
        region = register(first.pd, memory, ODP_ACCESS)
        _, local = register_filled_buffer(first, PAGE)
        before = charged()
        every = [Pair(beside=first) for _ in range(count)]
        for pair in every:
            pair.post(e.IBV_WR_RDMA_WRITE, local, (memory.address, region.rkey))
        userfault.await_fault(fd)
        # Gives the other page faults time to be queued. A page fault that is not queued by then
        # holds no QP either.
        time.sleep(1)
        most = charged() - before
        for pair in every:
            for qp in pair.qps:
                qp.close()
        print(f"# {2 * count} QPs: {most} bytes, and {charged() - before} when they are destroyed")
        wait_until_equal(lambda: charged() - before < most // 8, True, "the memory of the QPs is freed")

    in_child(work)
    remove_group(group)


@case("a page fault that waits is not served if its access is no longer permitted")
def forbidden_fault():
    first, (blocker, fd) = Pair(), memory_with_unserved_faults(PAGE)
    blocked = register(first.pd, blocker, ODP_ACCESS)
    _, local = register_filled_buffer(first, PAGE)
    second, memory = Pair(), PrivateBuffer(4 * PAGE)
    region, other = register(second.pd, memory, ODP_ACCESS), PD(second.context)
    _, second_local = register_filled_buffer(second, PAGE)
    blockers = [first] + [Pair(beside=first) for _ in range(userfault.FAULT_THREADS - 1)]
    for pair in blockers:
        pair.post(e.IBV_WR_RDMA_WRITE, local, (blocker.address, blocked.rkey))
        userfault.await_fault(fd)  # the page fault occupies a thread of the process
    second.post(e.IBV_WR_RDMA_WRITE, second_local, (memory.address, region.rkey))
    time.sleep(1)  # the packet finds the memory absent, and its page fault waits for a thread
    rereg(second.context, region, CHANGE_PD, pd=other)
    os.close(fd)
    equal(second.status(), e.IBV_WC_REM_ACCESS_ERR,
          "write to a region of another protection domain")
    for _ in blockers:
        equal(first.status(), SUCCESS, "write whose page fault was served first")
    equal(present_pages(memory) < 4, True, "some pages of the region are absent")
    region.close()
    other.close()


@case("memory is faulted in by pieces of 1 MiB at most")
def pieces():
    pair, count = Pair(), 32
    memory = PrivateBuffer(count << 20)
    regions = [register(pair.pd, memory, ODP_ACCESS), MR(pair.pd, 0, ODP_ACCESS, implicit=True)]
    for region in regions:
        with KprobeCounter("hmm_range_fault_unlocked_timeout") as calls:
            advise_mr(pair.pd, pair.context, PREFETCH_WRITE, FLAG_FLUSH,
                      [(memory.address, memory.length, region.lkey)])
            made = calls.count("hmm_range_fault_unlocked_timeout")
        equal(made >= count, True, f"walks for {count} MiB ({made})")


@case("a process that is killed during long advice ends")
def killed_advice():
    ours, theirs = os.pipe()

    def advise():
        pair, memory = Pair(), PrivateBuffer(256 << 20)
        region = register(pair.pd, memory, ODP_ACCESS)
        sge = (memory.address, memory.length, region.lkey)
        # The advice covers nearly 1 TiB and takes minutes.
        os.write(theirs, b"x")
        advise_mr(pair.pd, pair.context, 0, FLAG_FLUSH, [sge] * 4000)

    child = start_child(advise)
    os.close(theirs)
    equal(os.read(ours, 1), b"x", "message of the child")
    time.sleep(5)
    equal(os.waitpid(child, os.WNOHANG), (0, 0), "the child is within the system call")
    begin = time.monotonic()
    os.kill(child, 9)
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < begin + 30:
        time.sleep(0.05)
    took = time.monotonic() - begin
    print(f"# the exit took {took:.3f} s")
    equal(ended, (child, 9), "exit of the child within 30 s")


@case("QPs of processes cause few softirqs: a receiver that always sends RNR NAKs")
def rnr_timers():
    pair = Pair(rnr_timer=1)
    _, local = register_filled_buffer(pair, 8)
    wr = SendWR(wr_id=1, opcode=e.IBV_WR_SEND, num_sge=1, sg=[SGE(*local)])
    pair.qps[0].post_send(wr)
    count = softirqs_during(2)
    print(f"# {count} TASKLET softirqs in two seconds")
    equal(count < 400, True, f"TASKLET softirqs ({count})")


@case("QPs of processes cause few softirqs: QPs in the error state")
def error_timers():
    every = [Pair() for _ in range(50)]
    for pair in every:
        for qp in pair.qps:
            qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    count = softirqs_during(2)
    print(f"# {count} TASKLET softirqs in two seconds")
    equal(count < 400, True, f"TASKLET softirqs ({count})")
    # The polls of the receive queues have found no receive (`error_poll.rs`). From now on the timer
    # of each QP expires every 1.6 s, not 20 times per second.
    time.sleep(2)
    timers = softirqs_during(4, "HRTIMER")
    print(f"# {timers} HRTIMER softirqs in four seconds")
    equal(0 < timers < 2000, True, f"HRTIMER softirqs ({timers})")


sys.exit(main())
