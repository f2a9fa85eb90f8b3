#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests that the driver drops RoCEv2 packets that sockets of its own host forge, packets that come
through a network device without the destination address, and packets of other QPs than the peer.

  ingress.py DEVICE GID-INDEX GID-INDEX6 PEER-DEVICE PEER-GID-INDEX VLAN-GID-INDEX

DEVICE is a link on eth0 of namespace h1, PEER-DEVICE one on eth0 of h2. The GID indexes are those
of eth0's IPv4 and IPv6 address, of the peer's IPv4 address, and of the address on h1's VLAN 7. A
second veth pair connects eth1 of both hosts, and a VXLAN device vx0 is on top of eth0 of both. A
container, h3, has a macvlan device on top of eth0 of h1. Most cases send packets with valid headers
and ICRC from a wrong source or through a wrong network device, then a legitimate message, which
must be the first to arrive.
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
from forge import RC, SEND_ONLY, UD, PacketSocket, Socket
import userfault
from pairs import (
    ALL, DEVICE, GID_INDEX, PAGE, Buffer, case, connect, counter, equal, free_handle, gid_at, main,
    memory_with_unserved_faults, register, wait_until_equal,
)
from uverbs import attach_mcast

GID_INDEX6, PEER_DEVICE, PEER_GID_INDEX = int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
# GID index of h1's address on vlan7 (VLAN 7 on eth0), and that address of h1 and of h2. inner7 is
# VLAN 7 within VLAN 5.
VLAN_GID_INDEX, VLAN_HOST1, VLAN_HOST2 = int(sys.argv[6]), "10.97.0.1", "10.97.0.2"
GID_CHANGE = 18  # IBV_EVENT_GID_CHANGE
HOST1, HOST2, HOST1_V6, HOST2_V6 = "10.77.0.1", "10.77.0.2", "fd77::1", "fd77::2"
# Source address of a host that is no QP's peer.
THIRD_HOST = "10.77.0.9"
GROUP, GROUP_V6 = "239.77.1.10", "ff0e::770a"
# Queue key; capacity of each queue of a QP; forged packets of a case; bytes of the GRH.
QKEY, DEPTH, FORGED_COUNT, GRH = 0x11223344, 32, 8, 40
# Capacity of a QP's inbox in packets (limits.rs: INBOX). Received packets fill the inbox while the
# QP is parked, that is, while it waits for a page fault of on-demand memory.
INBOX = 1024
LEGITIMATE, FORGED = b"honest message, ", b"forged message, "


class Endpoint:
    """A QP and a message buffer. UD QPs have posted receives unless `receives` is false."""

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
                self.post_receives()

    def post_receives(self):
        for slot in range(1, DEPTH):
            sge = SGE(self.buffer.address + slot * PAGE, PAGE, self.region.lkey)
            self.qp.post_recv(RecvWR(wr_id=slot, num_sge=1, sg=[sge]))

    def send(self, data, gid=None, gid_index=GID_INDEX, remote=None):
        """Sends `data` to the connected peer, or as a datagram to QPN `remote` (this QP's own by
        default) at `gid`."""
        self.buffer.fill(data)
        sge = SGE(self.buffer.address, len(data), self.region.lkey)
        wr = SendWR(wr_id=0, opcode=e.IBV_WR_SEND, num_sge=1, sg=[sge])
        if gid:
            route = GlobalRoute(dgid=gid, sgid_index=gid_index)
            # The address handle must live until the datagram is sent.
            self.handle = AH(self.pd, attr=AHAttr(gr=route, is_global=1, port_num=1))
            wr.set_wr_ud(self.handle, remote or self.qp.qp_num, QKEY)
        self.qp.post_send(wr)

    def next_message(self, skip=0):
        """Returns the next received message without its first `skip` bytes."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            count, completions = self.cq.poll(1)
            if count and completions[0].opcode & e.IBV_WC_RECV:
                equal(completions[0].status, e.IBV_WC_SUCCESS, "status")
                return self.buffer.read(completions[0].byte_len - skip, completions[0].wr_id * PAGE + skip)
        raise AssertionError("no message arrives")

    def expect_nothing_forged(self):
        """Fails if a receive buffer contains a forged message."""
        assert FORGED not in self.buffer.read(DEPTH * PAGE), "forged bytes are in memory"


def gid_index_of(context, address):
    """Returns the index of the address in the port's GID table, or None."""
    indexes, wanted = range(context.query_port(1).gid_tbl_len), gid_at(address).gid
    return next((index for index in indexes if context.query_gid(1, index).gid == wanted), None)


def has_gid(context, address):
    """Returns whether the port's GID table has the address."""
    return gid_index_of(context, address) is not None


def drop_count(reason):
    """Returns the number of packets that the driver dropped for the reason."""
    return counter(f"drop_{reason}")


def expect_drop_count(reason, before, count):
    """Fails unless the drop counter of the reason soon exceeds `before` by exactly `count`."""
    end = time.monotonic() + 20
    while drop_count(reason) < before + count and time.monotonic() < end:
        time.sleep(0.05)
    equal(drop_count(reason) - before, count, f"dropped for {reason}")


def datagram(qpn, psn):
    return forge.bth(UD | SEND_ONLY, qpn, psn) + forge.deth(QKEY, 7) + FORGED


def expect_drops(receiver, send, reason, skip, send_legitimate):
    """Sends forged packets by `send`, then a legitimate message by `send_legitimate`. Fails unless
    the driver drops the forged ones for the reason and delivers the message."""
    before = drop_count(reason)
    for psn in range(FORGED_COUNT):
        send(psn)
    # The legitimate message must not overtake a forged packet. Otherwise it is the first message
    # even if the driver accepts the forged packet.
    end = time.monotonic() + 5
    while drop_count(reason) < before + FORGED_COUNT and time.monotonic() < end:
        time.sleep(0.05)
    send_legitimate()
    equal(receiver.next_message(skip), LEGITIMATE, "the first message")
    receiver.expect_nothing_forged()
    expect_drop_count(reason, before, FORGED_COUNT)


def connected():
    """Returns two RC QPs, of both hosts, that are connected. The first has posted receives."""
    local, peer = Endpoint(DEVICE, e.IBV_QPT_RC), Endpoint(PEER_DEVICE, e.IBV_QPT_RC)
    connect(local.context, local.qp, peer.qp.qp_num, dgid=peer.context.query_gid(1, PEER_GID_INDEX))
    connect(peer.context, peer.qp, local.qp.qp_num, gid_index=PEER_GID_INDEX,
            dgid=local.context.query_gid(1, GID_INDEX))
    local.post_receives()
    return local, peer


@case("datagrams of an ordinary socket of this host are dropped")
def _():
    for address, index in ((HOST1, GID_INDEX), (HOST1_V6, GID_INDEX6)):
        receiver, udp_socket = Endpoint(DEVICE, e.IBV_QPT_UD), Socket(address, where="h1")
        expect_drops(receiver,
                     lambda psn: udp_socket.send(address, datagram(receiver.qp.qp_num, psn)),
                     "local", GRH, lambda: receiver.send(LEGITIMATE, gid_at(address), index))
        udp_socket.close()


@case("datagrams to an address that has moved to another network device are dropped")
def _():
    receiver, peer = Endpoint(DEVICE, e.IBV_QPT_UD), Endpoint(PEER_DEVICE, e.IBV_QPT_UD)
    address = "10.77.0.55"
    ip = ["ip", "-n", "h1", "addr"]
    subprocess.run([*ip, "add", f"{address}/24", "dev", "eth0"], check=True)
    wait_until_equal(lambda: has_gid(receiver.context, address), True, "a GID")
    peer.send(LEGITIMATE, gid_at(address), PEER_GID_INDEX, remote=receiver.qp.qp_num)
    equal(receiver.next_message(GRH), LEGITIMATE, "the first message")
    # The link loses the address as a GID: eth1 is on another segment.
    subprocess.run([*ip, "del", f"{address}/24", "dev", "eth0"], check=True)
    subprocess.run([*ip, "add", f"{address}/32", "dev", "eth1"], check=True)
    wait_until_equal(lambda: has_gid(receiver.context, address), False, "no GID")
    expect_drops(
        receiver,
        lambda psn: peer.send(FORGED, gid_at(address), PEER_GID_INDEX, remote=receiver.qp.qp_num),
        "peer", GRH,
        lambda: peer.send(LEGITIMATE, gid_at(HOST1), PEER_GID_INDEX, remote=receiver.qp.qp_num))
    subprocess.run([*ip, "del", f"{address}/32", "dev", "eth1"], check=True)


@case("an address handle does not change the GID index of a deleted address that is added again")
def _():
    context, address = Context(name=DEVICE), "10.77.0.56"
    pd = PD(context)

    def change(how):
        subprocess.run(["ip", "-n", "h1", "addr", how, f"{address}/24", "dev", "eth0"], check=True)
        wait_until_equal(lambda: has_gid(context, address), how == "add", "the GID is there")

    def index_after_return():
        change("del")
        change("add")
        return gid_index_of(context, address)

    change("add")
    index = gid_index_of(context, address)
    route = GlobalRoute(dgid=gid_at(address), sgid_index=index)
    handle = AH(pd, attr=AHAttr(gr=route, is_global=1, port_num=1))
    # ib_core frees a table entry some time after the address was deleted.
    wait_until_equal(index_after_return, index, "the GID index")
    change("del")
    handle.close()


@case("datagrams of a socket that is bound to another network device never arrive")
def _():
    receiver = Endpoint(DEVICE, e.IBV_QPT_UD)
    udp_socket = Socket(HOST1_V6, where="h1", device="eth1")
    before = drop_count("local") + drop_count("interface") + drop_count("peer")
    try:
        for psn in range(FORGED_COUNT):
            udp_socket.send(HOST1_V6, datagram(receiver.qp.qp_num, psn))
    except OSError:
        pass  # the IP layer has no route through eth1
    receiver.send(LEGITIMATE, gid_at(HOST1_V6), GID_INDEX6)
    equal(receiver.next_message(GRH), LEGITIMATE, "the first message")
    receiver.expect_nothing_forged()
    assert (drop_count("local") + drop_count("interface") + drop_count("peer")
            <= before + FORGED_COUNT)


@case("MADs of an ordinary socket of this host are dropped")
def _():
    udp_socket, before = Socket(HOST1, where="h1"), drop_count("local")
    body = forge.bth(UD | SEND_ONLY, forge.GSI, 1) + forge.deth(forge.GSI_QKEY, forge.GSI) + bytes(256)
    received = counter("rcvd_pkts")
    for _ in range(FORGED_COUNT):
        udp_socket.send(HOST1, body)
    expect_drop_count("local", before, FORGED_COUNT)
    equal(counter("rcvd_pkts"), received, "packets received")


@case("requests of an ordinary socket to a QP whose peer is on this host are dropped")
def _():
    for kind, transport in ((e.IBV_QPT_RC, RC), (e.IBV_QPT_UC, forge.UC)):
        ends = [Endpoint(DEVICE, kind), Endpoint(DEVICE, kind)]
        for end, peer in zip(ends, reversed(ends)):
            connect(end.context, end.qp, peer.qp.qp_num)
        ends[0].post_receives()
        udp_socket, qpn = Socket(HOST1, where="h1"), ends[0].qp.qp_num
        # The PSNs are consecutive: if the QP accepted the first packet, it would accept all.
        expect_drops(
            ends[0],
            lambda psn: udp_socket.send(
                HOST1, forge.bth(transport | SEND_ONLY, qpn, psn) + FORGED),
            "local", 0, lambda: ends[1].send(LEGITIMATE))
        udp_socket.close()


@case("packets of another QP of this host than the peer are dropped")
def _():
    for kind in (e.IBV_QPT_RC, e.IBV_QPT_UC):
        ends, other = [Endpoint(DEVICE, kind), Endpoint(DEVICE, kind)], Endpoint(DEVICE, kind)
        for end, peer in zip(ends, reversed(ends)):
            connect(end.context, end.qp, peer.qp.qp_num)
        # Packets of this QP have the same addresses as those of the true peer.
        connect(other.context, other.qp, ends[0].qp.qp_num)
        ends[0].post_receives()
        before = drop_count("peer")
        other.send(FORGED)
        # An RC QP retransmits, so the count is not exact.
        wait_until_equal(lambda: drop_count("peer") > before, True, "its packets are in drop_peer")
        ends[1].send(LEGITIMATE)
        equal(ends[0].next_message(0), LEGITIMATE, "the first message")
        ends[0].expect_nothing_forged()


@case("datagrams of another QP of this host take no room in the inbox of a parked connected QP")
def _():
    ends = [Endpoint(DEVICE, e.IBV_QPT_UC), Endpoint(DEVICE, e.IBV_QPT_UC)]
    other = Endpoint(DEVICE, e.IBV_QPT_UD)
    for end, peer in zip(ends, reversed(ends)):
        connect(end.context, end.qp, peer.qp.qp_num)
    memory, faults = memory_with_unserved_faults(PAGE)
    region = register(ends[0].pd, memory, ALL | e.IBV_ACCESS_ON_DEMAND)
    ends[0].qp.post_recv(RecvWR(wr_id=0, num_sge=1, sg=[SGE(memory.address, PAGE, region.lkey)]))
    ends[0].post_receives()
    ends[1].send(LEGITIMATE)
    before = drop_count("peer")
    # More packets than the inbox has room for.
    for _ in range(INBOX + 76):
        other.send(FORGED, ends[0].context.query_gid(1, GID_INDEX), remote=ends[0].qp.qp_num)
        other.cq.poll(DEPTH)
    wait_until_equal(lambda: drop_count("peer"), before + INBOX + 76, "datagrams in drop_peer")
    for _ in range(DEPTH // 2):
        ends[1].send(LEGITIMATE)
    userfault.serve_zeros(faults, memory.address, PAGE)
    ends[0].next_message()
    equal(memory.read(len(LEGITIMATE)), LEGITIMATE, "the first message")
    for _ in range(DEPTH // 2):
        equal(ends[0].next_message(), LEGITIMATE, "a message")
    os.close(faults)


@case("datagrams of an ordinary socket to a group are dropped")
def _():
    for address, group, index in ((HOST1, GROUP, GID_INDEX), (HOST1_V6, GROUP_V6, GID_INDEX6)):
        receiver, udp_socket = Endpoint(DEVICE, e.IBV_QPT_UD), Socket(address, where="h1")
        gid = gid_at(group)
        attach_mcast(receiver.context, receiver.qp_handle, ipaddress.IPv6Address(gid.gid).packed)
        udp_socket.set_multicast_device("eth0", "h1")
        qpn = receiver.qp.qp_num
        body = forge.bth(UD | SEND_ONLY, forge.MULTICAST, 0) + forge.deth(QKEY, qpn) + FORGED
        expect_drops(receiver, lambda _: udp_socket.send(group, body), "local", GRH,
                     lambda: receiver.send(LEGITIMATE, gid, index, forge.MULTICAST))
        udp_socket.close()


@case("datagrams through another network device than that of their address are dropped")
def _():
    receiver = Endpoint(DEVICE, e.IBV_QPT_UD)
    for source, target, index, by in (
        (HOST2, HOST1, GID_INDEX, "eth1"), (HOST2_V6, HOST1_V6, GID_INDEX6, "eth1"),
        (HOST2, HOST1, GID_INDEX, "vx0"), (HOST2_V6, HOST1_V6, GID_INDEX6, "vx0"),
        (VLAN_HOST2, VLAN_HOST1, VLAN_GID_INDEX, "inner7"),
    ):
        wire = PacketSocket("h2", by, forge.hardware_address("h1", by))
        expect_drops(
            receiver,
            lambda psn: wire.send(
                forge.packet(source, target, datagram(receiver.qp.qp_num, psn))),
            "interface", GRH, lambda: receiver.send(LEGITIMATE, gid_at(target), index))
        wire.close()


@case("datagrams through another network device are dropped before their ICRC is computed")
def _():
    receiver = Endpoint(DEVICE, e.IBV_QPT_UD)
    wire = PacketSocket("h2", "eth1", forge.hardware_address("h1", "eth1"))
    wrong, before = datagram(receiver.qp.qp_num, 0) + bytes(forge.ICRC_LEN), drop_count("icrc")
    expect_drops(receiver, lambda _: wire.send(forge.packet(HOST2, HOST1, wrong, icrc=False)),
                 "interface", GRH, lambda: receiver.send(LEGITIMATE, gid_at(HOST1)))
    equal(drop_count("icrc"), before, "dropped for icrc")
    wire.close()


@case("datagrams through another network device take no room in the inbox of a parked QP")
def _():
    receiver, other = Endpoint(DEVICE, e.IBV_QPT_UD, receives=False), Endpoint(DEVICE, e.IBV_QPT_UD)
    memory, faults = memory_with_unserved_faults(PAGE)
    region = register(receiver.pd, memory, ALL | e.IBV_ACCESS_ON_DEMAND)
    receiver.qp.post_recv(RecvWR(wr_id=0, num_sge=1, sg=[SGE(memory.address, PAGE, region.lkey)]))
    receiver.post_receives()
    other.send(LEGITIMATE, gid_at(HOST1), remote=receiver.qp.qp_num)
    userfault.await_fault(faults)
    wire, before = PacketSocket("h2", "eth1", forge.hardware_address("h1", "eth1")), drop_count("interface")
    forged = forge.packet(HOST2, HOST1, datagram(receiver.qp.qp_num, 0))
    # More packets than the inbox has room for.
    for sent in range(INBOX + 76):
        wire.send(forged)
        if sent % DEPTH == 0:
            time.sleep(0.01)
    end = time.monotonic() + 20
    while drop_count("interface") < before + INBOX + 76 and time.monotonic() < end:
        time.sleep(0.05)
    other.send(LEGITIMATE, gid_at(HOST1), remote=receiver.qp.qp_num)
    userfault.serve_zeros(faults, memory.address, PAGE)
    receiver.next_message()
    equal(memory.read(len(LEGITIMATE), GRH), LEGITIMATE, "the first message")
    equal(receiver.next_message(GRH), LEGITIMATE, "the second message")
    receiver.expect_nothing_forged()
    expect_drop_count("interface", before, INBOX + 76)
    wire.close()
    os.close(faults)


@case("packets of the peer through another network device are dropped")
def _():
    for by in ("eth1", "vx0"):
        local, peer = connected()
        wire, qpn = PacketSocket("h2", by, forge.hardware_address("h1", by)), local.qp.qp_num
        expect_drops(
            local,
            lambda psn: wire.send(
                forge.packet(HOST2, HOST1, forge.bth(RC | SEND_ONLY, qpn, psn) + FORGED)),
            "interface", 0, lambda: peer.send(LEGITIMATE))
        wire.close()


@case("packets of another host than the peer are dropped before their ICRC is computed")
def _():
    local, peer = connected()
    wire, qpn = PacketSocket("h2", "eth0", forge.hardware_address("h1", "eth0")), local.qp.qp_num
    wrong, before = bytes(forge.ICRC_LEN), drop_count("icrc")
    expect_drops(
        local,
        lambda psn: wire.send(forge.packet(
            THIRD_HOST, HOST1, forge.bth(RC | SEND_ONLY, qpn, psn) + FORGED + wrong, icrc=False)),
        "peer", 0, lambda: peer.send(LEGITIMATE))
    equal(drop_count("icrc"), before, "dropped for icrc")


@case("packets from outside with a source address of this host are dropped")
def _():
    receiver = Endpoint(DEVICE, e.IBV_QPT_UD)
    wire = PacketSocket("h2", "eth0", forge.hardware_address("h1", "eth0"))
    expect_drops(
        receiver,
        lambda psn: wire.send(
            forge.packet(HOST1_V6, HOST1_V6, datagram(receiver.qp.qp_num, psn))),
        "local", GRH, lambda: receiver.send(LEGITIMATE, gid_at(HOST1_V6), GID_INDEX6))


def toggle_address(where, device, address, times=1):
    """Adds and deletes an address on a network device of a namespace, `times` times."""
    line = f"addr add {address}/32 dev {device}\naddr del {address}/32 dev {device}\n"
    subprocess.run(["ip", "-n", where, "-batch", "-"], input=line * times, text=True, check=True)


def gid_change_events(context, work):
    """Calls `work`, then adds and deletes an address of the link, which causes two more events.
    Returns the number of GID_CHANGE events of the context, of both kinds. ib_core handles changes
    of addresses one after another, so it has handled those of `work` before the last two events."""
    work()
    seen = []
    toggle_address("h1", "eth0", "10.77.0.34")

    def count():
        seen.extend(kind for _, kind in context.events() if kind == GID_CHANGE)
        return len(seen) >= 2

    wait_until_equal(count, True, "two GID_CHANGE events arrive")
    time.sleep(2)
    count()
    return len(seen)


@case("an address in another network namespace is no GID, and its changes raise no event")
def _():
    context_of_link = Context(name=DEVICE)
    equal([has_gid(context_of_link, address) for address in (HOST1, "10.77.0.33")], [True, False],
          "GIDs of the port")
    context = extension.Context(extension.node_of(DEVICE))
    equal(gid_change_events(context, lambda: None), 2, "events of an address of the link")
    events = gid_change_events(context, lambda: toggle_address("h3", "macvlan3", "10.77.0.35", 50))
    equal(events, 2, "events, while addresses of another namespace changed")


sys.exit(main())
