#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests that packets of one QP stay in order when several CPUs post to it.

  order.py DEVICE GID-INDEX PEER-DEVICE PEER-GID-INDEX

DEVICE is a link on eth0 of namespace h1, PEER-DEVICE one on eth0 of h2; a veth pair connects them.
eth0 of h1 has one transmit queue each for CPU 0 and CPU 1. A token bucket filter makes the queue of
CPU 1 slow, so packets that CPU 0 sends later would overtake those of CPU 1. The guest has a third
CPU, and eth0 a third transmit queue, which no CPU uses at first.
"""

import contextlib
import json
import os
import struct
import subprocess
import sys
import time

from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
import pyverbs.enums as e
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import RecvWR, SGE, SendWR

from pairs import ALL, PAGE, LIMIT_SECONDS, Buffer, case, counter, equal, main, register

# CPUs with a fast and with a slow transmit queue.
FAST, SLOW = 0, 1
# CPU that receives the packets of SLOW within `slow_reception`, slowly.
RECEIVER = 2
# Bytes of a message: more than the path MTU of 1,024, so that a message has several packets.
LENGTH = 3000
# Bytes of a message of a single packet.
SHORT = 1000
# Capacity of the send queue and of the receive queue.
DEPTH = 16


class Endpoint:
    """A QP with its device context, PD, CQ and memory region."""

    def __init__(self, device, gid_index, kind):
        self.device, self.gid_index = device, int(gid_index)
        self.context = Context(name=device)
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 2 * DEPTH)
        cap = QPCap(max_send_wr=DEPTH, max_recv_wr=DEPTH, max_send_sge=1, max_recv_sge=1)
        self.qp = QP(self.pd, QPInitAttr(qp_type=kind, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1))
        self.buffer = Buffer(DEPTH * PAGE)
        self.region = register(self.pd, self.buffer)

    def connect(self, peer):
        gid = peer.context.query_gid(1, peer.gid_index)
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = ALL
        attr.path_mtu = e.IBV_MTU_1024
        attr.dest_qp_num = peer.qp.qp_num
        attr.max_dest_rd_atomic = attr.max_rd_atomic = 4
        attr.min_rnr_timer = 12
        # An ACK timeout of four seconds, so that a QP does not retransmit packets that are slow.
        attr.timeout, attr.retry_cnt, attr.rnr_retry = 20, 7, 7
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=GlobalRoute(dgid=gid, sgid_index=self.gid_index))
        self.qp.to_rts(attr)

    def sge(self, slot, length):
        return SGE(self.buffer.address + slot * PAGE, length, self.region.lkey)

    def receive(self, slot):
        self.qp.post_recv(RecvWR(wr_id=slot, num_sge=1, sg=[self.sge(slot, PAGE)]))

    def send(self, slot, length=LENGTH):
        self.buffer.fill(struct.pack("I", slot) * (length // 4), slot * PAGE)
        wr = SendWR(wr_id=slot, opcode=e.IBV_WR_SEND, num_sge=1, sg=[self.sge(slot, length)])
        self.qp.post_send(wr)

    def wait_completions(self, count):
        """Returns the numbers of the next `count` completed work requests, in order."""
        ended, end = [], time.monotonic() + LIMIT_SECONDS
        while len(ended) < count and time.monotonic() < end:
            for completion in self.cq.poll(count - len(ended))[1]:
                equal(completion.status, e.IBV_WC_SUCCESS, "status")
                ended.append(completion.wr_id)
        equal(len(ended), count, "completions")
        return ended

    def out_of_sequence(self):
        return counter("out_of_seq_request", self.device)


@contextlib.contextmanager
def on_cpu(cpu):
    """Runs the block on this CPU."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def connected_endpoints(kind):
    """Returns two connected QPs. The receiver has posted its receives."""
    sender, receiver = Endpoint(*sys.argv[1:3], kind), Endpoint(*sys.argv[3:5], kind)
    sender.connect(receiver)
    receiver.connect(sender)
    for slot in range(DEPTH):
        receiver.receive(slot)
    return sender, receiver


def send_from(kind, cpus):
    """Sends a message from each of the CPUs, without a pause. Fails unless all messages arrive in
    order and no packet is out of sequence."""
    sender, receiver = connected_endpoints(kind)
    before = receiver.out_of_sequence()
    for slot, cpu in enumerate(cpus):
        with on_cpu(cpu):
            sender.send(slot)
    equal(receiver.wait_completions(len(cpus)), list(range(len(cpus))), "receives")
    for slot in range(len(cpus)):
        equal(receiver.buffer.read(LENGTH, slot * PAGE), struct.pack("I", slot) * (LENGTH // 4), "payload")
    equal(sender.wait_completions(len(cpus)), list(range(len(cpus))), "sends")
    equal(receiver.out_of_sequence() - before, 0, "packets out of sequence")


@case("UC: packets of a second CPU stay behind those of a first, slower one")
def _():
    send_from(e.IBV_QPT_UC, [SLOW, FAST])


@case("UC: messages stay in order when the posting CPU changes again and again")
def _():
    send_from(e.IBV_QPT_UC, [FAST, SLOW, FAST, SLOW, SLOW, FAST, FAST, SLOW])


@case("RC: packets of a second CPU stay behind those of a first, slower one")
def _():
    send_from(e.IBV_QPT_RC, [SLOW, FAST])


@case("RC: messages stay in order when the posting CPU changes again and again")
def _():
    send_from(e.IBV_QPT_RC, [FAST, SLOW, FAST, SLOW, SLOW, FAST, FAST, SLOW])


def tx_queue_packets(cpu):
    """Returns the number of packets that the CPU's transmit queue has sent."""
    command = "ip netns exec h1 tc -s -j qdisc show dev eth0".split()
    queues = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return sum(queue["packets"] for queue in queues if queue.get("parent") == f"1:{cpu + 1}")


@case("an idle QP sends from the CPU that posts")
def _():
    sender, receiver = connected_endpoints(e.IBV_QPT_UC)
    for cpu in [SLOW, FAST, SLOW]:
        end = time.monotonic() + 60
        before = tx_queue_packets(cpu)
        while tx_queue_packets(cpu) - before < LENGTH // 1024:
            if time.monotonic() > end:
                raise AssertionError(f"no message left from CPU {cpu}")
            # The CPU that sends the QP's packets (tx_cpu.rs) changes only after an RCU grace
            # period, which shows that the receiver has handled all packets (reception.rs). The
            # first attempt may only start the grace period.
            time.sleep(1)
            before = tx_queue_packets(cpu)
            with on_cpu(cpu):
                sender.send(0)
            receiver.receive(*receiver.wait_completions(1))
            sender.wait_completions(1)


def set_queue_attribute(host, name, text):
    """Sets a sysfs attribute of a queue of eth0 of a host."""
    path = f"/sys/class/net/eth0/queues/{name}"
    subprocess.run(["ip", "netns", "exec", host, "sh", "-c", f"echo {text} >{path}"], check=True)


def slow_rules():
    """Returns nftables rules that match nothing, to make reception slow: the kernel evaluates
    20,000 of them for each packet that the CPU RECEIVER receives. With ten times as many, an
    emulated machine on a busy host takes so long that RCU reports a stall."""
    none, again = "\n".join(["ip saddr 192.0.2.1 drop"] * 2000), "\n".join(["jump none"] * 10)
    return f"""
        table inet slow {{
            chain none {{
                {none}
            }}
            chain again {{
                {again}
            }}
            chain received {{
                type filter hook prerouting priority -450
                meta cpu {RECEIVER} udp dport 4791 jump again
            }}
        }}
    """


@contextlib.contextmanager
def slow_reception():
    """Has the CPU RECEIVER receive the packets of the CPU SLOW, and evaluate many rules for each.

    netfilter evaluates the rules after ip_rcv_core() has called the packet's destructor, so the
    packet no longer counts as in flight then."""
    set_queue_attribute("h1", "tx-1/xps_cpus", 0)
    set_queue_attribute("h1", f"tx-{RECEIVER}/xps_cpus", 1 << SLOW)
    # The number of veth's receive queue is that of the transmit queue, or one less.
    for queue in 1, 2:
        set_queue_attribute("h2", f"rx-{queue}/rps_cpus", 1 << RECEIVER)
    subprocess.run("ip netns exec h2 nft -f -".split(), input=slow_rules().encode(), check=True)
    try:
        yield
    finally:
        subprocess.run("ip netns exec h2 nft delete table inet slow".split(), check=True)
        for queue in 1, 2:
            set_queue_attribute("h2", f"rx-{queue}/rps_cpus", 0)
        set_queue_attribute("h1", f"tx-{RECEIVER}/xps_cpus", 0)
        set_queue_attribute("h1", "tx-1/xps_cpus", 1 << SLOW)


def check_order_behind_reception(kind):
    """Sends a message while the receiver still handles the packet of the one before. Fails unless
    both arrive in order."""
    sender, receiver = connected_endpoints(kind)
    before = receiver.out_of_sequence()
    with slow_reception():
        for slot in range(0, DEPTH, 2):
            with on_cpu(SLOW):
                sender.send(slot, SHORT)
            # Enough time for the first packet to reach the rules.
            time.sleep(0.002)
            with on_cpu(FAST):
                sender.send(slot + 1, SHORT)
            equal(receiver.wait_completions(2), [slot, slot + 1], "receives")
            numbers = [struct.unpack("I", receiver.buffer.read(4, number * PAGE))[0] for number in (slot, slot + 1)]
            equal(numbers, [slot, slot + 1], "payload")
            equal(sender.wait_completions(2), [slot, slot + 1], "sends")
    equal(receiver.out_of_sequence() - before, 0, "packets out of sequence")


@case("UC: packets of a second CPU stay behind a packet that is being received")
def _():
    check_order_behind_reception(e.IBV_QPT_UC)


@case("RC: packets of a second CPU stay behind a packet that is being received")
def _():
    check_order_behind_reception(e.IBV_QPT_RC)


@case("messages stay in order when the sending CPU goes offline")
def _():
    sender, receiver = connected_endpoints(e.IBV_QPT_RC)
    online = f"/sys/devices/system/cpu/cpu{SLOW}/online"
    with on_cpu(SLOW):
        for slot in range(4):
            sender.send(slot)
    subprocess.run(["sh", "-c", f"echo 0 >{online}"], check=True)
    try:
        for slot in range(4, 8):
            sender.send(slot)
        equal(receiver.wait_completions(8), list(range(8)), "receives")
        equal(sender.wait_completions(8), list(range(8)), "sends")
    finally:
        subprocess.run(["sh", "-c", f"echo 1 >{online}"], check=True)


if __name__ == "__main__":
    sys.exit(main())
