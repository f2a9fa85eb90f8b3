#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Writes one datagram of each kind from the capture of traffic.sh as a test vector.

The datagrams are of C rdma_rxe. The kind of a datagram is its IP version, opcode, AETH syndrome (of
an acknowledgement) and number of pad bytes. The fields of a vector are those that tshark decodes,
and those of FLUSH and ATOMIC WRITE, which it does not.

usage: tests/vectors/capture.py <traffic.sh's output >rxe.txt          needs: apt install tshark
"""
import base64
import struct
import sys

import reading

ETHERNET = 14
BTH = {4: 28, 6: 48}


def pcap(text):
    """Returns the title of the capture, and its datagrams from the IP header to the ICRC."""
    log, title, rest = text.partition("pcap of ")
    if not title:
        raise SystemExit("no capture in the input:\n" + log)
    head, _, encoded = rest.partition(":\n")
    raw = base64.b64decode(encoded)
    datagrams = []
    at = 24
    while at < len(raw):
        length = struct.unpack_from("<I", raw, at + 8)[0]
        datagrams.append(raw[at + 16 + ETHERNET : at + 16 + length])
        at += 16 + length
    return head, datagrams


def kind(datagram):
    """Returns IP version, opcode, AETH syndrome of an acknowledgement (or None) and pad count."""
    version = datagram[0] >> 4
    transport = datagram[BTH[version] :]
    opcode = transport[0]
    return version, opcode, transport[12] if opcode == 0x11 else None, transport[1] >> 4 & 3


def unknown_to_wireshark(datagram):
    """Returns the header fields of FLUSH and ATOMIC WRITE (IBTA 1.x annex A19).

    Wireshark takes these headers for payload.
    """
    transport = datagram[BTH[datagram[0] >> 4] :]
    fields, at = {}, 12
    if transport[0] == 0x1C:
        feth = struct.unpack_from("!I", transport, at)[0]
        fields.update({"feth.plt": feth & 0xF, "feth.sel": feth >> 4 & 3})
        at += 4
    if transport[0] in (0x1C, 0x1D):
        names = ("reth.va", "reth.r_key", "reth.dmalen")
        fields.update(zip(names, struct.unpack_from("!QII", transport, at)))
    return fields


def main():
    title, datagrams = pcap(sys.stdin.read())
    chosen = {}
    for datagram in datagrams:
        chosen.setdefault(kind(datagram), datagram)
    datagrams = [chosen[key] for key in sorted(chosen, key=str)]
    print("# SPDX-License-Identifier: GPL-2.0")
    print(f"# Captured by traffic.sh from {title}, read by tshark and capture.py.")
    for datagram, fields in zip(datagrams, reading.tshark(datagrams), strict=True):
        fields.update(unknown_to_wireshark(datagram))
        version, opcode, syndrome, pad = kind(datagram)
        syndrome_part = "" if syndrome is None else f"-{syndrome:02x}"
        name = f"rxe-{opcode:02x}{syndrome_part}-pad{pad}-v{version}"
        reading.write(sys.stdout, name, datagram, fields)


if __name__ == "__main__":
    main()
