# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Memory whose page faults the process serves itself, or leaves unserved (userfaultfd(2))."""

import ctypes
import fcntl
import os
import struct

USERFAULTFD = {"x86_64": 323, "aarch64": 282}[os.uname().machine]
USER_MODE_ONLY = 1
API, REGISTER, ZEROPAGE, WRITEPROTECT = 0xC018AA3F, 0xC020AA00, 0xC020AA04, 0xC018AA06
MISSING, WRITE_PROTECT = 1, 2
MESSAGE = 32  # struct uffd_msg
# Maximum number of threads in which the kernel serves faults on a process's on-demand regions: that
# many faults may wait for memory at a time (MOST in rust/rdma/support/user_thread.rs).
FAULT_THREADS = 16

libc = ctypes.CDLL(None, use_errno=True)


def open_faults(flags=0):
    """Opens a userfaultfd. No memory is registered with it yet."""
    fd = libc.syscall(USERFAULTFD, os.O_CLOEXEC | flags)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "userfaultfd")
    fcntl.ioctl(fd, API, struct.pack("=QQQ", 0xAA, 0, 0))
    return fd


def register_memory(fd, memory, mode=MISSING):
    """Registers memory with a userfaultfd. Its faults then wait until the process serves them."""
    fcntl.ioctl(fd, REGISTER, bytearray(struct.pack("=QQQQ", memory.address, memory.length, mode, 0)))


def open_faults_of(memory, flags=0):
    """Opens a userfaultfd for the missing pages of `memory`."""
    fd = open_faults(flags)
    register_memory(fd, memory)
    return fd


def await_fault(fd):
    """Waits for a fault, and doesn't serve it. `fd` must be in blocking mode.

    poll(2) can't wait for a fault, because poll(2) reports an error for a userfaultfd in blocking
    mode (userfaultfd_poll(), mm/userfaultfd.c).
    """
    os.read(fd, MESSAGE)


def serve_zeros(fd, address, length):
    """Serves faults: makes pages of zeros present."""
    fcntl.ioctl(fd, ZEROPAGE, bytearray(struct.pack("=QQQq", address, length, 0, 0)))


def protect(fd, address, length):
    """Protects present pages against writes."""
    fcntl.ioctl(fd, WRITEPROTECT, bytearray(struct.pack("=QQQ", address, length, 1)))
