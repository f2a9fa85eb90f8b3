#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Sends invalid and random UDP datagrams to the RoCEv2 port of a host, by a raw socket.

  junk.py foreign SOURCE TARGET QPN   packets that the target must neither answer nor give to the QP
  junk.py sweep SOURCE TARGET QPN     each opcode and pad with many lengths, with the right ICRC
  junk.py datagrams SOURCE TARGET QPN GROUP
                                      packets for a UD QP, for QP1 and for the multicast group to
                                      which the QP is attached. The target must drop all of them.
                                      The output has a line with the number of packets for each
                                      reason. The addresses are all IPv4 or all IPv6.
  junk.py keys SOURCE TARGET QPN      datagrams with a wrong Q_Key or P_Key. The output has a line
                                      with the number of packets for each kind of key.
  junk.py mads SOURCE TARGET QPN      random management datagrams for QP1

QPN is the hexadecimal number of a live QP of the target. The packets depend on SEED only.
"""
import collections
import os
import random
import socket
import struct
import sys
import zlib

PORT = 4791
GSI, MULTICAST = 1, 0xFFFFFF
UD_SEND, UD_SEND_IMM = 0x64, 0x65
# Q_Keys of rrxe-check's QPs and of QP1.
QKEY, GSI_QKEY = 0x11223344, 0x80010000
DONT_FRAGMENT, MORE_FRAGMENTS = 0x4000, 0x2000


def udp(payload, length=None):
    size = len(payload) + 8 if length is None else length
    return struct.pack(">HHHH", 0xC123, PORT, size, 0) + payload


def ipv4(source, target, payload, flags=DONT_FRAGMENT, options=b""):
    words = 5 + len(options) // 4
    return struct.pack(
        ">BBHHHBBH4s4s", 0x40 | words, 0, 4 * words + len(payload), 7, flags, 64, 17, 0,
        socket.inet_aton(source), socket.inet_aton(target)) + options + payload


def bth(opcode, pad, qpn, psn, flags=0, pkey=0xFFFF):
    return struct.pack(">BBHII", opcode, flags | pad << 4, pkey, qpn, psn)


def deth(qkey, qpn):
    return struct.pack(">II", qkey, qpn)


def ipv6(source, target, payload):
    head = struct.pack(">IHBB", 6 << 28, len(payload), 17, 64)
    return head + socket.inet_pton(socket.AF_INET6, source) + socket.inet_pton(socket.AF_INET6, target) + payload


def with_icrc6(source, target, datagram):
    packet = bytearray(ipv6(source, target, udp(datagram + bytes(4))))
    packet[0:4] = b"\x6f\xff\xff\xff"
    packet[7] = packet[46] = packet[47] = packet[52] = 0xFF
    crc = zlib.crc32(b"\xff" * 8 + bytes(packet[:-4]))
    return ipv6(source, target, udp(datagram + struct.pack("<I", crc)))


def with_icrc(source, target, datagram):
    """Returns an IP packet with the datagram and the ICRC that its headers require."""
    if ":" in target:
        return with_icrc6(source, target, datagram)
    packet = bytearray(ipv4(source, target, udp(datagram + bytes(4))))
    packet[1] = packet[8] = packet[10] = packet[11] = 0xFF
    packet[26] = packet[27] = 0xFF
    if len(packet) > 36:
        packet[32] = 0xFF
    crc = zlib.crc32(b"\xff" * 8 + bytes(packet[:-4]))
    return ipv4(source, target, udp(datagram + struct.pack("<I", crc)))


def foreign(source, target, qpn):
    rng = random.Random(SEED)
    # Random bytes of all short lengths.
    for length in list(range(80)) * 4:
        yield ipv4(source, target, udp(rng.randbytes(length)))
    # Packets with the right ICRC for QPs that do not exist, or that are connected to another peer.
    for number in [rng.randrange(1 << 24) for _ in range(300)] + [qpn] * 300:
        opcode = rng.choice([0x04, 0x06, 0x0A, 0x0C, 0x11, 0x13, 0x14])
        body = rng.randbytes(4 * rng.randrange(12))
        yield with_icrc(source, target, bth(opcode, 0, number, rng.randrange(1 << 24)) + body)
    # Packets with IP and UDP headers that RoCEv2 does not use: IP options, four bytes behind the
    # UDP datagram, a UDP length that leaves out the last four bytes, and fragments.
    good = with_icrc(source, target, bth(0x04, 0, qpn, 0) + bytes(64))[28:]
    for _ in range(20):
        yield ipv4(source, target, udp(good), options=b"\x01\x01\x01\x00")
        yield ipv4(source, target, udp(good) + bytes(4))
        yield ipv4(source, target, udp(good, len(good) + 4))
        first, second = udp(good)[:40], udp(good)[40:]
        yield ipv4(source, target, first, flags=MORE_FRAGMENTS)
        yield ipv4(source, target, second, flags=len(first) // 8)
    # Packets with a wrong transport version, and packets with a wrong ICRC.
    for _ in range(100):
        version = rng.randrange(1, 16)
        yield with_icrc(source, target, bth(0x04, 0, qpn, 0, version) + bytes(16))
        yield ipv4(source, target, udp(bth(0x04, 0, qpn, 0) + rng.randbytes(20)))


def sweep(source, target, qpn):
    rng = random.Random(SEED)
    for opcode in range(256):
        for pad in range(4):
            for length in (0, 1, 3, 4, 8, 15, 16, 20, 28, 32, 44, 1024):
                body = rng.randbytes(length)
                yield with_icrc(source, target, bth(opcode, pad, qpn, rng.randrange(1 << 24)) + body)


def datagrams(source, target, qpn, group):
    """Yields pairs: the reason for which the target drops a packet, and the packet."""
    rng = random.Random(SEED)

    def ud_packet(to, number, key, payload, opcode=UD_SEND, **fields):
        body = deth(key, rng.randrange(1 << 24)) + payload
        head = bth(opcode, 0, number, rng.randrange(1 << 24), **fields)
        return with_icrc(source, to, head + body)

    destinations = ((target, qpn, QKEY), (target, GSI, GSI_QKEY), (group, MULTICAST, QKEY))
    for to, number, key in destinations:
        for _ in range(20):
            payload = rng.randbytes(4 * rng.randrange(60))
            for wrong in (key ^ 1 << rng.randrange(32), 0, QKEY ^ GSI_QKEY ^ key):
                yield "refused", ud_packet(to, number, wrong, payload)
            for pkey in (0, 0x8000, rng.randrange(0x7FFF)):
                yield "refused", ud_packet(to, number, key, payload, pkey=pkey)
            # The payload exceeds each posted receive.
            yield "refused", ud_packet(to, number, key, rng.randbytes(4096))
            # Packets of other transports.
            for opcode, length in ((0x04, 28), (0x0A, 28), (0x0C, 16), (0x11, 4), (0x13, 28),
                                   (0x24, 28), (0x2A, 28)):
                yield "refused", with_icrc(source, to, bth(opcode, 0, number, 0) + bytes(length))
            # rrxe computes the ICRC of a packet for QP1 only if its payload has the length of a
            # MAD.
            payload = rng.randbytes(256) if number == GSI else payload
            yield "icrc", ud_packet(to, number, key, payload)[:-4] + rng.randbytes(4)
        # Packets too short for their headers, with more pad than payload, and with opcodes that UD
        # does not have.
        for length in range(8):
            yield "malformed", with_icrc(source, to, bth(UD_SEND, 0, number, 0) + bytes(length))
        for length in range(4):
            body = deth(key, 7) + bytes(length)
            yield "malformed", with_icrc(source, to, bth(UD_SEND_IMM, 0, number, 0) + body)
        for pad in (1, 2, 3):
            yield "malformed", with_icrc(source, to, bth(UD_SEND, pad, number, 0) + deth(key, 7))
        for opcode in (0x60, 0x63, 0x66, 0x6A, 0x72, 0x7F):
            yield "malformed", ud_packet(to, number, key, bytes(64), opcode=opcode)
    # Packets to groups have the QPN 0xFFFFFF, which is invalid for other packets.
    for to, number in ((group, qpn), (group, GSI), (target, MULTICAST), (target, 0)):
        for _ in range(20):
            yield "no_qp", ud_packet(to, number, QKEY, bytes(64))


def keys(source, target, qpn):
    """Yields pairs: the kind of key that is wrong, and a packet. If the P_Key is wrong, the Q_Key
    does not matter."""
    for count in range(7):
        body = deth(QKEY ^ 1 << count, 7) + bytes(64)
        yield "qkey", with_icrc(source, target, bth(UD_SEND, 0, qpn, count) + body)
    for pkey, key in (
            (0, QKEY), (0x8000, QKEY), (0x1234, QKEY), (0xFFFE, QKEY ^ 1), (0x7FFE, QKEY ^ 1)):
        body = deth(key, 7) + bytes(64)
        yield "pkey", with_icrc(source, target, bth(UD_SEND, 0, qpn, 0, pkey=pkey) + body)


def mads(source, target, _qpn):
    """Yields management datagrams of many classes, of right and wrong lengths, from QP1 and from
    random QPNs."""
    rng = random.Random(SEED)
    for length in (0, 1, 4, 23, 24, 64, 255, 256, 257, 512, 2048):
        for mgmt_class in (0x01, 0x03, 0x04, 0x07, 0x08, 0x09, 0x32, 0x81, rng.randrange(256)):
            for method in (0x01, 0x02, 0x03, 0x12, 0x81, 0x92, rng.randrange(256)):
                attribute = rng.choice((
                    0x0001, 0x0002, 0x0010, 0x0012, 0x0013, 0x0015, 0x0016, rng.randrange(1 << 16)))
                head = struct.pack(
                    ">BBBBHHQHHI", rng.choice((1, 1, 1, 0x80, 0)), mgmt_class, rng.choice((1, 2)),
                    method, 0, 0, rng.randrange(1 << 64), attribute, 0, rng.choice((0, 1 << 31)))
                mad = (head + rng.randbytes(2048))[:length]
                pad = -length % 4
                body = deth(GSI_QKEY, rng.choice((GSI, rng.randrange(1 << 24)))) + mad + bytes(pad)
                yield with_icrc(source, target, bth(UD_SEND, pad, GSI, rng.randrange(1 << 24)) + body)


SEED = int(os.environ.get("SEED", "1"))


KINDS = {"foreign": foreign, "sweep": sweep, "datagrams": datagrams, "keys": keys, "mads": mads}


def sender(source):
    """Returns a function that sends an IP packet by a raw socket of this host."""
    if ":" not in source:
        raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
        raw.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(source))
        return lambda packet: raw.sendto(packet, (socket.inet_ntoa(packet[16:20]), 0))
    raw = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_RAW)
    raw.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, socket.if_nametoindex("eth0"))
    return lambda packet: raw.sendto(packet, (socket.inet_ntop(socket.AF_INET6, packet[24:40]), 0))


def main():
    kind, source, target, qpn, *groups = sys.argv[1:]
    # On one CPU the packets stay in order. Packets in the backlog of one CPU may overtake those in
    # the backlog of another.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    send = sender(source)
    counts = collections.Counter()
    for packet in KINDS[kind](source, target, int(qpn, 16), *groups):
        reason, packet = packet if isinstance(packet, tuple) else ("datagrams", packet)
        send(packet)
        counts[reason] += 1
    for reason, count in sorted(counts.items()):
        print(reason, count)


main()
