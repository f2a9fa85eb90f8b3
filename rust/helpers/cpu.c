// SPDX-License-Identifier: GPL-2.0
#include <linux/cpumask.h>

__rrxe_helper bool rrxe_helper_cpu_online(unsigned int cpu)
{
	return cpu_online(cpu);
}
