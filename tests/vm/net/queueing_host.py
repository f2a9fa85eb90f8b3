#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests that a UD QP goes on sending although one destination host keeps all packets it receives.

  queueing_host.py DEVICE GID-INDEX KEEPER OTHER BROADCAST

DEVICE is a link of host 1. The host with the address KEEPER keeps all RoCEv2 packets in a queue, in
the buffers that host 1 sent, so they stay in flight. OTHER is the address of a third host,
BROADCAST the broadcast address of the network.
"""

import sys

import pyverbs.enums as e
from pyverbs.qp import QPAttr

from pairs import Datagrams, case, counter, main, wait_until_equal

KEEPER, OTHER, BROADCAST = sys.argv[3:]
# Number of datagrams to the host that keeps them, more than the tx limit of a QP (64 packets,
# limits.rs: PACKETS_IN_FLIGHT). Number of datagrams to each other address.
KEPT_DATAGRAMS, DATAGRAMS = 150, 20


def send(sender, address, count, counter_name="sent_pkts"):
    """Sends `count` datagrams to the address, and waits until the counter has counted them."""
    before = counter(counter_name)
    handle = sender.post(address, count)
    wait_until_equal(lambda: counter(counter_name) - before >= count, True,
            f"{count} datagrams to {address} in {counter_name}")
    handle.close()


@case("queueing host: a UD QP sends to other hosts although one host keeps its packets")
def others_are_reached():
    sender = Datagrams()
    send(sender, OTHER, DATAGRAMS)
    send(sender, KEEPER, KEPT_DATAGRAMS)
    send(sender, OTHER, DATAGRAMS)


@case("queueing host: a UD QP in SQD drains although the destination keeps its packets")
def is_drained():
    sender = Datagrams()

    def change(state):
        attr = QPAttr()
        attr.qp_state = state
        sender.qp.modify(attr, e.IBV_QP_STATE)

    handle = sender.post(KEEPER, KEPT_DATAGRAMS)
    change(e.IBV_QPS_SQD)
    wait_until_equal(lambda: sender.qp.query(e.IBV_QP_STATE)[0].sq_draining, 0, "draining")
    change(e.IBV_QPS_RTS)
    wait_until_equal(sender.completed, KEPT_DATAGRAMS, "completed datagrams")
    handle.close()


@case("queueing host: a UD QP sends no datagram to a broadcast address")
def no_broadcast():
    send(Datagrams(), BROADCAST, DATAGRAMS, counter_name="send_err")


sys.exit(main())
