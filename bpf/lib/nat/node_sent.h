/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include <linux/in.h>
#include "../conntrack/conntrack_table.h"

/*
 * Connections from an address of the node that no socket shows: what netfilter masquerades for others
 * (containers of another suite, pods with another back end), and pings of the node itself. A pod's
 * masqueraded connection does not take their tuples.
 */

/* Key: the tuple (local = the node's end). Value: clock_now() of the last packet that may have opened it. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct sl_tuple);
	__type(value, __u64);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_node_sent SEC(".maps");

/* A function of its own, for the stack it takes. */
static __noinline __maybe_unused int sl_node_note(const struct sl_tuple *t, __u64 now)
{
	__u64 *last = bpf_map_lookup_elem(&sl_node_sent, t);

	if (last)
		*last = now;
	else
		bpf_map_update_elem(&sl_node_sent, t, &now, BPF_ANY);
	return 0;
}

/* May the connection go on? Of TCP only the SYN was seen. One that is over costs a pod no more than its port. */
static __always_inline bool node_sent_on(const struct sl_tuple *t, __u64 now)
{
	__u64 *last = bpf_map_lookup_elem(&sl_node_sent, t);

	return last && now - *last < (t->proto == IPPROTO_TCP ? SL_TIMEOUT_TCP : SL_TIMEOUT_REPLIED);
}
