// SPDX-License-Identifier: GPL-2.0
/* Helpers for Rust (see helpers.c): spinlocks. */
#include <linux/spinlock.h>

__rrxe_helper void rrxe_helper_spin_lock_bh(spinlock_t *lock)
{
	spin_lock_bh(lock);
}

__rrxe_helper int rrxe_helper_spin_trylock_bh(spinlock_t *lock)
{
	return spin_trylock_bh(lock);
}

__rrxe_helper void rrxe_helper_spin_unlock_bh(spinlock_t *lock)
{
	spin_unlock_bh(lock);
}

/* The macro assigns the flags to its argument; this function returns them. */
__rrxe_helper unsigned long rrxe_helper_spin_lock_irqsave(spinlock_t *lock)
{
	unsigned long flags;

	spin_lock_irqsave(lock, flags);
	return flags;
}

__rrxe_helper int rrxe_helper_spin_trylock_irqsave(spinlock_t *lock, unsigned long *flags)
{
	return spin_trylock_irqsave(lock, *flags);
}

__rrxe_helper void rrxe_helper_spin_unlock_irqrestore(spinlock_t *lock, unsigned long flags)
{
	spin_unlock_irqrestore(lock, flags);
}
