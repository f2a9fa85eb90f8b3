// SPDX-License-Identifier: GPL-2.0
/* Helpers for Rust (see helpers.c): nested netlink attributes. */
#include <net/netlink.h>

__rrxe_helper struct nlattr *rrxe_helper_nla_nest_start(struct sk_buff *skb, int attrtype)
{
	return nla_nest_start(skb, attrtype);
}

__rrxe_helper int rrxe_helper_nla_nest_end(struct sk_buff *skb, struct nlattr *start)
{
	return nla_nest_end(skb, start);
}

__rrxe_helper void rrxe_helper_nla_nest_cancel(struct sk_buff *skb, struct nlattr *start)
{
	nla_nest_cancel(skb, start);
}
