/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../base/compiler.h"

/*
 * Published ports (hostPorts) and the lists of sources that may use them.
 */

/*
 * A published port. ip is the hostIP; "::" or ::ffff:0.0.0.0 stands for every address of the node
 * in that family (sl_node_addrs).
 */
struct sl_hostport_key {
	__u8 ip[16];
	__be16 port;
	__u8 proto;
	__u8 pad;
};
_Static_assert(sizeof(struct sl_hostport_key) == 20, "sl_hostport_key is a map key");

/*
 * One key has one owner: the last ADD replaces the value. A packet that does not meet the
 * conditions (portmap "conditionsV4", "conditionsV6") is not for this mapping.
 */
struct sl_hostport {
	__u8 ip[16];	  /* pod */
	__u64 owner;	  /* as sl_endpoint.owner */
	__u64 generation; /* changes with every replacement; connections carry the one they belong to */
	__u64 sources;	  /* list in sl_hp_allowlist; 0 = all sources */
	__be16 port;	  /* containerPort */
	__u16 flags;	  /* enum sl_hostport_flag */
	__u32 ifindex;	  /* condition: device the packet came in by */
	__u8 src[16];	  /* condition: network of the source */
	__u8 dst[16];	  /* condition: network of the destination */
	__u8 src_prefix;  /* 0-128; 96 + n for IPv4 */
	__u8 dst_prefix;
	__u8 pad[6];
};
_Static_assert(sizeof(struct sl_hostport) == 88, "sl_hostport is a map value");

/*
 * The outside end by which clients reach a pod's port. Key: a sl_hostport_key with the pod's address and
 * port.
 */
struct sl_hp_outside {
	__u8 ip[16];
	__u64 generation; /* of the mapping that leads to the pod's port */
	__be16 port;
	__u8 any; /* the mapping is one without hostIP */
	__u8 pad[5];
};
_Static_assert(sizeof(struct sl_hp_outside) == 32, "sl_hp_outside is a map value");

enum sl_hostport_flag {
	SL_HP_SNAT = 1 << 0,	 /* portmap "snat" */
	SL_HP_MASQ_ALL = 1 << 1, /* portmap "masqAll" */
	SL_HP_COND_SRC = 1 << 2, /* conditions in force */
	SL_HP_COND_DST = 1 << 3,
	SL_HP_COND_IIF = 1 << 4,
	SL_HP_COND_NOT_SRC = 1 << 5, /* ... negated */
	SL_HP_COND_NOT_DST = 1 << 6,
	SL_HP_COND_NOT_IIF = 1 << 7,
};

#define SL_HP_CONDITIONS (SL_HP_COND_SRC | SL_HP_COND_DST | SL_HP_COND_IIF)

/* LPM key of a source in a list. */
struct sl_allowed_source {
	__u32 prefix_len; /* 64 + 0-128, host byte order: the list is exact */
	__u8 list[8];	  /* sl_hostport.sources, which is even; odd for its IPv4 networks */
	__u8 ip[16];
};
_Static_assert(sizeof(struct sl_allowed_source) == 28, "sl_allowed_source is a map key");
