#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Checks the ICRC of the last packet of each captured burst: burst_icrcs.py FILE EXPECTED.

FILE is a capture (pcap) of tcpdump, in which a burst is one frame. EXPECTED is "zeros" or
"computed". The receiving rrxe checks whether a computed ICRC is right.
"""

import struct
import sys

FILE, EXPECTED = sys.argv[1:]
FILE_HEADER, RECORD_HEADER, ICRC = 24, 16, 4
# Maximum number of bytes of a frame that holds one packet, rounded up.
LONGEST_PACKET = 4500


def frames(capture):
    """Yields the frames of a capture."""
    at = FILE_HEADER
    while at + RECORD_HEADER <= len(capture):
        _, _, length, _ = struct.unpack_from("=4I", capture, at)
        at += RECORD_HEADER
        yield capture[at:at + length]
        at += length


def main():
    with open(FILE, "rb") as file:
        trailers = [frame[-ICRC:] for frame in frames(file.read()) if len(frame) > LONGEST_PACKET]
    zeros = trailers.count(bytes(ICRC))
    print(f"{len(trailers)} bursts, {zeros} with zeros in place of the ICRC")
    expected = len(trailers) if EXPECTED == "zeros" else 0
    return int(not trailers or zeros != expected)


sys.exit(main())
