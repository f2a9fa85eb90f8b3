#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Hostile processes that delay the end of a device.

Usage: teardown.py HOW DEVICE GID-INDEX [NUMBER [DEPTH]].

Each process, except "bound", prints "ready" when it has its objects. It ends at the end of its
standard input, or for "advice" when the advice has returned. HOW:
  spin     has NUMBER QPs of DEPTH WQEs, and changes the producer indices of all their queues: at
           most a thousand times per second, or without a pause once it has read a line. At the end
           it prints the number of completions in its CQ
  windows  has NUMBER memory windows
  chunks   has an on-demand region of its whole address space, and a page in each of NUMBER chunks
           (2 MiB) of it
  dereg    registers and deregisters a page again and again once it has read a line. At the end it
           prints the median, the maximum and the number of the times of deregistration, in
           microseconds
  advice   gives advice to make two pieces (1 MiB each) of memory resident before the call returns,
           and serves no page fault of this memory until it has read a line. It prints the errno of
           the advice and the number of pieces with faults
  bound    prints the shortest of ten times to destroy a QP that has bound a window, in microseconds
"""

import ctypes
import mmap
import os
import select
import statistics
import struct
import sys
import threading
import time
from types import SimpleNamespace

import extension
import userfault
import uverbs
from extension import CONSUMER, ELEMENTS, PRODUCER, Context, Cq, Qp, gid_of, node_of

ALLOC_MW, TYPE_2 = 14, 2
MW_BIND, ON_DEMAND = 1 << 4, 1 << 6
DEREG_MR, REG_MR = 13, 9
READ_ADVICE, WRITE_ADVICE, FLUSH = 0, 1, 1
CHUNK, PIECE = 2 << 20, 1 << 20
NOHUGEPAGE = 15
BIND_MW = 8

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


class Memory:
    """New anonymous memory, mapped private."""

    def __init__(self, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000):  # MAP_NORESERVE
        self.length = length
        self.address = libc.mmap(None, length, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)


def wait_for_input_end(on_line=lambda: None):
    """Prints "ready", and reads the standard input to its end. Calls `on_line` for each line."""
    print("ready", flush=True)
    for _line in sys.stdin:
        on_line()


def spin(context, device, gid_index, number, depth):
    cq = Cq(context, 1 << 20)
    gid = gid_of(device, gid_index)
    qps = [Qp(context, cq, gid_index, gid, depth) for _ in range(number)]
    ended, hurried = threading.Event(), threading.Event()

    def change():
        rings = [ring for qp in qps for ring in (qp.ring, qp.receives)]
        words = [(ring.u32(PRODUCER), ring.u32(CONSUMER), ring.u32(4).value) for ring in rings]
        while not ended.is_set():
            for producer, consumer, mask in words:
                # As many WQEs as the ring has room for.
                producer.value = (consumer.value - 1) & mask
            if not hurried.is_set():
                # A pause, so that other processes get CPU time to create their objects.
                time.sleep(0.001)

    thread = threading.Thread(target=change)
    thread.start()
    wait_for_input_end(hurried.set)
    ended.set()
    thread.join()
    print(cq.ring.u32(PRODUCER).value)


def windows(context, _device, _gid_index, number, _depth):
    request = struct.pack("=IBBBB", context.pd, TYPE_2, 0, 0, 0)
    for _ in range(number):
        context.call(ALLOC_MW, request, 8)
    wait_for_input_end()


def advise(context, lkey, advice, places):
    """Gives advice about `places`, (address, length) each. Returns when it has been followed."""
    uverbs.advise_mr(
        SimpleNamespace(handle=context.pd), SimpleNamespace(cmd_fd=context.fd), advice, FLUSH,
        [(address, length, lkey) for address, length in places],
    )


def chunks(context, _device, _gid_index, number, _depth):
    memory = Memory(number * CHUNK)
    libc.madvise(memory.address, memory.length, NOHUGEPAGE)
    lkey, _ = context.reg(SimpleNamespace(address=0, length=(1 << 64) - 1), 0xf | ON_DEMAND)
    places = [(address, 8) for address in range(memory.address, memory.address + memory.length, CHUNK)]
    for first in range(0, number, 100):
        advise(context, lkey, WRITE_ADVICE, places[first:first + 100])
    wait_for_input_end()


def dereg(context, _device, _gid_index, _number, _depth):
    memory, times = Memory(mmap.PAGESIZE), []
    request = struct.pack("=QQQII", memory.address, memory.length, memory.address, context.pd, 0xf)
    print("ready", flush=True)
    sys.stdin.readline()
    while not times or not select.select([sys.stdin], [], [], 0.001)[0]:
        handle, = struct.unpack_from("=I", context.call(REG_MR, request, 12))
        begin = time.monotonic_ns()
        os.write(context.fd, struct.pack("=IHHI", DEREG_MR, 3, 0, handle))
        times.append((time.monotonic_ns() - begin) // 1000)
    print(int(statistics.median(times)), max(times), len(times))


def serve_fault(fd, memory):
    """Reads a fault and makes its piece of memory present. Returns the piece's number."""
    address, = struct.unpack_from("=Q", os.read(fd, 32), 16)
    piece = (address - memory.address) // PIECE
    userfault.serve_zeros(fd, memory.address + piece * PIECE, PIECE)
    return piece


def advice(context, _device, _gid_index, _number, _depth):
    memory = Memory(4 * PIECE)
    # A piece begins at a multiple of its size.
    memory.address, memory.length = -memory.address // PIECE * -PIECE, 2 * PIECE
    libc.madvise(memory.address, memory.length, NOHUGEPAGE)
    lkey, _ = context.reg(memory, 0xf | ON_DEMAND)
    fd, codes = userfault.open_faults_of(memory, os.O_NONBLOCK), []
    whole = [(memory.address, memory.length)]
    thread = threading.Thread(
        target=lambda: codes.append(uverbs.errno_of(advise, context, lkey, READ_ADVICE, whole)))
    thread.start()
    select.select([fd], [], [])
    print("ready", flush=True)
    sys.stdin.readline()
    pieces = set()
    while thread.is_alive():
        if select.select([fd], [], [], 0.05)[0]:
            pieces.add(serve_fault(fd, memory))
    print(codes[0], len(pieces))


def bind(context, qp, cq, memory, lkey):
    """Allocates a memory window of type 2, and has the QP bind it to the region."""
    _, rkey = struct.unpack("=II", context.call(ALLOC_MW, struct.pack("=IBBBB", context.pd, TYPE_2, 0, 0, 0), 8))
    tail = qp.ring.u32(PRODUCER).value
    wqe = bytearray(224)
    struct.pack_into("=QIII", wqe, 0, 1, 0, BIND_MW, extension.SIGNALED)
    key = rkey & ~0xff | (rkey + 1) & 0xff
    struct.pack_into("=QQIIII", wqe, 24, memory.address, memory.length, lkey, rkey, key, 1 << 1)
    ctypes.memmove(qp.ring.address + ELEMENTS + tail * qp.element, bytes(wqe), len(wqe))
    qp.ring.u32(PRODUCER).value = (tail + 1) & qp.mask
    qp.ring_by_call()
    while (done := cq.poll()) is None:
        pass
    assert done == (1, 0), done


def bound(context, device, gid_index, _number, _depth):
    memory, cq, times = Memory(mmap.PAGESIZE), Cq(context), []
    lkey, _ = context.reg(memory, 0xf | MW_BIND)
    for _ in range(10):
        qp = Qp(context, cq, gid_index, gid_of(device, gid_index))
        bind(context, qp, cq, memory, lkey)
        begin = time.monotonic_ns()
        qp.destroy()
        times.append((time.monotonic_ns() - begin) // 1000)
    print(min(times))


def main():
    how, device, gid_index, *numbers = sys.argv[1:]
    number, depth, *_ = [int(word) for word in numbers if word.isdigit()] + [0, 0]
    context = Context(node_of(device))
    functions = (spin, windows, chunks, dereg, advice, bound)
    by_name = {function.__name__: function for function in functions}
    by_name[how](context, device, int(gid_index), number, depth)


if __name__ == "__main__":
    main()
