/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "flow.h"
#include "ports.h"
#include "remap_maps.h"

/*
 * Two connections that differ in the node's end alone, by two published ports or
 * addresses of one pod port, are one to the pod. The second one's client gets another
 * port then, toward the pod, from the masquerade ranges. Its outside tuple needs an
 * index, since the mapping leads to the first one's record.
 */

/*
 * Can a SYN that comes again be of such a client? One that has gone on since does not send another. Asked so that other
 * SYNs need not be looked for in a table whose buckets are as many as the connections that come and go, and cold.
 */
static __always_inline bool remap_opening(__u64 now)
{
	__u32 zero = 0;
	__u64 *last = bpf_map_lookup_elem(&sl_remapped, &zero);

	return last && *last && now - *last < SL_TIMEOUT_TCP_OPENING;
}

/*
 * Takes s->key with the remote port (host byte order) if no flow lives there, or if that is this very one, whose index was
 * lost. Notes the index under s->rec.other. Returns 1 when it is taken.
 */
__noinline int sl_remap_take(__u32 port)
{
	struct sl_flow_scratch *s = flow_scratch();
	__u64 now = clock_now(), *last;
	struct sl_flow *f, *idx;
	__u32 zero = 0;

	if (!s)
		return 0;
	s->key.remote_port = bpf_htons((__u16)port);
	f = flow_lookup(&s->key, now);
	if (f && !((f->flags & SL_FLOW_REMAP) && f->owner == s->rec.owner && tuple_equal(&f->other, &s->rec.other)))
		return 0;
	flow_init_index(&s->idx, &s->key, &s->rec);
	last = bpf_map_lookup_elem(&sl_remapped, &zero);
	if (last)
		*last = now;
	idx = flow_insert(&s->rec.other, &s->idx);
	return idx != NULL;
}

/* Gives the flow of p to s->key, whose record is in s->rec, a remote port of its own, in s->key. False: none is free. */
static __always_inline __must_check bool remap_allocate(const struct sl_pkt *p, struct sl_flow_scratch *s)
{
	__u32 rnd = ports_start(&p->tuple), i;

	s->rec.flags |= SL_FLOW_REMAP;
	for (i = 1; i <= 2 * SL_SNAT_TRIES; i++) {
		if (sl_remap_take(__snat_candidate(0, i, rnd)))
			return true;
	}
	return false;
}
