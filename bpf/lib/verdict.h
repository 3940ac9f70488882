/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "compiler.h"

/*
 * Why a packet was dropped: the index into sl_drops. One reason per cause.
 * New reasons go before SL_DROP_MAX; numbers are part of the map layout.
 */
enum sl_drop_reason {
	SL_DROP_NONE = 0,
	SL_DROP_SPOOFED_IP,   /* source address is not one of the pod's */
	SL_DROP_SPOOFED_MAC,  /* source MAC is not the pod's */
	SL_DROP_NO_SNAT_ADDR, /* the uplink has no address to masquerade with */
	SL_DROP_SNAT_PORTS,   /* no free source port toward that destination */
	SL_DROP_TUPLE_CLASH,  /* same client port through two hostPorts to one pod port */
	SL_DROP_FLOW_TABLE,   /* the flow could not be recorded */
	SL_DROP_REWRITE,      /* the packet could not be rewritten */
	SL_DROP_MAX,
};
