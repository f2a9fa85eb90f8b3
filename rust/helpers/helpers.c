// SPDX-License-Identifier: GPL-2.0
/*
 * Functions for Rust, which can't call inline functions and macros of C. The function
 * rrxe_helper_x() wraps the inline function or macro x(), and is called x() in Rust. Some helpers
 * have no counterpart in C: they access fields for which bindgen generates no stable names, or
 * combine several calls. There is one file for each header or subject, in alphabetical order.
 */
#include <linux/compiler_types.h>

#define __rrxe_helper

#include "cpu.c"
#include "dma_buf.c"
#include "identity.c"
#include "interrupt.c"
#include "memory.c"
#include "module.c"
#include "netdevice.c"
#include "netlink.c"
#include "odp.c"
#include "sched.c"
#include "skbuff.c"
#include "spinlock.c"
#include "sysfs.c"
#include "verbs.c"
#include "xarray.c"
