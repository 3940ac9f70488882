/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../base/addr.h"
#include "../conntrack/conntrack_table.h"
#include "../drop/drop_reasons.h"
#include "network_policy_types.h"
#include "policy_map.h"

/*
 * NetworkPolicy. The agent compiles all of its meaning to bits (docs/dev/design/networkpolicy.md): the
 * address of the peer has a class, a segment of the pod's policy has a point, and the class has a bit
 * for the point.
 */

/* Addresses of pods and nodes. Written by the loader only, as all maps here. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct sl_np_addr);
	__type(value, struct sl_np_peer);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_np_peers SEC(".maps");

/*
 * The class of other addresses, 0 if there is none. The longest prefix has the whole answer. Where it
 * would be another one for IPv4 there is a prefix for that, so families need not be told apart.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 8192);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct sl_np_cidr);
	__type(value, __u32);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_np_cidrs SEC(".maps");

/* Networks whose addresses are those of Services: what a pod sends there may get another destination. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct sl_np_cidr);
	__type(value, __u32);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_np_services SEC(".maps");

/* The verdicts of each class. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct sl_np_chunk);
	__type(value, struct sl_np_bits);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_np_bits SEC(".maps");

/* The NetworkPolicies of devices, by the id of their policies. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 512);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct sl_np_policy);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_np_policies SEC(".maps");

/* The same by their hash, for those who write policies. From here on no program reads the maps. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 512);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct sl_np_set);
	__type(value, struct sl_np_policy);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_np_sets SEC(".maps");

/* The pods of this node, those included that are only scheduled to it, by a hash of their UID. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2048);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct sl_np_pod);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_np_pods SEC(".maps");

/* Namespaces no policy of which can select a pod, by a hash of their names. The value is the generation. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u32);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_np_open_ns SEC(".maps");

/* Devices under NetworkPolicy, with keys as in sl_dev_policy. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2048);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct sl_np_device);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_np_devices SEC(".maps");

static __always_inline struct sl_np_policy *np_policy(__u32 id)
{
	return bpf_map_lookup_elem(&sl_np_policies, &id);
}

/* As rule_matches(). */
static __always_inline bool np_segment_fits(const struct sl_np_segment *seg, const volatile struct sl_policy_query *q)
{
	__u64 port = q->port, below, above, differs;

	below = port - seg->port_min;
	above = seg->port_max - port;
	asm volatile("" : "+r"(below), "+r"(above));
	differs = (seg->proto ^ q->proto) & seg->proto_mask;
	differs |= ((below | above) >> 63) & seg->proto_mask;
	return !differs;
}

/* Segments that one call of sl_np_first_fit() compares. */
#define SL_NP_SEGMENTS_CHUNK 16

/*
 * Finds the first of count segments of policy id that fits, from segment first on, among SL_NP_SEGMENTS_CHUNK at most.
 * Returns its point, or a negative number if none does or the policy has gone. A function of its own, as
 * sl_policy_first_match().
 * in: policy_query()
 */
__noinline int sl_np_first_fit(__u32 id, __u32 first, __u32 count)
{
	struct sl_np_policy *pol = np_policy(id);
	struct sl_policy_query *q = policy_query();
	__u32 i;

	if (!pol || !q)
		return -1;
	for (i = 0; i < SL_NP_SEGMENTS_CHUNK; i++) {
		struct sl_np_segment *seg = &pol->segments[(first + i) & (SL_NP_SEGMENTS - 1)];

		if (i >= count)
			break;
		if (np_segment_fits(seg, q))
			return seg->point;
	}
	return -1;
}

/* What sl_np_verdict() is asked. */
#define SL_NP_Q_EGRESS 1   /* the pod opened the connection */
#define SL_NP_Q_NO_PORTS 2 /* the packet hides its ports, or its protocol */
#define SL_NP_Q_LATER 4	   /* another hook can decide, behind all translations */

/* May a packet to the address get another destination on its way? An address of a pod or a node is no Service's. */
static __always_inline bool np_may_be_translated(struct sl_policy_query *q, __u32 generation)
{
	union sl_np_key *key = &q->key;

	addr_copy(key->addr.ip, q->remote);
	key->addr.generation = generation;
	if (bpf_map_lookup_elem(&sl_np_peers, &key->addr))
		return false;
	key->cidr.prefix_len = 32 + 128;
	key->cidr.generation = generation;
	addr_copy(key->cidr.ip, q->remote);
	return bpf_map_lookup_elem(&sl_np_services, &key->cidr);
}

static __always_inline __u32 np_class_of(struct sl_policy_query *q, __u32 generation)
{
	union sl_np_key *key = &q->key;
	struct sl_np_peer *peer;
	__u32 *class;

	addr_copy(key->addr.ip, q->remote);
	key->addr.generation = generation;
	peer = bpf_map_lookup_elem(&sl_np_peers, &key->addr);
	if (peer)
		return peer->class;
	key->cidr.prefix_len = 32 + 128;
	key->cidr.generation = generation;
	addr_copy(key->cidr.ip, q->remote);
	class = bpf_map_lookup_elem(&sl_np_cidrs, &key->cidr);
	return class ? *class : 0;
}

/*
 * Do the NetworkPolicies of policy id admit a connection? query: SL_NP_Q_*. Returns an enum sl_drop_reason.
 * in: policy_query()  out: ct_scratch()->egress_later, if it is to be set
 */
__noinline int sl_np_verdict(__u32 id, __u32 query)
{
	bool egress = query & SL_NP_Q_EGRESS;
	struct sl_policy_query *q = policy_query();
	struct sl_np_policy *pol = np_policy(id);
	struct sl_ct_scratch *s = ct_scratch();
	__u32 first, count, i, generation;
	struct sl_np_bits *bits;
	int point = -1;

	if (!pol || !q || !s)
		return SL_DROP_POLICY_RACE;
	first = egress ? pol->ingress_count : 0;
	count = egress ? pol->egress_count : pol->ingress_count;
	if (!count)
		return SL_DROP_NONE;
	if (query & SL_NP_Q_NO_PORTS)
		return SL_DROP_UNPARSABLE;
	for (i = 0; i < SL_NP_SEGMENTS && point < 0; i += SL_NP_SEGMENTS_CHUNK) {
		if (i >= count)
			return SL_DROP_POLICY_RACE; /* the last segment fits everything */
		point = sl_np_first_fit(id, first + i, count - i);
	}
	if (point == SL_NP_POINT_ACCEPT)
		return SL_DROP_NONE;
	if (pol->set == SL_NP_SET_CLOSED)
		return SL_DROP_NP_PENDING;
	if ((query & SL_NP_Q_LATER) && np_may_be_translated(q, pol->generation)) {
		s->egress_later = SL_CT_EGRESS_LATER;
		return SL_DROP_NONE;
	}
	if (point > SL_NP_POINT_DENY) {
		generation = pol->generation;
		q->key.chunk.class = np_class_of(q, generation);
		q->key.chunk.generation = generation;
		q->key.chunk.chunk = (__u32)point / SL_NP_CHUNK_BITS;
		bits = bpf_map_lookup_elem(&sl_np_bits, &q->key.chunk);
		i = (__u32)point % SL_NP_CHUNK_BITS;
		if (bits && (bits->words[i / 64] >> (i % 64)) & 1)
			return SL_DROP_NONE;
	}
	return egress ? SL_DROP_NP_EGRESS : SL_DROP_NP_INGRESS;
}
