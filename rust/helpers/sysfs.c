// SPDX-License-Identifier: GPL-2.0
/* Helpers for Rust (see helpers.c): the sysfs attribute /sys/class/infiniband/<device>/parent. */
#include <linux/device.h>
#include <linux/sysfs.h>
#include <rdma/ib_verbs.h>

/* Defined in rust/rdma/device/sysfs.rs. */
ssize_t rdma_parent_show(struct device *dev, struct device_attribute *attr, char *buf);

/* The layout of these structures differs between kernels, so they are defined in C. */
static ssize_t parent_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return rdma_parent_show(dev, attr, buf);
}
static DEVICE_ATTR_RO(parent);

static struct attribute *rrxe_device_attrs[] = { &dev_attr_parent.attr, NULL };
static const struct attribute_group rrxe_device_group = { .attrs = rrxe_device_attrs };

__rrxe_helper const struct attribute_group *rrxe_helper_device_group(void)
{
	return &rrxe_device_group;
}

__rrxe_helper struct ib_device *rrxe_helper_rdma_device_to_ibdev(struct device *device)
{
	return rdma_device_to_ibdev(device);
}
