// SPDX-License-Identifier: GPL-2.0
#include <linux/sched.h>

__rrxe_helper void rrxe_helper_cond_resched(void)
{
	cond_resched();
}
