/* SPDX-License-Identifier: GPL-2.0 */
#ifndef RRXE_KUNIT_LINK_H
#define RRXE_KUNIT_LINK_H

struct ib_device;
struct ib_gid_attr;
struct kunit;

/* Adds a link of type rrxe on a dummy network device. Returns its device, registered. */
struct ib_device *rrxe_link_up(struct kunit *test);

/* Removes the device, which has no object any more. */
void rrxe_link_down(struct kunit *test, struct ib_device *device);

/*
 * Unregisters the network device, as if it moved to another namespace while ib_core moves the
 * device, and enables the device.
 */
void rrxe_link_lose_netdev(struct kunit *test, struct ib_device *device);

/* Returns the GID of the address. The caller puts it. */
const struct ib_gid_attr *rrxe_link_gid(struct kunit *test, struct ib_device *device);

#endif
