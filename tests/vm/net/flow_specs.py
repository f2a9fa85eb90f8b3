#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Builds the specifications of flow steering rules: a value and a mask for the fields of one
layer. A field that is None is not compared."""

import socket
import struct

from uverbs import flow_spec

# enum ib_flow_spec_type (include/rdma/ib_verbs.h).
ETH, IPV4, IPV6, TCP, UDP, VXLAN, GRE, MPLS, INNER, TAG, DROP = (
    0x20, 0x30, 0x31, 0x40, 0x41, 0x50, 0x51, 0x60, 0x100, 0x1000, 0x1001,
)


def value_and_mask(*fields):
    """Returns value and mask of fields, each given as (bytes, whether it is compared)."""
    value = b"".join(field for field, _ in fields)
    mask = b"".join((b"\xff" if is_compared else b"\0") * len(field)
                    for field, is_compared in fields)
    return value, mask


def eth_spec(dst=None, src=None, ether_type=None, vlan_tag=None, vlan_mask=0xFFFF):
    short = (struct.pack("!H", number or 0) for number in (ether_type, vlan_tag))
    value, mask = value_and_mask(
        (dst or bytes(6), dst is not None), (src or bytes(6), src is not None),
        (next(short), ether_type is not None), (next(short), vlan_tag is not None),
    )
    if vlan_tag is not None:
        mask = mask[:14] + struct.pack("!H", vlan_mask)
    return flow_spec(ETH, value, mask)


def ipv4_spec(src=None, dst=None, protocol=None, tos=None, ttl=None, flags=None):
    def address(text):
        return socket.inet_aton(text or "0.0.0.0"), text is not None
    numbers = [(bytes([number or 0]), number is not None) for number in (protocol, tos, ttl)]
    value, mask = value_and_mask(address(src), address(dst), *numbers, (bytes([flags or 0]), False))
    return flow_spec(IPV4, value, mask[:11] + (b"\6" if flags is not None else b"\0"))


def ipv6_spec(src=None, dst=None, label=None, next_header=None, traffic_class=None, hop_limit=None):
    def address(text):
        return socket.inet_pton(socket.AF_INET6, text or "::"), text is not None
    numbers = [(bytes([n or 0]), n is not None) for n in (next_header, traffic_class, hop_limit, None)]
    value, mask = value_and_mask(address(src), address(dst), (struct.pack("!I", label or 0), False),
                                 *numbers)
    label_mask = struct.pack("!I", 0 if label is None else 0xFFFFF)
    return flow_spec(IPV6, value, mask[:32] + label_mask + mask[36:])


def port_spec(kind, dst=None, src=None):
    return flow_spec(kind, *value_and_mask((struct.pack("!H", dst or 0), dst is not None),
                                           (struct.pack("!H", src or 0), src is not None)))
