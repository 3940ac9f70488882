/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../base/compiler.h"

/*
 * Records about dropped packets, and the values of the maps that count drops.
 */

/* Which program dropped a packet. Numbers are part of the map layout. */
enum sl_program {
	SL_PROGRAM_NONE = 0,
	SL_PROGRAM_FROM_POD,
	SL_PROGRAM_TO_POD,
	SL_PROGRAM_FROM_UPLINK,
	SL_PROGRAM_TO_UPLINK,
	SL_PROGRAM_NS_EGRESS,
	SL_PROGRAM_NS_INGRESS,
	SL_PROGRAM_EDT,
	SL_PROGRAM_XDP_DENYLIST,
	SL_PROGRAM_MAC_CHECK,
	SL_PROGRAM_PARENT,
	SL_PROGRAM_MAX,
};

/* In a key beside ifindexes and SL_PODNS_KEY: the number of a limit in sl_edt_limits, with this bit. */
#define SL_EDT_KEY 0x40000000U

/* First bytes of a packet in an event: link header, IPv6 with an extension header, and an ICMP error with what it carries. */
#define SL_EVENT_BYTES 128

/* A dropped packet, in sl_drop_events. The addresses are as they were when it was dropped. */
struct sl_event {
	__u64 time;	/* CLOCK_MONOTONIC, ns */
	__u64 owner;	/* as sl_endpoint.owner; 0: no endpoint, or not known to the program */
	__u32 endpoint; /* key of the pod's device in sl_ep_stats, or with SL_EDT_KEY; 0 = none */
	__u32 device;	/* ifindex of the device the program is on; endpoint inside a pod */
	__u32 len;	/* of the frame, a GSO packet whole */
	__u16 reason;	/* enum sl_drop_reason */
	__u8 program;	/* enum sl_program */
	__u8 l2_len;	/* bytes of link header before the IP header */
	__u8 captured;	/* bytes in data, up to SL_EVENT_BYTES */
	__u8 pad[7];
	__u8 data[SL_EVENT_BYTES];
};
_Static_assert(sizeof(struct sl_event) == 168, "sl_event is what the reader decodes");

/* The lease of the reader of events. One entry, written by the loader. */
struct sl_event_lease {
	__u64 until;  /* CLOCK_MONOTONIC, ns: end of the lease. The reader extends it while it lives */
	__u64 window; /* ns */
	__u64 burst;  /* events of one CPU in one window */
};
_Static_assert(sizeof(struct sl_event_lease) == 24, "sl_event_lease is a map value: no hidden padding");

/* Key of sl_drops_by_dev. */
struct sl_drop_key {
	__u32 device;	/* as sl_event.device */
	__u32 endpoint; /* as sl_event.endpoint */
	__u32 reason;	/* enum sl_drop_reason */
};
_Static_assert(sizeof(struct sl_drop_key) == 12, "sl_drop_key is a map key: no hidden padding");

/* What a CPU has sent to the reader, and scratch space: the stack is full where packets are dropped. */
struct sl_event_state {
	__u64 window; /* start of the window */
	__u64 left;   /* events left in it */
	__u64 lost;   /* drops that the reader did not get, because of its limit or a full buffer */
	__u64 run;    /* drops of key that are not in sl_drops_by_dev yet */
	/* Of the packet being dropped, or of the last one. */
	__u64 now;
	__u64 owner;
	struct sl_drop_key key;
	__u32 zero; /* key of a map with one entry */
};
_Static_assert(sizeof(struct sl_event_state) == 64, "sl_event_state is a map value: no hidden padding");
