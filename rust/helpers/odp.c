// SPDX-License-Identifier: GPL-2.0
/* Helpers for Rust (see helpers.c): on-demand paging, MMU notifiers and locks of an mm_struct. */
#include <linux/hmm.h>
#include <linux/mmap_lock.h>
#include <linux/mmu_notifier.h>
#include <rdma/ib_umem_odp.h>

__rrxe_helper bool rrxe_helper_odp_trylock(struct ib_umem_odp *umem)
{
	return mutex_trylock(&umem->umem_mutex);
}

__rrxe_helper void rrxe_helper_odp_unlock(struct ib_umem_odp *umem)
{
	mutex_unlock(&umem->umem_mutex);
}

__rrxe_helper bool
rrxe_helper_mmu_notifier_range_blockable(const struct mmu_notifier_range *range)
{
	return mmu_notifier_range_blockable(range);
}

__rrxe_helper void
rrxe_helper_mmu_interval_set_seq(struct mmu_interval_notifier *notifier,
				 unsigned long seq)
{
	mmu_interval_set_seq(notifier, seq);
}

__rrxe_helper bool
rrxe_helper_mmu_interval_read_retry(struct mmu_interval_notifier *notifier,
				    unsigned long seq)
{
	return mmu_interval_read_retry(notifier, seq);
}

__rrxe_helper struct page *rrxe_helper_hmm_pfn_to_page(unsigned long pfn)
{
	return hmm_pfn_to_page(pfn);
}

__rrxe_helper bool rrxe_helper_mm_has_notifiers(struct mm_struct *mm)
{
	return mm_has_notifiers(mm);
}

__rrxe_helper int rrxe_helper_mmap_read_lock_killable(struct mm_struct *mm)
{
	return mmap_read_lock_killable(mm);
}

__rrxe_helper void rrxe_helper_mmap_read_unlock(struct mm_struct *mm)
{
	mmap_read_unlock(mm);
}

__rrxe_helper int rrxe_helper_mmap_write_lock_killable(struct mm_struct *mm)
{
	return mmap_write_lock_killable(mm);
}

__rrxe_helper void rrxe_helper_mmap_write_unlock(struct mm_struct *mm)
{
	mmap_write_unlock(mm);
}

__rrxe_helper int rrxe_helper_vma_start_write_killable(struct vm_area_struct *vma)
{
	return vma_start_write_killable(vma);
}
