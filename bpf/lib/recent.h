/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "clock.h"
#include "recent_maps.h"

/*
 * What the last packets of a program on this CPU were for, copied: each lookup in a hash table is four calls and as
 * many cold cache lines. A copy is read again when the loader has changed anything, and after a while. It is what the packet goes
 * on with even if it cannot be kept: the verifier walks one way from here, not two.
 */

/* Longest time for which nobody looks whether a pod's device is still there, or learns of a change whose writer was killed before it told of it. */
#define SL_RECENT_HOLD (10 * 1000000ULL)

/* Copies that a program keeps on a CPU, one for all that share its number. */
#define SL_RECENT 256

/* When something was read, and how long it may be believed. */
struct sl_freshness {
	__u64 epoch;
	__u64 until; /* clock_now() from which on it has to be read again; 0: at once */
};

/* Read before what is copied: what changes meanwhile is of a later one. */
static __always_inline __u64 recent_epoch(void)
{
	__u32 zero = 0;
	volatile __u64 *e = bpf_map_lookup_elem(&sl_epoch, &zero);

	return e ? *e : 0;
}

static __always_inline bool recent_fresh(const struct sl_freshness *f, __u64 now)
{
	return now < f->until && f->epoch == recent_epoch();
}
