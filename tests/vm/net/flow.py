#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests raw packet QPs that receive frames by flow steering rules.

  flow.py DEVICE 0 [hold | fill COUNT | overdrawn]

DEVICE is a link on eth0 of namespace h1. A veth pair connects it to eth0 of namespace h2, from
which AF_PACKET sockets send frames. Stock librxe has no call that creates flow rules, so this
script creates them by raw uverbs commands. Without a further argument it runs the test cases. The
second argument is the GID index that `pairs` expects; raw packet QPs don't use it.

  hold       creates rules of all types, and keeps them until standard input ends
  fill       creates rules until the kernel refuses one, fails unless there are COUNT of them, and
             keeps them until standard input ends
  overdrawn  tests that QPs miss frames if the module's softirqs have little CPU time
             (module parameter `softirq_percent`)
"""

import random
import socket
import struct
import subprocess
import sys
import time

from pyverbs.cq import CQ
from pyverbs.device import Context
import pyverbs.enums as e
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

import forge
import pairs
from cpu_time import turns_queued_during
from flow_specs import (
    DROP, ETH, GRE, INNER, IPV4, MPLS, TAG, TCP, UDP, VXLAN, eth_spec, ipv4_spec, ipv6_spec, port_spec,
)
from pairs import (
    DEVICE, LOCAL_WRITE, Buffer, becomes, code_of, counter, equal, free_handle, libc, main, reaches,
)
from uverbs import (
    ALL_DEFAULT, ALLOW_LOOPBACK, DONT_TRAP, EGRESS, MC_DEFAULT, NORMAL, SNIFFER, create_flow, destroy_flow,
    errno_of, flow_spec,
)

ENOENT, ENOMEM, EBUSY, EINVAL, EOPNOTSUPP, EINPROGRESS = 2, 12, 16, 22, 95, 115
# Bytes of a receive buffer, more than a frame; bytes of an Ethernet header.
ROOM, HEADER = 2048, 14
# Maximum number of rules of a user (limits.rs: OF_USER.flows).
OF_USER = 512
# MAC addresses of a host that doesn't exist, and of a multicast group.
OTHER, GROUP = bytes.fromhex("020000000007"), bytes.fromhex("01005e000009")
HOST1, HOST2 = "10.77.0.1", "10.77.0.2"


def socket_in(namespace, *arguments):
    """Returns a new socket in a network namespace."""
    with forge.namespace(namespace):
        return socket.socket(*arguments)


# All frames that the tests sent. Any other frame is the hosts' own traffic, such as a neighbour
# solicitation, which may come at any time.
sent = set()


class Wire:
    """An AF_PACKET socket on eth0 of a host. Its frames arrive at the other host's eth0."""

    def __init__(self, namespace):
        self.socket = socket_in(namespace, socket.AF_PACKET, socket.SOCK_RAW, 0)
        self.socket.bind(("eth0", 0))
        self.mac = self.socket.getsockname()[4]

    def send(self, frame):
        sent.add(frame)
        self.socket.send(frame)


WIRE, HOME = Wire("h2"), Wire("h1")


def ethernet(ether_type=0x88B5, dst=HOME.mac, src=WIRE.mac, tags=()):
    tag_bytes = b"".join(struct.pack("!HH", 0x8100, tag) for tag in tags)
    return dst + src + tag_bytes + struct.pack("!H", ether_type)


def ipv4(protocol=17, src=HOST2, dst=HOST1, tos=0, ttl=9, flags=0, offset=0, options=b""):
    addresses = socket.inet_aton(src) + socket.inet_aton(dst)
    first = 0x45 + len(options) // 4
    return struct.pack("!BBHHHBBH", first, tos, 60, 7, flags << 13 | offset, ttl, protocol, 0) + addresses + options


def ipv6(next_header=17, src="fd77::2", dst="fd77::1", traffic_class=0, label=0, hop_limit=9):
    addresses = socket.inet_pton(socket.AF_INET6, src) + socket.inet_pton(socket.AF_INET6, dst)
    return struct.pack("!IHBB", 6 << 28 | traffic_class << 20 | label, 30, next_header, hop_limit) + addresses


def ports(src=1000, dst=2000):
    return struct.pack("!HH", src, dst)


def padded(*parts):
    """Returns a frame of at least Ethernet's minimum length, with a unique number."""
    padded.number += 1
    return b"".join(parts) + b"frame %08d" % padded.number + bytes(40)


padded.number = 0


def case(name):
    """Registers a test case. It closes the case's ports afterwards, because rules that remain
    would match the frames of later cases."""
    def register(function):
        def run():
            try:
                function()
            finally:
                while ports_of_case:
                    ports_of_case.pop().close()
        return pairs.case(name)(run)
    return register


ports_of_case = []


class Port:
    """A raw packet QP with posted receives, and its flow rules."""

    def __init__(self, receives=64, room=ROOM, beside=None, shared=False, kind=e.IBV_QPT_RAW_PACKET, access=0):
        self.context = beside.context if beside else Context(name=DEVICE)
        self.pd = PD(self.context)
        # Two CQs: frames of other senders may complete receives before a send completes.
        self.cq, self.send_cq = CQ(self.context, 512), CQ(self.context, 64)
        self.room, self.slots, self.flows = room, max(receives, 1), []
        self.buffer = Buffer(self.slots * room)
        self.mr = MR(self.pd, self.buffer.length, LOCAL_WRITE | access, address=self.buffer.address)
        cap = QPCap(max_send_wr=32, max_recv_wr=512, max_send_sge=2, max_recv_sge=2)
        self.srq = SRQ(self.pd, SrqInitAttr(SrqAttr(max_wr=512, max_sge=2))) if shared else None
        self.handle = free_handle(self.context)
        init = QPInitAttr(qp_type=kind, scq=self.send_cq, rcq=self.cq, srq=self.srq, cap=cap, sq_sig_all=1)
        attr = QPAttr(port_num=1)
        attr.qkey = 1
        self.qp = QP(self.pd, init, attr)
        for slot in range(receives):
            self.post(slot)
        ports_of_case.append(self)

    def post(self, slot):
        # Two SGEs. The first one ends in the middle of the frame's headers.
        place = self.buffer.address + slot * self.room
        pieces = [SGE(place, 20, self.mr.lkey), SGE(place + 20, self.room - 20, self.mr.lkey)]
        (self.srq.post_recv if self.srq else self.qp.post_recv)(RecvWR(wr_id=slot, num_sge=2, sg=pieces))

    def rule(self, *specs, kind=NORMAL, priority=0, flags=0):
        flow = create_flow(self.context, self.handle, kind, priority, flags, specs)
        self.flows.append(flow)
        return flow

    def drop(self, flow):
        destroy_flow(self.context, flow)
        self.flows.remove(flow)

    def close(self):
        for flow in list(self.flows):
            self.drop(flow)
        self.qp.close()

    def completion(self, seconds=30, cq=None):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            count, completions = (cq or self.cq).poll(1)
            if count:
                return completions[0]
        return None

    def frame(self, seconds=30):
        """Returns the next received frame, or None after `seconds`. Reposts its receive."""
        wc = self.completion(seconds)
        if wc is None:
            return None
        equal((wc.status, wc.opcode), (e.IBV_WC_SUCCESS, e.IBV_WC_RECV), "status and opcode of a receive")
        frame = self.buffer.read(wc.byte_len, wc.wr_id * self.room)
        self.post(wc.wr_id)
        return frame

    def frame_of_test(self):
        """Returns the next frame that a test sent. Skips the hosts' own traffic."""
        while (frame := self.frame()) is not None and frame not in sent:
            pass
        return frame

    def gets(self, *frames, what="frames"):
        equal([self.frame_of_test() for _ in frames], list(frames), what)

    def gets_nothing_else(self):
        """Fails if another frame of a test arrives. Frames stay in order, so all earlier frames
        have arrived before the frame that this function sends."""
        last = padded(ethernet(0x88B6))
        flow = self.rule(eth_spec(ether_type=0x88B6))
        WIRE.send(last)
        self.gets(last, what="the last frame")
        self.drop(flow)

    def send(self, frame):
        sent.add(frame)
        source = Buffer(len(frame))
        source.fill(frame)
        mr = MR(self.pd, len(frame), LOCAL_WRITE, address=source.address)
        self.qp.post_send(SendWR(wr_id=77, num_sge=1, sg=[SGE(source.address, len(frame), mr.lkey)]))
        wc = self.completion(cq=self.send_cq)
        equal((wc.wr_id, wc.status), (77, e.IBV_WC_SUCCESS), "completion of a send")
        mr.close()


def separates(specs, fitting, others):
    """Fails unless a QP whose rule has `specs` receives the `fitting` frames and no `others`."""
    port = Port()
    port.rule(*specs)
    for fit, other in zip(fitting, list(others) + [None] * len(fitting)):
        if other is not None:
            WIRE.send(other)
        WIRE.send(fit)
    for other in others[len(fitting):]:
        WIRE.send(other)
    port.gets(*fitting)
    port.gets_nothing_else()
    port.close()


@case("flow: link layer: addresses, type, bits of them")
def _():
    frame = padded(ethernet())
    others = [padded(ethernet(dst=OTHER)), padded(ethernet(src=OTHER)), padded(ethernet(0x88B7))]
    separates([eth_spec(HOME.mac, WIRE.mac, 0x88B5)], [frame, padded(ethernet(tags=[5]))], others)
    spec = flow_spec(ETH, b"\1" + bytes(15), b"\1" + bytes(15))
    separates([spec], [padded(ethernet(dst=GROUP)), padded(ethernet(dst=b"\xff" * 6))], [frame])


@case("flow: tags arrive in their place, and are matched")
def _():
    fitting = [padded(ethernet(tags=[0x2007])), padded(ethernet(tags=[7, 9])), padded(ethernet(0x800, tags=[7]), ipv4())]
    others = [padded(ethernet()), padded(ethernet(tags=[8])), padded(ethernet(tags=[9, 7]))]
    separates([eth_spec(tag=7, tag_mask=0xFFF)], fitting, others)


@case("flow: IPv4, each field")
def _():
    def frame(**fields):
        return padded(ethernet(0x800), ipv4(**fields), ports())
    separates([ipv4_spec(src=HOST2, dst="10.77.9.9")], [frame(dst="10.77.9.9")], [frame(), frame(src=HOST1)])
    six = padded(ethernet(0x86DD), ipv6())
    separates([ipv4_spec(protocol=6, tos=4)], [frame(protocol=6, tos=4)], [frame(tos=4), frame(protocol=6), six])
    separates([ipv4_spec(ttl=3, flags=2)], [frame(ttl=3, flags=2)], [frame(ttl=3), frame(flags=2)])
    with_options = frame(options=b"\1" * 40, src="10.77.9.9")
    separates([ipv4_spec(src="10.77.9.9")], [with_options], [frame(), padded(ethernet(0x801), ipv4(src="10.77.9.9"))])


@case("flow: IPv6, each field")
def _():
    def frame(**fields):
        return padded(ethernet(0x86DD), ipv6(**fields), ports())
    separates([ipv6_spec(src="fd77::2", dst="fd77::9")], [frame(dst="fd77::9")], [frame(), frame(src="fd77::9")])
    fitting = frame(label=0xABCDE, next_header=6, traffic_class=8, hop_limit=2)
    others = [frame(label=0xABCDE, traffic_class=8, hop_limit=2), frame(label=0xABCDE, next_header=6, hop_limit=2)]
    others += [frame(next_header=6, traffic_class=8, hop_limit=2), padded(ethernet(0x800), ipv4(6))]
    separates([ipv6_spec(label=0xABCDE, next_header=6, traffic_class=8, hop_limit=2)], [fitting], others)


@case("flow: TCP and UDP, over both, behind options and extensions, not in later fragments")
def _():
    def four(protocol, *parts, **fields):
        return padded(ethernet(0x800), ipv4(protocol, **fields), *parts)

    def six(protocol, *parts):
        return padded(ethernet(0x86DD), ipv6(protocol), *parts)
    there, elsewhere = ports(1000, 4000), ports(1000, 4001)
    fitting = [four(17, there), six(17, there), four(17, there, options=b"\1" * 8), six(60, b"\x11" + bytes(7), there)]
    others = [four(6, there), six(17, elsewhere), four(17, there, offset=3), six(59, there)]
    separates([port_spec(UDP, dst=4000)], fitting, others)
    separates([port_spec(TCP, dst=4000, src=1000)], [four(6, there), six(6, there)], [four(17, there), six(6, ports(4000, 1000))])
    whole = [eth_spec(ether_type=0x800), ipv4_spec(src=HOST2), port_spec(UDP, dst=4000)]
    separates(whole, [four(17, there)], [six(17, there), four(17, there, src=HOST1), four(17, elsewhere)])


@case("flow: the first rule by priority takes a frame, or lets others have it")
def _():
    first = Port()
    second, third = Port(beside=first), Port(beside=first)
    second.rule(eth_spec(ether_type=0x88B5), priority=5)
    third.rule(eth_spec(), priority=9)
    taking = first.rule(eth_spec(HOME.mac), priority=3)
    frames = [padded(ethernet()) for _ in range(6)]
    WIRE.send(frames[0])
    first.gets(frames[0])
    first.drop(taking)
    giving = first.rule(eth_spec(HOME.mac), priority=3, flags=DONT_TRAP)
    WIRE.send(frames[1])
    for port in first, second:
        port.gets(frames[1])
    first.drop(giving)
    WIRE.send(frames[2])
    second.gets(frames[2])
    second.drop(second.flows[0])
    WIRE.send(frames[3])
    third.gets(frames[3])
    # QPs that have the same rule at the same priority all receive the frame.
    first.rule(eth_spec(), priority=9)
    for frame in padded(ethernet()), padded(ethernet(dst=GROUP)):
        WIRE.send(frame)
        for port in first, third:
            port.gets(frame, what="a shared frame")
    for port in first, second, third:
        port.gets_nothing_else()


@case("flow: a QP gets a frame once, however many of its rules fit")
def _():
    first = Port()
    second = Port(beside=first)
    for number in range(3):
        first.rule(kind=SNIFFER)
        for port in second, first:
            port.rule(eth_spec(ether_type=0x88B5), priority=number, flags=DONT_TRAP)
    # The driver gives each QP with rules the lowest free number. The third QP must not get the
    # number of a QP that has lost only one of its rules.
    first.drop(first.flows[0])
    third = Port(beside=first)
    third.rule(eth_spec(HOME.mac, ether_type=0x88B5), flags=DONT_TRAP)
    frames = [padded(ethernet()) for _ in range(3)]
    for frame in frames:
        WIRE.send(frame)
    for port in first, second, third:
        port.gets(*frames)
        port.gets_nothing_else()


@case("flow: defaults get what no other rule takes")
def _():
    normal = Port()
    everything, groups = Port(beside=normal), Port(beside=normal)
    everything.rule(kind=ALL_DEFAULT)
    groups.rule(kind=MC_DEFAULT)
    normal.rule(eth_spec(ether_type=0x88B7))
    normal.rule(eth_spec(ether_type=0x88B8), flags=DONT_TRAP)
    taken, given = padded(ethernet(0x88B7)), padded(ethernet(0x88B8))
    single, group = padded(ethernet()), padded(ethernet(dst=GROUP))
    for frame in taken, given, single, group:
        WIRE.send(frame)
    normal.gets(taken, given)
    everything.gets(given, single, group)
    groups.gets(group)


@case("flow: sniffers get all that passes, whoever takes it")
def _():
    sniffer = Port()
    normal = Port(beside=sniffer)
    sniffer.rule(kind=SNIFFER)
    normal.rule(eth_spec())
    received, sent, raw = (padded(ethernet()) for _ in range(3))
    # Any number of QPs may receive a frame, so softirqs must not run the QPs' engines for it.
    equal(turns_queued_during(lambda: (WIRE.send(received), sniffer.gets(received))), 0, "turns of softirqs")
    normal.gets(received)
    HOME.send(sent)
    sniffer.gets(sent)
    normal.send(raw)
    sniffer.gets(raw)
    normal.gets_nothing_else()


@case("flow: what a QP sends meets the rules of others, its own only if wished, and leaves")
def _():
    sender = Port()
    other = Port(beside=sender)
    far = socket_in("h2", socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88B5))
    far.bind(("eth0", 0x88B5))
    far.settimeout(30)
    sender.rule(eth_spec(ether_type=0x88B5))
    other.rule(eth_spec(ether_type=0x88B5), priority=1)
    frames = [ethernet(dst=WIRE.mac, src=HOME.mac) + random.randbytes(length) for length in (50, 114, 115, 1500)]
    for frame in frames:
        sender.send(frame)
        equal(far.recv(4096), frame, "what left")
    other.gets(*frames)
    sender.rule(eth_spec(dst=WIRE.mac), flags=ALLOW_LOOPBACK)
    sender.send(frames[1])
    wc = sender.completion()
    equal((wc.status, wc.byte_len), (e.IBV_WC_SUCCESS, len(frames[1])), "its own frame")
    for port in sender, other:
        port.gets_nothing_else()


@case("flow: the host gets its packets all the same; checksums and frames are those of the wire")
def _():
    port = Port(receives=200)
    port.rule(eth_spec(dst=HOME.mac), ipv4_spec(src=HOST2))
    listener = socket_in("h1", socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((HOST1, 5000))
    listener.listen()
    client = socket_in("h2", socket.AF_INET, socket.SOCK_STREAM)
    client.connect((HOST1, 5000))
    peer, _ = listener.accept()
    content = random.randbytes(60_000)
    client.sendall(content)
    client.close()
    arrived = b""
    while piece := peer.recv(65536):
        arrived += piece
    equal(arrived == content, True, "what the host received")
    stream, start = bytearray(len(content)), None
    while bytes(stream) != content:
        frame = port.frame(seconds=30)
        equal(frame is not None, True, "a frame before all of the stream has arrived")
        equal(len(frame) <= HEADER + 1500, True, f"{len(frame)} bytes in a frame")
        packet = frame[HEADER:HEADER + struct.unpack_from("!H", frame, 16)[0]]
        tcp = packet[20:]
        pseudo = packet[12:20] + struct.pack("!HH", 6, len(tcp))
        for what, covered in ("IP", packet[:20]), ("TCP", pseudo + tcp + bytes(len(tcp) % 2)):
            total = sum(struct.unpack(f"!{len(covered) // 2}H", covered))
            total = (total & 0xFFFF) + (total >> 16)
            equal((total & 0xFFFF) + (total >> 16), 0xFFFF, f"checksum of {what}")
        sequence, offset, flags = struct.unpack_from("!I", tcp, 4)[0], (tcp[12] >> 4) * 4, tcp[13]
        if flags & 2:
            start = (sequence + 1) & 0xFFFFFFFF
            continue
        place, data = (sequence - start) & 0xFFFFFFFF, tcp[offset:]
        stream[place:place + len(data)] = data


@case("flow: frames of SCTP have their checksum")
def _():
    port = Port()
    port.rule(eth_spec(dst=HOME.mac), ipv4_spec(src=HOST2))
    client = socket_in("h2", socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_SCTP)
    client.setblocking(False)
    equal(client.connect_ex((HOST1, 5001)), EINPROGRESS, "connect()")
    while (frame := port.frame(seconds=30)) is not None and frame[HEADER + 9] != socket.IPPROTO_SCTP:
        pass
    equal(frame is not None, True, "a frame of SCTP")
    sctp = frame[HEADER + 20:HEADER + struct.unpack_from("!H", frame, HEADER + 2)[0]]
    equal(struct.unpack_from("<I", sctp, 8)[0], forge.crc32c(sctp[:8] + bytes(4) + sctp[12:]), "checksum")


@case("flow: frames without a receive are dropped and counted; one too long is a local length error")
def _():
    port = Port(receives=0)
    port.rule(eth_spec(ether_type=0x88B5))
    before = counter("drop_no_receive")
    for _ in range(5):
        WIRE.send(padded(ethernet()))
    becomes(lambda: counter("drop_no_receive") - before, 5, "drops")
    port.post(0)
    frame = padded(ethernet())
    WIRE.send(frame)
    port.gets(frame)
    port.close()
    port = Port(receives=2, room=100)
    port.rule(eth_spec(ether_type=0x88B5))
    frame = ethernet() + random.randbytes(100 - HEADER)
    WIRE.send(frame)
    port.gets(frame, what="a frame that just fits")
    WIRE.send(frame + b"!")
    equal(port.completion().status, e.IBV_WC_LOC_LEN_ERR, "status of a frame that doesn't")
    equal(port.completion().status, e.IBV_WC_WR_FLUSH_ERR, "status of the other receive")
    reaches(port.qp, e.IBV_QPS_ERR)


@case("flow: a shared receive queue")
def _():
    port = Port(shared=True, receives=4)
    port.rule(eth_spec(ether_type=0x88B5))
    frames = [padded(ethernet()) for _ in range(9)]
    for frame in frames:
        WIRE.send(frame)
        port.gets(frame)


@case("flow: receives in memory that isn't there yet, and in such as never will be")
def _():
    port = Port(access=e.IBV_ACCESS_ON_DEMAND)
    port.rule(eth_spec(ether_type=0x88B5))
    frames = [padded(ethernet()) for _ in range(20)]
    for frame in frames:
        WIRE.send(frame)
    port.gets(*frames)
    libc.munmap(port.buffer.address, port.buffer.length)
    for frame in frames[:3]:
        WIRE.send(frame)
    equal(port.completion().status, e.IBV_WC_LOC_PROT_ERR, "status of a frame for memory that is gone")
    equal(port.completion().status, e.IBV_WC_WR_FLUSH_ERR, "status of the next receive")
    reaches(port.qp, e.IBV_QPS_ERR)


def set_mtu(mtu):
    for namespace in "h1", "h2":
        subprocess.run(["ip", "-n", namespace, "link", "set", "eth0", "mtu", str(mtu)], check=True)


@case("flow: frames of several pages, into memory on demand at an odd address")
def _():
    set_mtu(9000)
    try:
        port = Port(access=e.IBV_ACCESS_ON_DEMAND, room=9001 + HEADER)
        port.rule(eth_spec(ether_type=0x88B5))
        frames = [ethernet() + random.randbytes(length) for length in (4082, 4083, 8192, 9000) for _ in range(10)]
        for frame in frames:
            WIRE.send(frame)
            port.gets(frame)
    finally:
        set_mtu(1500)


def junk(rng):
    """Returns a frame with headers that are partly valid, mutated, and truncated at random."""
    kind = rng.choice((0x800, 0x86DD, 0x8100, 0x88A8, 0x800, 0x86DD))
    body = bytearray(rng.choice((
        ipv4(rng.choice((6, 17)), options=b"\1" * rng.choice((0, 4, 40))) + ports(),
        ipv6(rng.choice((0, 6, 17, 43, 44, 60))) + rng.randbytes(40), rng.randbytes(90),
        struct.pack("!HHHH", 7, 0x8100, 7, 0x800) + ipv4(),
    )))
    for _ in range(rng.choice((0, 1, 3))):
        body[rng.randrange(len(body))] = rng.randrange(256)
    # The kernel drops frames with a truncated VLAN tag before packet handlers see them.
    least = 6 if kind in (0x8100, 0x88A8) else 0
    return ethernet(kind, dst=rng.choice((HOME.mac, GROUP, OTHER))) + bytes(body[:rng.randint(least, len(body))])


@case("flow: hostile frames harm nobody, and sniffers get them as they are")
def _():
    rng = random.Random(4711)
    sniffer = Port(receives=400)
    sniffer.rule(kind=SNIFFER)
    ports_ = [Port(beside=sniffer) for _ in range(4)]
    for port, specs in zip(ports_, (
        [ipv4_spec(src=HOST2)], [ipv6_spec(src="fd77::2")], [port_spec(UDP, dst=2000)], [eth_spec(tag=7)],
    )):
        port.rule(*specs, flags=DONT_TRAP)
    for _ in range(10):
        frames = [junk(rng) for _ in range(30)]
        for frame in frames:
            WIRE.send(frame)
        sniffer.gets(*frames, what="the frames sniffed")
    for port in ports_:
        while port.frame(seconds=0.05) is not None:
            pass


@case("flow: what can't be")
def _():
    port, datagram = Port(receives=0), Port(receives=0, kind=e.IBV_QPT_UD)
    some_port = port_spec(UDP, dst=1)
    for why, errno, specs, options in (
        ("sent frames", EOPNOTSUPP, [eth_spec()], {"flags": EGRESS}),
        ("a flag of IPv4 that there isn't", EOPNOTSUPP, [flow_spec(IPV4, bytes(12), bytes(11) + b"\1")], {}),
        ("a tunnel", EOPNOTSUPP, [flow_spec(VXLAN, bytes(4), bytes(4))], {}),
        ("GRE", EOPNOTSUPP, [flow_spec(GRE, bytes(8), bytes(8))], {}),
        ("MPLS", EOPNOTSUPP, [flow_spec(MPLS, bytes(4), bytes(4))], {}),
        ("inner headers", EOPNOTSUPP, [flow_spec(ETH | INNER, bytes(16), bytes(16))], {}),
        ("a tag on completions", EOPNOTSUPP, [flow_spec(TAG, bytes(4), bytes(4))], {}),
        ("dropping", EOPNOTSUPP, [flow_spec(DROP, b"", b"")], {}),
        ("both versions of IP", EINVAL, [ipv4_spec(), ipv6_spec()], {}),
        ("a layer twice", EINVAL, [eth_spec(), eth_spec()], {}),
        ("both protocols", EINVAL, [port_spec(TCP, dst=1), some_port], {}),
        ("a sniffer with specifications", EINVAL, [eth_spec()], {"kind": SNIFFER}),
        ("a default with specifications", EINVAL, [some_port], {"kind": ALL_DEFAULT}),
        ("a sniffer that doesn't trap", EINVAL, [], {"kind": SNIFFER, "flags": DONT_TRAP}),
        ("a default that doesn't trap", EINVAL, [], {"kind": MC_DEFAULT, "flags": DONT_TRAP}),
        ("a kind that there isn't", EINVAL, [], {"kind": 4}),
    ):
        equal(errno_of(lambda: port.rule(*specs, **options)), errno, why)
    equal(errno_of(lambda: datagram.rule(eth_spec())), EINVAL, "a datagram QP")
    flow = port.rule(eth_spec())
    equal(errno_of(lambda: destroy_flow(port.context, flow + 1000)), ENOENT, "destroying what isn't there")
    equal(code_of(port.qp.close), EBUSY, "destroying a QP with rules")


@case("flow: as many rules as the limit of a user, and ENOMEM")
def _():
    port = Port()
    for number in range(OF_USER - 1):
        port.rule(eth_spec(ether_type=0x6000 + number), priority=number % 7)
    port.rule(eth_spec(ether_type=0x88B5), priority=8)
    equal(errno_of(lambda: port.rule(eth_spec())), ENOMEM, "one rule more")
    frame = padded(ethernet())
    WIRE.send(frame)
    port.gets(frame)
    port.drop(port.flows[5])
    port.rule(kind=SNIFFER)


def hold():
    """Keeps rules of all types on two QPs until standard input ends."""
    first = Port()
    second = Port(beside=first)
    for port in first, second:
        port.rule(eth_spec())
        port.rule(kind=SNIFFER)
        port.rule(kind=ALL_DEFAULT)
    print("attached", flush=True)
    sys.stdin.read()


def fill(count):
    """Creates rules until the kernel refuses one, and keeps them until standard input ends."""
    port, code = Port(receives=0), 0
    while not code:
        code = errno_of(lambda: port.rule(eth_spec(ether_type=0x6000)))
    equal((len(port.flows), code), (count, ENOMEM), "rules, and the errno of one more")
    print("attached", flush=True)
    sys.stdin.read()


def overdrawn():
    """Fails unless eight QPs receive all frames while softirqs have used up their CPU time, and
    further QPs miss frames."""
    first = Port()
    ports_ = [first] + [Port(beside=first) for _ in range(11)]
    for port in ports_:
        port.rule(kind=SNIFFER)
    before, rounds = counter("drop_overflow"), 0
    # The number of frames until CPU time is used up depends on the speed of the machine, and on
    # the other work of softirqs.
    while counter("drop_overflow") == before and rounds < 100:
        frames = [padded(ethernet()) for _ in range(50)]
        for frame in frames:
            WIRE.send(frame)
        for port in ports_[:8]:
            port.gets(*frames)
        for port in ports_[8:]:
            while port.frame(seconds=0.02) is not None:
                pass
        rounds += 1
    print(f"# {rounds} times 50 frames")
    equal(counter("drop_overflow") > before, True, "further QPs miss frames")


if __name__ == "__main__":
    match sys.argv[3:]:
        case ["hold"]:
            sys.exit(hold())
        case ["fill", count]:
            sys.exit(fill(int(count)))
        case ["overdrawn"]:
            sys.exit(overdrawn())
    sys.exit(main())
