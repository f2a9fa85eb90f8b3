/* SPDX-License-Identifier: GPL-2.0 */
#ifndef RRXE_KUNIT_LINK_H
#define RRXE_KUNIT_LINK_H

struct ib_device;
struct ib_gid_attr;
struct kunit;

/* Adds a link of type rrxe on a dummy network device with an address; its device is kept registered. */
struct ib_device *rrxe_link_up(struct kunit *test);

/* Takes the device away, of which nothing is in use any more. */
void rrxe_link_down(struct kunit *test, struct ib_device *device);

/* Takes the network device away as if it went to another namespace while ib_core moves the device, and enables the device. */
void rrxe_link_lose_netdev(struct kunit *test, struct ib_device *device);

/* The GID of the address. To be put. */
const struct ib_gid_attr *rrxe_link_gid(struct kunit *test, struct ib_device *device);

#endif
