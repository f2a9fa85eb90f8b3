#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests raw packet QPs that receive frames by flow steering rules.

  flow.py DEVICE 0 [hold | fill COUNT | softirq-debt]

DEVICE is a link on eth0 of namespace h1. A veth pair connects it to eth0 of namespace h2, from
which AF_PACKET sockets send frames. Stock librxe has no call that creates flow rules, so this
script creates them by raw uverbs commands. Without a further argument it runs the test cases. The
second argument is the GID index that `pairs` expects; raw packet QPs don't use it.

  hold          creates normal, sniffer and all-default rules, and keeps them until standard
                input ends
  fill          creates rules until the kernel refuses one, fails unless there are COUNT of them,
                and keeps them until standard input ends
  softirq-debt  tests that QPs miss frames if the module's softirqs have little CPU time
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
from cpu_time import runs_queued_during
from flow_frames import (
    GROUP_MAC, HOST1, HOST2, LOCAL, OTHER_MAC, PEER, ethernet, ipv4, ipv6, ports, sent, socket_in, unique_frame,
)
from flow_specs import (
    DROP, ETH, GRE, INNER, IPV4, MPLS, TAG, TCP, UDP, VXLAN, eth_spec, ipv4_spec, ipv6_spec, port_spec,
)
from pairs import (
    DEVICE, LOCAL_WRITE, Buffer, counter, equal, errno_of_pyverbs, free_handle, libc, main,
    wait_for_state, wait_until_equal,
)
from uverbs import (
    ALL_DEFAULT, ALLOW_LOOPBACK, DONT_TRAP, EGRESS, MC_DEFAULT, NORMAL, SNIFFER, create_flow, destroy_flow,
    errno_of, flow_spec,
)

ENOENT, ENOMEM, EBUSY, EINVAL, EOPNOTSUPP, EINPROGRESS = 2, 12, 16, 22, 95, 115
# Bytes of a receive buffer, more than a frame; bytes of an Ethernet header.
BUFFER_SIZE, ETH_HEADER = 2048, 14
# Maximum number of rules of a user (limits.rs: OF_USER.flows).
MAX_RULES = 512


def case(name):
    """Registers a test case. Closes the case's QPs after the case, because rules that remain would
    match the frames of later cases."""
    def register(function):
        def run():
            try:
                function()
            finally:
                while open_qps:
                    open_qps.pop().close()
        return pairs.case(name)(run)
    return register


open_qps = []


class RawQp:
    """A raw packet QP with posted receives, and its flow rules."""

    def __init__(self, receives=64, buffer_size=BUFFER_SIZE, beside=None, shared=False,
                 kind=e.IBV_QPT_RAW_PACKET, access=0):
        self.context = beside.context if beside else Context(name=DEVICE)
        self.pd = PD(self.context)
        # Two CQs: frames of other senders may complete receives before a send completes.
        self.cq, self.send_cq = CQ(self.context, 512), CQ(self.context, 64)
        self.buffer_size, self.slots, self.flows = buffer_size, max(receives, 1), []
        self.buffer = Buffer(self.slots * buffer_size)
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
        open_qps.append(self)

    def post(self, slot):
        # Two SGEs. The first one ends in the middle of the frame's headers.
        start_address = self.buffer.address + slot * self.buffer_size
        pieces = [SGE(start_address, 20, self.mr.lkey),
                  SGE(start_address + 20, self.buffer_size - 20, self.mr.lkey)]
        (self.srq.post_recv if self.srq else self.qp.post_recv)(RecvWR(wr_id=slot, num_sge=2, sg=pieces))

    def add_rule(self, *specs, kind=NORMAL, priority=0, flags=0):
        flow = create_flow(self.context, self.handle, kind, priority, flags, specs)
        self.flows.append(flow)
        return flow

    def remove_rule(self, flow):
        destroy_flow(self.context, flow)
        self.flows.remove(flow)

    def close(self):
        for flow in list(self.flows):
            self.remove_rule(flow)
        self.qp.close()

    def next_completion(self, seconds=30, cq=None):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            count, completions = (cq or self.cq).poll(1)
            if count:
                return completions[0]
        return None

    def next_frame(self, seconds=30):
        """Returns the next received frame, or None after `seconds`. Reposts its receive."""
        wc = self.next_completion(seconds)
        if wc is None:
            return None
        equal((wc.status, wc.opcode), (e.IBV_WC_SUCCESS, e.IBV_WC_RECV), "status and opcode of a receive")
        frame = self.buffer.read(wc.byte_len, wc.wr_id * self.buffer_size)
        self.post(wc.wr_id)
        return frame

    def next_test_frame(self):
        """Returns the next frame that a test sent. Skips the hosts' own traffic."""
        while (frame := self.next_frame()) is not None and frame not in sent:
            pass
        return frame

    def expect(self, *frames, what="frames"):
        equal([self.next_test_frame() for _ in frames], list(frames), what)

    def expect_no_other(self):
        """Fails if another frame of a test arrives. Frames stay in order, so all earlier frames
        have arrived before the frame that this function sends."""
        last = unique_frame(ethernet(0x88B6))
        flow = self.add_rule(eth_spec(ether_type=0x88B6))
        PEER.send(last)
        self.expect(last, what="the last frame")
        self.remove_rule(flow)

    def send(self, frame):
        sent.add(frame)
        source = Buffer(len(frame))
        source.fill(frame)
        mr = MR(self.pd, len(frame), LOCAL_WRITE, address=source.address)
        self.qp.post_send(SendWR(wr_id=77, num_sge=1, sg=[SGE(source.address, len(frame), mr.lkey)]))
        wc = self.next_completion(cq=self.send_cq)
        equal((wc.wr_id, wc.status), (77, e.IBV_WC_SUCCESS), "completion of a send")
        mr.close()


def check_rule(specs, matching, others):
    """Fails unless a QP whose rule has `specs` receives the `matching` frames and no `others`."""
    raw_qp = RawQp()
    raw_qp.add_rule(*specs)
    for match, other in zip(matching, list(others) + [None] * len(matching)):
        if other is not None:
            PEER.send(other)
        PEER.send(match)
    for other in others[len(matching):]:
        PEER.send(other)
    raw_qp.expect(*matching)
    raw_qp.expect_no_other()
    raw_qp.close()


@case("flow: a rule compares the masked bits of MAC addresses and EtherType")
def _():
    frame = unique_frame(ethernet())
    others = [unique_frame(ethernet(dst=OTHER_MAC)), unique_frame(ethernet(src=OTHER_MAC)),
              unique_frame(ethernet(0x88B7))]
    check_rule([eth_spec(LOCAL.mac, PEER.mac, 0x88B5)], [frame, unique_frame(ethernet(tags=[5]))],
               others)
    spec = flow_spec(ETH, b"\1" + bytes(15), b"\1" + bytes(15))
    groups = [unique_frame(ethernet(dst=GROUP_MAC)), unique_frame(ethernet(dst=b"\xff" * 6))]
    check_rule([spec], groups, [frame])


@case("flow: frames are received with their VLAN tags, and a rule compares the outer tag")
def _():
    matching = [unique_frame(ethernet(tags=[0x2007])), unique_frame(ethernet(tags=[7, 9])),
                unique_frame(ethernet(0x800, tags=[7]), ipv4())]
    others = [unique_frame(ethernet()), unique_frame(ethernet(tags=[8])),
              unique_frame(ethernet(tags=[9, 7]))]
    check_rule([eth_spec(vlan_tag=7, vlan_mask=0xFFF)], matching, others)


@case("flow: a rule compares each field of the IPv4 header")
def _():
    def frame(**fields):
        return unique_frame(ethernet(0x800), ipv4(**fields), ports())
    check_rule([ipv4_spec(src=HOST2, dst="10.77.9.9")], [frame(dst="10.77.9.9")],
               [frame(), frame(src=HOST1)])
    v6_frame = unique_frame(ethernet(0x86DD), ipv6())
    check_rule([ipv4_spec(protocol=6, tos=4)], [frame(protocol=6, tos=4)],
               [frame(tos=4), frame(protocol=6), v6_frame])
    check_rule([ipv4_spec(ttl=3, flags=2)], [frame(ttl=3, flags=2)], [frame(ttl=3), frame(flags=2)])
    with_options = frame(options=b"\1" * 40, src="10.77.9.9")
    check_rule([ipv4_spec(src="10.77.9.9")], [with_options],
               [frame(), unique_frame(ethernet(0x801), ipv4(src="10.77.9.9"))])


@case("flow: a rule compares each field of the IPv6 header")
def _():
    def frame(**fields):
        return unique_frame(ethernet(0x86DD), ipv6(**fields), ports())
    check_rule([ipv6_spec(src="fd77::2", dst="fd77::9")], [frame(dst="fd77::9")],
               [frame(), frame(src="fd77::9")])
    matching = frame(label=0xABCDE, next_header=6, traffic_class=8, hop_limit=2)
    others = [frame(label=0xABCDE, traffic_class=8, hop_limit=2), frame(label=0xABCDE, next_header=6, hop_limit=2)]
    others += [frame(next_header=6, traffic_class=8, hop_limit=2),
               unique_frame(ethernet(0x800), ipv4(6))]
    check_rule([ipv6_spec(label=0xABCDE, next_header=6, traffic_class=8, hop_limit=2)], [matching],
               others)


@case("flow: a rule compares TCP and UDP ports, behind options, but not in later fragments")
def _():
    def v4_frame(protocol, *parts, **fields):
        return unique_frame(ethernet(0x800), ipv4(protocol, **fields), *parts)

    def v6_frame(protocol, *parts):
        return unique_frame(ethernet(0x86DD), ipv6(protocol), *parts)
    wanted, other = ports(1000, 4000), ports(1000, 4001)
    matching = [v4_frame(17, wanted), v6_frame(17, wanted), v4_frame(17, wanted, options=b"\1" * 8),
                v6_frame(60, b"\x11" + bytes(7), wanted)]
    others = [v4_frame(6, wanted), v6_frame(17, other), v4_frame(17, wanted, offset=3),
              v6_frame(59, wanted)]
    check_rule([port_spec(UDP, dst=4000)], matching, others)
    check_rule([port_spec(TCP, dst=4000, src=1000)], [v4_frame(6, wanted), v6_frame(6, wanted)],
               [v4_frame(17, wanted), v6_frame(6, ports(4000, 1000))])
    whole = [eth_spec(ether_type=0x800), ipv4_spec(src=HOST2), port_spec(UDP, dst=4000)]
    check_rule(whole, [v4_frame(17, wanted)],
               [v6_frame(17, wanted), v4_frame(17, wanted, src=HOST1), v4_frame(17, other)])


@case("flow: the rule of the first priority takes a frame unless it has DONT_TRAP")
def _():
    first = RawQp()
    second, third = RawQp(beside=first), RawQp(beside=first)
    second.add_rule(eth_spec(ether_type=0x88B5), priority=5)
    third.add_rule(eth_spec(), priority=9)
    trapping_rule = first.add_rule(eth_spec(LOCAL.mac), priority=3)
    frames = [unique_frame(ethernet()) for _ in range(6)]
    PEER.send(frames[0])
    first.expect(frames[0])
    first.remove_rule(trapping_rule)
    dont_trap_rule = first.add_rule(eth_spec(LOCAL.mac), priority=3, flags=DONT_TRAP)
    PEER.send(frames[1])
    for raw_qp in first, second:
        raw_qp.expect(frames[1])
    first.remove_rule(dont_trap_rule)
    PEER.send(frames[2])
    second.expect(frames[2])
    second.remove_rule(second.flows[0])
    PEER.send(frames[3])
    third.expect(frames[3])
    # QPs that have the same rule at the same priority all receive the frame.
    first.add_rule(eth_spec(), priority=9)
    for frame in unique_frame(ethernet()), unique_frame(ethernet(dst=GROUP_MAC)):
        PEER.send(frame)
        for raw_qp in first, third:
            raw_qp.expect(frame, what="a shared frame")
    for raw_qp in first, second, third:
        raw_qp.expect_no_other()


@case("flow: a QP receives a frame once although several of its rules match")
def _():
    first = RawQp()
    second = RawQp(beside=first)
    for number in range(3):
        first.add_rule(kind=SNIFFER)
        for raw_qp in second, first:
            raw_qp.add_rule(eth_spec(ether_type=0x88B5), priority=number, flags=DONT_TRAP)
    # The driver gives each QP with rules the lowest free number. The third QP must not get the
    # number of a QP that has lost only one of its rules.
    first.remove_rule(first.flows[0])
    third = RawQp(beside=first)
    third.add_rule(eth_spec(LOCAL.mac, ether_type=0x88B5), flags=DONT_TRAP)
    frames = [unique_frame(ethernet()) for _ in range(3)]
    for frame in frames:
        PEER.send(frame)
    for raw_qp in first, second, third:
        raw_qp.expect(*frames)
        raw_qp.expect_no_other()


@case("flow: default rules receive the frames that no other rule takes")
def _():
    normal = RawQp()
    everything, groups = RawQp(beside=normal), RawQp(beside=normal)
    everything.add_rule(kind=ALL_DEFAULT)
    groups.add_rule(kind=MC_DEFAULT)
    normal.add_rule(eth_spec(ether_type=0x88B7))
    normal.add_rule(eth_spec(ether_type=0x88B8), flags=DONT_TRAP)
    trapped, not_trapped = unique_frame(ethernet(0x88B7)), unique_frame(ethernet(0x88B8))
    single, group = unique_frame(ethernet()), unique_frame(ethernet(dst=GROUP_MAC))
    for frame in trapped, not_trapped, single, group:
        PEER.send(frame)
    normal.expect(trapped, not_trapped)
    everything.expect(not_trapped, single, group)
    groups.expect(group)


@case("flow: sniffer rules receive all received and sent frames")
def _():
    sniffer = RawQp()
    normal = RawQp(beside=sniffer)
    sniffer.add_rule(kind=SNIFFER)
    normal.add_rule(eth_spec())
    received, sent, raw = (unique_frame(ethernet()) for _ in range(3))
    # Any number of QPs may receive a frame, so softirqs must not run the QPs' engines for it.
    equal(runs_queued_during(lambda: (PEER.send(received), sniffer.expect(received))), 0,
          "runs queued for softirqs")
    normal.expect(received)
    LOCAL.send(sent)
    sniffer.expect(sent)
    normal.send(raw)
    sniffer.expect(raw)
    normal.expect_no_other()


@case("flow: a sent frame is looped to rules of other QPs, and to own ones with ALLOW_LOOPBACK")
def _():
    sender = RawQp()
    other = RawQp(beside=sender)
    far = socket_in("h2", socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88B5))
    far.bind(("eth0", 0x88B5))
    far.settimeout(30)
    sender.add_rule(eth_spec(ether_type=0x88B5))
    other.add_rule(eth_spec(ether_type=0x88B5), priority=1)
    frames = [ethernet(dst=PEER.mac, src=LOCAL.mac) + random.randbytes(length)
              for length in (50, 114, 115, 1500)]
    for frame in frames:
        sender.send(frame)
        equal(far.recv(4096), frame, "the frame on the wire")
    other.expect(*frames)
    sender.add_rule(eth_spec(dst=PEER.mac), flags=ALLOW_LOOPBACK)
    sender.send(frames[1])
    wc = sender.next_completion()
    equal((wc.status, wc.byte_len), (e.IBV_WC_SUCCESS, len(frames[1])), "its own frame")
    for raw_qp in sender, other:
        raw_qp.expect_no_other()


@case("flow: the host still receives its packets, and rules receive them unmerged with checksums")
def _():
    raw_qp = RawQp(receives=200)
    raw_qp.add_rule(eth_spec(dst=LOCAL.mac), ipv4_spec(src=HOST2))
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
        frame = raw_qp.next_frame(seconds=30)
        equal(frame is not None, True, "a frame before all of the stream has arrived")
        equal(len(frame) <= ETH_HEADER + 1500, True, f"{len(frame)} bytes in a frame")
        packet = frame[ETH_HEADER:ETH_HEADER + struct.unpack_from("!H", frame, 16)[0]]
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
        position, data = (sequence - start) & 0xFFFFFFFF, tcp[offset:]
        stream[position:position + len(data)] = data


@case("flow: SCTP frames are received with their checksum")
def _():
    raw_qp = RawQp()
    raw_qp.add_rule(eth_spec(dst=LOCAL.mac), ipv4_spec(src=HOST2))
    client = socket_in("h2", socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_SCTP)
    client.setblocking(False)
    equal(client.connect_ex((HOST1, 5001)), EINPROGRESS, "connect()")
    while ((frame := raw_qp.next_frame(seconds=30)) is not None
           and frame[ETH_HEADER + 9] != socket.IPPROTO_SCTP):
        pass
    equal(frame is not None, True, "a frame of SCTP")
    sctp = frame[ETH_HEADER + 20:ETH_HEADER + struct.unpack_from("!H", frame, ETH_HEADER + 2)[0]]
    equal(struct.unpack_from("<I", sctp, 8)[0], forge.crc32c(sctp[:8] + bytes(4) + sctp[12:]), "checksum")


@case("flow: frames without a receive are dropped, and a frame that is too long is an error")
def _():
    raw_qp = RawQp(receives=0)
    raw_qp.add_rule(eth_spec(ether_type=0x88B5))
    before = counter("drop_no_receive")
    for _ in range(5):
        PEER.send(unique_frame(ethernet()))
    wait_until_equal(lambda: counter("drop_no_receive") - before, 5, "drops")
    raw_qp.post(0)
    frame = unique_frame(ethernet())
    PEER.send(frame)
    raw_qp.expect(frame)
    raw_qp.close()
    raw_qp = RawQp(receives=2, buffer_size=100)
    raw_qp.add_rule(eth_spec(ether_type=0x88B5))
    frame = ethernet() + random.randbytes(100 - ETH_HEADER)
    PEER.send(frame)
    raw_qp.expect(frame, what="a frame that just fits")
    PEER.send(frame + b"!")
    equal(raw_qp.next_completion().status, e.IBV_WC_LOC_LEN_ERR,
          "status of a frame that is too long")
    equal(raw_qp.next_completion().status, e.IBV_WC_WR_FLUSH_ERR, "status of the other receive")
    wait_for_state(raw_qp.qp, e.IBV_QPS_ERR)


@case("flow: a QP receives frames by a shared receive queue")
def _():
    raw_qp = RawQp(shared=True, receives=4)
    raw_qp.add_rule(eth_spec(ether_type=0x88B5))
    frames = [unique_frame(ethernet()) for _ in range(9)]
    for frame in frames:
        PEER.send(frame)
        raw_qp.expect(frame)


@case("flow: on-demand memory receives frames, and unmapped memory is a local protection error")
def _():
    raw_qp = RawQp(access=e.IBV_ACCESS_ON_DEMAND)
    raw_qp.add_rule(eth_spec(ether_type=0x88B5))
    frames = [unique_frame(ethernet()) for _ in range(20)]
    for frame in frames:
        PEER.send(frame)
    raw_qp.expect(*frames)
    libc.munmap(raw_qp.buffer.address, raw_qp.buffer.length)
    for frame in frames[:3]:
        PEER.send(frame)
    equal(raw_qp.next_completion().status, e.IBV_WC_LOC_PROT_ERR,
          "status of a frame for memory that is gone")
    equal(raw_qp.next_completion().status, e.IBV_WC_WR_FLUSH_ERR, "status of the next receive")
    wait_for_state(raw_qp.qp, e.IBV_QPS_ERR)


def set_mtu(mtu):
    for namespace in "h1", "h2":
        subprocess.run(["ip", "-n", namespace, "link", "set", "eth0", "mtu", str(mtu)], check=True)


@case("flow: on-demand memory at odd addresses receives frames of several pages")
def _():
    set_mtu(9000)
    try:
        raw_qp = RawQp(access=e.IBV_ACCESS_ON_DEMAND, buffer_size=9001 + ETH_HEADER)
        raw_qp.add_rule(eth_spec(ether_type=0x88B5))
        frames = [ethernet() + random.randbytes(length) for length in (4082, 4083, 8192, 9000) for _ in range(10)]
        for frame in frames:
            PEER.send(frame)
            raw_qp.expect(frame)
    finally:
        set_mtu(1500)


def mutated_frame(rng):
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
    return (ethernet(kind, dst=rng.choice((LOCAL.mac, GROUP_MAC, OTHER_MAC)))
            + bytes(body[:rng.randint(least, len(body))]))


@case("flow: sniffer rules receive mutated and truncated frames unchanged")
def _():
    rng = random.Random(4711)
    sniffer = RawQp(receives=400)
    sniffer.add_rule(kind=SNIFFER)
    raw_qps = [RawQp(beside=sniffer) for _ in range(4)]
    for raw_qp, specs in zip(raw_qps, (
        [ipv4_spec(src=HOST2)], [ipv6_spec(src="fd77::2")],
        [port_spec(UDP, dst=2000)], [eth_spec(vlan_tag=7)],
    )):
        raw_qp.add_rule(*specs, flags=DONT_TRAP)
    for _ in range(10):
        frames = [mutated_frame(rng) for _ in range(30)]
        for frame in frames:
            PEER.send(frame)
        sniffer.expect(*frames, what="the frames sniffed")
    for raw_qp in raw_qps:
        while raw_qp.next_frame(seconds=0.05) is not None:
            pass


@case("flow: invalid rules and invalid deletions fail with the right errno")
def _():
    raw_qp, datagram = RawQp(receives=0), RawQp(receives=0, kind=e.IBV_QPT_UD)
    some_port = port_spec(UDP, dst=1)
    for label, errno, specs, options in (
        ("an EGRESS rule", EOPNOTSUPP, [eth_spec()], {"flags": EGRESS}),
        ("an undefined IPv4 flag", EOPNOTSUPP, [flow_spec(IPV4, bytes(12), bytes(11) + b"\1")], {}),
        ("VXLAN", EOPNOTSUPP, [flow_spec(VXLAN, bytes(4), bytes(4))], {}),
        ("GRE", EOPNOTSUPP, [flow_spec(GRE, bytes(8), bytes(8))], {}),
        ("MPLS", EOPNOTSUPP, [flow_spec(MPLS, bytes(4), bytes(4))], {}),
        ("inner headers", EOPNOTSUPP, [flow_spec(ETH | INNER, bytes(16), bytes(16))], {}),
        ("a tag on completions", EOPNOTSUPP, [flow_spec(TAG, bytes(4), bytes(4))], {}),
        ("an action to drop", EOPNOTSUPP, [flow_spec(DROP, b"", b"")], {}),
        ("both versions of IP", EINVAL, [ipv4_spec(), ipv6_spec()], {}),
        ("a layer twice", EINVAL, [eth_spec(), eth_spec()], {}),
        ("TCP and UDP ports", EINVAL, [port_spec(TCP, dst=1), some_port], {}),
        ("a sniffer with specifications", EINVAL, [eth_spec()], {"kind": SNIFFER}),
        ("a default with specifications", EINVAL, [some_port], {"kind": ALL_DEFAULT}),
        ("a sniffer with DONT_TRAP", EINVAL, [], {"kind": SNIFFER, "flags": DONT_TRAP}),
        ("a default with DONT_TRAP", EINVAL, [], {"kind": MC_DEFAULT, "flags": DONT_TRAP}),
        ("an unknown rule type", EINVAL, [], {"kind": 4}),
    ):
        equal(errno_of(lambda: raw_qp.add_rule(*specs, **options)), errno, label)
    equal(errno_of(lambda: datagram.add_rule(eth_spec())), EINVAL, "a rule of a UD QP")
    flow = raw_qp.add_rule(eth_spec())
    equal(errno_of(lambda: destroy_flow(raw_qp.context, flow + 1000)), ENOENT,
          "destroying an unknown rule")
    equal(errno_of_pyverbs(raw_qp.qp.close), EBUSY, "destroying a QP with rules")


@case("flow: a user may have 512 rules, and a further one fails with ENOMEM")
def _():
    raw_qp = RawQp()
    for number in range(MAX_RULES - 1):
        raw_qp.add_rule(eth_spec(ether_type=0x6000 + number), priority=number % 7)
    raw_qp.add_rule(eth_spec(ether_type=0x88B5), priority=8)
    equal(errno_of(lambda: raw_qp.add_rule(eth_spec())), ENOMEM, "a further rule")
    frame = unique_frame(ethernet())
    PEER.send(frame)
    raw_qp.expect(frame)
    raw_qp.remove_rule(raw_qp.flows[5])
    raw_qp.add_rule(kind=SNIFFER)


def hold():
    """Keeps normal, sniffer and all-default rules on two QPs until standard input ends."""
    first = RawQp()
    second = RawQp(beside=first)
    for raw_qp in first, second:
        raw_qp.add_rule(eth_spec())
        raw_qp.add_rule(kind=SNIFFER)
        raw_qp.add_rule(kind=ALL_DEFAULT)
    print("attached", flush=True)
    sys.stdin.read()


def fill(count):
    """Creates rules until the kernel refuses one, and keeps them until standard input ends."""
    raw_qp, code = RawQp(receives=0), 0
    while not code:
        code = errno_of(lambda: raw_qp.add_rule(eth_spec(ether_type=0x6000)))
    equal((len(raw_qp.flows), code), (count, ENOMEM), "rules, and the errno of one more")
    print("attached", flush=True)
    sys.stdin.read()


def softirq_debt():
    """Fails unless eight QPs receive all frames while softirqs have used up their CPU time, and
    further QPs miss frames."""
    first = RawQp()
    raw_qps = [first] + [RawQp(beside=first) for _ in range(11)]
    for raw_qp in raw_qps:
        raw_qp.add_rule(kind=SNIFFER)
    before, rounds = counter("drop_overflow"), 0
    # The number of frames until CPU time is used up depends on the speed of the machine, and on
    # the other work of softirqs.
    while counter("drop_overflow") == before and rounds < 100:
        frames = [unique_frame(ethernet()) for _ in range(50)]
        for frame in frames:
            PEER.send(frame)
        for raw_qp in raw_qps[:8]:
            raw_qp.expect(*frames)
        for raw_qp in raw_qps[8:]:
            while raw_qp.next_frame(seconds=0.02) is not None:
                pass
        rounds += 1
    print(f"# {rounds} times 50 frames")
    equal(counter("drop_overflow") > before, True, "the further QPs miss frames")


if __name__ == "__main__":
    match sys.argv[3:]:
        case ["hold"]:
            sys.exit(hold())
        case ["fill", count]:
            sys.exit(fill(int(count)))
        case ["softirq-debt"]:
            sys.exit(softirq_debt())
    sys.exit(main())
