#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""What datagrams that come in have softirqs do: datagrams.py DEVICE GID-INDEX ADDRESS SENDERS-NAMESPACE SENDERS-ADDRESS HOW.

HOW:
  share    softirqs have as much time as by default
  threads  softirqs have 1 % of the time, and threads do the rest
  copies   softirqs have 1 % of the time, and what they have no time to copy is dropped
"""

import os
import socket
import struct
import sys
import time
from pathlib import Path

import forge
from cpu_time import packets_during, packets_sent_by
from extension import (
    ATTACH_MCAST, CONSUMER, CREATE_QP, ELEMENTS, PRODUCER, Context, Cq, Mapped, Qp, gid_of, node_of,
)
from pairs import (
    DEVICE, GID_INDEX, PAGE, PATIENCE, Buffer, become_nobody, case, counter, equal, main,
    start_child,
)

ADDRESS, SENDERS_NAMESPACE, SENDERS_ADDRESS, HOW = sys.argv[3:]
GROUP = "239.77.1.21"
UD, MULTICAST, QKEY = 4, 0xFFFFFF, 0
# QP1, to which all send management datagrams: a question for the attributes of a class of them, which ib_mad answers.
GSI, GSI_QKEY = 1, 0x80010000
ROUNDS, UNCALLED = 20, 5
QUESTION = struct.pack(">BBBBHHQHHI", 1, 4, 1, 1, 0, 0, 7, 0x12, 0, 0) + bytes(41) + b"\x01" + bytes(190)
DEPTH, DATAGRAMS = 63, 200
# So many that a CPU in debt grants fewer copies than a slow machine can ask for.
MEMBERS, BURST = 40, 20
# What counts copies that are not made, and those that members take in.
COPIES = "drop_overflow", "drop_qkey"


def mapped(address):
    """The GID of an address of IPv4."""
    return bytes(10) + b"\xff\xff" + socket.inet_aton(address)


class DatagramQp(Qp):
    """A UD QP, all of whose send ring is one datagram of `length` bytes; nothing is posted yet."""

    def __init__(self, context, cq, destination, gid, length, qkey):
        self.context = context
        request = struct.pack(
            "=QIIIIIIIIIBBBB", 0, context.pd, cq.handle, cq.handle, 0, DEPTH, 1, 1, 1, 0, 0, UD, 0, 0)
        answer = context.call(CREATE_QP, request, 32 + 40)
        self.handle, self.number = struct.unpack_from("=II", answer)
        _, _, _, offset, size, _, self.slot, _ = struct.unpack_from("=QIIQIIII", answer, 32)
        self.ring = Mapped(context.fd, offset, size)
        self.mask = self.ring.u32(4).value
        self.element = 1 << self.ring.u32(0).value
        state, pkey, port, its_qkey, sq_psn = 1, 1 << 4, 1 << 5, 1 << 6, 1 << 16
        self.modify(state | pkey | port | its_qkey, 1, qkey=qkey)
        self.modify(state, 2)
        self.modify(state | sq_psn, 3)
        self.buffer = Buffer(PAGE)
        lkey, _ = context.reg(self.buffer)
        wqe = bytearray(self.element)
        struct.pack_into("=QIII", wqe, 0, 0, 0, 2, 0)
        struct.pack_into("=II", wqe, 24, destination or self.number, qkey)
        struct.pack_into("=BB", wqe, 56, 1, 1)
        wqe[64:80] = gid
        struct.pack_into("=IBBB", wqe, 80, 0, GID_INDEX, 64, 0)
        struct.pack_into("=III", wqe, 184, length, length, 0)
        struct.pack_into("=I", wqe, 196, 1)
        struct.pack_into("=QII", wqe, 208, self.buffer.address, length, lkey)
        count = self.mask + 1
        self.ring.memory[ELEMENTS:ELEMENTS + count * self.element] = bytes(wqe) * count

    def post(self, count):
        """Posts so many of them, without a call or a doorbell."""
        producer = self.ring.u32(PRODUCER)
        producer.value = (producer.value + count) & self.mask

    def is_empty(self):
        return self.ring.u32(PRODUCER).value == self.ring.u32(CONSUMER).value

    def attach(self, gid):
        body = gid + struct.pack("=IHH", self.handle, 0, 0)
        os.write(self.context.fd, struct.pack("=IHH", ATTACH_MCAST, (8 + len(body)) // 4, 0) + body)


def new_qp(destination=None, gid=None, length=PAGE, qkey=QKEY):
    # As stock librxe, so that no watcher serves it.
    context = Context(node_of(DEVICE))
    return DatagramQp(context, Cq(context), destination, gid or gid_of(DEVICE, GID_INDEX), length, qkey)


def datagram(number):
    """One that the QP has no use for: its Q_Key is another one."""
    body = forge.bth(forge.UD | forge.SEND_ONLY, number, 1) + forge.deth(0x7777, 7)
    return forge.udp_payload_with_icrc(SENDERS_ADDRESS, ADDRESS, body)


def stranger():
    """An ordinary socket of the other host."""
    with forge.namespace(SENDERS_NAMESPACE):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.bind((SENDERS_ADDRESS, 0xC123))
    sender.setsockopt(socket.IPPROTO_IP, forge.IP_MTU_DISCOVER, forge.IP_PMTUDISC_DO)
    return sender


def until(condition, what):
    end = time.monotonic() + PATIENCE
    while not condition():
        equal(time.monotonic() < end, True, what)
        time.sleep(0.01)


def strangers():
    qp, sender = new_qp(), stranger()
    payload = datagram(qp.number)
    qp.post(DEPTH)

    def work():
        for _ in range(DATAGRAMS):
            sender.sendto(payload, (ADDRESS, forge.PORT))
        until(qp.is_empty, "a thread sends what lies there")

    sent, by_softirqs = packets_during("rrxe_packet_out", work)
    print(f"# {DATAGRAMS} datagrams: {sent} packets, {by_softirqs} of them sent by softirqs")
    equal((sent, by_softirqs), (DEPTH, 0), "packets, and those sent by softirqs")


def threads():
    qp, sender = new_qp(), stranger()
    payload = datagram(qp.number)

    def batch():
        for _ in range(DATAGRAMS):
            sender.sendto(payload, (ADDRESS, forge.PORT))
        # For the threads.
        time.sleep(0.5)

    end, by_threads = time.monotonic() + PATIENCE, 0
    # They come at once, but an emulated CPU may stand still for longer than the time that is owed.
    while by_threads == 0 and time.monotonic() < end:
        taken, by_softirqs = packets_during("rrxe_packet_in", batch)
        by_threads = taken - by_softirqs
        print(f"# {taken} packets taken in, {by_threads} of them by threads")
    equal(by_threads > 0, True, "threads take some in")


def group():
    """Datagrams to a group with many members, which have them copied."""
    members = [new_qp() for _ in range(MEMBERS)]
    for member in members:
        member.attach(mapped(GROUP))
    sender = stranger()
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(SENDERS_ADDRESS))
    body = forge.bth(forge.UD | forge.SEND_ONLY, MULTICAST, 1) + forge.deth(0x7777, 7)
    payload = forge.udp_payload_with_icrc(SENDERS_ADDRESS, GROUP, body)
    before, end, sent = [counter(name) for name in COPIES], time.monotonic() + PATIENCE, 0

    def copies():
        return [counter(name) - count for name, count in zip(COPIES, before)]

    while copies()[0] == 0 and time.monotonic() < end:
        for _ in range(BURST):
            sender.sendto(payload, (GROUP, forge.PORT))
        sent += BURST * MEMBERS
        # The members have room for all of these: nothing is dropped for want of it.
        until(lambda: sum(copies()) >= sent, "all are taken in or dropped")
    print(f"# of {sent} copies {copies()[0]} are not made")
    equal(copies()[0] > 0, True, "some are dropped")


def own_group():
    qp = new_qp(MULTICAST, mapped(GROUP), 64)
    qp.attach(mapped(GROUP))

    def work():
        # More than the call sends, and no more than the QP has credit for.
        qp.post(DEPTH)
        qp.call()
        until(qp.is_empty, "all are sent")

    sent, by_softirqs = packets_during("rrxe_packet_out", work)
    print(f"# {sent} packets, {by_softirqs} of them sent by softirqs")
    equal((sent, by_softirqs), (DEPTH, 0), "packets, and those sent by softirqs")


def answers():
    qp = new_qp(GSI, None, len(QUESTION), GSI_QKEY)
    qp.buffer.fill(QUESTION)
    answered = counter("drop_no_receive")

    def work():
        for _ in range(ROUNDS):
            # The kernel answers the first one in softirqs, by its QP1, when the others lie in the ring.
            qp.post(1)
            qp.call()
            qp.post(UNCALLED)
            time.sleep(0.02)
            qp.call()
            until(qp.is_empty, "all are sent")
        until(lambda: counter("drop_no_receive") > answered, "some are answered")

    sent, by_softirqs = packets_during("rrxe_packet_out", work, qp.number)
    print(f"# {sent} packets, {by_softirqs} of them sent by softirqs")
    equal((sent, by_softirqs), (ROUNDS * (1 + UNCALLED), 0), "packets, and those sent by softirqs")


def neighbour():
    """The call of one user sends a datagram to the QP of another one, in whose ring there are many."""
    numbers, number = os.pipe()

    def other():
        become_nobody()
        qp = new_qp(length=64)
        qp.post(DEPTH)
        os.write(number, struct.pack("=I", qp.number))
        until(qp.is_empty, "all are sent")

    child = start_child(other)
    qp = new_qp(*struct.unpack("=I", os.read(numbers, 4)), length=64)

    def work():
        qp.post(1)
        qp.call()
        equal(os.waitpid(child, 0)[1], 0, "the other user's status")

    by_call = packets_sent_by({os.getpid()}, work)
    equal(by_call, 1, "packets sent by the call")


# On one CPU, or threads hand over to the one whose packets are on the way.
os.sched_setaffinity(0, {0})
Path("/sys/devices/virtual/workqueue/rrxe_deferred/cpumask").write_text("1")
if HOW == "share":
    case("datagrams: a stranger's datagram has no softirq send what lies in a ring")(strangers)
    case("datagrams: those to the own group have no softirq send more of them")(own_group)
    case("datagrams: a call to another user's QP sends nothing that lies in its ring")(neighbour)
    case("datagrams: answers of the kernel have no softirq send more of them")(answers)
elif HOW == "threads":
    case("datagrams: threads take in what softirqs have no time for")(threads)
else:
    case("datagrams: those to a group are dropped if softirqs have no time to copy them")(group)
sys.exit(main())
