# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Memory whose faults a process answers, or doesn't."""

import fcntl
import mmap
import os
import struct

from pairs import Buffer, libc, map_memory

USERFAULTFD = 323


class Private(Buffer):
    """Fresh private memory."""

    def __init__(self, length, flags=mmap.MAP_PRIVATE):
        self.length = length
        self.address = map_memory(length, flags=flags)


def unanswered(length):
    """Memory whose faults are never answered while the file that is returned with it is open."""
    fd = libc.syscall(USERFAULTFD, os.O_CLOEXEC)
    fcntl.ioctl(fd, 0xC018AA3F, struct.pack("=QQQ", 0xAA, 0, 0))
    memory = Private(length)
    fcntl.ioctl(fd, 0xC020AA00, bytearray(struct.pack("=QQQQ", memory.address, length, 1, 0)))
    return memory, fd
