// SPDX-License-Identifier: GPL-2.0
#include <linux/sched.h>
#include <linux/sched/signal.h>

__rrxe_helper void rrxe_helper_cond_resched(void)
{
	cond_resched();
}

__rrxe_helper bool rrxe_helper_current_fatal_signal_pending(void)
{
	return fatal_signal_pending(current);
}
