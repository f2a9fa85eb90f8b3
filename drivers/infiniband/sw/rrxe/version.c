// SPDX-License-Identifier: GPL-2.0
/*
 * The version of the external module. The macro module! of the crate kernel has no field for a
 * version. The Makefile of a kernel tree does not name this file, because a driver of a kernel tree
 * has the version of the kernel.
 */
#include <linux/module.h>

MODULE_VERSION("0.2.0");
