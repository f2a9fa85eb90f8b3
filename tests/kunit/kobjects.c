// SPDX-License-Identifier: GPL-2.0
/*
 * Features of objects as kernel consumers use them: CQ moderation, SG_GAPS regions, the device's
 * local_dma_lkey, resized SRQs, and QPs without loopback of their multicast packets.
 */
#include <linux/ktime.h>

#include "stage.h"

/* Moderation of the CQ: its period in microseconds, and its number of completions. */
#define PERIOD 60000
#define COUNT 4

/* Returns the microseconds until the last of `count` empty RDMA WRITEs has completed. */
static s64 time_writes(struct kunit *test, struct stage *stage, int count)
{
	struct request requests[COUNT];
	struct ib_rdma_wr wr = { .wr = { .opcode = IB_WR_RDMA_WRITE,
					 .send_flags = IB_SEND_SIGNALED } };
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

/*
 * Whether `count` RDMA WRITEs complete within PERIOD at least once. A busy host delays many of them
 * for longer, so this tries again for a minute.
 */
static bool completes_at_once(struct kunit *test, struct stage *stage, int count)
{
	unsigned long end = jiffies + 60 * HZ;

	do {
		if (time_writes(test, stage, count) < PERIOD)
			return true;
	} while (time_before(jiffies, end));
	return false;
}

/*
 * A moderated CQ notifies its consumer of fewer than COUNT completions after PERIOD, and of COUNT
 * completions at once. Without moderation it notifies of each completion at once.
 */
static void moderates(struct kunit *test)
{
	struct stage stage;
	int i;

	set_up(test, &stage);
	KUNIT_ASSERT_EQ(test, rdma_set_cq_moderation(stage.cq[0], COUNT, PERIOD), 0);
	for (i = 0; i < 3; i++)
		KUNIT_EXPECT_GE(test, time_writes(test, &stage, COUNT - 1), PERIOD);
	KUNIT_EXPECT_TRUE(test, completes_at_once(test, &stage, COUNT));
	KUNIT_ASSERT_EQ(test, rdma_set_cq_moderation(stage.cq[0], 0, 0), 0);
	KUNIT_EXPECT_TRUE(test, completes_at_once(test, &stage, 1));
	take_down(test, &stage);
}

/*
 * Moves `length` bytes between the start of a buffer and the start of a region of the peer, and
 * expects the completion to have `status`.
 */
static void transfer(struct kunit *test, struct stage *stage, enum ib_wr_opcode opcode, u8 *buffer,
		     u32 length, struct ib_mr *mr, enum ib_wc_status status)
{
	struct ib_sge sge = piece(stage, buffer, length);
	struct request request;
	struct ib_rdma_wr wr = {
		.wr = { .wr_cqe = begin(&request),
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = opcode,
			.send_flags = IB_SEND_SIGNALED },
		.remote_addr = mr->iova,
		.rkey = mr->rkey,
	};

	KUNIT_ASSERT_EQ(test, ib_post_send(stage->qp[0], &wr.wr, NULL), 0);
	expect(test, &request, stage->qp[0], status);
}

/* An SG_GAPS region has pieces of any size and offset in their pages, with gaps between them. */
static void registers_gaps(struct kunit *test)
{
	static const struct {
		u32 at, length;
	} pieces[] = { { 16000, 1 }, { 11000, 4095 }, { 7001, 3000 }, { 13, 2904 } };
	struct ib_reg_wr reg = { .wr.opcode = IB_WR_REG_MR, .access = RIGHTS };
	struct scatterlist list[ARRAY_SIZE(pieces)];
	struct request local;
	unsigned int skip = 7;
	struct stage stage;
	struct ib_mr *mr;
	size_t i, from;

	set_up(test, &stage);
	KUNIT_EXPECT_TRUE(test, stage.device->attrs.kernel_cap_flags & IBK_SG_GAPS_REG);
	mr = ib_alloc_mr(stage.pd, IB_MR_TYPE_SG_GAPS, ARRAY_SIZE(pieces));
	KUNIT_ASSERT_FALSE(test, IS_ERR(mr));
	sg_init_table(list, ARRAY_SIZE(pieces));
	for (i = 0; i < ARRAY_SIZE(pieces); i++) {
		from = i ? 0 : skip;
		sg_set_buf(&list[i], stage.target + pieces[i].at - from, pieces[i].length + from);
	}
	ib_dma_map_sg(stage.device, list, ARRAY_SIZE(pieces), DMA_BIDIRECTIONAL);
	KUNIT_ASSERT_EQ(test, ib_map_mr_sg(mr, list, ARRAY_SIZE(pieces), &skip, PAGE_SIZE),
			ARRAY_SIZE(pieces));
	KUNIT_EXPECT_EQ(test, mr->length, LENGTH);
	reg.mr = mr;
	reg.key = mr->rkey;
	KUNIT_ASSERT_EQ(test, post_local(&stage, 1, &reg.wr, &local), 0);
	expect(test, &local, stage.qp[1], IB_WC_SUCCESS);
	fill(&stage, SEED);
	transfer(test, &stage, IB_WR_RDMA_WRITE, stage.source, LENGTH, mr, IB_WC_SUCCESS);
	for (i = 0, from = 0; i < ARRAY_SIZE(pieces); from += pieces[i++].length)
		KUNIT_EXPECT_MEMEQ(test, stage.target + pieces[i].at, stage.source + from,
				   pieces[i].length);
	memset(stage.source, 0, SIZE);
	transfer(test, &stage, IB_WR_RDMA_READ, stage.source, LENGTH, mr, IB_WC_SUCCESS);
	for (i = 0; i < LENGTH && stage.source[i] == pattern(i, SEED); i++)
		;
	KUNIT_EXPECT_EQ(test, i, LENGTH);
	/* The peer's WRITE has not changed the gaps. */
	for (i = 0; i < ARRAY_SIZE(pieces); i++)
		memset(stage.target + pieces[i].at, 0, pieces[i].length);
	KUNIT_EXPECT_NULL(test, memchr_inv(stage.target, 0, SIZE));
	transfer(test, &stage, IB_WR_RDMA_WRITE, stage.source, LENGTH + 1, mr,
		 IB_WC_REM_ACCESS_ERR);
	KUNIT_EXPECT_EQ(test, ib_dereg_mr(mr), 0);
	take_down(test, &stage);
}

/*
 * The device has a local_dma_lkey for the kernel's memory, so that PDs need no region of their own
 * for it. A peer that uses this key as an rkey gets an access error.
 */
static void keeps_a_local_key(struct kunit *test)
{
	struct ib_mr all = {};
	struct stage stage;

	set_up(test, &stage);
	KUNIT_EXPECT_NE(test, stage.device->local_dma_lkey, 0);
	KUNIT_EXPECT_EQ(test, stage.pd->local_dma_lkey, stage.device->local_dma_lkey);
	KUNIT_EXPECT_NULL(test, stage.pd->__internal_mr);
	fill(&stage, SEED);
	all.iova = (uintptr_t)stage.target;
	all.rkey = stage.device->local_dma_lkey;
	transfer(test, &stage, IB_WR_RDMA_WRITE, stage.source, LENGTH, &all, IB_WC_REM_ACCESS_ERR);
	KUNIT_EXPECT_NULL(test, memchr_inv(stage.target, 0, SIZE));
	take_down(test, &stage);
}

static void send_to(struct kunit *test, struct stage *stage, struct ib_qp *from, struct ib_qp *to,
		    struct request *received, u8 seed)
{
	struct ib_send_wr send = { .opcode = IB_WR_SEND,
				   .num_sge = 1,
				   .send_flags = IB_SEND_SIGNALED };
	struct request sent;
	struct ib_sge sge;

	fill(stage, seed);
	sge = piece(stage, stage->source, LENGTH);
	send.sg_list = &sge;
	send.wr_cqe = begin(&sent);
	KUNIT_ASSERT_EQ(test, ib_post_send(from, &send, NULL), 0);
	expect(test, received, to, IB_WC_SUCCESS);
	expect(test, &sent, from, IB_WC_SUCCESS);
	check_target(test, stage, LENGTH);
}

/* ib_modify_srq() resizes a kernel consumer's SRQ while receives are posted to it. */
static void resizes_shared_receives(struct kunit *test)
{
	struct ib_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ib_srq_attr attr = { .max_wr = 20 }, found;
	const struct ib_gid_attr *gid;
	struct request *received;
	struct ib_qp *from, *to;
	struct stage stage;
	struct ib_srq *srq;
	int i;

	set_up(test, &stage);
	received = kunit_kcalloc(test, 14, sizeof(*received), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, received);
	srq = ib_create_srq(stage.pd, &init);
	KUNIT_ASSERT_FALSE(test, IS_ERR(srq));
	gid = rrxe_link_gid(test, stage.device);
	from = make_qp(test, &stage, stage.cq[0], NULL);
	to = make_qp(test, &stage, stage.cq[1], srq);
	connect(test, from, to, gid);
	connect(test, to, from, gid);
	rdma_put_gid_attr(gid);
	for (i = 0; i < 14; i++) {
		struct ib_sge sge = piece(&stage, stage.target, SIZE);
		struct ib_recv_wr wr = { .wr_cqe = begin(&received[i]),
					 .sg_list = &sge,
					 .num_sge = 1 };

		if (i == 4) {
			send_to(test, &stage, from, to, &received[0], 0);
			KUNIT_ASSERT_EQ(test, ib_modify_srq(srq, &attr, IB_SRQ_MAX_WR), 0);
		}
		KUNIT_ASSERT_EQ(test, ib_post_srq_recv(srq, &wr, NULL), 0);
	}
	KUNIT_EXPECT_EQ(test, ib_query_srq(srq, &found), 0);
	KUNIT_EXPECT_GE(test, found.max_wr, 20);
	/* An SRQ cannot become smaller than the number of its posted receives. */
	attr.max_wr = 7;
	KUNIT_EXPECT_EQ(test, ib_modify_srq(srq, &attr, IB_SRQ_MAX_WR), -EINVAL);
	for (i = 1; i < 12; i++)
		send_to(test, &stage, from, to, &received[i], i);
	attr.max_wr = 2;
	KUNIT_EXPECT_EQ(test, ib_modify_srq(srq, &attr, IB_SRQ_MAX_WR), 0);
	for (; i < 14; i++)
		send_to(test, &stage, from, to, &received[i], i);
	KUNIT_EXPECT_EQ(test, ib_query_srq(srq, &found), 0);
	KUNIT_EXPECT_LT(test, found.max_wr, 7);
	ib_drain_qp(to);
	KUNIT_EXPECT_EQ(test, ib_destroy_qp(to), 0);
	KUNIT_EXPECT_EQ(test, ib_destroy_qp(from), 0);
	ib_destroy_srq(srq);
	take_down(test, &stage);
}

/*
 * A multicast packet also goes to its sender, if the sender is a member of the group, unless the
 * sender was created with IB_QP_CREATE_BLOCK_MULTICAST_LOOPBACK. Other members always get it.
 */
static void blocks_own_multicast(struct kunit *test)
{
	/* ::ffff:239.77.1.1 */
	union ib_gid group = {
		.raw = { [10] = 0xff, [11] = 0xff, [12] = 239, [13] = 77, [14] = 1, [15] = 1 }
	};
	struct request sent, received[2];
	struct ib_qp *qp[2];
	struct stage stage;
	struct ib_ah *ah;
	struct ib_sge sge;
	int blocks, i;

	set_up(test, &stage);
	KUNIT_EXPECT_TRUE(test,
			  stage.device->attrs.kernel_cap_flags & IBK_BLOCK_MULTICAST_LOOPBACK);
	ah = make_ah(test, &stage, &group);
	for (blocks = 0; blocks < 2; blocks++) {
		struct ib_ud_wr send = {
			.wr = { .wr_cqe = begin(&sent),
				.sg_list = &sge,
				.num_sge = 1,
				.opcode = IB_WR_SEND,
				.send_flags = IB_SEND_SIGNALED },
			.ah = ah,
			.remote_qpn = IB_MULTICAST_QPN,
			.remote_qkey = QKEY,
		};

		for (i = 0; i < 2; i++) {
			u32 flags = blocks ? IB_QP_CREATE_BLOCK_MULTICAST_LOOPBACK : 0;
			struct ib_sge room = piece(&stage, stage.target + i * PAGE_SIZE, PAGE_SIZE);
			struct ib_recv_wr wr = { .wr_cqe = begin(&received[i]),
						 .sg_list = &room,
						 .num_sge = 1 };

			qp[i] = make_datagram_qp(test, &stage, flags);
			KUNIT_ASSERT_EQ(test, ib_post_recv(qp[i], &wr, NULL), 0);
			KUNIT_ASSERT_EQ(test, ib_attach_mcast(qp[i], &group, 0), 0);
		}
		fill(&stage, blocks);
		sge = piece(&stage, stage.source, 100);
		KUNIT_ASSERT_EQ(test, ib_post_send(qp[0], &send.wr, NULL), 0);
		expect(test, &sent, qp[0], IB_WC_SUCCESS);
		expect(test, &received[1], qp[1], IB_WC_SUCCESS);
		KUNIT_EXPECT_MEMEQ(test, stage.target + PAGE_SIZE + sizeof(struct ib_grh),
				   stage.source, 100);
		if (!blocks)
			expect(test, &received[0], qp[0], IB_WC_SUCCESS);
		else
			KUNIT_EXPECT_EQ(test,
					wait_for_completion_timeout(&received[0].done, HZ / 10), 0);
		for (i = 0; i < 2; i++) {
			KUNIT_EXPECT_EQ(test, ib_detach_mcast(qp[i], &group, 0), 0);
			ib_drain_qp(qp[i]);
			KUNIT_EXPECT_EQ(test, ib_destroy_qp(qp[i]), 0);
		}
	}
	rdma_destroy_ah(ah, RDMA_DESTROY_AH_SLEEPABLE);
	take_down(test, &stage);
}

static struct kunit_case cases[] = {
	KUNIT_CASE(blocks_own_multicast),    KUNIT_CASE(moderates),
	KUNIT_CASE(registers_gaps),	     KUNIT_CASE(keeps_a_local_key),
	KUNIT_CASE(resizes_shared_receives), {}
};

static struct kunit_suite suite = {
	.name = "rrxe_kobjects",
	.test_cases = cases,
};

kunit_test_suite(suite);
