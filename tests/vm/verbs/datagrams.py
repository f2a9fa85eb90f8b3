#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests that softirqs take in received datagrams, but send no packets of processes.

    datagrams.py DEVICE GID-INDEX ADDRESS SENDERS-NAMESPACE SENDERS-ADDRESS HOW

DEVICE has the IPv4 address ADDRESS. An ordinary UDP socket in the network namespace
SENDERS-NAMESPACE, with the address SENDERS-ADDRESS, sends RoCEv2 datagrams to UD QPs of DEVICE. The
driver's trace events (rrxe_packet_in, rrxe_packet_out) tell which context takes in and sends
packets. HOW selects the cases, and depends on the module parameter softirq_percent:

  share    the default: the cases test that softirqs send no packets of processes
  threads  1 %: packets for which softirqs have no time are taken in by threads of rrxe_deferred
  copies   1 %: copies of multicast packets for which softirqs have no time are dropped
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
    DEVICE, GID_INDEX, PAGE, LIMIT_SECONDS, Buffer, become_nobody, case, counter, equal, main,
    start_child,
)

ADDRESS, SENDERS_NAMESPACE, SENDERS_ADDRESS, HOW = sys.argv[3:]
GROUP = "239.77.1.21"
UD, MULTICAST, QKEY = 4, 0xFFFFFF, 0
# Number and Q_Key of QP1, which receives management datagrams (MADs).
GSI, GSI_QKEY = 1, 0x80010000
# Number of rounds of MAD requests, and of requests of a round that are posted without a call.
ROUNDS, POSTS_WITHOUT_CALL = 20, 5
# Performance Get(PortCounters), to which ib_mad responds.
MAD_REQUEST = (struct.pack(">BBBBHHQHHI", 1, 4, 1, 1, 0, 0, 7, 0x12, 0, 0)
               + bytes(41) + b"\x01" + bytes(190))
# Depth of a send queue, and number of datagrams that the other host sends in a row.
DEPTH, DATAGRAMS = 63, 200
# Number of QPs in the group, and of datagrams in a row. The numbers are so high that even a slow
# machine requests more copies a second than a CPU grants after its softirq time is used up (6,400
# for each user, limits/softirq_time.rs).
MEMBERS, BURST = 40, 20
# Counters of copies that are not made, and of copies that members take in and drop for their Q_Key.
COPIES = "drop_overflow", "drop_qkey"


def mapped_gid(address):
    """Returns the GID of an IPv4 address."""
    return bytes(10) + b"\xff\xff" + socket.inet_aton(address)


class DatagramQp(Qp):
    """A UD QP whose send ring has the same datagram of `length` bytes in each element. Nothing is
    posted yet. The destination is the QPN `destination` (None: the QP itself) at the GID `gid`."""

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
        """Posts datagrams by a store to the producer index, without a call or a doorbell."""
        producer = self.ring.u32(PRODUCER)
        producer.value = (producer.value + count) & self.mask

    def is_empty(self):
        return self.ring.u32(PRODUCER).value == self.ring.u32(CONSUMER).value

    def attach(self, gid):
        body = gid + struct.pack("=IHH", self.handle, 0, 0)
        os.write(self.context.fd, struct.pack("=IHH", ATTACH_MCAST, (8 + len(body)) // 4, 0) + body)


def new_qp(destination=None, gid=None, length=PAGE, qkey=QKEY):
    # No work item polls the QP's doorbell page: no doorbell of the context rings, and too few
    # doorbell calls follow each other for the driver to begin polling.
    context = Context(node_of(DEVICE))
    return DatagramQp(context, Cq(context), destination, gid or gid_of(DEVICE, GID_INDEX), length, qkey)


def wrong_qkey_datagram(qpn):
    """Returns the UDP payload of a datagram with a wrong Q_Key, which the QP drops."""
    body = forge.bth(forge.UD | forge.SEND_ONLY, qpn, 1) + forge.deth(0x7777, 7)
    return forge.udp_payload_with_icrc(SENDERS_ADDRESS, ADDRESS, body)


def other_host_socket():
    """Returns an ordinary UDP socket of the other host."""
    with forge.namespace(SENDERS_NAMESPACE):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.bind((SENDERS_ADDRESS, 0xC123))
    sender.setsockopt(socket.IPPROTO_IP, forge.IP_MTU_DISCOVER, forge.IP_PMTUDISC_DO)
    return sender


def wait_until(condition, what):
    end = time.monotonic() + LIMIT_SECONDS
    while not condition():
        equal(time.monotonic() < end, True, what)
        time.sleep(0.01)


def received_datagrams_send_no_requests():
    qp, sender = new_qp(), other_host_socket()
    payload = wrong_qkey_datagram(qp.number)
    qp.post(DEPTH)

    def work():
        for _ in range(DATAGRAMS):
            sender.sendto(payload, (ADDRESS, forge.PORT))
        wait_until(qp.is_empty, "a thread sends the posted requests")

    sent, by_softirqs = packets_during("rrxe_packet_out", work)
    print(f"# {DATAGRAMS} datagrams: {sent} packets, {by_softirqs} of them sent by softirqs")
    equal((sent, by_softirqs), (DEPTH, 0), "packets, and those sent by softirqs")


def threads_take_in_packets():
    qp, sender = new_qp(), other_host_socket()
    payload = wrong_qkey_datagram(qp.number)

    def send_batch():
        for _ in range(DATAGRAMS):
            sender.sendto(payload, (ADDRESS, forge.PORT))
        # Gives the threads time to take in the packets.
        time.sleep(0.5)

    end, by_threads = time.monotonic() + LIMIT_SECONDS, 0
    # The datagrams of a batch arrive in a row and take more of the CPU's time in softirqs than
    # softirq_percent allows. Threads take in packets until the CPU's debt (limits/softirq_time.rs)
    # is 1 ms or less. But an emulated CPU may stop for longer than that takes, so several batches
    # may be needed.
    while by_threads == 0 and time.monotonic() < end:
        taken, by_softirqs = packets_during("rrxe_packet_in", send_batch)
        by_threads = taken - by_softirqs
        print(f"# {taken} packets taken in, {by_threads} of them by threads")
    equal(by_threads > 0, True, "threads take in some packets")


def copies_are_dropped():
    """Sends datagrams to a group with many members. The driver copies each for each member."""
    members = [new_qp() for _ in range(MEMBERS)]
    for member in members:
        member.attach(mapped_gid(GROUP))
    sender = other_host_socket()
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(SENDERS_ADDRESS))
    body = forge.bth(forge.UD | forge.SEND_ONLY, MULTICAST, 1) + forge.deth(0x7777, 7)
    payload = forge.udp_payload_with_icrc(SENDERS_ADDRESS, GROUP, body)
    before, end, sent = [counter(name) for name in COPIES], time.monotonic() + LIMIT_SECONDS, 0

    def counted():
        return [counter(name) - count for name, count in zip(COPIES, before)]

    while counted()[0] == 0 and time.monotonic() < end:
        for _ in range(BURST):
            sender.sendto(payload, (GROUP, forge.PORT))
        sent += BURST * MEMBERS
        # The inboxes (queues of received packets) of the members have room for all packets of a
        # burst. So a drop for `overflow` is a copy that was not made.
        wait_until(lambda: sum(counted()) >= sent, "all copies are taken in or dropped")
    print(f"# of {sent} copies {counted()[0]} are not made")
    equal(counted()[0] > 0, True, "some copies are dropped")


def datagrams_to_own_group():
    qp = new_qp(MULTICAST, mapped_gid(GROUP), 64)
    qp.attach(mapped_gid(GROUP))

    def work():
        # These are more datagrams than one call sends, and not more than the QP may have in flight.
        qp.post(DEPTH)
        qp.ring_by_call()
        wait_until(qp.is_empty, "all posted requests are sent")

    sent, by_softirqs = packets_during("rrxe_packet_out", work)
    print(f"# {sent} packets, {by_softirqs} of them sent by softirqs")
    equal((sent, by_softirqs), (DEPTH, 0), "packets, and those sent by softirqs")


def responses_send_no_requests():
    qp = new_qp(GSI, None, len(MAD_REQUEST), GSI_QKEY)
    qp.buffer.fill(MAD_REQUEST)
    responses_before = counter("drop_no_receive")

    def work():
        for _ in range(ROUNDS):
            # ib_mad responds to the first request through QP1. The driver sends the response in
            # softirq, when further requests are in the ring.
            qp.post(1)
            qp.ring_by_call()
            qp.post(POSTS_WITHOUT_CALL)
            time.sleep(0.02)
            qp.ring_by_call()
            wait_until(qp.is_empty, "all posted requests are sent")
        wait_until(lambda: counter("drop_no_receive") > responses_before, "a response arrives")

    sent, by_softirqs = packets_during("rrxe_packet_out", work, qp.number)
    print(f"# {sent} packets, {by_softirqs} of them sent by softirqs")
    posted = ROUNDS * (1 + POSTS_WITHOUT_CALL)
    equal((sent, by_softirqs), (posted, 0), "packets, and those sent by softirqs")


def call_to_other_users_qp():
    """Sends a datagram by a doorbell call to the QP of another user, whose send ring is full."""
    reader, writer = os.pipe()

    def other_user():
        become_nobody()
        qp = new_qp(length=64)
        qp.post(DEPTH)
        os.write(writer, struct.pack("=I", qp.number))
        wait_until(qp.is_empty, "all posted requests are sent")

    child = start_child(other_user)
    qp = new_qp(*struct.unpack("=I", os.read(reader, 4)), length=64)

    def work():
        qp.post(1)
        qp.ring_by_call()
        equal(os.waitpid(child, 0)[1], 0, "the other user's status")

    by_call = packets_sent_by({os.getpid()}, work)
    equal(by_call, 1, "packets sent by the call")


# The process and the threads of rrxe_deferred run on one CPU. On several CPUs a thread leaves a
# QP's packets to the CPU that has packets of the QP in flight.
os.sched_setaffinity(0, {0})
Path("/sys/devices/virtual/workqueue/rrxe_deferred/cpumask").write_text("1")
if HOW == "share":
    case("datagrams: a softirq that takes in a datagram sends no posted requests of the QP")(
        received_datagrams_send_no_requests)
    case("datagrams: no softirq sends a QP's datagrams to a group that the QP is attached to")(
        datagrams_to_own_group)
    case("datagrams: a call that sends to another user's QP sends no posted requests of that QP")(
        call_to_other_users_qp)
    case("datagrams: a softirq that takes in a MAD response sends no posted requests of the QP")(
        responses_send_no_requests)
elif HOW == "threads":
    case("datagrams: threads take in packets for which softirqs have no time")(
        threads_take_in_packets)
else:
    case("datagrams: copies for the QPs of a group are dropped if softirqs have no time")(
        copies_are_dropped)
sys.exit(main())
