#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests of regions over DMA-BUFs (`ibv_reg_dmabuf_mr()`): dmabuf.py DEVICE GID-INDEX.

The stock provider librxe has no call for DMA-BUFs, so the cases register them by ioctl. One case
tries the call of librrxe, which the environment variable RDMAV_DRIVERS=rrxe selects. There are two
exporters: udmabuf, whose buffers are pages of a memfd, and the system heap. debugfs shows the
references and attachments of each buffer. A region has one reference and one attachment, which
keeps exporters from moving the buffer. Both end with the region. Each case except the last connects
pairs of RC QPs of DEVICE in one process (loopback, by entry GID-INDEX of the GID table).
"""

import errno
import fcntl
import os
import struct
import sys
import threading
import time

import pyverbs.enums as e
from pyverbs.mr import DmaBufMR
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.wr import SGE, SendWR

from pairs import (
    ALL, LOCAL_WRITE, PAGE, REMOTE_READ, Buffer, Pair, case, equal, libc, main, map_memory,
    register_filled_buffer, start_child, wait_until_equal,
)
from uverbs import CHANGE_ACCESS, errno_of, reg_dmabuf_mr, rereg

# Numbers of ioctls, then the flags of DMA_BUF_IOCTL_SYNC, then flags of memfd_create(2) and file
# seals.
UDMABUF_CREATE, HEAP_ALLOC, BUFFER_SYNC = 0x40187542, 0xC0184800, 0x40086200
SYNC_READ_WRITE, SYNC_END = 3, 4
ALLOW_SEALING, HUGE_PAGES, ADD_SEALS, SEAL_SHRINK = 2, 4, 1033, 2
SUCCESS, REM_ACCESS_ERR = e.IBV_WC_SUCCESS, e.IBV_WC_REM_ACCESS_ERR
LOC_PROT_ERR = e.IBV_WC_LOC_PROT_ERR
LIBRARY = os.environ.get("RDMAV_DRIVERS") or "rxe"
BUFFERS = "/sys/kernel/debug/dma_buf/bufinfo"
# The address by which work requests name a region, independent of the buffer's own addresses.
IOVA = 0x7_1234_5678_0000


class Exported(Buffer):
    """A DMA-BUF with the file descriptor `fd`, mapped at `address`."""

    def close(self):
        os.close(self.fd)
        libc.munmap(self.address, self.length)


class Udmabuf(Exported):
    """A DMA-BUF that exports the pages of a memfd. The process maps the memfd, not the DMA-BUF."""

    def __init__(self, length, flags=0):
        self.length = length
        memory = os.memfd_create("exported", ALLOW_SEALING | flags)
        os.ftruncate(memory, length)
        fcntl.fcntl(memory, ADD_SEALS, SEAL_SHRINK)
        with open("/dev/udmabuf", "r+b", buffering=0) as device:
            self.fd = fcntl.ioctl(device, UDMABUF_CREATE,
                                  bytearray(struct.pack("=IIQQ", memory, 1, 0, length)))
        self.address = map_memory(length, fd=memory)
        os.close(memory)


def buffers():
    """Returns each DMA-BUF's number of references by its inode, and the number of attachments."""
    with open(BUFFERS, encoding="ascii") as table:
        lines = table.read().splitlines()
    # Columns: size, flags, mode, references, exporter, inode, name.
    rows = [line.split("\t") for line in lines if line.count("\t") == 6 and line[0].isdigit()]
    totals = [line.split() for line in lines if line.startswith("Total ")]
    references = {int(row[5]): int(row[3]) for row in rows}
    equal([int(words[1]) for words in totals if words[2] == "objects,"], [len(references)],
          "number of buffers in the list")
    attached = [int(words[1]) for words in totals if words[2:] == ["devices", "attached"]]
    return references, sum(attached)


def inode(fd):
    return os.fstat(fd).st_ino


def references(number):
    """Returns the number of references of the DMA-BUF with the inode `number`."""
    return buffers()[0].get(number, 0)


def allocate(length, flags):
    """Allocates a DMA-BUF of the system heap. Returns its file descriptor."""
    with open("/dev/dma_heap/system", "rb", buffering=0) as device:
        asked = bytearray(struct.pack("=QIIQ", length, 0, flags | os.O_CLOEXEC, 0))
        fcntl.ioctl(device, HEAP_ALLOC, asked)
    return struct.unpack_from("=I", asked, 8)[0]


class Heap(Exported):
    """A DMA-BUF of the system heap, mapped through its own file."""

    def __init__(self, length):
        self.length = length
        self.fd = allocate(length, os.O_RDWR)
        self.address = map_memory(length, fd=self.fd)

    def sync(self, flags):
        fcntl.ioctl(self.fd, BUFFER_SYNC, struct.pack("=Q", flags))

    def fill(self, data, offset=0):
        self.sync(SYNC_READ_WRITE)
        super().fill(data, offset)
        self.sync(SYNC_READ_WRITE | SYNC_END)


def register_dmabuf(pair, buffer, access=ALL, offset=0, length=None):
    """Registers a range of the buffer. Returns the region and its address (iova).

    The iova has the same offset in its page as the range."""
    length = buffer.length - offset if length is None else length
    iova = IOVA + offset % PAGE
    region = reg_dmabuf_mr(pair.pd, pair.context, buffer.fd, offset, length, iova, access)
    return region, iova


def check_access(buffer, offset, length):
    """Fails unless a peer and the owner can write and read the range of the buffer.

    The rest of the buffer must not change."""
    pair, number = Pair(), inode(buffer.fd)
    others = references(number)
    region, iova = register_dmabuf(pair, buffer, offset=offset, length=length)
    equal(references(number), others + 1, "references with the region")
    equal(buffers()[1], 1, "attachments with the region")
    equal(region.query()[2:], (length, iova), "length and address of the region")
    source, local = register_filled_buffer(pair, length)
    data = source.read(length)
    equal(pair.write(local, (iova, region.rkey)), SUCCESS, "write")
    equal(buffer.read(length, offset) == data, True, "data that was written")
    equal(buffer.read(offset) == bytes(offset), True, "memory before the range")
    behind = buffer.length - offset - length
    equal(buffer.read(behind, offset + length) == bytes(behind), True, "memory behind the range")
    buffer.fill(data[::-1], offset)
    equal(pair.read(local, (iova, region.rkey)), SUCCESS, "read")
    equal(source.read(length) == data[::-1], True, "data that was read")
    source.fill(bytes(length))
    equal(pair.write((iova, length, region.lkey), (local[0], pair.kept[0].rkey)), SUCCESS,
          "write from the buffer")
    equal(source.read(length) == data[::-1], True, "data that was written from the buffer")
    source.fill(data)
    equal(pair.read((iova, length, region.lkey), (local[0], pair.kept[0].rkey)), SUCCESS,
          "read into the buffer")
    equal(buffer.read(length, offset) == data, True, "data that was read into the buffer")
    region.close()
    equal(references(number), others, "references without the region")
    buffer.fill(bytes(length), offset)


@case("a peer and the owner use a DMA-BUF of udmabuf")
def udmabuf():
    buffer = Udmabuf(2 * (1 << 20) + 3 * PAGE)
    check_access(buffer, 0, buffer.length)
    check_access(buffer, 3 * PAGE + 77, (1 << 20) + 5)
    check_access(buffer, buffer.length - 9, 9)
    buffer.close()


@case("a peer and the owner use a DMA-BUF of the system heap")
def heap():
    buffer = Heap(1 << 20)
    check_access(buffer, 0, buffer.length)
    check_access(buffer, 5 * PAGE + 1, 300_000)
    buffer.close()


@case("a peer and the owner use a DMA-BUF of huge pages")
def huge():
    buffer = Udmabuf(4 << 20, HUGE_PAGES)
    check_access(buffer, 12345, 3 << 20)
    buffer.close()


@case("ibv_reg_dmabuf_mr() works with librrxe and returns EOPNOTSUPP with librxe")
def by_library():
    pair, buffer = Pair(), Udmabuf(3 * PAGE)
    number, offset, length = inode(buffer.fd), PAGE + 8, PAGE
    # This call uses the offset in the buffer as the address (iova) of the region.
    arguments = (pair.pd, length, ALL, buffer.fd, offset)
    try:
        region = DmaBufMR(*arguments)
    except PyverbsRDMAError as refused:
        equal((LIBRARY, refused.error_code), ("rxe", errno.EOPNOTSUPP),
              "library that refuses the call, and its errno")
        buffer.close()
        return
    equal(LIBRARY, "rrxe", "library that has the call")
    equal(references(number), 2, "references with the region")
    source, local = register_filled_buffer(pair, length)
    equal(pair.write(local, (offset, region.rkey)), SUCCESS, "write")
    equal(buffer.read(length, offset) == source.read(length), True, "data that was written")
    region.close()
    equal(references(number), 1, "references without the region")
    buffer.close()


@case("FETCH AND ADD on a DMA-BUF")
def atomic():
    pair, buffer = Pair(), Udmabuf(PAGE)
    region, iova = register_dmabuf(pair, buffer)
    old, local = register_filled_buffer(pair, 8, fill=False)
    buffer.fill(struct.pack("=Q", 40), 8)
    wr = SendWR(opcode=e.IBV_WR_ATOMIC_FETCH_AND_ADD, num_sge=1, sg=[SGE(*local)])
    wr.set_wr_atomic(region.rkey, iova + 8, 2, 0)
    pair.qps[0].post_send(wr)
    equal(pair.status(), SUCCESS, "fetch and add")
    equal(struct.unpack("=QQ", old.read(8) + buffer.read(8, 8)), (40, 42),
          "original value and new value")
    region.close()
    buffer.close()


@case("accesses outside the registered range or without the right are refused")
def refused_accesses():
    buffer, length = Udmabuf(4 * PAGE), PAGE + 50
    for access, opcode, offset, count, wanted in [
        (ALL, "write", -1, 1, REM_ACCESS_ERR), (ALL, "write", length, 1, REM_ACCESS_ERR),
        (ALL, "read", length - 1, 2, REM_ACCESS_ERR),
        (ALL, "read", 0, length + 1, REM_ACCESS_ERR), (REMOTE_READ, "write", 0, 1, REM_ACCESS_ERR),
        (REMOTE_READ, "read", 0, length, SUCCESS), (LOCAL_WRITE, "read", 0, 1, REM_ACCESS_ERR),
    ]:
        pair = Pair()
        region, iova = register_dmabuf(pair, buffer, access, offset=PAGE + 7, length=length)
        _, (at, _, key) = register_filled_buffer(pair, length + PAGE)
        seen = getattr(pair, opcode)((at, count, key), (iova + offset, region.rkey))
        equal(seen, wanted, f"{opcode} {count} bytes at {offset} with rights {access:#x}")
        region.close()
    equal(buffer.read(buffer.length), bytes(buffer.length), "content of the buffer")
    # The owner's QP may not write to the region either.
    pair = Pair()
    region, iova = register_dmabuf(pair, buffer, REMOTE_READ)
    source, _ = register_filled_buffer(pair, 8)
    status = pair.read((iova, 8, region.lkey), (source.address, pair.kept[0].rkey))
    equal(status, LOC_PROT_ERR, "read into a read-only region")
    region.close()
    buffer.close()


@case("invalid registrations are refused and leave no reference")
def invalid_registrations():
    pair, buffer = Pair(), Udmabuf(4 * PAGE)
    number, memory = inode(buffer.fd), os.memfd_create("not exported")
    for name, fd, offset, length, iova, access, wanted in [
        ("no file", -1, 0, PAGE, 0, ALL, errno.EBADF),
        ("a closed file", 1000, 0, PAGE, 0, ALL, errno.EBADF),
        ("a file that is no DMA-BUF", memory, 0, PAGE, 0, ALL, errno.EINVAL),
        ("length zero", buffer.fd, 0, 0, 0, ALL, errno.EINVAL),
        ("one byte too many", buffer.fd, PAGE, 3 * PAGE + 1, 0, ALL, errno.EINVAL),
        ("a range beyond the end", buffer.fd, 4 * PAGE, 1, 0, ALL, errno.EINVAL),
        ("a range that wraps", buffer.fd, PAGE, (1 << 64) - PAGE, 0, ALL, errno.EINVAL),
        ("another offset in the page", buffer.fd, 1, PAGE, 2, ALL, errno.EINVAL),
        ("remote write without local write", buffer.fd, 0, PAGE, 0, e.IBV_ACCESS_REMOTE_WRITE,
         errno.EINVAL),
        ("an on-demand region", buffer.fd, 0, PAGE, 0, ALL | e.IBV_ACCESS_ON_DEMAND, errno.EINVAL),
    ]:
        arguments = (pair.pd, pair.context, fd & 0xFFFF_FFFF, offset, length, iova, access)
        equal(errno_of(reg_dmabuf_mr, *arguments), wanted, name)
        equal(references(number), 1, f"references after {name}")
    buffer.close()
    os.close(memory)


@case("a DMA-BUF opened for reading can be registered for reading only")
def read_only_file():
    pair = Pair()
    fd = allocate(4 * PAGE, os.O_RDONLY)
    arguments, number = (pair.pd, pair.context, fd, 0, PAGE, IOVA), inode(fd)
    equal(errno_of(reg_dmabuf_mr, *arguments, ALL), errno.EACCES,
          "errno of registration for writing")
    equal(references(number), 1, "references after the refusal")
    region = reg_dmabuf_mr(*arguments, REMOTE_READ)
    target, local = register_filled_buffer(pair, PAGE)
    equal(pair.read(local, (IOVA, region.rkey)), SUCCESS, "read")
    equal(target.read(PAGE), bytes(PAGE), "fresh memory of the heap")
    equal(errno_of(rereg, pair.context, region, CHANGE_ACCESS, 0, 0, 0, None, ALL),
          errno.EOPNOTSUPP, "errno of adding rights")
    equal(references(number), 2, "references with the region")
    region.close()
    equal(references(number), 1, "references without the region")
    os.close(fd)


@case("a region outlives the file descriptor of its DMA-BUF, and its end frees the buffer at once")
def lifetime():
    pair, buffer = Pair(), Udmabuf(64 * PAGE)
    region, iova = register_dmabuf(pair, buffer)
    number = inode(buffer.fd)
    os.close(buffer.fd)
    equal(references(number), 1, "references without a file descriptor")
    source, local = register_filled_buffer(pair, buffer.length)
    equal(pair.write(local, (iova, region.rkey)), SUCCESS, "write")
    equal(buffer.read(buffer.length) == source.read(buffer.length), True, "data that was written")
    region.close()
    equal(references(number), 0, "references without the region")
    equal(pair.write(local, (iova, region.rkey)), REM_ACCESS_ERR, "write to a deregistered region")
    libc.munmap(buffer.address, buffer.length)


@case("no WRITE reaches the buffer after deregistration during traffic")
def ends_in_use():
    buffer, length = Udmabuf(1 << 20), 1 << 20
    for _ in range(8):
        pair = Pair(depth=16)
        region, iova = register_dmabuf(pair, buffer)
        _, local = register_filled_buffer(pair, length)
        for number in range(8):
            pair.post(e.IBV_WR_RDMA_WRITE, local, (iova, region.rkey), number)
        ending = threading.Thread(target=region.close)
        ending.start()
        ending.join()
        buffer.fill(bytes(length))
        seen = [pair.status() for _ in range(8)]
        equal(set(seen) <= {SUCCESS, REM_ACCESS_ERR, e.IBV_WC_WR_FLUSH_ERR}, True,
              f"statuses of the completions {seen}")
        equal(buffer.read(length) == bytes(length), True,
              "content of the buffer after deregistration")
        equal(references(inode(buffer.fd)), 1, "references without the region")
    buffer.close()


@case("the DMA-BUF is freed when its process is killed during traffic")
def killed_process():
    length = 32 << 20
    reader, writer = os.pipe()

    def work():
        pair, buffer = Pair(), Udmabuf(length)
        region, iova = register_dmabuf(pair, buffer)
        _, (at, _, key) = register_filled_buffer(pair, 1 << 20)
        os.write(writer, struct.pack("=Q", inode(buffer.fd)))
        while pair.write((at, 1 << 20, key), (iova, region.rkey)) == SUCCESS:
            pass

    child = start_child(work)
    os.close(writer)
    number = struct.unpack("=Q", os.read(reader, 8))[0]
    time.sleep(0.3)
    equal(references(number), 2, "references of the file descriptor and of the region")
    os.kill(child, 9)
    os.waitpid(child, 0)
    wait_until_equal(lambda: references(number), 0, "references after the end of the process")


@case("no DMA-BUF and no attachment is left after all cases")
def nothing_left():
    equal(buffers(), ({}, 0), "references of each DMA-BUF, and number of attachments")


sys.exit(main())
