// SPDX-License-Identifier: GPL-2.0
/* Helpers for Rust (see helpers.c): network devices, namespaces, sockets and routes. */
#include <linux/if_vlan.h>
#include <linux/inetdevice.h>
#include <linux/ipv6.h>
#include <linux/netdevice.h>
#include <linux/udp.h>
#include <net/addrconf.h>
#include <net/dst.h>
#include <net/ip6_fib.h>
#include <net/ip6_route.h>
#include <net/l3mdev.h>
#include <net/net_namespace.h>
#include <net/route.h>
#include <net/sch_generic.h>
#include <net/sock.h>
#include <net/xfrm.h>
#include <rdma/ib_verbs.h>

__rrxe_helper void rrxe_helper_dev_hold(struct net_device *dev)
{
	dev_hold(dev);
}

__rrxe_helper void rrxe_helper_dev_put(struct net_device *dev)
{
	dev_put(dev);
}

__rrxe_helper struct net *rrxe_helper_dev_net(const struct net_device *dev)
{
	return dev_net(dev);
}

__rrxe_helper struct net *rrxe_helper_maybe_get_net(struct net *net)
{
	return maybe_get_net(net);
}

__rrxe_helper void rrxe_helper_put_net(struct net *net)
{
	put_net(net);
}

__rrxe_helper bool rrxe_helper_netif_running(const struct net_device *dev)
{
	return netif_running(dev);
}

__rrxe_helper bool rrxe_helper_netif_carrier_ok(const struct net_device *dev)
{
	return netif_carrier_ok(dev);
}

__rrxe_helper bool rrxe_helper_is_vlan_dev(const struct net_device *dev)
{
	return is_vlan_dev(dev);
}

__rrxe_helper u16 rrxe_helper_vlan_dev_vlan_id(const struct net_device *dev)
{
	return vlan_dev_vlan_id(dev);
}

__rrxe_helper struct net_device *
rrxe_helper_netdev_notifier_info_to_dev(const struct netdev_notifier_info *info)
{
	return netdev_notifier_info_to_dev(info);
}

__rrxe_helper void *rrxe_helper_rcu_dereference_sk_user_data(struct sock *sk)
{
	return rcu_dereference_sk_user_data(sk);
}

/* Clears the socket's encap_rcv, so that the UDP layer does not call it for later packets. */
__rrxe_helper void rrxe_helper_udp_clear_encap_rcv(struct sock *sk)
{
	WRITE_ONCE(udp_sk(sk)->encap_rcv, NULL);
}

__rrxe_helper struct in_device *rrxe_helper___in_dev_get_rtnl(const struct net_device *dev)
{
	return __in_dev_get_rtnl(dev);
}

__rrxe_helper void rrxe_helper_dst_hold(struct dst_entry *dst)
{
	dst_hold(dst);
}

__rrxe_helper struct dst_entry *rrxe_helper_dst_check(struct dst_entry *dst, u32 cookie)
{
	return dst_check(dst, cookie);
}

__rrxe_helper u32 rrxe_helper_dst_mtu(const struct dst_entry *dst)
{
	return dst_mtu(dst);
}

__rrxe_helper void rrxe_helper_dst_metric_set(struct dst_entry *dst, int metric, u32 value)
{
	dst_metric_set(dst, metric, value);
}

__rrxe_helper struct inet6_dev *rrxe_helper_in6_dev_get(const struct net_device *dev)
{
	return in6_dev_get(dev);
}

__rrxe_helper struct net_device *rrxe_helper_dst_dev_rcu(const struct dst_entry *dst)
{
	return dst_dev_rcu(dst);
}

/* Returns whether a program looks at the packets of all network devices of a route's namespace. */
__rrxe_helper bool rrxe_helper_dst_namespace_is_sniffed(const struct dst_entry *dst)
{
	return !list_empty(&dst_dev_net_rcu(dst)->ptype_all);
}

__rrxe_helper int rrxe_helper_l3mdev_master_ifindex_rcu(const struct net_device *dev)
{
	return l3mdev_master_ifindex_rcu(dev);
}

/* Disables the loopback of IPv4 multicast packets that the socket sends. */
__rrxe_helper void rrxe_helper_inet_clear_mc_loop(struct sock *sk)
{
	inet_clear_bit(MC_LOOP, sk);
}

/* Disables the loopback of IPv6 multicast packets that the socket sends. */
__rrxe_helper void rrxe_helper_inet6_clear_mc6_loop(struct sock *sk)
{
	inet6_clear_bit(MC6_LOOP, sk);
}

__rrxe_helper bool rrxe_helper_ipv6_mod_enabled(void)
{
	return ipv6_mod_enabled();
}

__rrxe_helper struct dst_entry *
rrxe_helper_xfrm_lookup(struct net *net, struct dst_entry *dst, const struct flowi *key,
			const struct sock *sk, int flags)
{
	return xfrm_lookup(net, dst, key, sk, flags);
}

__rrxe_helper u32 rrxe_helper_rt6_get_cookie(const struct rt6_info *rt)
{
	return rt6_get_cookie(rt);
}

__rrxe_helper unsigned int rrxe_helper_LL_RESERVED_SPACE(const struct net_device *dev)
{
	return LL_RESERVED_SPACE(dev);
}

__rrxe_helper u16 rrxe_helper_rdma_get_udp_sport(u32 flow_label, u32 local_qpn, u32 remote_qpn)
{
	return rdma_get_udp_sport(flow_label, local_qpn, remote_qpn);
}

__rrxe_helper bool rrxe_helper_netdev_has_queue(const struct net_device *dev)
{
	return rcu_dereference(dev->qdisc)->enqueue;
}

__rrxe_helper void rrxe_helper_udp_allow_gso(struct sock *sk)
{
	udp_allow_gso(sk);
}
