#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests that hostile contexts do not take all time of the doorbell pollers from other contexts.

    poller_fairness.py DEVICE GID-INDEX

A poller is the work item of the driver that polls the doorbell page of one busy context. The module
is loaded with `pollers=1`: the pollers of all contexts run one at a time. A program sends 8 byte
WRITEs, one after another, through librrxe, while other contexts of the same device compete with it
for the pollers' time. All its round trips must end within a limit that only starvation exceeds: the
limit is many times the usual duration. The test prints the round-trip times of the program alone
and beside the others. Further cases check, by the kernel's trace events, that no softirq does work
that a process caused. shares.py checks the shares of the pollers' time.
"""

import functools
import json
import os
import subprocess
import sys
import threading
import time

from background_load import ENVIRONMENT, WRITE_BENCH, querying, for_each_count, ringing, sending
from cpu_time import packets_sent_by, packets_sent_during, runs_queued_during, worker_ticks
from extension import Context, Cq, Qp, gid_of, node_of
from pairs import (
    DEVICE, GID_INDEX, IS_DEBUG_KERNEL, LIMIT_SECONDS, Pair, case, equal, main, register_filled_buffer,
)

# Number of round trips. On the debug kernel one takes up to 30 ms.
ROUND_TRIPS = 200 if IS_DEBUG_KERNEL else 3000
# Number of packets that the processes that query must send during all WRITEs of the case. During a
# single call of write() they may send none, by chance.
MIN_PACKETS = 10


def check_round_trips(label):
    """Fails if the round trips take longer than the limit. Prints their median and average."""
    command = [*WRITE_BENCH, "spin", "8", str(ROUND_TRIPS), "1", "1"]
    done = subprocess.run(
        command, env=ENVIRONMENT, check=True, timeout=LIMIT_SECONDS, stdout=subprocess.PIPE)
    times = json.loads(done.stdout)
    median, average = times["ns_per_message"] / 1000, times["ns_mean"] / 1000
    print(f"# {label}: {median:.1f} us, on average {average:.1f}", flush=True)


def measure(count, name):
    check_round_trips(f"beside {count} {name}")


@case("poller fairness: the round trips of a program alone end in time")
def round_trips_alone():
    check_round_trips("alone")


@case("poller fairness: round trips end in time beside processes that send through librrxe")
def round_trips_beside_senders():
    for_each_count(sending, measure, "that send")


@case("poller fairness: round trips end in time beside contexts that ring without posts")
def round_trips_beside_useless_doorbells():
    for_each_count(functools.partial(ringing, kind="bells"), measure, "that ring without posts")


@case("poller fairness: round trips end in time beside contexts whose send queues are always full")
def round_trips_beside_full_queues():
    for_each_count(functools.partial(ringing, kind="posts"), measure, "with full queues")


def ticks_a_second():
    """Returns the CPU time of kernel workers, in ticks per second."""
    before, began = worker_ticks(), time.monotonic()
    time.sleep(2)
    return (worker_ticks() - before) / (time.monotonic() - began)


@case("poller fairness: contexts that ring without posts are polled for a quarter of a CPU at most")
def cost_of_useless_doorbells():
    with ringing(3, "bells"):
        time.sleep(2)
        # If the host stops a virtual CPU that runs a poller, that time counts as the poller's. A
        # poller that polls all the time takes CPU time in each of the five measurements, so the
        # minimum counts.
        rate = min(ticks_a_second() for _ in range(5))
    print(f"# {rate:.0f} ticks of pollers in a second")
    equal(rate <= os.sysconf("SC_CLK_TCK") / 4, True, "pollers take a quarter of a CPU at most")


@case("poller fairness: no softirq sends packets for doorbells")
def no_packets_by_softirqs():
    # Pages wait long for their pollers to run, so the driver's watchdogs (timers) end the polling.
    with ringing(8, "posts"):
        sent, by_softirqs = packets_sent_during(2)
    print(f"# {sent} packets, {by_softirqs} of them sent by softirqs")
    equal((sent > 0, by_softirqs), (True, 0), "packets, and those sent by softirqs")


# A query of a QP holds the lock of the QP's protocol engine. A doorbell call that finds the lock
# held leaves its run of the engine to the query.
@case("poller fairness: runs of a QP's engine that a query delays are not queued to softirq")
def no_softirq_runs_after_queries():
    context = Context(node_of(DEVICE))
    qp = Qp(context, Cq(context), GID_INDEX, gid_of(DEVICE, GID_INDEX))
    over = threading.Event()

    def repeat(call):
        while not over.is_set():
            call()

    calls = (qp.query, qp.ring_by_call, qp.ring_by_call)
    threads = [threading.Thread(target=repeat, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    count = runs_queued_during(lambda: time.sleep(5))
    over.set()
    for thread in threads:
        thread.join()
    context.close()
    equal(count, 0, "runs queued to softirq")


@case("poller fairness: a netlink query of a QP makes the runs of the engine that it has delayed")
def queries_run_the_engine():
    pair = Pair()
    source, (target, _) = register_filled_buffer(pair, 8)[1], register_filled_buffer(pair, 8)
    remote = (target.address, pair.kept[-1].rkey)
    messages = packets = 0

    def write():
        for _ in range(500):
            equal(pair.write(source, remote), 0, "status of a WRITE")

    end = time.monotonic() + LIMIT_SECONDS
    with querying(4, pair.qps[0].qp_num) as children:
        while packets < MIN_PACKETS and time.monotonic() < end:
            packets += packets_sent_by(children, write)
            messages += 500
    print(f"# {messages} messages, {packets} packets sent by processes that query")
    equal(packets >= MIN_PACKETS, True, "processes that query send packets of the QP")


sys.exit(main())
