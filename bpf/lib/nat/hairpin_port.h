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

/* These functions have no verdict: the packet is not for them. */
#define SL_NOT_HAIRPIN (-2)

/*
 * Claims a port if it is free, as sl_snat_claim() does. The port is
 * the node's for pod-side SNAT, else the client's. port: host byte order. Returns 1 if claimed,
 * else 0.
 * in: ct_scratch()->key, ->entry, hairpin_scratch()->p  out: ->entry.other, ->reverse,
 * hairpin_scratch()->to
 */
__noinline int sl_hpin_claim(struct __sk_buff *skb, __u32 port)
{
	struct sl_ct_scratch *s = ct_scratch();
	struct sl_hairpin_ctx *ctx = hairpin_scratch();
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
		/* The node's own connections to the pod have the same address: a port that it gives them is not kept. */
		if ((!fixed && port >= SL_PRIVILEGED_PORTS && !snat_in_range((__u16)port)) ||
		    !snat_port_allowed(ctx->to.local, ctx->to.local_port, ctx->to.proto) ||
		    node_socket_lookup(skb, &ctx->to) != SL_SOCK_NONE)
			return 0;
	} else {
		s->entry.other.local_port = bpf_htons((__u16)port);
	}
	return outside_claim(s, clock_now());
}

/*
 * Does the port (host byte order) lead to this very connection, from before its entry was lost? As
 * sl_snat_is_ours(). Returns 1 if so, else 0.
 * in: ct_scratch()->key, ->entry, hairpin_scratch()->p  out: ->entry.other
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
	reverse = ct_at(&s->entry.other);
	return reverse && (reverse->flags & SL_CT_REVERSE) && (reverse->flags & kind) &&
	       reverse->owner == s->entry.owner && tuple_equal(&reverse->other, &s->key);
}

/*
 * Looks for the port that the connection had before its entry was lost, else claims a free one,
 * preferred (host byte order) if possible. Returns 1, or 0 if none is free.
 * A function of its own: the verifier follows its loops once, and not once for each caller's state.
 * in: ct_scratch()->key, ->entry, hairpin_scratch()->p  out: ->entry.other, ->reverse
 */
__noinline int sl_hpin_find(struct __sk_buff *skb, __u32 preferred)
{
	struct sl_ct_scratch *s = ct_scratch();
	struct sl_hairpin_ctx *ctx = hairpin_scratch();
	__u32 attempts, scan, i;
	__u64 hash;

	if (!s || !ctx)
		return 0;
	hash = port_alloc_hash(&s->key);
	attempts = proto_has_free_ports(s->key.proto) ? 2 * SL_SNAT_ATTEMPTS : 0;
	scan = snat_recover_attempts(&ctx->p, attempts);
	for (i = 0; i <= 2 * SL_SNAT_ATTEMPTS && i < scan; i++) {
		if (sl_hpin_is_ours(snat_candidate((__u16)preferred, i, hash)))
			return 1;
	}
	for (i = 0; i <= 2 * SL_SNAT_ATTEMPTS && i <= attempts; i++) {
		if (sl_hpin_claim(skb, snat_candidate((__u16)preferred, i, hash)))
			return 1;
	}
	return 0;
}

/*
 * Inserts s->entry under s->key, with its reverse entry: with the port that it had before, else
 * with a free one, preferred (host byte order) if possible.
 * in: s->key, s->entry, ctx->p  out: s->entry.other
 */
static __always_inline struct sl_ct_entry *hairpin_insert(struct __sk_buff *skb, struct sl_ct_scratch *s,
							  __u16 preferred, enum sl_drop_reason *reason)
{
	struct sl_ct_entry *ct;

	*reason = SL_DROP_SNAT_PORTS;
	if (!sl_hpin_find(skb, preferred))
		return NULL;
	ct = ct_begin(&s->key, s);
	*reason = ct ? SL_DROP_NONE : SL_DROP_CT_TABLE;
	return ct;
}

/* The live entry behind a reverse entry, restored if the LRU took it. */
static __always_inline struct sl_ct_entry *hairpin_entry(const struct sl_tuple *outside,
							 const struct sl_ct_entry *reverse, struct sl_tuple *key,
							 __u64 owner, __u64 now)
{
	struct sl_ct_entry *entry;

	*key = reverse->other;
	entry = ct_lookup_entry(key, owner, now);
	if (!entry && !ct_at(key))
		entry = ct_restore(outside, reverse, now);
	return entry && tuple_equal(&entry->other, outside) ? entry : NULL;
}

static __always_inline bool hairpin_is_reverse(const struct sl_ct_entry *ct, __u32 kind, __u64 owner)
{
	return ct && (ct->flags & SL_CT_REVERSE) && (ct->flags & kind) && ct->owner == owner;
}
