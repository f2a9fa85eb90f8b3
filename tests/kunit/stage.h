/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Test fixture: two connected RC QPs of a kernel consumer on an rrxe device (link.h), each with its
 * own CQ, and two buffers.
 */
#ifndef RRXE_KUNIT_STAGE_H
#define RRXE_KUNIT_STAGE_H

#include <kunit/test.h>
#include <linux/completion.h>
#include <linux/delay.h>
#include <linux/gfp.h>
#include <linux/irqflags.h>
#include <linux/scatterlist.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_verbs.h>

#include "link.h"

#define LENGTH 10000 /* bytes of a message: several packets */
#define ORDER 2 /* log2 of the pages of a buffer */
#define SIZE (PAGE_SIZE << ORDER) /* bytes of a buffer */
#define SEED 3
#define QKEY 0x12345
#define WAIT_TIMEOUT (5 * HZ) /* limit for a completion, in jiffies */
#define RIGHTS                                                                    \
	(IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_READ | \
	 IB_ACCESS_REMOTE_ATOMIC)

/* A work request of a test, its completion, and the number of completions up to it. */
struct request {
	struct ib_cqe cqe;
	struct completion done;
	struct ib_wc wc;
	int order;
};

struct stage {
	struct ib_device *device;
	struct ib_pd *pd;
	struct ib_cq *cq[2];
	struct ib_qp *qp[2];
	u8 *source, *target;
};

static atomic_t finished;

static inline void request_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct request *request = container_of(wc->wr_cqe, struct request, cqe);

	request->wc = *wc;
	request->order = atomic_inc_return(&finished);
	complete(&request->done);
}

static inline struct ib_cqe *begin(struct request *request)
{
	*request = (struct request){ .cqe.done = request_done };
	init_completion(&request->done);
	return &request->cqe;
}

static inline void expect(struct kunit *test, struct request *request, struct ib_qp *qp,
			  enum ib_wc_status status)
{
	KUNIT_ASSERT_GT(test, wait_for_completion_timeout(&request->done, WAIT_TIMEOUT), 0);
	KUNIT_EXPECT_STREQ(test, ib_wc_status_msg(request->wc.status), ib_wc_status_msg(status));
	KUNIT_EXPECT_PTR_EQ(test, request->wc.qp, qp);
}

static inline u64 pattern(size_t i, u8 seed)
{
	return (u8)(i * 7 + i / 251 + seed);
}

static inline void fill(struct stage *stage, u8 seed)
{
	size_t i;

	for (i = 0; i < SIZE; i++)
		stage->source[i] = pattern(i, seed);
	memset(stage->target, 0, SIZE);
}

/* Checks that the target starts with `length` bytes of the source, and has zeroes behind them. */
static inline void check_target(struct kunit *test, struct stage *stage, size_t length)
{
	KUNIT_EXPECT_MEMEQ(test, stage->target, stage->source, length);
	KUNIT_EXPECT_NULL(test, memchr_inv(stage->target + length, 0, SIZE - length));
}

static inline struct ib_sge piece(struct stage *stage, u8 *buffer, u32 length)
{
	u64 address = ib_dma_map_single(stage->device, buffer, length, DMA_BIDIRECTIONAL);

	return (struct ib_sge){ .addr = address,
				.length = length,
				.lkey = stage->pd->local_dma_lkey };
}

static inline struct ib_qp *make_qp(struct kunit *test, struct stage *stage, struct ib_cq *cq,
				    struct ib_srq *srq)
{
	struct ib_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.srq = srq,
		.qp_type = IB_QPT_RC,
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.cap = { .max_send_wr = 8,
			 .max_recv_wr = 8,
			 .max_send_sge = 2,
			 .max_recv_sge = 2,
			 .max_inline_data = 64 },
	};
	struct ib_qp *qp = ib_create_qp(stage->pd, &init);

	KUNIT_ASSERT_FALSE(test, IS_ERR(qp));
	KUNIT_EXPECT_GE(test, init.cap.max_send_wr, 8);
	KUNIT_EXPECT_GE(test, init.cap.max_inline_data, 64);
	return qp;
}

static inline void connect(struct kunit *test, struct ib_qp *qp, struct ib_qp *peer,
			   const struct ib_gid_attr *gid)
{
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = RIGHTS,
		.path_mtu = IB_MTU_1024,
		.dest_qp_num = peer->qp_num,
		.max_dest_rd_atomic = 4,
		.max_rd_atomic = 4,
		.min_rnr_timer = 12,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
	};

	rdma_ah_set_grh(&attr.ah_attr, NULL, 0, gid->index, 64, 0);
	attr.ah_attr.type = RDMA_AH_ATTR_TYPE_ROCE;
	rdma_ah_set_dgid_raw(&attr.ah_attr, (void *)&gid->gid);
	rdma_ah_set_port_num(&attr.ah_attr, 1);
	KUNIT_ASSERT_EQ(test,
			ib_modify_qp(qp, &attr,
				     IB_QP_STATE | IB_QP_PKEY_INDEX | IB_QP_PORT |
					     IB_QP_ACCESS_FLAGS),
			0);
	attr.qp_state = IB_QPS_RTR;
	KUNIT_ASSERT_EQ(test,
			ib_modify_qp(qp, &attr,
				     IB_QP_STATE | IB_QP_AV | IB_QP_PATH_MTU | IB_QP_DEST_QPN |
					     IB_QP_RQ_PSN | IB_QP_MAX_DEST_RD_ATOMIC |
					     IB_QP_MIN_RNR_TIMER),
			0);
	attr.qp_state = IB_QPS_RTS;
	KUNIT_ASSERT_EQ(test,
			ib_modify_qp(qp, &attr,
				     IB_QP_STATE | IB_QP_TIMEOUT | IB_QP_RETRY_CNT |
					     IB_QP_RNR_RETRY | IB_QP_SQ_PSN |
					     IB_QP_MAX_QP_RD_ATOMIC),
			0);
}

static inline struct ib_qp *make_datagram_qp(struct kunit *test, struct stage *stage, u32 flags)
{
	struct ib_qp_init_attr init = {
		.send_cq = stage->cq[0],
		.recv_cq = stage->cq[0],
		.qp_type = IB_QPT_UD,
		.create_flags = flags,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ib_qp_attr attr = { .qp_state = IB_QPS_INIT, .port_num = 1, .qkey = QKEY };
	struct ib_qp *qp = ib_create_qp(stage->pd, &init);

	KUNIT_ASSERT_FALSE(test, IS_ERR(qp));
	KUNIT_ASSERT_EQ(test,
			ib_modify_qp(qp, &attr,
				     IB_QP_STATE | IB_QP_PKEY_INDEX | IB_QP_PORT | IB_QP_QKEY),
			0);
	attr.qp_state = IB_QPS_RTR;
	KUNIT_ASSERT_EQ(test, ib_modify_qp(qp, &attr, IB_QP_STATE), 0);
	attr.qp_state = IB_QPS_RTS;
	KUNIT_ASSERT_EQ(test, ib_modify_qp(qp, &attr, IB_QP_STATE | IB_QP_SQ_PSN), 0);
	return qp;
}

/*
 * Creates an address handle from the link's address to a multicast group, or to the link's own
 * address if `group` is NULL.
 */
static inline struct ib_ah *make_ah(struct kunit *test, struct stage *stage,
				    const union ib_gid *group)
{
	const struct ib_gid_attr *gid = rrxe_link_gid(test, stage->device);
	struct rdma_ah_attr attr = { .type = RDMA_AH_ATTR_TYPE_ROCE };
	struct ib_ah *ah;

	rdma_ah_set_grh(&attr, NULL, 0, gid->index, 64, 0);
	rdma_ah_set_dgid_raw(&attr, (void *)(group ?: &gid->gid)->raw);
	rdma_ah_set_port_num(&attr, 1);
	ah = rdma_create_ah(stage->pd, &attr, RDMA_CREATE_AH_SLEEPABLE);
	rdma_put_gid_attr(gid);
	KUNIT_ASSERT_FALSE(test, IS_ERR(ah));
	return ah;
}

static inline void set_up(struct kunit *test, struct stage *stage)
{
	static const enum ib_poll_context contexts[2] = { IB_POLL_SOFTIRQ, IB_POLL_WORKQUEUE };
	const struct ib_gid_attr *gid;
	int i;

	stage->device = rrxe_link_up(test);
	gid = rrxe_link_gid(test, stage->device);
	stage->pd = ib_alloc_pd(stage->device, 0);
	KUNIT_ASSERT_FALSE(test, IS_ERR(stage->pd));
	for (i = 0; i < 2; i++) {
		stage->cq[i] = ib_alloc_cq(stage->device, NULL, 32, 0, contexts[i]);
		KUNIT_ASSERT_FALSE(test, IS_ERR(stage->cq[i]));
		stage->qp[i] = make_qp(test, stage, stage->cq[i], NULL);
	}
	connect(test, stage->qp[0], stage->qp[1], gid);
	connect(test, stage->qp[1], stage->qp[0], gid);
	rdma_put_gid_attr(gid);
	stage->source = (u8 *)__get_free_pages(GFP_KERNEL, ORDER);
	stage->target = (u8 *)__get_free_pages(GFP_KERNEL, ORDER);
	KUNIT_ASSERT_NOT_NULL(test, stage->source);
	KUNIT_ASSERT_NOT_NULL(test, stage->target);
}

static inline void take_down(struct kunit *test, struct stage *stage)
{
	int i;

	for (i = 0; i < 2; i++) {
		ib_drain_qp(stage->qp[i]);
		KUNIT_EXPECT_EQ(test, ib_destroy_qp(stage->qp[i]), 0);
		ib_free_cq(stage->cq[i]);
	}
	ib_dealloc_pd(stage->pd);
	free_pages((unsigned long)stage->source, ORDER);
	free_pages((unsigned long)stage->target, ORDER);
	rrxe_link_down(test, stage->device);
}

static inline void post_recv(struct kunit *test, struct stage *stage, int to,
			     struct request *request)
{
	struct ib_sge sge = piece(stage, stage->target, SIZE);
	struct ib_recv_wr wr = { .wr_cqe = begin(request), .sg_list = &sge, .num_sge = 1 };

	KUNIT_ASSERT_EQ(test, ib_post_recv(stage->qp[to], &wr, NULL), 0);
}

/* Posts with interrupts disabled, as consumers that hold an IRQ-safe spinlock do. */
static inline int post_locked(struct ib_qp *qp, const struct ib_send_wr *wr)
{
	unsigned long flags;
	int error;

	local_irq_save(flags);
	error = ib_post_send(qp, wr, NULL);
	local_irq_restore(flags);
	return error;
}

static inline int post_local(struct stage *stage, int from, struct ib_send_wr *wr,
			     struct request *request)
{
	wr->wr_cqe = begin(request);
	wr->send_flags = IB_SEND_SIGNALED;
	return post_locked(stage->qp[from], wr);
}

/* Posts an RDMA READ or WRITE of the peer's region `mr` with this rkey. */
static inline int post_rdma(struct stage *stage, enum ib_wr_opcode opcode, struct ib_mr *mr,
			    u32 rkey, struct request *request)
{
	struct ib_sge sge =
		piece(stage, opcode == IB_WR_RDMA_READ ? stage->target : stage->source, LENGTH);
	struct ib_rdma_wr wr = {
		.wr = { .wr_cqe = begin(request),
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = opcode,
			.send_flags = IB_SEND_SIGNALED },
		.remote_addr = mr->iova,
		.rkey = rkey,
	};

	return ib_post_send(stage->qp[0], &wr.wr, NULL);
}

#endif
