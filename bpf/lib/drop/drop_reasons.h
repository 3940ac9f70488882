/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../base/compiler.h"

/*
 * Why a packet was dropped.
 */

/*
 * The index into sl_drop_reasons. One reason per cause. New reasons go before SL_DROP_MAX: the
 * numbers are part of the map layout.
 */
enum sl_drop_reason {
	SL_DROP_NONE = 0,
	SL_DROP_SPOOFED_IP,	/* source address is not one of the pod's */
	SL_DROP_SPOOFED_MAC,	/* source MAC is not the pod's */
	SL_DROP_NO_SNAT_ADDR,	/* the uplink has no address to masquerade with */
	SL_DROP_SNAT_PORTS,	/* no free source port toward that destination */
	SL_DROP_NO_CLIENT_PORT, /* no port left for a client that reaches one pod port in two ways from one port */
	SL_DROP_CT_TABLE,	/* the conntrack entry could not be inserted */
	SL_DROP_REWRITE,	/* the packet could not be rewritten */
	SL_DROP_ICMP_ORPHAN,	/* a masqueraded pod's ICMP error about an unknown connection */
	SL_DROP_FRAGMENT,	/* a masqueraded pod's fragment, the first one not seen */
	SL_DROP_UNPARSABLE,	/* nothing to translate for a masqueraded pod, or no ports for the rules */
	SL_DROP_LOOPBACK,	/* a loopback address on a wire */
	SL_DROP_ISOLATED,	/* ingressPolicy keeps the two pods apart */
	SL_DROP_INGRESS_RULE,	/* a rule, or the default, for connections toward the pod */
	SL_DROP_EGRESS_RULE,	/* ... for connections the pod opens */
	SL_DROP_POLICY_RACE,	/* the device's policy was replaced at the same time */
	SL_DROP_RATE,		/* it would wait too long under the pod's rate limit */
	SL_DROP_SOURCE,		/* the source is not in the mapping's allowedSources */
	SL_DROP_DENIED,		/* the source is in the denylist */
	SL_DROP_NO_GATEWAY,	/* pod-side SNAT needs an address, and the gateway device has none */
	SL_DROP_LOOPBACK_POD,	/* a pod sends to a loopback address */
	SL_DROP_V4MAPPED,	/* an IPv6 packet with a v4-mapped source or destination */
	SL_DROP_CT_SHARE,	/* the connection table is full, and no attachment has more of it than this one */
	SL_DROP_UNASKED,	/* a masqueraded pod answers what did not come in */
	SL_DROP_CSUM_PLACE,	/* a pod has a checksum made where the packet has something else */
	SL_DROP_FALSE_ND,	/* a pod's router advertisement, redirect, or claim of an address of others */
	SL_DROP_TUNNEL,		/* a pod sends to the port of a VXLAN device between nodes */
	SL_DROP_NP_INGRESS,	/* NetworkPolicy, for connections toward the pod */
	SL_DROP_NP_EGRESS,	/* ... for connections the pod opens */
	SL_DROP_NP_PENDING,	/* the NetworkPolicies of the pod are not known yet */
	SL_DROP_MAX,
};

/*
 * Added to a reason in the index into sl_drop_reasons, by the direction of the dropped packet. Programs of
 * builds without directions count all as SL_DROP_TO_PODS.
 */
enum sl_drop_direction {
	SL_DROP_TO_PODS = 0,	/* a packet toward a pod, or one that came in by an uplink */
	SL_DROP_FROM_PODS = 32, /* one that a pod sent, or one that would leave by an uplink */
};
#define SL_DROP_REASON_MASK (SL_DROP_FROM_PODS - 1)

/* Entries of sl_drop_reasons. */
#define SL_DROP_MAP_SIZE 64
_Static_assert(SL_DROP_MAX <= SL_DROP_FROM_PODS, "sl_drop_reasons has an entry for every reason and direction");
