#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""A UD QP one of whose receivers' hosts keeps all packets in a queue: kept.py DEVICE GID-INDEX KEEPER OTHER BROADCAST."""

import sys

import pyverbs.enums as e
from pyverbs.qp import QPAttr

from pairs import Datagrams, becomes, case, counter, main

KEEPER, OTHER, BROADCAST = sys.argv[3:]
# More than may be in flight, which is 64 packets.
KEPT, DATAGRAMS = 150, 20


def send(sender, address, count, counted="sent_pkts"):
    """Returns when all have left the QP."""
    before = counter(counted)
    handle = sender.post(address, count)
    becomes(lambda: counter(counted) - before >= count, True, f"{count} datagrams to {address} in {counted}")
    handle.close()


@case("kept: a UD QP sends to others, though a host keeps the packets that come to it")
def others_are_reached():
    sender = Datagrams()
    send(sender, OTHER, DATAGRAMS)
    send(sender, KEEPER, KEPT)
    send(sender, OTHER, DATAGRAMS)


@case("kept: the send queue of a UD QP is drained, though a host keeps the packets")
def is_drained():
    sender = Datagrams()

    def change(state):
        attr = QPAttr()
        attr.qp_state = state
        sender.qp.modify(attr, e.IBV_QP_STATE)

    handle = sender.post(KEEPER, KEPT)
    change(e.IBV_QPS_SQD)
    becomes(lambda: sender.qp.query(e.IBV_QP_STATE)[0].sq_draining, 0, "draining")
    change(e.IBV_QPS_RTS)
    becomes(sender.completed, KEPT, "completed datagrams")
    handle.close()


@case("kept: a UD QP sends nothing to all hosts of a network")
def no_broadcast():
    send(Datagrams(), BROADCAST, DATAGRAMS, counted="send_err")


sys.exit(main())
