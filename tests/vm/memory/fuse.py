# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""A file of a FUSE file system (fuse(4)) whose server never answers writes.

A thread that waits for the end of a write-back of this file waits until the file system ends.
"""

import contextlib
import ctypes
import errno
import os
import signal
import struct
import tempfile

from pairs import PAGE, libc, start_child

# Operations of the protocol (enum fuse_opcode).
GETATTR, OPEN, READ, WRITE, RELEASE, FLUSH, INIT = 3, 14, 15, 16, 18, 25, 26
# Version of the protocol, and the mode of a regular file.
MAJOR, MINOR, S_IFREG = 7, 31, 0o100000
REQUEST = "=IIQQIIIHH"  # struct fuse_in_header
# Node ID of the root, validity of attributes in seconds, and size of the request buffer in bytes.
ROOT_NODE, ATTR_VALID, BUFFER_SIZE = 1, 1 << 30, 1 << 17
# Flags of sync_file_range(2) and umount2(2).
SYNC_FILE_RANGE_WRITE, MNT_DETACH = 2, 2

libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]


def attributes():
    """Returns the struct fuse_attr_out of a regular file of one page."""
    numbers = struct.pack("=IIIIIII", S_IFREG | 0o666, 1, 0, 0, 0, PAGE, 0)
    return struct.pack("=QIIQQQ36x", ATTR_VALID, 0, 0, ROOT_NODE, PAGE, PAGE // 512) + numbers


def serve_requests(device):
    """Answers requests for the root, which is a regular file. Never returns.

    A WRITE request gets no answer, an unknown operation the error ENOSYS."""
    replies = {
        INIT: struct.pack("=IIIIHHIIHHI28x", MAJOR, MINOR, 0, 0, 12, 9, PAGE, 1, 0, 0, 0),
        GETATTR: attributes(),
        OPEN: struct.pack("=QIi", 0, 0, 0),
        READ: bytes(PAGE),
        FLUSH: b"",
        RELEASE: b"",
    }
    while True:
        _, operation, unique, *_ = struct.unpack_from(REQUEST, os.read(device, BUFFER_SIZE))
        if operation == WRITE:
            continue
        reply, error = replies.get(operation, b""), 0 if operation in replies else -errno.ENOSYS
        os.write(device, struct.pack("=IiQ", 16 + len(reply), error, unique) + reply)


@contextlib.contextmanager
def unanswered_file():
    """Context manager: yields the path of a file of one page whose writes never complete.

    The writes fail at the end of the context."""
    with tempfile.NamedTemporaryFile() as mount_point:
        path = mount_point.name.encode()
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={device},rootmode={S_IFREG:o},user_id=0,group_id=0".encode()
        if libc.mount(b"test", path, b"fuse", 0, options):
            raise OSError(ctypes.get_errno(), "mount")
        server = start_child(lambda: serve_requests(device))
        os.close(device)
        try:
            # The first stat(2) has the kernel request the attributes. Until then the root has no
            # size.
            os.stat(path)
            yield mount_point.name
        finally:
            # The kernel fails all pending requests when the last file of /dev/fuse is closed.
            os.kill(server, signal.SIGKILL)
            os.waitpid(server, 0)
            libc.umount2(path, MNT_DETACH)


def start_write_back(file):
    """Starts the write-back of a file's dirty pages."""
    if libc.sync_file_range(file, 0, 0, SYNC_FILE_RANGE_WRITE):
        raise OSError(ctypes.get_errno(), "sync_file_range")
