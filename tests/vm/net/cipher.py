#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Has the kernel's crypto API instantiate the AEAD algorithm NAME, a template with its argument.

  cipher.py NAME

The kernel then prefers it to other implementations of the same algorithm. Tests use it for
asynchronous ciphers, such as "pcrypt(gcm(aes))".
"""

import errno
import os
import socket
import struct
import sys

NETLINK_CRYPTO, CRYPTO_MSG_NEWALG, NLM_F_REQUEST_ACK, TYPE_AEAD = 21, 0x10, 5, 3
# struct nlmsghdr; struct crypto_user_alg (include/uapi/linux/cryptouser.h): the name, two more
# names that stay empty, type, mask, reference count and flags.
HEADER, BODY = struct.Struct("=IHHII"), struct.Struct("=64s128xIIII")


with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_CRYPTO) as netlink:
    body = BODY.pack(sys.argv[1].encode(), TYPE_AEAD, 0xf, 0, 0)
    netlink.send(HEADER.pack(HEADER.size + len(body), CRYPTO_MSG_NEWALG, NLM_F_REQUEST_ACK, 1, 0) + body)
    error = -struct.unpack_from("=i", netlink.recv(4096), HEADER.size)[0]
# EAGAIN means that the kernel has instantiated the algorithm, and that the algorithm's name differs
# from NAME: it is that of the inner algorithm, such as "gcm(aes)".
if error not in (0, errno.EAGAIN):
    sys.exit(f"{sys.argv[1]}: {os.strerror(error)}")
