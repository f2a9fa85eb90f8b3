// SPDX-License-Identifier: GPL-2.0
/* Helpers for Rust (see helpers.c): XArrays. */
#include <linux/xarray.h>

/*
 * xa_load() without its RCU read lock, for a caller that is an RCU reader already. Returns internal
 * entries (reserved entries, and retries while the tree changes) instead of handling them.
 */
__rrxe_helper void *rrxe_helper_xa_load_locked(struct xarray *xa, unsigned long index)
{
	return xas_load(&(struct xa_state)__XA_STATE(xa, index, 0, 0));
}

/* Like the helper in the kernel's rust/helpers, but with a lock class of this module. */
__rrxe_helper void rrxe_helper_xa_init_flags(struct xarray *xa, gfp_t flags)
{
	xa_init_flags(xa, flags);
}

__rrxe_helper void rrxe_helper_xa_lock_bh(struct xarray *xa)
{
	xa_lock_bh(xa);
}

__rrxe_helper void rrxe_helper_xa_unlock_bh(struct xarray *xa)
{
	xa_unlock_bh(xa);
}
