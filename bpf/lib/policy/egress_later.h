/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../conntrack/conntrack_table.h"
#include "policy.h"

/*
 * NetworkPolicy for the egress of a pod, asked by the last hook: the destination is what Services, hostPorts and other translations
 * have made of it. The first hook leaves what may be translated to this, and marks the entry (SL_CT_EGRESS_LATER). A packet
 * with a tuple that the first hook has not seen has been translated.
 */

/*
 * May the pod of sender send a packet to the address and port (network byte order) that it has now? ct: the sender's entry of the connection, NULL
 * if the first hook has seen no such tuple. translated: the entry is of another tuple than the packet has.
 */
static __always_inline enum sl_drop_reason egress_admit(const struct sl_endpoint *sender, struct sl_ct_entry *ct,
							bool translated, const __u8 *to, __u8 proto, __be16 port)
{
	struct sl_policy_query *q = policy_query();
	struct sl_dev_policy *s;
	int reason;

	if (likely(!sender->policy) || !q)
		return SL_DROP_NONE;
	if (ct && (!(ct->flags & SL_CT_POD_OPENED) ||
		   (!translated && ct->policy == sender->policy && !(ct->flags & SL_CT_EGRESS_LATER))))
		return SL_DROP_NONE;
	s = policy_device_of(sender->ifindex);
	if (!s || !(s->flags & SL_POLICY_NETWORK))
		return SL_DROP_NONE;
	policy_set_query(q, to, proto, port);
	reason = sl_np_verdict(s->policy, SL_NP_Q_EGRESS);
	if (reason && !is_same_pod(sender->owner, q))
		return (enum sl_drop_reason)reason;
	if (ct)
		ct->flags &= ~SL_CT_EGRESS_LATER;
	return SL_DROP_NONE;
}
