// SPDX-License-Identifier: GPL-2.0
/* Helpers for Rust (see helpers.c): the user and the memory cgroup of the current thread. */
#include <linux/cred.h>
#include <linux/memcontrol.h>
#include <linux/sched.h>
#include <linux/user_namespace.h>

/* Returns a counted reference to the memory cgroup of the current process. */
__rrxe_helper struct mem_cgroup *rrxe_helper_current_memcg(void)
{
	return get_mem_cgroup_from_mm(current->mm);
}

__rrxe_helper bool rrxe_helper_mem_cgroup_is_root(struct mem_cgroup *memcg)
{
	return mem_cgroup_is_root(memcg);
}

__rrxe_helper u64 rrxe_helper_mem_cgroup_id(struct mem_cgroup *memcg)
{
	return mem_cgroup_id(memcg);
}

__rrxe_helper u32 rrxe_helper_current_uid(void)
{
	return __kuid_val(current_uid());
}

__rrxe_helper struct user_namespace *rrxe_helper_current_user_ns(void)
{
	return current_user_ns();
}

__rrxe_helper void rrxe_helper_mem_cgroup_put(struct mem_cgroup *memcg)
{
	mem_cgroup_put(memcg);
}
