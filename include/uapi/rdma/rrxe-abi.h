/* SPDX-License-Identifier: ((GPL-2.0 WITH Linux-syscall-note) OR Linux-OpenIB) */
/*
 * What rrxe and its own provider library share beyond rdma_user_rxe.h: a page of
 * doorbells a context, words in the ring of a CQ that arm it, and device memory. Neither
 * of these takes a system call to use. Documentation/uabi.rst tells how they are used.
 *
 * Everything is in the byte order of the machine, and laid out alike for 32 and 64 bits.
 */
#ifndef RRXE_ABI_H
#define RRXE_ABI_H

#include <linux/types.h>

/* The version that this header describes. */
#define RRXE_ABI_VERSION	1

/* What a library may ask for, and what it is granted. */
enum rrxe_feature {
	/* struct rrxe_doorbell */
	RRXE_FEATURE_DOORBELL	= 1 << 0,
	/* RRXE_CQ_ARM */
	RRXE_FEATURE_CQ_ARM	= 1 << 1,
	/* RRXE_DM_OFFSET; without it a context has no device memory */
	RRXE_FEATURE_DM		= 1 << 2,
	/* RRXE_CQ_NEWS */
	RRXE_FEATURE_CQ_NEWS	= 1 << 3,
};

/* alloc_ucontext: stock librxe sends nothing, and nothing is granted to it. */
struct rrxe_alloc_ucontext_req {
	/* the newest version that the library speaks, from 1 on */
	__u32 abi_version;
	/* enum rrxe_feature: what it wants of those that it knows */
	__u32 features;
};

/* Shorter or longer for other versions: the library sees what it has room for. */
struct rrxe_alloc_ucontext_resp {
	/* the version that is spoken: at most the library's */
	__u32 abi_version;
	/* enum rrxe_feature: at most what was asked for */
	__u32 features;
	/* where the process maps its struct rrxe_doorbell, shared, for reading and writing */
	__aligned_u64 doorbell_offset;
	/* bytes to map, a multiple of the page size */
	__u32 doorbell_size;
	__u32 reserved;
};

/* Send queues of a context that a doorbell page has room for. */
#define RRXE_DOORBELL_SLOTS	32768
#define RRXE_DOORBELL_WORDS	(RRXE_DOORBELL_SLOTS / 64)
#define RRXE_DOORBELL_SUMMARY	(RRXE_DOORBELL_WORDS / 64)

/* Bits of rrxe_doorbell.state. */
enum rrxe_poller_state {
	/* Nobody watches the page: the doorbell call of stock librxe is needed. */
	RRXE_POLLER_NEED_WAKEUP	= 1 << 0,
};

/*
 * The doorbells of a context.
 *
 * Whoever posted to the send queue of slot s sets bit s % 64 of dirty[s / 64], then bit
 * (s / 64) % 64 of summary[s / 64 / 64] unless it finds it set, both atomically and with
 * a full barrier behind each, whether it was set or not; then reads state. The kernel
 * clears them in the order from summary to dirty, and looks at the send queue's producer
 * index after that.
 */
struct rrxe_doorbell {
	/* enum rrxe_poller_state; written by the kernel */
	__u32 state;
	__u32 reserved[15];
	__aligned_u64 summary[RRXE_DOORBELL_SUMMARY];
	__aligned_u64 reserved2[496];
	__aligned_u64 dirty[RRXE_DOORBELL_WORDS];
};

/* The slot of a QP whose sends take the doorbell call. */
#define RRXE_NO_SLOT		0xffffffffU

/* create_qp, behind struct rxe_create_qp_resp. */
struct rrxe_create_qp_resp {
	/* its slot in struct rrxe_doorbell, or RRXE_NO_SLOT */
	__u32 slot;
	__u32 reserved;
};

/*
 * In a CQ's ring, bytes from its beginning: a __u32, enum rrxe_cq_arm. The process sets it,
 * with a full barrier behind; the kernel reads it behind each completion that it adds, and
 * clears it when it notifies.
 */
#define RRXE_CQ_ARM		320

enum rrxe_cq_arm {
	RRXE_CQ_ARM_NONE	= 0,
	/* a solicited completion or one in error notifies */
	RRXE_CQ_ARM_SOLICITED	= 1,
	/* any completion does */
	RRXE_CQ_ARM_NEXT	= 2,
};

/*
 * In a CQ's ring, bytes from its beginning: a __u32, enum rrxe_cq_news. The kernel writes it
 * before the producer index: which completions it added since those that the last
 * notification told of. A process that has armed the CQ by RRXE_CQ_ARM, and finds behind the
 * barrier completions that it has not polled, and here the kind that it armed for, arms the
 * CQ by a call of req_notify_cq as well: the kernel then notifies of what is there.
 */
#define RRXE_CQ_NEWS		132

enum rrxe_cq_news {
	RRXE_CQ_NEWS_NONE	= 0,
	/* completions, none of which is solicited or in error */
	RRXE_CQ_NEWS_ANY	= 1,
	/* completions, one of which is solicited or in error */
	RRXE_CQ_NEWS_SOLICITED	= 2,
};

/*
 * The process may map device memory, shared and as a whole, rounded up to pages. That of
 * handle h is at RRXE_DM_OFFSET + h * RRXE_DM_STRIDE, also for a process that imports it.
 * None is longer than RRXE_DM_STRIDE.
 */
#define RRXE_DM_OFFSET		0x80000000000ULL
#define RRXE_DM_STRIDE		0x40000U

#endif /* RRXE_ABI_H */
