/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "compiler.h"

/*
 * One direction-free name of a connection. "local" is the end we own: the pod
 * on the pod's side of a translation, the node on the outside. IPv4 addresses
 * are held v4-mapped (::ffff:a.b.c.d, RFC 4291 2.5.5.2), so that both families
 * share every map and every function.
 *
 * ICMP echo has no ports: local_port carries the identifier, remote_port is
 * SL_ECHO_LOCAL when the local end asked and SL_ECHO_REMOTE when the remote did.
 */
struct sl_tuple {
	__u8 local[16];
	__u8 remote[16];
	__be16 local_port;
	__be16 remote_port;
	__u8 proto;
	__u8 pad[3];	       /* [0]: SL_SIDE_DOOR for a record at a pod's door (turn.h) */
} __attribute__((aligned(8))); /* compared and copied by 64-bit words */
_Static_assert(sizeof(struct sl_tuple) == 40, "sl_tuple is a map key: no hidden padding");

#define SL_ECHO_LOCAL 1
#define SL_ECHO_REMOTE 2

/* sl_flow.flags. docs/design/conntrack.md says what they mean. */
enum sl_flow_flag {
	SL_FLOW_INDEX = 1 << 0,	     /* not a record: "other" is the key of the record */
	SL_FLOW_POD_OPENED = 1 << 1, /* the pod sent the first packet */
	SL_FLOW_SNAT = 1 << 2,	     /* masqueraded: "other" is the tuple seen outside */
	SL_FLOW_DNAT = 1 << 3,	     /* through a hostPort: "other" is the tuple seen outside */
	SL_FLOW_DNAT_ANY = 1 << 4,   /* ... one without hostIP */
	SL_FLOW_TX_FIRST = 1 << 5,   /* first hook of the pod's sending direction saw the tuple */
	SL_FLOW_TX_CONFIRM = 1 << 6, /* last hook of that direction saw the same tuple */
	SL_FLOW_RX_FIRST = 1 << 7,
	SL_FLOW_RX_CONFIRM = 1 << 8,
	SL_FLOW_REPLIED = 1 << 9,  /* the end that did not open it has answered */
	SL_FLOW_ASSURED = 1 << 10, /* lives in the map of proven flows */
	SL_FLOW_FIN_TX = 1 << 11,
	SL_FLOW_FIN_RX = 1 << 12,
	SL_FLOW_RST = 1 << 13,
	SL_FLOW_LOCAL_PEER = 1 << 14, /* the remote end is a pod of this node */
	SL_FLOW_TURNED = 1 << 15,     /* hairpin: "other" is the tuple in the stack */
	SL_FLOW_DOOR = 1 << 16,	      /* masqueraded at the pod's door: "other" is the tuple the pod sees */
	SL_FLOW_MASQ = 1 << 17,	      /* its packets are masqueraded at the door of the pod asked */
	SL_FLOW_REMAP = 1 << 18,      /* through a hostPort, the client with another port than its own: has an index */
};

/* sl_flow.route_link. Programs before it kept an address family there, and the next hop's address behind it. */
#define SL_ROUTE_LINK 1

/*
 * State of one connection (a record), or a pointer to it (SL_FLOW_INDEX).
 * A record holds both directions; its key is the tuple as the pod sees it.
 * Times are clock_now() (CLOCK_MONOTONIC, nanoseconds).
 */
struct sl_flow {
	struct sl_tuple other;
	__u32 flags;	   /* enum sl_flow_flag */
	__u32 out_ifindex; /* uplink that confirmed the sending direction, 0 = none yet */
	__u64 created;
	__u64 last_seen;
	__u64 hostport_gen; /* generation of the hostPort entry a DNAT flow belongs to */
	__u64 owner;	    /* attachment, see sl_endpoint.owner */
	__u64 rx_packets;   /* toward the pod */
	__u64 rx_bytes;
	__u64 tx_packets; /* from the pod */
	__u64 tx_bytes;
	/* How packets of the sending direction leave by out_ifindex, see fast_route(). */
	__u64 route_until; /* time until which it holds */
	__u32 route_len;   /* longest packet that may leave so, bytes */
	__u16 route_link;  /* SL_ROUTE_LINK: the two link addresses are set */
	__u16 policy;	   /* id of the policy that admitted it, see sl_policed; 0 = none had to */
	__u8 route_dst[6]; /* next hop's MAC */
	__u8 route_src[6]; /* the uplink's */
	__u8 pad[4];
};
_Static_assert(sizeof(struct sl_flow) == 144, "sl_flow is a map value: no hidden padding");
