// SPDX-License-Identifier: GPL-2.0
/* Helpers for Rust (see helpers.c): socket buffers. */
#include <linux/if_vlan.h>
#include <linux/ipv6.h>
#include <linux/mm.h>
#include <linux/net.h>
#include <linux/netdevice.h>
#include <linux/skbuff.h>
#include <net/ip.h>
#include <net/page_pool/helpers.h>

__rrxe_helper void rrxe_helper_skb_reserve(struct sk_buff *skb, int len)
{
	skb_reserve(skb, len);
}

__rrxe_helper unsigned char *rrxe_helper_skb_network_header(const struct sk_buff *skb)
{
	return skb_network_header(skb);
}

__rrxe_helper void rrxe_helper_skb_reset_network_header(struct sk_buff *skb)
{
	skb_reset_network_header(skb);
}

__rrxe_helper void rrxe_helper_skb_reset_transport_header(struct sk_buff *skb)
{
	skb_reset_transport_header(skb);
}

__rrxe_helper struct skb_shared_info *rrxe_helper_skb_shinfo(const struct sk_buff *skb)
{
	return skb_shinfo(skb);
}

__rrxe_helper void *rrxe_helper_skb_frag_address_safe(const skb_frag_t *frag)
{
	return skb_frag_address_safe(frag);
}

__rrxe_helper unsigned int rrxe_helper_skb_frag_size(const skb_frag_t *frag)
{
	return skb_frag_size(frag);
}

__rrxe_helper unsigned int rrxe_helper_skb_headroom(const struct sk_buff *skb)
{
	return skb_headroom(skb);
}

__rrxe_helper int rrxe_helper_skb_linearize(struct sk_buff *skb)
{
	return skb_linearize(skb);
}

__rrxe_helper bool rrxe_helper_pskb_may_pull(struct sk_buff *skb, unsigned int len)
{
	return pskb_may_pull(skb, len);
}

__rrxe_helper void rrxe_helper_skb_dst_drop(struct sk_buff *skb)
{
	skb_dst_drop(skb);
}

__rrxe_helper void rrxe_helper_skb_ext_reset(struct sk_buff *skb)
{
	skb_ext_reset(skb);
}

__rrxe_helper void rrxe_helper_skb_dst_set_noref(struct sk_buff *skb, struct dst_entry *dst)
{
	skb_dst_set_noref(skb, dst);
}

__rrxe_helper void rrxe_helper_skb_dst_set(struct sk_buff *skb, struct dst_entry *dst)
{
	skb_dst_set(skb, dst);
}

__rrxe_helper int rrxe_helper_dev_queue_xmit(struct sk_buff *skb)
{
	return dev_queue_xmit(skb);
}

__rrxe_helper void rrxe_helper_skb_reset_mac_header(struct sk_buff *skb)
{
	skb_reset_mac_header(skb);
}

__rrxe_helper void rrxe_helper_skb_set_network_header(struct sk_buff *skb, int offset)
{
	skb_set_network_header(skb, offset);
}

/* The following fields are in unnamed structures, for which bindgen generates no stable names. */
__rrxe_helper void rrxe_helper_skb_set_dev(struct sk_buff *skb, struct net_device *dev)
{
	skb->dev = dev;
}

__rrxe_helper void rrxe_helper_skb_parse_protocol(struct sk_buff *skb)
{
	skb->protocol = dev_parse_header_protocol(skb);
}

__rrxe_helper void rrxe_helper_skb_set_protocol(struct sk_buff *skb, __be16 protocol)
{
	skb->protocol = protocol;
}

/* Puts a link-layer header in front of the data, from the device to itself. */
__rrxe_helper int rrxe_helper_skb_push_link_header(struct sk_buff *skb, struct net_device *dev)
{
	return dev_hard_header(skb, dev, ntohs(skb->protocol), dev->dev_addr, NULL, skb->len);
}

__rrxe_helper void rrxe_helper_skb_set_priority(struct sk_buff *skb, __u32 priority)
{
	skb->priority = priority;
}

__rrxe_helper struct net_device *rrxe_helper_skb_dev(const struct sk_buff *skb)
{
	return skb->dev;
}

/* Returns the index of the L3 master device's slave on which an IPv4 packet came, or 0. */
__rrxe_helper int rrxe_helper_inet_sdif(const struct sk_buff *skb)
{
	return inet_sdif(skb);
}

__rrxe_helper int rrxe_helper_inet6_sdif(const struct sk_buff *skb)
{
	return inet6_sdif(skb);
}

/* Returns the index of the device that received the packet or of its L3 master device, or 0. */
__rrxe_helper int rrxe_helper_skb_ingress_index(const struct sk_buff *skb)
{
	return skb->skb_iif;
}

__rrxe_helper struct sk_buff *rrxe_helper_alloc_skb(unsigned int size, gfp_t priority)
{
	return alloc_skb(size, priority);
}

__rrxe_helper unsigned int rrxe_helper_skb_end_offset(const struct sk_buff *skb)
{
	return skb_end_offset(skb);
}

__rrxe_helper void rrxe_helper_skb_reset_tail_pointer(struct sk_buff *skb)
{
	skb_reset_tail_pointer(skb);
}

__rrxe_helper struct sk_buff *rrxe_helper_alloc_skb_fclone(unsigned int size, gfp_t priority)
{
	return alloc_skb_fclone(size, priority);
}

__rrxe_helper void rrxe_helper_skb_set_ignore_df(struct sk_buff *skb)
{
	skb->ignore_df = 1;
}

__rrxe_helper int rrxe_helper_secpath_exists(const struct sk_buff *skb)
{
	return secpath_exists(skb);
}

__rrxe_helper int rrxe_helper_skb_cloned(const struct sk_buff *skb)
{
	return skb_cloned(skb);
}

/* Returns whether @skb came from alloc_skb_fclone(), which allocates room for a clone as well. */
__rrxe_helper bool rrxe_helper_skb_has_clone_room(const struct sk_buff *skb)
{
	return skb->fclone == SKB_FCLONE_ORIG;
}

/* Returns whether the clone of @original, which came from alloc_skb_fclone(), is not yet freed. */
__rrxe_helper bool rrxe_helper_skb_fclone_exists(const struct sk_buff *original)
{
	return refcount_read(&container_of(original, struct sk_buff_fclones, skb1)->fclone_ref) > 1;
}

__rrxe_helper void rrxe_helper___skb_header_release(struct sk_buff *skb)
{
	__skb_header_release(skb);
}

__rrxe_helper void rrxe_helper_skb_set_destructor(struct sk_buff *skb,
						  void (*destructor)(struct sk_buff *skb))
{
	WRITE_ONCE(skb->destructor, destructor);
}

__rrxe_helper void (*rrxe_helper_skb_destructor(const struct sk_buff *skb))(struct sk_buff *skb)
{
	return READ_ONCE(skb->destructor);
}

__rrxe_helper struct inet_skb_parm *rrxe_helper_IPCB(struct sk_buff *skb)
{
	return IPCB(skb);
}

__rrxe_helper struct inet6_skb_parm *rrxe_helper_IP6CB(struct sk_buff *skb)
{
	return IP6CB(skb);
}

__rrxe_helper void rrxe_helper_skb_queue_head_init(struct sk_buff_head *list)
{
	skb_queue_head_init(list);
}

__rrxe_helper __u32 rrxe_helper_skb_queue_len_lockless(const struct sk_buff_head *list)
{
	return skb_queue_len_lockless(list);
}

__rrxe_helper void rrxe_helper_skb_queue_purge(struct sk_buff_head *list)
{
	skb_queue_purge(list);
}

__rrxe_helper void rrxe_helper_consume_skb(struct sk_buff *skb)
{
	consume_skb(skb);
}

__rrxe_helper struct sk_buff *rrxe_helper___vlan_hwaccel_push_inside(struct sk_buff *skb)
{
	return __vlan_hwaccel_push_inside(skb);
}

__rrxe_helper bool rrxe_helper_skb_vlan_tag_present(const struct sk_buff *skb)
{
	return skb_vlan_tag_present(skb);
}

__rrxe_helper __u16 rrxe_helper_skb_vlan_tag_get(const struct sk_buff *skb)
{
	return skb_vlan_tag_get(skb);
}

__rrxe_helper bool rrxe_helper_skb_is_gso(const struct sk_buff *skb)
{
	return skb_is_gso(skb);
}

__rrxe_helper bool rrxe_helper_skb_mac_header_was_set(const struct sk_buff *skb)
{
	return skb_mac_header_was_set(skb);
}

__rrxe_helper unsigned char *rrxe_helper_skb_mac_header(const struct sk_buff *skb)
{
	return skb_mac_header(skb);
}

/* The following fields are in unnamed structures and unions, too. */
__rrxe_helper __u8 rrxe_helper_skb_pkt_type(const struct sk_buff *skb)
{
	return skb->pkt_type;
}

__rrxe_helper int rrxe_helper_skb_cow_head(struct sk_buff *skb, unsigned int headroom)
{
	return skb_cow_head(skb, headroom);
}

/* Returns whether the checksum was left to the network device, and is not yet computed. */
__rrxe_helper bool rrxe_helper_skb_lacks_checksum(const struct sk_buff *skb)
{
	return skb->ip_summed == CHECKSUM_PARTIAL;
}

/* Unlinks an skb from the rest of a singly linked list, and returns the rest. */
__rrxe_helper struct sk_buff *rrxe_helper_skb_take_next(struct sk_buff *skb)
{
	struct sk_buff *next = skb->next;

	skb_mark_not_on_list(skb);
	return next;
}

__rrxe_helper void rrxe_helper_skb_set_checksum_unnecessary(struct sk_buff *skb)
{
	skb->ip_summed = CHECKSUM_UNNECESSARY;
}

__rrxe_helper bool rrxe_helper_skb_encapsulation(const struct sk_buff *skb)
{
	return skb->encapsulation;
}

__rrxe_helper void rrxe_helper_skb_mark_for_recycle(struct sk_buff *skb)
{
	skb_mark_for_recycle(skb);
}

__rrxe_helper struct page *rrxe_helper_alloc_compound_page(gfp_t flags, unsigned int order)
{
	return alloc_pages(flags | __GFP_COMP, order);
}

__rrxe_helper void rrxe_helper_skb_add_rx_frag(struct sk_buff *skb, int i, struct page *page,
					       int off, int size, unsigned int truesize)
{
	skb_add_rx_frag(skb, i, page, off, size, truesize);
}
