#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""uverbs calls, most of which librxe, the library of rdma_rxe, doesn't make.

They are plain and extended commands of write(), and methods of ioctl(). They work on pyverbs
contexts.
"""

import ctypes
import fcntl
import os
import struct

CHANGE_TRANSLATION, CHANGE_PD, CHANGE_ACCESS = 1, 2, 4

RDMA_DRIVER_RXE = 14
RDMA_VERBS_IOCTL = 0xC0181B01
MANDATORY = 1
OBJECT_DEVICE, OBJECT_PD, OBJECT_MR, OBJECT_DM = 0, 1, 7, 14
METHOD_QUERY_CONTEXT, METHOD_QUERY_PORT_SPEED = 4, 7
METHOD_DM_ALLOC, METHOD_DM_FREE = 0, 1
METHOD_MR_DESTROY, METHOD_ADVISE_MR, METHOD_QUERY_MR, METHOD_REG_DMABUF_MR, METHOD_REG_MR = 1, 2, 3, 4, 5


def errno_of(call, *arguments):
    """Makes the call. Returns 0, or the errno with which it fails."""
    try:
        call(*arguments)
    except OSError as error:
        return error.errno
    return 0


def rereg(context, mr, flags, start=0, length=0, iova=None, pd=None, access=0):
    """Reregisters a region (ibv_rereg_mr) and returns its lkey and rkey."""
    response = (ctypes.c_uint32 * 2)()
    handle = pd.handle if pd else 0
    command = struct.pack(
        "=IHHQIIQQQII", 11, 14, 2, ctypes.addressof(response), mr.handle, flags, start, length,
        start if iova is None else iova, handle, access,
    )
    os.write(context.cmd_fd, command)
    return tuple(response)


def extended(context, number, body, words=0, provider_words=0):
    """Writes an extended command with `body` as its request, and returns its response.

    `words` and `provider_words` are the lengths of ib_core's part and of the driver's part of the
    response, in units of 8 bytes.
    """
    body = body.ljust(-len(body) // 8 * -8, b"\0")
    response = (ctypes.c_uint64 * (words + provider_words))()
    address = ctypes.addressof(response) if response else 0
    header = struct.pack(
        "=IHHQHHI", 1 << 31 | number, len(body) // 8, words, address, 0, provider_words, 0)
    os.write(context.cmd_fd, header + body)
    return bytes(response)


def modify_cq(context, handle, count, period, mask=1):
    """Sets a CQ's moderation (ibv_modify_cq). `period` is in microseconds."""
    extended(context, 57, struct.pack("=IIHHI", handle, mask, count, period, 0))


def create_cq(context, entries, flags):
    """Creates a CQ (ibv_create_cq_ex) and returns its handle. No library has mapped its ring."""
    request = struct.pack("=QIIiIII", 0, entries, 0, -1, 0, flags, 0)
    return struct.unpack_from("=I", extended(context, 18, request, 2, 2))[0]


NORMAL, ALL_DEFAULT, MC_DEFAULT, SNIFFER = range(4)
ALLOW_LOOPBACK, DONT_TRAP, EGRESS = 1, 2, 4


def flow_spec(kind, value, mask):
    """Returns a struct ibv_flow_spec_*: a value, and the mask of its bits that must match."""
    return struct.pack("=IHH", kind, 8 + len(value) + len(mask), 0) + value + mask


def create_flow(context, qp, kind, priority, flags, specs):
    """Creates a flow (ibv_create_flow) for the QP with handle `qp`. Returns the flow's handle."""
    body = b"".join(specs)
    attr = struct.pack("=IHHBHBI", kind, len(body), priority, len(specs), 0, 1, flags)
    return struct.unpack_from("=I", extended(context, 50, struct.pack("=II", 0, qp) + attr + body, 1), 4)[0]


def destroy_flow(context, flow):
    extended(context, 51, struct.pack("=II", 0, flow))


def attach_mcast(context, qp, gid, lid=0, number=30):
    """Attaches the QP with handle `qp` to a group's GID (ibv_attach_mcast).

    The kernel detaches the QP when the process ends.
    """
    body = gid + struct.pack("=IHH", qp, lid, 0)
    command = struct.pack("=IHH", number, (8 + len(body)) // 4, 0) + body
    os.write(context.cmd_fd, command)


def detach_mcast(context, qp, gid):
    """Detaches a QP from a multicast group (ibv_detach_mcast)."""
    attach_mcast(context, qp, gid, number=31)


def ioctl(context, object_id, method, *attributes):
    """Calls a method of an object (RDMA_VERBS_IOCTL) and returns the message as the kernel left it.

    Attributes are (ID, value). An int is a handle or a value in the attribute itself. The contents
    of bytes go into the attribute if they are 8 bytes or fewer. Of other values the attribute has
    the address.
    """
    packed, buffers = b"", []
    for number, value in attributes:
        length = 0
        if not isinstance(value, int):
            length = len(value)
            if isinstance(value, bytes):
                value = ctypes.create_string_buffer(value, length)
            buffers.append(value)
            if length <= 8 and isinstance(value, ctypes.Array) and value._type_ is ctypes.c_char:
                value = int.from_bytes(bytes(value), "little")
            else:
                length = ctypes.sizeof(value)
                value = ctypes.addressof(value)
        packed += struct.pack("=HHHHQ", number, length, MANDATORY, 0, value)
    header = struct.pack(
        "=HHHHQII", 24 + len(packed), object_id, method, len(attributes), 0, RDMA_DRIVER_RXE, 0,
    )
    message = bytearray(header + packed)
    fcntl.ioctl(context.cmd_fd, RDMA_VERBS_IOCTL, message, True)
    return message


def _first_handle(message):
    """Returns the value that the kernel wrote into the first attribute: an object's handle."""
    return struct.unpack_from("=I", message, 24 + 8)[0]


def query_context(context):
    """Queries the context, as ibv_import_device does.

    Returns the number of completion vectors and the bits of the features that ib_core supports.
    """
    vectors, support = (ctypes.c_uint32 * 1)(), (ctypes.c_uint64 * 1)()
    ioctl(context, OBJECT_DEVICE, METHOD_QUERY_CONTEXT, (0, vectors), (1, support))
    return vectors[0], support[0]


def query_port_speed(context, port=1):
    """Returns the speed of a port (ibv_query_port_speed) in units of 100 Mb/s."""
    speed = (ctypes.c_uint64 * 1)()
    ioctl(context, OBJECT_DEVICE, METHOD_QUERY_PORT_SPEED, (0, quad(port)), (1, speed))
    return speed[0]


class IoctlMr:
    """A region that METHOD_REG_MR or METHOD_REG_DMABUF_MR registers."""

    def __init__(self, context, method, *attributes):
        self.context = context
        self.keys = [(ctypes.c_uint32 * 1)(), (ctypes.c_uint32 * 1)()]
        # The keys are the last two attributes of either method.
        last = 9 if method == METHOD_REG_MR else 7
        out = [(last, self.keys[0]), (last + 1, self.keys[1])]
        self.handle = _first_handle(ioctl(context, OBJECT_MR, method, (0, 0), *attributes, *out))
        self.lkey, self.rkey = self.keys[0][0], self.keys[1][0]

    @classmethod
    def imported(cls, context, handle):
        """Returns the object for a region that another process registered in the same context."""
        mr = cls.__new__(cls)
        mr.context, mr.handle = context, handle
        return mr

    def query(self):
        """Returns lkey, rkey, length and iova, as ibv_import_mr queries them."""
        words = [(ctypes.c_uint32 * 1)(), (ctypes.c_uint32 * 1)(), (ctypes.c_uint64 * 1)(), (ctypes.c_uint64 * 1)()]
        out = list(enumerate(words, 1))
        ioctl(self.context, OBJECT_MR, METHOD_QUERY_MR, (0, self.handle), *out)
        return tuple(word[0] for word in words)

    def close(self):
        ioctl(self.context, OBJECT_MR, METHOD_MR_DESTROY, (0, self.handle))


def quad(value):
    return struct.pack("=Q", value)


def word(value):
    return struct.pack("=I", value)


def alloc_dm(context, length, log_alignment=0):
    """Allocates device memory (ibv_alloc_dm) and returns its handle."""
    return _first_handle(ioctl(
        context, OBJECT_DM, METHOD_DM_ALLOC, (0, 0), (1, quad(length)), (2, word(log_alignment)),
    ))


def free_dm(context, handle):
    """Frees device memory (ibv_free_dm)."""
    ioctl(context, OBJECT_DM, METHOD_DM_FREE, (0, handle))


def reg_mr(pd, context, address, length, iova, access):
    """Registers memory (UVERBS_METHOD_REG_MR). `iova` is its address in work requests."""
    return IoctlMr(
        context, METHOD_REG_MR, (1, pd.handle), (3, quad(iova)), (4, quad(address)), (5, quad(length)),
        (6, word(access)),
    )


def reg_dmabuf_mr(pd, context, fd, offset, length, iova, access):
    """Registers a part of a dma-buf (UVERBS_METHOD_REG_DMABUF_MR)."""
    return IoctlMr(
        context, METHOD_REG_DMABUF_MR, (1, pd.handle), (2, quad(offset)), (3, quad(length)), (4, quad(iova)),
        (5, word(fd)), (6, word(access)),
    )


def advise_mr(pd, context, advice, flags, sges):
    """Gives advice about memory (ibv_advise_mr). `sges` are (address, length, lkey)."""
    packed = b"".join(struct.pack("=QII", *sge) for sge in sges)
    ioctl(
        context, OBJECT_MR, METHOD_ADVISE_MR, (0, pd.handle), (1, quad(advice)), (2, word(flags)),
        (3, packed.ljust(16, b"\0")),
    )
