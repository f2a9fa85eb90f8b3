#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests an attachment to a multicast group whose network device is replaced halfway.

A process on CPU 0 attaches a QP of the link r0 to a multicast group. A real-time process preempts
that process after r0's network device d0 has joined the group, before the driver enters the group
in its table. Meanwhile d0 is deleted, another device with the same index gets the link r1, and a QP
of r1 attaches to the group. The first call must then fail with EBUSY. See multicast-race.sh.
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
    """A UD QP of a device, which can attach to the group."""

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
        (input_pipe, self.output_pipe), (self.input_pipe, output_pipe) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.output_pipe)
            status = 1
            try:
                body(input_pipe, output_pipe)
                status = 0
            finally:
                os._exit(status)
        os.read(self.input_pipe, 1)

    def go(self):
        os.write(self.output_pipe, b"g")

    def state(self):
        with open(f"/proc/{self.pid}/stat", encoding="ascii") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0]

    def wait_for_lock(self):
        """Waits until the process sleeps uninterruptibly, on a lock. Gives up after 5 s."""
        end = time.monotonic() + 5
        while self.state() != "D" and time.monotonic() < end:
            time.sleep(0.005)

    def end(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def attach_from_r0(input_pipe, output_pipe):
    """Attaches a QP of r0 to the group, and reports the errno."""
    os.sched_setaffinity(0, {0})
    member = Member("r0")
    os.write(output_pipe, b"r")
    os.read(input_pipe, 1)
    try:
        member.attach()
        code = 0
    except OSError as error:
        code = error.errno
    os.write(output_pipe, b"%d" % code)
    os.read(input_pipe, 1)


def occupy_cpu0(input_pipe, output_pipe):
    """Waits for RTNL behind the attaching process. Then keeps that process's CPU busy with a
    real-time priority, until `released` is set."""
    control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    request = struct.pack("16sh14x", b"lo", 0)
    flags, = struct.unpack_from("h", fcntl.ioctl(control, SIOCGIFFLAGS, request), 16)
    os.sched_setaffinity(0, {0})
    os.write(output_pipe, b"r")
    os.read(input_pipe, 1)
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
    fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags))
    while not released[0]:
        pass


def has_joined():
    groups = subprocess.run(["ip", "maddr", "show", "dev", "d0"], capture_output=True, text=True, check=True).stdout
    return ".".join(str(byte) for byte in GROUP[12:]) in groups


def wait_for_removal():
    """Waits until the kernel removes dummies from its list of devices, with RTNL held. Gives up
    after 30 s."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        with open("/proc/net/dev", encoding="ascii") as devices:
            if sum(line.strip().startswith("x") for line in devices) < len(DUMMIES):
                return
        time.sleep(0.005)


def preempt_joiner():
    """Returns a process whose device has joined the group and that is preempted before the driver
    enters the group in its table, and the process that preempts it. Returns None if this attempt
    fails."""
    released[0] = 0
    commands = "".join(f"link add {name} group 7 type dummy\n" for name in DUMMIES)
    subprocess.run(["ip", "-batch", "-"], input=commands, text=True, check=True)
    joiner, occupier = Child(attach_from_r0), Child(occupy_cpu0)
    # This command holds RTNL for long. Both children then wait for RTNL.
    with subprocess.Popen(["ip", "link", "del", "group", "7"]):
        wait_for_removal()
        joiner.go()
        joiner.wait_for_lock()
        occupier.go()
        occupier.wait_for_lock()
    time.sleep(1)
    os.set_blocking(joiner.input_pipe, False)
    try:
        os.read(joiner.input_pipe, 8)
    except BlockingIOError:
        if has_joined():
            os.set_blocking(joiner.input_pipe, True)
            return joiner, occupier
    released[0] = 1
    joiner.end()
    occupier.end()
    return None


def report(ok, name):
    print(f"{'ok' if ok else 'not ok'} - {name}", flush=True)
    return ok


def main():
    os.sched_setaffinity(0, {1})
    children = next((pair for pair in (preempt_joiner() for _ in range(ATTEMPTS)) if pair), None)
    if not report(children is not None,
                  "the process is preempted after its network device has joined the group"):
        return 1
    joiner, occupier = children
    with subprocess.Popen(["ip", "link", "del", "d0"]):
        time.sleep(3)
        subprocess.run(["bash", "-c", "make_link r1"], check=True)
        member = Member("r1")
        member.attach()
        released[0] = 1
        code = int(os.read(joiner.input_pipe, 8))
    passed = report(code == errno.EBUSY,
                    f"attaching fails with EBUSY: another device has the group (errno {code})")
    member.detach()
    member.qp.close()
    passed &= report(True, "the other QP detaches from the group and is destroyed")
    joiner.end()
    occupier.end()
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
