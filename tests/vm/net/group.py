#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests the delivery of multicast datagrams: the context in which members take packets in, and the
datagrams that the driver drops.

  group.py DEVICE GID-INDEX GID-INDEX-V6 GID-INDEX-LINK-LOCAL LINK-LOCAL-ADDRESS DEVICE-2
           GID-INDEX-2

DEVICE is a link on eth0 of namespace h1, DEVICE-2 one on eth0 of h2; a veth pair connects them. The
GID indexes are those of the IPv4, IPv6 and link-local address of h1, and of the IPv4 address of h2.
Host 2 sends each RoCEv2 packet over IPv6 that it receives back to host 1 (tc mirred).
"""

import sys

import forge
from cpu_time import packets_during
from forge import Socket
from members import COUNT, MULTICAST, NUMBER, QKEY, Member
from pairs import DEVICE, GID_INDEX, becomes, case, counter, equal, gid_at, main
from uverbs import attach_mcast, detach_mcast

GROUPS = ("239.77.1.11", "239.77.1.12", "239.77.1.13")
GROUP_V6 = "ff0e::7711"
GID_INDEX_V6, GID_INDEX_LINK_LOCAL, LINK_LOCAL = int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
# Devices of both hosts, each with the GID index of its IPv4 address.
SENDERS = (DEVICE, GID_INDEX), (sys.argv[6], int(sys.argv[7]))
HOST, HOST_V6 = "10.77.0.1", "fd77::1"
# Number of members: more QPs than the process has threads.
MANY = 20


def exchange(members, address, device, gid_index):
    """Sends datagrams from a QP of `device` to a group of `members` QPs. Returns the number of
    packets that QPs took in, and how many of these they took in within a softirq."""
    group, sender, queues = gid_at(address), Member(device), [Member() for _ in range(members)]
    for queue in queues:
        queue.change(group, attach_mcast)
    before = counter("drop_overflow")

    def work():
        kept = sender.send(group, gid_index)
        for queue in queues:
            equal(queue.received(), list(range(COUNT)), "datagrams in their order")
        kept.close()

    taken = packets_during("rrxe_packet_in", work)
    for queue in queues:
        queue.change(group, detach_mcast)
    equal(counter("drop_overflow") - before, 0, "packets dropped")
    print(f"# {members} members, from {device}: {taken[0]} packets taken in, {taken[1]} of them by softirqs")
    return taken


@case("group: one member's packets are taken in as those of a QP")
def alone():
    for sender in SENDERS:
        equal(exchange(1, GROUPS[0], *sender)[0], COUNT, "packets taken in")


@case("group: no softirq takes in the packets of several members")
def several():
    for sender in SENDERS:
        for count, group in (2, GROUPS[1]), (MANY, GROUPS[2]):
            equal(exchange(count, group, *sender), (count * COUNT, 0), "packets taken in, and those by softirqs")


def own(address, gid_index, dropped):
    """Sends datagrams from the GID index to a group on the same host. Fails unless the member
    receives each datagram once, and the driver drops `dropped` packets as sent by this host."""
    group, sender, queue = gid_at(address), Member(), Member()
    queue.change(group, attach_mcast)
    before = counter("drop_local")
    kept = sender.send(group, gid_index)
    equal(queue.received(), list(range(COUNT)), "datagrams in their order")
    becomes(lambda: counter("drop_local") - before, dropped, "packets in drop_local")
    kept.close()
    queue.change(group, detach_mcast)


@case("group: datagrams of this host that another host sends back are dropped")
def sent_back():
    own(GROUPS[0], GID_INDEX, 0)
    own(GROUP_V6, GID_INDEX_V6, COUNT)
    own(GROUP_V6, GID_INDEX_LINK_LOCAL, COUNT)


@case("group: datagrams of an ordinary socket of this host are dropped")
def forged():
    for source, address in (HOST, GROUPS[0]), (HOST_V6, GROUP_V6), (LINK_LOCAL, GROUP_V6):
        group, queue = gid_at(address), Member()
        queue.change(group, attach_mcast)
        user, before = Socket(source, where="h1", device="eth0"), counter("drop_local")
        user.groups_by("eth0", "h1")
        body = forge.bth(forge.UD | forge.SEND_ONLY, MULTICAST, 0) + forge.deth(QKEY, queue.qp.qp_num) + bytes(NUMBER)
        user.send(address, body)
        # Over IPv6 host 2 sends the packet back, so it is dropped a second time.
        becomes(lambda: counter("drop_local") - before, 2 if forge.is_v6(source) else 1, "packets in drop_local")
        equal(queue.cq.poll(1)[0], 0, f"datagrams from {source}")
        user.close()
        queue.change(group, detach_mcast)


sys.exit(main())
