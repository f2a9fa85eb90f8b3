// SPDX-License-Identifier: GPL-2.0
/* What of objects only drivers on top of ib_core ask for. */
#include <linux/ktime.h>

#include "stage.h"

/* In microseconds. */
#define PERIOD 60000
#define COUNT 4

/* Microseconds until the last of `count` empty WRITEs has completed. */
static s64 time_writes(struct kunit *test, struct stage *stage, int count)
{
	struct request requests[COUNT];
	struct ib_rdma_wr wr = { .wr = { .opcode = IB_WR_RDMA_WRITE, .send_flags = IB_SEND_SIGNALED } };
	ktime_t began = ktime_get();
	int i;

	for (i = 0; i < count; i++) {
		wr.wr.wr_cqe = begin(&requests[i]);
		KUNIT_ASSERT_EQ(test, ib_post_send(stage->qp[0], &wr.wr, NULL), 0);
	}
	for (i = 0; i < count; i++)
		expect(test, &requests[i], stage->qp[0], IB_WC_SUCCESS);
	return ktime_us_delta(ktime_get(), began);
}

/* The kernel is told of few completions when their time has passed, of many at once. */
static void moderates(struct kunit *test)
{
	s64 fastest = S64_MAX;
	struct stage stage;
	int i;

	set_up(test, &stage);
	KUNIT_ASSERT_EQ(test, rdma_set_cq_moderation(stage.cq[0], COUNT, PERIOD), 0);
	for (i = 0; i < 3; i++)
		KUNIT_EXPECT_GE(test, time_writes(test, &stage, COUNT - 1), PERIOD);
	for (i = 0; i < 5; i++)
		fastest = min(fastest, time_writes(test, &stage, COUNT));
	KUNIT_EXPECT_LT(test, fastest, PERIOD);
	KUNIT_ASSERT_EQ(test, rdma_set_cq_moderation(stage.cq[0], 0, 0), 0);
	for (fastest = S64_MAX, i = 0; i < 5; i++)
		fastest = min(fastest, time_writes(test, &stage, 1));
	KUNIT_EXPECT_LT(test, fastest, PERIOD);
	take_down(test, &stage);
}

static struct kunit_case cases[] = {
	KUNIT_CASE(moderates),
	{}
};

static struct kunit_suite suite = {
	.name = "rrxe_kobjects",
	.test_cases = cases,
};

kunit_test_suite(suite);
