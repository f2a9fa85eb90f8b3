# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Memory whose faults the process answers itself (userfaultfd(2))."""

import ctypes
import fcntl
import os
import struct

USERFAULTFD, USER_MODE_ONLY = 323, 1
API, REGISTER, ZEROPAGE, WRITEPROTECT = 0xC018AA3F, 0xC020AA00, 0xC020AA04, 0xC018AA06
MISSING, WRITE_PROTECT = 1, 2
MESSAGE = 32  # struct uffd_msg
# Threads of a process that serve its regions' faults: so many may wait at a time (MOST of rust/rdma/support/user_thread.rs).
FAULT_THREADS = 16

libc = ctypes.CDLL(None, use_errno=True)


def open_faults(flags=0):
    """A file of faults, of no memory yet."""
    fd = libc.syscall(USERFAULTFD, os.O_CLOEXEC | flags)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "userfaultfd")
    fcntl.ioctl(fd, API, struct.pack("=QQQ", 0xAA, 0, 0))
    return fd


def watch(fd, memory, mode=MISSING):
    """Has the file tell of the memory's faults."""
    fcntl.ioctl(fd, REGISTER, bytearray(struct.pack("=QQQQ", memory.address, memory.length, mode, 0)))


def faults_of(memory, flags=0):
    """A file of the memory's faults."""
    fd = open_faults(flags)
    watch(fd, memory)
    return fd


def await_fault(fd):
    """Waits for a fault. poll(2) doesn't: it reports an error for a file that blocks (userfaultfd_poll, fs/userfaultfd.c)."""
    os.read(fd, MESSAGE)


def give_zeros(fd, address, length):
    """Makes pages of zeros present."""
    fcntl.ioctl(fd, ZEROPAGE, bytearray(struct.pack("=QQQq", address, length, 0, 0)))


def protect(fd, address, length):
    """Protects what is present against writes."""
    fcntl.ioctl(fd, WRITEPROTECT, bytearray(struct.pack("=QQQ", address, length, 1)))
