// SPDX-License-Identifier: GPL-2.0
/*
 * Verbs of kernel consumers (such as NFS and NVMe over RDMA), between RC QPs of one device on a
 * dummy network device (stage.h, link.h).
 */
#include "stage.h"

/* SENDs with immediate data and with inline data; invalid work requests are refused. */
static void sends(struct kunit *test)
{
	struct stage stage;
	struct request sent, received;
	struct ib_sge sges[2];
	struct ib_send_wr wr = { .sg_list = sges,
				 .num_sge = 2,
				 .opcode = IB_WR_SEND_WITH_IMM,
				 .ex.imm_data = cpu_to_be32(0x01020304),
				 .send_flags = IB_SEND_SIGNALED };
	struct ib_send_wr early = { .opcode = IB_WR_SEND };
	const struct ib_send_wr *bad = NULL;
	struct ib_qp *fresh;

	set_up(test, &stage);
	fill(&stage, 1);
	sges[0] = piece(&stage, stage.source, 5000);
	sges[1] = piece(&stage, stage.source + 5000, LENGTH - 5000);
	post_recv(test, &stage, 1, &received);
	wr.wr_cqe = begin(&sent);
	KUNIT_ASSERT_EQ(test, post_locked(stage.qp[0], &wr), 0);
	expect(test, &sent, stage.qp[0], IB_WC_SUCCESS);
	expect(test, &received, stage.qp[1], IB_WC_SUCCESS);
	KUNIT_EXPECT_EQ(test, received.wc.opcode, IB_WC_RECV);
	KUNIT_EXPECT_EQ(test, received.wc.byte_len, LENGTH);
	KUNIT_EXPECT_EQ(test, received.wc.wc_flags, IB_WC_WITH_IMM);
	KUNIT_EXPECT_EQ(test, be32_to_cpu(received.wc.ex.imm_data), 0x01020304);
	check_target(test, &stage, LENGTH);

	/* Inline payload is copied at the post: changes of the buffer after that are not sent. */
	fill(&stage, 2);
	sges[0] = piece(&stage, stage.source, 30);
	sges[1] = piece(&stage, stage.source + 30, 34);
	wr.opcode = IB_WR_SEND;
	wr.send_flags = IB_SEND_SIGNALED | IB_SEND_INLINE;
	wr.wr_cqe = begin(&sent);
	KUNIT_ASSERT_EQ(test, ib_post_send(stage.qp[0], &wr, NULL), 0);
	memset(stage.source, 0, 64);
	post_recv(test, &stage, 1, &received);
	expect(test, &received, stage.qp[1], IB_WC_SUCCESS);
	KUNIT_EXPECT_EQ(test, received.wc.byte_len, 64);
	expect(test, &sent, stage.qp[0], IB_WC_SUCCESS);
	KUNIT_EXPECT_EQ(test, stage.target[63], pattern(63, 2));

	/* ib_post_send() returns the work request that it refuses. */
	wr.num_sge = 100;
	KUNIT_EXPECT_EQ(test, ib_post_send(stage.qp[0], &wr, &bad), -EINVAL);
	KUNIT_EXPECT_PTR_EQ(test, bad, &wr);
	fresh = make_qp(test, &stage, stage.cq[0], NULL);
	KUNIT_EXPECT_EQ(test, ib_post_send(fresh, &early, &bad), -EINVAL);
	KUNIT_EXPECT_PTR_EQ(test, bad, &early);
	KUNIT_EXPECT_EQ(test, ib_destroy_qp(fresh), 0);
	take_down(test, &stage);
}

/* Lists the pages of a buffer in reverse order. */
static void list_pages(struct stage *stage, struct scatterlist *list, u8 *buffer)
{
	int i;

	sg_init_table(list, 1 << ORDER);
	for (i = 0; i < 1 << ORDER; i++)
		sg_set_buf(&list[i], buffer + SIZE - (i + 1) * PAGE_SIZE, PAGE_SIZE);
	ib_dma_map_sg(stage->device, list, 1 << ORDER, DMA_BIDIRECTIONAL);
}

/* Checks the pattern of a buffer that was written through the list of list_pages(). */
static void check_reversed(struct kunit *test, u8 *buffer, u8 seed)
{
	size_t i, at;

	for (i = 0; i < LENGTH; i++) {
		at = SIZE - (i / PAGE_SIZE + 1) * PAGE_SIZE + i % PAGE_SIZE;
		if (buffer[at] != pattern(i, seed))
			break;
	}
	KUNIT_EXPECT_EQ(test, i, LENGTH);
}

/*
 * Fast registration (IB_WR_REG_MR) under a new key each time. Peers reach the region until it is
 * invalidated by IB_WR_LOCAL_INV or by a SEND with invalidate.
 */
static void registers_fast(struct kunit *test)
{
	struct stage stage;
	struct scatterlist list[1 << ORDER];
	struct request local, remote;
	struct ib_reg_wr reg = { .wr.opcode = IB_WR_REG_MR, .access = RIGHTS };
	struct ib_send_wr invalidate = { .opcode = IB_WR_LOCAL_INV };
	struct ib_send_wr send = { .opcode = IB_WR_SEND_WITH_INV };
	struct request received;
	struct ib_mr *mr;
	int i;

	set_up(test, &stage);
	mr = ib_alloc_mr(stage.pd, IB_MR_TYPE_MEM_REG, 1 << ORDER);
	KUNIT_ASSERT_FALSE(test, IS_ERR(mr));
	fill(&stage, SEED);
	list_pages(&stage, list, stage.target);
	KUNIT_ASSERT_EQ(test, ib_map_mr_sg(mr, list, 1 << ORDER, NULL, PAGE_SIZE), 1 << ORDER);
	/* The peer and the local side invalidate the key in turn. */
	for (i = 0; i < 4; i++) {
		ib_update_fast_reg_key(mr, i);
		/* As frwr_map() of NFS does, net/sunrpc/xprtrdma/frwr_ops.c. */
		mr->iova = (mr->iova & U32_MAX) | (u64)(i + 1) << 32;
		reg.mr = mr;
		reg.key = mr->rkey;
		memset(stage.target, 0, SIZE);
		KUNIT_ASSERT_EQ(test, post_local(&stage, 1, &reg.wr, &local), 0);
		expect(test, &local, stage.qp[1], IB_WC_SUCCESS);
		KUNIT_EXPECT_EQ(test, local.wc.opcode, IB_WC_REG_MR);
		KUNIT_ASSERT_EQ(test, post_rdma(&stage, IB_WR_RDMA_WRITE, mr, mr->rkey, &remote),
				0);
		expect(test, &remote, stage.qp[0], IB_WC_SUCCESS);
		check_reversed(test, stage.target, SEED);
		if (i % 2) {
			invalidate.ex.invalidate_rkey = mr->rkey;
			KUNIT_ASSERT_EQ(test, post_local(&stage, 1, &invalidate, &local), 0);
			expect(test, &local, stage.qp[1], IB_WC_SUCCESS);
			KUNIT_EXPECT_EQ(test, local.wc.opcode, IB_WC_LOCAL_INV);
		} else {
			post_recv(test, &stage, 1, &received);
			send.ex.invalidate_rkey = mr->rkey;
			KUNIT_ASSERT_EQ(test, post_local(&stage, 0, &send, &local), 0);
			expect(test, &local, stage.qp[0], IB_WC_SUCCESS);
			expect(test, &received, stage.qp[1], IB_WC_SUCCESS);
			KUNIT_EXPECT_EQ(test, received.wc.wc_flags, IB_WC_WITH_INVALIDATE);
			KUNIT_EXPECT_EQ(test, received.wc.ex.invalidate_rkey, mr->rkey);
		}
	}
	/* The region is invalid now: a WRITE with its last key fails and changes no memory. */
	memset(stage.target, 0, SIZE);
	KUNIT_ASSERT_EQ(test, post_rdma(&stage, IB_WR_RDMA_WRITE, mr, mr->rkey, &remote), 0);
	expect(test, &remote, stage.qp[0], IB_WC_REM_ACCESS_ERR);
	KUNIT_EXPECT_NULL(test, memchr_inv(stage.target, 0, SIZE));
	KUNIT_EXPECT_EQ(test, ib_dereg_mr(mr), 0);
	take_down(test, &stage);
}

/* RDMA READ and fetch-and-add on a region of a kernel consumer. */
static void reads_and_atomics(struct kunit *test)
{
	struct stage stage;
	struct request request;
	struct ib_reg_wr reg = { .wr.opcode = IB_WR_REG_MR, .access = RIGHTS };
	struct ib_atomic_wr add = { .wr = { .num_sge = 1, .opcode = IB_WR_ATOMIC_FETCH_AND_ADD },
				    .compare_add = 40 };
	struct scatterlist list[1 << ORDER];
	struct ib_sge sge;
	struct ib_mr *mr;
	u64 *word;

	set_up(test, &stage);
	mr = ib_alloc_mr(stage.pd, IB_MR_TYPE_MEM_REG, 1 << ORDER);
	KUNIT_ASSERT_FALSE(test, IS_ERR(mr));
	fill(&stage, 5);
	list_pages(&stage, list, stage.source);
	KUNIT_ASSERT_EQ(test, ib_map_mr_sg(mr, list, 1 << ORDER, NULL, PAGE_SIZE), 1 << ORDER);
	reg.mr = mr;
	reg.key = mr->rkey;
	KUNIT_ASSERT_EQ(test, post_local(&stage, 1, &reg.wr, &request), 0);
	expect(test, &request, stage.qp[1], IB_WC_SUCCESS);
	KUNIT_ASSERT_EQ(test, post_rdma(&stage, IB_WR_RDMA_READ, mr, mr->rkey, &request), 0);
	expect(test, &request, stage.qp[0], IB_WC_SUCCESS);
	KUNIT_EXPECT_EQ(test, request.wc.byte_len, LENGTH);
	KUNIT_EXPECT_MEMEQ(test, stage.target, stage.source + SIZE - PAGE_SIZE, PAGE_SIZE);

	word = (u64 *)(stage.source + SIZE - PAGE_SIZE);
	*word = 2;
	sge = piece(&stage, stage.target, 8);
	add.wr.sg_list = &sge;
	add.remote_addr = mr->iova;
	add.rkey = mr->rkey;
	KUNIT_ASSERT_EQ(test, post_local(&stage, 0, &add.wr, &request), 0);
	expect(test, &request, stage.qp[0], IB_WC_SUCCESS);
	KUNIT_EXPECT_EQ(test, *word, 42);
	KUNIT_EXPECT_EQ(test, *(u64 *)stage.target, 2);
	KUNIT_EXPECT_EQ(test, ib_dereg_mr(mr), 0);
	take_down(test, &stage);
}

/*
 * In the error state all posted work requests are flushed in order. So are work requests that are
 * posted in that state.
 */
static void drains(struct kunit *test)
{
	struct stage stage;
	struct request received[6], late;
	struct ib_send_wr wr = { .opcode = IB_WR_SEND };
	int i, before;

	set_up(test, &stage);
	before = atomic_read(&finished);
	for (i = 0; i < 6; i++)
		post_recv(test, &stage, 1, &received[i]);
	ib_drain_qp(stage.qp[1]);
	for (i = 0; i < 6; i++) {
		expect(test, &received[i], stage.qp[1], IB_WC_WR_FLUSH_ERR);
		KUNIT_EXPECT_EQ(test, received[i].order, before + i + 1);
	}
	post_recv(test, &stage, 1, &late);
	expect(test, &late, stage.qp[1], IB_WC_WR_FLUSH_ERR);
	KUNIT_ASSERT_EQ(test, post_local(&stage, 1, &wr, &late), 0);
	expect(test, &late, stage.qp[1], IB_WC_WR_FLUSH_ERR);
	take_down(test, &stage);
}

/*
 * A consumer that polls its CQ (IB_POLL_DIRECT) gets all completions, except those of a QP that it
 * has destroyed. ib_req_notify_cq() reports that completions are there.
 */
static void polls(struct kunit *test)
{
	struct stage stage;
	struct ib_wc wc[4] = {};
	struct ib_cq *cq;
	struct ib_qp *qp[2];
	struct ib_qp_attr error = { .qp_state = IB_QPS_ERR };
	const struct ib_gid_attr *gid;
	struct ib_recv_wr wr = {};
	int i;

	set_up(test, &stage);
	cq = ib_alloc_cq(stage.device, NULL, 8, 0, IB_POLL_DIRECT);
	KUNIT_ASSERT_FALSE(test, IS_ERR(cq));
	gid = rrxe_link_gid(test, stage.device);
	for (i = 0; i < 2; i++)
		qp[i] = make_qp(test, &stage, cq, NULL);
	for (i = 0; i < 2; i++) {
		connect(test, qp[i], qp[!i], gid);
		wr.wr_id = 70 + i;
		KUNIT_ASSERT_EQ(test, ib_post_recv(qp[i], &wr, NULL), 0);
		KUNIT_ASSERT_EQ(test, ib_modify_qp(qp[i], &error, IB_QP_STATE), 0);
	}
	rdma_put_gid_attr(gid);
	KUNIT_EXPECT_EQ(test, ib_req_notify_cq(cq, IB_CQ_SOLICITED | IB_CQ_REPORT_MISSED_EVENTS),
			1);
	KUNIT_EXPECT_EQ(test, ib_destroy_qp(qp[0]), 0);
	KUNIT_EXPECT_EQ(test, ib_poll_cq(cq, 4, wc), 1);
	KUNIT_EXPECT_EQ(test, wc[0].wr_id, 71);
	KUNIT_EXPECT_EQ(test, wc[0].status, IB_WC_WR_FLUSH_ERR);
	KUNIT_EXPECT_PTR_EQ(test, wc[0].qp, qp[1]);
	KUNIT_EXPECT_EQ(test, ib_poll_cq(cq, 4, wc), 0);
	KUNIT_EXPECT_EQ(test, ib_destroy_qp(qp[1]), 0);
	ib_free_cq(cq);
	take_down(test, &stage);
}

static void note_completion(struct ib_cq *cq, void *noted)
{
	complete(noted);
}

/*
 * A consumer arms a CQ that already has completions, without IB_CQ_REPORT_MISSED_EVENTS. It is
 * notified of these completions once.
 */
static void notifies_of_missed(struct kunit *test)
{
	DECLARE_COMPLETION_ONSTACK(notified);
	struct ib_cq_init_attr attr = { .cqe = 8 };
	struct ib_qp_attr error = { .qp_state = IB_QPS_ERR };
	const struct ib_gid_attr *gid;
	struct ib_recv_wr wr = {};
	struct stage stage;
	struct ib_wc wc[4];
	struct ib_qp *qp;
	struct ib_cq *cq;

	set_up(test, &stage);
	cq = ib_create_cq(stage.device, note_completion, NULL, &notified, &attr);
	KUNIT_ASSERT_FALSE(test, IS_ERR(cq));
	qp = make_qp(test, &stage, cq, NULL);
	gid = rrxe_link_gid(test, stage.device);
	connect(test, qp, stage.qp[0], gid);
	rdma_put_gid_attr(gid);
	KUNIT_ASSERT_EQ(test, ib_post_recv(qp, &wr, NULL), 0);
	KUNIT_ASSERT_EQ(test, ib_modify_qp(qp, &error, IB_QP_STATE), 0);
	KUNIT_EXPECT_FALSE(test, completion_done(&notified));
	KUNIT_ASSERT_GE(test, ib_req_notify_cq(cq, IB_CQ_NEXT_COMP), 0);
	KUNIT_EXPECT_GT(test, wait_for_completion_timeout(&notified, WAIT_TIMEOUT), 0);
	KUNIT_ASSERT_GE(test, ib_req_notify_cq(cq, IB_CQ_NEXT_COMP), 0);
	msleep(20);
	KUNIT_EXPECT_FALSE(test, completion_done(&notified));
	KUNIT_EXPECT_EQ(test, ib_poll_cq(cq, 4, wc), 1);
	/* The next completion finds the CQ armed. */
	KUNIT_ASSERT_EQ(test, ib_post_recv(qp, &wr, NULL), 0);
	KUNIT_EXPECT_GT(test, wait_for_completion_timeout(&notified, WAIT_TIMEOUT), 0);
	KUNIT_EXPECT_EQ(test, ib_poll_cq(cq, 4, wc), 1);
	KUNIT_EXPECT_EQ(test, ib_destroy_qp(qp), 0);
	ib_destroy_cq(cq);
	take_down(test, &stage);
}

static void note_event(struct ib_event *event, void *noted)
{
	if (event->event == IB_EVENT_SRQ_LIMIT_REACHED)
		complete(noted);
}

/*
 * Two QPs take receives from one SRQ. The consumer gets IB_EVENT_SRQ_LIMIT_REACHED when fewer
 * receives than the limit are left. A QP with an SRQ has no receive queue of its own.
 */
static void shares_receives(struct kunit *test)
{
	DECLARE_COMPLETION_ONSTACK(limit);
	struct ib_srq_init_attr init = { .event_handler = note_event,
					 .srq_context = &limit,
					 .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ib_srq_attr attr = { .srq_limit = 2 };
	const struct ib_recv_wr *bad = NULL;
	struct ib_send_wr send = { .opcode = IB_WR_SEND, .num_sge = 1 };
	struct request sent, received[3];
	const struct ib_gid_attr *gid;
	struct ib_qp *from[2], *to[2];
	struct stage stage;
	struct ib_srq *srq;
	struct ib_sge sge;
	int i;

	set_up(test, &stage);
	gid = rrxe_link_gid(test, stage.device);
	srq = ib_create_srq(stage.pd, &init);
	KUNIT_ASSERT_FALSE(test, IS_ERR(srq));
	for (i = 0; i < 2; i++) {
		from[i] = make_qp(test, &stage, stage.cq[0], NULL);
		to[i] = make_qp(test, &stage, stage.cq[1], srq);
		connect(test, from[i], to[i], gid);
		connect(test, to[i], from[i], gid);
	}
	rdma_put_gid_attr(gid);
	for (i = 0; i < 3; i++) {
		struct ib_sge sge = piece(&stage, stage.target, SIZE);
		struct ib_recv_wr wr = { .wr_cqe = begin(&received[i]),
					 .sg_list = &sge,
					 .num_sge = 1 };

		KUNIT_ASSERT_EQ(test, ib_post_recv(to[0], &wr, &bad), -EINVAL);
		KUNIT_EXPECT_PTR_EQ(test, bad, &wr);
		KUNIT_ASSERT_EQ(test, ib_post_srq_recv(srq, &wr, NULL), 0);
	}
	KUNIT_ASSERT_EQ(test, ib_modify_srq(srq, &attr, IB_SRQ_LIMIT), 0);
	for (i = 0; i < 2; i++) {
		KUNIT_EXPECT_FALSE(test, completion_done(&limit));
		fill(&stage, 7 + i);
		sge = piece(&stage, stage.source, LENGTH);
		send.sg_list = &sge;
		send.wr_cqe = begin(&sent);
		send.send_flags = IB_SEND_SIGNALED;
		KUNIT_ASSERT_EQ(test, ib_post_send(from[i], &send, NULL), 0);
		expect(test, &received[i], to[i], IB_WC_SUCCESS);
		expect(test, &sent, from[i], IB_WC_SUCCESS);
		check_target(test, &stage, LENGTH);
	}
	KUNIT_EXPECT_GT(test, wait_for_completion_timeout(&limit, WAIT_TIMEOUT), 0);
	for (i = 0; i < 2; i++) {
		ib_drain_qp(to[i]);
		KUNIT_EXPECT_EQ(test, ib_destroy_qp(to[i]), 0);
		KUNIT_EXPECT_EQ(test, ib_destroy_qp(from[i]), 0);
	}
	ib_destroy_srq(srq);
	take_down(test, &stage);
}

static struct kunit_case cases[] = { KUNIT_CASE(sends),
				     KUNIT_CASE(registers_fast),
				     KUNIT_CASE(reads_and_atomics),
				     KUNIT_CASE(drains),
				     KUNIT_CASE(polls),
				     KUNIT_CASE(notifies_of_missed),
				     KUNIT_CASE(shares_receives),
				     {} };

static struct kunit_suite suite = {
	.name = "rrxe_kverbs",
	.test_cases = cases,
};

kunit_test_suite(suite);
