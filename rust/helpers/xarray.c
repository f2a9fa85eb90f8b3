// SPDX-License-Identifier: GPL-2.0
#include <linux/xarray.h>

/* xa_load() for readers that have said so: internal entries are returned as they are. */
__rrxe_helper void *rrxe_helper_xa_load_locked(struct xarray *xa, unsigned long index)
{
	return xas_load(&(struct xa_state)__XA_STATE(xa, index, 0, 0));
}

/* As the kernel's own helper; a lock class of our own. */
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
