/* SPDX-License-Identifier: ((GPL-2.0 WITH Linux-syscall-note) OR Linux-OpenIB) */
/*
 * The interface between rrxe and its own provider library (librrxe), in addition to
 * rdma_user_rxe.h: a doorbell page for each user context, words in the ring of a CQ for arming the
 * CQ, and device memory. The use of these takes no system call, except where a comment below
 * demands one. Documentation/uabi.rst describes their use.
 *
 * All fields are in the byte order of the machine. The layout is the same for 32 and 64 bits.
 */
#ifndef RRXE_ABI_H
#define RRXE_ABI_H

#include <linux/types.h>

/* Version of the interface that this header describes. */
#define RRXE_ABI_VERSION	1

/* Features that a library may request, and that the kernel grants. */
enum rrxe_feature {
	/* Doorbell page: struct rrxe_doorbell. */
	RRXE_FEATURE_DOORBELL	= 1 << 0,
	/* Arming of a CQ without a system call: RRXE_CQ_ARM. */
	RRXE_FEATURE_CQ_ARM	= 1 << 1,
	/* Device memory: RRXE_DM_OFFSET. Without it, a context has no device memory. */
	RRXE_FEATURE_DM		= 1 << 2,
	/* Detection of completions that arming missed: RRXE_CQ_NEWS. */
	RRXE_FEATURE_CQ_NEWS	= 1 << 3,
};

/*
 * Request data of alloc_ucontext. The library of rdma_rxe (librxe) sends none, and is granted no
 * feature.
 */
struct rrxe_alloc_ucontext_req {
	/* Newest version of this interface that the library supports, 1 or higher. */
	__u32 abi_version;
	/* Bits of enum rrxe_feature: features that the library requests. */
	__u32 features;
};

/*
 * Response data of alloc_ucontext. Other versions may have a shorter or longer structure; the
 * kernel copies as many bytes as the library has room for.
 */
struct rrxe_alloc_ucontext_resp {
	/* Version that the kernel uses with this library, at most the library's. */
	__u32 abi_version;
	/* Bits of enum rrxe_feature: features granted, a subset of those requested. */
	__u32 features;
	/* mmap() offset of struct rrxe_doorbell, which is mapped shared, readable and writable. */
	__aligned_u64 doorbell_offset;
	/* Number of bytes to map, a multiple of the page size. */
	__u32 doorbell_size;
	__u32 reserved;
};

/* Number of slots of a doorbell page, one for each send queue of the context. */
#define RRXE_DOORBELL_SLOTS	32768
#define RRXE_DOORBELL_WORDS	(RRXE_DOORBELL_SLOTS / 64)
#define RRXE_DOORBELL_SUMMARY	(RRXE_DOORBELL_WORDS / 64)

/* Bits of rrxe_doorbell.state. */
enum rrxe_poller_state {
	/*
	 * The kernel does not poll the page: a process that has set the bits of a slot has to make
	 * the doorbell system call (IB_USER_VERBS_CMD_POST_SEND without work requests), which
	 * librxe makes for each post.
	 */
	RRXE_POLLER_NEED_WAKEUP	= 1 << 0,
};

/*
 * The doorbell page of a user context.
 *
 * A process that has posted to the send queue of slot s sets bit s % 64 of dirty[s / 64]. Then it
 * sets bit (s / 64) % 64 of summary[s / 64 / 64], unless that is set already. Both accesses are
 * atomic. A full barrier follows each of them, whether the bit was set before or not. Then the
 * process reads state. The kernel clears the bits in the order from summary to dirty, and reads the
 * send queue's producer index after that.
 */
struct rrxe_doorbell {
	/* Bits of enum rrxe_poller_state. Written by the kernel. */
	__u32 state;
	__u32 reserved[15];
	/* One bit for each word of dirty that may be nonzero. */
	__aligned_u64 summary[RRXE_DOORBELL_SUMMARY];
	__aligned_u64 reserved2[496];
	/* One bit for each slot: the doorbells. */
	__aligned_u64 dirty[RRXE_DOORBELL_WORDS];
};

/* Slot number of a QP that has no slot: each post takes the doorbell system call. */
#define RRXE_NO_SLOT		0xffffffffU

/* Response data of create_qp, behind struct rxe_create_qp_resp. */
struct rrxe_create_qp_resp {
	/* Slot of the QP in struct rrxe_doorbell, or RRXE_NO_SLOT. */
	__u32 slot;
	__u32 reserved;
};

/*
 * Offset in bytes from the beginning of a CQ's ring: a __u32 of enum rrxe_cq_arm. The process
 * writes it, followed by a full barrier. The kernel reads it after each completion that it adds,
 * and sets it to RRXE_CQ_ARM_NONE when a notification becomes due.
 */
#define RRXE_CQ_ARM		320

enum rrxe_cq_arm {
	/* The CQ is not armed. */
	RRXE_CQ_ARM_NONE	= 0,
	/* A solicited completion, or a completion in error, causes a notification. */
	RRXE_CQ_ARM_SOLICITED	= 1,
	/* Any completion causes a notification. */
	RRXE_CQ_ARM_NEXT	= 2,
};

/*
 * Offset in bytes from the beginning of a CQ's ring: a __u32 of enum rrxe_cq_news. It states the
 * kind of the completions that the kernel has added since the last notification. The kernel writes
 * it before the producer index.
 *
 * A process that arms the CQ by RRXE_CQ_ARM may miss completions that the kernel adds at the same
 * time. So after the barrier the process checks two conditions: the ring has completions that it
 * has not polled, and the word at RRXE_CQ_NEWS has the kind that it armed for. If both hold, the
 * process also arms the CQ by the system call req_notify_cq, which notifies of completions that
 * are already there.
 */
#define RRXE_CQ_NEWS		132

enum rrxe_cq_news {
	/* No completions. */
	RRXE_CQ_NEWS_NONE	= 0,
	/* Completions, none of which is solicited or in error. */
	RRXE_CQ_NEWS_ANY	= 1,
	/* Completions, at least one of which is solicited or in error. */
	RRXE_CQ_NEWS_SOLICITED	= 2,
};

/*
 * mmap() offsets of device memory. A process may map a piece of device memory, shared and as a
 * whole, rounded up to pages. The piece with handle h is at RRXE_DM_OFFSET + h * RRXE_DM_STRIDE,
 * also in a process that imports it. No piece is longer than RRXE_DM_STRIDE.
 */
#define RRXE_DM_OFFSET		0x80000000000ULL
#define RRXE_DM_STRIDE		0x40000U

#endif /* RRXE_ABI_H */
