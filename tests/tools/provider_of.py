#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Prints the provider library that serves a device of rrxe or of C rxe: rrxe (librrxe) or rxe
(stock librxe). Only librrxe has parent domains."""
import errno
import sys

from pyverbs.device import Context
from pyverbs.pd import PD, ParentDomain, ParentDomainInitAttr
from pyverbs.pyverbs_error import PyverbsRDMAError

context = Context(name=sys.argv[1])
pd = PD(context)
try:
    ParentDomain(context, attr=ParentDomainInitAttr(pd=pd))
    print("rrxe")
except PyverbsRDMAError as refused:
    assert refused.error_code == errno.EOPNOTSUPP
    print("rxe")
