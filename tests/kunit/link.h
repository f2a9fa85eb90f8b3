/* SPDX-License-Identifier: GPL-2.0 */
/* Makes and unmakes the rrxe device of the KUnit suites, on a dummy network device. */
#ifndef RRXE_KUNIT_LINK_H
#define RRXE_KUNIT_LINK_H

struct ib_device;
struct ib_gid_attr;
struct kunit;

/*
 * Gives the dummy network device an address, adds an rrxe device on it, and takes a reference on
 * the rrxe device, which keeps it registered.
 */
struct ib_device *rrxe_link_up(struct kunit *test);

/* Drops the reference and unregisters the device. No object of the device may exist. */
void rrxe_link_down(struct kunit *test, struct ib_device *device);

/*
 * Calls the netdev notifiers as if the network device left its network namespace while ib_core
 * moves the rrxe device to another one. Then enables the rrxe device, as ib_core does at the end of
 * its move, drops the reference, and checks that the rrxe device is unregistered.
 */
void rrxe_link_lose_netdev(struct kunit *test, struct ib_device *device);

/* Returns the GID of the address. The caller drops it by rdma_put_gid_attr(). */
const struct ib_gid_attr *rrxe_link_gid(struct kunit *test, struct ib_device *device);

#endif
