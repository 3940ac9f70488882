/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../conntrack/conntrack.h"
#include "port_alloc.h"

/*
 * SNAT of a client's port. Two connections of one client can differ in the node's end alone, by two
 * published ports or addresses of one pod port. To the pod they would be one. So the second one's client
 * gets another port, from the masquerade ranges. Its outside tuple needs a reverse entry, since the
 * mapping leads to the first one's entry.
 */

/*
 * When a client last got another port, by clock_now(). Written from every CPU: a packet earlier or
 * later does not matter.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_last_cport SEC(".maps");

/*
 * Can a repeated SYN be of such a client? Not for long: a client that went on does not repeat its
 * SYN. This check saves all other SYNs a lookup in a large table, whose buckets are cold.
 */
static __always_inline bool client_port_opening(__u64 now)
{
	__u32 zero = 0;
	__u64 *last = bpf_map_lookup_elem(&sl_last_cport, &zero);

	return last && *last && now < *last + SL_TIMEOUT_TCP_OPENING;
}

/*
 * Claims s->key with the remote port (host byte order). The port is free if it has no live entry,
 * or if the entry is this very connection's, whose reverse entry was lost. Returns 1 if claimed,
 * else 0.
 * in: ct_scratch()->key, ->entry  out: ->key.remote_port, ->reverse, inserted under entry.other
 */
__noinline int sl_cport_claim(__u32 port)
{
	struct sl_ct_scratch *s = ct_scratch();
	__u64 now = clock_now(), *last;
	struct sl_ct_entry *ct, *reverse;
	__u32 zero = 0;

	if (!s)
		return 0;
	s->key.remote_port = bpf_htons((__u16)port);
	ct = ct_lookup(&s->key, now);
	if (ct && !((ct->flags & SL_CT_CLIENT_PORT) && ct->owner == s->entry.owner &&
		    tuple_equal(&ct->other, &s->entry.other)))
		return 0;
	ct_init_reverse(&s->reverse, &s->key, &s->entry);
	last = bpf_map_lookup_elem(&sl_last_cport, &zero);
	if (last)
		*last = now;
	reverse = ct_insert(&s->entry.other, &s->reverse);
	return reverse != NULL;
}

/*
 * Gives a connection a client port of its own. Returns 1, or 0 if none is free.
 * A function of its own: the verifier follows its loop once, and not once for each caller's state.
 * in: ct_scratch()->key, ->entry  out: ->key.remote_port, ->entry.flags, ->reverse
 */
__noinline int sl_cport_find(void)
{
	struct sl_ct_scratch *s = ct_scratch();
	__u64 hash;
	__u32 i;

	if (!s)
		return 0;
	hash = port_alloc_hash(&s->entry.other);
	s->entry.flags |= SL_CT_CLIENT_PORT;
	for (i = 1; i <= 2 * SL_SNAT_ATTEMPTS; i++) {
		if (sl_cport_claim(snat_candidate(0, i, hash)))
			return 1;
	}
	return 0;
}
