/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Functions of libibverbs, for programs that load librrxe (tests/suites.d/16-layouts). They have
 * the layout of the headers, or another one: the field comp_mask of a QP lies QP_SHIFT bytes later,
 * the table of a provider's functions has OPERATIONS_MORE more entries, its entries lie
 * OPERATIONS_SHIFT places later, or the context has CONTEXT_MORE more words at its beginning.
 */
#include <infiniband/driver.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
	uint32_t comp_mask;

	memcpy(&comp_mask, (char *)qp + offsetof(struct verbs_qp, comp_mask) + QP_SHIFT,
	       sizeof(comp_mask));
	return comp_mask & VERBS_QP_EX ? (struct ibv_qp_ex *)qp : NULL;
}

void verbs_set_ops(struct verbs_context *passed, const struct verbs_context_ops *ops)
{
	struct verbs_context *context = (void *)((void **)passed + CONTEXT_MORE);
	const struct verbs_context_ops *moved = (const void *)((void *const *)ops + OPERATIONS_SHIFT);

	memcpy((char *)context->priv + 64, ops, sizeof(*ops) + OPERATIONS_MORE * (int)sizeof(void *));
	context->alloc_parent_domain = moved->alloc_parent_domain;
	context->create_qp_ex = moved->create_qp_ex;
	context->open_xrcd = moved->open_xrcd;
	context->context.ops.poll_cq = moved->poll_cq;
	context->context.ops.req_notify_cq = moved->req_notify_cq;
}

void verbs_register_driver(const struct verbs_device_ops *ops)
{
	puts(ops->name);
}
