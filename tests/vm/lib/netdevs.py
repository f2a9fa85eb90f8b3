#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests how changes of network devices and namespaces affect QPs.

  netdevs.py unplug DEVICE GID-INDEX COMMAND...
      Posts work requests, has COMMAND remove the device, and checks that polling the CQ, without a
      system call, finds all of them flushed in order.
  netdevs.py shrink A GID-INDEX B GID-INDEX
      Shrinks the MTU of the hosts' eth0 below the path MTU of QPs of the devices A and B. Checks
      that messages which are too large now fail soon, and that small ones arrive.
  netdevs.py exchange A GID-INDEX B GID-INDEX
      Sends messages between the devices A and B in both directions, and checks their data.
  netdevs.py wire NAMESPACE NAMESPACE NAME
      Forwards packets between the TUN or TAP devices (tun..., tap...) called NAME of two
      namespaces.
  netdevs.py uevents DEVICE...
      Makes QPs on each device, moves the process to the initial network namespace, has the QPs wait
      for page faults, and prints "attached". At the end of its input it fails if the initial
      namespace got uevents of RDMA devices meanwhile.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import select
import socket
import struct
import subprocess
import sys
import time
from types import SimpleNamespace

from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
import pyverbs.enums as e
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

from extension import gid_of
import userfault

ALL = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
SIZE = 4000
# QPs of each device. All devices together have more QPs that wait for page faults than the process
# has threads which serve faults (FAULT_THREADS).
QPS = 3
# Seconds within which a request must fail: less than the first timeout of a QP, which is 17 s.
SOON = 12
NETLINK_KOBJECT_UEVENT, KERNEL = 15, 1
TUNSETIFF, IFF_TUN, IFF_TAP, IFF_NO_PI = 0x400454CA, 1, 2, 0x1000


class Side:
    """An RC QP with its own context, CQ and region."""

    def __init__(self, device, index):
        self.context = Context(name=device)
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 64)
        cap = QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=1, max_recv_sge=1)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1)
        self.qp = QP(self.pd, init)
        self.mr = MR(self.pd, 2 * SIZE, ALL)
        self.index = int(index)
        self.gid = self.context.query_gid(1, self.index)

    def connect(self, gid, qpn, timeout=22, mtu=e.IBV_MTU_4096):
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = ALL
        attr.path_mtu = mtu
        attr.dest_qp_num = qpn
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 4
        attr.min_rnr_timer = 12
        attr.timeout = timeout
        attr.retry_cnt = attr.rnr_retry = 7
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=GlobalRoute(dgid=gid, sgid_index=self.index))
        self.qp.to_rts(attr)

    def sge(self, length):
        return [SGE(self.mr.buf, length, self.mr.lkey)]

    def post_recv(self, number):
        self.qp.post_recv(RecvWR(wr_id=number, num_sge=1, sg=self.sge(SIZE)))

    def post_send(self, number, length, opcode=e.IBV_WR_SEND, peer=None):
        wr = SendWR(wr_id=number, opcode=opcode, num_sge=1, sg=self.sge(length))
        if peer:
            wr.set_wr_rdma(peer.mr.rkey, peer.mr.buf)
        self.qp.post_send(wr)

    def completions(self, count, seconds=60):
        """Polls `count` completions. Returns their (wr_id, status), and the seconds it took."""
        found, begin = [], time.monotonic()
        while len(found) < count:
            if time.monotonic() > begin + seconds:
                raise SystemExit(f"only these completions after {seconds} s: {found}")
            got, entries = self.cq.poll(1)
            found += [(entry.wr_id, entry.status) for entry in entries] if got else []
        return found, time.monotonic() - begin


def equal(seen, wanted, what):
    if seen != wanted:
        raise SystemExit(f"{what}: {seen}, and expected {wanted}")


def unplug(device, index, *command):
    side = Side(device, index)
    # The peer QP doesn't exist, and timeout 0 means no timeout. So the sends never complete.
    side.connect(side.gid, 0xABCDEF, timeout=0, mtu=e.IBV_MTU_1024)
    for number in range(5):
        side.post_recv(number)
    for number in range(100, 103):
        side.post_send(number, 100)
    equal(side.cq.poll(1)[0], 0, "completions before the device is removed")
    subprocess.run(command, check=True)
    # From here on the process makes no system call for the CQ: it reads the CQ's ring.
    found, _ = side.completions(8)
    for first, count in (0, 5), (100, 3):
        ours = [entry for entry in found if first <= entry[0] < first + count]
        flushed = [(first + number, e.IBV_WC_WR_FLUSH_ERR) for number in range(count)]
        equal(ours, flushed, "the completions, all flushed and in order")
    print("8 flushed in order")
    # _exit() skips the destructors of pyverbs, which would fail without the device.
    sys.stdout.flush()
    os._exit(0)


def shrink(one, index, other, other_index):
    pairs = [(Side(one, index), Side(other, other_index)) for _ in range(3)]
    for a, b in pairs:
        a.connect(b.gid, b.qp.qp_num)
        b.connect(a.gid, a.qp.qp_num)
        b.post_recv(0)
        a.post_send(1, SIZE)
        equal(a.completions(1)[0], [(1, e.IBV_WC_SUCCESS)], "a send before the MTU shrinks")
        equal(b.completions(1)[0], [(0, e.IBV_WC_SUCCESS)], "its receive")
        b.post_recv(2)
    for host in "h1", "h2":
        subprocess.run(["ip", "-n", host, "link", "set", "eth0", "mtu", "1500"], check=True)
    (a, b), (reader, server), (small, peer) = pairs
    a.post_send(3, SIZE)
    found, seconds = a.completions(1)
    equal(found, [(3, e.IBV_WC_LOC_LEN_ERR)], "a send that is larger than the MTU allows")
    if seconds > SOON:
        raise SystemExit(f"the request failed only after {seconds:.1f} s")
    reader.post_send(4, SIZE, e.IBV_WR_RDMA_READ, server)
    found, seconds = reader.completions(1)
    equal(found, [(4, e.IBV_WC_REM_OP_ERR)], "a READ whose response is larger than the MTU allows")
    if seconds > SOON:
        raise SystemExit(f"the request failed only after {seconds:.1f} s")
    small.post_send(5, 1000)
    equal(small.completions(1)[0], [(5, e.IBV_WC_SUCCESS)], "a send that fits the MTU")
    equal(peer.completions(1)[0], [(2, e.IBV_WC_SUCCESS)], "its receive")
    equal(small.context.query_port(1).active_mtu, e.IBV_MTU_1024, "the active MTU")


def exchange(one, index, other, other_index):
    ends = Side(one, index), Side(other, other_index)
    for end, peer in zip(ends, reversed(ends)):
        # Timeout 18 is 1 s. Each packet passes the `wire` process, which is slow on an emulated
        # machine.
        end.connect(peer.gid, peer.qp.qp_num, timeout=18, mtu=e.IBV_MTU_1024)
    for number in range(20):
        for sender, receiver in ends, ends[::-1]:
            data = bytes([number, ends.index(sender)]) * (SIZE // 2)
            sender.mr.write(data, SIZE)
            receiver.mr.write(bytes(SIZE), SIZE)
            receiver.post_recv(number)
            sender.post_send(number, SIZE)
            for end in sender, receiver:
                done = [(number, e.IBV_WC_SUCCESS)]
                equal(end.completions(1)[0], done, "the completion of a message")
            equal(receiver.mr.read(SIZE, 0) == data, True, "the data of a message has arrived")


def open_tun(namespace, name):
    with open(f"/run/netns/{namespace}", "rb") as file:
        os.setns(file.fileno(), os.CLONE_NEWNET)
    tun = os.open("/dev/net/tun", os.O_RDWR)
    kind = IFF_TAP if name.startswith("tap") else IFF_TUN
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", name.encode(), kind | IFF_NO_PI))
    return tun


def wire(*arguments):
    *namespaces, name = arguments
    ends = [open_tun(namespace, name) for namespace in namespaces]
    print("ready", flush=True)
    while True:
        for end in select.select(ends, [], [])[0]:
            packet = os.read(end, 65536)
            try:
                os.write(ends[1 - ends.index(end)], packet)
            except OSError as error:
                # A device that is down accepts no packets (tun_get_user(), drivers/net/tun.c).
                if error.errno != errno.EIO:
                    raise


def loopback(device):
    """Returns a QP that is connected to itself, by the device's first IPv4 GID."""
    index = next(index for index in range(64) if gid_of(device, index)[10:12] == b"\xff\xff")
    side = Side(device, index)
    side.connect(side.gid, side.qp.qp_num, mtu=e.IBV_MTU_1024)
    return side


def park_qp(side):
    """Has a QP wait for a page fault that is never served.

    The QP sends from on-demand memory that a userfaultfd guards. The kernel serves the fault in a
    thread of the process, if one is free. Returns the memory and the userfaultfd.
    """
    memory = mmap.mmap(-1, SIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    side.mr = MR(side.pd, SIZE, ALL | e.IBV_ACCESS_ON_DEMAND, address)
    faults = userfault.open_faults_of(SimpleNamespace(address=address, length=mmap.PAGESIZE), os.O_NONBLOCK)
    side.post_send(1, SIZE)
    return memory, faults


def uevents(*devices):
    sides = [loopback(device) for device in devices for _ in range(QPS)]
    with open("/proc/1/ns/net", "rb") as file:
        os.setns(file.fileno(), os.CLONE_NEWNET)
    # After setns(), because the threads that serve faults stay in the namespace where they were
    # created.
    parked = [park_qp(side) for side in sides]
    unfaulted, begun = [faults for _, faults in parked], 0
    while begun < userfault.FAULT_THREADS:
        for faults in select.select(unfaulted, [], [])[0]:
            unfaulted.remove(faults)
            begun += 1
    uevents = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_KOBJECT_UEVENT)
    uevents.bind((0, KERNEL))
    print("attached", flush=True)
    sys.stdin.read()
    uevent_names = []
    while select.select([uevents], [], [], 0)[0]:
        what, *fields = uevents.recv(1 << 16).split(b"\0")
        uevent_names += [what.decode()] if b"SUBSYSTEM=infiniband" in fields else []
    status = 0 if parked and not uevent_names else 1
    print(*uevent_names, sep="\n")
    # _exit() skips the destructors of pyverbs, which would fail without the devices.
    sys.stdout.flush()
    os._exit(status)


{"unplug": unplug, "shrink": shrink, "exchange": exchange, "wire": wire, "uevents": uevents}[sys.argv[1]](*sys.argv[2:])
