#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Runs on: guest
"""Tests when the driver notifies a process of the completions of an armed CQ.

    arming.py DEVICE GID-INDEX

A CQ is armed in two ways: by the call of uverbs (REQ_NOTIFY_CQ), or by a store to the arm word in
the CQ's ring (RRXE_FEATURE_CQ_ARM of rrxe-abi.h). Most cases run for both ways. Each case, except
those of SRQs, uses one QP of the device that is connected to itself. The cases "events: ..." test
how many asynchronous events the driver queues for a process that does not read them.
"""

import select
import struct
import sys
import time

from cgroups import join, memory_group, remove_group
from pairs import (
    DEVICE, GID_INDEX, PAGE, LIMIT_SECONDS, Buffer, case, equal, in_child, main, wait_until_equal,
)
from extension import (
    ARM_NEXT, ARM_SOLICITED, CQ_ARM, CQ_NEWS, DOORBELL, NEWS_ANY, NEWS_SOLICITED, PRODUCER,
    SIGNALED, Context, Cq, Qp, Srq, gid_of, node_of,
)

GID, NODE = gid_of(DEVICE, GID_INDEX), node_of(DEVICE)
# Maximum number of unread notifications of a CQ (MAX_EVENTS of verbs/cq/notify.rs).
MAX_UNREAD_EVENTS = 16
# Maximum number of unread asynchronous events of a QP or an SRQ (MAX_UNREAD of
# rust/rdma/verbs/unread.rs).
MAX_ASYNC_EVENTS = 16
# Number of unread asynchronous events that any object may have, and number of objects of a memory
# cgroup that may have more (objects_with_events of OF_CGROUP in limits.rs).
ASYNC_EVENTS_OF_ANY, MAX_OBJECTS_WITH_MANY = 2, 2048
EVENT_ACCESS_ERROR, EVENT_SRQ_LIMIT = 3, 15
# Seconds after which no further notification is expected. A notification takes less time, and so
# does the delay that lets a process poll a CQ after arming it (20 us, GRACE of verbs/cq/notify.rs).
QUIET_SECONDS = 0.3


class Consumer:
    """A QP connected to itself. The test takes its completions one by one."""

    def __init__(self, features):
        self.context = Context(NODE, struct.pack("=II", 1, features))
        equal(self.context.features, features, "features granted")
        self.uses_arm_word = bool(features & CQ_ARM)
        self.cq = Cq(self.context)
        self.qp = Qp(self.context, self.cq, GID_INDEX, GID)
        self.buffer = Buffer(PAGE)
        self.lkey, self.rkey = self.context.reg(self.buffer)
        self.count = 0

    def complete(self, rkey_xor=0):
        """Causes one more completion and leaves it in the CQ. It is an error completion unless
        `rkey_xor` is 0."""
        before = self.cq.ring.u32(PRODUCER).value
        self.count += 1
        source = self.buffer.address
        self.qp.write(self.count, source, self.lkey, source + 64, self.rkey ^ rkey_xor, 8, SIGNALED)
        self.qp.ring_by_call()
        end = time.monotonic() + LIMIT_SECONDS
        while self.cq.ring.u32(PRODUCER).value == before:
            equal(time.monotonic() < end, True, "a completion in time")

    def arm(self, when=ARM_NEXT):
        """Arms the CQ by the call, or as librrxe does if the arm word is used: by that word, and by
        the call, too, if the CQ has completions of which the kernel has not notified yet."""
        solicited = when == ARM_SOLICITED
        if not self.uses_arm_word:
            return self.cq.request(solicited)
        self.cq.arm(when)
        if self.cq.has_unread() and self.cq.unannounced_kind() >= (NEWS_SOLICITED if solicited else NEWS_ANY):
            self.cq.request(solicited)

    def events_within(self, seconds=LIMIT_SECONDS):
        """Waits at most `seconds` for a notification. Takes all, and returns their number."""
        select.select([self.cq.channel], [], [], seconds)
        return self.cq.events()

    def poll_one(self):
        equal(self.cq.poll() is not None, True, "a completion")


def by_call_and_by_word(function):
    """Decorates a case, so that it runs for arming by the call and for arming by the arm word."""
    def run():
        for features in DOORBELL, DOORBELL | CQ_ARM | CQ_NEWS:
            consumer = Consumer(features)
            function(consumer)
            consumer.context.close()
    return run


@case("arming: a completion for which no notification was raised notifies at once")
@by_call_and_by_word
def notifies_of_pending_completion(consumer):
    for _ in range(20):
        consumer.complete()
        equal(consumer.cq.events(), 0, "events of a CQ that is not armed")
        consumer.arm()
        equal(consumer.events_within(), 1, "events after arming")
        consumer.poll_one()
        equal(consumer.events_within(0), 0, "events after the completion was polled")


@case("arming: a completion for which a notification was raised does not notify again")
@by_call_and_by_word
def notifies_once(consumer):
    consumer.arm()
    consumer.complete()
    equal(consumer.events_within(), 1, "events of the first completion")
    consumer.arm()
    equal(consumer.events_within(QUIET_SECONDS), 0, "further events of the first completion")
    consumer.complete()
    equal(consumer.events_within(), 1, "events of the second completion")
    consumer.complete()
    consumer.poll_one()
    consumer.poll_one()
    consumer.arm()
    equal(consumer.events_within(), 1, "events of the third completion, which is still in the CQ")


@case("arming: completions that were polled do not notify")
@by_call_and_by_word
def polled_completions_do_not_notify(consumer):
    for _ in range(70):
        consumer.complete()
        consumer.poll_one()
    consumer.arm()
    equal(consumer.events_within(QUIET_SECONDS), 0, "events of an empty queue")
    consumer.complete()
    equal(consumer.events_within(), 1, "events of the next completion")


@case("arming: a program that arms and then polls gets one event for each completion")
@by_call_and_by_word
def one_event_each(consumer):
    events = 0
    consumer.arm()
    for _ in range(200):
        consumer.complete()
        events += consumer.events_within()
        consumer.arm()
        consumer.poll_one()
    equal(events + consumer.events_within(QUIET_SECONDS), 200, "events")


@case("arming: armed for solicited completions, an unsolicited one in the CQ does not notify")
@by_call_and_by_word
def solicited(consumer):
    consumer.complete()
    consumer.arm(ARM_SOLICITED)
    equal(consumer.events_within(QUIET_SECONDS), 0, "events of a successful WRITE")
    consumer.poll_one()
    consumer.complete(rkey_xor=1)
    equal(consumer.events_within(), 1, "events of an error completion")
    consumer.arm(ARM_SOLICITED)
    equal(consumer.events_within(QUIET_SECONDS), 0, "further events of the error completion")


@case("arming: armed for solicited completions, a solicited one in the CQ notifies at once")
@by_call_and_by_word
def notifies_of_pending_solicited(consumer):
    consumer.complete()
    consumer.complete(rkey_xor=1)
    equal(consumer.cq.events(), 0, "events of a CQ that is not armed")
    consumer.arm(ARM_SOLICITED)
    equal(consumer.events_within(), 1, "events after arming")
    consumer.poll_one()
    consumer.arm(ARM_SOLICITED)
    equal(consumer.events_within(QUIET_SECONDS), 0, "further events of the error completion")


@case("arming: unread events are limited, and a process that reads gets one for each completion")
@by_call_and_by_word
def unread_events_are_limited(consumer):
    for _ in range(4 * MAX_UNREAD_EVENTS):
        consumer.arm()
        consumer.complete()
        consumer.poll_one()
    time.sleep(QUIET_SECONDS)
    count = consumer.cq.events()
    wanted = f"at least 1 and at most {MAX_UNREAD_EVENTS} unread events ({count})"
    equal(1 <= count <= MAX_UNREAD_EVENTS, True, wanted)
    for _ in range(2 * MAX_UNREAD_EVENTS):
        consumer.arm()
        consumer.complete()
        equal(consumer.events_within(), 1, "events of a process that reads them")
        consumer.poll_one()


def take_async_events(context, count):
    """Takes asynchronous events until there are `count` or more, and returns their types."""
    found = []

    def enough_found():
        found.extend(event for _, event in context.events())
        return len(found) >= count

    wait_until_equal(enough_found, True, "events")
    return found


def check_async_limit(context, cause, kind):
    """Causes many events of type `kind` before it reads any, then reads each event at once."""
    for _ in range(4 * MAX_ASYNC_EVENTS):
        cause()
    equal(take_async_events(context, MAX_ASYNC_EVENTS), [kind] * MAX_ASYNC_EVENTS, "unread events")
    for _ in range(2 * MAX_ASYNC_EVENTS):
        cause()
        equal(take_async_events(context, 1), [kind], "the event of a process that reads it")


@case("events: the unread asynchronous events of an SRQ are limited")
def srq_events_are_limited():
    context = Context(NODE)
    srq = Srq(context)
    check_async_limit(context, lambda: srq.limit(1), EVENT_SRQ_LIMIT)
    context.close()


def exceed_cgroup_limit(group):
    """Joins the memory cgroup, and causes events of more SRQs than may have many unread events."""
    join(group)
    context = Context(NODE)
    queues = [Srq(context) for _ in range(MAX_OBJECTS_WITH_MANY + 10)]
    for srq in queues:
        for _ in range(ASYNC_EVENTS_OF_ANY + 2):
            srq.limit(1)
    most = len(queues) * ASYNC_EVENTS_OF_ANY + MAX_OBJECTS_WITH_MANY * 2
    equal(len(context.events()), most, "unread events")
    for srq in queues[-2:]:
        for _ in range(2 * MAX_ASYNC_EVENTS):
            srq.limit(1)
    equal(len(context.events()), 2 * ASYNC_EVENTS_OF_ANY, "unread events beyond the cgroup's limit")
    for srq in queues:
        srq.limit(1)
    for _ in range(4):
        queues[-1].limit(1)
    equal(len(context.events()), len(queues) + 4, "unread events after all events were read")
    context.close()


@case("events: the number of a memory cgroup's objects with more than two unread events is limited")
def cgroup_events_are_limited():
    group = memory_group("unread")
    in_child(lambda: exceed_cgroup_limit(group))
    remove_group(group)


@case("events: the unread asynchronous events of a QP are limited")
def qp_events_are_limited():
    consumer = Consumer(DOORBELL)

    def fail():
        consumer.complete(rkey_xor=1)
        consumer.poll_one()
        consumer.qp.modify(1, 0)
        consumer.qp.connect(GID_INDEX, GID)

    check_async_limit(consumer.context, fail, EVENT_ACCESS_ERROR)
    consumer.context.close()


sys.exit(main())
