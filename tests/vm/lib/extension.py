#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Verbs objects that use rrxe's own ABI (include/uapi/rdma/rrxe-abi.h) without a library.

The objects are made by the write() commands of uverbs. The program accesses the rings and the
doorbell page in shared memory itself, so a test can also write values that no library writes.
"""

import ctypes
import mmap
import os
import socket
import struct

# Numbers of commands (enum ib_uverbs_write_cmds, rdma/ib_user_verbs.h).
GET_CONTEXT, ALLOC_PD, REG_MR, CREATE_COMP_CHANNEL, CREATE_CQ, REQ_NOTIFY_CQ = 0, 3, 9, 17, 18, 23
CREATE_QP, QUERY_QP, MODIFY_QP, DESTROY_QP, POST_SEND, CREATE_SRQ, MODIFY_SRQ = 24, 25, 26, 27, 28, 32, 33
ALLOC_MW, ATTACH_MCAST = 14, 30

# Features (enum rrxe_feature, rdma/rrxe-abi.h).
DOORBELL, CQ_ARM, CQ_NEWS = 1, 2, 8
# A bit of rrxe_doorbell.state.
NEED_WAKEUP = 1
NO_SLOT = 0xffffffff
# Offsets of fields in struct rrxe_doorbell, in bytes.
SUMMARY, DIRTY = 64, 4096
# Doorbells in one page.
SLOTS = 32768

# Offsets in a ring, in bytes. Only the ring of a CQ has NEWS and ARM.
PRODUCER, NEWS, CONSUMER, ARM, ELEMENTS = 128, 132, 256, 320, 384
ARM_NONE, ARM_SOLICITED, ARM_NEXT = 0, 1, 2
NEWS_NONE, NEWS_ANY, NEWS_SOLICITED = 0, 1, 2

# Opcodes and send flags of work requests (enum ib_uverbs_wr_opcode, enum ibv_send_flags).
WRITE, SEND, BIND_MW = 0, 2, 8
SIGNALED, SOLICITED = 2, 4


class Mapped:
    """Memory that the kernel shares with the process by mmap(), accessed word by word."""

    def __init__(self, fd, offset, size):
        # The driver must not use offset 0. While ib_core makes an mmap entry, the entry's
        # start_pgoff is 0, so ib_core would take an incomplete entry at page 0 for a complete one
        # (rdma_user_mmap_entry_get_pgoff(), ib_core_uverbs.c).
        assert offset, "an offset of zero"
        self.memory = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=offset)
        self.size = size
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def u32(self, offset):
        return ctypes.c_uint32.from_address(self.address + offset)

    def u64(self, offset):
        return ctypes.c_uint64.from_address(self.address + offset)


class Context:
    """An open device.

    `request` is the driver's part of the request that makes the context (struct
    rrxe_alloc_ucontext_req). `room` is the number of bytes for the driver's part of the response.
    """

    def __init__(self, node, request=struct.pack("=II", 1, DOORBELL | CQ_ARM), room=24):
        self.fd = os.open(f"/dev/infiniband/{node}", os.O_RDWR | os.O_CLOEXEC)
        try:
            answer = self.call(GET_CONTEXT, request, 8 + room)
        except OSError:
            os.close(self.fd)
            raise
        self.async_fd, _ = struct.unpack_from("=II", answer)
        self.version = self.features = self.size = 0
        self.page = None
        if room == 24:
            self.version, self.features, offset, self.size, _ = struct.unpack_from("=IIQII", answer, 8)
            if self.size:
                self.page = Mapped(self.fd, offset, self.size)
        if request or room:
            self.pd, = struct.unpack("=I", self.call(ALLOC_PD, b"", 4))

    def call(self, command, request, room):
        """Writes a command, and returns its response of `room` bytes.

        The command's first field is the address of the response.
        """
        response = ctypes.create_string_buffer(max(room, 8))
        body = struct.pack("=Q", ctypes.addressof(response)) + request
        os.write(self.fd, struct.pack("=IHH", command, (8 + len(body)) // 4, room // 4) + body)
        return response.raw[:room]

    def reg(self, buffer, access=0xf):
        """Registers a region and returns its lkey and rkey."""
        request = struct.pack("=QQQII", buffer.address, buffer.length, buffer.address, self.pd, access)
        return struct.unpack("=III", self.call(REG_MR, request, 12))[1:]

    def alloc_mw(self):
        """Allocates a memory window of type 1 and returns its rkey."""
        return struct.unpack("=II", self.call(ALLOC_MW, struct.pack("=IB3x", self.pd, 1), 8))[1]

    def needs_call(self):
        """Returns whether doorbells need the doorbell system call, too: the page is not polled."""
        return self.page.u32(0).value & NEED_WAKEUP != 0

    def events(self):
        """Takes the asynchronous events of all objects. Returns (user handle, type) of each."""
        os.set_blocking(self.async_fd, False)
        taken = []
        while True:
            try:
                taken.append(struct.unpack("=QII", os.read(self.async_fd, 16))[:2])
            except BlockingIOError:
                return taken

    def close(self):
        os.close(self.async_fd)
        os.close(self.fd)


class Cq:
    """A completion queue with a completion channel."""

    def __init__(self, context, entries=64):
        self.context = context
        self.channel, = struct.unpack("=I", context.call(CREATE_COMP_CHANNEL, b"", 4))
        os.set_blocking(self.channel, False)
        request = struct.pack("=QIIiI", 0, entries, 0, self.channel, 0)
        self.handle, _, offset, size, _ = struct.unpack("=IIQII", context.call(CREATE_CQ, request, 24))
        self.ring = Mapped(context.fd, offset, size)
        self.mask = self.ring.u32(4).value

    def poll(self):
        """Takes the oldest completion. Returns its (wr_id, status), or None if there is none."""
        head = self.ring.u32(CONSUMER).value
        if head == self.ring.u32(PRODUCER).value:
            return None
        entry = ELEMENTS + head * 64
        self.ring.u32(CONSUMER).value = (head + 1) & self.mask
        return self.ring.u64(entry).value, self.ring.u32(entry + 8).value

    def arm(self, when):
        """Arms the CQ by the word in its ring. `when` is one of ARM_*."""
        self.ring.u32(ARM).value = when

    def request(self, solicited=False):
        """Arms the CQ by the system call that librxe, the library of rdma_rxe, makes."""
        os.write(self.context.fd, struct.pack("=IHHII", REQ_NOTIFY_CQ, 4, 0, self.handle, solicited))

    def has_unread(self):
        return self.ring.u32(CONSUMER).value != self.ring.u32(PRODUCER).value

    def unannounced_kind(self):
        """Returns the kind, NEWS_*, of the completions that no notification has covered yet."""
        return self.ring.u32(NEWS).value

    def events(self):
        """Takes all notifications of the completion channel. Returns how many there were."""
        count = 0
        while True:
            try:
                count += len(os.read(self.channel, 8)) // 8
            except BlockingIOError:
                return count


class Srq:
    """A shared receive queue without posted receives."""

    def __init__(self, context):
        self.context = context
        request = struct.pack("=QIIII", 0, context.pd, 8, 1, 0)
        self.handle, = struct.unpack_from("=I", context.call(CREATE_SRQ, request, 16 + 24))

    def limit(self, limit):
        """Arms the SRQ limit event, raised once fewer than `limit` receives are posted."""
        body = struct.pack("=IIIIQ", self.handle, 2, 0, limit, 0)
        os.write(self.context.fd, struct.pack("=IHH", MODIFY_SRQ, (8 + len(body)) // 4, 0) + body)


class Qp:
    """An RC QP. It is connected to itself, unless `connect` is False."""

    def __init__(self, context, cq, gid_index, gid, depth=64, connect=True):
        self.context, self.cq = context, cq
        request = struct.pack(
            "=QIIIIIIIIIBBBB", 0, context.pd, cq.handle, cq.handle, 0, depth, depth, 1, 1, 0, 0, 2, 0, 0)
        answer = context.call(CREATE_QP, request, 32 + 40)
        self.handle, self.number = struct.unpack_from("=II", answer)
        receives, room, _, offset, size, _, self.slot, _ = struct.unpack_from("=QIIQIIII", answer, 32)
        self.ring = Mapped(context.fd, offset, size)
        self.receives = Mapped(context.fd, receives, room)
        self.mask = self.ring.u32(4).value
        self.element = 1 << self.ring.u32(0).value
        if connect:
            self.connect(gid_index, gid)

    def modification(self, mask, state, gid=bytes(16), gid_index=0, qkey=0):
        """Returns the bytes of a modify_qp command with this attribute mask."""
        path = struct.pack("=16sIHHBBBBBBBB", gid, 0, 0, 0, gid_index, 64, 0, 0, 0, 0, 1, 1)
        rest = struct.pack(
            "=IIIIIIIHH", self.handle, mask, qkey, 0, 0, self.number, 0xf, 0, 0)
        rest += struct.pack("=BBBBBBBBBBBBBBBB", state, 0, 3, 0, 0, 1, 1, 12, 1, 14, 7, 7, 0, 0, 0, 0)
        body = path + bytes(32) + rest
        return struct.pack("=IHH", MODIFY_QP, (8 + len(body)) // 4, 0) + body

    def modify(self, *arguments, **named):
        os.write(self.context.fd, self.modification(*arguments, **named))

    def connect(self, gid_index, gid):
        state, access, pkey, port, av, mtu = 1, 1 << 3, 1 << 4, 1 << 5, 1 << 7, 1 << 8
        timeout, retry, rnr, rq_psn, reads, rnr_timer, sq_psn, dest_reads, dest = (
            1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 15, 1 << 16, 1 << 17, 1 << 20)
        self.modify(state | access | pkey | port, 1)
        self.modify(state | av | mtu | dest | rq_psn | dest_reads | rnr_timer, 2, gid, gid_index)
        self.modify(state | timeout | retry | rnr | sq_psn | reads, 3)

    def write(self, wr_id, source, lkey, target, rkey, length, flags=SIGNALED):
        """Adds the WQE of an RDMA WRITE to the send queue."""
        wqe = bytearray(224)
        struct.pack_into("=QIII", wqe, 0, wr_id, 1, WRITE, flags)
        struct.pack_into("=QI", wqe, 24, target, rkey)
        struct.pack_into("=III", wqe, 184, length, length, 0)
        struct.pack_into("=I", wqe, 196, 1)
        struct.pack_into("=QII", wqe, 208, source, length, lkey)
        self.add_wqe(wqe)

    def bind(self, wr_id, window, lkey, buffer, access):
        """Adds the WQE that binds a window, under its present key, to a whole region."""
        wqe = bytearray(224)
        struct.pack_into("=QIII", wqe, 0, wr_id, 1, BIND_MW, SIGNALED)
        struct.pack_into("=QQ", wqe, 24, buffer.address, buffer.length)
        struct.pack_into("=IIII", wqe, 40, lkey, window, window, access)
        self.add_wqe(wqe)

    def add_wqe(self, wqe):
        """Copies a WQE into the send queue's ring and advances the ring's producer index.

        Does not ring the doorbell.
        """
        tail = self.ring.u32(PRODUCER).value
        ctypes.memmove(self.ring.address + ELEMENTS + tail * self.element, bytes(wqe), len(wqe))
        self.ring.u32(PRODUCER).value = (tail + 1) & self.mask

    def doorbell_is_set(self):
        """Returns whether the QP's doorbell is set, and the kernel has not cleared it yet."""
        return self.context.page.u64(DIRTY + 8 * (self.slot // 64)).value >> self.slot % 64 & 1 == 1

    def ring_bell(self):
        """Sets the QP's doorbell, without a system call.

        The QP must be the only one of its context, because the accesses are not atomic.
        """
        page, leaf = self.context.page, self.slot // 64
        page.u64(DIRTY + 8 * leaf).value |= 1 << (self.slot % 64)
        page.u64(SUMMARY + 8 * (leaf // 64)).value |= 1 << (leaf % 64)

    def ring_by_call(self):
        """Rings the doorbell by the system call that stock librxe makes."""
        self.context.call(POST_SEND, struct.pack("=IIII", self.handle, 0, 0, 128), 4)

    def query(self):
        """Asks for the attributes."""
        self.context.call(QUERY_QP, struct.pack("=II", self.handle, 0), 128)

    def destroy(self):
        self.context.call(DESTROY_QP, struct.pack("=II", self.handle, 0), 4)


def gid_of(device, index):
    """Returns the 16 bytes of a GID."""
    with open(f"/sys/class/infiniband/{device}/ports/1/gids/{index}") as gid:
        return socket.inet_pton(socket.AF_INET6, gid.read().strip())


def node_of(device):
    """Returns the name of a device's file in /dev/infiniband, such as "uverbs0"."""
    for name in os.listdir("/sys/class/infiniband_verbs"):
        if name.startswith("uverbs"):
            with open(f"/sys/class/infiniband_verbs/{name}/ibdev") as ibdev:
                if ibdev.read().strip() == device:
                    return name
    raise AssertionError(f"no device file for {device}")
