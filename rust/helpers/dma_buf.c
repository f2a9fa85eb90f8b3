// SPDX-License-Identifier: GPL-2.0
/* Helpers for Rust (see helpers.c): fields and the lock of an exported DMA buffer. */
#include <linux/dma-buf.h>
#include <linux/dma-resv.h>
#include <linux/fs.h>
#include <linux/module.h>

/* Returns whether the file of the buffer is open for writing. */
__rrxe_helper bool rrxe_helper_dma_buf_is_writable(const struct dma_buf *buffer)
{
	return buffer->file->f_mode & FMODE_WRITE;
}

__rrxe_helper size_t rrxe_helper_dma_buf_size(const struct dma_buf *buffer)
{
	return buffer->size;
}

/* Returns the name of the module that exports the buffer. */
__rrxe_helper const char *rrxe_helper_dma_buf_owner_name(const struct dma_buf *buffer)
{
	return module_name(buffer->owner);
}

__rrxe_helper void rrxe_helper_dma_buf_lock(struct dma_buf *buffer)
{
	dma_resv_lock(buffer->resv, NULL);
}

__rrxe_helper void rrxe_helper_dma_buf_unlock(struct dma_buf *buffer)
{
	dma_resv_unlock(buffer->resv);
}
