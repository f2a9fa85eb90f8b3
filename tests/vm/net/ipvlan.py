#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""A container has the IP layer of its host loop the host's own datagrams to a group, changed and in the buffers that the
host sent: ipvlan.py DEVICE GID-INDEX MEMBER-DEVICE.

DEVICE is on eth0 of h1, and MEMBER-DEVICE on dummy0. The container is h2.
"""

import subprocess
import sys
import zlib

from forge import PORT
from members import COUNT, Member
from pairs import GID_INDEX, becomes, case, counter, equal, gid_at, main
from uverbs import attach_mcast, detach_mcast

MEMBER_DEVICE = sys.argv[3]
GROUP, CHANGE = "ff0e::7711", bytes.fromhex("45564900")
# Of the payload and the ICRC behind it, from the IP header.
PAYLOAD, ICRC = 68, 72


def change():
    """Has host 2 change the payload of what comes to it, and the ICRC with it, and send that by its ipvlan device."""
    icrc = (zlib.crc32(CHANGE) ^ zlib.crc32(bytes(len(CHANGE)))).to_bytes(4, "little")
    munges = "".join(f"pedit munge offset {offset} u32 invert retain 0x{mask.hex()} pipe action "
                     for offset, mask in ((PAYLOAD, CHANGE), (ICRC, icrc)))
    # An ipvlan device sends no frame to an address of its own.
    munges = f"pedit ex munge eth dst set 02:00:00:00:00:01 pipe action {munges}"
    for line in ("qdisc add dev eth0 clsact",
                 f"filter add dev eth0 ingress protocol ipv6 flower ip_proto udp dst_ip {GROUP} dst_port {PORT} "
                 f"action {munges}mirred egress redirect dev ipv0"):
        subprocess.run(["ip", "netns", "exec", "h2", "tc", *line.split()], check=True)


@case("a container has its host's IP layer loop changed datagrams to a group")
def looped():
    change()
    group, sender, member = gid_at(GROUP), Member(), Member(MEMBER_DEVICE)
    member.change(group, attach_mcast)
    before = counter("drop_local")
    kept = sender.send(group, GID_INDEX)
    becomes(lambda: counter("drop_local") - before, COUNT, "packets in drop_local")
    equal(member.cq.poll(1)[0], 0, "datagrams that the member got")
    kept.close()
    member.change(group, detach_mcast)


sys.exit(main())
