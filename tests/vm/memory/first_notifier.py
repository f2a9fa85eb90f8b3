#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Test of a process's first MMU notifier beside a page fault: first_notifier.py DEVICE GID-INDEX.

The kernel prepares an address space for its first MMU notifier by `mm_take_all_locks()`. This takes
a mutex that all address spaces share, and then waits until no thread handles a page fault in a
mapping of the address space. A FUSE server can keep a thread in such a page fault for ever. So the
driver first locks the mappings itself. Its wait concerns this process only, and SIGKILL ends it
(rust/rdma/memory/odp/first_notifier.rs). The processes register on-demand regions on DEVICE. They
have no QPs, so GID-INDEX is not used.
"""

import ctypes
import os
import re
import signal
import sys
import threading
from pathlib import Path

import pyverbs.enums as e
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD

import fuse
from pairs import (
    DEVICE, LOCAL_WRITE, PAGE, MappedMemory, PrivateBuffer, case, equal, main, map_memory,
    start_child, wait_until_equal,
)
from uverbs import advise_mr

# IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE, and IB_UVERBS_ADVISE_MR_FLAG_FLUSH: the call returns
# when the advice has been followed.
PREFETCH_WRITE, FLAG_FLUSH = 1, 1


def kernel_stacks(process):
    """Returns the kernel stacks of all threads of a process."""
    return "\n".join(path.read_text() for path in Path(f"/proc/{process}/task").glob("*/stack"))


def waits_for_mapping(process):
    """Returns whether a thread of the process waits for the page faults in its mappings to end."""
    return re.search("vma_start_write|mm_take_all_locks", kernel_stacks(process)) is not None


def fault_in_page():
    """Faults a page of an on-demand region in. This needs the process's first MMU notifier."""
    memory, context = PrivateBuffer(PAGE), Context(name=DEVICE)
    pd = PD(context)
    region = MR(pd, PAGE, LOCAL_WRITE | e.IBV_ACCESS_ON_DEMAND, address=memory.address)
    advise_mr(pd, context, PREFETCH_WRITE, FLAG_FLUSH, [(memory.address, PAGE, region.lkey)])


def fault_in_page_beside_fault(path):
    """Calls `fault_in_page` while a thread is stuck in a page fault.

    The thread writes to a page of the file `path` that is being written back, and waits for the end
    of the write-back."""
    file = os.open(path, os.O_RDWR)
    page = MappedMemory(map_memory(PAGE, file))
    page.fill(b"a")
    fuse.start_write_back(file)
    threading.Thread(target=ctypes.memset, args=(page.address, 0, 1), daemon=True).start()
    wait_until_equal(lambda: "fuse_page_mkwrite" in kernel_stacks(os.getpid()), True,
            "a thread waits in the page fault")
    fault_in_page()


@case("an unanswered page fault delays no other process's first notifier, nor SIGKILL")
def unanswered_fault():
    with fuse.unanswered_file() as path:
        child = start_child(lambda: fault_in_page_beside_fault(path))
        try:
            wait_until_equal(lambda: waits_for_mapping(child), True, "the process waits for its mapping")
            other = start_child(fault_in_page)
            wait_until_equal(lambda: os.waitpid(other, os.WNOHANG), (other, 0), "exit of the other process")
        finally:
            os.kill(child, signal.SIGKILL)
        wait_until_equal(lambda: waits_for_mapping(child), False, "the killed process waits for its mapping")
        equal("fuse_page_mkwrite" in kernel_stacks(child), True, "a thread waits in the page fault")
    equal(os.waitpid(child, 0)[1], signal.SIGKILL, "status of the killed process")


if __name__ == "__main__":
    sys.exit(main())
