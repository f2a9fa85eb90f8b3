// SPDX-License-Identifier: GPL-2.0
/*
 * Helpers for Rust (see helpers.c): interrupts, softirqs and preemption.
 *
 * On PREEMPT_RT, other code with softirqs disabled may preempt code with softirqs disabled on the
 * same CPU. rust/rdma/support/read_section.rs loads a CPU's count of read sections and stores the
 * new count in a second step, and would lose readers there.
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
 * Returns -1 if softirqs may interrupt the caller, or the caller may move to another CPU. Otherwise
 * returns twice the number of the CPU, plus 1 in a hard interrupt or a softirq. The caller can't
 * leave a hard interrupt or a softirq itself. Outside of them it could enable softirqs and
 * interrupts again.
 */
__rrxe_helper int rrxe_helper_cpu_without_softirqs(void)
{
	if (in_serving_softirq() || in_hardirq())
		return raw_smp_processor_id() << 1 | 1;
	return softirq_count() || irqs_disabled() ? raw_smp_processor_id() << 1 : -1;
}

/* Returns whether the caller excludes softirqs of its CPU, and is not in a hard interrupt. */
__rrxe_helper bool rrxe_helper_in_bottom_half(void)
{
	return softirq_count() && !in_hardirq() && !in_nmi();
}
