// SPDX-License-Identifier: GPL-2.0
/* Helpers for Rust (see helpers.c): memory barriers. */
#include <asm/barrier.h>

__rrxe_helper void rrxe_helper_smp_mb(void)
{
	/* The caller in Rust says which accesses it orders. */
	smp_mb();
}
