/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "compiler.h"

/*
 * A published port. ip is the hostIP; "::" or ::ffff:0.0.0.0 stands for every
 * address of the node in that family (those in host_addrs).
 */
struct sl_hostport_key {
	__u8 ip[16];
	__be16 port;
	__u8 proto;
	__u8 pad;
};
_Static_assert(sizeof(struct sl_hostport_key) == 20, "sl_hostport_key is a map key");

/* One key has one owner: the last ADD wins by replacing the value. */
struct sl_hostport {
	__u8 ip[16]; /* pod */
	__u64 owner; /* as sl_endpoint.owner */
	__u64 gen;   /* changes with every replacement; flows carry the one they were made by */
	__be16 port; /* containerPort */
	__u16 flags; /* enum sl_hostport_flag */
	__u32 pad;
};
_Static_assert(sizeof(struct sl_hostport) == 40, "sl_hostport is a map value");

enum sl_hostport_flag {
	SL_HP_SNAT = 1 << 0,	 /* portmap "snat" */
	SL_HP_MASQ_ALL = 1 << 1, /* portmap "masqAll" */
};
