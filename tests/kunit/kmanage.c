// SPDX-License-Identifier: GPL-2.0
/*
 * Operations on devices and ports that ib_core and kernel consumers such as ib_cm call:
 * ib_modify_device(), ib_modify_port(), and the end of a device whose network device is gone. Of
 * the two functions, user space reaches only ib_modify_device(), to change the node's description.
 * The device is on a dummy network device (link.h).
 */
#include <linux/delay.h>
#include <rdma/ib_mad.h>

#include "stage.h"

#define GUID 0x0123456789abcdefULL

static u64 image_guid(struct kunit *test, struct ib_device *device)
{
	struct ib_device_attr attr = {};

	KUNIT_ASSERT_EQ(test, device->ops.query_device(device, &attr, NULL), 0);
	return be64_to_cpu(attr.sys_image_guid);
}

static struct ib_port_attr port_of(struct kunit *test, struct ib_device *device)
{
	struct ib_port_attr attr;

	KUNIT_ASSERT_EQ(test, ib_query_port(device, 1, &attr), 0);
	return attr;
}

/*
 * The driver's device is unregistered when its network device leaves the network namespace, even
 * if ib_device_try_get() failed at that time because ib_core was moving the device.
 */
static void goes_with_its_network_device(struct kunit *test)
{
	rrxe_link_lose_netdev(test, rrxe_link_up(test));
}

/*
 * ib_modify_device() changes the GUID of the system image and the description of the node. With an
 * unknown bit (1 << 2) in the mask it changes neither of them.
 */
static void changes_the_system_image_guid(struct kunit *test)
{
	struct ib_device_modify change = { .sys_image_guid = GUID, .node_desc = "of a manager" };
	struct ib_device *device = rrxe_link_up(test);
	u64 first = image_guid(test, device);

	KUNIT_EXPECT_EQ(test, first, be64_to_cpu(device->node_guid));
	KUNIT_EXPECT_EQ(test,
			ib_modify_device(device, IB_DEVICE_MODIFY_SYS_IMAGE_GUID | 1 << 2, &change),
			-EOPNOTSUPP);
	KUNIT_EXPECT_EQ(test, image_guid(test, device), first);
	KUNIT_EXPECT_EQ(test, ib_modify_device(device, IB_DEVICE_MODIFY_NODE_DESC, &change), 0);
	KUNIT_EXPECT_STREQ(test, device->node_desc, "of a manager");
	KUNIT_EXPECT_EQ(test, image_guid(test, device), first);
	change.node_desc[0] = 'O';
	KUNIT_EXPECT_EQ(test, ib_modify_device(device, IB_DEVICE_MODIFY_SYS_IMAGE_GUID, &change),
			0);
	KUNIT_EXPECT_EQ(test, image_guid(test, device), GUID);
	KUNIT_EXPECT_STREQ(test, device->node_desc, "of a manager");
	rrxe_link_down(test, device);
}

/* A port has the capabilities that kernel consumers set by ib_modify_port(), as ib_cm does. */
static void declares_capabilities(struct kunit *test)
{
	struct ib_port_modify both = { .set_port_cap_mask = IB_PORT_SNMP_TUNNEL_SUP |
							    IB_PORT_VENDOR_CLASS_SUP };
	struct ib_port_modify one = { .clr_port_cap_mask = IB_PORT_SNMP_TUNNEL_SUP };
	struct ib_device *device = rrxe_link_up(test);

	KUNIT_EXPECT_EQ(test, port_of(test, device).port_cap_flags, IB_PORT_CM_SUP);
	KUNIT_EXPECT_EQ(test, ib_modify_port(device, 1, 0, &both), 0);
	KUNIT_EXPECT_EQ(test, port_of(test, device).port_cap_flags,
			IB_PORT_CM_SUP | both.set_port_cap_mask);
	KUNIT_EXPECT_EQ(test, ib_modify_port(device, 1, 0, &one), 0);
	KUNIT_EXPECT_EQ(test, port_of(test, device).port_cap_flags,
			IB_PORT_CM_SUP | IB_PORT_VENDOR_CLASS_SUP);
	/* The driver refuses changes that it does not support. ib_core refuses an unknown port. */
	KUNIT_EXPECT_EQ(test, ib_modify_port(device, 1, IB_PORT_SHUTDOWN, &both), -EOPNOTSUPP);
	KUNIT_EXPECT_EQ(test, ib_modify_port(device, 1, IB_PORT_INIT_TYPE, &both), -EOPNOTSUPP);
	KUNIT_EXPECT_EQ(test, ib_modify_port(device, 2, 0, &both), -EINVAL);
	KUNIT_EXPECT_EQ(test, port_of(test, device).port_cap_flags,
			IB_PORT_CM_SUP | IB_PORT_VENDOR_CLASS_SUP);
	rrxe_link_down(test, device);
}

/*
 * Sends `times` datagrams with a Q_Key that is not the receiver's, and waits until the port's
 * counter of Q_Key violations is `counted`.
 */
static void violate(struct kunit *test, struct stage *stage, struct ib_qp *const qp[2],
		    struct ib_ah *ah, u32 times, u32 counted)
{
	struct ib_sge sge = piece(stage, stage->source, 100);
	struct request sent;
	struct ib_ud_wr send = {
		.wr = { .wr_cqe = &sent.cqe,
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = IB_WR_SEND,
			.send_flags = IB_SEND_SIGNALED },
		.ah = ah,
		.remote_qpn = qp[1]->qp_num,
		.remote_qkey = QKEY + 1,
	};
	unsigned long deadline = jiffies + WAIT_TIMEOUT;

	while (times--) {
		begin(&sent);
		KUNIT_ASSERT_EQ(test, ib_post_send(qp[0], &send.wr, NULL), 0);
		expect(test, &sent, qp[0], IB_WC_SUCCESS);
	}
	while (port_of(test, stage->device).qkey_viol_cntr < counted &&
	       time_before(jiffies, deadline))
		msleep(20);
	KUNIT_EXPECT_EQ(test, port_of(test, stage->device).qkey_viol_cntr, counted);
}

/* A port counts Q_Key violations until ib_modify_port() resets the counter. */
static void counts_violations(struct kunit *test)
{
	struct ib_port_modify nothing = {};
	struct request received;
	struct stage stage;
	struct ib_qp *qp[2];
	struct ib_ah *ah;
	int i;

	set_up(test, &stage);
	ah = make_ah(test, &stage, NULL);
	for (i = 0; i < 2; i++)
		qp[i] = make_datagram_qp(test, &stage, 0);
	{
		struct ib_sge room = piece(&stage, stage.target, PAGE_SIZE);
		struct ib_recv_wr wr = { .wr_cqe = begin(&received),
					 .sg_list = &room,
					 .num_sge = 1 };

		KUNIT_ASSERT_EQ(test, ib_post_recv(qp[1], &wr, NULL), 0);
	}
	violate(test, &stage, qp, ah, 2, 2);
	KUNIT_EXPECT_EQ(test, ib_modify_port(stage.device, 1, 0, &nothing), 0);
	KUNIT_EXPECT_EQ(test,
			ib_modify_port(stage.device, 1, IB_PORT_RESET_QKEY_CNTR | IB_PORT_SHUTDOWN,
				       &nothing),
			-EOPNOTSUPP);
	violate(test, &stage, qp, ah, 1, 3);
	KUNIT_EXPECT_EQ(test, ib_modify_port(stage.device, 1, IB_PORT_RESET_QKEY_CNTR, &nothing),
			0);
	KUNIT_EXPECT_EQ(test, port_of(test, stage.device).qkey_viol_cntr, 0);
	violate(test, &stage, qp, ah, 1, 1);
	KUNIT_EXPECT_FALSE(test, completion_done(&received.done));
	for (i = 0; i < 2; i++) {
		ib_drain_qp(qp[i]);
		KUNIT_EXPECT_EQ(test, ib_destroy_qp(qp[i]), 0);
	}
	rdma_destroy_ah(ah, RDMA_DESTROY_AH_SLEEPABLE);
	take_down(test, &stage);
}

static struct kunit_case cases[] = { KUNIT_CASE(goes_with_its_network_device),
				     KUNIT_CASE(changes_the_system_image_guid),
				     KUNIT_CASE(declares_capabilities),
				     KUNIT_CASE(counts_violations),
				     {} };

static struct kunit_suite suite = {
	.name = "rrxe_kmanage",
	.test_cases = cases,
};

kunit_test_suite(suite);
