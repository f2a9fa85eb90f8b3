// SPDX-License-Identifier: GPL-2.0
#include <linux/dma-buf.h>
#include <linux/fs.h>

__rrxe_helper bool rrxe_helper_dma_buf_is_writable(const struct dma_buf *buffer)
{
	return buffer->file->f_mode & FMODE_WRITE;
}

__rrxe_helper size_t rrxe_helper_dma_buf_size(const struct dma_buf *buffer)
{
	return buffer->size;
}
