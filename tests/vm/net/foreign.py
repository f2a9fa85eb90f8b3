#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests that the driver drops datagrams that an ordinary socket of its own host sends with a
foreign source address, to a QP of this host or to its multicast group.

  foreign.py DEVICE GID-INDEX

DEVICE is a link on eth0 of namespace h1. The socket, in h1, binds by IPV6_FREEBIND to addresses
that no host has.
"""

import sys

import forge
from forge import Socket
from members import DATAGRAM_SIZE, MULTICAST, QKEY, Member
from pairs import case, counter, equal, gid_at, main, wait_until_equal
from uverbs import attach_mcast, detach_mcast

HOST, GROUP, SOURCES = "fd77::1", "ff0e::7711", ("fd77::77", "2001:db8::1")


@case("datagrams of an ordinary socket of this host with a foreign source address are dropped")
def foreign_sources_are_dropped():
    group, member = gid_at(GROUP), Member()
    member.change_membership(group, attach_mcast)
    for source in SOURCES:
        for target, qpn in (GROUP, MULTICAST), (HOST, member.qp.qp_num):
            sender, before = (Socket(source, where="h1", device="eth0", foreign=True),
                              counter("drop_local"))
            sender.set_multicast_device("eth0", "h1")
            body = (forge.bth(forge.UD | forge.SEND_ONLY, qpn, 0) + forge.deth(QKEY, 7)
                    + bytes(DATAGRAM_SIZE))
            sender.send(target, body)
            wait_until_equal(lambda: counter("drop_local") - before, 1, f"packets from {source} to {target} in drop_local")
            equal(member.cq.poll(1)[0], 0, f"datagrams from {source} to {target}")
            sender.close()
    member.change_membership(group, detach_mcast)


sys.exit(main())
