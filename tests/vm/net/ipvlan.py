#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests that the driver drops multicast datagrams of its own host that a container changed.

  ipvlan.py DEVICE GID-INDEX MEMBER-DEVICE

DEVICE is a link on eth0 of namespace h1, MEMBER-DEVICE one on dummy0 of h1. The container, h2, has
an ipvlan device ipv0 of mode l3 on top of dummy0. The container receives the datagrams, in the
buffers that h1 sent, changes their payload and ICRC, and sends them through ipv0. In mode l3 the IP
layer of h1 sends packets of ipv0, and loops the datagrams to the members of the group.
"""

import subprocess
import sys
import zlib

from forge import PORT
from members import COUNT, Member
from pairs import GID_INDEX, case, counter, equal, gid_at, main, wait_until_equal
from uverbs import attach_mcast, detach_mcast

MEMBER_DEVICE = sys.argv[3]
GROUP, CHANGED_BITS = "ff0e::7711", bytes.fromhex("45564900")
# Offsets of the payload and of the ICRC behind it, in bytes from the IP header.
PAYLOAD_OFFSET, ICRC_OFFSET = 68, 72


def rewrite_datagrams():
    """Has the container, h2, change payload and ICRC of each received datagram to the group, and
    redirect the datagram to its ipvlan device."""
    # A CRC is linear: inverting CHANGED_BITS at the end of the data inverts these bits of the ICRC.
    crc = zlib.crc32(CHANGED_BITS) ^ zlib.crc32(bytes(len(CHANGED_BITS)))
    icrc_bits = crc.to_bytes(4, "little")
    munges = "".join(f"pedit munge offset {offset} u32 invert retain 0x{mask.hex()} pipe action "
                     for offset, mask in ((PAYLOAD_OFFSET, CHANGED_BITS), (ICRC_OFFSET, icrc_bits)))
    # An ipvlan device in mode l3 drops frames with a multicast destination MAC address.
    munges = f"pedit ex munge eth dst set 02:00:00:00:00:01 pipe action {munges}"
    for line in ("qdisc add dev eth0 clsact",
                 f"filter add dev eth0 ingress protocol ipv6 flower ip_proto udp dst_ip {GROUP} dst_port {PORT} "
                 f"action {munges}mirred egress redirect dev ipv0"):
        subprocess.run(["ip", "netns", "exec", "h2", "tc", *line.split()], check=True)


@case("multicast datagrams that a container has changed are dropped")
def changed_datagrams_are_dropped():
    rewrite_datagrams()
    group, sender, member = gid_at(GROUP), Member(), Member(MEMBER_DEVICE)
    member.change_membership(group, attach_mcast)
    before = counter("drop_local")
    handle = sender.send_all(group, GID_INDEX)
    wait_until_equal(lambda: counter("drop_local") - before, COUNT, "packets in drop_local")
    equal(member.cq.poll(1)[0], 0, "datagrams that the member got")
    handle.close()
    member.change_membership(group, detach_mcast)


sys.exit(main())
