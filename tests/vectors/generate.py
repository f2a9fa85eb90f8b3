#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Writes scapy.txt, test vectors for the packet codec: a packet of every opcode over IPv4 and IPv6.

scapy (contrib/roce, by Haggai Eran) builds IP, UDP and BTH and computes the ICRC. Of the extension
headers it has only AETH, so this script packs them itself, after IBTA 1.x chapter 9. Where
Wireshark decodes a field, it must find the value that was packed. Otherwise the script writes
nothing.

usage: generate.py > scapy.txt          needs: pip install scapy; apt install tshark
"""
import random
import struct
import sys

from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Raw

import reading

RNG = random.Random(4791)


def bits(count):
    return RNG.getrandbits(count)


def reth():
    va, rkey, length = bits(64), bits(32), RNG.choice([0, 1, 4096, 1 << 20, 1 << 31])
    fields = {"reth.va": va, "reth.r_key": rkey, "reth.dmalen": length}
    return struct.pack("!QII", va, rkey, length), fields


def aeth():
    syndrome = RNG.choice([0x00, 0x1F, 0x0C, 0x2C, 0x3F, 0x60, 0x61, 0x62, 0x63])
    msn = bits(24)
    return struct.pack("!I", syndrome << 24 | msn), {"aeth.syndrome": syndrome, "aeth.msn": msn}


def aeth_ack():
    msn = bits(24)
    return struct.pack("!I", 0x1F << 24 | msn), {"aeth.syndrome": 0x1F, "aeth.msn": msn}


def imm():
    word = bits(32)
    return struct.pack("!I", word), {"immdt": word}


def ieth():
    rkey = bits(32)
    return struct.pack("!I", rkey), {"ieth": rkey}


def atomic():
    va, rkey, swap, compare = bits(64), bits(32), bits(64), bits(64)
    fields = {
        "reth.va": va,
        "reth.r_key": rkey,
        "atomiceth.swapdt": swap,
        "atomiceth.cmpdt": compare,
    }
    return struct.pack("!QIQQ", va, rkey, swap, compare), fields


def fetch_add():
    va, rkey, add = bits(64), bits(32), bits(64)
    fields = {
        "reth.va": va,
        "reth.r_key": rkey,
        "atomiceth.swapdt": add,
        "atomiceth.cmpdt": 0,
    }
    return struct.pack("!QIQQ", va, rkey, add, 0), fields


def original():
    value = bits(64)
    return struct.pack("!Q", value), {"atomicacketh.origremdt": value}


def deth():
    qkey, src = bits(32), bits(24)
    return struct.pack("!II", qkey, src), {"deth.q_key": qkey, "deth.srcqp": src}


def xrceth():
    srq = bits(24)
    return struct.pack("!I", srq), {"xrceth.xrcsrq": srq}


def feth():
    placement, selectivity = RNG.choice([1, 2, 3]), RNG.choice([0, 1])
    fields = {"feth.plt": placement, "feth.sel": selectivity}
    return struct.pack("!I", selectivity << 4 | placement), fields


def padding():
    return bytes(16), {}


# Bytes of payload: a full packet at an MTU of 256, two lengths that need pad bytes, none, and the
# eight bytes of ATOMIC WRITE.
MTU, PAD_2, PAD_3, NO_PAYLOAD, WORD = 256, 130, 61, 0, 8

# By operation (the low bits of the opcode): name, extension headers in order, bytes of payload.
CONNECTED = {
    0x00: ("send-first", [], MTU),
    0x01: ("send-middle", [], MTU),
    0x02: ("send-last", [], PAD_2),
    0x03: ("send-last-imm", [imm], PAD_2),
    0x04: ("send-only", [], PAD_3),
    0x05: ("send-only-imm", [imm], PAD_3),
    0x06: ("write-first", [reth], MTU),
    0x07: ("write-middle", [], MTU),
    0x08: ("write-last", [], PAD_2),
    0x09: ("write-last-imm", [imm], PAD_2),
    0x0A: ("write-only", [reth], PAD_3),
    0x0B: ("write-only-imm", [reth, imm], NO_PAYLOAD),
}
RELIABLE = {
    0x0C: ("read-request", [reth], NO_PAYLOAD),
    0x0D: ("read-response-first", [aeth_ack], MTU),
    0x0E: ("read-response-middle", [], MTU),
    0x0F: ("read-response-last", [aeth_ack], PAD_2),
    0x10: ("read-response-only", [aeth_ack], PAD_3),
    0x11: ("acknowledge", [aeth], NO_PAYLOAD),
    0x12: ("atomic-acknowledge", [aeth_ack, original], NO_PAYLOAD),
    0x13: ("compare-swap", [atomic], NO_PAYLOAD),
    0x14: ("fetch-add", [fetch_add], NO_PAYLOAD),
    0x16: ("send-last-invalidate", [ieth], PAD_2),
    0x17: ("send-only-invalidate", [ieth], PAD_3),
}
PLACEMENT = {
    0x1C: ("flush", [feth, reth], NO_PAYLOAD),
    0x1D: ("atomic-write", [reth], WORD),
}
RESPONSES = range(0x0D, 0x13)


def opcodes():
    for operation, (name, headers, payload) in {**CONNECTED, **RELIABLE, **PLACEMENT}.items():
        yield "rc-" + name, operation, headers, payload
    for operation, (name, headers, payload) in CONNECTED.items():
        yield "uc-" + name, 0x20 | operation, headers, payload
    yield "ud-send-only", 0x64, [deth], PAD_3
    yield "ud-send-only-imm", 0x65, [deth, imm], PAD_2
    yield "cnp", 0x81, [padding], NO_PAYLOAD
    for operation, (name, headers, payload) in {**CONNECTED, **RELIABLE}.items():
        shared = [] if operation in RESPONSES else [xrceth]
        yield "xrc-" + name, 0xA0 | operation, shared + headers, payload


def packet(version, opcode, headers, payload):
    pad = -payload % 4
    bth = {
        "opcode": opcode,
        "solicited": bits(1),
        "migreq": bits(1),
        "padcount": pad,
        "pkey": bits(16),
        "dqpn": bits(24),
        "ackreq": bits(1),
        "psn": bits(24),
        "fecn": bits(1),
        "becn": bits(1),
    }
    fields = {
        "bth.opcode": opcode,
        "bth.se": bth["solicited"],
        "bth.m": bth["migreq"],
        "bth.padcnt": pad,
        "bth.p_key": bth["pkey"],
        "bth.destqp": bth["dqpn"],
        "bth.a": bth["ackreq"],
        "bth.psn": bth["psn"],
    }
    body = b""
    for header in headers:
        packed, expected = header()
        body += packed
        fields.update(expected)
    body += RNG.randbytes(payload) + bytes(pad)
    udp = UDP(sport=0xC000 | bits(14), dport=4791, chksum=RNG.choice([0, bits(16)]))
    if version == 4:
        ip = IP(src="192.0.2.1", dst="198.51.100.7", id=bits(16), flags="DF", tos=bits(8), ttl=64)
    else:
        ip = IPv6(src="2001:db8::1", dst="2001:db8:7::2", tc=bits(8), fl=bits(20), hlim=64)
    # The first build sets the length fields. The second computes the ICRC over them, as scapy's own
    # test does.
    raw = bytes(ip / udp / BTH(**bth, icrc=0) / Raw(body))
    parsed = (IP if version == 4 else IPv6)(raw)
    del parsed[BTH].icrc
    datagram = bytes(parsed)
    fields["invariant.crc"] = int.from_bytes(datagram[-4:], "big")
    return datagram, fields


def main():
    packets = []
    for name, opcode, headers, payload in opcodes():
        for version in (4, 6):
            datagram, fields = packet(version, opcode, headers, payload)
            packets.append((f"{name}-v{version}", datagram, fields))
    reading.check(packets)
    print("# SPDX-License-Identifier: GPL-2.0")
    print("# Made by generate.py with scapy's ICRC and checked against Wireshark's dissector.")
    for name, datagram, fields in packets:
        reading.write(sys.stdout, name, datagram, fields)


if __name__ == "__main__":
    main()
