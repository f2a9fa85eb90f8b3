#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Network devices that go while a link is added to them: vanishing.py."""

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
import threading
import time

import userfault

ROUNDS, PATIENCE, PAGE = 5, 120, 4096
SIOCGIFCONF, DELLINK, REQUEST = 0x8912, 17, 1
FAILURE = b"Couldn't set up InfiniBand"


class Memory:
    """A page that is absent."""

    def __init__(self):
        libc = ctypes.CDLL(None)
        libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p] + [ctypes.c_long] * 5
        # Readable and writable, private and anonymous.
        self.address, self.length = libc.mmap(None, PAGE, 3, 0x22, -1, 0), PAGE


class Rtnl:
    """The lock of the kernel's network devices, held by a call that copies to absent memory (`dev_ifconf()`, net/core)."""

    def __enter__(self):
        memory = Memory()
        self.faults, self.socket = userfault.faults_of(memory), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        request = struct.pack("=i4xQ", PAGE, memory.address)
        self.thread = threading.Thread(target=fcntl.ioctl, args=(self.socket, SIOCGIFCONF, request))
        self.thread.start()
        userfault.await_fault(self.faults)

    def __exit__(self, *_):
        os.close(self.faults)
        self.thread.join()


def await_wait(task, function):
    """Waits until the task sleeps in that function of the kernel."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with open(f"/proc/{task}/stack", encoding="ascii") as stack:
            seen = stack.read()
        if function in seen:
            return
        time.sleep(0.01)
    raise AssertionError(f"{task} does not sleep in {function}: {seen}")


def delete(index):
    """Deletes a network device."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as route:
        route.send(struct.pack("=IHHII", 32, DELLINK, REQUEST, 1, 0) + struct.pack("=BxHiII", 0, 0, index, 0, 0))


def vanish():
    subprocess.run(["ip", "link", "add", "gone", "type", "veth", "peer", "name", "gone-peer"], check=True)
    deletion = threading.Thread(target=delete, args=(socket.if_nametoindex("gone"),))
    with Rtnl():
        # It takes RTNL for the speed of the network device, and again for ib_core's table of addresses.
        addition = subprocess.Popen(
            ["rdma", "link", "add", "gone", "type", "rrxe", "netdev", "gone"], stderr=subprocess.DEVNULL)
        await_wait(addition.pid, "nldev_newlink")
        deletion.start()
        await_wait(f"self/task/{deletion.native_id}", "rtnetlink_rcv")
    deletion.join()
    return addition.wait(PATIENCE)


def half_made():
    return subprocess.run(["dmesg"], stdout=subprocess.PIPE, check=True).stdout.count(FAILURE)


before = half_made()
statuses = [vanish() for _ in range(ROUNDS)]
links = subprocess.run(["rdma", "link"], stdout=subprocess.PIPE, check=True).stdout
print(f"# links were added with the statuses {statuses}")
good = half_made() == before and b"netdev gone" not in links
print(f"{'ok' if good else 'not ok'} - a network device that goes leaves no registration half-made")
sys.exit(not good)
