// SPDX-License-Identifier: GPL-2.0
#include <linux/module.h>

/*
 * When a device is unregistered, ib_core tells its clients in the reverse order of their
 * registration. rrxe's client must be told before uverbs destroys the objects of processes, so
 * ib_uverbs must be loaded, and so registered, first.
 */
MODULE_SOFTDEP("pre: ib_uverbs");
