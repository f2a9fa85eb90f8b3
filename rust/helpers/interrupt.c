// SPDX-License-Identifier: GPL-2.0
/*
 * On PREEMPT_RT, code with softirqs disabled may be preempted by other such code on the same CPU. There
 * rust/rdma/support/read_section.rs, which counts sections per CPU without atomic operations, would lose readers.
 */
#ifdef CONFIG_PREEMPT_RT
#error "rrxe does not support kernels with CONFIG_PREEMPT_RT"
#endif

#include <linux/bottom_half.h>
#include <linux/irqflags.h>
#include <linux/preempt.h>

__rrxe_helper bool rrxe_helper_irqs_disabled(void)
{
	return irqs_disabled();
}

__rrxe_helper void rrxe_helper_local_bh_disable(void)
{
	local_bh_disable();
}

__rrxe_helper void rrxe_helper_local_bh_enable(void)
{
	local_bh_enable();
}

__rrxe_helper void rrxe_helper_preempt_disable(void)
{
	preempt_disable();
}

__rrxe_helper void rrxe_helper_preempt_enable(void)
{
	preempt_enable();
}

/*
 * -1 where softirqs may come, and the CPU may change. Otherwise twice the number of the CPU, and 1 more in an
 * interrupt or a softirq: the caller cannot leave these itself, while it can enable softirqs and interrupts.
 */
__rrxe_helper int rrxe_helper_cpu_without_softirqs(void)
{
	if (in_serving_softirq() || in_hardirq())
		return raw_smp_processor_id() << 1 | 1;
	return softirq_count() || irqs_disabled() ? raw_smp_processor_id() << 1 : -1;
}
