#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Checks the ICRC of each captured burst: burst_icrcs.py FILE EXPECTED.

FILE is a capture (pcap) of tcpdump, in which a burst is one frame. The bursts must be over IPv6.
EXPECTED names the data that the ICRC must cover besides the number of packets: "headers" (from the
IP header to the BTH, or to the RETH if there is one) or "payload" (the headers and the payload).
"""

import struct
import sys
import zlib

from forge import icrc_input

FILE, EXPECTED = sys.argv[1:]
FILE_HEADER, RECORD_HEADER, ICRC = 24, 16, 4
ETHERNET, IPV6, UDP, BTH, RETH = 14, 40, 8, 12, 16
# Maximum number of bytes of a frame that holds one packet, rounded up.
LONGEST_PACKET = 4500
MOST_PACKETS = 30
# Opcodes of RC: WRITE First and WRITE Only have a RETH, WRITE Middle and WRITE Last have none.
WITH_RETH, WITHOUT_RETH = (0x06, 0x0A), (0x07, 0x08)


def frames(capture):
    """Yields the frames of a capture."""
    at = FILE_HEADER
    while at + RECORD_HEADER <= len(capture):
        _, _, length, _ = struct.unpack_from("=4I", capture, at)
        at += RECORD_HEADER
        yield capture[at:at + length]
        at += length


def coverage(frame):
    """Returns the data that the ICRC of a burst covers, as EXPECTED names it. Returns "nothing" if
    the ICRC is wrong."""
    packet, found = frame[ETHERNET:-ICRC], frame[-ICRC:]
    start = IPV6 + UDP + BTH
    if packet[IPV6 + UDP] in WITH_RETH:
        start += RETH
    headers = zlib.crc32(icrc_input(packet[:start]))
    for count in range(2, MOST_PACKETS + 1):
        with_count = zlib.crc32(struct.pack(">H", count), headers)
        for name, crc in (("headers", with_count), ("payload", zlib.crc32(packet[start:], with_count))):
            if struct.pack("<I", crc) == found:
                return name
    return "nothing"


def main():
    with open(FILE, "rb") as file:
        bursts = [frame for frame in frames(file.read()) if len(frame) > LONGEST_PACKET]
    # Bursts of READ responses may have an AETH, for which coverage() has no offset.
    writes = [frame for frame in bursts if frame[ETHERNET + IPV6 + UDP] in WITH_RETH + WITHOUT_RETH]
    covered = [coverage(frame) for frame in writes]
    print(f"{len(writes)} bursts of WRITEs, {covered.count(EXPECTED)} whose ICRC covers the {EXPECTED}")
    return int(not writes or covered.count(EXPECTED) != len(writes))


sys.exit(main())
