/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../base/compiler.h"

/*
 * Tells whether a device still exists. A pod can vanish without a DEL.
 */

/*
 * Is the device of an endpoint not there any more, and the pod with it? Whoever deleted it may not know of us: the reference's
 * plugins after a way back, or a runtime that lost a pod. What it published is nobody's then, and is the stack's business.
 * bpf_fib_lookup() looks for the device before all else (net/core/filter.c).
 */
__noinline int sl_ifindex_gone(struct __sk_buff *skb, __u32 ifindex)
{
	struct bpf_fib_lookup fib = {.family = AF_INET, .ifindex = ifindex};

	return bpf_fib_lookup(skb, &fib, sizeof(fib), 0) == -ENODEV;
}
