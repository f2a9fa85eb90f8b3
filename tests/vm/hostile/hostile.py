#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests that hostile packets do not disturb the transfers of honest QPs.

    hostile.py DEVICE GID-INDEX PEER-DEVICE PEER-GID-INDEX

DEVICE is on eth0 of host h1, PEER-DEVICE on eth0 of host h2. Both hosts have eth1, and vlan5 on
eth0. An honest process transfers data between the devices by RC, UC and UD QPs, compares it, and
counts its rounds. The attacker floods h1 with packets from h2. It knows the QPNs and keys of the
QPs of h1 and the addresses of both hosts, but not the PSNs: it uses PSNs far from the live ones.
Except for replayed packets and the values that it knows, its packets depend on SEED only.

RoCE cannot detect a sender that uses a peer's addresses. A datagram with the right Q_Key and a UC
packet are received, and so is an RC packet with a PSN in the window. This test sends no such
packets.
"""

import contextlib
import mmap
import os
import random
import socket
import struct
import subprocess
import sys
import time

from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
import pyverbs.enums as e
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

import forge
from forge import RC, UC, UD, XRC, PacketSocket, Socket
from pairs import (
    ALL, IS_DEBUG_KERNEL, PAGE, LIMIT_SECONDS, Buffer, case, equal, main, next_completion, pattern, register, state,
)

GID_INDEX, PEER_DEVICE, PEER_GID_INDEX = int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
DEVICE = sys.argv[1]
# Addresses of eth0 of h1, of eth0 of h2, and of no host.
HOST1, HOST2, STRANGER = "10.77.0.1", "10.77.0.2", "10.77.0.9"
# Addresses of eth1 and of vlan5 of h1.
ETH1_ADDRESS, VLAN_ADDRESS = "10.78.0.1", "10.79.0.1"
SEED = int(os.environ.get("SEED") or random.randrange(1 << 32))
SECONDS = float(os.environ.get("SECONDS_EACH", "4"))
QKEY, DEPTH, DISTINCT_PACKETS, GRH = 0x11223344, 16, 3000, 40
# First PSN of the honest QPs, which do not send many packets, and the range of the attacker's PSNs.
FIRST_PSN, SAFE_PSNS = 0x100000, range(0x400000, 0xF00000)
CLOSED_PORT, ETH_P_ALL, REPLAYED_PACKETS = 4790, 3, 300
# Minimum length in bytes of a truncated packet behind its UDP header: the computation of the ICRC
# masks byte 4 of the BTH (udp_payload_with_icrc() of forge.py).
MIN_BODY = 5
# Least ratio of the honest rounds a second during a flood of the RoCE port to those during a flood
# of a closed port. The expected ratio is a half. But on a busy test host, either rate may be
# measured several times too low.
MIN_RATIO = 0.05


class Queue:
    """A QP of the honest process with its memory. The QPs use the first part. No QP uses the
    guarded part, to which the attacker's packets refer."""

    GUARDED = DEPTH * PAGE

    def __init__(self, device, gid_index, kind):
        self.context, self.gid_index, self.kind = Context(name=device), gid_index, kind
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 4 * DEPTH)
        cap = QPCap(max_send_wr=DEPTH, max_recv_wr=DEPTH, max_send_sge=1, max_recv_sge=1)
        self.qp = QP(self.pd, QPInitAttr(qp_type=kind, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1))
        self.buffer = Buffer(2 * DEPTH * PAGE)
        self.region = register(self.pd, self.buffer)
        self.buffer.fill(pattern(self.GUARDED), self.GUARDED)
        self.handle = None

    def connect(self, peer):
        attr = QPAttr(port_num=1)
        route = GlobalRoute(dgid=peer.context.query_gid(1, peer.gid_index), sgid_index=self.gid_index)
        if self.kind == e.IBV_QPT_UD:
            attr.qkey = QKEY
            self.qp.to_rts(attr)
            self.handle = AH(self.pd, attr=AHAttr(gr=route, is_global=1, port_num=1))
            return
        attr.qp_access_flags = ALL
        attr.path_mtu = e.IBV_MTU_1024
        attr.dest_qp_num = peer.qp.qp_num
        attr.rq_psn = attr.sq_psn = FIRST_PSN
        attr.max_dest_rd_atomic = attr.max_rd_atomic = 4
        # Timeout 17 is half a second. An emulated CPU may stop for longer than seven retries with
        # perftest's timeout of 67 ms take.
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 17, 7, 7
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
        self.qp.to_rts(attr)

    def receive(self, slot):
        sge = SGE(self.buffer.address + slot * PAGE, PAGE, self.region.lkey)
        self.qp.post_recv(RecvWR(wr_id=slot, num_sge=1, sg=[sge]))

    def post(self, opcode, length, peer=None, to=None):
        sge = SGE(self.buffer.address, length, self.region.lkey)
        wr = SendWR(wr_id=0, opcode=opcode, num_sge=1, sg=[sge])
        if peer:
            wr.set_wr_rdma(peer.region.rkey, peer.buffer.address)
        if self.handle:
            wr.set_wr_ud(self.handle, to.qp.qp_num, QKEY)
        self.qp.post_send(wr)

    def completion(self):
        completion = next_completion(self.cq, 60)
        equal(completion.status, e.IBV_WC_SUCCESS, "status")
        return completion

    def check_guarded_part(self):
        guarded = self.buffer.read(self.GUARDED, self.GUARDED)
        assert guarded == pattern(self.GUARDED), "the guarded part of the memory was written"


def connected_pair(kind):
    ends = Queue(DEVICE, GID_INDEX, kind), Queue(PEER_DEVICE, PEER_GID_INDEX, kind)
    ends[0].connect(ends[1])
    ends[1].connect(ends[0])
    return ends


def check_reliable(source, target, data):
    """Makes one WRITE, READ and SEND of the data each, and compares the result."""
    source.buffer.fill(data)
    source.post(e.IBV_WR_RDMA_WRITE, len(data), target)
    source.completion()
    equal(target.buffer.read(len(data)), data, "data of a WRITE")
    source.buffer.fill(bytes(len(data)))
    source.post(e.IBV_WR_RDMA_READ, len(data), target)
    source.completion()
    equal(source.buffer.read(len(data)), data, "data of a READ")
    target.receive(1)
    source.post(e.IBV_WR_SEND, len(data))
    source.completion()
    equal(target.completion().wr_id, 1, "wr_id of the receive")
    equal(target.buffer.read(len(data), PAGE), data, "data of a SEND")


def check_unreliable(source, target, data, resent):
    """Sends the data by SEND until it is received, again after each second. A received message must
    be the data, or an element of `resent`, which holds all data that was sent repeatedly."""
    skip = GRH if source.kind == e.IBV_QPT_UD else 0
    source.buffer.fill(data)
    for attempt in range(20):
        if attempt:
            resent.add(data)
        source.post(e.IBV_WR_SEND, len(data), to=target)
        source.completion()
        end = time.monotonic() + 1
        while time.monotonic() < end:
            count, completions = target.cq.poll(1)
            if not count:
                continue
            equal(completions[0].status, e.IBV_WC_SUCCESS, "status of a receive")
            slot = completions[0].wr_id
            got = target.buffer.read(completions[0].byte_len - skip, slot * PAGE + skip)
            target.receive(slot)
            assert got == data or got in resent, f"data that was not sent: {got[:40]!r}"
            if got == data:
                return
    raise AssertionError("no message arrives, although it was sent twenty times")


def run_honest_process():
    """Runs the honest process, which never ends. It transfers data between the devices, compares
    it, and counts its rounds in shared memory."""
    with open(os.environ["PROGRESS"], "r+b") as file:
        shared = mmap.mmap(file.fileno(), PAGE)
    rc, uc, ud = (connected_pair(kind) for kind in (e.IBV_QPT_RC, e.IBV_QPT_UC, e.IBV_QPT_UD))
    for ends in (uc, ud):
        for slot in range(1, DEPTH):
            ends[0].receive(slot)
    for victim in (rc[0], uc[0], ud[0]):
        print(victim.qp.qp_num, victim.region.rkey, victim.buffer.address + Queue.GUARDED, end=" ")
    print(flush=True)
    resent = {uc: set(), ud: set()}
    for count in range(1, 1 << 40):
        data = struct.pack("<Q", count * 0x9E3779B97F4A7C15 & (1 << 64) - 1) * 300
        for ends in (rc, rc[::-1]):
            check_reliable(*ends, data)
        for ends in (uc, ud):
            check_unreliable(ends[1], ends[0], data[:1000], resent[ends])
        for victim in (*rc, *uc, *ud):
            victim.check_guarded_part()
            equal(state(victim.qp), e.IBV_QPS_RTS, "state")
        shared[:8] = struct.pack("<Q", count)


class HonestProcess:
    """The honest process, as the test's main process sees it."""

    def __init__(self):
        path = "/dev/shm/honest"
        with open(path, "wb") as file:
            file.truncate(PAGE)
        with open(path, "r+b") as file:
            self.shared = mmap.mmap(file.fileno(), PAGE)
        command = [sys.executable, __file__, *sys.argv[1:5], "work"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=os.environ | {"PROGRESS": path})
        line = self.process.stdout.readline()
        if len(line.split()) != 9:
            output = line + self.process.stdout.read()
            raise AssertionError("the honest process does not begin: " + output)
        words = [int(word) for word in line.split()]
        # Of each QP of h1: the QPN, the rkey and the address of the guarded part.
        self.rc, self.uc, self.ud = words[0:3], words[3:6], words[6:9]

    def rounds(self):
        if self.process.poll() is not None:
            raise AssertionError("the honest process ended: " + self.process.stdout.read())
        return struct.unpack("<Q", self.shared[:8])[0]

    def wait_for_rounds(self, rounds=3):
        wanted, end = self.rounds() + rounds, time.monotonic() + LIMIT_SECONDS
        while self.rounds() < wanted:
            if time.monotonic() > end:
                raise AssertionError(f"only {self.rounds() - wanted + rounds} rounds in time")
            time.sleep(0.01)


class Sniffer:
    """A packet socket on eth0 of h2, which captures the UDP packets that h2 sends to h1."""

    def __init__(self):
        with forge.namespace("h2"):
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL))
            self.socket.bind(("eth0", ETH_P_ALL))
            self.socket.settimeout(LIMIT_SECONDS)

    def capture(self, count):
        packets, end = [], time.monotonic() + LIMIT_SECONDS
        while len(packets) < count and time.monotonic() < end:
            found = self.socket.recv(65536)
            addresses = socket.inet_aton(HOST2) + socket.inet_aton(HOST1)
            if found[12:20] == addresses and found[9] == socket.IPPROTO_UDP:
                packets.append(found)
        return packets


def random_psn(rng):
    return rng.choice(SAFE_PSNS)


def request(rng, transport, qpn, rkey, address):
    """Returns the BTH and the rest of a random packet of the transport, with the right keys."""
    payload = rng.randbytes(rng.choice((0, 1, 4, 64, 256, 1024)))
    operation = rng.randrange(0x18)
    head = b""
    if operation in (forge.WRITE_FIRST, forge.WRITE_ONLY, forge.WRITE_ONLY_IMM, forge.READ_REQUEST):
        length = rng.choice((len(payload), 0, 1 << 12, 1 << 31, 0xFFFFFFFF))
        head = forge.reth(address + rng.randrange(PAGE), rkey, length)
    elif operation in (forge.COMPARE_SWAP, forge.FETCH_ADD):
        head = forge.atomic_eth(address, rkey, rng.getrandbits(64), rng.getrandbits(64))
    elif 0x0D <= operation <= 0x12:
        syndrome = rng.choice((0, 31, 32, 0x60, 0x61, 0x62, 0x63, 0x64, rng.randrange(256)))
        head = forge.aeth(syndrome, rng.randrange(1 << 24))
    if operation == forge.READ_REQUEST or operation == forge.ACKNOWLEDGE:
        payload = b""
    pad = -len(payload) % 4
    flags = {"ackreq": rng.random() < 0.5, "solicited": rng.random() < 0.5}
    bth = forge.bth(transport | operation, qpn, random_psn(rng), pad, **flags)
    return bth + head + payload + bytes(pad)


def wrong_datagram(rng, qpn):
    """Returns a datagram to the UD QP, QP1 or the QPN of multicast with a wrong Q_Key, or a random
    MAD to QP1."""
    to = rng.choice((qpn, forge.GSI, forge.MULTICAST))
    key = rng.choice((0, QKEY ^ 1 << rng.randrange(32), rng.getrandbits(31)))
    if to == forge.GSI and rng.random() < 0.5:
        attribute = rng.choice((1, 2, 16, 18, rng.randrange(1 << 16)))
        mad = struct.pack(">BBBBHHQHHI", 1, rng.choice((1, 3, 4, 7, 8, 32)), rng.choice((1, 2)),
                          rng.choice((1, 2, 3, 0x81)), 0, 0, rng.getrandbits(64), attribute, 0, 0)
        bth = forge.bth(UD | forge.SEND_ONLY, to, random_psn(rng))
        deth = forge.deth(forge.GSI_QKEY, rng.randrange(1 << 24))
        return bth + deth + (mad + rng.randbytes(256))[:256]
    payload = rng.randbytes(4 * rng.randrange(64))
    bth = forge.bth(UD | forge.SEND_ONLY, to, random_psn(rng))
    return bth + forge.deth(key, rng.randrange(1 << 24)) + payload


def from_peer(rng, honest):
    """Returns a packet with the source address of the honest peer."""
    if rng.random() < 0.2:
        body = wrong_datagram(rng, honest.ud[0])
    else:
        body = request(rng, rng.choice((RC, RC, RC, XRC)), *honest.rc)
    return forge.packet(HOST2, HOST1, body)


def from_stranger(rng, honest):
    """Returns a packet to a random QP of h1. The packet has another source or destination address
    than the packets of the QP's peer."""
    victim = rng.choice((honest.rc, honest.uc, honest.ud))
    source, target = rng.choice((
        (STRANGER, HOST1), (STRANGER, ETH1_ADDRESS), (HOST2, ETH1_ADDRESS), (HOST2, VLAN_ADDRESS)))
    return forge.packet(source, target, request(rng, rng.choice((RC, UC, UD, XRC)), *victim))


def mutated_packet(rng, honest):
    """Returns a packet with some bits inverted, perhaps truncated. Most often its ICRC is right."""
    body = bytearray(request(rng, rng.choice((XRC, RC)), *honest.rc))
    for _ in range(rng.randrange(1, 6)):
        # The opcode, the QPN and the PSN stay. With another value the packet might count as a
        # packet of an honest peer.
        place = rng.choice((1, 2, 3, *range(12, len(body)))) if len(body) > 12 else rng.randrange(1, 4)
        body[place] ^= 1 << rng.randrange(8)
    cut = len(body) if rng.random() < 0.7 else rng.randrange(MIN_BODY, len(body))
    return forge.packet(HOST2, HOST1, bytes(body[:cut]), icrc=rng.random() < 0.8)


def to_closed_port(ip_packet):
    return ip_packet[:22] + struct.pack(">H", CLOSED_PORT) + ip_packet[24:]


def flood(send, packets, honest, seconds):
    """Sends the packets for some seconds. Returns the honest rounds and the packets a second."""
    start, before, sent = time.monotonic(), honest.rounds(), 0
    while time.monotonic() - start < seconds:
        for packet in packets[sent % len(packets):][:100]:
            send(packet)
            sent += 1
    span = time.monotonic() - start
    return (honest.rounds() - before) / span, sent / span


def attack(name, make, wire, honest):
    """Floods the RoCE port and a closed port in turn. Fails if the honest process makes far fewer
    rounds during the floods of the RoCE port."""
    rng = random.Random(f"{SEED} {name}")
    packets = [make(rng, honest) for _ in range(DISTINCT_PACKETS)]
    total_rounds = {True: 0.0, False: 0.0}
    rate = 0.0
    # A busy test host stops the attacker or the honest process for seconds, so the measurement is
    # repeated, up to ten times. QPs that the flood starves make no progress in any of these tries.
    for tries in range(1, 11):
        for to_roce in (False, True):
            sent_packets = packets if to_roce else [to_closed_port(packet) for packet in packets]
            rounds, rate = flood(wire.send, sent_packets, honest, SECONDS / 2)
            total_rounds[to_roce] += rounds
        if tries > 1 and 0 < MIN_RATIO * total_rounds[False] <= total_rounds[True]:
            break
    honest.wait_for_rounds()
    ratio = total_rounds[True] / total_rounds[False] if total_rounds[False] else 0.0
    print(f"# {name}: {rate:.0f} packets a second; "
          f"honest rounds a second: {total_rounds[True] / tries:.1f}, "
          f"beside packets to a closed port: {total_rounds[False] / tries:.1f}, ratio {ratio:.2f}")
    assert ratio >= MIN_RATIO, f"honest QPs keep {ratio:.2f} of their speed"


def meminfo_kib(kind):
    """Returns a field of /proc/meminfo, in KiB."""
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(f"{kind}:"))


def wire_through(device):
    return PacketSocket("h2", device, forge.hardware_address("h1", device))


RESOURCES = contextlib.ExitStack()


def honest_process():
    if not hasattr(RESOURCES, "honest"):
        RESOURCES.honest = HonestProcess()
        RESOURCES.callback(RESOURCES.honest.process.wait)
        RESOURCES.callback(RESOURCES.honest.process.kill)
        RESOURCES.honest.wait_for_rounds()
        RESOURCES.slab = meminfo_kib("Slab")
    return RESOURCES.honest


@case("honest QPs go on beside packets with the peer's address and PSNs out of the window")
def packets_of_the_peer():
    attack("spoofed", from_peer, wire_through("eth0"), honest_process())


@case("honest QPs go on beside packets of a stranger or to addresses of other network devices")
def packets_of_strangers():
    attack("strange", from_stranger, wire_through("eth0"), honest_process())


@case("honest QPs go on beside mutated packets")
def mutated_packets():
    attack("mutated", mutated_packet, wire_through("eth0"), honest_process())


@case("honest QPs go on beside packets with the peer's address through another network device")
def packets_through_other_wire():
    attack("other wire", from_peer, wire_through("eth1"), honest_process())


@case("honest QPs go on beside packets with the peer's address through a VLAN device")
def packets_through_vlan():
    attack("VLAN", from_peer, wire_through("vlan5"), honest_process())


@case("honest QPs go on beside replayed RC packets")
def replayed_packets():
    honest, sniffer = honest_process(), Sniffer()
    packets = sniffer.capture(REPLAYED_PACKETS)
    sniffer.socket.close()
    equal(len(packets), REPLAYED_PACKETS, "captured packets")
    # RoCE cannot tell a replayed UC packet or datagram from a new one, so only RC packets are sent.
    packets = [packet for packet in packets if packet[28] & 0xE0 == RC]
    # After 20 rounds the PSNs of the captured packets are out of all windows.
    honest.wait_for_rounds(20)
    attack("replayed", lambda rng, _: rng.choice(packets), wire_through("eth0"), honest)


@case("honest QPs go on beside packets of UDP sockets of this host")
def packets_of_own_sockets():
    honest, rng = honest_process(), random.Random(f"{SEED} sockets")
    for source in (HOST1, ETH1_ADDRESS, VLAN_ADDRESS, "127.0.0.1"):
        mine = Socket(source, where="h1")
        for _ in range(1000):
            body = request(rng, rng.choice((RC, UC, XRC)), *rng.choice((honest.rc, honest.uc)))
            mine.send(rng.choice((HOST1, ETH1_ADDRESS, VLAN_ADDRESS)), body)
            mine.send(HOST1, wrong_datagram(rng, honest.ud[0]))
        mine.close()
    honest.wait_for_rounds()


@case("the kernel's slab memory stays bounded during the floods")
def memory_is_bounded():
    honest_process().wait_for_rounds()
    grown = meminfo_kib("Slab") - RESOURCES.slab
    print(f"# the kernel's slabs have grown by {grown} KiB")
    # KASAN keeps freed objects, up to a 32nd part of all memory (QUARANTINE_FRACTION,
    # mm/kasan/quarantine.c).
    quarantine = meminfo_kib("MemTotal") // 32 if IS_DEBUG_KERNEL else 0
    assert grown < (64 << 10) + quarantine, f"the kernel's slabs have grown by {grown} KiB"


if sys.argv[5:] == ["work"]:
    run_honest_process()
print(f"# SEED={SEED}")
STATUS = main()
RESOURCES.close()
sys.exit(STATUS)
