#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""An MPI program of two processes that compares all data that it receives.

It makes messages of many sizes, exchanges, collective operations and one-sided accesses. It ends
with status 1 at the first difference. apps.sh starts it by mpirun, without arguments.
"""

import random
import sys

from mpi4py import MPI

SIZES = (0, 1, 8, 200, 1000, 4096, 10000, 65536, 300000)


def pattern(seed, size):
    return bytearray(random.Random(seed).randbytes(size))


def check_equal(equal, what):
    if not equal:
        print(f"wrong data: {what}", flush=True)
        MPI.COMM_WORLD.Abort(1)


def messages(world, rank):
    for size in SIZES:
        received = bytearray(size)
        if rank == 0:
            world.Send(pattern(size, size), dest=1, tag=size)
            world.Recv(received, source=1, tag=size)
            check_equal(received == pattern(size + 1, size), f"answer of {size}")
        else:
            world.Recv(received, source=0, tag=size)
            check_equal(received == pattern(size, size), f"message of {size}")
            world.Send(pattern(size + 1, size), dest=0, tag=size)


def exchanges(world, rank):
    """Sends messages of all sizes in both directions at the same time."""
    other = 1 - rank
    inbox = [bytearray(size) for size in SIZES]
    requests = [world.Irecv(buffer, source=other, tag=tag) for tag, buffer in enumerate(inbox)]
    requests += [world.Isend(pattern(10 * rank + tag, size), dest=other, tag=tag) for tag, size in enumerate(SIZES)]
    MPI.Request.Waitall(requests)
    for tag, buffer in enumerate(inbox):
        check_equal(buffer == pattern(10 * other + tag, len(buffer)), f"data of exchange {tag}")


def collectives(world, rank):
    check_equal(world.allreduce(rank + 1) == 3, "sum")
    check_equal(world.bcast("all" if rank == 0 else None, root=0) == "all", "broadcast")
    check_equal(world.allgather(rank * 7) == [0, 7], "gathering")


def one_sided(world, rank):
    """Each process writes to, reads from and adds to the memory of the other."""
    other = 1 - rank
    memory, fetched = bytearray(16384), bytearray(4096)
    window = MPI.Win.Create(memory, comm=world)
    # The source of a Put must stay alive until the next fence.
    source = pattern(5 + rank, 4096)
    window.Fence()
    window.Put([source, MPI.BYTE], other, target=4096)
    window.Fence()
    check_equal(memory[4096:8192] == pattern(5 + other, 4096), "data of a Put")
    window.Get([fetched, MPI.BYTE], other, target=4096)
    window.Fence()
    check_equal(fetched == source, "data of a Get")
    sums = [bytearray(8) for _ in range(5)]
    addend = (1000 + rank).to_bytes(8, sys.byteorder)
    window.Lock_all()
    for before in sums:
        window.Fetch_and_op([addend, MPI.INT64_T], [before, MPI.INT64_T], other, 0, MPI.SUM)
        window.Flush(other)
    window.Unlock_all()
    world.Barrier()
    found = [int.from_bytes(before, sys.byteorder) for before in sums]
    check_equal(found == [(1000 + rank) * step for step in range(5)], f"sums {found}")
    window.Lock(rank)
    window.Unlock(rank)
    total = int.from_bytes(memory[:8], sys.byteorder)
    check_equal(total == 5 * (1000 + other), f"the last sum, {total}")
    window.Free()


def main():
    world = MPI.COMM_WORLD
    rank = world.Get_rank()
    for part in (messages, exchanges, collectives, one_sided):
        part(world, rank)
        world.Barrier()
        if rank == 0:
            print(f"{part.__name__}: right", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
