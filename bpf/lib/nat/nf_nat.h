/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../conntrack/conntrack.h"
#include "../endpoint/endpoint.h"

/*
 * Connections that netfilter translates: Services by kube-proxy or IPVS, and an administrator's rules. Netfilter decides, and the
 * entry learns the result where the packet has passed the stack (docs/dev/design/fast-path.md).
 *
 * The key of such an entry (SL_CT_NF_NAT) is the tuple that the pod sees, "other" the one behind all translations, our own
 * masquerade included. In the stack the connection has a third one, which follows from the two: only one of
 * netfilter and the masquerade changes the local end.
 */

/* Translations of ours that do not go together with one of netfilter in one entry. */
#define SL_CT_OTHER_NAT (SL_CT_DNAT | SL_CT_HAIRPIN | SL_CT_POD_SNAT | SL_CT_WANTS_POD_SNAT | SL_CT_CLIENT_PORT)

/* Has netfilter left the local end of a packet as it was? */
static __always_inline bool nf_keeps_local(const struct sl_tuple *inside, const struct sl_tuple *stack)
{
	return addr_equal(inside->local, stack->local) && inside->local_port == stack->local_port;
}

/*
 * Can an entry describe what netfilter has made of the packet? ct: the entry that there is, or NULL. Not if the connection has a translation
 * of ours that goes on in the stack, and not if netfilter has changed the port of a source that we have to masquerade: the
 * tuple in the stack would not follow from the other two.
 * in: s->pre
 */
static __always_inline bool nf_nat_fits(const struct sl_ct_scratch *s, const struct sl_pkt *p,
					const struct sl_endpoint *ep, const struct sl_ct_entry *ct)
{
	if (ct && (ct->flags & SL_CT_OTHER_NAT))
		return false;
	return s->pre.local_port == p->tuple.local_port || !addr_equal(s->pre.local, p->tuple.local) ||
	       !endpoint_masquerades(ep, p->tuple.local, p->tuple.remote);
}

/*
 * Does the entry ct with the key inside describe a packet that has the tuple stack in the stack? nf_nat: netfilter has
 * translated it.
 */
static __always_inline bool nf_nat_same(const struct sl_ct_entry *ct, const struct sl_tuple *inside,
					const struct sl_tuple *stack, bool nf_nat)
{
	const struct sl_tuple *local = ct->flags & SL_CT_SNAT ? inside : &ct->other;

	if (!nf_nat)
		return !(ct->flags & SL_CT_NF_NAT);
	return (ct->flags & (SL_CT_NF_NAT | SL_CT_PEER_LOCAL)) == SL_CT_NF_NAT &&
	       addr_equal(ct->other.remote, stack->remote) && ct->other.remote_port == stack->remote_port &&
	       nf_keeps_local(local, stack);
}

/*
 * Forgets a translation that netfilter does not make any more, our masquerade of it, and what was learned from answers. What still
 * comes under the outside tuple leads to no entry.
 */
static __always_inline void nf_nat_forget(struct sl_ct_entry *ct)
{
	ct->other.proto = 0;
	ct->flags &= ~(SL_CT_NF_NAT | SL_CT_SNAT | SL_CT_SEEN_LAST | SL_CT_REPLIED);
}

/*
 * Makes of the key of ct what a packet from outside, which has the tuple outside, gets for its way through the stack: netfilter
 * does the rest.
 */
static __always_inline void nf_nat_stack_tuple(const struct sl_ct_entry *ct, struct sl_tuple *key,
					       const struct sl_tuple *outside)
{
	if (likely(!(ct->flags & SL_CT_NF_NAT)))
		return;
	addr_copy(key->remote, outside->remote);
	key->remote_port = outside->remote_port;
	if (ct->flags & SL_CT_SNAT)
		return;
	addr_copy(key->local, outside->local);
	key->local_port = outside->local_port;
}
