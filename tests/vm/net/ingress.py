#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests that the driver drops RoCEv2 packets that sockets of its own host forge, packets that come
through a network device without the destination address, and packets of other QPs than the peer.

  ingress.py DEVICE GID-INDEX GID-INDEX6 PEER-DEVICE PEER-GID-INDEX VLAN-GID-INDEX

DEVICE is a link on eth0 of namespace h1, PEER-DEVICE one on eth0 of h2. The GID indexes are those
of eth0's IPv4 and IPv6 address, of the peer's IPv4 address, and of the address on h1's VLAN 7. A
second veth pair connects eth1 of both hosts, and a VXLAN device vx0 is on top of eth0 of both. A
container, h3, has a macvlan device on top of eth0 of h1. Each case sends packets with valid
headers and ICRC from a wrong source or through a wrong network device, then a legitimate message,
which must be the first to arrive.
"""

import ipaddress
import os
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

import extension
import forge
from forge import RC, SEND_ONLY, UD, Socket, Wire
import userfault
from pairs import (
    ALL, DEVICE, GID_INDEX, PAGE, Buffer, becomes, case, connect, counter, equal,
    free_handle, gid_at, main, register, unanswered,
)
from uverbs import attach_mcast

GID_INDEX6, PEER_DEVICE, PEER_GID_INDEX = int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
# The address on network device vlan7 (VLAN 7 on eth0). inner7 is VLAN 7 within VLAN 5.
VLAN_GID_INDEX, VLAN_HOST1, VLAN_HOST2 = int(sys.argv[6]), "10.97.0.1", "10.97.0.2"
GID_CHANGE = 18  # IBV_EVENT_GID_CHANGE
HOST1, HOST2, HOST1_V6, HOST2_V6 = "10.77.0.1", "10.77.0.2", "fd77::1", "fd77::2"
# Source address of a host that is no QP's peer.
STRANGER = "10.77.0.9"
GROUP, GROUP_V6 = "239.77.1.10", "ff0e::770a"
# Queue key; posted receives of a QP; forged packets of a case; bytes of the GRH.
QKEY, DEPTH, FORGED, GRH = 0x11223344, 32, 8, 40
# Capacity of a QP's inbox in packets (limits.rs: INBOX).
INBOX = 1024
HONEST, EVIL = b"honest message, ", b"forged message, "


class Queue:
    """A QP with posted receives."""

    def __init__(self, device, kind, receives=True):
        self.context = Context(name=device)
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 4 * DEPTH)
        cap = QPCap(max_send_wr=DEPTH, max_recv_wr=DEPTH, max_send_sge=1, max_recv_sge=1)
        self.qp_handle = free_handle(self.context)
        self.qp = QP(self.pd, QPInitAttr(qp_type=kind, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=0))
        self.buffer = Buffer(DEPTH * PAGE)
        self.region = register(self.pd, self.buffer)
        self.handle = None
        if kind == e.IBV_QPT_UD:
            attr = QPAttr(port_num=1)
            attr.qkey = QKEY
            self.qp.to_rts(attr)
            if receives:
                self.receive()

    def receive(self):
        for slot in range(1, DEPTH):
            sge = SGE(self.buffer.address + slot * PAGE, PAGE, self.region.lkey)
            self.qp.post_recv(RecvWR(wr_id=slot, num_sge=1, sg=[sge]))

    def send(self, data, gid=None, gid_index=GID_INDEX, remote=None):
        """Sends `data`: to the connected peer, or as a datagram to the GID and QPN."""
        self.buffer.fill(data)
        sge = SGE(self.buffer.address, len(data), self.region.lkey)
        wr = SendWR(wr_id=0, opcode=e.IBV_WR_SEND, num_sge=1, sg=[sge])
        if gid:
            route = GlobalRoute(dgid=gid, sgid_index=gid_index)
            # The address handle must live until the datagram is sent.
            self.handle = AH(self.pd, attr=AHAttr(gr=route, is_global=1, port_num=1))
            wr.set_wr_ud(self.handle, remote or self.qp.qp_num, QKEY)
        self.qp.post_send(wr)

    def received(self, skip=0):
        """Returns the next received message without its first `skip` bytes."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            count, completions = self.cq.poll(1)
            if count and completions[0].opcode & e.IBV_WC_RECV:
                equal(completions[0].status, e.IBV_WC_SUCCESS, "status")
                return self.buffer.read(completions[0].byte_len - skip, completions[0].wr_id * PAGE + skip)
        raise AssertionError("nothing arrives")

    def nothing_forged(self):
        """Fails if a receive buffer contains a forged message."""
        assert EVIL not in self.buffer.read(DEPTH * PAGE), "forged bytes are in memory"


def place_of(context, address):
    """Returns the index of the address in the port's GID table, or None."""
    places, wanted = range(context.query_port(1).gid_tbl_len), gid_at(address).gid
    return next((place for place in places if context.query_gid(1, place).gid == wanted), None)


def has_gid(context, address):
    """Returns whether the port's GID table has the address."""
    return place_of(context, address) is not None


def dropped(reason):
    """Returns the number of packets that the driver dropped for the reason."""
    return counter(f"drop_{reason}")


def counted(reason, before, count):
    """Fails unless the drop counter of the reason soon exceeds `before` by exactly `count`."""
    end = time.monotonic() + 20
    while dropped(reason) < before + count and time.monotonic() < end:
        time.sleep(0.05)
    equal(dropped(reason) - before, count, f"dropped for {reason}")


def datagram(qpn, psn):
    return forge.bth(UD | SEND_ONLY, qpn, psn) + forge.deth(QKEY, 7) + EVIL


def refuse(queue, send, reason, skip, honest):
    """Sends forged packets by `send`, then a legitimate message by `honest`. Fails unless the
    driver drops the forged ones for the reason and delivers the message."""
    before = dropped(reason)
    for psn in range(FORGED):
        send(psn)
    # If a forged packet were still on its way, the legitimate message could overtake it, and the
    # case could not fail.
    end = time.monotonic() + 5
    while dropped(reason) < before + FORGED and time.monotonic() < end:
        time.sleep(0.05)
    honest()
    equal(queue.received(skip), HONEST, "the first message")
    queue.nothing_forged()
    counted(reason, before, FORGED)


def connected():
    """Returns two RC QPs, of both hosts, that are connected. The first has posted receives."""
    here, there = Queue(DEVICE, e.IBV_QPT_RC), Queue(PEER_DEVICE, e.IBV_QPT_RC)
    connect(here.context, here.qp, there.qp.qp_num, dgid=there.context.query_gid(1, PEER_GID_INDEX))
    connect(there.context, there.qp, here.qp.qp_num, gid_index=PEER_GID_INDEX,
            dgid=here.context.query_gid(1, GID_INDEX))
    here.receive()
    return here, there


@case("datagrams of an ordinary socket of this host")
def _():
    for address, index in ((HOST1, GID_INDEX), (HOST1_V6, GID_INDEX6)):
        queue, mine = Queue(DEVICE, e.IBV_QPT_UD), Socket(address, where="h1")
        refuse(queue, lambda psn: mine.send(address, datagram(queue.qp.qp_num, psn)), "local", GRH,
               lambda: queue.send(HONEST, gid_at(address), index))
        mine.close()


@case("datagrams to an address that has moved to another network device of this host")
def _():
    queue, peer = Queue(DEVICE, e.IBV_QPT_UD), Queue(PEER_DEVICE, e.IBV_QPT_UD)
    address = "10.77.0.55"
    ip = ["ip", "-n", "h1", "addr"]
    subprocess.run([*ip, "add", f"{address}/24", "dev", "eth0"], check=True)
    becomes(lambda: has_gid(queue.context, address), True, "a GID")
    peer.send(HONEST, gid_at(address), PEER_GID_INDEX, remote=queue.qp.qp_num)
    equal(queue.received(GRH), HONEST, "the first message")
    # The link loses the address as a GID: eth1 is on another segment.
    subprocess.run([*ip, "del", f"{address}/24", "dev", "eth0"], check=True)
    subprocess.run([*ip, "add", f"{address}/32", "dev", "eth1"], check=True)
    becomes(lambda: has_gid(queue.context, address), False, "no GID")
    refuse(queue, lambda psn: peer.send(EVIL, gid_at(address), PEER_GID_INDEX, remote=queue.qp.qp_num), "peer", GRH,
           lambda: peer.send(HONEST, gid_at(HOST1), PEER_GID_INDEX, remote=queue.qp.qp_num))
    subprocess.run([*ip, "del", f"{address}/32", "dev", "eth1"], check=True)


@case("an address that comes back has its place in the table, though a process has an address handle from there")
def _():
    context, address = Context(name=DEVICE), "10.77.0.56"
    pd = PD(context)

    def change(how):
        subprocess.run(["ip", "-n", "h1", "addr", how, f"{address}/24", "dev", "eth0"], check=True)
        becomes(lambda: has_gid(context, address), how == "add", "the GID is there")

    def place_again():
        change("del")
        change("add")
        return place_of(context, address)

    change("add")
    place = place_of(context, address)
    route = GlobalRoute(dgid=gid_at(address), sgid_index=place)
    handle = AH(pd, attr=AHAttr(gr=route, is_global=1, port_num=1))
    # ib_core frees a table entry some time after the address was deleted.
    becomes(place_again, place, "the place in the table")
    change("del")
    handle.close()


@case("datagrams of a socket that is bound to another network device of this host")
def _():
    queue, mine = Queue(DEVICE, e.IBV_QPT_UD), Socket(HOST1_V6, where="h1", device="eth1")
    before = dropped("local") + dropped("interface") + dropped("peer")
    try:
        for psn in range(FORGED):
            mine.send(HOST1_V6, datagram(queue.qp.qp_num, psn))
    except OSError:
        pass  # the IP layer has no route through eth1
    queue.send(HONEST, gid_at(HOST1_V6), GID_INDEX6)
    equal(queue.received(GRH), HONEST, "the first message")
    queue.nothing_forged()
    assert dropped("local") + dropped("interface") + dropped("peer") <= before + FORGED


@case("management datagrams of an ordinary socket of this host")
def _():
    mine, before = Socket(HOST1, where="h1"), dropped("local")
    body = forge.bth(UD | SEND_ONLY, forge.GSI, 1) + forge.deth(forge.GSI_QKEY, forge.GSI) + bytes(256)
    received = counter("rcvd_pkts")
    for _ in range(FORGED):
        mine.send(HOST1, body)
    counted("local", before, FORGED)
    equal(counter("rcvd_pkts"), received, "packets received")


@case("requests of an ordinary socket for a QP whose peer is on this host")
def _():
    for kind, transport in ((e.IBV_QPT_RC, RC), (e.IBV_QPT_UC, forge.UC)):
        ends = [Queue(DEVICE, kind), Queue(DEVICE, kind)]
        for end, peer in zip(ends, reversed(ends)):
            connect(end.context, end.qp, peer.qp.qp_num)
        ends[0].receive()
        mine, qpn = Socket(HOST1, where="h1"), ends[0].qp.qp_num
        # The PSNs are consecutive: if the QP accepted the first packet, it would accept all.
        refuse(ends[0], lambda psn: mine.send(HOST1, forge.bth(transport | SEND_ONLY, qpn, psn) + EVIL), "local", 0,
               lambda: ends[1].send(HONEST))
        mine.close()


@case("another QP of this host that is connected to a QP whose peer is on this host")
def _():
    for kind in (e.IBV_QPT_RC, e.IBV_QPT_UC):
        ends, other = [Queue(DEVICE, kind), Queue(DEVICE, kind)], Queue(DEVICE, kind)
        for end, peer in zip(ends, reversed(ends)):
            connect(end.context, end.qp, peer.qp.qp_num)
        # Packets of this QP have the same addresses as those of the true peer.
        connect(other.context, other.qp, ends[0].qp.qp_num)
        ends[0].receive()
        before = dropped("peer")
        other.send(EVIL)
        # An RC QP retransmits, so the count is not exact.
        becomes(lambda: dropped("peer") > before, True, "its packets are counted")
        ends[1].send(HONEST)
        equal(ends[0].received(0), HONEST, "the first message")
        ends[0].nothing_forged()


@case("datagrams of another QP of this host for a connected QP that waits for its memory")
def _():
    ends, other = [Queue(DEVICE, e.IBV_QPT_UC), Queue(DEVICE, e.IBV_QPT_UC)], Queue(DEVICE, e.IBV_QPT_UD)
    for end, peer in zip(ends, reversed(ends)):
        connect(end.context, end.qp, peer.qp.qp_num)
    memory, faults = unanswered(PAGE)
    region = register(ends[0].pd, memory, ALL | e.IBV_ACCESS_ON_DEMAND)
    ends[0].qp.post_recv(RecvWR(wr_id=0, num_sge=1, sg=[SGE(memory.address, PAGE, region.lkey)]))
    ends[0].receive()
    ends[1].send(HONEST)
    before = dropped("peer")
    # More packets than the inbox has room for.
    for _ in range(INBOX + 76):
        other.send(EVIL, ends[0].context.query_gid(1, GID_INDEX), remote=ends[0].qp.qp_num)
        other.cq.poll(DEPTH)
    becomes(lambda: dropped("peer"), before + INBOX + 76, "datagrams that are counted")
    for _ in range(DEPTH // 2):
        ends[1].send(HONEST)
    userfault.give_zeros(faults, memory.address, PAGE)
    ends[0].received()
    equal(memory.read(len(HONEST)), HONEST, "the first message")
    for _ in range(DEPTH // 2):
        equal(ends[0].received(), HONEST, "a message")
    os.close(faults)


@case("datagrams of an ordinary socket for a group")
def _():
    for address, group, index in ((HOST1, GROUP, GID_INDEX), (HOST1_V6, GROUP_V6, GID_INDEX6)):
        queue, mine = Queue(DEVICE, e.IBV_QPT_UD), Socket(address, where="h1")
        gid = gid_at(group)
        attach_mcast(queue.context, queue.qp_handle, ipaddress.IPv6Address(gid.gid).packed)
        mine.groups_by("eth0", "h1")
        qpn = queue.qp.qp_num
        body = forge.bth(UD | SEND_ONLY, forge.MULTICAST, 0) + forge.deth(QKEY, qpn) + EVIL
        refuse(queue, lambda _: mine.send(group, body), "local", GRH,
               lambda: queue.send(HONEST, gid, index, forge.MULTICAST))
        mine.close()


@case("datagrams of the other host by another network device")
def _():
    queue = Queue(DEVICE, e.IBV_QPT_UD)
    for source, target, index, by in (
        (HOST2, HOST1, GID_INDEX, "eth1"), (HOST2_V6, HOST1_V6, GID_INDEX6, "eth1"),
        (HOST2, HOST1, GID_INDEX, "vx0"), (HOST2_V6, HOST1_V6, GID_INDEX6, "vx0"),
        (VLAN_HOST2, VLAN_HOST1, VLAN_GID_INDEX, "inner7"),
    ):
        wire = Wire("h2", by, forge.hardware_address("h1", by))
        refuse(queue, lambda psn: wire.send(forge.packet(source, target, datagram(queue.qp.qp_num, psn))), "interface",
               GRH, lambda: queue.send(HONEST, gid_at(target), index))
        wire.close()


@case("datagrams by another network device are refused before their ICRC is computed")
def _():
    queue, wire = Queue(DEVICE, e.IBV_QPT_UD), Wire("h2", "eth1", forge.hardware_address("h1", "eth1"))
    wrong, before = datagram(queue.qp.qp_num, 0) + bytes(forge.ICRC_LEN), dropped("icrc")
    refuse(queue, lambda _: wire.send(forge.packet(HOST2, HOST1, wrong, icrc=False)), "interface", GRH,
           lambda: queue.send(HONEST, gid_at(HOST1)))
    equal(dropped("icrc"), before, "dropped for icrc")
    wire.close()


@case("datagrams by another network device for a QP that waits for its memory")
def _():
    queue, other = Queue(DEVICE, e.IBV_QPT_UD, receives=False), Queue(DEVICE, e.IBV_QPT_UD)
    memory, faults = unanswered(PAGE)
    region = register(queue.pd, memory, ALL | e.IBV_ACCESS_ON_DEMAND)
    queue.qp.post_recv(RecvWR(wr_id=0, num_sge=1, sg=[SGE(memory.address, PAGE, region.lkey)]))
    queue.receive()
    other.send(HONEST, gid_at(HOST1), remote=queue.qp.qp_num)
    userfault.await_fault(faults)
    wire, before = Wire("h2", "eth1", forge.hardware_address("h1", "eth1")), dropped("interface")
    forged = forge.packet(HOST2, HOST1, datagram(queue.qp.qp_num, 0))
    # More packets than the inbox has room for.
    for sent in range(INBOX + 76):
        wire.send(forged)
        if sent % DEPTH == 0:
            time.sleep(0.01)
    end = time.monotonic() + 20
    while dropped("interface") < before + INBOX + 76 and time.monotonic() < end:
        time.sleep(0.05)
    other.send(HONEST, gid_at(HOST1), remote=queue.qp.qp_num)
    userfault.give_zeros(faults, memory.address, PAGE)
    queue.received()
    equal(memory.read(len(HONEST), GRH), HONEST, "the first message")
    equal(queue.received(GRH), HONEST, "the second message")
    queue.nothing_forged()
    counted("interface", before, INBOX + 76)
    wire.close()
    os.close(faults)


@case("the peer's packets by another network device")
def _():
    for by in ("eth1", "vx0"):
        here, there = connected()
        wire, qpn = Wire("h2", by, forge.hardware_address("h1", by)), here.qp.qp_num
        refuse(here, lambda psn: wire.send(forge.packet(HOST2, HOST1, forge.bth(RC | SEND_ONLY, qpn, psn) + EVIL)),
               "interface", 0, lambda: there.send(HONEST))
        wire.close()


@case("a stranger's packets are refused before their ICRC is computed")
def _():
    here, there = connected()
    wire, qpn = Wire("h2", "eth0", forge.hardware_address("h1", "eth0")), here.qp.qp_num
    wrong, before = bytes(forge.ICRC_LEN), dropped("icrc")
    refuse(here, lambda psn: wire.send(forge.packet(STRANGER, HOST1, forge.bth(RC | SEND_ONLY, qpn, psn) + EVIL + wrong,
                                                    icrc=False)), "peer", 0, lambda: there.send(HONEST))
    equal(dropped("icrc"), before, "dropped for icrc")


@case("packets from outside with a source address of this host")
def _():
    queue, wire = Queue(DEVICE, e.IBV_QPT_UD), Wire("h2", "eth0", forge.hardware_address("h1", "eth0"))
    refuse(queue, lambda psn: wire.send(forge.packet(HOST1_V6, HOST1_V6, datagram(queue.qp.qp_num, psn))), "local", GRH,
           lambda: queue.send(HONEST, gid_at(HOST1_V6), GID_INDEX6))


def change_address(where, device, address, times=1):
    """Adds and deletes an address on a network device of a namespace, `times` times."""
    line = f"addr add {address}/32 dev {device}\naddr del {address}/32 dev {device}\n"
    subprocess.run(["ip", "-n", where, "-batch", "-"], input=line * times, text=True, check=True)


def gid_changes(context, work):
    """Returns the number of GID_CHANGE events of the context: those that `work` causes, and two
    of an address of the link that is then added and deleted. ib_core handles changes of addresses
    one after another, so it has handled those of `work` before the last two events."""
    work()
    seen = []
    change_address("h1", "eth0", "10.77.0.34")

    def count():
        seen.extend(kind for _, kind in context.events() if kind == GID_CHANGE)
        return len(seen) >= 2

    becomes(count, True, "two changes are told of")
    time.sleep(2)
    count()
    return len(seen)


@case("an address in another network namespace is no GID, and its changes raise no event")
def _():
    ours = Context(name=DEVICE)
    equal([has_gid(ours, address) for address in (HOST1, "10.77.0.33")], [True, False], "GIDs of the port")
    context = extension.Context(extension.node_of(DEVICE))
    equal(gid_changes(context, lambda: None), 2, "events of an address of the link")
    foreign = gid_changes(context, lambda: change_address("h3", "macvlan3", "10.77.0.35", 50))
    equal(foreign, 2, "events, while addresses of another namespace changed")


sys.exit(main())
