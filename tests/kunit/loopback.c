// SPDX-License-Identifier: GPL-2.0
/*
 * Messages between two QPs of a process over one device on a dummy network device. In place of
 * ib_core, the test calls the device's operations. In place of librxe, it maps the rings and writes
 * work requests in the layout of the UAPI header (rdma_user_rxe.h).
 */
#include <kunit/test.h>
#include <linux/anon_inodes.h>
#include <linux/delay.h>
#include <linux/file.h>
#include <linux/mman.h>
#include <linux/uaccess.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_verbs.h>
#include <rdma/uverbs_ioctl.h>
#include <rdma/uverbs_types.h>
#include <uapi/rdma/ib_user_verbs.h>
#include <uapi/rdma/rdma_user_rxe.h>

#include "link.h"

#define MESSAGE 10000 /* bytes: several packets, the last one short */
#define BUFFERS (4 * PAGE_SIZE)
#define WAIT_TIMEOUT_MS 5000

/* A ring that the process shares with the driver, and the index of the process's next element. */
struct ring {
	struct rxe_queue_buf __user *buf;
	u32 next;
};

struct peer {
	struct ib_qp *qp;
	struct ring sq, rq;
};

struct stage {
	struct ib_device *device;
	struct ib_uverbs_file ufile;
	struct ib_ucontext *context;
	struct file *file;
	struct ib_pd *pd;
	struct ib_cq *cq;
	struct ring completions;
	struct ib_mr *mr;
	struct peer peers[2];
	u8 __user *source, *target, *reply;
};

static int ring_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct ib_ucontext *context = file->private_data;

	return context->device->ops.mmap(context, vma);
}

static const struct file_operations ring_file = { .mmap = ring_mmap };

static u8 __user *map(struct kunit *test, struct file *file, size_t size, u64 offset)
{
	unsigned long flags = file ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
	unsigned long at = kunit_vm_mmap(test, file, 0, PAGE_ALIGN(size), PROT_READ | PROT_WRITE,
					 flags, offset);

	KUNIT_ASSERT_FALSE(test, !at || IS_ERR_VALUE(at));
	return (u8 __user *)at;
}

static struct ring map_ring(struct kunit *test, struct stage *stage, const struct mminfo *where)
{
	return (struct ring){ .buf = (void __user *)map(test, stage->file, where->size,
							where->offset) };
}

static u32 word(struct kunit *test, const u32 __user *from)
{
	u32 value = 0;

	KUNIT_ASSERT_EQ(test, get_user(value, from), 0);
	return value;
}

static u8 __user *element(struct kunit *test, struct ring *ring)
{
	return ring->buf->data + ((size_t)ring->next << word(test, &ring->buf->log2_elem_size));
}

static void advance(struct kunit *test, struct ring *ring, u32 __user *index)
{
	ring->next = (ring->next + 1) & word(test, &ring->buf->index_mask);
	/*
	 * The index gives the element to the driver. The accesses to the element, which are writes
	 * of a producer and reads of a consumer, must be done before.
	 */
	smp_mb();
	KUNIT_ASSERT_EQ(test, put_user(ring->next, index), 0);
}

static struct uverbs_attr_bundle call(struct stage *stage, size_t reply)
{
	return (struct uverbs_attr_bundle){
		.driver_udata = { .outbuf = stage->reply, .outlen = reply },
		.ufile = &stage->ufile,
		.context = stage->context,
	};
}

static void open_device(struct kunit *test, struct stage *stage)
{
	struct ib_device *device = stage->device;
	struct uverbs_attr_bundle bundle;

	mutex_init(&stage->ufile.umap_lock);
	stage->context = kunit_kzalloc(test, device->ops.size_ib_ucontext, GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, stage->context);
	stage->context->device = device;
	stage->context->ufile = &stage->ufile;
	xa_init_flags(&stage->context->mmap_xa, XA_FLAGS_ALLOC);
	bundle = call(stage, 0);
	KUNIT_ASSERT_EQ(test, device->ops.alloc_ucontext(stage->context, &bundle.driver_udata), 0);
	stage->file = anon_inode_getfile("rrxe_kunit", &ring_file, stage->context, O_RDWR);
	KUNIT_ASSERT_FALSE(test, IS_ERR(stage->file));
}

static void make_cq(struct kunit *test, struct stage *stage)
{
	struct uverbs_attr_bundle bundle = call(stage, sizeof(struct rxe_create_cq_resp));
	struct ib_cq_init_attr init = { .cqe = 16 };
	struct rxe_create_cq_resp reply;

	stage->cq = kunit_kzalloc(test, stage->device->ops.size_ib_cq, GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, stage->cq);
	stage->cq->device = stage->device;
	KUNIT_ASSERT_EQ(test, stage->device->ops.create_user_cq(stage->cq, &init, &bundle), 0);
	KUNIT_ASSERT_EQ(test, copy_from_user(&reply, stage->reply, sizeof(reply)), 0);
	stage->completions = map_ring(test, stage, &reply.mi);
}

static void make_qp(struct kunit *test, struct stage *stage, struct peer *peer)
{
	struct uverbs_attr_bundle bundle = call(stage, sizeof(struct rxe_create_qp_resp));
	struct ib_qp_init_attr init = {
		.send_cq = stage->cq,
		.recv_cq = stage->cq,
		.qp_type = IB_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct rxe_create_qp_resp reply;

	peer->qp = kunit_kzalloc(test, stage->device->ops.size_ib_qp, GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, peer->qp);
	peer->qp->device = stage->device;
	peer->qp->pd = stage->pd;
	KUNIT_ASSERT_EQ(test, stage->device->ops.create_qp(peer->qp, &init, &bundle.driver_udata),
			0);
	KUNIT_ASSERT_EQ(test, copy_from_user(&reply, stage->reply, sizeof(reply)), 0);
	peer->sq = map_ring(test, stage, &reply.sq_mi);
	peer->rq = map_ring(test, stage, &reply.rq_mi);
}

static void make_objects(struct kunit *test, struct stage *stage)
{
	const struct ib_device_ops *ops = &stage->device->ops;
	u64 start = (unsigned long)stage->source;

	stage->pd = kunit_kzalloc(test, ops->size_ib_pd, GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, stage->pd);
	stage->pd->device = stage->device;
	KUNIT_ASSERT_EQ(test, ops->alloc_pd(stage->pd, NULL), 0);
	stage->mr = ops->reg_user_mr(stage->pd, start, 2 * BUFFERS, start,
				     IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE, NULL, NULL);
	KUNIT_ASSERT_FALSE(test, IS_ERR(stage->mr));
	stage->mr->device = stage->device;
	make_cq(test, stage);
	make_qp(test, stage, &stage->peers[0]);
	make_qp(test, stage, &stage->peers[1]);
}

static void connect(struct kunit *test, struct ib_qp *qp, u32 peer, const struct ib_gid_attr *gid)
{
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IB_ACCESS_REMOTE_WRITE,
		.path_mtu = IB_MTU_1024,
		.dest_qp_num = peer,
		.max_dest_rd_atomic = 1,
		.max_rd_atomic = 1,
		.min_rnr_timer = 12,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.rq_psn = 0x123456,
		.sq_psn = 0x123456,
	};
	int (*modify)(struct ib_qp *, struct ib_qp_attr *, int, struct ib_udata *) =
		qp->device->ops.modify_qp;

	attr.ah_attr.type = RDMA_AH_ATTR_TYPE_ROCE;
	attr.ah_attr.ah_flags = IB_AH_GRH;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.sgid_attr = gid;
	attr.ah_attr.grh.sgid_index = gid->index;
	attr.ah_attr.grh.dgid = gid->gid;
	attr.ah_attr.grh.hop_limit = 64;
	KUNIT_ASSERT_EQ(test,
			modify(qp, &attr,
			       IB_QP_STATE | IB_QP_PKEY_INDEX | IB_QP_PORT | IB_QP_ACCESS_FLAGS,
			       NULL),
			0);
	attr.qp_state = IB_QPS_RTR;
	KUNIT_ASSERT_EQ(test,
			modify(qp, &attr,
			       IB_QP_STATE | IB_QP_AV | IB_QP_PATH_MTU | IB_QP_DEST_QPN |
				       IB_QP_RQ_PSN | IB_QP_MAX_DEST_RD_ATOMIC |
				       IB_QP_MIN_RNR_TIMER,
			       NULL),
			0);
	attr.qp_state = IB_QPS_RTS;
	KUNIT_ASSERT_EQ(test,
			modify(qp, &attr,
			       IB_QP_STATE | IB_QP_TIMEOUT | IB_QP_RETRY_CNT | IB_QP_RNR_RETRY |
				       IB_QP_SQ_PSN | IB_QP_MAX_QP_RD_ATOMIC,
			       NULL),
			0);
}

static struct rxe_sge whole(struct stage *stage, u8 __user *buffer)
{
	return (struct rxe_sge){ .addr = (unsigned long)buffer,
				 .length = MESSAGE,
				 .lkey = stage->mr->lkey };
}

static void post_recv(struct kunit *test, struct stage *stage, struct peer *peer, u64 id)
{
	struct rxe_recv_wqe wqe = { .wr_id = id, .dma = { .length = MESSAGE, .num_sge = 1 } };
	struct rxe_sge sge = whole(stage, stage->target);
	u8 __user *at = element(test, &peer->rq);

	KUNIT_ASSERT_EQ(test, copy_to_user(at, &wqe, sizeof(wqe)), 0);
	KUNIT_ASSERT_EQ(test, copy_to_user(at + sizeof(wqe), &sge, sizeof(sge)), 0);
	advance(test, &peer->rq, &peer->rq.buf->producer_index);
}

static void post_send(struct kunit *test, struct stage *stage, struct peer *peer, u64 id,
		      u32 opcode)
{
	struct rxe_send_wqe wqe = {
		.wr = { .wr_id = id, .opcode = opcode, .send_flags = IB_SEND_SIGNALED },
		.dma = { .length = MESSAGE, .resid = MESSAGE, .num_sge = 1 },
	};
	struct rxe_sge sge = whole(stage, stage->source);
	u8 __user *at = element(test, &peer->sq);
	const struct ib_send_wr *bad;

	if (opcode == IB_WR_RDMA_WRITE) {
		wqe.wr.wr.rdma.remote_addr = (unsigned long)stage->target;
		wqe.wr.wr.rdma.rkey = stage->mr->rkey;
	}
	KUNIT_ASSERT_EQ(test, copy_to_user(at, &wqe, sizeof(wqe)), 0);
	KUNIT_ASSERT_EQ(test, copy_to_user(at + sizeof(wqe), &sge, sizeof(sge)), 0);
	advance(test, &peer->sq, &peer->sq.buf->producer_index);
	KUNIT_ASSERT_EQ(test, stage->device->ops.post_send(peer->qp, NULL, &bad), 0);
}

static struct ib_uverbs_wc completion(struct kunit *test, struct stage *stage)
{
	struct ring *ring = &stage->completions;
	struct ib_uverbs_wc wc = {};
	int waited;

	for (waited = 0; word(test, &ring->buf->producer_index) == ring->next; waited += 20) {
		if (waited >= WAIT_TIMEOUT_MS)
			KUNIT_FAIL_AND_ABORT(test, "nothing completed");
		msleep(20);
	}
	/* The index must be read before the element that it publishes. */
	smp_rmb();
	KUNIT_ASSERT_EQ(test, copy_from_user(&wc, element(test, ring), sizeof(wc)), 0);
	advance(test, ring, &ring->buf->consumer_index);
	KUNIT_EXPECT_EQ(test, wc.status, IB_WC_SUCCESS);
	return wc;
}

/* Fills the source with a pattern that depends on `seed`, and the target with zeroes. */
static void fill(struct kunit *test, struct stage *stage, u8 seed)
{
	u8 *bytes = kunit_kzalloc(test, BUFFERS, GFP_KERNEL);
	size_t i;

	KUNIT_ASSERT_NOT_NULL(test, bytes);
	KUNIT_ASSERT_EQ(test, copy_to_user(stage->target, bytes, BUFFERS), 0);
	for (i = 0; i < BUFFERS; i++)
		bytes[i] = i * 7 + i / 251 + seed;
	KUNIT_ASSERT_EQ(test, copy_to_user(stage->source, bytes, BUFFERS), 0);
}

/* Checks that the target has the message, and zeroes behind it. */
static void check_target(struct kunit *test, struct stage *stage)
{
	u8 *sent = kunit_kzalloc(test, BUFFERS, GFP_KERNEL);
	u8 *found = kunit_kzalloc(test, BUFFERS, GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, sent);
	KUNIT_ASSERT_NOT_NULL(test, found);
	KUNIT_ASSERT_EQ(test, copy_from_user(sent, stage->source, BUFFERS), 0);
	KUNIT_ASSERT_EQ(test, copy_from_user(found, stage->target, BUFFERS), 0);
	KUNIT_EXPECT_MEMEQ(test, found, sent, MESSAGE);
	KUNIT_EXPECT_NULL(test, memchr_inv(found + MESSAGE, 0, BUFFERS - MESSAGE));
}

static void try_send(struct kunit *test, struct stage *stage)
{
	struct peer *from = &stage->peers[0], *to = &stage->peers[1];
	int left;

	fill(test, stage, 1);
	post_recv(test, stage, to, 11);
	post_send(test, stage, from, 12, IB_WR_SEND);
	for (left = 2; left; left--) {
		struct ib_uverbs_wc wc = completion(test, stage);
		bool received = wc.wr_id == 11;

		KUNIT_EXPECT_EQ(test, wc.opcode, received ? IB_WC_RECV : IB_WC_SEND);
		KUNIT_EXPECT_EQ(test, wc.qp_num, received ? to->qp->qp_num : from->qp->qp_num);
		if (received)
			KUNIT_EXPECT_EQ(test, wc.byte_len, MESSAGE);
		else
			KUNIT_EXPECT_EQ(test, wc.wr_id, 12);
	}
	check_target(test, stage);
}

static void try_write(struct kunit *test, struct stage *stage)
{
	struct peer *from = &stage->peers[1];
	struct ib_uverbs_wc wc;

	fill(test, stage, 2);
	post_send(test, stage, from, 21, IB_WR_RDMA_WRITE);
	wc = completion(test, stage);
	KUNIT_EXPECT_EQ(test, wc.wr_id, 21);
	KUNIT_EXPECT_EQ(test, wc.opcode, IB_WC_RDMA_WRITE);
	KUNIT_EXPECT_EQ(test, wc.qp_num, from->qp->qp_num);
	check_target(test, stage);
}

static void take_down(struct kunit *test, struct stage *stage)
{
	const struct ib_device_ops *ops = &stage->device->ops;

	KUNIT_EXPECT_EQ(test, ops->destroy_qp(stage->peers[0].qp, NULL), 0);
	KUNIT_EXPECT_EQ(test, ops->destroy_qp(stage->peers[1].qp, NULL), 0);
	KUNIT_EXPECT_EQ(test, ops->destroy_cq(stage->cq, NULL), 0);
	KUNIT_EXPECT_EQ(test, ops->dereg_mr(stage->mr, NULL), 0);
	KUNIT_EXPECT_EQ(test, ops->dealloc_pd(stage->pd, NULL), 0);
	ops->dealloc_ucontext(stage->context);
	KUNIT_EXPECT_TRUE(test, xa_empty(&stage->context->mmap_xa));
	fput(stage->file);
}

static void moves_messages_between_its_own_qps(struct kunit *test)
{
	struct stage *stage = kunit_kzalloc(test, sizeof(*stage), GFP_KERNEL);
	const struct ib_gid_attr *gid;
	struct ib_port_attr port;
	struct peer *peers;

	KUNIT_ASSERT_NOT_NULL(test, stage);
	stage->device = rrxe_link_up(test);
	KUNIT_ASSERT_EQ(test, ib_query_port(stage->device, 1, &port), 0);
	KUNIT_EXPECT_EQ(test, port.state, IB_PORT_ACTIVE);

	stage->reply = map(test, NULL, PAGE_SIZE, 0);
	stage->source = map(test, NULL, 2 * BUFFERS, 0);
	stage->target = stage->source + BUFFERS;
	open_device(test, stage);
	make_objects(test, stage);
	gid = rrxe_link_gid(test, stage->device);
	peers = stage->peers;
	connect(test, peers[0].qp, peers[1].qp->qp_num, gid);
	connect(test, peers[1].qp, peers[0].qp->qp_num, gid);
	try_send(test, stage);
	try_write(test, stage);

	rdma_put_gid_attr(gid);
	take_down(test, stage);
	rrxe_link_down(test, stage->device);
}

static struct kunit_case cases[] = { KUNIT_CASE(moves_messages_between_its_own_qps), {} };

static struct kunit_suite suite = {
	.name = "rrxe_loopback",
	.test_cases = cases,
};

kunit_test_suite(suite);
