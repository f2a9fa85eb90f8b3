#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Checks a file that `rrxe capture` has written: capture.py FILE INDEX PACKETS OPCODE...

The packets are those of the network device INDEX (ifindex). They must be whole. There must be at
least PACKETS of them. Each OPCODE (hexadecimal) must occur. The IPv4 checksums and ICRCs of packets
that the device sends must be right. Those that it receives may be bursts, with an ICRC of another
kind.
"""

import collections
import struct
import sys

from forge import checksum, icrc_of

FILE, INDEX, PACKETS, *OPCODES = sys.argv[1:]
FILE_HEADER, RECORD_HEADER, ICRC, UDP = 24, 16, 4, 8
# Link type of captures of several network devices (LINKTYPE_LINUX_SLL2), and the length of its header.
SLL2, SLL2_HEADER = 276, 20
# The direction of a packet that a network device sends (linux/if_packet.h).
PACKET_OUTGOING = 4
IP_HEADER = {4: 20, 6: 40}


def packets(capture):
    """Yields the IP packets of the network device, and whether it sent each."""
    *_, link_type = struct.unpack_from("=IHHiIII", capture)
    assert link_type == SLL2, f"link type {link_type}"
    at = FILE_HEADER
    while at < len(capture):
        _, _, length, original = struct.unpack_from("=4I", capture, at)
        assert length == original, f"{length} of {original} bytes"
        at += RECORD_HEADER
        record = capture[at:at + length]
        at += length
        assert len(record) == length, "the last record is cut"
        if struct.unpack_from(">I", record, 4)[0] == int(INDEX):
            yield record[SLL2_HEADER:], record[10] == PACKET_OUTGOING


def opcode_of(packet):
    """Returns the opcode of a packet's BTH."""
    return packet[IP_HEADER[packet[0] >> 4] + UDP]


def check(packet):
    """Checks the IPv4 checksum and the ICRC of a packet."""
    version = packet[0] >> 4
    header = packet[:IP_HEADER[version]]
    if version == 4:
        assert checksum(header) == 0, f"IPv4 header {header.hex()}"
    found, right = packet[-ICRC:], icrc_of(packet[:-ICRC])
    assert found == right, f"ICRC {found.hex()} and not {right.hex()} of {packet.hex()}"


def main():
    with open(FILE, "rb") as file:
        found = list(packets(file.read()))
    for packet, is_sent in found:
        if is_sent:
            check(packet)
    opcodes = collections.Counter(opcode_of(packet) for packet, _ in found)
    print(f"{len(found)} packets:", *(f"{opcode:02x}: {count}" for opcode, count in sorted(opcodes.items())))
    missing = [opcode for opcode in OPCODES if int(opcode, 16) not in opcodes]
    assert not missing, f"no packets with the opcodes {missing}"
    assert len(found) >= int(PACKETS), f"{len(found)} packets and not {PACKETS} or more"


main()
