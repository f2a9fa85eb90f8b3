#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Keeps a datagram for the driver's UDP socket in a queue of netfilter until standard input ends.

  netfilter_queue.py NAMESPACE SENDERS-NAMESPACE SENDERS-ADDRESS

A socket of SENDERS-NAMESPACE sends the datagram to port 4791 of the multicast group 224.0.0.1, of
which each host is a member. NAMESPACE receives it and queues it (nfnetlink_queue). Early
demultiplexing of IPv4 attaches the driver's UDP socket to such a datagram, and netfilter holds a
reference to the socket while the datagram is queued.
"""

import os
import socket
import struct
import subprocess
import sys

NAMESPACE, SENDERS_NAMESPACE, SENDERS_ADDRESS = sys.argv[1:]
GROUP, PORT = "224.0.0.1", 4791
RULES = f"""
table ip queued {{
	chain input {{
		type filter hook input priority 0;
		ip daddr {GROUP} udp dport {PORT} queue num 0
	}}
}}
"""
# Constants of nfnetlink (include/uapi/linux/netfilter/nfnetlink.h and nfnetlink_queue.h).
NETLINK_NETFILTER, SUBSYSTEM = 12, 3
PACKET, VERDICT, CONFIG = 0, 1, 2
ATTR_COMMAND, ATTR_PARAMS, ATTR_PACKET_HEADER, ATTR_VERDICT_HEADER = 1, 2, 1, 2
COMMAND_BIND, COPY_META, ACCEPT = 1, 1, 1
REQUEST, ACKNOWLEDGE = 1, 4
NLMSG_ERROR = 2
# While a socket has this option, which takes no privilege, the kernel calls the `encap_rcv` of UDP
# sockets (static key `udp_encap_needed_key`), also after the driver has closed its own socket.
UDP_ENCAP, UDP_ENCAP_ESPINUDP = 100, 2


def enter_namespace(namespace):
    with open(f"/run/netns/{namespace}") as file:
        os.setns(file.fileno(), os.CLONE_NEWNET)


def send(netlink, kind, attribute, value, flags=REQUEST):
    """Sends a netlink message about queue 0 with one attribute."""
    body = struct.pack("=BBH", 0, 0, 0) + struct.pack("=HH", 4 + len(value), attribute) + value
    body += bytes(-len(body) % 4)
    netlink.send(struct.pack("=IHHII", 16 + len(body), SUBSYSTEM << 8 | kind, flags, 0, 0) + body)


def configure(netlink, attribute, value):
    send(netlink, CONFIG, attribute, value, REQUEST | ACKNOWLEDGE)
    response = netlink.recv(1 << 16)
    kind, = struct.unpack_from("=H", response, 4)
    error, = struct.unpack_from("=i", response, 16)
    assert (kind, error) == (NLMSG_ERROR, 0), f"error {error}"


def next_packet_id(netlink):
    """Returns the identifier of the next packet of the queue."""
    message = netlink.recv(1 << 16)
    length, kind = struct.unpack_from("=IH", message)
    assert kind == SUBSYSTEM << 8 | PACKET, f"message of type {kind:#x}"
    offset = 20
    while offset < length:
        size, attribute = struct.unpack_from("=HH", message, offset)
        if attribute == ATTR_PACKET_HEADER:
            return struct.unpack_from(">I", message, offset + 4)[0]
        offset += (size + 3) & ~3
    raise AssertionError("a packet without a header")


def send_datagram():
    if os.fork() == 0:
        enter_namespace(SENDERS_NAMESPACE)
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(SENDERS_ADDRESS))
        sender.sendto(bytes(64), (GROUP, PORT))
        os._exit(0)
    assert os.wait()[1] == 0, "the datagram is sent"


enter_namespace(NAMESPACE)
netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
netlink.settimeout(60)
configure(netlink, ATTR_COMMAND, struct.pack(">BBH", COMMAND_BIND, 0, socket.AF_INET))
configure(netlink, ATTR_PARAMS, struct.pack(">IB", 0, COPY_META))
subprocess.run(["nft", "-f", "-"], input=RULES, text=True, check=True)
encap_socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
encap_socket.setsockopt(socket.IPPROTO_UDP, UDP_ENCAP, UDP_ENCAP_ESPINUDP)
send_datagram()
packet = next_packet_id(netlink)
print("attached", flush=True)
sys.stdin.read()
send(netlink, VERDICT, ATTR_VERDICT_HEADER, struct.pack(">II", ACCEPT, packet))
