/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include <linux/bpf.h>
#include "../base/compiler.h"

/*
 * Rate limits by earliest departure time (EDT).
 */

enum sl_edt_flag {
	SL_EDT_EGRESS = 1 << 0, /* what the pod sends; else what it gets */
	SL_EDT_ONLY = 1 << 1,	/* only the networks in sl_edt_cidrs are limited */
	SL_EDT_EXCEPT = 1 << 2, /* only those that are not there */
	SL_EDT_POLICE = 1 << 3, /* on the host veth: drop what comes faster, without a departure time */
};

#define SL_EDT_FLOWS 128

/* State of the flows with one hash. */
struct sl_edt_flow {
	__u64 busy_until; /* until then its bytes use up its share of the rate */
	__u64 last;	  /* departure of its last packet: the next one does not leave before */
};

/*
 * One limited direction of one attachment. Times are CLOCK_MONOTONIC in ns, as fq uses them. The
 * lock covers everything from clock on. The loader writes the members before it once; they are read
 * without the lock.
 */
struct sl_edt_limit {
	struct bpf_spin_lock lock;
	__u32 flags;   /* enum sl_edt_flag */
	__u64 owner;   /* as sl_endpoint.owner */
	__u64 rate;    /* bytes of frames a second, never 0 */
	__u64 burst;   /* time of the bytes that may pass at once after a pause */
	__u64 mark;    /* a packet that waits longer gets an ECN mark */
	__u64 horizon; /* a packet that would wait longer is dropped */

	__u64 clock;	 /* when all bytes so far are through at the rate */
	__u64 sparse;	 /* the same for packets that overtook the queue, at a quarter of the rate */
	__u64 bytes;	 /* of frames, sent or waiting */
	__u64 packets;	 /* of the same; a GSO packet counts as one */
	__u64 drops;	 /* packets */
	__u64 marks;	 /* packets */
	__u64 queued_ns; /* ns, the sum over all packets */
	struct sl_edt_flow flow[SL_EDT_FLOWS]; /* by hash */
};
_Static_assert(sizeof(struct sl_edt_limit) == 104 + 16 * SL_EDT_FLOWS, "sl_edt_limit is a map value");

/* LPM key of the networks of one direction. */
struct sl_edt_cidr {
	__u32 prefix_len; /* 32-160, host byte order: 32 for the number, 96 + n for IPv4 */
	__u32 number;	  /* key in sl_edt_limits */
	__u8 ip[16];
};
_Static_assert(sizeof(struct sl_edt_cidr) == 24, "sl_edt_cidr is a map key: no hidden padding");
