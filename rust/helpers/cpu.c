// SPDX-License-Identifier: GPL-2.0
/* Helpers for Rust (see helpers.c): CPUs. */
#include <linux/cpumask.h>

__rrxe_helper bool rrxe_helper_cpu_online(unsigned int cpu)
{
	return cpu_online(cpu);
}
