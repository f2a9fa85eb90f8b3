# SPDX-License-Identifier: GPL-2.0
"""Decoding of RoCEv2 datagrams by Wireshark (tshark), and the text format of the test vectors.

A vector is a line `packet NAME`, a line `datagram HEX` (from the IP header to the ICRC) and a line
for each field, `FIELD VALUE` in hexadecimal, in the order of the wire. FIELD is Wireshark's name
without the leading `infiniband.`, or for fields that Wireshark does not decode, `feth.plt`,
`feth.sel` and `xrceth.xrcsrq`.
"""
import json
import os
import struct
import subprocess
import tempfile

LINKTYPE_RAW = 101

# Wireshark's names of the fields. Wireshark decodes no extension header of FLUSH and ATOMIC WRITE,
# nor XRCETH and the headers behind it.
FIELDS = [
    "bth.opcode", "bth.se", "bth.m", "bth.padcnt", "bth.p_key", "bth.destqp", "bth.a", "bth.psn",
    "deth.q_key", "deth.srcqp", "reth.va", "reth.r_key", "reth.dmalen", "atomiceth.swapdt",
    "atomiceth.cmpdt", "aeth.syndrome", "aeth.msn", "atomicacketh.origremdt", "immdt", "ieth",
    "invariant.crc",
]


def tshark(datagrams):
    """Returns, for each datagram, a dictionary of the fields that Wireshark decodes."""
    with tempfile.NamedTemporaryFile(suffix=".pcap", delete=False) as pcap:
        pcap.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, LINKTYPE_RAW))
        for datagram in datagrams:
            pcap.write(struct.pack("<IIII", 0, 0, len(datagram), len(datagram)) + datagram)
    try:
        command = ["tshark", "-r", pcap.name, "-T", "json", "--no-duplicate-keys"]
        command += [part for field in FIELDS for part in ("-e", "infiniband." + field)]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    finally:
        os.unlink(pcap.name)
    readings = []
    for frame in json.loads(text):
        layers = frame["_source"].get("layers", {})
        found = {}
        for field in FIELDS:
            if "infiniband." + field in layers:
                found[field] = number(field, layers["infiniband." + field][0])
        readings.append(found)
    return readings


def number(field, text):
    """Returns the value of a field from tshark's output.

    tshark prints integers as decimal, 0x… or True/False, and byte strings (immdt and ieth) as
    hexadecimal without a prefix.
    """
    if field in ("immdt", "ieth"):
        return int(text.replace(":", ""), 16)
    if text in ("True", "False"):
        return int(text == "True")
    return int(text, 0)


def check(packets):
    """Exits with an error unless each field that Wireshark decodes has its packed value."""
    for (name, _, expected), read in zip(packets, tshark([p[1] for p in packets]), strict=True):
        if "bth.psn" not in read:
            raise SystemExit(f"{name}: Wireshark sees no BTH")
        for field, value in read.items():
            if expected.get(field) != value:
                raise SystemExit(f"{name}: {field} is {expected.get(field)}, Wireshark: {value}")


def write(out, name, datagram, fields):
    """Writes one test vector."""
    print(f"\npacket {name}\ndatagram {datagram.hex()}", file=out)
    for field, value in fields.items():
        print(f"{field} {value:#x}", file=out)
