#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests that a network device may be deleted while a link is added to it.

Usage: netdev_deletion.py NAME 0. NAME is the name of the network device and of the link; the 0
stands for the GID index of pairs.py and isn't used.

The program holds RTNL until the addition and then the deletion wait for it, so that the deletion
runs in the middle of the addition.
"""

import fcntl
import os
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

import userfault
from pairs import (
    DEVICE, PAGE, LIMIT_SECONDS, case, equal, main, memory_with_unserved_faults, wait_until_equal,
)

ROUNDS = 5
SIOCGIFCONF, DELLINK, REQUEST = 0x8912, 17, 1
FAILED_REGISTRATION = b"Couldn't set up InfiniBand"


class RtnlHolder:
    """Holds RTNL for the time of the context.

    A thread holds it in an ioctl() that copies to memory whose page fault isn't served
    (dev_ifconf(), net/core/dev_ioctl.c).
    """

    def __enter__(self):
        memory, self.faults = memory_with_unserved_faults(PAGE)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        request = struct.pack("=i4xQ", PAGE, memory.address)
        self.thread = threading.Thread(target=fcntl.ioctl, args=(self.socket, SIOCGIFCONF, request))
        self.thread.start()
        userfault.await_fault(self.faults)

    def __exit__(self, *_):
        os.close(self.faults)
        self.thread.join()


def wait_until_sleeps(task, function):
    """Waits until the task sleeps in a function of the kernel."""
    stack = Path(f"/proc/{task}/stack")
    wait_until_equal(lambda: function in stack.read_text(), True, f"{task} sleeps in {function}")


def delete_netdev(index):
    """Deletes a network device by its index (RTM_DELLINK)."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as route:
        route.send(struct.pack("=IHHII", 32, DELLINK, REQUEST, 1, 0) + struct.pack("=BxHiII", 0, 0, index, 0, 0))


def delete_during_link_add():
    subprocess.run(["ip", "link", "add", DEVICE, "type", "veth", "peer", "name", "peer"], check=True)
    deletion = threading.Thread(target=delete_netdev, args=(socket.if_nametoindex(DEVICE),))
    with RtnlHolder():
        # `rdma link add` takes RTNL to read the speed of the network device, and a second time to
        # fill ib_core's GID table.
        addition = subprocess.Popen(
            ["rdma", "link", "add", DEVICE, "type", "rrxe", "netdev", DEVICE], stderr=subprocess.DEVNULL)
        wait_until_sleeps(addition.pid, "nldev_newlink")
        deletion.start()
        wait_until_sleeps(f"self/task/{deletion.native_id}", "rtnetlink_rcv")
    deletion.join()
    return addition.wait(LIMIT_SECONDS)


def failed_registrations():
    log = subprocess.run(["dmesg"], stdout=subprocess.PIPE, check=True).stdout
    return log.count(FAILED_REGISTRATION)


@case("link add during the deletion of its network device leaves no failed registration")
def netdev_deletion():
    before = failed_registrations()
    statuses = [delete_during_link_add() for _ in range(ROUNDS)]
    print(f"# links were added with the statuses {statuses}")
    equal(failed_registrations(), before, "failed registrations in the kernel's log")
    links = subprocess.run(["rdma", "link"], stdout=subprocess.PIPE, check=True).stdout.decode()
    equal(f"netdev {DEVICE}" in links, False, "the link of the deleted network device exists")


sys.exit(main())
