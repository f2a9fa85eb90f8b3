#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests when the driver notifies a process of the completions of an armed CQ.

    arming.py DEVICE GID-INDEX

A CQ is armed in two ways: by the call of uverbs (REQ_NOTIFY_CQ), or by a store to the arm word in
the CQ's ring (RRXE_FEATURE_CQ_ARM of rrxe-abi.h). Most cases run for both ways. Each case uses one
QP of the device that is connected to itself. The cases "events: ..." test how many asynchronous
events the driver queues for a process that does not read them.
"""

import select
import struct
import sys
import time

from cgroups import join, memory_group, remove_group
from pairs import (
    DEVICE, GID_INDEX, PAGE, PATIENCE, Buffer, case, equal, in_child, main, wait_until_equal,
)
from extension import (
    ARM_NEXT, ARM_SOLICITED, CQ_ARM, CQ_NEWS, DOORBELL, NEWS_ANY, NEWS_SOLICITED, PRODUCER,
    SIGNALED, Context, Cq, Qp, Srq, gid_of, node_of,
)

GID, NODE = gid_of(DEVICE, GID_INDEX), node_of(DEVICE)
# Maximum number of unread notifications of a CQ (MAX_EVENTS of verbs/cq/notify.rs).
MOST_EVENTS = 16
# Maximum number of unread asynchronous events of a QP or an SRQ (MAX_UNREAD of
# rust/rdma/verbs/unread.rs).
MOST_ASYNC = 16
# Number of unread asynchronous events that any object may have, and number of objects of a memory
# cgroup that may have more (objects_with_events of OF_CGROUP in limits.rs).
FEW_ASYNC, MOST_WITH_MANY = 2, 2048
EVENT_ACCESS_ERROR, EVENT_SRQ_LIMIT = 3, 15
# Seconds after which no further notification is expected. A notification takes less time, and so
# does the delay that lets a process poll a CQ after arming it (20 us, GRACE of verbs/cq/notify.rs).
SOON = 0.3


class Consumer:
    """A QP connected to itself. The test takes its completions one by one."""

    def __init__(self, features):
        self.context = Context(NODE, struct.pack("=II", 1, features))
        equal(self.context.features, features, "features granted")
        self.by_word = bool(features & CQ_ARM)
        self.cq = Cq(self.context)
        self.qp = Qp(self.context, self.cq, GID_INDEX, GID)
        self.buffer = Buffer(PAGE)
        self.lkey, self.rkey = self.context.reg(self.buffer)
        self.count = 0

    def complete(self, wrong=0):
        """Causes one more completion and leaves it in the CQ. It is in error unless `wrong` is 0,
        because `wrong` is XORed into the rkey."""
        before = self.cq.ring.u32(PRODUCER).value
        self.count += 1
        where = self.buffer.address
        self.qp.write(self.count, where, self.lkey, where + 64, self.rkey ^ wrong, 8, SIGNALED)
        self.qp.call()
        end = time.monotonic() + PATIENCE
        while self.cq.ring.u32(PRODUCER).value == before:
            equal(time.monotonic() < end, True, "a completion in time")

    def arm(self, when=ARM_NEXT):
        """Arms the CQ as librrxe does: by the arm word, and by the call, too, if the CQ has
        completions of which the kernel has not notified yet."""
        solicited = when == ARM_SOLICITED
        if not self.by_word:
            return self.cq.request(solicited)
        self.cq.arm(when)
        if self.cq.has_unread() and self.cq.news() >= (NEWS_SOLICITED if solicited else NEWS_ANY):
            self.cq.request(solicited)

    def is_told(self, seconds=PATIENCE):
        """Waits at most `seconds` for a notification. Takes all, and returns their number."""
        select.select([self.cq.channel], [], [], seconds)
        return self.cq.events()

    def take(self):
        equal(self.cq.poll() is not None, True, "a completion")


def both(function):
    """Decorates a case, so that it runs for arming by the call and for arming by the arm word."""
    def run():
        for features in DOORBELL, DOORBELL | CQ_ARM | CQ_NEWS:
            consumer = Consumer(features)
            function(consumer)
            consumer.context.close()
    return run


@case("arming: a completion that nobody was told of notifies at once")
@both
def untold(consumer):
    for _ in range(20):
        consumer.complete()
        equal(consumer.cq.events(), 0, "events of a CQ that is not armed")
        consumer.arm()
        equal(consumer.is_told(), 1, "events once it is armed")
        consumer.take()
        equal(consumer.is_told(0), 0, "events after that")


@case("arming: what a notification told of does not notify again")
@both
def told(consumer):
    consumer.arm()
    consumer.complete()
    equal(consumer.is_told(), 1, "events of the first")
    consumer.arm()
    equal(consumer.is_told(SOON), 0, "events of what was told")
    consumer.complete()
    equal(consumer.is_told(), 1, "events of the second")
    consumer.complete()
    consumer.take()
    consumer.take()
    consumer.arm()
    equal(consumer.is_told(), 1, "events of the third, which is there still")


@case("arming: what was polled does not notify")
@both
def polled(consumer):
    for _ in range(70):
        consumer.complete()
        consumer.take()
    consumer.arm()
    equal(consumer.is_told(SOON), 0, "events of an empty queue")
    consumer.complete()
    equal(consumer.is_told(), 1, "events of the next completion")


@case("arming: a program that arms and polls gets one event a completion")
@both
def one_each(consumer):
    events = 0
    consumer.arm()
    for _ in range(200):
        consumer.complete()
        events += consumer.is_told()
        consumer.arm()
        consumer.take()
    equal(events + consumer.is_told(SOON), 200, "events")


@case("arming: for solicited completions, others in the queue do not notify")
@both
def solicited(consumer):
    consumer.complete()
    consumer.arm(ARM_SOLICITED)
    equal(consumer.is_told(SOON), 0, "events of a write")
    consumer.take()
    consumer.complete(wrong=1)
    equal(consumer.is_told(), 1, "events of an error")
    consumer.arm(ARM_SOLICITED)
    equal(consumer.is_told(SOON), 0, "events of the error again")


@case("arming: for solicited completions, one in the queue notifies at once")
@both
def solicited_untold(consumer):
    consumer.complete()
    consumer.complete(wrong=1)
    equal(consumer.cq.events(), 0, "events of a CQ that is not armed")
    consumer.arm(ARM_SOLICITED)
    equal(consumer.is_told(), 1, "events once it is armed")
    consumer.take()
    consumer.arm(ARM_SOLICITED)
    equal(consumer.is_told(SOON), 0, "events of the error again")


@case("arming: events that nobody reads are few, and none is lost that matters")
@both
def unread(consumer):
    for _ in range(4 * MOST_EVENTS):
        consumer.arm()
        consumer.complete()
        consumer.take()
    time.sleep(SOON)
    count = consumer.cq.events()
    equal(1 <= count <= MOST_EVENTS, True, f"at most {MOST_EVENTS} events, and there are {count}")
    for _ in range(2 * MOST_EVENTS):
        consumer.arm()
        consumer.complete()
        equal(consumer.is_told(), 1, "events of a process that reads them")
        consumer.take()


def taken(context, count):
    """Takes asynchronous events until there are `count` or more, and returns their types."""
    found = []

    def are_there():
        found.extend(event for _, event in context.events())
        return len(found) >= count

    wait_until_equal(are_there, True, "events")
    return found


def few_async(context, cause, kind):
    """Causes many events of type `kind` before it reads any, then reads each event at once."""
    for _ in range(4 * MOST_ASYNC):
        cause()
    equal(taken(context, MOST_ASYNC), [kind] * MOST_ASYNC, "unread events")
    for _ in range(2 * MOST_ASYNC):
        cause()
        equal(taken(context, 1), [kind], "the event of a process that reads it")


@case("events: those of an SRQ that nobody reads are few")
def unread_limits():
    context = Context(NODE)
    srq = Srq(context)
    few_async(context, lambda: srq.limit(1), EVENT_SRQ_LIMIT)
    context.close()


def keep_many_unread(group):
    """Joins the memory cgroup, and causes events of more SRQs than may have many unread events."""
    join(group)
    context = Context(NODE)
    queues = [Srq(context) for _ in range(MOST_WITH_MANY + 10)]
    for srq in queues:
        for _ in range(FEW_ASYNC + 2):
            srq.limit(1)
    most = len(queues) * FEW_ASYNC + MOST_WITH_MANY * 2
    equal(len(context.events()), most, "unread events")
    for srq in queues[-2:]:
        for _ in range(2 * MOST_ASYNC):
            srq.limit(1)
    equal(len(context.events()), 2 * FEW_ASYNC, "unread events while others have the room")
    for srq in queues:
        srq.limit(1)
    for _ in range(4):
        queues[-1].limit(1)
    equal(len(context.events()), len(queues) + 4, "unread events once there is room")
    context.close()


@case("events: few objects of a memory cgroup have more than few that nobody reads")
def unread_of_many():
    group = memory_group("unread")
    in_child(lambda: keep_many_unread(group))
    remove_group(group)


@case("events: those of a QP that nobody reads are few")
def unread_errors():
    consumer = Consumer(DOORBELL)

    def fail():
        consumer.complete(wrong=1)
        consumer.take()
        consumer.qp.modify(1, 0)
        consumer.qp.connect(GID_INDEX, GID)

    few_async(consumer.context, fail, EVENT_ACCESS_ERROR)
    consumer.context.close()


sys.exit(main())
