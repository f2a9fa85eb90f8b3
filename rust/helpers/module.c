// SPDX-License-Identifier: GPL-2.0
#include <linux/module.h>

/*
 * A client of ib_core hears of a device's end the earlier the later it was registered; ours must hear of
 * it before user space's objects are taken away.
 */
MODULE_SOFTDEP("pre: ib_uverbs");
