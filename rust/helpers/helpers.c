// SPDX-License-Identifier: GPL-2.0
/*
 * Inline functions and macros that Rust calls, each wrapped in a function rrxe_helper_<its name>;
 * in Rust it has its own name. One file for each header or subject, in alphabetical order.
 */
#include <linux/compiler_types.h>

#define __rrxe_helper

#include "barrier.c"
#include "cpu.c"
#include "dma_buf.c"
#include "interrupt.c"
#include "memory.c"
#include "module.c"
#include "netdevice.c"
#include "netlink.c"
#include "odp.c"
#include "principal.c"
#include "sched.c"
#include "skbuff.c"
#include "spinlock.c"
#include "sysfs.c"
#include "verbs.c"
#include "xarray.c"
