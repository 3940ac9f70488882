/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../conntrack/conntrack.h"
#include "../endpoint/endpoint.h"
#include "../hostport/hostport.h"
#include "client_port.h"

/*
 * Finds the connection of a packet from outside by its own tuple: what no published port leads to.
 */

/* The connection that a packet belongs to. */
struct sl_ct_match {
	struct sl_tuple *key; /* of the entry: the tuple as the pod sees it. The caller provides the memory */
	struct sl_ct_entry *ct;
	struct sl_endpoint *ep;
};

/*
 * Does a third party's SYN belong to a masqueraded connection? Yes while the pod's own SYN has no
 * answer: both ends open at once (RFC 9293 3.5, RFC 5382 REQ-2). Later it opens another connection.
 */
static __always_inline bool is_simultaneous_open(const struct sl_ct_entry *ct)
{
	return (ct->flags & (SL_CT_SNAT | SL_CT_REPLIED | SL_CT_CLOSING)) == SL_CT_SNAT;
}

/*
 * Finds a masqueraded connection by its outside tuple, or an untranslated one by its own. False:
 * there is no valid one. opens: the packet is a SYN for a published port. It can only repeat the
 * SYN of a connection whose client the pod knows by another port (nat/client_port.h). Such a
 * connection is unassured and has a reverse entry.
 */
static __always_inline bool find_snat_or_plain(const struct sl_pkt *p, struct sl_ct_match *m, bool opens, __u64 now)
{
	struct sl_ct_entry *ct;
	bool is_reverse;

	if (opens)
		ct = client_port_opening(now) ? ct_lookup_unassured(&p->tuple, now) : NULL;
	else
		ct = ct_lookup(&p->tuple, now);
	if (!ct)
		return false;
	is_reverse = ct->flags & SL_CT_REVERSE;
	/* What is for the pod's own address goes without us. */
	if (cfg_clients && !is_reverse)
		return false;
	*m->key = is_reverse ? ct->other : p->tuple;
	m->ep = endpoint_lookup(m->key->local);
	if (!m->ep || m->ep->owner != ct->owner)
		return false;
	m->ct = ct;
	if (is_reverse) {
		m->ct = ct_lookup_entry(m->key, m->ep->owner, now);
		if (!m->ct) {
			/*
			 * A connection that ended leaves its reverse entry behind. Restore only an
			 * entry that the LRU took.
			 */
			if (pkt_is_syn(p) || ct_at(m->key))
				return false;
			m->ct = ct_restore(&p->tuple, ct, now);
		}
		if (!m->ct || !tuple_equal(&m->ct->other, &p->tuple))
			return false; /* the entry has another outside tuple now */
		if ((m->ct->flags & SL_CT_CLIENT_PORT) &&
		    !hostport_is_current(&p->tuple, m->ct->flags & SL_CT_DNAT_ANYADDR, m->ct->hostport_generation))
			return false; /* as find_hostport() checks those without a reverse entry */
		if (is_simultaneous_open(m->ct))
			return true;
	}
	return !ct_is_new_connection(m->ct, p, SL_RX);
}
