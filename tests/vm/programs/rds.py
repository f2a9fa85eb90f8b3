# SPDX-License-Identifier: GPL-2.0
"""Sends messages over RDS sockets between two addresses of this host, and compares them.

    rds.py ADDRESS ADDRESS [FILE]

If there is a FILE, the program creates it after the last message, and keeps the sockets open until
it is killed.
"""

import ctypes
import os
import select
import signal
import socket
import struct
import sys
from pathlib import Path

AF_RDS = 21
PORT = 4000
SIZES = [1, 100, 4095, 4096, 4097, 20000, 100000, 1000000]
SECONDS = 30

libc = ctypes.CDLL(None, use_errno=True)


def name(address):
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", PORT, socket.inet_aton(address))


def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def bound_socket(address):
    """Returns a socket that is bound to the address. It is made by libc, because Python does not
    support addresses of this family."""
    fd = checked(libc.socket(AF_RDS, socket.SOCK_SEQPACKET, 0))
    size = struct.pack("=i", 4 << 20)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        checked(libc.setsockopt(fd, socket.SOL_SOCKET, option, size, len(size)))
    checked(libc.bind(fd, name(address), 16))
    return fd


def send(fd, message, to):
    checked(libc.sendto(fd, message, len(message), 0, name(to), 16))


def receive(fd):
    if not select.select([fd], [], [], SECONDS)[0]:
        raise TimeoutError("no message came")
    buffer = ctypes.create_string_buffer(max(SIZES) + 1)
    length = checked(libc.recv(fd, buffer, len(buffer), 0))
    return buffer.raw[:length]


def main(first, second, ready=None):
    first_socket, second_socket = bound_socket(first), bound_socket(second)
    for size in SIZES:
        message = os.urandom(size)
        send(first_socket, message, second)
        assert receive(second_socket) == message, f"{size} bytes to the second socket"
        send(second_socket, message[::-1], first)
        assert receive(first_socket) == message[::-1], f"{size} bytes to the first socket"
    messages = [os.urandom(1000) for _ in range(200)]
    for message in messages:
        send(first_socket, message, second)
    assert [receive(second_socket) for _ in messages] == messages, "many messages in order"
    if ready:
        Path(ready).touch()
        signal.pause()


main(*sys.argv[1:])
