/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../base/compiler.h"

/*
 * Tells whether a device still exists. A pod can vanish without a DEL.
 */

/*
 * Has the device of an endpoint gone, and the pod with it? Upstream's plugins after a rollback, or
 * a runtime that lost a pod, delete a device without telling Sluice. What the pod published goes to
 * the stack then. bpf_fib_lookup() looks for the device before all else (net/core/filter.c).
 */
__noinline int sl_ifindex_gone(struct __sk_buff *skb, __u32 ifindex)
{
	struct bpf_fib_lookup fib = {.family = AF_INET, .ifindex = ifindex};

	return bpf_fib_lookup(skb, &fib, sizeof(fib), 0) == -ENODEV;
}
