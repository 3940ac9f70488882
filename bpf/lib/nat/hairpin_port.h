/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../conntrack/conntrack.h"
#include "../hostport/hostport.h"
#include "hairpin_rewrite.h"
#include "host_socket.h"
#include "snat.h"

/*
 * Ports and conntrack entries of hairpin connections and of pod-side SNAT. Both kinds of entries have
 * a reverse entry, and a port is taken by inserting it, as in snat.h.
 */

/* No verdict of these functions: the packet has nothing to do with them. */
#define SL_NOT_HAIRPIN (-2)

/*
 * Takes one port if it is free, by inserting the index at s->rec.other, as sl_snat_claim() does. It is
 * that of the node's end at a door, that of the client otherwise. port: host byte order. Returns 1 when it is taken.
 */
__noinline int sl_hpin_claim(struct __sk_buff *skb, __u32 port)
{
	struct sl_ct_scratch *s = ct_scratch();
	struct sl_hairpin_ctx *ctx = hairpin_scratch();
	__u64 now = clock_now();
	struct sl_ct_entry *reverse;
	bool fixed;

	if (!s || !ctx)
		return 0;
	fixed = !proto_has_free_ports(s->key.proto);
	if (!port && !fixed)
		return 0;
	if ((s->entry.flags & SL_CT_POD_SNAT) && ctx->p.echo) {
		s->entry.other.local_port = bpf_htons((__u16)port);
		if (!snat_in_range((__u16)port))
			return 0;
	} else if (s->entry.flags & SL_CT_POD_SNAT) {
		s->entry.other.remote_port = bpf_htons((__u16)port);
		/* The node's end is the remote one here. */
		ctx->to = s->entry.other;
		addr_copy(ctx->to.local, s->entry.other.remote);
		addr_copy(ctx->to.remote, s->entry.other.local);
		ctx->to.local_port = s->entry.other.remote_port;
		ctx->to.remote_port = s->entry.other.local_port;
		if ((!fixed && !snat_in_range((__u16)port)) ||
		    !snat_port_allowed(ctx->to.local, ctx->to.local_port, ctx->to.proto) ||
		    node_socket_lookup(skb, &ctx->to) != SL_SOCK_NONE)
			return 0;
	} else {
		s->entry.other.local_port = bpf_htons((__u16)port);
	}
	if (snat_taken(&s->entry.other, &s->key, now))
		return 0;
	ct_init_reverse(&s->reverse, &s->key, &s->entry);
	bpf_map_update_elem(&sl_ct_unassured, &s->entry.other, &s->reverse, BPF_NOEXIST);
	reverse = bpf_map_lookup_elem(&sl_ct_unassured, &s->entry.other);
	return reverse && tuple_equal(&reverse->other, &s->key);
}

/*
 * Does the port (host byte order) lead to the very flow in the scratch, from before its record was lost? As sl_snat_is_ours().
 * Returns 1 then, else 0.
 */
__noinline int sl_hpin_is_ours(__u32 port)
{
	struct sl_ct_scratch *s = ct_scratch();
	struct sl_hairpin_ctx *ctx = hairpin_scratch();
	__u32 kind;
	struct sl_ct_entry *reverse;

	if (!s || !ctx)
		return 0;
	kind = s->entry.flags & (SL_CT_POD_SNAT | SL_CT_HAIRPIN);
	if ((kind & SL_CT_POD_SNAT) && !ctx->p.echo)
		s->entry.other.remote_port = bpf_htons((__u16)port);
	else
		s->entry.other.local_port = bpf_htons((__u16)port);
	reverse = bpf_map_lookup_elem(&sl_ct, &s->entry.other);
	if (!reverse)
		reverse = bpf_map_lookup_elem(&sl_ct_unassured, &s->entry.other);
	return reverse && (reverse->flags & SL_CT_REVERSE) && (reverse->flags & kind) &&
	       reverse->owner == s->entry.owner && tuple_equal(&reverse->other, &s->key);
}

/*
 * Notes in t->start where the search for a port of the flow in the scratch begins, and looks there for the one it had before its record was
 * lost. own: host byte order. Returns 1 when it is found. A function of its own, for the stack it takes.
 */
__noinline int sl_hpin_recover(__u32 preferred)
{
	struct sl_ct_scratch *s = ct_scratch();
	struct sl_hairpin_ctx *ctx = hairpin_scratch();
	__u32 scan, i;
	int found = 0;

	if (!s || !ctx)
		return 0;
	ctx->start = port_alloc_start(&s->key);
	scan = snat_recover_attempts(&ctx->p, proto_has_free_ports(s->key.proto) ? 2 * SL_SNAT_ATTEMPTS : 0);
	for (i = 0; i <= 2 * SL_SNAT_ATTEMPTS && i < scan && !found; i++)
		found = sl_hpin_is_ours(snat_candidate((__u16)preferred, i, ctx->start));
	return found;
}

/*
 * Gives s->rec, whose key is s->key, an index, and puts it in: with the port it had before its record was lost, else a free one, own (host byte order) if
 * it can be.
 */
static __always_inline struct sl_ct_entry *hairpin_insert(struct __sk_buff *skb, struct sl_ct_scratch *s,
							  const struct sl_hairpin_ctx *ctx, __u16 preferred,
							  enum sl_drop_reason *reason)
{
	__u32 attempts = proto_has_free_ports(s->key.proto) ? 2 * SL_SNAT_ATTEMPTS : 0, i;
	int found = sl_hpin_recover(preferred);
	struct sl_ct_entry *ct = NULL;

	*reason = SL_DROP_SNAT_PORTS;
	for (i = 0; i <= 2 * SL_SNAT_ATTEMPTS && i <= attempts && !found; i++)
		found = sl_hpin_claim(skb, snat_candidate(preferred, i, ctx->start));
	if (found) {
		ct = ct_insert(&s->key, &s->entry);
		*reason = ct ? SL_DROP_NONE : SL_DROP_CT_TABLE;
	}
	return ct;
}

/* The live record behind an index of ours, restored where the LRU took it. */
static __always_inline struct sl_ct_entry *hairpin_entry(const struct sl_tuple *outside,
							 const struct sl_ct_entry *reverse, struct sl_tuple *key,
							 __u64 owner, __u64 now)
{
	struct sl_ct_entry *entry;

	*key = reverse->other;
	entry = ct_lookup_entry(key, owner, now);
	if (!entry && !ct_exists(key))
		entry = ct_restore(outside, reverse, now);
	return entry && tuple_equal(&entry->other, outside) ? entry : NULL;
}

static __always_inline bool hairpin_is_reverse(const struct sl_ct_entry *ct, __u32 kind, __u64 owner)
{
	return ct && (ct->flags & SL_CT_REVERSE) && (ct->flags & kind) && ct->owner == owner;
}
