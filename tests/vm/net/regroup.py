#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests an attachment to a multicast group whose network device is replaced halfway.

A process on CPU 0 attaches a QP of the link r0 to a multicast group. A real-time process preempts
it after its network device has joined the group, before the driver enters the group in its table.
Meanwhile r0's network device d0 is deleted, another device with the same index gets the link r1,
and a QP of r1 attaches to the group. The first call must then fail with EBUSY. See regroup.sh.
"""

import errno
import fcntl
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import time

from pyverbs.cq import CQ
from pyverbs.device import Context
import pyverbs.enums as e
from pyverbs.pd import PD
from pyverbs.qp import QP, QPCap, QPInitAttr

from uverbs import attach_mcast, detach_mcast

GROUP = bytes(10) + b"\xff\xff" + bytes([239, 9, 9, 9])
SIOCGIFFLAGS, SIOCSIFFLAGS = 0x8913, 0x8914
# Number of attempts to have the process preempted at that point.
ATTEMPTS = 4
# Network devices whose removal in one batch holds RTNL for long.
DUMMIES = [f"x{number}" for number in range(250)]
# Whether the real-time process may end. Memory that all processes share.
released = mmap.mmap(-1, 4096)


class Member:
    """A UD QP of a device."""

    def __init__(self, device):
        self.context = Context(name=device)
        self.pd, self.cq = PD(self.context), CQ(self.context, 16)
        probe = PD(self.context)
        self.handle = probe.handle
        probe.close()
        cap = QPCap(max_send_wr=4, max_recv_wr=4)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_UD, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=0))

    def attach(self):
        attach_mcast(self.context, self.handle, GROUP)

    def detach(self):
        detach_mcast(self.context, self.handle, GROUP)


class Child:
    """A child process that runs `body`, and two pipes between it and this process."""

    def __init__(self, body):
        (hears, self.tells), (self.hears, tells) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.tells)
            status = 1
            try:
                body(hears, tells)
                status = 0
            finally:
                os._exit(status)
        os.read(self.hears, 1)

    def go(self):
        os.write(self.tells, b"g")

    def state(self):
        with open(f"/proc/{self.pid}/stat", encoding="ascii") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0]

    def await_lock(self):
        """Waits until the process sleeps uninterruptibly, on a lock, or for five seconds."""
        end = time.monotonic() + 5
        while self.state() != "D" and time.monotonic() < end:
            time.sleep(0.005)

    def end(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def join(hears, tells):
    """Attaches a QP of r0 to the group, and reports the errno."""
    os.sched_setaffinity(0, {0})
    member = Member("r0")
    os.write(tells, b"r")
    os.read(hears, 1)
    try:
        member.attach()
        code = 0
    except OSError as error:
        code = error.errno
    os.write(tells, b"%d" % code)
    os.read(hears, 1)


def hog(hears, tells):
    """Waits for RTNL behind the joining process, and then keeps its CPU busy with a real-time
    priority."""
    control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    request = struct.pack("16sh14x", b"lo", 0)
    flags, = struct.unpack_from("h", fcntl.ioctl(control, SIOCGIFFLAGS, request), 16)
    os.sched_setaffinity(0, {0})
    os.write(tells, b"r")
    os.read(hears, 1)
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
    fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags))
    while not released[0]:
        pass


def has_joined():
    groups = subprocess.run(["ip", "maddr", "show", "dev", "d0"], capture_output=True, text=True, check=True).stdout
    return ".".join(str(byte) for byte in GROUP[12:]) in groups


def await_removal():
    """Waits until the kernel removes dummies from its list of devices, with RTNL held."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        with open("/proc/net/dev", encoding="ascii") as devices:
            if sum(line.strip().startswith("x") for line in devices) < len(DUMMIES):
                return
        time.sleep(0.005)


def stop_joiner():
    """Returns a process whose device has joined the group and that is preempted before the driver
    enters the group, and the process that preempts it. Returns None if this attempt fails."""
    released[0] = 0
    commands = "".join(f"link add {name} group 7 type dummy\n" for name in DUMMIES)
    subprocess.run(["ip", "-batch", "-"], input=commands, text=True, check=True)
    joiner, keeper = Child(join), Child(hog)
    # This command holds RTNL for long. Both children then wait for RTNL.
    with subprocess.Popen(["ip", "link", "del", "group", "7"]):
        await_removal()
        joiner.go()
        joiner.await_lock()
        keeper.go()
        keeper.await_lock()
    time.sleep(1)
    os.set_blocking(joiner.hears, False)
    try:
        os.read(joiner.hears, 8)
    except BlockingIOError:
        if has_joined():
            os.set_blocking(joiner.hears, True)
            return joiner, keeper
    released[0] = 1
    joiner.end()
    keeper.end()
    return None


def tell(ok, name):
    print(f"{'ok' if ok else 'not ok'} - {name}", flush=True)
    return ok


def main():
    os.sched_setaffinity(0, {1})
    found = next((pair for pair in (stop_joiner() for _ in range(ATTEMPTS)) if pair), None)
    if not tell(found is not None, "a process is preempted after it has joined"):
        return 1
    joiner, keeper = found
    with subprocess.Popen(["ip", "link", "del", "d0"]):
        time.sleep(3)
        subprocess.run(["bash", "-c", "make_link r1"], check=True)
        member = Member("r1")
        member.attach()
        released[0] = 1
        code = int(os.read(joiner.hears, 8))
    good = tell(code == errno.EBUSY, f"its call finds the group made by another device (errno {code})")
    member.detach()
    member.qp.close()
    good &= tell(True, "the other QP leaves the group and goes")
    joiner.end()
    keeper.end()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
