/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../base/config.h"
#include "../packet/parse.h"
#include "podns_device.h"

/*
 * Which pod has sent a packet that is at the parent device of macvlan, ipvlan and vlan devices.
 */

/*
 * The sender by the network namespace of its socket, which a pod cannot forge. MAC or address only tell
 * devices of one pod apart.
 */
static __always_inline struct sl_parent_pod *parent_pod_by_netns(struct __sk_buff *skb, const struct sl_pkt *p,
								 struct sl_parent_key *key)
{
	struct sl_parent_pod *pod, *exact;

	key->kind = SL_PARENT_ANY;
	key->netns = bpf_get_netns_cookie(skb);
	pod = bpf_map_lookup_elem(&sl_parent_pods, key);
	if (!pod && key->vlan) {
		key->vlan = 0; /* a tag of the pod's own does not hide it */
		pod = bpf_map_lookup_elem(&sl_parent_pods, key);
	}
	if (!pod || !pod->flags)
		return pod;
	if (pod->flags & SL_PARENT_BY_MAC) {
		key->kind = SL_PARENT_MAC;
		__builtin_memcpy(key->id, p->src_mac, ETH_ALEN);
	} else {
		key->kind = SL_PARENT_ADDR;
		addr_copy(key->id, p->tuple.local);
	}
	exact = bpf_map_lookup_elem(&sl_parent_pods, key);
	return exact ? exact : pod;
}

/* The pod that has sent a packet with a socket; NULL: none with rules or a limit. p: the parsed packet. */
static __always_inline struct sl_parent_pod *parent_pod(struct __sk_buff *skb, const struct sl_pkt *p, __u32 vlan)
{
	struct sl_parent_key key = {.ifindex = skb->ifindex, .vlan = (__u16)vlan};
	struct sl_parent_pod *pod;

	if (cfg_sk_netns)
		return parent_pod_by_netns(skb, p, &key);
	/* Before 6.15 the packet alone says whose it is. */
	if (vlan) {
		key.kind = SL_PARENT_ANY;
		return bpf_map_lookup_elem(&sl_parent_pods, &key);
	}
	key.kind = SL_PARENT_MAC;
	__builtin_memcpy(key.id, p->src_mac, ETH_ALEN);
	pod = bpf_map_lookup_elem(&sl_parent_pods, &key);
	if (pod || !p->family)
		return pod;
	key.kind = SL_PARENT_ADDR;
	addr_copy(key.id, p->tuple.local);
	return bpf_map_lookup_elem(&sl_parent_pods, &key);
}
