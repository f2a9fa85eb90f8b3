#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Sends datagrams that are no good to a RoCEv2 port.

  junk.py foreign SOURCE TARGET QPN   nothing of it may be answered, or change the QP
  junk.py sweep SOURCE TARGET QPN     every opcode, pad and many lengths, each with a right ICRC

QPN is the number of a live QP of the target. What is sent depends on SEED only.
"""
import os
import random
import socket
import struct
import sys
import zlib

PORT = 4791
DONT_FRAGMENT, MORE_FRAGMENTS = 0x4000, 0x2000


def udp(payload, length=None):
    size = len(payload) + 8 if length is None else length
    return struct.pack(">HHHH", 0xC123, PORT, size, 0) + payload


def ipv4(source, target, payload, flags=DONT_FRAGMENT, options=b""):
    words = 5 + len(options) // 4
    return struct.pack(
        ">BBHHHBBH4s4s", 0x40 | words, 0, 4 * words + len(payload), 7, flags, 64, 17, 0,
        socket.inet_aton(source), socket.inet_aton(target)) + options + payload


def bth(opcode, pad, qpn, psn, flags=0):
    return struct.pack(">BBHII", opcode, flags | pad << 4, 0xFFFF, qpn, psn)


def with_icrc(source, target, datagram):
    """The packet with the ICRC that its headers call for."""
    packet = bytearray(ipv4(source, target, udp(datagram + bytes(4))))
    packet[1] = packet[8] = packet[10] = packet[11] = 0xFF
    packet[26] = packet[27] = 0xFF
    if len(packet) > 36:
        packet[32] = 0xFF
    crc = zlib.crc32(b"\xff" * 8 + bytes(packet[:-4]))
    return ipv4(source, target, udp(datagram + struct.pack("<I", crc)))


def foreign(source, target, qpn):
    rng = random.Random(SEED)
    # Anything at all, of all short lengths.
    for length in list(range(80)) * 4:
        yield ipv4(source, target, udp(rng.randbytes(length)))
    # Right in form, for QPs that don't exist or talk to somebody else.
    for number in [rng.randrange(1 << 24) for _ in range(300)] + [qpn] * 300:
        opcode = rng.choice([0x04, 0x06, 0x0A, 0x0C, 0x11, 0x13, 0x14])
        body = rng.randbytes(4 * rng.randrange(12))
        yield with_icrc(source, target, bth(opcode, 0, number, rng.randrange(1 << 24)) + body)
    # Headers of IP and UDP that RoCEv2 doesn't use, with and without truth in them.
    good = with_icrc(source, target, bth(0x04, 0, qpn, 0) + bytes(64))[28:]
    for _ in range(20):
        yield ipv4(source, target, udp(good), options=b"\x01\x01\x01\x00")
        yield ipv4(source, target, udp(good) + bytes(4))
        yield ipv4(source, target, udp(good, len(good) + 4))
        first, second = udp(good)[:40], udp(good)[40:]
        yield ipv4(source, target, first, flags=MORE_FRAGMENTS)
        yield ipv4(source, target, second, flags=len(first) // 8)
    # Wrong version, wrong ICRC.
    for _ in range(100):
        yield with_icrc(source, target, bth(0x04, 0, qpn, 0, rng.randrange(1, 16)) + bytes(16))
        yield ipv4(source, target, udp(bth(0x04, 0, qpn, 0) + rng.randbytes(20)))


def sweep(source, target, qpn):
    rng = random.Random(SEED)
    for opcode in range(256):
        for pad in range(4):
            for length in (0, 1, 3, 4, 8, 15, 16, 20, 28, 32, 44, 1024):
                body = rng.randbytes(length)
                yield with_icrc(source, target, bth(opcode, pad, qpn, rng.randrange(1 << 24)) + body)


SEED = int(os.environ.get("SEED", "1"))


def main():
    kind, source, target, qpn = sys.argv[1:]
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    count = 0
    for packet in {"foreign": foreign, "sweep": sweep}[kind](source, target, int(qpn, 16)):
        raw.sendto(packet, (target, 0))
        count += 1
    print(f"{count} datagrams sent")


main()
