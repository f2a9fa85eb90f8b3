#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests the delivery of multicast datagrams: the context in which members take packets in, and the
datagrams that the driver drops.

  group.py DEVICE GID-INDEX GID-INDEX-V6 GID-INDEX-LINK-LOCAL LINK-LOCAL-ADDRESS DEVICE-2
           GID-INDEX-2

DEVICE is a link on eth0 of namespace h1, DEVICE-2 one on eth0 of h2; a veth pair connects them. The
GID indexes are those of the IPv4, IPv6 and link-local address of h1, and of the IPv4 address of h2.
Host 2 sends back to host 1 each RoCEv2 packet over IPv6 that it receives (tc mirred).
"""

import sys

import forge
from cpu_time import packets_during
from forge import PacketSocket, Socket
from members import COUNT, DATAGRAM_SIZE, MULTICAST, QKEY, Member
from pairs import DEVICE, GID_INDEX, case, counter, equal, gid_at, main, wait_until_equal
from uverbs import attach_mcast, detach_mcast

GROUPS = ("239.77.1.11", "239.77.1.12", "239.77.1.13")
GROUP_V6 = "ff0e::7711"
GID_INDEX_V6, GID_INDEX_LINK_LOCAL, LINK_LOCAL = int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
# Devices of both hosts, each with the GID index of its IPv4 address.
SENDERS = (DEVICE, GID_INDEX), (sys.argv[6], int(sys.argv[7]))
HOST, HOST_V6 = "10.77.0.1", "fd77::1"
# Number of members. The driver runs fewer QPs of one process at a time in threads.
MANY_MEMBERS = 20


def send_to_members(members, address, device, gid_index):
    """Sends datagrams from a QP of `device` to a group of `members` QPs. Returns the number of
    packets that QPs took in, and how many of these they took in within a softirq."""
    group, sender, receivers = gid_at(address), Member(device), [Member() for _ in range(members)]
    for receiver in receivers:
        receiver.change_membership(group, attach_mcast)
    before = counter("drop_overflow")

    def work():
        handle = sender.send_all(group, gid_index)
        for receiver in receivers:
            equal(receiver.receive_all(), list(range(COUNT)), "datagrams in their order")
        handle.close()

    taken = packets_during("rrxe_packet_in", work)
    for receiver in receivers:
        receiver.change_membership(group, detach_mcast)
    equal(counter("drop_overflow") - before, 0, "packets dropped")
    print(f"# {members} members, from {device}: {taken[0]} packets taken in, {taken[1]} of them by softirqs")
    return taken


@case("group: a single member takes in each packet once")
def single_member():
    for sender in SENDERS:
        equal(send_to_members(1, GROUPS[0], *sender)[0], COUNT, "packets taken in")


@case("group: packets for several members are taken in outside of softirqs")
def several_members():
    for sender in SENDERS:
        for count, group in (2, GROUPS[1]), (MANY_MEMBERS, GROUPS[2]):
            equal(send_to_members(count, group, *sender), (count * COUNT, 0),
                  "packets taken in, and those taken in by softirqs")


def send_to_own_host(address, gid_index, dropped):
    """Sends datagrams from the GID index to a group on the same host. Fails unless the member
    receives each datagram once, and the driver drops `dropped` packets as sent by this host."""
    group, sender, receiver = gid_at(address), Member(), Member()
    receiver.change_membership(group, attach_mcast)
    before = counter("drop_local")
    handle = sender.send_all(group, gid_index)
    equal(receiver.receive_all(), list(range(COUNT)), "datagrams in their order")
    wait_until_equal(lambda: counter("drop_local") - before, dropped, "packets in drop_local")
    handle.close()
    receiver.change_membership(group, detach_mcast)


@case("group: datagrams of this host that another host sends back are dropped")
def returned_datagrams_are_dropped():
    send_to_own_host(GROUPS[0], GID_INDEX, 0)
    send_to_own_host(GROUP_V6, GID_INDEX_V6, COUNT)
    send_to_own_host(GROUP_V6, GID_INDEX_LINK_LOCAL, COUNT)


@case("group: datagrams of an ordinary socket of this host are dropped")
def socket_datagrams_are_dropped():
    for source, address in (HOST, GROUPS[0]), (HOST_V6, GROUP_V6), (LINK_LOCAL, GROUP_V6):
        group, receiver = gid_at(address), Member()
        receiver.change_membership(group, attach_mcast)
        udp_socket, before = Socket(source, where="h1", device="eth0"), counter("drop_local")
        udp_socket.set_multicast_device("eth0", "h1")
        body = (forge.bth(forge.UD | forge.SEND_ONLY, MULTICAST, 0)
                + forge.deth(QKEY, receiver.qp.qp_num) + bytes(DATAGRAM_SIZE))
        udp_socket.send(address, body)
        # Over IPv6 host 2 sends the packet back, so it is dropped a second time.
        wait_until_equal(lambda: counter("drop_local") - before, 2 if forge.is_v6(source) else 1, "packets in drop_local")
        equal(receiver.cq.poll(1)[0], 0, f"datagrams from {source}")
        udp_socket.close()
        receiver.change_membership(group, detach_mcast)


@case("group: datagrams of a host without an address are dropped")
def unspecified_sources_are_dropped():
    # The IP layer drops such packets to other groups than 224.0.0.0/24.
    address, mac = "224.0.0.77", bytes.fromhex("01005e00004d")
    group, receiver = gid_at(address), Member()
    receiver.change_membership(group, attach_mcast)
    wire, before = PacketSocket("h2", "eth0", mac), counter("drop_ip_header")
    body = (forge.bth(forge.UD | forge.SEND_ONLY, MULTICAST, 0)
            + forge.deth(QKEY, receiver.qp.qp_num) + bytes(DATAGRAM_SIZE))
    wire.send(forge.packet("0.0.0.0", address, body))
    seen = lambda: (receiver.cq.poll(1)[0], counter("drop_ip_header") - before)
    wait_until_equal(seen, (0, 1), "received and dropped datagrams")
    wire.close()
    receiver.change_membership(group, detach_mcast)


sys.exit(main())
