// SPDX-License-Identifier: GPL-2.0
/* Helpers for Rust (see helpers.c): pages, scatterlists and user memory. */
#include <linux/memremap.h>
#include <linux/mm.h>
#include <linux/scatterlist.h>
#include <linux/sched.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include <rdma/ib_umem.h>

/* A kernel without huge pages uses PAGE_SIZE for IB_ACCESS_HUGETLB, as ib_umem_odp_get() does. */
#ifdef CONFIG_HUGETLB_PAGE
#define RRXE_HPAGE_SIZE HPAGE_SIZE
#else
#define RRXE_HPAGE_SIZE PAGE_SIZE
#endif

__rrxe_helper unsigned long rrxe_helper_HPAGE_SIZE(void)
{
	return RRXE_HPAGE_SIZE;
}

/* The call is opaque to the Rust compiler, so no code reads the source instead of the copy. */
__rrxe_helper void rrxe_helper_memcpy(void *dst, const void *src, size_t len)
{
	memcpy(dst, src, len);
}

__rrxe_helper void rrxe_helper_memmove(void *dst, const void *src, size_t len)
{
	memmove(dst, src, len);
}

__rrxe_helper bool rrxe_helper_virt_addr_valid(const void *addr)
{
	return virt_addr_valid(addr);
}

__rrxe_helper struct page *rrxe_helper_virt_to_page(const void *addr)
{
	return virt_to_page(addr);
}

__rrxe_helper void *rrxe_helper_page_address(struct page *page)
{
	return page_address(page);
}

__rrxe_helper unsigned long rrxe_helper_page_to_pfn(const struct page *page)
{
	return page_to_pfn(page);
}

__rrxe_helper bool rrxe_helper_pfn_valid(unsigned long pfn)
{
	return pfn_valid(pfn);
}

__rrxe_helper bool rrxe_helper_is_pci_p2pdma_page(const struct page *page)
{
	return is_pci_p2pdma_page(page);
}

__rrxe_helper bool rrxe_helper_is_device_private_page(const struct page *page)
{
	return is_device_private_page(page);
}

__rrxe_helper struct page *rrxe_helper_sg_page(struct scatterlist *sg)
{
	return sg_page(sg);
}

__rrxe_helper struct ib_umem *rrxe_helper_ib_umem_get_va(struct ib_device *device,
							 unsigned long addr,
							 size_t size, int access)
{
	return ib_umem_get_va(device, addr, size, access);
}

/* Returns an address of the calling process without its tag. */
__rrxe_helper unsigned long rrxe_helper_untagged_addr(unsigned long addr)
{
	return untagged_addr(addr);
}

/* Returns the size of the machine's memory in bytes. */
__rrxe_helper size_t rrxe_helper_total_memory(void)
{
	return totalram_pages() << PAGE_SHIFT;
}
