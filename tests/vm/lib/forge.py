# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Builds RoCEv2 packets with any header fields and a valid ICRC, and sends them.

`PacketSocket` sends whole IP packets through a packet socket. `Socket` sends the UDP payload through an
ordinary UDP socket.
"""

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import zlib

PORT = 4791
GSI, MULTICAST = 1, 0xFFFFFF
GSI_QKEY = 0x80010000
NOBODY = 65534
DONT_FRAGMENT = 0x4000
IP_MTU_DISCOVER, IP_PMTUDISC_DO = 10, 2
IPV6_FREEBIND = 78
UDP_LEN, ICRC_LEN = 8, 4

# Opcodes (IBTA 1.x table 38): transports in the upper three bits, operations in the others.
RC, UC, UD, CNP, XRC = 0x00, 0x20, 0x60, 0x80, 0xA0
SEND_FIRST, SEND_MIDDLE, SEND_LAST, SEND_ONLY, SEND_ONLY_IMM = 0x00, 0x01, 0x02, 0x04, 0x05
WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, WRITE_ONLY, WRITE_ONLY_IMM = 0x06, 0x07, 0x08, 0x0A, 0x0B
READ_REQUEST, READ_RESPONSE_ONLY, ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE = 0x0C, 0x10, 0x11, 0x12
COMPARE_SWAP, FETCH_ADD = 0x13, 0x14


def bth(opcode, qpn, psn, pad=0, pkey=0xFFFF, ackreq=False, solicited=False):
    flags = (0x80 if solicited else 0) | 0x40 | pad << 4
    return struct.pack(">BBHII", opcode, flags, pkey, qpn, psn & 0xFFFFFF | (1 << 31 if ackreq else 0))


def deth(qkey, qpn):
    return struct.pack(">II", qkey, qpn)


def reth(va, rkey, length):
    return struct.pack(">QII", va, rkey, length)


def aeth(syndrome, msn):
    return struct.pack(">BBH", syndrome, msn >> 16 & 0xFF, msn & 0xFFFF)


def atomic_eth(va, rkey, swap_or_add, compare=0):
    return struct.pack(">QIQQ", va, rkey, swap_or_add, compare)


def is_v6(address):
    return ":" in address


def raw_address(address):
    return socket.inet_pton(socket.AF_INET6 if is_v6(address) else socket.AF_INET, address)


def ip_header(source, target, length, identification=0, hop_limit=64, traffic_class=0, protocol=socket.IPPROTO_UDP):
    """Returns the IP header for a payload of `length` bytes. The checksum of IPv4 is still 0."""
    if is_v6(source):
        head = struct.pack(">IHBB", 6 << 28 | traffic_class << 20, length, protocol, hop_limit)
    else:
        head = struct.pack(">BBHHHBBH", 0x45, traffic_class, 20 + length, identification, DONT_FRAGMENT, hop_limit,
                           protocol, 0)
    return head + raw_address(source) + raw_address(target)


def udp_header(sport, length):
    return struct.pack(">HHHH", sport, PORT, length, 0)


def udp_payload_with_icrc(source, target, body, sport=0xC123, identification=0):
    """Returns the UDP payload: `body` and the ICRC."""
    length = UDP_LEN + len(body) + ICRC_LEN
    return body + icrc_of(ip_header(source, target, length, identification) + udp_header(sport, length) + body)


def icrc_input(packet):
    """Returns the data that an ICRC covers, for a packet from its IP header on, without the ICRC.

    The ICRC counts header fields that routers may change as ones (IBTA annex A17.3.3).
    """
    covered = bytearray(packet)
    if packet[0] >> 4 == 6:
        start, variant = 40, (1, 2, 3, 7)
        covered[0] |= 0x0F
    else:
        start, variant = 20, (1, 8, 10, 11)
    for index in (*variant, start + 6, start + 7, start + 12):
        covered[index] = 0xFF
    return b"\xff" * 8 + covered


def icrc_of(packet):
    """Returns the ICRC of a packet from its IP header on, without the ICRC."""
    return struct.pack("<I", zlib.crc32(icrc_input(packet)))


def checksum(header):
    total = sum(struct.unpack(f">{len(header) // 2}H", header))
    total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF - ((total & 0xFFFF) + (total >> 16))


def crc32c(content):
    """Returns the checksum that SCTP uses (RFC 9260, appendix A)."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def ip_packet(source, target, body, **fields):
    """Returns an IP packet. Its header has a valid checksum."""
    head = bytearray(ip_header(source, target, len(body), **fields))
    if not is_v6(source):
        head[10:12] = struct.pack(">H", checksum(bytes(head)))
    return bytes(head) + body


def packet(source, target, body, sport=0xC123, identification=7, icrc=True, hop_limit=64):
    """Returns a RoCEv2 packet from its IP header on. `body` begins with the BTH."""
    payload = udp_payload_with_icrc(source, target, body, sport, identification) if icrc else body
    datagram = udp_header(sport, UDP_LEN + len(payload)) + payload
    return ip_packet(source, target, datagram, identification=identification, hop_limit=hop_limit)


@contextlib.contextmanager
def namespace(name):
    """Runs the context in the network namespace of that name, or for None in the present one."""
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        if name:
            with open(f"/run/netns/{name}", "rb") as there:
                os.setns(there.fileno(), os.CLONE_NEWNET)
        yield
    finally:
        os.setns(home, os.CLONE_NEWNET)
        os.close(home)


def as_nobody(make):
    """Calls `make` in a process of the user nobody, and returns the socket that it makes there."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            os.setresuid(NOBODY, NOBODY, NOBODY)
            made = make()
            socket.send_fds(theirs, [b"made"], [made.fileno()])
        except OSError as error:
            print(f"# as nobody: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(0)
    theirs.close()
    _, fds, _, _ = socket.recv_fds(ours, 4, 1)
    ours.close()
    os.waitpid(child, 0)
    if not fds:
        raise OSError("a process without privileges can't make this socket")
    return socket.socket(fileno=fds[0])


class Socket:
    """An ordinary UDP socket of a user without privileges.

    It is bound to an address of its namespace. With `foreign` it is bound to an IPv6 address of
    another host.
    """

    def __init__(self, source, sport=0xC123, where=None, device=None, foreign=False):
        def make():
            made = socket.socket(socket.AF_INET6 if is_v6(source) else socket.AF_INET, socket.SOCK_DGRAM)
            if not is_v6(source):
                # The ICRC covers the IPv4 identification. With IP_PMTUDISC_DO, packets of an
                # unconnected socket have the identification 0; by default it is unpredictable
                # (__ip_make_skb(), net/ipv4/ip_output.c).
                made.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
            # Before bind(), because the address may belong to a VRF.
            if device:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
            # Allows bind() to an address of another host.
            if foreign:
                made.setsockopt(socket.IPPROTO_IPV6, IPV6_FREEBIND, 1)
            # bind() to a link-local address needs the index of the device, too.
            scope = (0, socket.if_nametoindex(device)) if device and is_v6(source) else ()
            made.bind((source, sport, *scope))
            return made

        self.source, self.sport = source, sport
        with namespace(where):
            self.socket = as_nobody(make)

    def set_multicast_device(self, device, where=None):
        """Has the socket send packets for multicast groups by this network device.

        An IPv4 socket sends them by the device that has the socket's address instead.
        """
        with namespace(where):
            number = socket.if_nametoindex(device)
        if is_v6(self.source):
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, number)
        else:
            self.socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(self.source))

    def send(self, target, body):
        self.socket.sendto(udp_payload_with_icrc(self.source, target, body, self.sport), (target, PORT))

    def close(self):
        self.socket.close()


def hardware_address(where, device):
    """Returns the 6 bytes of the MAC address of a network device in namespace `where`."""
    shown = subprocess.run(["ip", "-n", where, "-j", "link", "show", "dev", device], check=True, capture_output=True)
    return bytes.fromhex(json.loads(shown.stdout)[0]["address"].replace(":", ""))


class PacketSocket:
    """A packet socket on a network device. It sends packets to the MAC address `to`.

    The IP header of a packet has no influence on its path.
    """

    def __init__(self, where, device, to):
        with namespace(where):
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            self.socket.bind((device, 0))
        self.head = to + hardware_address(where, device)

    def send(self, ip_packet):
        kind = b"\x86\xdd" if ip_packet[0] >> 4 == 6 else b"\x08\x00"
        self.socket.send(self.head + kind + ip_packet)

    def close(self):
        self.socket.close()
