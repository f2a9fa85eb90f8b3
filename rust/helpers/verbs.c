// SPDX-License-Identifier: GPL-2.0
/* Helpers for Rust (see helpers.c): ib_core, uverbs and the module itself. */
#include <linux/cpumask.h>
#include <linux/module.h>
#include <rdma/ib_verbs.h>
#include <rdma/uverbs_ioctl.h>

__rrxe_helper bool rrxe_helper_ib_device_try_get(struct ib_device *dev)
{
	return ib_device_try_get(dev);
}

__rrxe_helper int rrxe_helper_ib_is_udata_in_empty(struct ib_udata *udata)
{
	return ib_is_udata_in_empty(udata);
}

__rrxe_helper void rrxe_helper_ib_mark_name_assigned_by_user(struct ib_device *dev)
{
	ib_mark_name_assigned_by_user(dev);
}

/*
 * Returns the context of a running call, or an error pointer. A command that names no object does
 * not set the context of the attribute bundle, so it is looked up then.
 */
__rrxe_helper struct ib_ucontext *rrxe_helper_rdma_udata_to_ucontext(struct ib_udata *udata)
{
	struct uverbs_attr_bundle *attrs = rdma_udata_to_uverbs_attr_bundle(udata);

	return attrs->context ?: ib_uverbs_get_ucontext(attrs);
}

/* Returns the handle of the object that attribute `id` of an ioctl names. */
__rrxe_helper u32 rrxe_helper_uverbs_attr_handle(struct uverbs_attr_bundle *attrs, u16 id)
{
	return uverbs_attr_get_uobject(attrs, id)->id;
}

__rrxe_helper unsigned int rrxe_helper_num_possible_cpus(void)
{
	return num_possible_cpus();
}

/* Rust's module! macro defines THIS_MODULE at different places in different kernels. */
__rrxe_helper struct module *rrxe_helper_this_module(void)
{
	return THIS_MODULE;
}

__rrxe_helper bool rrxe_helper_try_this_module_get(void)
{
	return try_module_get(THIS_MODULE);
}

__rrxe_helper void rrxe_helper_this_module_put(void)
{
	module_put(THIS_MODULE);
}

/*
 * An ib_core that has this function removes a QP, CQ or SRQ from its lists, and waits for netlink
 * dumps of the object, before it calls the driver to destroy the object. rust/rdma/verbs/object.rs
 * relies on that order. Older kernels use the reverse order. Because of this reference the module
 * can't be built for, or loaded into, such a kernel.
 */
void rdma_restrack_begin_del(struct rdma_restrack_entry *entry);
static void (*const rrxe_required)(struct rdma_restrack_entry *) __used = rdma_restrack_begin_del;
