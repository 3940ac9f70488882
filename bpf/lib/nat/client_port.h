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

/* When a client was last given another port, by clock_now(). Written from every CPU: later or earlier by a packet does not matter. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_last_cport SEC(".maps");

/*
 * Can a SYN that comes again be of such a client? One that has gone on since does not send another. Asked so that other
 * SYNs need not be looked for in a table whose buckets are as many as the connections that come and go, and cold.
 */
static __always_inline bool client_port_opening(__u64 now)
{
	__u32 zero = 0;
	__u64 *last = bpf_map_lookup_elem(&sl_last_cport, &zero);

	return last && *last && now - *last < SL_TIMEOUT_TCP_OPENING;
}

/*
 * Takes s->key with the remote port (host byte order) if no flow lives there, or if that is this very one, whose index was
 * lost. Notes the index under s->rec.other. Returns 1 when it is taken.
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

/* Gives the flow of p to s->key, whose record is in s->rec, a remote port of its own, in s->key. False: none is free. */
static __always_inline __must_check bool client_port_allocate(const struct sl_pkt *p, struct sl_ct_scratch *s)
{
	__u32 start = port_alloc_start(&p->tuple), i;

	s->entry.flags |= SL_CT_CLIENT_PORT;
	for (i = 1; i <= 2 * SL_SNAT_ATTEMPTS; i++) {
		if (sl_cport_claim(snat_candidate(0, i, start)))
			return true;
	}
	return false;
}
