/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The kernel headers for which bindgen generates the Rust declarations that rust/rdma uses. bindgen
 * can't evaluate some macros. Such a constant x is defined here as a variable RRXE_CONST_x, and is
 * called x in Rust.
 */
#include <linux/crc32.h>
#include <linux/dma-buf.h>
#include <linux/dma-direction.h>
#include <linux/etherdevice.h>
#include <linux/ethtool.h>
#include <linux/gfp.h>
#include <linux/if_arp.h>
#include <linux/if_packet.h>
#include <linux/igmp.h>
#include <linux/inetdevice.h>
#include <linux/hmm.h>
#include <linux/iosys-map.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/netdevice.h>
#include <linux/random.h>
#include <linux/rcupdate.h>
#include <linux/rtnetlink.h>
#include <linux/sched/vhost_task.h>
#include <linux/scatterlist.h>
#include <linux/skbuff.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/uaccess.h>
#include <linux/user_namespace.h>
#include <linux/vmalloc.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>
#include <net/addrconf.h>
#include <net/arp.h>
#include <net/gso.h>
#include <net/ip.h>
#include <net/ip6_route.h>
#include <net/ipv6.h>
#include <net/ndisc.h>
#include <net/net_namespace.h>
#include <net/netns/generic.h>
#include <net/page_pool/types.h>
#include <net/route.h>
#include <net/udp.h>
#include <net/udp_tunnel.h>
#include <rdma/ib_addr.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_mad.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_umem_odp.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_counter.h>
#include <rdma/rdma_netlink.h>
#include <rdma/restrack.h>
#include <rdma/uverbs_ioctl.h>
#include <uapi/rdma/rdma_user_rxe.h>

#include "../../include/uapi/rdma/rrxe-abi.h"

const gfp_t RRXE_CONST_GFP_KERNEL = GFP_KERNEL;
const gfp_t RRXE_CONST_GFP_KERNEL_ACCOUNT = GFP_KERNEL_ACCOUNT;
const gfp_t RRXE_CONST_GFP_ATOMIC = GFP_ATOMIC;
const gfp_t RRXE_CONST___GFP_ZERO = __GFP_ZERO;
const gfp_t RRXE_CONST___GFP_NOWARN = __GFP_NOWARN;
const gfp_t RRXE_CONST_XA_FLAGS_ACCOUNT = XA_FLAGS_ACCOUNT;
const gfp_t RRXE_CONST_XA_FLAGS_LOCK_BH = XA_FLAGS_LOCK_BH;
const unsigned int RRXE_CONST_TASK_IDLE = TASK_IDLE;
const unsigned int RRXE_CONST_MAX_SKB_FRAGS = MAX_SKB_FRAGS;
const unsigned int RRXE_CONST_SKB_GSO_TCP_ACCECN = SKB_GSO_TCP_ACCECN;
const unsigned int RRXE_CONST_SKB_GSO_UDP_TUNNEL = SKB_GSO_UDP_TUNNEL;
const netdev_features_t RRXE_CONST_NETIF_F_SG = NETIF_F_SG;
const netdev_features_t RRXE_CONST_NETIF_F_GSO = NETIF_F_GSO;
const netdev_features_t RRXE_CONST_NETIF_F_GSO_ACCECN = NETIF_F_GSO_ACCECN;
const netdev_features_t RRXE_CONST_NETIF_F_GSO_UDP_TUNNEL = NETIF_F_GSO_UDP_TUNNEL;
