#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Has the kernel make an algorithm of a name, which it then prefers to simpler ones: cipher.py NAME."""

import errno
import os
import socket
import struct
import sys

NETLINK_CRYPTO, CRYPTO_MSG_NEWALG, NLM_F_REQUEST_ACK, TYPE_AEAD = 21, 0x10, 5, 3
# struct nlmsghdr; struct crypto_user_alg (include/uapi/linux/cryptouser.h): two more names, type, mask, references, flags.
HEADER, BODY = struct.Struct("=IHHII"), struct.Struct("=64s128xIIII")


with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_CRYPTO) as netlink:
    body = BODY.pack(sys.argv[1].encode(), TYPE_AEAD, 0xf, 0, 0)
    netlink.send(HEADER.pack(HEADER.size + len(body), CRYPTO_MSG_NEWALG, NLM_F_REQUEST_ACK, 1, 0) + body)
    code = -struct.unpack_from("=i", netlink.recv(4096), HEADER.size)[0]
# EAGAIN tells that the algorithm was made, and that its name is another one: that of the algorithm within, "gcm(aes)".
if code not in (0, errno.EAGAIN):
    sys.exit(f"{sys.argv[1]}: {os.strerror(code)}")
