// SPDX-License-Identifier: GPL-2.0
/*
 * An rrxe device on the dummy network device for the KUnit suites of this directory. It is made as
 * `rdma link add` does, by a netlink message to ib_core. An ib_client tells when it is registered
 * and unregistered.
 */
#include <kunit/test.h>
#include <linux/delay.h>
#include <linux/file.h>
#include <linux/inetdevice.h>
#include <linux/netdevice.h>
#include <net/net_namespace.h>
#include <net/netdev_lock.h>
#include <net/netlink.h>
#include <net/sock.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_netlink.h>

#include "link.h"

#define NETDEV "dummy0"
#define DEVICE "rrxe_kunit"
#define ADDRESS 0x0a4d0001 /* 10.77.0.1 */
#define WAIT_TIMEOUT_MS 5000

/* The rrxe device while it is registered, else NULL. */
static struct ib_device *registered;

static int device_added(struct ib_device *device)
{
	if (!strcmp(dev_name(&device->dev), DEVICE))
		registered = device;
	return 0;
}

static void device_removed(struct ib_device *device, void *unused)
{
	if (device == registered)
		registered = NULL;
}

static struct ib_client observer = {
	.name = DEVICE,
	.add = device_added,
	.remove = device_removed,
	.no_kverbs_req = true,
};

static void bring_up(struct kunit *test)
{
	struct ifreq request = {};
	struct sockaddr_in *address = (struct sockaddr_in *)&request.ifr_addr;

	strscpy(request.ifr_name, NETDEV, sizeof(request.ifr_name));
	address->sin_family = AF_INET;
	address->sin_addr.s_addr = htonl(ADDRESS);
	KUNIT_ASSERT_EQ(test, devinet_ioctl(&init_net, SIOCSIFADDR, &request), 0);
	request.ifr_flags = IFF_UP;
	KUNIT_ASSERT_EQ(test, devinet_ioctl(&init_net, SIOCSIFFLAGS, &request), 0);
}

/* rdma link add DEVICE type rrxe netdev NETDEV */
static void add_link(struct kunit *test)
{
	struct sockaddr_nl kernel = { .nl_family = AF_NETLINK };
	struct msghdr to = { .msg_name = &kernel, .msg_namelen = sizeof(kernel) };
	struct socket *socket;
	struct nlmsghdr *header;
	struct sk_buff *message;
	struct file *file;
	struct kvec bytes;
	int err;

	err = sock_create_kern(&init_net, AF_NETLINK, SOCK_RAW, NETLINK_RDMA, &socket);
	KUNIT_ASSERT_EQ(test, err, 0);
	/* netlink_capable() checks the credentials of the socket's file. */
	file = sock_alloc_file(socket, 0, NULL);
	KUNIT_ASSERT_FALSE(test, IS_ERR(file));
	message = nlmsg_new(NLMSG_DEFAULT_SIZE, GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, message);
	header = nlmsg_put(message, 0, 0, RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_NEWLINK),
			   0, NLM_F_REQUEST);
	nla_put_string(message, RDMA_NLDEV_ATTR_DEV_NAME, DEVICE);
	nla_put_string(message, RDMA_NLDEV_ATTR_LINK_TYPE, "rrxe");
	nla_put_string(message, RDMA_NLDEV_ATTR_NDEV_NAME, NETDEV);
	nlmsg_end(message, header);
	bytes = (struct kvec){ .iov_base = message->data, .iov_len = message->len };
	KUNIT_EXPECT_EQ(test, kernel_sendmsg(socket, &to, &bytes, 1, bytes.iov_len), bytes.iov_len);
	kfree_skb(message);
	fput(file);
}

struct ib_device *rrxe_link_up(struct kunit *test)
{
	KUNIT_ASSERT_EQ(test, ib_register_client(&observer), 0);
	bring_up(test);
	add_link(test);
	KUNIT_ASSERT_NOT_NULL(test, registered);
	KUNIT_ASSERT_TRUE(test, ib_device_try_get(registered));
	return registered;
}

void rrxe_link_down(struct kunit *test, struct ib_device *device)
{
	ib_unregister_device_and_put(device);
	KUNIT_EXPECT_NULL(test, registered);
	ib_unregister_client(&observer);
}

void rrxe_link_lose_netdev(struct kunit *test, struct ib_device *device)
{
	unsigned int count = refcount_read(&device->refcount);
	struct net_device *netdev;
	int waited;

	/*
	 * As if rdma_dev_change_netns() were between disable_device() and enable_device_and_get():
	 * the reference count is zero, and ib_device_try_get() fails.
	 */
	refcount_set(&device->refcount, 0);
	rtnl_lock();
	netdev = __dev_get_by_name(&init_net, NETDEV);
	KUNIT_EXPECT_NOT_NULL(test, netdev);
	/* __dev_change_net_namespace() makes these calls, too. */
	netdev_lock(netdev);
	netif_close(netdev);
	netdev_unlock(netdev);
	call_netdevice_notifiers(NETDEV_UNREGISTER, netdev);
	netdev_lock(netdev);
	call_netdevice_notifiers(NETDEV_REGISTER, netdev);
	netdev_unlock(netdev);
	rtnl_unlock();
	KUNIT_EXPECT_PTR_EQ(test, registered, device);
	refcount_set(&device->refcount, count);
	KUNIT_EXPECT_EQ(test, device->ops.enable_driver(device), 0);

	get_device(&device->dev);
	ib_device_put(device);
	/* ib_core unregisters the device from a work queue (ib_unregister_device_queued()). */
	for (waited = 0; READ_ONCE(registered) && waited < WAIT_TIMEOUT_MS; waited += 20)
		msleep(20);
	KUNIT_EXPECT_NULL(test, registered);
	ib_unregister_device(device);
	put_device(&device->dev);
	ib_unregister_client(&observer);
}

const struct ib_gid_attr *rrxe_link_gid(struct kunit *test, struct ib_device *device)
{
	union ib_gid gid;
	const struct ib_gid_attr *found;
	int waited;

	ipv6_addr_set_v4mapped(htonl(ADDRESS), (struct in6_addr *)gid.raw);
	/* ib_core fills the GID table from a work queue. */
	for (waited = 0; waited < WAIT_TIMEOUT_MS; waited += 20) {
		found = rdma_find_gid(device, &gid, IB_GID_TYPE_ROCE_UDP_ENCAP, NULL);
		if (!IS_ERR(found))
			return found;
		msleep(20);
	}
	KUNIT_FAIL_AND_ABORT(test, "no GID for the address");
	return NULL;
}
